"""Measure the seconds until the first call of a run with a store of a million completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import Ran, run_job
from tests.benchmarks.samples import bound_stage, write_samples
from tests.fakes.answers import coverage_text
from tests.fakes.model_server import ModelServer
from untold.jobs.inference.store.store import stage_folder
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.store_files import write_file

REQUESTS = 1_000
PAIRS = 3
ROWS_OF_A_FILE = 500_000


def measure(options: Options) -> list[Figure]:
    """Run a job with the full store and a job with an empty store in turn. The requests are not in the stores."""
    requests, pairs = options.requests or REQUESTS, options.pairs or PAIRS
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed") as server:
        folder = Path(name)
        fill_store(folder / "full", options.stored, server.base_url)
        full, empty = [], []
        for number in range(pairs):
            samples = write_samples(folder / "samples.jsonl", requests, first=number * requests)
            full.append(_run(server, samples, folder, "full", requests))
            empty.append(_run(server, samples, folder, f"empty{number}", requests))
    return [
        Figure(f"start to first call, {options.stored:,} stored", tuple(ran.seconds_before for ran in full), "s"),
        Figure("start to first call, empty store", tuple(ran.seconds_before for ran in empty), "s"),
        Figure(f"wall, {options.stored:,} stored", tuple(ran.seconds for ran in full), "s"),
        Figure("wall, empty store", tuple(ran.seconds for ran in empty), "s"),
    ]


def _run(server: ModelServer, samples: Path, folder: Path, store: str, calls: int) -> Ran:
    return run_job(server, samples, folder / "job", f"completion_store={folder / store}", calls=calls)


def fill_store(store: Path, count: int, base_url: str) -> None:
    """Write completions of invented requests to the stage's folder, in files with the size after compaction."""
    directory = Path(stage_folder(str(store), bound_stage(base_url)))
    directory.mkdir(parents=True)
    for number, first in enumerate(range(0, count, ROWS_OF_A_FILE)):
        table = make_completions(range(first, min(first + ROWS_OF_A_FILE, count)))
        write_file(str(directory / f"compact-earlier-{number:04d}.parquet"), table)


def make_completions(numbers: range) -> pa.Table:
    """Return a table of valid completions, one per number."""
    return completions_of([_made_up_id(number) for number in numbers], [_made_up_text(number) for number in numbers])


def completions_of(ids: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """Return a table of valid completions for the requests."""
    size = len(ids)
    same = {
        "finish_reason": "stop",
        "model": "fake-model",
        "prompt_tokens": 60,
        "cached_prompt_tokens": 0,
        "completion_tokens": 40,
        "tokens_estimated": False,
        "attempts": 1,
        "seconds": 0.02,
        "answered_at": datetime.now(UTC),
        "run_id": "earlier",
    }
    columns = {name: pa.repeat(pa.scalar(value, COMPLETIONS.field(name).type), size) for name, value in same.items()}
    columns["request_id"], columns["text"] = pa.array(ids), pa.array(texts)
    missing = {field.name: pa.nulls(size, field.type) for field in COMPLETIONS if field.name not in columns}
    columns |= missing
    return pa.table([columns[name] for name in COMPLETIONS.names], schema=COMPLETIONS)


def write_answers(
    store: Path, stage: Stage, answers: Iterable[tuple[Mapping[str, Any], str]], run: str = "earlier"
) -> None:
    """Write the completions of an earlier run to the folder of a stage. The rows have the variables of the requests."""
    folder = Path(stage_folder(str(store), stage))
    folder.mkdir(parents=True, exist_ok=True)
    left = iter(answers)
    for number, rows in enumerate(iter(lambda: list(islice(left, ROWS_OF_A_FILE)), [])):
        ids, texts = [stage.request_id(variables) for variables, _ in rows], [text for _, text in rows]
        write_file(str(folder / f"{run}-{number:04d}.parquet"), completions_of(ids, texts))


def _made_up_id(number: int) -> str:
    return blake2b(f"made up {number}".encode(), digest_size=16).hexdigest()


def _made_up_text(number: int) -> str:
    return coverage_text([(f"A covered statement {number}.", (1,))], [(f"An uncovered one {number}.", (1,))])
