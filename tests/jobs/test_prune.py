from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import Any

import pyarrow as pa
import pytest

from tests.fakes.object_store import BUCKET, ObjectStore
from tests.jobs.inference.completions import KilledError, killed_after, names_in, read_rows, row, write
from untold.jobs.cli.main import main
from untold.jobs.inference.store.compaction import (
    compact_folder,
    find_whole,
    list_segments,
    list_uses,
    note_use,
    prune_folder,
    wait_for_prune,
)
from untold.jobs.inputs.options import PruneRequest
from untold.jobs.prune import PruneError, prune
from untold.jobs.run.locks import LockedError, lock_folder
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.store_files import Unneeded, write_file
from untold.udfs.llm.units import RequestIds

STAGE = f"evaluate_coverage-{'0' * 32}"
DAY = 24 * 3600.0
NOW = datetime.now(UTC)


def old(request_id: str, **fields: Any) -> dict[str, Any]:
    return row(request_id, text=f"text of {request_id}", **fields) | {"answered_at": NOW - timedelta(days=200)}


def young(request_id: str) -> dict[str, Any]:
    return old(request_id) | {"answered_at": NOW}


def use(store: Path, run: str, ids: Iterable[str | None], *, days: float = 0.0) -> None:
    """Record the request ids of a run with an age in days."""
    note_use(str(store), run, STAGE, [pa.array(list(ids), pa.string())])
    for path in (store / "_uses" / run).iterdir():
        os.utime(path, (time() - days * DAY,) * 2)


def output(store: Path, path: Path, run: str) -> Path:
    """Write the manifest of an output. The run used the store."""
    path.mkdir(parents=True)
    manifest = {
        "format": 1,
        "status": "finished",
        "run": run,
        "settings": {"completion_store": str(store)},
        "starts": [{"run": run, "usage": [{"requests": 3}]}],
    }
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with old completions of three runs, an unused completion and a new completion."""
    folder = tmp_path / "store" / "v1" / STAGE
    write(folder, "a.parquet", [old("kept"), old("aged"), old("nobody")])
    write(folder, "b.parquet", [old("recent"), old("nobody"), young("new")])
    write(folder, "c.parquet", [old("aged"), old("nobody")])
    write(folder, "d.parquet", [young("other")])
    use(tmp_path / "store", "kept-run", ["kept", None], days=300)
    use(tmp_path / "store", "aged-run", ["aged"], days=300)
    use(tmp_path / "store", "recent-run", ["recent"], days=30)
    output(tmp_path / "store", tmp_path / "out" / "kept", "kept-run")
    return tmp_path / "store"


def ids_of(store: Path) -> list[str]:
    return [one["request_id"] for one in read_rows(store / "v1" / STAGE)]


def asked(store: Path, *outputs: Path, apply: bool = True) -> PruneRequest:
    return PruneRequest(
        store=str(store), older_than=timedelta(days=90), keep_outputs=[str(one) for one in outputs], apply=apply
    )


def test_what_no_kept_output_and_no_recent_run_has_noted_goes(store: Path, tmp_path: Path) -> None:
    (found,) = prune(asked(store, tmp_path / "out" / "*"))
    assert ids_of(store) == ["kept", "new", "other", "recent"]
    assert (found.stage, found.rows, found.unneeded_rows) == (STAGE, 9, 5)
    assert found.unneeded_bytes == found.size - sum(file.size for file in list_segments(f"{store}/v1/{STAGE}").values())
    assert {one.run for one in list_uses(str(store))} == {"kept-run", "recent-run"}
    assert prune(asked(store, tmp_path / "out" / "*"))[0].unneeded_rows == 0


def test_what_the_sentinel_of_a_kept_output_needs_stays(store: Path, tmp_path: Path) -> None:
    use(tmp_path / "store", "aged-run", ["aged"], days=300)
    output(store, tmp_path / "out" / "kept" / "_sentinel", "aged-run")
    prune(asked(store, tmp_path / "out" / "*"))
    assert ids_of(store) == ["aged", "aged", "kept", "new", "other", "recent"]


def test_without_apply_no_file_changes_and_rows_and_bytes_are_reported(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    words = ["prune", "--completion-store", str(store), "--older-than", "90d"]
    assert main(words) == 0
    assert "nothing was removed. --apply removes these rows" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    assert main([*words, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["unneeded_rows"]) == (9, 6)
    assert 0 < told["unneeded_bytes"] < told["size"]
    assert main([*words, "--apply"]) == 0
    assert ids_of(store) == ["new", "other", "recent"]


def test_an_output_that_names_no_notes_of_its_store_is_refused(store: Path, tmp_path: Path) -> None:
    output(store, tmp_path / "out" / "older", "a run without notes")
    before = names_in(store / "v1" / STAGE)
    with pytest.raises(PruneError, match="out/older: none of its runs has recorded"):
        prune(asked(store, tmp_path / "out" / "*"))
    assert names_in(store / "v1" / STAGE, "*.parquet") == [name for name in before if name.endswith(".parquet")]
    # An output of another store does not need a file of this store
    output(tmp_path / "another", tmp_path / "others" / "one", "a run elsewhere")
    prune(asked(store, tmp_path / "out" / "kept", tmp_path / "others" / "*"))


def test_a_path_without_outputs_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(PruneError, match="matches no output"):
        prune(asked(store, tmp_path / "outt" / "*"))
    with pytest.raises(PruneError, match="has no completions"):
        prune(asked(tmp_path / "out"))


def test_notes_that_cannot_be_read_end_it_before_anything_goes(store: Path) -> None:
    (place,) = [one.place for one in list_uses(str(store)) if one.run == "recent-run"]
    Path(str(place)).write_bytes(b"no Parquet")
    with pytest.raises(PruneError, match="the completions of run recent-run are unknown"):
        prune(asked(store))
    assert len(ids_of(store)) == 9


@pytest.mark.parametrize("name", [f"v1/{STAGE}", "_uses"])
def test_a_store_in_use_is_not_changed(store: Path, name: str) -> None:
    with (
        lock_folder(str(store / name), "a run", wait=False),
        pytest.raises(LockedError, match="in use by a run"),
    ):
        prune(asked(store))
    assert len(ids_of(store)) == 9
    prune(asked(store))
    assert ids_of(store) == ["new", "other", "recent"]


def test_a_run_does_not_reuse_completions_that_are_being_removed(store: Path) -> None:
    wait_for_prune(str(store), "run", wait=False, notify=lambda _: None)
    with lock_folder(str(store / "_uses"), "prune", wait=False), pytest.raises(LockedError):
        wait_for_prune(str(store), "run", wait=False, notify=lambda _: None)
    wait_for_prune(str(store), "run", wait=False, notify=lambda _: None)


def test_the_parts_of_a_merged_file_are_removed_with_it(tmp_path: Path) -> None:
    """If a merged file is removed, the parts of the file are also removed. A later run would not find them."""
    for number in range(8):
        write(tmp_path, f"run-{number}.parquet", [old(f"r{number}")])
    compact_folder(str(tmp_path))
    prune_folder(str(tmp_path), Unneeded(NOW - timedelta(days=90), RequestIds(["r3"])))
    assert [one["request_id"] for one in read_rows(tmp_path)] == ["r3"]
    assert len(names_in(tmp_path, "*.parquet")) == 1
    prune_folder(str(tmp_path), Unneeded(NOW - timedelta(days=90), RequestIds()))
    assert names_in(tmp_path, "*.parquet") == []
    compact_folder(str(tmp_path))


@pytest.mark.gate
@pytest.mark.parametrize(("merged", "writes"), [(False, 11), (True, 3)], ids=["segments", "after a compaction"])
def test_a_kill_before_any_change_keeps_each_needed_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: bool, writes: int
) -> None:
    needed, ended, changes = sorted(f"r{number}" for number in range(0, 12, 2)), False, 0
    unneeded = Unneeded(NOW - timedelta(days=90), RequestIds(needed))
    while not ended:
        folder = tmp_path / str(changes)
        for number in range(12):
            write(folder, f"run-{number:02d}.parquet", [old(f"r{number}"), old(f"x{number}")][: 1 + number % 3])
        if merged:
            compact_folder(str(folder))
            write(folder, "later.parquet", [old("r4"), old("r5")])
        with monkeypatch.context() as patched:
            made = killed_after(patched, changes)
            try:
                prune_folder(str(folder), unneeded)
                ended = made() <= changes
            except KilledError:
                pass
        for again in range(2):
            whole = find_whole(str(folder), move=True)
            found = [one["request_id"] for one in read_rows(folder, whole)]
            assert set(needed) <= set(found), (changes, again)
            assert found.count("r2") == 1
            assert whole.damaged == ()
            prune_folder(str(folder), unneeded)
        assert sorted(set(found)) == needed, changes
        compact_folder(str(folder))
        assert {one["request_id"] for one in read_rows(folder)} == set(needed)
        assert names_in(folder, "*.parquet") == find_whole_names(folder)
        changes += 1
    assert changes == writes + 1


def find_whole_names(folder: Path) -> list[str]:
    return sorted(find_whole(str(folder), move=False).names)


def test_on_an_object_store_too(object_store: ObjectStore) -> None:
    place = f"s3://{BUCKET}/store"
    table = pa.Table.from_pylist([old("kept"), old("nobody")], COMPLETIONS)
    write_file(f"{place}/v1/{STAGE}/a.parquet", table)
    note_use(place, "a-run", STAGE, [pa.array(["kept"])])
    request = PruneRequest(store=place, older_than=timedelta(days=90), apply=True)
    (found,) = prune(request)
    assert found.unneeded_rows == 1
    assert find_whole(f"{place}/v1/{STAGE}", move=False).rows == 1
    assert [one.run for one in list_uses(place)] == ["a-run"]
    wait_for_prune(place, "run", wait=False, notify=lambda _: None)
