"""One Spark session, one Ray cluster and one folder for all runs whose outputs are frozen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from tests.conftest import SPARK
from tests.fakes.model_server import ModelServer
from tests.golden.tables import Table, Tables, read_tables, sort_rows
from tests.runs.cluster import SharedCluster
from tests.runs.harness import Ended, Row, write_samples
from tests.runs.here import RunHere
from untold.jobs.run.session import open_session
from untold.jobs.settings.model import Settings, SparkSettings

OK, SOME_FAILED, INTERRUPTED = 0, 4, 130


@dataclass(frozen=True)
class Workshop:
    """Runs commands in this process, each with an output below the folder."""

    run: RunHere
    folder: Path

    def score(
        self,
        name: str,
        server: ModelServer,
        samples: Sequence[Row],
        metric: str,
        settings: Mapping[str, Any],
        code: int = SOME_FAILED,
    ) -> Path:
        """Score the samples and return the output. Raise if the exit code is another."""
        path = write_samples(self.folder / f"{name}.jsonl", samples)
        output = self.folder / name
        check(self.run(server, path, output, "--metric", metric, settings=settings), code)
        return output

    def read(self, output: Path) -> Tables:
        """Return all tables of an output. Its cells name the folder of the workshop `FOLDER`."""
        return {name: _without_path(table, str(self.folder)) for name, table in read_tables(output).items()}

    def command(self, *words: Any, settings: Mapping[str, Any] | None = None, code: int = OK) -> Ended:
        """Run a command line with these settings. Raise if the exit code is another."""
        pairs = (word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value}"))
        return check(self.run.command([*map(str, words), *pairs]), code)


def _without_path(table: Table, path: str) -> Table:
    rows = [{column: cell.replace(path, "FOLDER") for column, cell in row.items()} for row in table.rows]
    return Table(table.columns, sort_rows(rows, table.columns))


def check(ended: Ended, code: int) -> Ended:
    """Return how the command ended. Raise if its exit code is another."""
    if ended.code == INTERRUPTED:
        raise KeyboardInterrupt
    if ended.code != code:
        raise RuntimeError(f"exit code {ended.code} and not {code}: {ended.err[-4000:]}")
    return ended


@contextmanager
def open_workshop() -> Iterator[Workshop]:
    """Start Spark and Ray as the tests do, and stop them at the end."""
    with TemporaryDirectory(prefix="untold-golden-") as folder:
        with patch.dict(os.environ):
            spark = open_session(Settings(spark=SparkSettings(master="local[2]", conf=SPARK)), "untold-golden")
        cluster = SharedCluster()
        run = RunHere(spark, cluster)
        try:
            yield Workshop(run, Path(folder))
        finally:
            run.close()
            cluster.close()
            spark.stop()
