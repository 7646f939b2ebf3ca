"""The human study of metrics (Dejl et al. 2025; methods, section 6): write blinded sheets and read filled sheets.

An *item* is a drawn sample. A *method* is the output of one metric, with a random number per item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from untold.udfs.errors import UserError, did_you_mean, near_misses, shorten
from untold.udfs.sheets import Cell
from untold.udfs.statistics.confusion import LABELS, match_label
from untold.udfs.statistics.intervals import clustered_bca_interval

NONE = "NONE"
ERROR_TYPES = {
    "CLASS_ERR": "a statement is in the wrong list: covered though the response lacks it, or the reverse",
    "DUP_ATOM": "a statement is given more than once",
    "HALU_ATOM": "a statement is in none of the contexts",
    "MISS_ATOM": "a relevant statement of the contexts is in neither list",
    "NON_ATOM": "a statement is not atomic, because it has several facts",
    "IRR_ATOM": "a statement is not useful for the query",
    "INVAL_ATOM": "an entry is not a valid statement, because it is broken, meaningless or unclear without context",
    NONE: "no error, must be the only entry",
}
SHOWN_COLUMNS = ("item", "method", "query", "response", "contexts", "covered", "uncovered")
SHEET_COLUMNS = (*SHOWN_COLUMNS, "errors")
KEY_COLUMNS = (*SHOWN_COLUMNS, "sample_id", "metric", "score", "label")
ALL = "all"
FULLY_CORRECT, AGREEMENT = "fully_correct", "agreement"
# Metric and measure: by hand on 50 samples, the agreement over all metrics together (methods, section 6)
PUBLISHED = {
    ("nli", FULLY_CORRECT): 0.48,
    ("qa", FULLY_CORRECT): 0.66,
    ("e2e", FULLY_CORRECT): 0.88,
    (ALL, AGREEMENT): 0.813,
}
# A shifted column causes a problem in every row. One screen of problems is enough to see this
SHOWN_PROBLEMS = 20
SHOWN_LENGTH = 20  # characters of a cell in a message: enough for a code
Pair = tuple[int, int]
Rows = Sequence[Sequence[str]]
Found = TypeVar("Found")


class AnnotationError(UserError):
    """A sheet that cannot be written or read. The message has one line per problem, with the row and the remedy."""


@dataclass(frozen=True)
class MetricOutput:
    """The output of a metric for a sample: its score, None if undefined, and its statements."""

    metric: str
    score: float | None
    covered: Sequence[str]
    uncovered: Sequence[str]


@dataclass(frozen=True)
class DrawnSample:
    """A sample of a study with the output of each metric. `contexts` are texts."""

    sample_id: str
    query: str
    response: str
    contexts: Sequence[str]
    label: str
    outputs: Sequence[MetricOutput]


@dataclass(frozen=True)
class AnnotatedJudgement:
    """The errors that a person found in one metric's output for an item. `errors` is empty for a correct output."""

    item: int
    metric: str
    score: float | None
    label: str
    errors: frozenset[str]

    @property
    def agrees(self) -> bool:
        """Return True if match(S, l) = [E = 0]. An undefined score matches no label."""
        return match_label(self.score, self.label) == (not self.errors)


def plain_line(text: str) -> str:
    """Return a statement as one line that ends in a full stop or another mark.

    Without this, a missing full stop could reveal the metric.

    >>> plain_line("the  Seine rises in Burgundy"), plain_line("Does it?")
    ('the Seine rises in Burgundy.', 'Does it?')
    """
    line = " ".join(text.split())
    ends = line.rstrip("\"'”’»)]").endswith((".", "!", "?", "…"))
    return line if ends or not line else f"{line}."


def order_metrics(metrics: Iterable[str], seed: int, sample_id: str) -> list[str]:
    """Return the metrics in the order of a sample's item: random, and the same for the same seed and sample.

    A hash decides the order, so it does not change if other samples or metrics are added to a study.

    >>> order_metrics(["qa", "nli", "e2e"], 7, "s1") == order_metrics(["e2e", "qa", "nli"], 7, "s1")
    True
    """
    return sorted(metrics, key=lambda metric: blake2b(f"{seed}:{metric}:{sample_id}".encode()).digest())


def make_sheet(drawn: Sequence[DrawnSample], seed: int) -> tuple[list[list[Cell]], list[list[Cell]]]:
    """Return the rows of the blinded sheet and of its key, with headers: `SHEET_COLUMNS` and `KEY_COLUMNS`.

    There is one row per item and method, in order. Contexts are numbered. The cells covered and uncovered have one
    statement per line, and are empty without statements.
    """
    sheet: list[list[Cell]] = [[*SHEET_COLUMNS]]
    key: list[list[Cell]] = [[*KEY_COLUMNS]]
    for item, sample in enumerate(drawn, start=1):
        outputs = {output.metric: output for output in sample.outputs}
        for method, metric in enumerate(order_metrics(outputs, seed, sample.sample_id), start=1):
            output = outputs[metric]
            contexts = "\n\n".join(f"{number}. {text}" for number, text in enumerate(sample.contexts, start=1))
            shown: list[Cell] = [item, method, sample.query, sample.response, contexts]
            shown += ["\n".join(output.covered), "\n".join(output.uncovered)]
            sheet.append([*shown, None])
            key.append([*shown, sample.sample_id, metric, output.score, sample.label])
    return sheet, key


def read_annotations(sheet: tuple[str, Rows], key: tuple[str, Rows]) -> list[AnnotatedJudgement]:
    """Return the judgements of a filled sheet and its key. Each is a file name with its rows, the header first.

    The sheet needs the columns item, method and errors. The key needs item, method, metric, score (empty if undefined)
    and label. Order, case and other columns do not matter. Raises AnnotationError with up to `SHOWN_PROBLEMS` problems,
    one per line, each with its row number in the spreadsheet.
    """
    problems: list[str] = []
    errors = _by_pair(*sheet, ("item", "method", "errors"), _read_errors, problems)
    keyed = _by_pair(*key, ("item", "method", "metric", "score", "label"), _read_key, problems)
    # Only if all rows are readable. Otherwise an unreadable row would be reported twice
    problems = problems or [
        f"{name}: no row for item {item}, method {method}, which {other} has"
        for name, own, other, others in ((sheet[0], errors, key[0], keyed), (key[0], keyed, sheet[0], errors))
        for item, method in sorted(others.keys() - own.keys())
    ]
    if not problems and not errors:
        problems = [f"{sheet[0]} has no rows. Give the sheet that was filled in"]
    if problems:
        more = len(problems) - SHOWN_PROBLEMS
        raise AnnotationError("\n".join([*problems[:SHOWN_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]))
    return [AnnotatedJudgement(pair[0], *keyed[pair], errors[pair]) for pair in sorted(errors)]


def _by_pair(
    name: str, rows: Rows, columns: Sequence[str], read: Callable[[Mapping[str, str]], Found], problems: list[str]
) -> dict[Pair, Found]:
    """Return the result of `read` for each row, by item and method. Append the errors to `problems`."""
    places = _find_columns(name, rows, columns)
    found: dict[Pair, Found] = {}
    for number, row in enumerate(rows[1:], start=2):
        cells = {column: row[place].strip() if place < len(row) else "" for column, place in places.items()}
        if not any(cell.strip() for cell in row):
            continue
        try:
            pair = _read_number(cells, "item"), _read_number(cells, "method")
            if pair in found:
                raise AnnotationError(f"item {pair[0]}, method {pair[1]} a second time")
            found[pair] = read(cells)
        except AnnotationError as error:
            problems.append(f"{name} row {number}: {error}")
    return found


def _find_columns(name: str, rows: Rows, columns: Sequence[str]) -> dict[str, int]:
    """Return the position of each column in the header. Raises AnnotationError for missing and duplicate columns."""
    header = [cell.strip().casefold() for cell in rows[0]] if rows else []
    times = Counter(header)
    missing = [column for column in columns if not times[column]]
    several = [column for column in columns if times[column] > 1]
    if missing:
        raise AnnotationError(f"{name} has no column {', '.join(missing)} in row 1. Keep the header")
    if several:
        raise AnnotationError(f"{name} has several columns {', '.join(several)}. Keep one of each")
    return {column: header.index(column) for column in columns}


def _read_number(cells: Mapping[str, str], column: str) -> int:
    """Return a positive integer. Spreadsheets may have written it as 1.0."""
    try:
        number = float(cells[column])
    except ValueError:
        number = 0.0
    if not (number.is_integer() and number >= 1):
        wrong = f"must be a positive integer, got {shorten(cells[column])}" if cells[column] else "is empty"
        raise AnnotationError(f"{column} {wrong}")
    return int(number)


def _read_errors(cells: Mapping[str, str]) -> frozenset[str]:
    """Return the error types of a row, empty for `NONE`. Commas, semicolons or lines separate codes, in any case."""
    codes = {code.strip().upper() for code in cells["errors"].replace(";", ",").replace("\n", ",").split(",")} - {""}
    where = f"item {cells['item']}, method {cells['method']}"
    # An empty cell is a skipped row, and not a row without errors
    if not codes:
        raise AnnotationError(f"{where}: errors is empty. Write codes, or {NONE} for no errors")
    for code in sorted(codes - ERROR_TYPES.keys()):
        raise AnnotationError(f"{where}: unknown error type {_shorten(code)!r}; {_near(code, ERROR_TYPES)}")
    if NONE in codes and len(codes) > 1:
        raise AnnotationError(
            f"{where}: {NONE} occurs together with {', '.join(sorted(codes - {NONE}))}. Keep one or the other"
        )
    return frozenset(codes - {NONE})


def _read_key(cells: Mapping[str, str]) -> tuple[str, float | None, str]:
    """Return (metric, score, label) of a row of the key."""
    if not cells["metric"]:
        raise AnnotationError("metric is empty. Give the unchanged key")
    if cells["label"] not in LABELS:
        raise AnnotationError(f"no label {_shorten(cells['label'])!r}; {_near(cells['label'], LABELS)}")
    return cells["metric"], _read_score(cells["score"]), cells["label"]


def _read_score(cell: str) -> float | None:
    """Return a score from 0 to 1, or None for an empty cell. Spreadsheets may have written it with a comma."""
    if cell.casefold() in ("", "null"):
        return None
    try:
        score = float(cell.replace(",", "."))
    except ValueError:
        # NaN gets the same message as a number outside the range
        score = float("nan")
    if not 0 <= score <= 1:
        raise AnnotationError("score is neither empty nor a number from 0 to 1. Give the unchanged key")
    return score


def _near(word: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the most similar known word, or all known words."""
    return did_you_mean(near_misses(word, known), quote="") or f"there are {', '.join(known)}"


def _shorten(word: str) -> str:
    """Return a cell for a message. A wrong column may contain whole texts."""
    return word if len(word) <= SHOWN_LENGTH else f"{word[:SHOWN_LENGTH]}..."


def summarise_study(judgements: Sequence[AnnotatedJudgement], *, seed: int) -> list[dict[str, Any]]:
    """Return shares by metric, then over all metrics: metric, measure strings, value, ci_low, ci_high double, n long.

    The measures are `fully_correct` (share without errors), `agreement` (AR, the mean of [match(S, l) = [E = 0]]) and
    the share of outputs with each error type. n counts outputs. BCa intervals resample items, because the outputs of an
    item are judged together. They are None if degenerate. Dejl et al. 2025; methods, sections 6 and 7.
    """
    metrics = sorted({judgement.metric for judgement in judgements})
    groups = {metric: [judgement for judgement in judgements if judgement.metric == metric] for metric in metrics}
    return [
        {"metric": metric, "measure": measure, **_share(rows, measure, seed), "n": len(rows)}
        for metric, rows in {**groups, ALL: judgements}.items()
        for measure in (FULLY_CORRECT, AGREEMENT, *ERROR_TYPES)
        if measure != NONE
    ]


def _share(rows: Sequence[AnnotatedJudgement], measure: str, seed: int) -> dict[str, float | None]:
    """Return the share of outputs for which a measure holds, with its 95 % interval, clustered by item."""

    def holds(judgement: AnnotatedJudgement) -> bool:
        if measure == AGREEMENT:
            return judgement.agrees
        return not judgement.errors if measure == FULLY_CORRECT else measure in judgement.errors

    sizes = Counter(judgement.item for judgement in rows)
    sums = Counter(judgement.item for judgement in rows if holds(judgement))
    return clustered_bca_interval([sums[item] for item in sizes], list(sizes.values()), seed=seed).columns()


def describe_study(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of `summarise_study` and the published figures as a Markdown table."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    found = {(row["metric"], row["measure"]): row for row in rows}
    n = {row["metric"]: row["n"] for row in rows}
    lines = [
        ["measure", *(f"{metric} (n = {n[metric]})" for metric in metrics)],
        ["---"] * (len(metrics) + 1),
    ]

    def share(row: Mapping[str, Any]) -> str:
        limits = "" if row["ci_low"] is None else f" ({row['ci_low']:.3f} to {row['ci_high']:.3f})"
        return f"{row['value']:.3f}{limits}"

    for measure in dict.fromkeys(row["measure"] for row in rows):
        lines.append([measure, *(share(found[metric, measure]) for metric in metrics)])
        published = [PUBLISHED.get((metric, measure)) for metric in metrics]
        if any(value is not None for value in published):
            lines.append([f"{measure}, published", *("" if value is None else f"{value:.3g}" for value in published)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
