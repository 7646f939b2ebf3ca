"""Test that DuckDB reads the tables of runs in a lakehouse, in a separate environment with packaged extensions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from tests.jobs.lakehouse.test_outputs import DAYS, Opened, lake, row, write
from untold.jobs.lakehouse.base import Lake

__all__ = ["lake"]
VERSION = "1.5.5"
EXTENSIONS = ("httpfs", "delta", "avro", "iceberg")
READ = """
import duckdb, glob, importlib, json, sys
database = duckdb.connect()
for name in ("httpfs", "delta", "avro", "iceberg"):
    (folder,) = importlib.import_module(f"duckdb_extension_{name}").__path__
    (file,) = glob.glob(f"{folder}/extensions/*/{name}.duckdb_extension")
    database.execute(f"load '{file}'")
rows = database.sql(f"select sample_id, score, sources, date::text from {sys.argv[1]} order by all").fetchall()
counts = database.sql(f"select date::text, count(*) from {sys.argv[1]} group by all order by all").fetchall()
print(json.dumps([rows, counts]))
"""


def source_of(lake: Lake, catalog: Catalog) -> str:
    if lake.FORMAT == "delta":
        return f"delta_scan('{lake.place}/scores')"
    return f"iceberg_scan('{catalog.load_table('nights.scores').metadata_location}')"


@pytest.mark.slow
def test_duckdb_reads_the_nights(lake: Opened, catalog: Catalog, tmp_path: Path) -> None:
    first, second = map(lake, DAYS)
    for number, (one, score) in enumerate([(first, 0.25), (second, 1.0), (first, 0.5)]):
        one.replace("scores", write(one, f"r{number}", [row("a", score), row("b", None)]))
    wanted = [f"duckdb-extension-{name}=={VERSION}" for name in EXTENSIONS]
    packages = [word for name in (f"duckdb=={VERSION}", *wanted) for word in ("--with", name)]
    line = [sys.executable, "-m", "uv", "--quiet", "run", "--no-project", "--python", sys.executable, *packages]
    ended = subprocess.run(
        [*line, "python", "-c", READ, source_of(first, catalog)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    days = [day.isoformat() for day in DAYS]
    rows, counts = json.loads(ended.stdout.splitlines()[-1])
    assert rows == [
        ["a", 0.5, ["1"], days[0]],
        ["a", 1.0, ["1"], days[1]],
        ["b", None, ["1"], days[0]],
        ["b", None, ["1"], days[1]],
    ]
    assert counts == [[day, 2] for day in days]
