"""Write rows to CSV and XLSX for people to fill in, and read them. No text becomes a formula."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from openpyxl import Workbook, load_workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Alignment, Font
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.worksheet import Worksheet
from openpyxl.writer.excel import ExcelWriter

from untold.udfs.errors import UserError
from untold.udfs.samples.file_records import find_delimiter
from untold.udfs.texts import FORMULA, escape_formula, unguard

Cell = str | int | float | None
Table = Sequence[Sequence[Cell]]

MAX_CELL = 32_767  # Maximum UTF-16 units in a cell of Excel
CUT = " [... cut: the whole text is in the CSV]"
# The least and the greatest width of a column, in characters: a number, and a readable line of text
WIDTHS = (8, 60)
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
ESCAPE_OF_XLSX = re.compile("_(?=x[0-9A-Fa-f]{4}_)")
# The first date that a ZIP archive supports
UNDATED = datetime(1980, 1, 1)


class SpreadsheetError(UserError):
    """A file that is not a readable spreadsheet. The message has the remedy."""


def to_csv(rows: Table) -> bytes:
    """Return the rows as CSV: UTF-8 with a byte order mark (Excel needs one), commas, whole texts, escaped formulas."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    for row in rows:
        writer.writerow([escape_formula(cell) if isinstance(cell, str) else cell for cell in row])
    return stream.getvalue().encode("utf-8-sig")


def to_xlsx(sheets: Mapping[str, Table]) -> bytes:
    """Return the tables, each with its header first, as the worksheets of a workbook. Equal tables return equal bytes.

    Texts are string cells, never formulas. Control characters are replaced, and texts of more than `MAX_CELL` are cut
    with a mark.
    """
    workbook = Workbook()
    workbook.properties.created = workbook.properties.modified = UNDATED
    workbook.remove(workbook.worksheets[0])
    for title, rows in sheets.items():
        _fill(workbook.create_sheet(title), rows)
    stream = io.BytesIO()
    ExcelWriter(workbook, ZipFile(stream, "w", ZIP_DEFLATED)).save()
    return _undated(stream.getvalue())


def stream_xlsx(file: IO[bytes], title: str, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows, header first, as a workbook with one worksheet. Rows are streamed, so their number is not limited.

    Texts are written as in `to_xlsx`. Numbers and truth values keep their type, and any other value becomes text.
    """
    workbook = Workbook(write_only=True)
    sheet = workbook.create_sheet(title)
    sheet.freeze_panes = "A2"
    for row in rows:
        sheet.append([_streamed(sheet, value) for value in row])
    workbook.save(file)


def _streamed(sheet: Any, value: Any) -> Any:
    """Return a value as a cell of a write-only worksheet."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = str(value)
    cell = WriteOnlyCell(sheet, excel_text(text))
    if text:
        cell.data_type = "s"
        cell.quotePrefix = bool(FORMULA.match(text))
    return cell


def read_rows(name: str, content: bytes) -> list[list[str]]:
    """Return all rows of a CSV or of an XLSX's first worksheet, as texts, header first. The ending of `name` decides.

    CSV may be separated by commas, semicolons or tabs. Its encoding is UTF-8, UTF-16 with its mark, or an older
    encoding with one byte per letter. Raises SpreadsheetError for another ending and for an unreadable file.
    """
    readers = {".csv": _read_csv, ".xlsx": _read_xlsx}
    ending = name[name.rfind(".") :].lower() if "." in name else ""
    if ending not in readers:
        raise SpreadsheetError(f"{name}: the name has to end in {' or '.join(readers)}")
    try:
        return readers[ending](content)
    except Exception as error:  # openpyxl raises various errors for a broken file
        raise SpreadsheetError(
            f"{name} cannot be read as {ending[1:].upper()} ({type(error).__name__}). Save it again as {ending}"
        ) from error


def _fill(sheet: Worksheet, rows: Table) -> None:
    """Write a table into a worksheet. The header stays visible, and columns fit their longest line."""
    sheet.freeze_panes = "A2"
    for number, row in enumerate(rows, start=1):
        for column, value in enumerate(row, start=1):
            _set_cell(sheet, number, column, value)
    for column, cells in enumerate(zip(*rows, strict=True), start=1):
        longest = max(len(line) for cell in cells for line in str(cell).split("\n"))
        sheet.column_dimensions[get_column_letter(column)].width = min(max(longest + 2, WIDTHS[0]), WIDTHS[1])


def _set_cell(sheet: Worksheet, row: int, column: int, value: Cell) -> None:
    """Write a value. Texts wrap, because most are longer than their column."""
    cell = sheet.cell(row, column)
    cell.alignment = Alignment(wrap_text=True, vertical="top")
    if row == 1:
        cell.font = Font(bold=True)
    cell.value = excel_text(value) if isinstance(value, str) else value
    if isinstance(value, str) and value:
        cell.data_type = "s"  # also for texts that begin with =
        # The type is lost when the cell is edited, the prefix is not
        cell.quotePrefix = bool(FORMULA.match(value))


def excel_text(text: str) -> str:
    """Return the text for a cell: only line feeds, no control characters, at most `MAX_CELL`."""
    lines = NOT_XML.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    # Excel counts UTF-16 units, two for a character beyond the first plane. Half a character at the cut is dropped
    units = lines.encode("utf-16-le")
    if len(units) > 2 * MAX_CELL:
        lines = units[: 2 * (MAX_CELL - len(CUT))].decode("utf-16-le", "ignore") + CUT
    # XLSX reads _x0041_ as A, so the underscore of such a code is escaped
    return ESCAPE_OF_XLSX.sub("_x005F_", lines)


def _undated(archive: bytes) -> bytes:
    """Return the same archive without the times of its parts."""
    stream = io.BytesIO()
    with ZipFile(io.BytesIO(archive)) as dated, ZipFile(stream, "w") as undated:
        for name in dated.namelist():
            undated.writestr(ZipInfo(name), dated.read(name), ZIP_DEFLATED)
    return stream.getvalue()


def _read_csv(content: bytes) -> list[list[str]]:
    """Return the rows of a CSV, with formulas unescaped, for any separator."""
    text = _decode(content)
    limit = csv.field_size_limit(sys.maxsize)
    try:
        # Spreadsheets write semicolons or tabs in locales with decimal commas
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=find_delimiter(text))
        return [[unguard(cell) for cell in row] for row in reader]
    finally:
        csv.field_size_limit(limit)


def _decode(content: bytes) -> str:
    """Return the text of a file: by its mark, as UTF-8, otherwise as Latin-1, which can decode every byte."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _read_xlsx(content: bytes) -> list[list[str]]:
    """Return the rows of the first worksheet. A formula has its last value, and an empty cell the empty text."""
    workbook = load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    sheet = workbook.worksheets[0]
    sheet.reset_dimensions()  # the size in the file may be wrong
    return [["" if cell is None else str(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
