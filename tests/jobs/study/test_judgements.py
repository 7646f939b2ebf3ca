"""Judgements of models, read from Parquet and aligned with labelled units."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.study.judgements import LabelledUnits, MetaEvaluationError, open_tables, read_judgements
from untold.jobs.study.label_study import SCORES

UNITS = LabelledUnits("input", pa.table({"sample_id": ["a", "b", "c"]}), ("sample_id",))


def write(folder: Path, columns: Mapping[str, Any], name: str = "part-0.parquet") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), folder / name)
    return str(folder)


def test_judgements_have_the_order_of_the_units(tmp_path: Path) -> None:
    ids = ["c", "a", "b"]
    for metric, scores in (("e2e", [0.25, 0.5, None]), ("nli", [1.0, 1.0, 0.0])):
        write(tmp_path, {"metric": [metric] * 3, "sample_id": ids, "score": pa.array(scores)}, f"{metric}.parquet")
    found = read_judgements(SCORES, {"m": str(tmp_path)}, UNITS, None)
    assert found.owners == [("m", "e2e"), ("m", "nli")]
    assert found.tables["m", "e2e"]["score"].to_pylist() == [0.5, None, 0.25]
    assert found.tables["m", "nli"]["score"].to_pylist() == [1.0, 0.0, 1.0]
    assert found.given["m", "nli"].all()


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_text_of_other_writers_is_text(tmp_path: Path, kind: pa.DataType) -> None:
    columns = {
        name: pa.array(values, pa.string()).cast(kind)
        for name, values in {
            "metric": ["e2e"] * 3,
            "sample_id": ["a", "b", "c"],
            "status": ["ok", "failed", None],
        }.items()
    }
    place = write(tmp_path, {**columns, "score": [1.0, None, 0.5]})
    table = read_judgements(SCORES, {"m": place}, UNITS, ["e2e"]).tables["m", "e2e"]
    assert (table["score"].to_pylist(), table["failed"].to_pylist()) == ([1.0, None, 0.5], [False, True, False])


def test_all_problems_of_all_tables_are_one_error(tmp_path: Path) -> None:
    ids = {"one": ["a", "B", "c"], "two": ["a", "b", "b", "c"]}
    places = {
        model: write(tmp_path / model, {"metric": ["e2e"] * len(own), "sample_id": own, "score": [0.5] * len(own)})
        for model, own in ids.items()
    }
    with pytest.raises(MetaEvaluationError) as raised:
        read_judgements(SCORES, places, UNITS, None)
    one, two = (f"{model} ({place}): e2e" for model, place in places.items())
    assert str(raised.value).splitlines() == [
        f"{one}: 1 sample of input has no score: `b` (did you mean `B`?)",
        f"{one}: 1 score belongs to no sample of input: `B`",
        f"{two}: 1 sample of input has several scores: `b`",
    ]


def test_a_column_that_a_table_lacks_is_null(tmp_path: Path) -> None:
    write(tmp_path / "claims", {"sample_id": ["a"], "text": ["t"]})
    (tmp_path / "candidates").mkdir()
    database = open_tables(str(tmp_path), ["claims", "candidates"])
    assert database is not None
    assert database.sql("select text, anchor from claims").fetchall() == [("t", None)]
    assert database.sql("select sample_id, claim_id from candidates").fetchall() == []
    assert open_tables(str(tmp_path), ["claims", "statements"]) is None
