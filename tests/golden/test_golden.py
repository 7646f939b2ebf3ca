"""A comparison with frozen outputs finds a change of one cell, and no output differs from its frozen tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden import __main__ as command
from tests.golden.comparing import Difference, find_difference
from tests.golden.metrics import CASES
from tests.golden.outputs import OUTPUTS
from tests.golden.tables import FROZEN, Table, Tables, canonical, make_table, read_frozen, read_json, rename_columns
from tests.golden.tables import write_frozen as write
from tests.golden.workshop import Workshop
from tests.runs.here import RunHere


@pytest.fixture
def frozen() -> Tables:
    return read_frozen("e2e")


def changed(tables: Tables, name: str, table: Table) -> Tables:
    return {**tables, name: table}


def with_cell(table: Table, index: int, column: str, cell: str) -> Table:
    rows: list[Mapping[str, str]] = [*table.rows]
    rows[index] = {**rows[index], column: cell}
    return replace(table, rows=rows)


def test_every_output_is_frozen_and_nothing_else() -> None:
    assert {path.name for path in FROZEN.iterdir()} == set(OUTPUTS)
    assert all(any(table.rows for table in read_frozen(name).values()) for name in OUTPUTS)


def test_runs_contain_samples_of_every_status_and_failures_of_every_kind() -> None:
    tables = {name: read_frozen(name) for name in CASES}
    scored = {name: {json.loads(row["status"]) for row in found["scores"].rows} for name, found in tables.items()}
    assert set().union(*scored.values()) == {"ok", "partial", "failed", "no_statements"}
    assert all("ok" in statuses and len(statuses) > 1 for statuses in scored.values()), scored
    failed = {json.loads(row["error_type"]) for found in tables.values() for row in found["failures"].rows}
    assert failed == {"http_400", "truncated", "unparsable"}
    assert all(any(row["response"] == '""' for row in found["samples"].rows) for found in tables.values())


def test_equal_tables_have_no_difference(frozen: Tables) -> None:
    assert sum(len(table.rows) for table in frozen.values()) > 100
    assert find_difference(frozen, read_frozen("e2e")) is None


def test_a_score_that_differs_by_1e_9_is_found_and_named(frozen: Tables) -> None:
    scores = frozen["scores"]
    index = next(index for index, row in enumerate(scores.rows) if row["score"] not in ("null", "0.0"))
    row = scores.rows[index]
    now = canonical(json.loads(row["score"]) + 1e-9)
    found = find_difference(frozen, changed(frozen, "scores", with_cell(scores, index, "score", now)))
    assert found is not None
    assert (found.table, found.column, found.frozen, found.now) == ("scores", "score", row["score"], now)
    assert f"sample_id={row['sample_id']} metric={row['metric']}" in found.row
    assert "column score" in str(found)


def test_every_cell_of_every_table_counts(frozen: Tables) -> None:
    for name, table in frozen.items():
        for column in table.columns if table.rows else ():
            found = find_difference(frozen, changed(frozen, name, with_cell(table, 0, column, '"another"')))
            assert found is not None
            assert (found.table, found.column) == (name, column)


def test_a_missing_or_additional_row_is_found_and_named(frozen: Tables) -> None:
    scores = frozen["scores"]
    fewer = changed(frozen, "scores", replace(scores, rows=scores.rows[1:]))
    key = f"sample_id={scores.rows[0]['sample_id']}"
    for found, words in (
        (find_difference(frozen, fewer), ("a row", "no such row")),
        (find_difference(fewer, frozen), ("no such row", "a row")),
    ):
        assert found is not None
        assert (found.table, found.column, found.frozen, found.now) == ("scores", "", *words)
        assert key in found.row


def test_a_row_that_occurs_once_more_is_found(frozen: Tables) -> None:
    scores = frozen["scores"]
    found = find_difference(frozen, changed(frozen, "scores", replace(scores, rows=[*scores.rows, scores.rows[0]])))
    assert found is not None
    assert found.now == "a row"


def test_a_missing_column_a_missing_table_and_another_type_are_found(frozen: Tables) -> None:
    scores = frozen["scores"]
    columns = {column: kind for column, kind in scores.columns.items() if column != "score_low"}
    rows = [{column: row[column] for column in columns} for row in scores.rows]
    found = find_difference(frozen, changed(frozen, "scores", Table(columns, rows)))
    assert found == Difference("scores", "", "score_low", "double", "no column")
    others = {name: table for name, table in frozen.items() if name != "scores"}
    assert find_difference(frozen, others) == Difference("scores", "", "", "a table", "no table")
    typed = replace(scores, columns={**scores.columns, "covered": "int32"})
    found = find_difference(frozen, changed(frozen, "scores", typed))
    assert found == Difference("scores", "", "covered", "int64", "int32")


def test_a_column_renamed_on_purpose_is_not_a_difference(frozen: Tables) -> None:
    names = {"score_low": "a_low_score"}
    now = changed(frozen, "scores", rename_columns(frozen["scores"], names))
    assert find_difference(frozen, now) is not None
    assert find_difference(changed(frozen, "scores", rename_columns(frozen["scores"], names)), now) is None


def test_the_command_names_the_cell_and_exits_with_1(
    frozen: Tables, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Workshop) -> Tables:
        raise RuntimeError("exit code 2 and not 4")

    now = changed(frozen, "scores", with_cell(frozen["scores"], 0, "score", "0.25"))
    outputs = {"e2e": lambda _: now, "nli": lambda _: read_frozen("nli"), "qa": fail}
    monkeypatch.setattr(command, "OUTPUTS", outputs)
    monkeypatch.setattr(command, "open_workshop", nullcontext)
    assert command.main([]) == 1
    differs, equal, failed = capsys.readouterr().out.splitlines()
    row, before = frozen["scores"].rows[0], frozen["scores"].rows[0]["score"]
    assert differs.startswith(f"e2e: scores: row sample_id={row['sample_id']} ")
    assert differs.endswith(f": column score: frozen {before}, now 0.25")
    assert equal.startswith("nli: 20 tables, ")
    assert failed == "qa: exit code 2 and not 4"
    assert command.main(["nli"]) == 0
    with pytest.raises(SystemExit, match="2"):
        command.main(["other"])


def test_frozen_files_keep_every_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"name": 'a "b"\n\u2028é', "value": 0.1 + 0.2, "many": [None, 1, {"b": True, "a": float("inf")}]}
    tables = {"runs/m/t": make_table(dict.fromkeys(cells, "json"), [cells]), **read_json({"a": [{}, 1]}, "leaves")}
    monkeypatch.setattr("tests.golden.tables.FROZEN", tmp_path)
    write("an output", tables)
    assert read_frozen("an output") == tables
    names = {"t": {"value": "share"}}
    (tmp_path / "renames.json").write_text(json.dumps(names), encoding="utf-8")
    monkeypatch.setattr("tests.golden.tables.RENAMES", tmp_path / "renames.json")
    assert set(read_frozen("an output")["runs/m/t"].columns) == {"name", "share", "many"}


@pytest.mark.gate
def test_the_outputs_of_today_are_the_frozen_ones(run_here: RunHere, tmp_path: Path) -> None:
    workshop = Workshop(run_here, tmp_path)
    found = {name: find_difference(read_frozen(name), compute(workshop)) for name, compute in OUTPUTS.items()}
    assert {name: str(difference) for name, difference in found.items() if difference} == {}
