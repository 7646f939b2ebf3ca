"""Measure pairs with keys per second in Spark, and peak memory for a sample with very many atoms.

The memory measurements run in a separate process: `python -m tests.benchmarks.pairs STEP FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import isqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import ROOT, run_command
from tests.benchmarks.watching import JVM, PYTHON_WORKERS, Look, peak_bytes
from untold.jobs.inference.stage.requests import Pairs
from untold.jobs.metrics.condensing import Condenser
from untold.jobs.run.folders import Workspace
from untold.jobs.run.session import open_session, spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts.pairs import MODEL, PAIRS, ask_all
from untold.udfs.llm.keys import Stage

STAGE = Stage("classify_relation", ("premise", "hypothesis"), "fake-model", "{{ premise }} {{ hypothesis }}")
RESPONSES, CONTEXTS = 10, 20
PAIRS_OF_A_SAMPLE = 2 * RESPONSES * CONTEXTS + CONTEXTS * (CONTEXTS - 1)
REQUESTS = 24_995_000  # all pairs of 5,000 context atoms
TURNS = 3
# A part of the pairs is enough for small samples, and the slower method uses a part of these
PART = 5
SMALLER = 10
ENTAILMENTS_OF_AN_ATOM = 10
# The limit for bounded memory: the peak with ten times the atoms over the peak without
GOAL_BOUNDED = 1.5
MEGABYTE = 2.0**20
UNIT = "pairs/s"
PARTS = {"JVM": JVM, "Python workers": PYTHON_WORKERS}
Batches = Iterator[pa.RecordBatch]


def measure(options: Options) -> list[Figure]:
    """Measure rates, then memory, for samples with about `requests` pairs in total, and for one large sample."""
    requests = options.requests or REQUESTS
    return [*_rates(requests, options.pairs or TURNS), *_memory(requests)]


def count_atoms(pairs: int) -> int:
    """Return the number of context atoms with at most this number of pairs between them."""
    return max(2 * SMALLER, (1 + isqrt(1 + 4 * pairs)) // 2)


def count_samples(pairs: int) -> int:
    """Return the number of small samples with at most this number of pairs."""
    return max(1, pairs // PAIRS_OF_A_SAMPLE)


# Pairs per second


@dataclass(frozen=True)
class Way:
    """A method that creates the pairs of some owners, and their expected number."""

    name: str
    frame: DataFrame
    pairs: int

    def time(self) -> float:
        """Return the pairs per second of a whole Spark job that creates and discards them."""
        began = perf_counter()
        self.frame.write.format("noop").mode("overwrite").save()
        return self.pairs / (perf_counter() - began)


def _rates(requests: int, turns: int) -> list[Figure]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with open_session(Settings(), "untold-benchmarks") as spark:
        ways = _ways(spark, requests)
        quick, slow = ways[2:]
        _check(quick, slow)
        rates = [[way.time() for way in ways] for _ in range(turns)]
    figures = [Figure(way.name, tuple(turn[place] for turn in rates), UNIT) for place, way in enumerate(ways)]
    return [*figures, Figure("keys of prepared texts / from texts", tuple(turn[2] / turn[3] for turn in rates))]


def _ways(spark: SparkSession, requests: int) -> list[Way]:
    many, few = count_samples(requests // PART), count_samples(requests // PART**2)
    atoms = count_atoms(requests)
    small, fewer = (spark.createDataFrame(make_owners(count, CONTEXTS, RESPONSES)) for count in (many, few))
    large = spark.createDataFrame(make_owners(1, atoms, 0)).coalesce(1)
    each = f"{CONTEXTS} context and {RESPONSES} response atoms"
    return [
        Way(f"{many:,} samples of {each}", add_keyed(small), many * PAIRS_OF_A_SAMPLE),
        Way(f"one sample of {atoms:,} context atoms, in one task", add_keyed(large), atoms * (atoms - 1)),
        Way(f"{few:,} samples, keys of prepared texts", add_keyed(fewer), few * PAIRS_OF_A_SAMPLE),
        Way(f"{few:,} samples, each key from its texts", add_slowly(fewer), few * PAIRS_OF_A_SAMPLE),
    ]


def _check(quick: Way, slow: Way) -> None:
    """Raise RuntimeError if both methods create different pairs. It also warms up the JVM and its workers."""
    digest = (F.count("*").alias("pairs"), F.bit_xor(F.xxhash64(*PAIRS.names)).alias("digest"))
    first, second = (way.frame.agg(*digest).first() for way in (quick, slow))
    if first is None or first != second or first["pairs"] != quick.pairs:
        raise RuntimeError(f"{quick.name} and {slow.name} are not the same pairs: the figures would be off")


def add_keyed(owners: DataFrame) -> DataFrame:
    """Add the pairs as a job does."""
    return Pairs(owners, ask_all).identify(STAGE)


def add_slowly(owners: DataFrame) -> DataFrame:
    """Add the same rows, with a key from the texts of each pair."""
    return owners.mapInArrow(generate_slowly, spark_schema(PAIRS))


def generate_slowly(batches: Batches) -> Batches:
    """Yield all pairs as `udfs.facts.pairs.generate_pairs`, with `Stage.request_id`; a batch of `PAIRS` per sample."""
    for batch in batches:
        for owner in batch.to_pylist():
            texts, contexts = owner["texts"], owner["contexts"]
            places = [pair for pair in permutations(range(len(texts)), 2) if min(pair) < contexts]
            source, target = zip(*places, strict=True)
            ids = [STAGE.request_id({"premise": texts[one], "hypothesis": texts[other]}) for one, other in places]
            owners, tellers = pa.repeat(owner["owner"], len(ids)), pa.repeat(MODEL, len(ids))
            columns = [owners, pa.array(source), pa.array(target), tellers, pa.array(ids)]
            yield pa.RecordBatch.from_arrays(columns, schema=PAIRS)


# Peak memory, each in a separate process


def _memory(requests: int) -> list[Figure]:
    atoms, samples = count_atoms(requests), count_samples(requests)
    less = atoms // SMALLER
    large, small, many = f"{atoms:,} atoms", f"{less:,} atoms", f"{samples:,} small samples"
    with TemporaryDirectory(prefix="untold-") as name:
        folder = Path(name)
        pairs = {
            small: _peaks("generate", write_owners(folder / "small", 1, less, 0)),
            large: _peaks("generate", write_owners(folder / "large", 1, atoms, 0)),
            many: _peaks("generate", write_owners(folder / "many", samples, CONTEXTS, RESPONSES)),
        }
        graphs = {
            small: _peaks("condense", write_graph(folder / "small-graph", less)),
            large: _peaks("condense", write_graph(folder / "large-graph", atoms)),
        }
    return [
        *_compare("pairs written, ", pairs, large, [("Python workers", small), ("JVM", many)]),
        *_compare("graph condensed, ", graphs, large, [("Python workers", small), ("JVM", small)]),
    ]


def _compare(
    what: str, peaks: Mapping[str, Mapping[str, float]], large: str, judged: Sequence[tuple[str, str]]
) -> list[Figure]:
    measured = [
        Figure(f"{what}{part}, {size}", (peak,), "MB") for size, found in peaks.items() for part, peak in found.items()
    ]
    ratios = [
        Figure(
            f"{what}{part}, {large} / {size}",
            (peaks[large][part] / peaks[size][part],),
            at_most=GOAL_BOUNDED if (part, size) in judged else None,
        )
        for size in peaks
        for part in PARTS
        if size != large
    ]
    return measured + ratios


def _peaks(step: str, folder: Path) -> dict[str, float]:
    """Return the megabytes of each part of a step that reads and writes `folder`."""
    command = [sys.executable, "-m", "tests.benchmarks.pairs", step, str(folder)]
    looks: Sequence[Look] = run_command(command, ROOT, folder / "log", watch=True)
    return {part: peak_bytes(looks, role) / MEGABYTE for part, role in PARTS.items()}


def generate(spark: SparkSession, folder: str) -> None:
    """Write the pairs of the owners in one task."""
    add_keyed(spark.read.parquet(f"{folder}/owners").coalesce(1)).write.parquet(f"{folder}/pairs")


def condense(spark: SparkSession, folder: str) -> None:
    """Condense the graph as a job does."""
    nodes, edges = (spark.read.parquet(f"{folder}/{name}") for name in ("nodes", "edges"))
    Condenser(Settings(), Workspace(spark, f"{folder}/work")).condense(nodes, edges)


# Invented data


def make_owners(count: int, contexts: int, responses: int) -> pa.Table:
    """Return owners of all pairs of these atoms, in the format of `untold.udfs.facts.pairs.generate_pairs`."""
    numbers = [contexts, contexts * responses, contexts * (contexts - 1), contexts * responses]
    names = ("contexts", "to_contexts", "between_contexts", "to_responses")
    owners = [f"sample:{number:08}" for number in range(count)]
    texts = [[_text(owner, place) for place in range(contexts + responses)] for owner in owners]
    counts = {name: pa.array([number] * count, pa.int64()) for name, number in zip(names, numbers, strict=True)}
    return pa.table({"owner": owners, "texts": texts, **counts})


def _text(owner: str, place: int) -> str:
    return f"Atom {place} of {owner} says where and when something of about this length took place."


def write_owners(folder: Path, count: int, contexts: int, responses: int) -> Path:
    """Write `make_owners` as Parquet into the folder `owners` of a new folder."""
    return _write(folder, owners=make_owners(count, contexts, responses))


def write_graph(folder: Path, atoms: int) -> Path:
    """Write a random graph as Parquet into the folders `nodes` and `edges` of a new folder."""
    chance = np.random.default_rng(atoms)
    node, pairs = np.arange(atoms), ENTAILMENTS_OF_AN_ATOM * atoms
    source, target = (chance.integers(0, atoms, pairs) for _ in range(2))
    response = chance.random(atoms) < 1 / 3
    same = {"graph": pa.repeat("sample", atoms), "frequency": pa.repeat(pa.scalar(1, pa.int64()), atoms)}
    nodes = pa.table({"node": node, "context": ~response, "response": response, **same})
    edges = {"graph": pa.repeat("sample", pairs), "source": source, "target": target}
    return _write(folder, nodes=nodes, edges=pa.table({**edges, "judged": pa.repeat(True, pairs)}))


def _write(folder: Path, **tables: pa.Table) -> Path:
    for name, table in tables.items():
        (folder / name).mkdir(parents=True)
        pq.write_table(table, folder / name / "part-0.parquet")
    return folder


def main(step: str, folder: str) -> None:
    """Run one step in a separate Spark session."""
    steps: Mapping[str, Callable[[SparkSession, str], None]] = {"generate": generate, "condense": condense}
    with open_session(Settings(), "untold-benchmarks") as spark:
        steps[step](spark, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
