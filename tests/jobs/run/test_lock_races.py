"""Test that eight processes compete for one lock and for one new object of a store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fakes.stores import URIS, serve_store

pytestmark = [pytest.mark.slow, pytest.mark.alone]
RACERS = 8
ROUNDS = 10
RACE = """
import sys
from untold.jobs.run.locks import LockedError
from untold.jobs.run.locks import lock_folder
from untold.udfs.storage import StoragePath

name, folder = sys.argv[1:]
for line in sys.stdin:
    place = f"{folder}/{line.strip()}"
    wrote = (StoragePath(place) / "ledger.json").put_if_absent(name.encode())
    lock = lock_folder(place, name, wait=False)
    try:
        lock.__enter__()
        held = True
    except LockedError:
        held = False
    print(int(wrote), int(held), flush=True)
"""


@pytest.mark.parametrize("kind", URIS)
def test_one_of_eight_processes_gets_the_lock_and_one_creates_the_object(kind: str, tmp_path: Path) -> None:
    with serve_store(kind, tmp_path / "store") as gateway:
        race(f"{URIS[kind]}/race", {**os.environ, **gateway.variables})


def race(folder: str, given: Mapping[str, str]) -> None:
    """Run rounds with eight processes. Each round has one winner for each prize."""
    words = [sys.executable, "-c", RACE]
    pipe = subprocess.PIPE
    racers = [
        subprocess.Popen([*words, f"run{n}", folder], env=given, stdin=pipe, stdout=pipe, text=True)
        for n in range(RACERS)
    ]
    try:
        for number in range(ROUNDS):
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"{number}\n")
                racer.stdin.flush()
            answers = [racer.stdout.readline().split() for racer in racers if racer.stdout is not None]
            assert [sum(int(wrote) for wrote, _ in answers), sum(int(held) for _, held in answers)] == [1, 1]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
