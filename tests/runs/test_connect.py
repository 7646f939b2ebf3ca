"""Compare the Python API over Spark Connect with the command. The server and the client are separate processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.runs import connect
from tests.runs.cluster import SHARED_RAY, SharedCluster
from tests.runs.harness import PROMPTS, WAIT_SECONDS, clean_environment
from tests.runs.here import RunHere
from untold.jobs.run_tables import open_run

pytestmark = pytest.mark.gate

SCRIPT = str(Path(connect.__file__))
TABLES = ("samples", "atoms", "relations", "statements", "claims", "measures", "scores", "failures", "summary")
ROWS = [
    {
        "sample_id": f"s{place}",
        "query": "Where does Ada Mill live?",
        "response": f"Ada Mill lives in {city}.",
        "contexts": ["Ada Mill lives in Lyon.", "Ada Mill lives in Turin."],
        "system": f"model-{place % 2}",
    }
    for place, city in enumerate(("Lyon", "Turin", "Osaka"))
]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a Connect server for the module and return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("connect")
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, SCRIPT, "serve", str(port)],
            # Workers import modules from this folder, and the checkout has a folder `untold` that is not the package
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert server.stdout is not None
    assert server.stdin is not None
    assert server.stdout.readline() == "serving\n", (folder / "log").read_text()
    yield f"sc://127.0.0.1:{port}"
    server.stdin.close()
    server.wait(WAIT_SECONDS)


def tables_of(output: str) -> dict[str, list[dict[str, Any]]]:
    run = open_run(output)
    return {name: run.table(name).to_pylist() for name in TABLES}


@pytest.mark.parametrize(
    ("metrics", "whole"), [("e2e", False), pytest.param("e2e,nli,icat", True, marks=pytest.mark.slow)]
)
def test_scores_over_connect_equal_the_command(
    remote: str, run_here: RunHere, shared_cluster: SharedCluster, tmp_path: Path, metrics: str, whole: bool
) -> None:
    path = tmp_path / "samples.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    with ModelServer(answer="world") as server:
        settings = {
            "llm": {"base_url": server.base_url, "model": "fake-model"},
            "prompts_dir": str(PROMPTS),
            "ray.address": shared_cluster.address,
            "completion_store": str(tmp_path / "store"),
        }
        given = {
            "remote": remote,
            "settings": settings,
            "metrics": metrics.split(","),
            "input": str(path),
            "framed": str(tmp_path / "framed"),
            "output": str(tmp_path / "output"),
            "whole": whole,
        }
        ended = subprocess.run(
            [sys.executable, SCRIPT, "score", json.dumps(given)],
            cwd=tmp_path,
            env={**clean_environment(), **SHARED_RAY},
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        shared_cluster.forget()
        assert ended.returncode == 0, ended.stderr
        told = json.loads(ended.stdout.splitlines()[-1])
        calls = server.count()
        plain = run_here(server, path, tmp_path / "plain", "--metric", metrics)
        assert plain.code == 0, plain.err
        # The store has the completions of the file with the same rows, and a refused call sends no requests
        assert server.count() == 2 * calls > 0
    assert told["status"] == ["finished"] * (1 + whole)
    assert not whole or told["planned"] >= calls
    assert told["kept"]
    assert "GraphFrames" in told["refused"]
    assert "Spark Connect" in told["refused"]
    assert len(told["refused"].splitlines()) == 1
    plain_tables = tables_of(str(tmp_path / "plain"))
    for name in ("framed", "output") if whole else ("framed",):
        assert tables_of(str(tmp_path / name)) == plain_tables
