"""Compare a start with an object store to a start with a local disk: seconds, and requests to the store."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.reuse import make_completions
from tests.benchmarks.running import ROOT, run_command
from tests.benchmarks.samples import SETTINGS, bound_stage, write_samples
from tests.fakes.model_server import ModelServer
from tests.fakes.object_store import BUCKET, KEYS, ObjectStore
from tests.fakes.versitygw import install, serve
from untold.jobs.inference.store.store import stage_folder
from untold.udfs.llm.store_files import write_file
from untold.udfs.schemes import environment_of
from untold.udfs.storage import StoragePath

SAMPLES = 200
STORED = 100_000
MOST_REQUESTS = 400


class Server(NamedTuple):
    """The paths of outputs and stores, the settings for them, and the request counter, if any."""

    root: str
    settings: Mapping[str, Any]
    requests: list[Any]


def measure(options: Options) -> list[Figure]:
    """Measure starts with an empty and with a full store, on each kind of storage in turn."""
    count, stored, pairs = options.requests or SAMPLES, min(options.stored, STORED), options.pairs or 3
    figures = []
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="fixed") as model:
        samples = write_samples(Path(name) / "samples.jsonl", count)
        local: dict[str, float] = {}
        for kind, opened in _servers(Path(name)).items():
            with opened as server, patch.dict(os.environ, {**environment_of(server.settings), **KEYS}):
                _fill(f"{server.root}/full", stored, model.base_url)
                for store in ("empty", "full"):
                    ran = [_start(model, samples, Path(name), server, f"{store}{n}", store) for n in range(pairs)]
                    seconds = Figure(f"start, {store} store, {kind}", tuple(one for one, _ in ran), "s")
                    figures.append(seconds)
                    local.setdefault(store, seconds.median)
                    if kind != "local disk":
                        ratio = seconds.median / local[store]
                        figures.append(Figure(f"  beside a local disk, {kind}", (ratio,)))
                    if server.requests:
                        counts = tuple(float(one) for _, one in ran)
                        figures.append(Figure(f"  requests, {kind}", counts, at_most=MOST_REQUESTS))
    return figures


def _servers(folder: Path) -> dict[str, Any]:
    """Return functions that open each kind of storage. versitygw needs Go."""
    opened = {"local disk": _local(folder), "moto": _moto()}
    program = install()
    return opened | ({"versitygw": _versitygw(program, folder)} if program else {})


@contextmanager
def _local(folder: Path) -> Iterator[Server]:
    yield Server(str(folder / "local"), {}, [])


@contextmanager
def _moto() -> Iterator[Server]:
    with ObjectStore() as store:
        yield Server(f"s3://{BUCKET}", store.settings, store.requests)


@contextmanager
def _versitygw(program: Path, folder: Path) -> Iterator[Server]:
    with serve(program, folder / "gateway") as gateway:
        yield Server(f"s3://{BUCKET}", gateway.settings, [])


def _fill(store: str, count: int, base_url: str) -> None:
    folder = stage_folder(store, bound_stage(base_url))
    StoragePath(folder).make_folder()
    write_file(f"{folder}/earlier-0000.parquet", make_completions(range(count)))


def _start(
    model: ModelServer, samples: Path, folder: Path, server: Server, output: str, store: str
) -> tuple[float, int]:
    """Return the seconds of a start, and its requests to the store. An empty store is new each time."""
    place = f"{server.root}/{store if store == 'full' else output + '-store'}"
    settings = (*SETTINGS, f"llm.base_url={model.base_url}", f"completion_store={place}")
    command = [sys.executable, "-m", "untold", "score", "--input", str(samples), "--metric", "e2e"]
    command += ["--output", f"{server.root}/{output}"]
    for setting in (*settings, *(f"storage.{name}={value}" for name, value in server.settings.items())):
        command += ["--set", setting]
    before, began = len(server.requests), perf_counter()
    run_command(command, ROOT, folder / "log", watch=False)
    return perf_counter() - began, len(server.requests) - before
