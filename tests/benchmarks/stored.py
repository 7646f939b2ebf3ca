"""Measure whole jobs with a full store, for e2e and nli: seconds and memory by the number of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.memory import GOAL_FLAT, MEGABYTE
from tests.benchmarks.reuse import write_answers
from tests.benchmarks.running import run_job
from tests.benchmarks.samples import STAGE, bound_stage, write_rows
from tests.benchmarks.watching import DRIVER, JVM, PYTHON_WORKERS, peak_bytes
from tests.fakes.answers import coverage_text
from tests.fakes.model_server import ModelServer

# Atoms of a response and of its contexts, and the contexts: 2 * 20 * 40 + 40 * 39 = 3,160 pairs
RESPONSE_ATOMS, CONTEXT_ATOMS, CONTEXTS = 20, 40, 5
# In the store, a sample of nli has as many rows as thousands of samples of e2e
SAMPLES_OF_E2E = 100
# The JVM uses the heap that it gets, and the memory of Python workers grows with their batches
JUDGED = ("a sample", DRIVER)
# Samples per process when completions are written
PART = 500
EXTRACT, REVISE, RATE, CLASSIFY = ("extract_atoms", "revise_atoms", "rate_relevance", "classify_relation")
STAGES = {"e2e": (STAGE,), "nli": (EXTRACT, REVISE, RATE, CLASSIFY)}
Request = tuple[Mapping[str, Any], str]


def measure(options: Options) -> list[Figure]:
    """Measure nli at the given sizes over a hundred, and e2e at all sizes, each compared with the next smaller size.

    Raises RuntimeError if a job sends a request.
    """
    sizes = {"e2e": options.sizes, "nli": [max(size // SAMPLES_OF_E2E, 1) for size in options.sizes]}
    return [figure for metric in sizes for figure in _of_metric(metric, sizes[metric])]


def _of_metric(metric: str, sizes: Sequence[int]) -> list[Figure]:
    """Return milliseconds per sample and peaks by size, and the ratios of the last two sizes."""
    found = {size: _run(metric, size) for size in sizes}
    figures = [
        Figure(f"{metric}: {name}, {size:,} samples", (value,), "ms" if name == "a sample" else "MB")
        for size, values in found.items()
        for name, value in values.items()
    ]
    for small, large in list(pairwise(sizes))[-1:]:
        figures += [
            Figure(
                f"{metric}: {name}, {large:,} / {small:,} samples", (value / found[small][name],), "", None, GOAL_FLAT
            )
            for name, value in found[large].items()
            if name in JUDGED
        ]
    return figures


def _run(metric: str, size: int) -> dict[str, float]:
    with TemporaryDirectory(prefix="untold-") as name, ModelServer() as server:
        folder = Path(name)
        path = folder / "samples.jsonl"
        write_rows(path, map(_sample, range(size)))
        _fill(folder / "store", STAGES[metric], size, server.base_url)
        ran = run_job(
            server, path, folder / "job", f"completion_store={folder / 'store'}", metric=metric, calls=0, watch=True
        )
    peaks = {role: peak_bytes(ran.looks, role) / MEGABYTE for role in (DRIVER, JVM, PYTHON_WORKERS)}
    return {"a sample": 1000 * ran.seconds / size, **peaks}


def _sample(number: int) -> dict[str, Any]:
    return {
        "sample_id": f"s{number:07d}",
        "query": f"What of {number}?",
        "response": " ".join(_response_atoms(number)),
        "contexts": [" ".join(atoms) for atoms in _context_atoms(number)],
        "system": f"system{number % 2}",
    }


def _response_atoms(number: int) -> list[str]:
    return [f"Fact R{place} of {number}." for place in range(RESPONSE_ATOMS)]


def _context_atoms(number: int) -> list[list[str]]:
    """Return the atoms of each context."""
    atoms = [f"Fact C{place} of {number}." for place in range(CONTEXT_ATOMS)]
    size = CONTEXT_ATOMS // CONTEXTS
    return [atoms[first : first + size] for first in range(0, CONTEXT_ATOMS, size)]


def _requests_of(stage: str, numbers: range) -> Iterator[Request]:
    """Yield the variables and the completion of each request that a run over these samples sends for a stage."""
    for number in numbers:
        query, response, contexts = f"What of {number}?", _response_atoms(number), _context_atoms(number)
        if stage == STAGE:
            sample = _sample(number)
            variables = {name: sample[name] for name in ("query", "contexts", "response")}
            yield variables, coverage_text([(response[0], (1,))], [(contexts[0][0], (1,))])
            continue
        if stage == CLASSIFY:
            yield from _pairs(response, [atom for atoms in contexts for atom in atoms])
            continue
        for atoms in (response, *contexts):
            lines = {
                EXTRACT: [f"- {atom}: Fact" for atom in atoms],
                REVISE: [f"* {atom}" for atom in atoms],
                RATE: [f"* {atom} [Relevance: 5]" for atom in atoms],
            }
            text, listed = {"text": " ".join(atoms)}, {"statements": atoms}
            of_stage = {EXTRACT: text, REVISE: text | listed, RATE: {"query": query} | listed}
            yield of_stage[stage], "\n".join(lines[stage])


def _pairs(response: Sequence[str], contexts: Sequence[str]) -> Iterator[Request]:
    """Yield all pairs of a response atom and a context atom, both ways, and of two context atoms. Some are entailed."""
    for first, second in product(contexts, contexts):
        if first != second:
            yield {"premise": first, "hypothesis": second}, "neutral"
    for place, one in enumerate(response):
        for other in contexts:
            relation = "entailment" if other == contexts[2 * place] else "neutral"
            yield {"premise": one, "hypothesis": other}, relation
            yield {"premise": other, "hypothesis": one}, relation


def _fill(store: Path, stages: Sequence[str], size: int, base_url: str) -> None:
    """Write the completions that a run over `size` samples would receive, in several processes."""
    parts = [range(first, min(first + PART, size)) for first in range(0, size, PART)]
    with ProcessPoolExecutor() as pool:
        for stage in stages:
            list(pool.map(partial(_fill_part, store, stage, base_url), parts))


def _fill_part(store: Path, stage: str, base_url: str, numbers: range) -> None:
    write_answers(store, bound_stage(base_url, stage), _requests_of(stage, numbers), f"part-{numbers.start:07d}")
