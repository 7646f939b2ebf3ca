from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.blinding import (
    ERROR_TYPES,
    KEY_COLUMNS,
    SHEET_COLUMNS,
    AnnotatedJudgement,
    AnnotationError,
    DrawnSample,
    MetricOutput,
    describe_study,
    make_sheet,
    order_metrics,
    plain_line,
    read_annotations,
    summarise_study,
)
from untold.udfs.sheets import read_rows, to_csv, to_xlsx

METRICS = ("e2e", "nli", "qa")
KEY = [
    ["item", "method", "metric", "score", "label"],
    ["1", "1", "nli", "1.0", "Correct"],
    ["1", "2", "e2e", "", "Correct"],
    ["2", "1", "e2e", "0.5", "Partially correct"],
    ["2", "2", "nli", "0.0", "Partially correct"],
]
FILLED = [
    ["item", "method", "errors"],
    ["1", "1", "NONE"],
    ["1", "2", "MISS_ATOM,DUP_ATOM"],
    ["2", "1", "MISS_ATOM"],
    ["2", "2", "NONE"],
]
Rows = list[list[str]]


def drawn(number: int) -> DrawnSample:
    outputs = [MetricOutput(metric, 0.5, ["A."], ["B.", "C."]) for metric in METRICS]
    return DrawnSample(f"s{number}", f"Query {number}?", "A response.", ["One.", "Two."], "Correct", outputs)


def problems_of(sheet: Rows, key: Rows = KEY) -> list[str]:
    with pytest.raises(AnnotationError) as raised:
        read_annotations(("sheet.csv", sheet), ("key.csv", key))
    return str(raised.value).splitlines()


def values_of(rows: Sequence[dict[str, Any]], measure: str) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in rows if row["measure"] == measure}


def test_a_sheet_has_a_row_an_item_and_method() -> None:
    sheet, key = make_sheet([drawn(1), drawn(2)], seed=0)
    assert sheet[0] == [*SHEET_COLUMNS]
    assert [row[:2] for row in sheet[1:]] == [[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]]
    assert sheet[1][2:] == ["Query 1?", "A response.", "1. One.\n\n2. Two.", "A.", "B.\nC.", None]
    assert key[0] == [*KEY_COLUMNS]
    assert [row[:7] for row in key[1:]] == [row[:7] for row in sheet[1:]]
    assert key[1][7] == "s1"
    assert key[1][9:] == [0.5, "Correct"]


def test_only_the_key_names_the_metric() -> None:
    sheet, key = make_sheet([drawn(number) for number in range(600)], seed=3)
    assert not any(metric in str(cell) for row in sheet[1:] for cell in row for metric in METRICS)
    for method in (1, 2, 3):
        shown = Counter(row[8] for row in key[1:] if row[1] == method)
        assert all(150 < shown[metric] < 250 for metric in METRICS)
    orders = {tuple(row[8] for row in key[first : first + 3]) for first in range(1, len(key), 3)}
    assert len(orders) == math.factorial(3)


def test_the_order_of_metrics_depends_only_on_the_seed_and_the_sample() -> None:
    assert order_metrics(("qa", "nli", "e2e"), 1, "s") == order_metrics(METRICS, 1, "s")
    assert len({tuple(order_metrics(METRICS, seed, "s")) for seed in range(50)}) == 6


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("It is high", "It is high."),
        ("It is high.", "It is high."),
        (" It\nis\t high . ", "It is high ."),
        ("Is it high?", "Is it high?"),
        ("They said 'no.'", "They said 'no.'"),
        ("They said 'no'", "They said 'no'."),
        ("a) one\u2028b) two", "a) one b) two."),
        ("", ""),
    ],
)
def test_statements_have_the_same_ending(text: str, line: str) -> None:
    assert plain_line(text) == line


@given(st.text())
def test_a_plain_line_is_one_unchanged_line(text: str) -> None:
    line = plain_line(text)
    assert len(line.splitlines()) <= 1
    assert plain_line(line) == line


def test_a_filled_sheet_is_read_by_its_key() -> None:
    assert read_annotations(("sheet.csv", FILLED), ("key.csv", KEY)) == [
        AnnotatedJudgement(1, "nli", 1.0, "Correct", frozenset()),
        AnnotatedJudgement(1, "e2e", None, "Correct", frozenset({"MISS_ATOM", "DUP_ATOM"})),
        AnnotatedJudgement(2, "e2e", 0.5, "Partially correct", frozenset({"MISS_ATOM"})),
        AnnotatedJudgement(2, "nli", 0.0, "Partially correct", frozenset()),
    ]


def test_what_people_and_spreadsheets_change_does_not_matter() -> None:
    sheet = [
        ["Errors ", "notes", "METHOD", "item"],
        ["miss_atom, dup_atom; Miss_Atom,", "twice", "2.0", "1.0"],
        ["none", "", " 1 ", "1"],
        ["", "", "", ""],
        [" NONE "],
        ["\nmiss_atom\n", "", "1", "2"],
        [],
    ]
    sheet[4] += ["", "2", "2"]
    key = [KEY[0], *reversed([[*row] for row in KEY[1:]])]
    key[1][0], key[2][3] = "2.0", "0,5"
    expected = read_annotations(("sheet.csv", FILLED), ("key.csv", KEY))
    for write, name in ((to_csv, "a.csv"), (lambda rows: to_xlsx({"any": rows}), "a.xlsx")):
        width = max(len(row) for row in sheet)
        content = write([[*row, *[""] * (width - len(row))] for row in sheet])
        assert read_annotations((name, read_rows(name, content)), ("key.csv", key)) == expected
    assert read_annotations(("sheet.csv", sheet), ("key.csv", key)) == expected


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("", "errors is empty. Write codes, or NONE for no errors"),
        (" , ", "errors is empty. Write codes, or NONE for no errors"),
        ("MIS_ATOM", "unknown error type 'MIS_ATOM'; did you mean MISS_ATOM?"),
        ("dup atom", "unknown error type 'DUP ATOM'; did you mean DUP_ATOM?"),
        ("?", f"unknown error type '?'; there are {', '.join(ERROR_TYPES)}"),
        ("NONE, DUP_ATOM", "NONE occurs together with DUP_ATOM. Keep one or the other"),
        ("x" * 500, f"unknown error type '{'X' * 20}...'; there are {', '.join(ERROR_TYPES)}"),
    ],
)
def test_a_wrong_cell_is_reported_with_row_and_item(cell: str, problem: str) -> None:
    sheet = [*FILLED[:3], ["2", "1", cell], FILLED[4]]
    assert problems_of(sheet) == [f"sheet.csv row 4: item 2, method 1: {problem}"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (["1", "1", "NONE"], "item 1, method 1 a second time"),
        (["", "1", "NONE"], "item is empty"),
        (["1", "one", "NONE"], "method must be a positive integer, got one"),
        (["1.5", "1", "NONE"], "item must be a positive integer, got 1.5"),
        (["-1", "1", "NONE"], "item must be a positive integer, got -1"),
        (["inf", "1", "NONE"], "item must be a positive integer, got inf"),
    ],
)
def test_a_row_with_a_repeated_item_and_method_is_reported(row: list[str], problem: str) -> None:
    assert problems_of([*FILLED, row]) == [f"sheet.csv row 6: {problem}"]


def test_rows_missing_on_either_side_are_reported() -> None:
    assert problems_of([*FILLED[:4], ["3", "1", "NONE"]]) == [
        "sheet.csv: no row for item 2, method 2, which key.csv has",
        "key.csv: no row for item 3, method 1, which sheet.csv has",
    ]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (["3", "1", "nli", "high", "Correct"], "score is neither empty nor a number from 0 to 1"),
        (["3", "1", "nli", "1.5", "Correct"], "score is neither empty nor a number from 0 to 1"),
        (["3", "1", "nli", "nan", "Correct"], "score is neither empty nor a number from 0 to 1"),
        (["3", "1", "", "1", "Correct"], "metric is empty"),
        (["3", "1", "nli", "1", "Corect"], "no label 'Corect'; did you mean Correct?"),
        (["1", "1", "nli", "1", "Correct"], "item 1, method 1 a second time"),
    ],
)
def test_a_wrong_key_is_reported_with_its_row(row: list[str], problem: str) -> None:
    (told,) = problems_of(FILLED, [*KEY, row])
    assert told.startswith(f"key.csv row 6: {problem}")


def test_up_to_twenty_problems_are_reported() -> None:
    sheet = [FILLED[0], *([str(number), "1", ""] for number in range(1, 24))]
    lines = problems_of(sheet)
    assert len(lines) == 21
    assert lines[19].startswith("sheet.csv row 21: item 20, method 1: errors is empty")
    assert lines[20] == "and 3 more"


@pytest.mark.parametrize(
    ("sheet", "problem"),
    [
        ([["item", "errors"]], "sheet.csv has no column method in row 1"),
        ([], "sheet.csv has no column item, method, errors in row 1"),
        ([["item", "method", "errors", "Errors"]], "sheet.csv has several columns errors"),
    ],
)
def test_a_sheet_without_its_columns_is_refused(sheet: Rows, problem: str) -> None:
    (told,) = problems_of(sheet)
    assert told.startswith(problem)


def test_an_empty_sheet_is_refused() -> None:
    assert problems_of(FILLED[:1], KEY[:1]) == ["sheet.csv has no rows. Give the sheet that was filled in"]


def test_shares_equal_the_counts_by_hand() -> None:
    rows = summarise_study(read_annotations(("sheet.csv", FILLED), ("key.csv", KEY)), seed=0)
    assert values_of(rows, "fully_correct") == {"e2e": 0.0, "nli": 1.0, "all": 0.5}
    assert values_of(rows, "MISS_ATOM") == {"e2e": 1.0, "nli": 0.0, "all": 0.5}
    assert values_of(rows, "DUP_ATOM") == {"e2e": 0.5, "nli": 0.0, "all": 0.25}
    assert values_of(rows, "HALU_ATOM") == {"e2e": 0.0, "nli": 0.0, "all": 0.0}
    # By hand: (1.0, Correct) matches and is right; an undefined score matches nothing and is wrong;
    # (0.5, Partially correct) matches and is wrong; (0.0, Partially correct) does not match and is right.
    assert values_of(rows, "agreement") == {"e2e": 0.5, "nli": 0.5, "all": 0.5}
    assert {row["metric"]: row["n"] for row in rows} == {"e2e": 2, "nli": 2, "all": 4}


@pytest.mark.parametrize(
    ("score", "label", "errors", "agrees"),
    [
        (1.0, "Correct", "", True),
        (1.0, "Correct", "DUP_ATOM", False),
        (0.9, "Correct", "", False),
        (0.9, "Correct", "DUP_ATOM", True),
        (0.9, "Partially correct", "", True),
        (0.0, "Incorrect", "", True),
        (0.0, "Incorrect", "DUP_ATOM", False),
        (0.0, "Partially correct", "DUP_ATOM", True),
        (None, "Correct", "", False),
        (None, "Incorrect", "DUP_ATOM", True),
    ],
)
def test_agreement_is_that_of_the_match_with_no_errors(
    score: float | None, label: str, errors: str, agrees: bool
) -> None:
    assert AnnotatedJudgement(1, "nli", score, label, frozenset(errors.split())).agrees == agrees


def test_intervals_enclose_the_shares_and_degenerate_intervals_are_none() -> None:
    judged = [
        AnnotatedJudgement(item, metric, 1.0, "Correct", frozenset({"DUP_ATOM"} if item % share == 0 else ()))
        for metric, share in (("nli", 2), ("e2e", 8))
        for item in range(40)
    ]
    rows = {(row["metric"], row["measure"]): row for row in summarise_study(judged, seed=0)}
    for metric, share in (("nli", 0.5), ("e2e", 0.875), ("all", 0.6875)):
        row = rows[metric, "fully_correct"]
        assert row["value"] == share
        assert row["ci_low"] < share < row["ci_high"]
    assert rows["nli", "MISS_ATOM"] == {
        "metric": "nli",
        "measure": "MISS_ATOM",
        "value": 0.0,
        "ci_low": None,
        "ci_high": None,
        "n": 40,
    }
    assert summarise_study(judged, seed=0) == list(rows.values())


def test_outputs_of_one_item_are_resampled_together() -> None:
    """Three methods that always err together are as uncertain as one."""
    judged = [
        AnnotatedJudgement(item, metric, 1.0, "Correct", frozenset({"DUP_ATOM"} if item % 2 else ()))
        for metric in METRICS
        for item in range(40)
    ]
    rows = {row["metric"]: row for row in summarise_study(judged, seed=0) if row["measure"] == "fully_correct"}
    assert rows["all"]["ci_low"] == pytest.approx(rows["nli"]["ci_low"])
    assert rows["all"]["ci_high"] == pytest.approx(rows["nli"]["ci_high"])


def test_the_table_shows_the_published_figures_alongside() -> None:
    judged = [
        AnnotatedJudgement(item, metric, 1.0, "Correct", frozenset({"DUP_ATOM"} if item == 1 else ()))
        for metric in METRICS
        for item in range(4)
    ]
    lines = describe_study(summarise_study(judged, seed=0)).splitlines()
    assert lines[0] == "| measure | e2e (n = 4) | nli (n = 4) | qa (n = 4) | all (n = 12) |"
    assert lines[2].startswith("| fully_correct | 0.750 (")
    assert lines[3] == "| fully_correct, published | 0.88 | 0.48 | 0.66 |  |"
    assert lines[5] == "| agreement, published |  |  |  | 0.813 |"
    assert lines[-1] == "| INVAL_ATOM | 0.000 | 0.000 | 0.000 | 0.000 |"
