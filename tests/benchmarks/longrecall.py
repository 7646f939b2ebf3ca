"""Measure the metric longrecall: requests against all pairs, seconds per sample against the paper, and full stores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.memory import GOAL_FLAT, MEGABYTE
from tests.benchmarks.running import IN_FLIGHT, Ran, run_job
from tests.benchmarks.sharing import QUICK
from tests.benchmarks.watching import DRIVER, JVM, PYTHON_WORKERS, peak_bytes
from tests.fakes.expected_longrecall import Options as World
from tests.fakes.expected_longrecall import expect
from tests.fakes.lookups import DIMENSION
from tests.fakes.model_server import ModelServer
from tests.fakes.rules import hash_of
from tests.fakes.world_longrecall import longrecall_worlds

METRIC = "longrecall"
# A job of 60 samples is mostly its start
QUERIES, RESPONSES = 60, 5
JUDGING = ("match_one", "match_many")
LATENCY = 0.2
# The published seconds per sample with one thread
PUBLISHED = (3.5, 5.0)
# The facts of a sample in full stores, and the words of a fact. Many systems answer few queries
REFERENCES, GENERATED, WORDS, ASKED = 108, 100, 8, 5
# The relation of a response item to its reference: verbatim, half of the words, other words with the same vector, none
VERBATIM, HALF, ALIAS, OTHER = KINDS = range(4)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LETTERS_A_WORD = 7
# Only words with the same vector are this near. The work of a task is the same for any other threshold
NEAR = "longrecall.cosine=0.95"
GOAL_LINEAR = 1.2
Sample = dict[str, Any]


def measure(options: Options) -> list[Figure]:
    """Run whole jobs over symbolic worlds, then jobs with a full store.

    Raises RuntimeError if a job with a full store sends a request.
    """
    return [*_requests(options.requests or QUERIES), *_from_full_stores(options.sizes)]


# Requests and their time


def _requests(queries: int) -> list[Figure]:
    """Measure entailment requests against all pairs, and seconds per sample with an endpoint that needs 0.2 s."""
    samples = [sample for world in longrecall_worlds(queries) for sample in world.samples(RESPONSES)]
    expected = [expect(sample, World()) for sample in samples]
    references = sum(len(one.statements) for one in expected)
    pairs = sum(len(one.statements) * len(one.claims) for one in expected)
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="world_closed", latency=LATENCY) as server:
        folder = Path(name)
        path = _write(folder / "samples.jsonl", samples)
        settings = (*QUICK, *_embedder(server))
        many = run_job(server, path, folder / "job", *settings, metric=METRIC)
        asked = sum(map(server.count, JUDGING))
        one = run_job(server, path, folder / "job", *settings, *_in_flight(1), metric=METRIC)
    least, _ = PUBLISHED
    return [
        Figure("references a sample", (references / len(samples),)),
        Figure("requests of entailment a reference", (asked / references,)),
        Figure("all pairs a reference", (pairs / references,)),
        Figure("requests of entailment, of all pairs", (asked / pairs,)),
        *(
            Figure(
                f"a sample at {LATENCY} s a call, {count} at once", (_calling(ran) / len(samples),), "s", at_most=least
            )
            for count, ran in ((IN_FLIGHT, many), (1, one))
        ),
        Figure("a sample as published, single-threaded", PUBLISHED, "s"),
    ]


def _embedder(server: ModelServer) -> tuple[str, ...]:
    return f"embeddings.base_url={server.base_url}", "embeddings.model=embedder"


def _in_flight(count: int) -> tuple[str, ...]:
    return f"llm.max_concurrency={count}", f"embeddings.max_concurrency={count}"


def _calling(ran: Ran) -> float:
    """Return the seconds from the first call to the end of the job."""
    return ran.ended - ran.arrivals[0]


# Full stores


def _from_full_stores(sizes: Sequence[int]) -> list[Figure]:
    """Measure seconds and memory of whole jobs by the number of samples. The start is a job with few samples."""
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="world_closed") as server:
        folder = Path(name)
        settings = (f"completion_store={folder / 'store'}", NEAR, *_embedder(server))
        few = _write(folder / "few.jsonl", _covering())
        run_job(server, few, folder / "job", *settings, metric=METRIC)
        start = run_job(server, few, folder / "job", *settings, metric=METRIC, calls=0)
        ran = {}
        for size in sizes:
            path = _write(folder / "samples.jsonl", map(_sample, range(size)))
            ran[size] = run_job(server, path, folder / "job", *settings, metric=METRIC, calls=0, watch=True)
    seconds = {size: (one.seconds - start.seconds) / size for size, one in ran.items()}
    peaks = {
        (role, size): peak_bytes(one.looks, role) / MEGABYTE
        for role in (DRIVER, JVM, PYTHON_WORKERS)
        for size, one in ran.items()
    }
    figures = [Figure(f"a sample from a full store, {size:,} samples", (one,), "s") for size, one in seconds.items()]
    figures += [Figure(f"{role}, {size:,} samples", (peak,), "MB") for (role, size), peak in peaks.items()]
    if len(ran) < 2:
        return figures
    small, large = sorted(ran)[-2:]
    ratio = f"{large:,} / {small:,} samples"
    return [
        *figures,
        Figure(f"seconds a sample, {ratio}", (seconds[large] / seconds[small],), at_most=GOAL_LINEAR),
        *(
            Figure(f"{role}, {ratio}", (peaks[role, large] / peaks[role, small],), at_most=GOAL_FLAT)
            for role in (DRIVER, JVM, PYTHON_WORKERS)
        ),
    ]


def _covering() -> Iterator[Sample]:
    """Yield samples that need all requests of any sample: each item of each query in each kind."""
    for query in range(ASKED):
        for kind in KINDS:
            yield _made(f"all-{query}-{kind}", query, [(place + kind) % len(KINDS) for place in range(GENERATED)])


def _sample(number: int) -> Sample:
    """Return the answer of a system to a query, with other kinds of items in another order."""
    random = Random(number)
    return _made(f"s{number:07d}", number % ASKED, random.choices(KINDS, k=GENERATED), random)


def _made(name: str, query: int, kinds: Sequence[int], random: Random | None = None) -> Sample:
    items = [_items(query)[place][kind] for place, kind in enumerate(kinds)]
    if random is not None:
        random.shuffle(items)
    return {
        "sample_id": name,
        "query": f"What of {query}?",
        "response": "\n".join(f"- {item}" for item in items),
        "references": [each[VERBATIM] for each in _items(query)],
        "system": f"system{name[-2:]}",
    }


@lru_cache
def _items(query: int) -> list[Mapping[int, str]]:
    """Return for each reference of a query its items by kind. Items are not near other references."""
    random = Random(query)
    return [_kinds(random) for _ in range(REFERENCES)]


def _kinds(random: Random) -> Mapping[int, str]:
    words = [_word(random) for _ in range(WORDS)]
    half = words[: WORDS // 2] + [_word(random) for _ in range(WORDS // 2)]
    texts = words, half, [_alias(random, word) for word in words], [_word(random) for _ in range(WORDS)]
    return {kind: " ".join(said) for kind, said in zip(KINDS, texts, strict=True)}


def _word(random: Random) -> str:
    return "".join(random.choices(_LETTERS, k=_LETTERS_A_WORD))


def _alias(random: Random, word: str) -> str:
    """Return a word that uses the same dimension of the server's vectors."""
    wanted = _dimension(word)
    return next(other for other in iter(lambda: _word(random), "") if _dimension(other) == wanted)


def _dimension(word: str) -> int:
    return hash_of(word.encode()) % DIMENSION


def _write(path: Path, samples: Iterable[Sample]) -> Path:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(sample) + "\n" for sample in samples)
    return path
