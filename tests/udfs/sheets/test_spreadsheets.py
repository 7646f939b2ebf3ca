from __future__ import annotations

import csv
import io
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpyxl import Workbook, load_workbook

from tests.examples import examples
from untold.udfs.sheets import (
    CUT,
    FORMULA,
    MAX_CELL,
    SpreadsheetError,
    Table,
    escape_formula,
    read_rows,
    to_csv,
    to_xlsx,
    unguard,
)

HEADER = ["item", "method", "text"]
FORMULAS = ["=1+1", "+1", "-1", "@A1", "\t=1", "\r=1", "\n=1", "＝1", "=", '=HYPERLINK("x")', "#N/A", "'=1", "''-"]
# All characters, and often the characters with a meaning in spreadsheets and their files
texts = st.text(
    st.sampled_from("=+-@'\",;\t\r\n\x00_x0041 é\u2028") | st.characters(exclude_categories=["Cs"]), max_size=9
)
plain_texts = st.text(st.sampled_from("=+-@'\",;\t\n_x003D é") | st.characters(exclude_categories=["C"]), max_size=9)


def parts_of(workbook: bytes) -> dict[str, str]:
    with ZipFile(io.BytesIO(workbook)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@given(st.lists(texts, max_size=5))
def test_csv_keeps_every_text(cells: list[str]) -> None:
    rows = [HEADER, *([str(number), "1", cell] for number, cell in enumerate(cells))]
    assert read_rows("sheet.csv", to_csv(rows)) == rows


@given(texts)
def test_no_cell_of_a_csv_begins_like_a_formula(cell: str) -> None:
    content = to_csv([HEADER, [1, 2, cell]]).decode("utf-8-sig")
    _, row = csv.reader(io.StringIO(content, newline=""))
    assert not row[2].startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"))
    assert unguard(row[2]) == cell


@examples(30)
@given(st.lists(plain_texts, min_size=1, max_size=5))
def test_a_workbook_keeps_every_printable_text(cells: list[str]) -> None:
    rows = [HEADER, *([str(number), "1", cell] for number, cell in enumerate(cells))]
    assert read_rows("sheet.xlsx", to_xlsx({"sheet": rows})) == rows


def test_a_workbook_has_no_formula_and_none_after_an_edit() -> None:
    content = to_xlsx({"sheet": [["text"], *([text] for text in FORMULAS)]})
    assert "<f>" not in parts_of(content)["xl/worksheets/sheet1.xml"]
    cells = [row[0] for row in load_workbook(io.BytesIO(content))["sheet"].iter_rows(min_row=2)]
    assert {cell.data_type for cell in cells} <= {"s", "inlineStr"}
    assert [cell.quotePrefix for cell in cells] == [bool(FORMULA.match(text)) for text in FORMULAS]


def test_numbers_remain_numbers_and_empty_cells_remain_empty() -> None:
    table: Table = [HEADER, [1, 0.25, None]]
    sheet = load_workbook(io.BytesIO(to_xlsx({"sheet": table})))["sheet"]
    assert [cell.value for cell in sheet[2]] == [1, 0.25, None]
    assert read_rows("a.csv", to_csv(table))[1] == ["1", "0.25", ""]


def test_characters_that_excel_cannot_store_are_only_replaced_in_the_workbook() -> None:
    text = "a\x00b\x1bc\ufffed\r\ne\rf"
    rows = [["text"], [text]]
    assert read_rows("a.xlsx", to_xlsx({"sheet": rows}))[1] == ["a\ufffdb\ufffdc\ufffdd\ne\nf"]
    assert read_rows("a.csv", to_csv(rows)) == rows


@pytest.mark.parametrize("letter", ["x", "\U0001f600"])
def test_a_cell_beyond_excels_limit_is_only_cut_in_the_workbook_with_a_mark(letter: str) -> None:
    units = len(letter.encode("utf-16-le")) // 2
    fitting, longer = letter * (MAX_CELL // units), letter * (MAX_CELL // units + 1)
    rows = [["text"], [fitting], [longer]]
    _, (whole,), (cut,) = read_rows("a.xlsx", to_xlsx({"sheet": rows}))
    assert whole == fitting
    assert cut.endswith(CUT)
    assert MAX_CELL - units <= len(cut.encode("utf-16-le")) // 2 <= MAX_CELL
    assert set(cut.removesuffix(CUT)) == {letter}
    assert read_rows("a.csv", to_csv(rows)) == rows


def test_a_workbook_does_not_contain_its_creation_time() -> None:
    content = to_xlsx({"sheet": [HEADER], "errors": [["code"]]})
    with ZipFile(io.BytesIO(content)) as archive:
        assert {part.date_time for part in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert parts_of(content)["docProps/core.xml"].count("1980-01-01T00:00:00Z") == 2
    assert load_workbook(io.BytesIO(content)).sheetnames == ["sheet", "errors"]


@pytest.mark.parametrize(
    "content",
    [
        b"item,method,text\r\n1,2,\xc3\xa9\r\n",
        b"\xef\xbb\xbfitem,method,text\n1,2,\xc3\xa9\n",
        b"item;method;text\n1;2;\xc3\xa9\n",
        b'item\tmethod\ttext\n1\t2\t"\xc3\xa9"',
        b"item;method;text\r\n1;2;\xe9\r\n",
        "item\tmethod\ttext\r\n1\t2\té\r\n".encode("utf-16"),
    ],
    ids=["plain", "mark", "semicolons", "tabs", "one byte a letter", "utf-16"],
)
def test_a_csv_is_read_however_a_spreadsheet_saved_it(content: bytes) -> None:
    assert read_rows("sheet.CSV", content) == [["item", "method", "text"], ["1", "2", "é"]]


def test_the_first_worksheet_is_read_with_any_name() -> None:
    workbook = Workbook()
    workbook.worksheets[0].append(["item", 1, None, 0.5])
    workbook.create_sheet("notes", 1).append(["else"])
    stream = io.BytesIO()
    workbook.save(stream)
    assert read_rows("a.xlsx", stream.getvalue()) == [["item", "1", "", "0.5"]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sheet.ods", b"", r"sheet\.ods: the name has to end in \.csv or \.xlsx"),
        ("sheet", b"", r"sheet: the name has to end in \.csv or \.xlsx"),
        ("a.xlsx", b"item,method\n", r"a\.xlsx cannot be read as XLSX \(BadZipFile\)\. Save it again as \.xlsx"),
    ],
)
def test_an_invalid_spreadsheet_is_refused(name: str, content: bytes, message: str) -> None:
    with pytest.raises(SpreadsheetError, match=message):
        read_rows(name, content)


@given(texts)
def test_guarding_is_undone_exactly(text: str) -> None:
    assert unguard(escape_formula(text)) == text
