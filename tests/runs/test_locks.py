"""Test a suspended run that loses its folders to another run, and the ports of all processes of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import (
    WAIT_SECONDS,
    Ended,
    Run,
    count_distinct,
    make_samples,
    read_manifest,
    write_samples,
)
from tests.runs.here import RunHere
from untold.jobs.run.locks import Holder, Process

pytestmark = pytest.mark.gate

NEXT = Holder("next", Process("another-host", "another-boot", "", 1234, "99"))
IN_FLIGHT = 2
SETTINGS = {"llm.max_concurrency": IN_FLIGHT}


@dataclass(frozen=True)
class TakenOver:
    """A run that lost the folder of its stage: the ports of its processes before, and the end of the run."""

    output: Path
    listening: list[tuple[str, str]]
    programs: set[str]
    calls_before: int
    calls: int
    distinct: int
    ended: Ended


@pytest.fixture(scope="module")
def taken_over(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TakenOver]:
    folder = tmp_path_factory.mktemp("taken")
    rows = make_samples(50)
    path, output = write_samples(folder / "samples.jsonl", rows), folder / "out"
    with ModelServer(latency=1.0) as server:
        run = Run(server, path, output, settings=SETTINGS)
        try:
            run.wait_for(server, 4)
            listening, programs = _listening(run.tree())
            (lock,) = output.glob("completions/v1/*/_lock")
            calls_before = server.count()
            lock.write_text(json.dumps(asdict(NEXT)), encoding="utf-8")
            ended = run.wait()
        finally:
            run.kill()
        yield TakenOver(output, listening, programs, calls_before, server.count(), count_distinct(rows), ended)


def _listening(processes: list[psutil.Process]) -> tuple[list[tuple[str, str]], set[str]]:
    """Return the program and address of each open socket, and the programs of all processes."""
    found, programs = [], set()
    for process in processes:
        try:
            name = " ".join(process.cmdline()).partition(" ")[0].rpartition("/")[2]
            sockets = process.net_connections(kind="inet")
        except psutil.NoSuchProcess:
            continue
        programs.add(name)
        open_to = [one for one in sockets if one.status == psutil.CONN_LISTEN or (one.type == 2 and not one.raddr)]
        found += [(name, one.laddr.ip) for one in open_to if one.laddr]
    return found, programs


def _is_loopback(address: str) -> bool:
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def test_all_processes_of_a_run_only_listen_on_loopback(taken_over: TakenOver) -> None:
    assert {"java", "gcs_server", "raylet"} <= taken_over.programs
    assert any(name.startswith("ray::AnsweringActor") for name in taken_over.programs)
    assert {"java", "gcs_server", "raylet"} <= {name for name, _ in taken_over.listening}
    assert [one for one in taken_over.listening if not _is_loopback(one[1])] == []


def test_a_run_that_lost_its_store_stops_and_reports_it(taken_over: TakenOver) -> None:
    assert taken_over.ended.code == 1
    assert "took over" in taken_over.ended.err
    assert taken_over.calls < taken_over.distinct
    # The lock is checked five times per second, and a lease lasts a quarter of a second, so some calls are still sent
    assert taken_over.calls <= taken_over.calls_before + 2 * IN_FLIGHT


def test_a_run_that_lost_its_output_does_not_change_it(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    server.configure(latency=0.5)
    path, output = write_samples(tmp_path / "samples.jsonl", make_samples(6)), tmp_path / "out"
    with ThreadPoolExecutor() as beside:
        taken = beside.submit(_take_over, server, output)
        ended = run_here(server, path, output, settings=SETTINGS)
        taken.result()
    assert ended.code == 1
    assert "took over" in ended.err
    assert (output / "scores").is_dir()
    assert read_manifest(output)["status"] == "running"
    assert json.loads((output / "_lock").read_text()) == json.loads(json.dumps(asdict(NEXT)))


def _take_over(server: ModelServer, output: Path) -> None:
    """Take over an output like the next run, after the first requests of the run."""
    end = monotonic() + WAIT_SECONDS
    while server.count() < 4 and monotonic() < end:
        sleep(0.02)
    (output / "_lock").write_text(json.dumps(asdict(NEXT)), encoding="utf-8")
    (output / "scores").mkdir()
