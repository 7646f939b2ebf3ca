"""Compare the batches of a table of many files with a scan of the table."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.jobs.run_tables import batches_of, first_rows

SCHEMA = pa.schema([("name", pa.string()), ("score", pa.float64()), ("texts", pa.list_(pa.string()))])
ROWS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "b", "c"]),
        "score": st.none() | st.integers(0, 3).map(float),
        "texts": st.none() | st.lists(st.sampled_from(["x", "y"]), max_size=2),
    }
)
FILES = st.lists(
    st.tuples(st.lists(ROWS, max_size=8), st.sampled_from(["all", "without texts", "whole numbers"])), max_size=4
)
WHERE = {
    "none": None,
    "valid": ds.field("score").is_valid(),
    "some names": ds.field("name").isin(["a", "c"]),
    "both": (ds.field("name") == "b") & (ds.field("score") > 1),
}


def _written(folder: str, files: list[tuple[list[dict[str, object]], str]]) -> ds.Dataset:
    """Write a table of these files, with three rows per row group. A file can lack a column or have a narrower type."""
    for number, (rows, kind) in enumerate(files):
        table = pa.Table.from_pylist(rows, SCHEMA)
        if kind == "without texts":
            table = table.drop(["texts"])
        elif kind == "whole numbers":
            table = table.set_column(1, "score", table["score"].cast(pa.int64()))
        pq.write_table(table, Path(folder) / f"{number}.parquet", row_group_size=3)
    return ds.dataset(folder, schema=SCHEMA, format="parquet")


@given(FILES, st.sampled_from(sorted(WHERE)), st.integers(1, 5))
def test_batches_equal_a_scan(files: list[tuple[list[dict[str, object]], str]], name: str, most: int) -> None:
    with TemporaryDirectory() as folder:
        rows, where = _written(folder, files), WHERE[name]
        batches = list(batches_of(rows, SCHEMA.names, where, most))
        assert all(len(batch) <= most for batch in batches)
        found = pa.Table.from_batches(batches, SCHEMA)
        assert found.to_pylist() == rows.to_table(filter=where).to_pylist()


@given(FILES)
def test_the_first_rows_equal_the_sorted_table(files: list[tuple[list[dict[str, object]], str]]) -> None:
    with TemporaryDirectory() as folder:
        rows, where = _written(folder, files), WHERE["valid"]
        order = [("score", "ascending"), ("name", "ascending")]
        first = first_rows(rows, 3, ["name", "score"], order, where)
        assert first.to_pylist() == rows.to_table(["name", "score"], filter=where).sort_by(order)[:3].to_pylist()


def test_row_groups_without_a_wanted_row_are_not_read(tmp_path: Path) -> None:
    table = pa.table({"name": ["a"] * 3 + ["b"] * 3, "score": [1.0] * 6, "texts": [["x"]] * 6}, SCHEMA)
    path = tmp_path / "0.parquet"
    pq.write_table(table, path, row_group_size=3)
    with path.open("r+b") as file:
        # The first column of the first group starts here
        file.seek(4)
        file.write(b"\xff" * 40)
    rows = ds.dataset(str(tmp_path), schema=SCHEMA, format="parquet")
    (batch,) = batches_of(rows, SCHEMA.names, ds.field("name") == "b")
    assert batch["name"].to_pylist() == ["b"] * 3
    with pytest.raises(OSError, match="page header"):
        list(batches_of(rows, SCHEMA.names))
