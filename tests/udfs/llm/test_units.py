from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from untold.udfs.llm.units import UNIT_BYTES, RequestIds, list_units, read_request_ids, read_requests

LENGTHS = st.lists(st.sampled_from([0, 10, 100, 1000, 5000]), max_size=120)


def write(path: Path, lengths: list[int], **options: object) -> list[str]:
    """Write a file of requests with texts of these lengths, and return the ids."""
    ids = [f"r{number:05d}" for number in range(len(lengths))]
    texts = [f"{number % 7}" * length for number, length in enumerate(lengths)]
    table = pa.table({"request_id": ids, "query": ["q"] * len(ids), "text": pa.array(texts, pa.string())})
    pq.write_table(table, path, compression="zstd", **options)
    return ids


def size_of(unit: str) -> int:
    return sum(len(row["text"]) + len(row["query"]) + len(name) for name, row in read_requests(unit))


@examples(40)
@given(lengths=LENGTHS, max_rows=st.integers(1, 50), max_bytes=st.integers(1, 20_000), plain=st.booleans())
def test_units_contain_every_request_once_within_their_bounds(
    tmp_path_factory: object, lengths: list[int], max_rows: int, max_bytes: int, plain: bool
) -> None:
    folder = tmp_path_factory.mktemp("units")  # type: ignore[attr-defined]
    ids = write(folder / "part-0.parquet", lengths, use_dictionary=not plain, row_group_size=17)
    units = list_units(str(folder), max_rows, max_bytes)
    assert [one for unit in units for one, _ in read_requests(unit)] == ids
    assert [one for unit in units for one in read_request_ids(unit)] == ids
    for unit, rows in units.items():
        assert rows == len(read_requests(unit))
        assert rows == 1 or (rows <= max_rows and size_of(unit) <= max_bytes)


def test_a_text_that_many_rows_share_counts_in_each(tmp_path: Path) -> None:
    table = pa.table({"request_id": [f"r{n}" for n in range(400)], "text": ["t" * 100_000] * 400})
    pq.write_table(table, tmp_path / "part-0.parquet")
    assert (tmp_path / "part-0.parquet").stat().st_size < 1_000_000
    counts = list(list_units(str(tmp_path)).values())
    assert sum(counts) == 400
    assert max(counts) * 100_000 <= UNIT_BYTES
    assert min(first + second for first, second in pairwise(counts)) * 100_000 > UNIT_BYTES


def test_a_file_within_the_bounds_is_one_unit_named_like_it(tmp_path: Path) -> None:
    write(tmp_path / "part-0.parquet", [10] * 100, use_dictionary=False)
    write(tmp_path / "part-1.parquet", [10] * 100)
    assert list_units(str(tmp_path)) == {f"{tmp_path}/part-{n}.parquet": 100 for n in (0, 1)}
    assert list_units(f"file://{tmp_path}") == {f"file://{tmp_path}/part-{n}.parquet": 100 for n in (0, 1)}


@given(
    held=st.lists(st.text("0123456789abcdef", min_size=1, max_size=4)),
    asked=st.lists(st.text("0123456789abcdef", min_size=1, max_size=4)),
)
def test_request_ids_are_a_set(held: list[str], asked: list[str]) -> None:
    ids = RequestIds(held)
    assert len(ids) == len(set(held))
    assert ids.among(asked) == set(held) & set(asked)
    assert (ids | RequestIds(asked)).among(held + asked) == set(held) | set(asked)
    places = ids.places(asked)
    assert [sorted(set(held))[place] if place >= 0 else None for place in places] == [
        one if one in held else None for one in asked
    ]
    assert ids.where(np.arange(len(ids)) % 2 == 0).among(held) == set(sorted(set(held))[::2])


def test_no_requests_need_no_unit(tmp_path: Path) -> None:
    assert list_units(str(tmp_path)) == {}
    (tmp_path / "part-0.parquet").write_bytes(b"")
    write(tmp_path / "part-1.parquet", [])
    assert list_units(str(tmp_path)) == {}
