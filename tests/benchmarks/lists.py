"""Measure requests and seconds per sample for each form of the requests of nli, at 0.2 s per call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import run_job
from tests.fakes.facts import Fact
from tests.fakes.model_server import ModelServer
from tests.runs.harness import read_table
from tests.runs.icat_jobs import words_among
from tests.udfs.retrieval.onnx_files import write_classifier
from untold.udfs.statistics.confusion import kappa

STAGES = ("classify_relation", "classify_relations")
RELATIONS = ("entailment", "contradiction", "neutral")
# The numbers of atoms and responses in the example of `docs/methods.md`, section 2
RESPONSE_ATOMS, CONTEXT_ATOMS, RESPONSES = 20, 40, 5
# Atoms of a response with another statement about a subject of its contexts
OTHERS = 4
PUBLISHED = 2 * RESPONSE_ATOMS * CONTEXT_ATOMS + CONTEXT_ATOMS * (CONTEXT_ATOMS - 1)
# The published calls and seconds of FactReasoner for 30 of its rows
FACTREASONER = (16_362 / 30, 255 / 30)
QUERIES = 2
LATENCY = 0.2  # seconds
LISTS = ("nli.judgement=lists",)
FILTER = ("nli.filter=words",)
CERTAIN = "nli.classifier_threshold=0.85"
SIZES = (5, 10)
LONGEST, CASCADE = "lists of 20", "lists of 20, filter by words, classifier"
# The factor of saved requests, and the agreement of a form with pairs
GOAL_LISTS, GOAL_CASCADE, GOAL_KAPPA = 30.0, 100.0, 0.95
Relations = Mapping[tuple[str, str, str], str]


@dataclass(frozen=True)
class _Form:
    """The requests of a form, the duration of its job, and its relations by sample and pair."""

    requests: int
    seconds: float
    relations: Relations


def measure(options: Options) -> list[Figure]:
    """Run whole jobs over `requests` queries. Each form has a separate store."""
    samples = make_samples(options.requests or QUERIES)
    with TemporaryDirectory(prefix="untold-") as name:
        folder = Path(name)
        names = {word for sample in samples for word in sample["subjects"].split()}
        words = words_among(str(sample["response"]) + str(sample["contexts"]) for sample in samples)
        # The judge recognises names and numbers. It is certain about different subjects, and uncertain about different
        # numbers
        known = [word for word in words if word in names or word.isdigit()]
        write_classifier(folder / "judge", known, ["entailment", "neutral"], [word for word in known if word.isdigit()])
        classifier = (f"nli.classifier={folder / 'judge'}", CERTAIN)
        forms = {
            "pairs": (),
            **{f"lists of {size}": (*LISTS, f"nli.list_size={size}") for size in SIZES},
            LONGEST: LISTS,
            "filter by words": FILTER,
            "classifier": classifier,
            CASCADE: (*LISTS, *FILTER, *classifier),
        }
        ran = {form: _run(folder, samples, settings) for form, settings in forms.items()}
    return [*_figures(ran, len(samples))]


def _figures(ran: Mapping[str, _Form], samples: int) -> Iterator[Figure]:
    yield Figure("published, no sample shares a pair", (PUBLISHED,), "requests a sample")
    yield Figure("FactReasoner, as published", FACTREASONER[:1], "requests a sample")
    yield Figure("FactReasoner, as published", FACTREASONER[1:], "seconds a sample")
    for name, form in ran.items():
        yield Figure(name, (form.requests / samples,), "requests a sample")
        yield Figure(f"{name}, whole job", (form.seconds / samples,), "seconds a sample")
    for form, goal in ((LONGEST, GOAL_LISTS), (CASCADE, GOAL_CASCADE)):
        yield Figure(f"published / {form}", (PUBLISHED * samples / ran[form].requests,), at_least=goal)
    for name, form in ran.items():
        agreed = _kappa(ran["pairs"].relations, form.relations)
        yield Figure(f"kappa of {name} and pairs", (agreed,), at_least=GOAL_KAPPA)


def _kappa(first: Relations, second: Relations) -> float:
    """Return Cohen's kappa of the relations of the same pairs."""
    table = np.zeros((len(RELATIONS), len(RELATIONS)), np.int64)
    for pair, relation in first.items():
        table[RELATIONS.index(relation), RELATIONS.index(second[pair])] += 1
    return float(kappa(table))


def make_samples(queries: int) -> list[dict[str, Any]]:
    """Return samples with the example's number of distinct atoms. Contexts have one fact about each of 40 subjects.

    A response paraphrases 16 of these facts, and has other facts about 4 more subjects.
    """
    samples = []
    for query in range(queries):
        facts = [_fact(query * CONTEXT_ATOMS + place, place) for place in range(CONTEXT_ATOMS)]
        # Each of the two paraphrases of a fact belongs to one response
        reworded = [fact.sentence(form) for form in (1, 2) for fact in facts]
        width = RESPONSE_ATOMS - OTHERS
        for place in range(RESPONSES):
            others = [
                Fact(fact.topic, fact.level, fact.subject, f"{fact.value[:-1]}{place + 5}").sentence()
                for fact in facts[place * OTHERS : (place + 1) * OTHERS]
            ]
            samples.append(
                {
                    "query": f"What is known of the fleet of Every One{_letters(query)}?",
                    "contexts": [" ".join(fact.sentence() for fact in facts)],
                    "response": " ".join([*reworded[place * width : (place + 1) * width], *others]),
                    "system": f"system {place}",
                    "subjects": " ".join(fact.subject.title() for fact in facts),
                }
            )
    return samples


def _fact(number: int, place: int) -> Fact:
    """Return a fact of a subject with two unique names. Its last digit is below 5."""
    value = 10 * place + number % 5
    topic, level, value_text = (
        ("fleet", "exact", f"exactly {100 + value}") if place % 2 else ("founding", "year", f"{1400 + value}")
    )
    return Fact(topic, level, f"ada{_letters(number)} mill{_letters(number)}", value_text)


def _letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def _run(folder: Path, samples: Sequence[dict[str, Any]], settings: Sequence[str]) -> _Form:
    """Run a whole job of a form."""
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    found: Relations = {}

    def look(output: Path) -> None:
        nonlocal found
        texts = {row["atom_id"]: row["text"] for row in read_table(output, "atoms")}
        found = {
            (row["sample_id"], texts[row["premise_id"]], texts[row["hypothesis_id"]]): row["relation"]
            for row in read_table(output, "relations")
        }

    with ModelServer(answer="world_closed", latency=LATENCY) as server:
        ran = run_job(server, path, folder / "job", "thresholds.relevance=1", *settings, metric="nli", look=look)
        return _Form(sum(map(server.count, STAGES)), ran.seconds, found)
