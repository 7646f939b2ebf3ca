"""Ray and Spark over two hosts, each a network namespace, with the driver in a third."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.harness import clean_environment, sorted_rows
from tests.runs.hosts import DRIVER, hosts
from tests.runs.icat_jobs import CONCLUSIONS

pytestmark = [pytest.mark.slow, pytest.mark.alone]
TABLES = {"nli": ("samples", "atoms", "relations", "statements", "scores", "failures"), "icat": CONCLUSIONS}


def test_tables_equal_the_tables_of_one_machine_if_processes_die(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        with hosts():
            command = ["ip", "netns", "exec", DRIVER, sys.executable, "-m", "tests.runs.hosts", str(tmp_path)]
            ended = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    except PermissionError as error:
        pytest.skip(str(error))
    told = [line.split() for line in ended.stdout.splitlines()]
    assert [words[:3] for words in told] == [
        [metric, place, "0"] for metric in TABLES for place in ("local", "hosts")
    ], ended.stdout + ended.stderr
    for metric, tables in TABLES.items():
        local, away = tmp_path / f"{metric}-local", tmp_path / f"{metric}-hosts"
        for table in tables:
            if metric != "icat" or table != "failures":
                assert sorted_rows(away, table) == sorted_rows(local, table), (metric, table)
    calls = {(words[0], words[1]): int(words[3]) for words in told}
    # The requests in flight when an actor dies, and the requests that it had leased
    assert calls["nli", "hosts"] <= calls["nli", "local"] + 64
    assert calls["icat", "hosts"] <= calls["icat", "local"] + 64
