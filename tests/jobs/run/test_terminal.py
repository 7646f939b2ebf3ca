from __future__ import annotations

import os
import pty
import termios
from io import StringIO
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.jobs.run.terminal import Page, amount, cut, page_of, table, visible, width_of

HEADS = ["metric", "system", "n", "mean", "95 % interval"]
NAMES = st.text(st.sampled_from("ab-/模é́\n\t …~12"), max_size=40)
METRICS = st.sampled_from(["e2e", "importance", "longrecall"])
ROWS = st.lists(st.tuples(METRICS, NAMES, st.integers(0, 10**9)), max_size=30)


def lines_of(rows: list[tuple[str, str, int]], page: Page) -> list[str]:
    cells = [[metric, system, f"{n:,}", "0.512", "0.250 .. 0.500"] for metric, system, n in rows]
    return table(HEADS, cells, page, names=2, texts=1)


@given(rows=ROWS, width=st.integers(20, 200), encoding=st.sampled_from(["utf-8", "ascii"]))
def test_no_line_is_longer_than_the_page(rows: list[tuple[str, str, int]], width: int, encoding: str) -> None:
    lines = lines_of(rows, Page(width, encoding))
    assert all(width_of(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)
    "".join(lines).encode(encoding)


@given(names=st.sets(NAMES, min_size=1, max_size=40), width=st.integers(20, 200) | st.none())
def test_no_two_names_look_the_same(names: set[str], width: int | None) -> None:
    lines = table(["system", "n"], [[name, "1"] for name in sorted(names)], Page(width))
    assert len({line.strip() for line in lines[1:]}) == len(names)


def test_names_that_differ_only_in_their_middle_are_numbered() -> None:
    rows = [[f"{'x' * 40}{letter}{'y' * 40}", "1"] for letter in "abc"]
    rows.append(["another", "1"])
    assert table(["system", "n"], rows, Page(21))[1:] == [
        "xxxxxxxx…yyyyyyy~1  1",
        "xxxxxxxx…yyyyyyy~2  1",
        "xxxxxxxx…yyyyyyy~3  1",
        "another             1",
    ]


def test_more_is_kept_of_the_end_that_distinguishes_names() -> None:
    rows = [[f"organisation-{letter}/a-model-of-the-same-name-and-date", "1"] for letter in "ab"]
    assert [line.split()[0] for line in table(["system", "n"], rows, Page(26))[1:]] == [
        "organisation-a/a-m…date",
        "organisation-b/a-m…date",
    ]


def test_two_columns_show_distinct_names() -> None:
    names = [f"provider-{number // 10}/a-model-of-the-same-name-2026-01-{number:02d}-variant" for number in range(30)]
    pairs = list(combinations(names, 2))
    lines = table(["first", "second", "n"], [[*pair, "9"] for pair in pairs], Page(60), names=2)
    shown: dict[str, set[str]] = {}
    for pair, line in zip(pairs, lines[1:], strict=True):
        for name, text in zip(pair, line.split(), strict=False):
            shown.setdefault(text, set()).add(name)
    assert {len(found) for found in shown.values()} == {1}
    # With `among`, the other pairs also get names that are distinct from all of the names
    (line,) = table(["first", "second", "n"], [[names[1], names[2], "9"]], Page(60), names=2, among=names)[1:]
    assert set(line.split()[:2]) <= shown.keys()


def test_without_a_width_nothing_is_cut() -> None:
    name = "x" * 500
    assert table(["system", "n"], [[name, "1"]], Page()) == [f"{'system':500}  n", f"{name}  1"]


def test_if_numbers_need_the_whole_width_cells_are_below_each_other() -> None:
    assert lines_of([("e2e", "a-model-of-a-long-name", 1_234_567)], Page(24)) == [
        "metric: e2e",
        "system: a-model-…ng-name",
        "n: 1,234,567",
        "mean: 0.512",
        "95 % interval: 0.250 ..",
        "  0.500",
    ]


def test_a_name_of_two_lines_is_escaped() -> None:
    assert visible("a\nb\x1b[31m\u202e") == r"a\nb\x1b[31m\u202e"
    assert cut("模型模型模型", 7) == "模…模型"


def test_one_is_singular() -> None:
    assert [amount(number, "call") for number in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]


class _Terminal:
    """A terminal with this number of columns. The test writes to `stream`."""

    def __init__(self, columns: int) -> None:
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (24, columns))
        self.stream = os.fdopen(self.slave, "w")


@pytest.mark.parametrize(
    ("columns", "variable", "width"), [(60, "", 60), (60, "50", 50), (60, "200", 60), (0, "", 80), (0, "50", 50)]
)
def test_the_width_is_that_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int, variable: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", variable)
    terminal = _Terminal(columns)
    assert page_of(terminal.stream).width == width
    os.close(terminal.master)


@pytest.mark.parametrize(("variable", "width"), [("", None), ("70", 70), ("wide", None), ("0", None)])
def test_a_pipe_has_no_width_but_columns(monkeypatch: pytest.MonkeyPatch, variable: str, width: int | None) -> None:
    monkeypatch.setenv("COLUMNS", variable)
    assert page_of(StringIO()).width == width
