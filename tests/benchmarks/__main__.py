"""Measure the engine and print each figure with its goal: `python -m tests.benchmarks [NAME ...]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import (
    calls,
    classifying,
    cluster,
    clustering,
    comparing,
    condensation,
    embedding,
    endpoints,
    grounding,
    importance,
    limit,
    lists,
    longrecall,
    memory,
    nights,
    pairs,
    ragchecker,
    readers,
    realsumm,
    recall,
    retrieval,
    reuse,
    sharing,
    soak,
    sql,
    start,
    statistics,
    stored,
)
from tests.benchmarks.figures import Figure, Options, figures_to_json, show_figures


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its description and its function."""

    title: str
    measure: Callable[[Options], list[Figure]]


BENCHMARKS = {
    "calls": Benchmark("calls a second, and a core, against an instant server", calls.measure),
    "endpoints": Benchmark("CPU time of an asker by the number of endpoints", endpoints.measure),
    "limit": Benchmark("use of a request limit", limit.measure),
    "memory": Benchmark("peak memory by number of samples", memory.measure),
    "reuse": Benchmark("start over a large store", reuse.measure),
    "nights": Benchmark("starts over a store by the number of nights that filled it", nights.measure),
    "comparing": Benchmark("untold compare and a run's summary, by number of scores", comparing.measure),
    "cluster": Benchmark("starts over object stores, and their requests, beside a local disk", cluster.measure),
    "sql": Benchmark("SQL over the tables of a run, by number of scores", sql.measure),
    "condensation": Benchmark("graphs condensed a second by a core", condensation.measure),
    "clustering": Benchmark("near-duplicates among the facts of a query, beside bare SciPy", clustering.measure),
    "embedding": Benchmark("texts embedded a second by a core, beside a bare loop", embedding.measure),
    "classifying": Benchmark("pairs classified a second by a core, beside a bare loop", classifying.measure),
    "grounding": Benchmark("requests and speed of icat", grounding.measure),
    "importance": Benchmark("checks of coverage, memory and the largest query of importance", importance.measure),
    "pairs": Benchmark("pairs with their keys a second, and peak memory by atoms of a sample", pairs.measure),
    "lists": Benchmark("requests and seconds a sample by the form of nli", lists.measure),
    "sharing": Benchmark("calls that judge pairs, by responses to a query", sharing.measure),
    "ragchecker": Benchmark("calls and seconds of rag beside RAGChecker's package, on one server", ragchecker.measure),
    "readers": Benchmark("readers of completions over random recombinations of forms", readers.measure),
    "realsumm": Benchmark("how often a fact finds its own document", realsumm.measure),
    "longrecall": Benchmark("requests, seconds and memory of longrecall", longrecall.measure),
    "recall": Benchmark("pairs of facts on the way to candidates, beside a loop over rapidfuzz", recall.measure),
    "retrieval": Benchmark("an index beside NumPy and bm25s", retrieval.measure),
    "soak": Benchmark("a long run among faults, killed three times, its disk full once", soak.measure),
    "start": Benchmark("how long a start takes, beside a bare one", start.measure),
    "stored": Benchmark("e2e and nli from a full store, by number of samples", stored.measure),
    "statistics": Benchmark("statistics of ten million rows, and their distance from SciPy's", statistics.measure),
}

REQUESTS = (
    "requests a run (calls, endpoints, limit, reuse, importance) or night (nights), pairs (pairs), queries (sharing, "
    "grounding, longrecall, ragchecker), recombinations a stage (readers), samples in the store (start), all (soak)"
)
REPETITIONS = (
    "repetitions (calls, endpoints, reuse, nights, condensation, embedding, classifying, importance, pairs, recall, "
    "start, statistics)"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, all by default. Return 1 if a goal is missed or a benchmark fails."""
    given = _parser().parse_args(arguments)
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    options = Options(given.requests, given.pairs, given.sizes, given.stored, given.graphs, given.nights, given.vectors)
    results: dict[str, list[Figure]] = {}
    broken = False
    for name in given.names or BENCHMARKS:
        try:
            results[name] = BENCHMARKS[name].measure(options)
        except (RuntimeError, LookupError) as error:
            print(f"\n{name}: {error}", file=sys.stderr)
            broken = True
            continue
        show_figures(f"{name}: {BENCHMARKS[name].title}", results[name])
        if given.json:
            given.json.write_text(json.dumps(figures_to_json(results), indent=2) + "\n", encoding="utf-8")
    missed = any(figure.met is False for figures in results.values() for figure in figures)
    return int(missed or broken)


def _parser() -> argparse.ArgumentParser:
    names = "; ".join(f"{name}: {benchmark.title}" for name, benchmark in BENCHMARKS.items())
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__, epilog=names)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--requests", type=_count, metavar="N", help=REQUESTS)
    parser.add_argument("--pairs", type=_count, metavar="N", help=REPETITIONS)
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="N,N",
        default=Options.sizes,
        help="samples (memory, grounding, importance, longrecall)",
    )
    parser.add_argument("--stored", type=_count, metavar="N", default=Options.stored, help="completions (reuse)")
    parser.add_argument("--graphs", type=_sizes, metavar="N,N", default=Options.graphs, help="graphs (condensation)")
    parser.add_argument("--nights", type=_sizes, metavar="N,N", default=Options.nights, help="nights (nights)")
    parser.add_argument("--vectors", type=_count, metavar="N", help="vectors (retrieval)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text}")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
