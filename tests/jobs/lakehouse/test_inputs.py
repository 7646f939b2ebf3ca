"""Test tables as inputs: the files of a version, and the errors for tables with rows that differ from their files."""

from __future__ import annotations

import json
import shutil
import struct
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.table import FileScanTask
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyroaring import BitMap

from tests.jobs.lakehouse.tables import answers, append_delta
from untold.jobs.inputs.checking import check_input
from untold.jobs.inputs.files import AS_THEY_ARE, NoInputError, SampleError, find_files, inspect_files
from untold.jobs.inputs.frames import _units_of
from untold.jobs.lakehouse.base import LakehouseError
from untold.jobs.lakehouse.inputs import pinned, values_since
from untold.udfs.samples.batches import UnitProgress
from untold.udfs.samples.file_records import READERS

NEEDS = ("query", "response", "contexts")


def rows(path: str) -> list[dict[str, Any]]:
    """Return the rows of an input in the same way as the workers."""
    units = [unit for file in inspect_files(find_files(path)) for unit in _units_of(0, file, 1 << 20, False)]
    return [dict(record.values) for unit in units for record in UnitProgress().rows(unit, READERS["parquet"], {})]


def queries(path: str) -> set[str]:
    return {row["query"] for row in rows(path)}


def z85(content: bytes) -> str:
    """Encode bytes in the format of the Delta log, with five characters for four bytes."""
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    numbers = struct.unpack(f">{len(content) // 4}I", content)
    return "".join(letters[number // 85**place % 85] for number in numbers for place in (4, 3, 2, 1, 0))


def rewrite_log(table: Path, change: Any) -> None:
    """Change the actions of the first version to look like the log of another engine."""
    log = table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("\n".join(json.dumps(change(action)) for action in actions))


def test_a_delta_table_is_read_at_its_newest_or_named_version(tmp_path: Path) -> None:
    table = tmp_path / "answers"
    append_delta(table, answers("a"))
    between = datetime.now(UTC).isoformat()
    append_delta(table, answers("b"))
    DeltaTable(str(table)).delete("query = 'q a'")
    assert queries(f"delta:{table}") == {"q b"}
    assert queries(f"delta:{table}@v1") == {"q a", "q b"}
    assert queries(f"delta:{table}@{between}") == {"q a"}
    assert pinned(f"delta:{table}") == f"delta:{table}@v2"
    assert pinned(f"delta:{table}@{between}") == f"delta:{table}@v0"


def test_partition_columns_of_delta_are_columns_of_the_rows(tmp_path: Path) -> None:
    table = tmp_path / "answers"
    parts = [{"sys tem": "a b/ä:c", "day": date(2026, 11, 20), "n": 1}, {"sys tem": "d", "day": None, "n": None}]
    for part in parts:
        given = answers("a")
        for name, kind in (("sys tem", pa.string()), ("day", pa.date32()), ("n", pa.int64())):
            given = given.append_column(name, pa.array([part[name]], kind))
        append_delta(table, given, partition_by=["sys tem", "day", "n"])
    found = [{name: row[name] for name in parts[0]} for row in rows(f"delta:{table}")]
    assert sorted(found, key=str) == sorted(parts, key=str)
    types = [file.types["day"] for file in inspect_files(find_files(f"delta:{table}"))]
    assert [str(kind) for kind in types] == ["date32[day]"] * 2
    check_input(f"delta:{table}", AS_THEY_ARE, (*NEEDS, "sys tem"))


def test_only_the_files_of_a_delta_partition_are_read(tmp_path: Path) -> None:
    table = tmp_path / "answers"
    for name, day in (("a", 19), ("b", 20), ("c", 20)):
        append_delta(table, answers(name, day=date(2026, 11, day), n=1), partition_by=["day", "n"])
    named = f"delta:{table}?day=2026-11-20"
    assert queries(named) == queries(f"{named}&n=1") == {"q b", "q c"}
    assert queries(f"{named}@v1") == {"q b"}
    assert pinned(named) == f"{named}@v2"
    assert pinned(named, f"{named}@v1") == f"{named}@v1"
    assert pinned(named, f"delta:{table}?day=2026-11-19@v1") == f"{named}@v2"
    with pytest.raises(NoInputError, match="has no rows"):
        find_files(f"delta:{table}?day=2026-11-21")
    with pytest.raises(SampleError, match="a file is partitioned by day, n, not by `date`"):
        find_files(f"delta:{table}?date=2026-11-20")
    # A missing table is an error, because a nightly run would otherwise score no rows
    with pytest.raises(SampleError, match="is not a Delta table") as raised:
        find_files(f"delta:{table}s?day=2026-11-20")
    assert not isinstance(raised.value, NoInputError)


def test_dates_that_changed_since_a_version_are_named(tmp_path: Path) -> None:
    table = tmp_path / "answers"
    for day in (18, 19, 20, None):
        rows = answers("a").append_column("day", pa.array([day and date(2026, 11, day)], pa.date32()))
        append_delta(table, rows, partition_by=["day"])
    named = f"delta:{table}?day={{date}}"
    assert values_since(named, "{date}", "v1") == ["2026-11-20"]
    changed = DeltaTable(str(table))
    changed.update({"response": "'other'"}, predicate="day = '2026-11-19'")
    changed.delete("day = '2026-11-18'")
    assert values_since(named, "{date}", "v3") == ["2026-11-18", "2026-11-19"]
    with pytest.raises(LakehouseError, match="needs the date in the table's name"):
        values_since(f"delta:{table}", "{date}", "v1")


def test_a_clone_is_read_from_the_files_of_the_other_table(tmp_path: Path) -> None:
    table, clone = tmp_path / "answers", tmp_path / "clone"
    append_delta(table, answers("a"))
    shutil.copytree(table / "_delta_log", clone / "_delta_log")

    def name_whole(action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action:
            action["add"]["path"] = f"file://{table}/{action['add']['path']}"
        return action

    rewrite_log(clone, name_whole)
    assert queries(f"delta:{clone}") == {"q a"}


def test_a_problem_of_a_delta_table_is_one_line(tmp_path: Path) -> None:
    table = tmp_path / "answers"
    with pytest.raises(NoInputError, match="is not a Delta table"):
        find_files(f"delta:{table}")
    append_delta(table, answers("a"))
    with pytest.raises(SampleError, match=r"@v7 does not exist\. The newest version is v0$"):
        find_files(f"delta:{table}@v7")
    before = datetime.now(UTC) - timedelta(days=1)
    with pytest.raises(SampleError, match=r"the table delta:.* is newer than"):
        find_files(f"delta:{table}@{before.isoformat()}")
    DeltaTable(str(table)).delete()
    with pytest.raises(NoInputError, match="has no rows"):
        find_files(f"delta:{table}")


def test_deletion_vectors_and_column_mapping_are_refused(tmp_path: Path) -> None:
    mapped, deleted = tmp_path / "mapped", tmp_path / "deleted"
    for table in (mapped, deleted):
        append_delta(table, answers("a"))

    def map_columns(action: dict[str, Any]) -> dict[str, Any]:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
        return action

    def delete_rows(action: dict[str, Any]) -> dict[str, Any]:
        if "protocol" in action:
            features = ["deletionVectors"]
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7}
            action["protocol"] |= {"readerFeatures": features, "writerFeatures": features}
        if "add" in action:
            rows = BitMap([0]).serialize()
            # The log contains a magic number, the number of bitmaps and the bitmap in the encoding of the protocol
            bitmap = struct.pack("<IqI", 1681511377, 1, 0) + rows
            inline = z85(bitmap + bytes(-len(bitmap) % 4))
            vector = {"storageType": "i", "pathOrInlineDv": inline, "sizeInBytes": len(bitmap), "cardinality": 1}
            action["add"]["deletionVector"] = vector
        return action

    rewrite_log(mapped, map_columns)
    rewrite_log(deleted, delete_rows)
    with pytest.raises(SampleError, match=r"column mapping \(delta.columnMapping.mode=name\), which is not supported"):
        find_files(f"delta:{mapped}")
    with pytest.raises(SampleError, match=r"deletion vectors, which are not supported.* REORG TABLE"):
        find_files(f"delta:{deleted}")


def test_an_iceberg_table_is_read_at_its_newest_or_named_snapshot(catalog: Catalog) -> None:
    table = catalog.create_table("db.answers", answers().schema)
    with pytest.raises(NoInputError, match="has no rows yet"):
        find_files("iceberg:local.db.answers")
    table.append(answers("a"))
    first, between = table.current_snapshot(), datetime.now(UTC)
    assert first is not None
    table.append(answers("b"))
    assert queries("iceberg:local.db.answers") == {"q a", "q b"}
    assert queries(f"iceberg:local.db.answers@{first.snapshot_id}") == {"q a"}
    assert queries(f"iceberg:local.db.answers@{between.isoformat()}") == {"q a"}
    named = pinned(f"iceberg:local.db.answers@{between.isoformat()}")
    assert named == f"iceberg:local.db.answers@{first.snapshot_id}"


def test_partition_columns_that_files_of_iceberg_lack_are_columns_of_the_rows(catalog: Catalog, tmp_path: Path) -> None:
    day = date(2026, 11, 20)
    table = catalog.create_table("db.answers", answers("a", day=day).schema)
    with table.update_spec() as update:
        update.add_field("day", IdentityTransform(), "day")
    table.append(answers("a", day=day))
    (file,) = find_files("iceberg:local.db.answers")
    local = Path(file.path)
    stored = pq.read_table(local, partitioning=None)
    # The file looks like a file that was added from the table of another engine
    pq.write_table(stored.drop_columns(["day"]), local)
    assert [row["day"] for row in rows("iceberg:local.db.answers")] == [day]


@pytest.mark.parametrize("transform", [IdentityTransform(), DayTransform()], ids=["identity", "day"])
def test_only_the_files_of_an_iceberg_partition_are_read(catalog: Catalog, tmp_path: Path, transform: Any) -> None:
    days = [date(2026, 11, day) for day in (19, 20)]
    if isinstance(transform, DayTransform):
        days = [datetime(day.year, day.month, day.day, 7) for day in days]
    table = catalog.create_table("db.answers", answers("a", day=days[0]).schema)
    with pytest.raises(SampleError, match="has no rows yet"):
        find_files("iceberg:local.db.answers?day=2026-11-20")
    with table.update_spec() as update:
        update.add_field("day", transform, "part")
    for name, day in zip("ab", days, strict=True):
        pq.write_table(answers(name, day=day), tmp_path / f"{name}.parquet")
        table.add_files([f"file://{tmp_path}/{name}.parquet"])
    assert queries("iceberg:local.db.answers?day=2026-11-20") == {"q b"}
    assert pinned("iceberg:local.db.answers?day=2026-11-20").startswith("iceberg:local.db.answers?day=2026-11-20@")


def test_a_problem_of_an_iceberg_table_is_one_line(catalog: Catalog) -> None:
    with pytest.raises(NoInputError, match=r"iceberg:local\.db\.none does not exist"):
        find_files("iceberg:local.db.none")
    with pytest.raises(SampleError, match=r"iceberg:elsewhere\.db\.none: .*PYICEBERG_CATALOG__"):
        find_files("iceberg:elsewhere.db.none")
    table = catalog.create_table("db.answers", answers().schema)
    table.append(answers("a"))
    with pytest.raises(SampleError, match=r"has no snapshot .*\. It may have expired"):
        find_files("iceberg:local.db.answers@7")
    with table.update_schema() as update:
        update.rename_column("query", "question")
    table.append(answers("b").rename_columns(["question", "response", "contexts"]))
    with pytest.raises(SampleError, match="`query` was renamed or dropped in its table; rewrite"):
        inspect_files(find_files("iceberg:local.db.answers"))
    table.delete("response = 'r a'")
    assert {row["question"] for row in rows("iceberg:local.db.answers")} == {"q b"}


def test_delete_files_of_iceberg_are_refused(catalog: Catalog) -> None:
    table = catalog.create_table("db.answers", answers().schema)
    table.append(answers("a", "b"))
    tasks = [FileScanTask(task.file, {task.file}) for task in table.scan().plan_files()]
    with patch("pyiceberg.table.DataScan.plan_files", return_value=tasks):
        with pytest.raises(SampleError, match=r"delete files, which are not supported.* rewrite_data_files"):
            find_files("iceberg:local.db.answers")
