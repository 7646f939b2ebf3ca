"""One run per metric over a few symbolic worlds, with failed requests, truncated completions and empty responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.citations import citation_worlds
from tests.fakes.classifier import LABELS
from tests.fakes.expected_rag import rag_samples
from tests.fakes.model_server import ModelServer
from tests.fakes.relevancy import relevancy_samples
from tests.fakes.rubrics import rubric_worlds
from tests.fakes.world import World, qa_worlds, worlds
from tests.fakes.world_icat import IcatWorld, icat_worlds
from tests.fakes.world_importance import ImportanceWorld, importance_worlds
from tests.fakes.world_longrecall import LongRecallWorld, longrecall_worlds
from tests.fakes.world_nuggets import nugget_worlds
from tests.golden.tables import Tables
from tests.golden.workshop import Workshop
from tests.runs.harness import Row
from tests.runs.icat_jobs import embedder, words_among
from tests.runs.worlds import with_kinds
from tests.udfs.retrieval.onnx_files import write_classifier

ATTEMPTS = {"llm.max_attempts": 1}
EMPTY = "empty"
_FAULTS = ({"status": 400}, "length")
AnyWorld = World | IcatWorld | ImportanceWorld | LongRecallWorld


@dataclass(frozen=True)
class Case:
    """A run of a metric: its samples, the answers of the model server, its settings and the stages with faults.

    `at_once` is the stage that refuses a request with one response, and truncates the completion for the last response.
    In the stage `at_random`, the share `share` of the completions is garbage.
    """

    metric: str
    samples: Callable[[], list[Row]]
    answer: str
    at_once: str
    at_random: str | None = None
    share: float = 0.05
    settings: Mapping[str, Any] = field(default_factory=dict)
    embeds: bool = False
    classifies: bool = False

    def rules(self, samples: Sequence[Row]) -> list[dict[str, Any]]:
        """Return the rules of the faults for the model server."""
        given = [sample["response"] for sample in samples]
        texts = [text for text in given if isinstance(text, str) and text.strip()]
        first = next(text for text in reversed(texts) if text not in texts[-1] and texts[-1] not in text)
        victims = first, texts[-1]
        rules: list[dict[str, Any]] = [
            {"when": {"stage": self.at_once, "contains": json.dumps(text)[1:-1]}, "do": deed}
            for text, deed in zip(victims, _FAULTS, strict=True)
        ]
        if self.at_random:
            rules.append({"when": {"stage": self.at_random, "share": self.share, "seed": 7}, "do": "garbage"})
        return rules

    def run(self, workshop: Workshop, name: str) -> Path:
        """Run it and return its output."""
        samples = self.samples()
        with ModelServer(self.answer, self.rules(samples)) as server:
            settings = {**ATTEMPTS, **self.settings, **(embedder(server) if self.embeds else {})}
            if self.classifies:
                settings["nli.classifier"] = write_judge(workshop.folder / f"{name}-judge", samples)
            return workshop.score(name, server, samples, self.metric, settings)


def write_judge(folder: Path, samples: Sequence[Row]) -> Path:
    """Write a classifier with the words of all texts as its vocabulary. Every second word makes it uncertain."""
    texts = [text["text"] if isinstance(text, dict) else text for sample in samples for text in sample["contexts"]]
    words = words_among([*texts, *(sample["response"] for sample in samples)])
    write_classifier(folder, labels=list(LABELS), words=words, doubted=words[::2])
    return folder


def samples_of(known: Sequence[AnyWorld]) -> list[Row]:
    """Return two samples per world, and one sample with an empty response."""
    samples = [sample for world in known for sample in world.samples(2)]
    return [{**samples[0], "sample_id": EMPTY, "response": ""}, *samples]


def statement_samples(named: int, numbered: int, judge: str) -> list[Row]:
    """Return samples of some worlds whose contexts have ids (`named`), and of some whose contexts have none."""
    known = [*worlds(named, judge, ids=True), *worlds(numbered, judge, first=named)]
    return [with_kinds(sample) for sample in samples_of(known)]


def qa_samples(count: int) -> list[Row]:
    """Return samples for qa, with quantities."""
    known = [*qa_worlds(count // 2, "noisy", ids=True), *qa_worlds(count // 2, "noisy", first=count // 2)]
    return [with_kinds(sample) for sample in samples_of(known)]


def icat_samples(count: int, *, given: bool) -> list[Row]:
    """Return samples for icat, with or without given aspects."""
    known = [world for world in icat_worlds(8 * count, "noisy", ids=True) if bool(world.given) == given]
    return samples_of(known[:count])


def rag_with_empty(count: int) -> list[Row]:
    """Return samples for rag, one of them with an empty response."""
    samples = rag_samples(count, 2)
    return [{**samples[0], "sample_id": EMPTY, "response": ""}, *samples]


CASES: Mapping[str, Case] = {
    "e2e": Case("e2e", lambda: statement_samples(4, 3, "closed"), "world_closed", "evaluate_coverage"),
    "qa": Case("qa", lambda: qa_samples(4), "world_noisy", "mine_questions", "compare_answers", 0.2),
    "nli": Case("nli", lambda: statement_samples(2, 1, "noisy"), "world_noisy", "extract_atoms", "classify_relation"),
    "nli-lists": Case(
        "nli",
        lambda: statement_samples(2, 1, "noisy"),
        "careless_noisy",
        "extract_atoms",
        "classify_relations",
        settings={"nli.judgement": "lists", "nli.list_size": 3},
    ),
    "nli-cascade": Case(
        "nli",
        lambda: statement_samples(2, 1, "noisy"),
        "world_noisy",
        "extract_atoms",
        settings={"nli.filter": "words", "nli.classifier_threshold": 0.8, "nli.audit_share": 0.3},
        classifies=True,
    ),
    "icat-s": Case(
        "icat",
        lambda: icat_samples(4, given=True),
        "world_noisy",
        "extract_claims",
        "classify_relation",
        settings={"icat.variant": "s"},
        embeds=True,
    ),
    "icat-a": Case(
        "icat",
        lambda: icat_samples(4, given=False),
        "world_noisy",
        "extract_claims",
        "align_claims",
        0.4,
        settings={"icat.variant": "a", "icat.aspects": 4},
        embeds=True,
    ),
    "importance": Case(
        "importance",
        lambda: samples_of(importance_worlds(7)),
        "world",
        "extract_claims",
        "check_coverage",
        settings={
            "importance.min_weight": 0.3,
            "importance.batch": 4,
            "importance.evidence_chunks": 2,
            "importance.ks": "[1,3]",
        },
        embeds=True,
    ),
    "nuggets": Case(
        "nuggets",
        lambda: samples_of(nugget_worlds(7)),
        "world",
        "assign_nuggets",
        "rate_nuggets",
        settings={"nuggets.window": 2, "nuggets.max_generated": 6, "nuggets.top_k": 4, "nuggets.vital_weight": 0.5},
    ),
    "rubric": Case(
        "rubric",
        lambda: samples_of(rubric_worlds(7)[::-1]),
        "world",
        "judge_criteria",
        "judge_criteria",
        settings={"rubric.score": "lenient", "rubric.list_size": 3},
    ),
    "citations": Case(
        "citations",
        lambda: samples_of(citation_worlds(10)),
        "world",
        "judge_support",
        "judge_support",
        0.3,
        settings={"citations.score": "weighted_recall", "citations.list_size": 2},
    ),
    "answer-relevancy": Case(
        "answer_relevancy",
        lambda: [sample for sample, _ in relevancy_samples(12)],
        "world",
        "judge_relevancy",
        "judge_relevancy",
        0.3,
        settings={"answer_relevancy.list_size": 3},
    ),
    "longrecall": Case(
        "longrecall",
        lambda: samples_of(longrecall_worlds(4, "noisy")),
        "world_noisy",
        "extract_claims",
        "match_many",
        settings={"longrecall.baselines": '["arecall","erecall","holistic"]'},
        embeds=True,
    ),
    "rag": Case("rag", lambda: rag_with_empty(6), "careless_closed", "extract_claims", "check_claims"),
    "conflicts": Case(
        "e2e",
        lambda: statement_samples(3, 3, "closed"),
        "world_closed",
        "evaluate_coverage",
        "cover_sides",
        0.3,
        settings={"e2e.conflicts": "true"},
    ),
}


def output_of(workshop: Workshop, name: str) -> Path:
    """Return the output of a run, which runs once."""
    output = workshop.folder / name
    return output if output.exists() else CASES[name].run(workshop, name)


def freeze_run(workshop: Workshop, name: str) -> Tables:
    """Return all tables of a run."""
    return workshop.read(output_of(workshop, name))
