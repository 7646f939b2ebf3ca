"""Measure the metric icat: its requests compared with the published procedure, and its speed with a full store."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.memory import GOAL_FLAT, MEGABYTE
from tests.benchmarks.reuse import write_answers
from tests.benchmarks.running import run_command, run_job
from tests.benchmarks.samples import bound_stage, write_rows
from tests.benchmarks.sharing import QUICK
from tests.benchmarks.watching import DRIVER, JVM, PYTHON_WORKERS, peak_bytes
from tests.fakes.claims import aspects_of, claims_of
from tests.fakes.expected_icat import cut
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import IcatWorld, icat_worlds

METRIC = "icat"
QUERIES, RESPONSES, TOP = 40, 5, 10
EXTRACT, GENERATE, CLASSIFY, ALIGN = ("extract_claims", "generate_aspects", "classify_relation", "align_claims")
STAGES = (EXTRACT, GENERATE, CLASSIFY, ALIGN)
# Responses per query in the full store
GROUP = 5
BM25 = "knowledge.retriever=bm25"
Request = tuple[Mapping[str, Any], str]


def measure(options: Options) -> list[Figure]:
    """Run whole jobs over symbolic worlds, counted by the model server, then jobs with a full store.

    Raises RuntimeError if a job with a full store sends a request.
    """
    return [*_requests(options.requests or QUERIES), *_from_full_stores(options.sizes)]


# Requests


def _requests(queries: int) -> list[Figure]:
    """Count requests with early stop, without it, and for the published procedure on the same samples."""
    worlds = icat_worlds(queries)
    samples = [sample | {"aspects": None} for world in worlds for sample in world.samples(RESPONSES)]
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="world") as server:
        folder = Path(name)
        path = write_rows(folder / "samples.jsonl", samples)
        settings = [*QUICK, f"embeddings.base_url={server.base_url}", "embeddings.model=embedder"]
        index = _index(folder, worlds, settings)
        settings += ["knowledge.source=index", f"knowledge.index={index}"]
        asked = {}
        for early in ("true", "false"):
            run_job(server, path, folder / "job", *settings, f"icat.early_stop={early}", metric=METRIC)
            asked[early] = Counter({stage: server.count(stage) for stage in STAGES})
    stopped, whole, published = asked["true"], asked["false"], _published(worlds, samples)
    return [
        Figure("pairs judged with early stop, of all", (stopped[CLASSIFY] / whole[CLASSIFY],)),
        Figure("requests a sample, early stop", (stopped.total() / len(samples),)),
        Figure("requests a sample, no early stop", (whole.total() / len(samples),)),
        Figure("requests a sample as published", (published / len(samples),)),
        Figure("requests with early stop, of those as published", (stopped.total() / published,)),
    ]


def _published(worlds: Sequence[IcatWorld], samples: Sequence[Mapping[str, Any]]) -> int:
    """Return the requests of single samples: claims, aspects, ten chunks per claim, and the alignment."""
    chunks = sum(len(cut(document)) for world in worlds for document in world.documents)
    total = 0
    for sample in samples:
        claims = len(claims_of(sample["response"]))
        aligned = bool(claims and aspects_of(sample["query"]))
        total += bool(sample["response"].strip()) + 1 + claims * min(TOP, chunks) + aligned
    return total


def _index(folder: Path, worlds: Sequence[IcatWorld], settings: Sequence[str]) -> Path:
    """Build an index of all documents of the worlds."""
    corpus = write_rows(folder / "corpus.jsonl", [document for world in worlds for document in world.documents])
    command = [sys.executable, "-m", "untold", "index", "--input", str(corpus)]
    command += ["--output", str(folder / "index"), *(word for one in settings for word in ("--set", one))]
    run_command(command, folder, folder / "log", watch=False)
    return folder / "index"


# Full stores


def _from_full_stores(sizes: Sequence[int]) -> list[Figure]:
    """Measure samples per second of whole jobs with their start, and the memory of the largest over the smallest."""
    figures, peaks = [], {}
    for size in sizes:
        with TemporaryDirectory(prefix="untold-") as name, ModelServer() as server:
            folder = Path(name)
            path = write_rows(folder / "samples.jsonl", [_sample(number) for number in range(size)])
            _fill(folder / "store", size, server.base_url)
            ran = run_job(
                server,
                path,
                folder / "job",
                f"completion_store={folder / 'store'}",
                BM25,
                metric=METRIC,
                calls=0,
                watch=True,
            )
        figures.append(Figure(f"samples a second from a full store, {size:,} samples", (size / ran.seconds,)))
        for role in (DRIVER, JVM, PYTHON_WORKERS):
            peaks[role, size] = peak_bytes(ran.looks, role) / MEGABYTE
            figures.append(Figure(f"{role}, {size:,} samples", (peaks[role, size],), "MB"))
    small, large = min(sizes), max(sizes)
    ratio = (peaks[DRIVER, large] / peaks[DRIVER, small],)
    return [*figures, Figure(f"driver, {large:,} / {small:,} samples", ratio, at_most=GOAL_FLAT)]


def _sample(number: int) -> dict[str, Any]:
    """Return a sample with two claims, a separate one and one of its query. A context states each claim."""
    group = number // GROUP
    return {
        "sample_id": f"s{number:07d}",
        "query": f"What of {group}?",
        "response": f"Fact A{number}. Fact B{group}.",
        "contexts": [f"Fact A{number}. Fact C{number}.", f"Fact B{group}. Fact D{group}."],
        "system": f"system{number % GROUP}",
    }


def _requests_of(stage: str, size: int) -> Iterator[Request]:
    """Yield the variables and the completion of each request that a run over these samples sends for a stage."""
    for number in range(size):
        sample = _sample(number)
        group, query, contexts = number // GROUP, sample["query"], sample["contexts"]
        claims, aspects = [f"Fact A{number}.", f"Fact B{group}."], [f"a of {group}", f"b of {group}"]
        first = number % GROUP == 0
        if stage == EXTRACT:
            yield {"text": sample["response"]}, "\n".join(claims)
        elif stage == GENERATE and first:
            yield {"query": query}, "\n".join(json.dumps({"topic": aspect}) for aspect in aspects)
        elif stage == CLASSIFY:
            yield {"premise": contexts[0], "hypothesis": claims[0]}, "entailment"
            if first:
                yield {"premise": contexts[1], "hypothesis": claims[1]}, "entailment"
        elif stage == ALIGN:
            yield {"query": query, "aspects": aspects, "claims": claims}, '{"topic_id": 1, "evidence": [1, 2]}'


def _fill(store: Path, size: int, base_url: str) -> None:
    """Write the completions that a run over `size` samples would receive."""
    for name in STAGES:
        write_answers(store, bound_stage(base_url, name), _requests_of(name, size))
