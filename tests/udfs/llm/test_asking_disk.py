"""Test stops and disks: completions are written before the loop waits, and a full disk loses no completion."""

from __future__ import annotations

import asyncio
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from time import sleep

import pyarrow as pa
import pytest

from tests.fakes.disks import SmallDisk
from tests.fakes.model_server import ModelServer
from tests.udfs.llm.askers import SETTINGS, Run, requests, rows_in
from untold.udfs.llm import request_loop, store_files
from untold.udfs.llm.calls import Progress

SOON = 20.0


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the disk of the folder for the time of the block.

    If mounting is not permitted, limit the size of files to 512 bytes.
    """
    try:
        disk = SmallDisk(folder)
    except PermissionError:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return
    disk.fill()
    try:
        yield
        disk.empty()
    except BaseException:
        disk.close()
        raise


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)


def test_a_full_disk_that_is_emptied_loses_no_row_and_pays_for_no_request_twice(
    server: ModelServer, disk: Path
) -> None:
    async def run() -> Progress:
        one = Run(server, disk)
        with full(disk):
            one.asker.start()
            one.asker.feed("unit", requests(300))
            held = await one.until(lambda progress: progress.trouble is not None and progress.usage.done == 300)
            assert (held.unwritten, held.finished_units, rows_in(disk)) == (300, (), {})
            assert held.trouble in ("No space left on device", "File too large")
        await one.until(lambda progress: bool(progress.finished_units))
        return await one.asker.stop(1.0)

    progress = asyncio.run(run())
    assert (progress.unwritten, progress.trouble, progress.unwritable) == (0, None, False)
    assert len(rows_in(disk)) == server.count() == 300


def test_no_new_request_is_sent_while_many_rows_are_unwritten(
    server: ModelServer, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "MOST_ROWS", 50)

    async def run() -> Progress:
        one = Run(server, disk)
        with full(disk):
            one.asker.start()
            one.asker.feed("unit", requests(300))
            await one.until(lambda progress: progress.trouble is not None and progress.unwritten >= 50)
            await asyncio.sleep(1.0)
            asked = server.count()
            assert 50 <= asked <= 50 + SETTINGS.limits.max_concurrency
        await one.until(lambda progress: bool(progress.finished_units))
        return await one.asker.stop(1.0)

    assert asyncio.run(run()).usage.calls == len(rows_in(disk)) == server.count() == 300


def test_a_full_disk_is_reported_after_the_time_of_an_outage(server: ModelServer, disk: Path) -> None:
    async def run() -> Progress:
        one = Run(server, disk, replace(SETTINGS, outage=1.0))
        with full(disk):
            one.asker.start()
            one.asker.feed("unit", requests(5))
            await one.until(lambda progress: progress.unwritable)
            return await one.asker.stop(0.2)

    progress = asyncio.run(run())
    assert (progress.unwritten, progress.finished_units) == (5, ())


def test_what_is_answered_is_on_the_disk_before_a_stop_waits(server: ModelServer, tmp_path: Path) -> None:
    server.configure(rules=[{"when": {"contains": "number 0."}, "do": "hang"}])

    async def run() -> None:
        one = Run(server, tmp_path, replace(SETTINGS, timeout=30.0, flush=1000.0))
        one.asker.start()
        one.asker.feed("unit", requests(5))
        await one.until(lambda progress: progress.usage.done == 4)
        stop = asyncio.create_task(one.asker.stop(SOON))
        while len(rows_in(tmp_path)) < 4:
            assert not stop.done()
            await asyncio.sleep(0.01)
        assert not stop.done()
        assert one.asker.progress().in_flight == 1
        for task in one.asker._tasks:
            task.cancel()
        await stop

    asyncio.run(run())


def test_a_stop_while_a_lease_is_wanted_ends(server: ModelServer, tmp_path: Path) -> None:
    async def stop_after(turns: int) -> None:
        one = Run(server, tmp_path / str(turns))
        (tmp_path / str(turns)).mkdir()
        one.asker.start()
        one.asker.feed("unit", requests(5))
        await one.until(lambda progress: progress.usage.done == 5)
        one.asker._endpoints.need_leases()  # a 429, an error and a turn of a tool have the same effect
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(one.asker.stop(0.0), SOON)
        assert all(task.done() for task in one.asker._tasks)
        assert len(rows_in(tmp_path / str(turns))) == 5

    for turns in range(4):
        asyncio.run(stop_after(turns))


@pytest.mark.parametrize("stops", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_stops_under_load_end_and_lose_nothing(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: int
) -> None:
    monkeypatch.setattr(request_loop, "CLOSE_SECONDS", SOON)
    random = Random(1)

    async def run(folder: Path) -> None:
        folder.mkdir()
        one = Run(server, folder, replace(SETTINGS, flush=random.choice([0.01, 0.1])))
        one.asker.start()
        one.asker.feed("unit", requests(100))
        done = random.randrange(30)
        await one.until(lambda progress: progress.usage.done >= done)
        progress = await asyncio.wait_for(one.asker.stop(1.0), SOON)
        assert all(task.done() for task in one.asker._tasks)
        assert len(rows_in(folder)) == progress.usage.done == progress.usage.calls

    async def all_of_them() -> None:
        for number in range(stops):
            await run(tmp_path / str(number))

    asyncio.run(all_of_them())


def test_stop_waits_for_a_flush_that_is_going_on(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store_files.write_file

    def write_slowly(uri: str, table: pa.Table) -> None:
        sleep(1.0)
        write(uri, table)

    monkeypatch.setattr(store_files, "write_file", write_slowly)

    async def run() -> int:
        one = Run(server, tmp_path)
        one.asker.start()
        one.asker.feed("unit", requests(5))
        await one.until(lambda progress: progress.usage.done == 5)
        await asyncio.sleep(0.5)
        await one.asker.stop(1.0)
        return len(rows_in(tmp_path))

    assert asyncio.run(run()) == 5
