"""Measure the metric importance: coverage against bare loops, memory by samples, and the largest possible query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.calls import GOAL_ENGINE, GOAL_USER
from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.memory import MEGABYTE, compare_peaks
from tests.benchmarks.reuse import write_answers
from tests.benchmarks.running import Ran, run_job, run_loop
from tests.benchmarks.samples import bound_stage, write_rows
from tests.benchmarks.watching import ACTOR, ANSWERING, DRIVER, JVM, PYTHON_WORKERS, Look, peak_bytes
from tests.fakes.model_server import ModelServer

METRIC, EXTRACT, CHECK = "importance", "extract_claims", "check_coverage"
# Per turn, as in the benchmark `calls`
REQUESTS, PAIRS = 20_000, 3
FACTS_OF_A_SAMPLE, CLAIMS_OF_A_SAMPLE = 10, 5
# Responses per query for the memory measurement, and the number of distinct responses
RESPONSES, DISTINCT = 500, 10
# The largest query has the maximum number of facts (importance.max_facts)
FACTS, CLAIMS, WORDS = 5_000, 500, 9
ROLES = (DRIVER, JVM, PYTHON_WORKERS, ANSWERING, ACTOR)
_WORDS = sorted(filter(str.isalpha, (Path(__file__).resolve().parents[2] / "LICENSE").read_text("utf-8").split()))
Sample = dict[str, Any]


def measure(options: Options) -> list[Figure]:
    """Run whole jobs with a model server that answers at once. Raises RuntimeError for another number of requests."""
    rates = _rates(options.requests or REQUESTS, options.pairs or PAIRS)
    looks = {size: _look(size) for size in options.sizes}
    return [*rates, *compare_peaks(looks), *_largest_query(FACTS, CLAIMS)]


# Requests per second


def _rates(requests: int, turns: int) -> list[Figure]:
    """Measure all three in turn on the same requests of `check_coverage`. A ratio compares two runs of one turn."""
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed") as server:
        folder, count = Path(name), requests // FACTS_OF_A_SAMPLE
        asked = count * FACTS_OF_A_SAMPLE
        samples = write_rows(folder / "samples.jsonl", map(_given_sample, range(count)))
        rows = write_rows(folder / "rows.jsonl", _checks(count))

        def run(step: str, turn: int) -> Ran:
            if step != "job":
                return run_loop(server, step, rows, stage=CHECK, calls=asked)
            store = folder / f"store-{turn}"
            extracted = (({"text": _given_sample(number)["response"]}, _said(number)) for number in range(count))
            write_answers(store, bound_stage(server.base_url, EXTRACT), extracted)
            return run_job(
                server, samples, folder / "job", f"completion_store={store}", "llm.actors=1", metric=METRIC, calls=asked
            )

        steps = ["user", "job", "engine"]
        ran = [{step: run(step, turn) for step in steps[:: -1 if turn % 2 else 1]} for turn in range(turns)]

    def over(step: str) -> tuple[float, ...]:
        return tuple(turn["job"].rate / turn[step].rate for turn in ran)

    return [
        Figure("check_coverage, job / user's loop", over("user"), at_least=GOAL_USER),
        Figure("check_coverage, job / engine's bare loop", over("engine"), at_least=GOAL_ENGINE),
        Figure("check_coverage, job", tuple(turn["job"].rate for turn in ran), "calls/s"),
    ]


def _given_sample(number: int) -> Sample:
    """Return a sample with weighted references, so that it only needs coverage requests after its claims."""
    references = [{"text": f"Fact {letter}{number}.", "weight": 1} for letter in _letters(FACTS_OF_A_SAMPLE)]
    return {"query": f"What of {number}?", "response": f"All of {number}.", "references": references}


def _checks(count: int) -> Iterator[dict[str, Any]]:
    """Yield the variables of each request of the samples."""
    for number in range(count):
        claims = _said(number).splitlines()
        yield from ({"fact": one["text"], "claims": claims} for one in _given_sample(number)["references"])


def _said(number: int) -> str:
    return "\n".join(f"Claim {letter}{number}." for letter in _letters(CLAIMS_OF_A_SAMPLE))


def _letters(count: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:count]


# Memory


def _look(size: int) -> Sequence[Look]:
    """Run a job over `size` samples: many systems that answer few queries."""
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="verbatim") as server:
        path = write_rows(Path(name) / "samples.jsonl", map(_shared_sample, range(size)))
        return run_job(server, path, Path(name) / "job", *_embedder(server), metric=METRIC, watch=True).looks


def _shared_sample(number: int) -> Sample:
    """Return a sample with two of the five facts of its query, and a claim that is in no context."""
    query, response = number // RESPONSES, number % DISTINCT
    facts = [f"Fact {letter} is of query {query}." for letter in _letters(5)]
    said = [facts[response % 5], facts[(response + 1) % 5], f"Response {response} is to query {query}."]
    return {
        "sample_id": f"s{number:07d}",
        "query": f"What of {query}?",
        "response": " ".join(said),
        "contexts": [" ".join(facts[:3]), " ".join(facts[2:])],
        "system": f"system{number % RESPONSES % 7}",
    }


def _embedder(server: ModelServer) -> tuple[str, str]:
    return f"embeddings.base_url={server.base_url}", "embeddings.model=embedder"


# The largest query


@dataclass(frozen=True)
class Largest:
    """The result of one sample: its run, and the sorted times of its `check_coverage` requests at the server."""

    ran: Ran
    checks: tuple[float, ...]


def _largest_query(facts: int, claims: int) -> list[Figure]:
    """Measure one sample with these facts and claims, and one with a tenth of the claims."""
    few, many = (_ask_largest(facts, number) for number in (claims // 10, claims))
    ran, checks = many.ran, many.checks
    what = f"{facts:,} facts, {claims:,} claims"
    return [
        Figure(f"{what}: wall", (ran.seconds,), "s"),
        Figure(f"{what}: wall / with {claims // 10:,} claims", (ran.seconds / few.ran.seconds,)),
        Figure(f"{what}: start to first check", (checks[0] - ran.began,), "s"),
        Figure(f"{what}: first to last check", (checks[-1] - checks[0],), "s"),
        Figure(f"{what}: last check to end", (ran.ended - checks[-1],), "s"),
        *(Figure(f"{what}: {role}", (peak_bytes(ran.looks, role) / MEGABYTE,), "MB") for role in ROLES),
        *(
            Figure(
                f"{what}: {role} / with {claims // 10:,} claims",
                (peak_bytes(ran.looks, role) / peak_bytes(few.ran.looks, role),),
            )
            for role in ROLES
        ),
    ]


def _ask_largest(facts: int, claims: int) -> Largest:
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="verbatim") as server:
        path = write_rows(Path(name) / "samples.jsonl", [_large_sample(facts, claims)])
        ran = run_job(server, path, Path(name) / "job", *_embedder(server), metric=METRIC, watch=True)
        checks = sorted(arrival.at for arrival in server.arrivals() if arrival.stage == CHECK)
    if len(checks) != facts:
        raise RuntimeError(f"{len(checks):,} facts were checked, not {facts:,}: the figures would be off")
    return Largest(ran, tuple(checks))


def _large_sample(facts: int, claims: int) -> Sample:
    """Return a context with one sentence per fact, and a response of sentences. A tenth of these is in no context."""
    sentences = _sentences(facts + claims)
    stated = list(islice(sentences, facts))
    said = [*Random(1).sample(stated, claims - claims // 10), *islice(sentences, claims // 10)]
    return {"query": "What do licences say?", "response": " ".join(said), "contexts": [" ".join(stated)]}


def _sentences(count: int) -> Iterator[str]:
    random = Random(0)
    for number in range(count):
        yield f"Number {number} " + " ".join(random.choices(_WORDS, k=WORDS)) + "."
