"""The human study of metrics (Dejl et al. 2025; methods, section 6): blinded sheets, and what filled ones say.

An *item* is a drawn sample, a *method* one metric's output of it, numbered in an order of its own in each item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
READ_OF_SHEET = ("item", "method", "errors")
READ_OF_KEY = ("item", "method", "metric", "score", "label")
ALL = "all"
FULLY_CORRECT, AGREEMENT = "fully_correct", "agreement"
# Metric and measure: by hand on 50 samples, the agreement over all metrics together (methods, section 6)
PUBLISHED = {
    ("nli", FULLY_CORRECT): 0.48,
    ("qa", FULLY_CORRECT): 0.66,
    ("e2e", FULLY_CORRECT): 0.88,
    (ALL, AGREEMENT): 0.813,
}
# A column that is shifted makes a problem of every row; a screen of them is enough to see it.
SHOWN_PROBLEMS = 20
SHOWN_LENGTH = 20  # characters of a cell in a message: enough for a code
Pair = tuple[int, int]
Rows = Sequence[Sequence[str]]
Found = TypeVar("Found")


class AnnotationError(UserError):
    """A sheet that cannot be made or read. The message says where, a line each, and what to do."""


@dataclass(frozen=True)
class MetricOutput:
    """What a metric gave for a sample: its score, None where undefined, and its statements, a line each."""

    metric: str
    score: float | None
    covered: Sequence[str]
    uncovered: Sequence[str]


@dataclass(frozen=True)
class DrawnSample:
    """A sample of a study, and what each metric gave for it. `contexts` are texts."""

    sample_id: str
    query: str
    response: str
    contexts: Sequence[str]
    label: str
    outputs: Sequence[MetricOutput]


@dataclass(frozen=True)
class AnnotatedJudgement:
    """What a person found in one metric's output of an item: `errors` is empty where it is fully correct."""

    item: int
    metric: str
    score: float | None
    label: str
    errors: frozenset[str]

    @property
    def correct(self) -> bool:
        """[E = 0]: no errors."""
        return not self.errors

    @property
    def agrees(self) -> bool:
        """Whether match(S, l) = [E = 0]; an undefined score matches no label."""
        return match_label(self.score, self.label) == self.correct


# Sheets to fill in


def plain_line(text: str) -> str:
    """A statement as one line that ends in a full stop or another mark, whoever made it.

    A metric whose statements end without a full stop would else be known by that.

    >>> plain_line("the  Seine rises in Burgundy"), plain_line("Does it?")
    ('the Seine rises in Burgundy.', 'Does it?')
    """
    line = " ".join(text.split())
    ends = line.rstrip("\"'”’»)]").endswith((".", "!", "?", "…"))
    return line if ends or not line else f"{line}."


def order_metrics(metrics: Iterable[str], seed: int, sample_id: str) -> list[str]:
    """The metrics in the order in which a sample's item shows them: random, the same for one seed and sample.

    By hash, so that the order stays where other samples or metrics are added to a study.

    >>> order_metrics(["qa", "nli", "e2e"], 7, "s1") == order_metrics(["e2e", "qa", "nli"], 7, "s1")
    True
    """
    return sorted(metrics, key=lambda metric: blake2b(f"{seed}:{metric}:{sample_id}".encode()).digest())


def make_sheet(drawn: Sequence[DrawnSample], seed: int) -> tuple[list[list[Cell]], list[list[Cell]]]:
    """The rows of the blinded sheet and of its key, each with its header: `SHEET_COLUMNS` and `KEY_COLUMNS`.

    One row an item and method, in order. Contexts are numbered; covered and uncovered have a statement a line, and are
    empty where there is none.
    """
    sheet: list[list[Cell]] = [[*SHEET_COLUMNS]]
    key: list[list[Cell]] = [[*KEY_COLUMNS]]
    for item, sample in enumerate(drawn, start=1):
        outputs = {output.metric: output for output in sample.outputs}
        for method, metric in enumerate(order_metrics(outputs, seed, sample.sample_id), start=1):
            shown: list[Cell] = [item, method, *_shown_texts(sample, outputs[metric])]
            sheet.append([*shown, None])
            key.append([*shown, sample.sample_id, metric, outputs[metric].score, sample.label])
    return sheet, key


def _shown_texts(sample: DrawnSample, output: MetricOutput) -> list[str]:
    """The cells of an output behind its item and method: query, response, contexts, covered, uncovered."""
    contexts = "\n\n".join(f"{number}. {text}" for number, text in enumerate(sample.contexts, start=1))
    return [sample.query, sample.response, contexts, "\n".join(output.covered), "\n".join(output.uncovered)]


# Sheets filled in


def read_annotations(sheet: tuple[str, Rows], key: tuple[str, Rows]) -> list[AnnotatedJudgement]:
    """What a filled sheet says of each output, by the key. Both are a file's name and its rows, the header first.

    Of the sheet the columns item, method and errors count, of the key item, method, metric, score (empty where
    undefined) and label; their order, their case and other columns do not matter. Raises AnnotationError with every
    problem, up to `SHOWN_PROBLEMS`: a line each, by its row as spreadsheets number them.
    """
    problems: list[str] = []
    errors = _by_pair(*sheet, READ_OF_SHEET, _read_errors, problems)
    keyed = _by_pair(*key, READ_OF_KEY, _read_key, problems)
    # Only where all rows could be read: a row that could not would be missed here a second time.
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
    """What each row says, by item and method; appends what is wrong to `problems`."""
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
    """The place of each column by the header. Raises AnnotationError for those that are missing or stand twice."""
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
    """A positive integer; spreadsheets may have made it 1.0."""
    try:
        number = float(cells[column])
    except ValueError:
        number = 0.0
    if not (number.is_integer() and number >= 1):
        wrong = f"must be a positive integer, got {shorten(cells[column])}" if cells[column] else "is empty"
        raise AnnotationError(f"{column} {wrong}")
    return int(number)


def _read_errors(cells: Mapping[str, str]) -> frozenset[str]:
    """The error types of a row, empty for `NONE`; codes may be parted by commas, semicolons or lines, in any case."""
    codes = {code.strip().upper() for code in cells["errors"].replace(";", ",").replace("\n", ",").split(",")} - {""}
    where = f"item {cells['item']}, method {cells['method']}"
    # Empty is not NONE: a row that somebody has skipped is no row without errors.
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
    """(metric, score, label) of a row of the key."""
    if not cells["metric"]:
        raise AnnotationError("metric is empty. Give the unchanged key")
    if cells["label"] not in LABELS:
        raise AnnotationError(f"no label {_shorten(cells['label'])!r}; {_near(cells['label'], LABELS)}")
    return cells["metric"], _read_score(cells["score"]), cells["label"]


def _read_score(cell: str) -> float | None:
    """A score from 0 to 1, None where the cell is empty; spreadsheets may have written it with a comma."""
    if cell.casefold() in ("", "null"):
        return None
    try:
        score = float(cell.replace(",", "."))
    except ValueError:
        # NaN is between no bounds: the same message as for a number outside of them.
        score = float("nan")
    if not 0 <= score <= 1:
        raise AnnotationError("score is neither empty nor a number from 0 to 1. Give the unchanged key")
    return score


def _near(word: str, known: Iterable[str]) -> str:
    """What is said of an unknown word: the known one that it is like, else all of them."""
    return did_you_mean(near_misses(word, known), quote="") or f"there are {', '.join(known)}"


def _shorten(word: str) -> str:
    """A cell as a message shows it: whoever fills in the wrong column may have put a whole text there."""
    return word if len(word) <= SHOWN_LENGTH else f"{word[:SHOWN_LENGTH]}..."


# What they say


def summarise_study(judgements: Sequence[AnnotatedJudgement], *, seed: int) -> list[dict[str, Any]]:
    """Shares by metric, then of all metrics together: metric, measure strings, value, ci_low, ci_high double, n long.

    Measures: `fully_correct`, the share without errors; `agreement`, AR = the mean of [match(S, l) = [E = 0]]; and of
    each error type the share of outputs that have it. n counts outputs. BCa intervals resample items, whose outputs
    are judged together; they are None where degenerate. Dejl et al. 2025; methods, sections 6 and 7.
    """
    metrics = sorted({judgement.metric for judgement in judgements})
    groups = {metric: [judgement for judgement in judgements if judgement.metric == metric] for metric in metrics}
    return [
        {"metric": metric, "measure": measure, **_share(rows, holds, seed), "n": len(rows)}
        for metric, rows in {**groups, ALL: judgements}.items()
        for measure, holds in _measures().items()
    ]


def _measures() -> dict[str, Callable[[AnnotatedJudgement], bool]]:
    """What of a judgement is counted, by the measure's name."""
    types = [code for code in ERROR_TYPES if code != NONE]
    return {
        FULLY_CORRECT: lambda judgement: judgement.correct,
        AGREEMENT: lambda judgement: judgement.agrees,
        **{code: partial(_has_error, code) for code in types},
    }


def _has_error(code: str, judgement: AnnotatedJudgement) -> bool:
    """Whether a person found an error of this type."""
    return code in judgement.errors


def _share(
    rows: Sequence[AnnotatedJudgement], holds: Callable[[AnnotatedJudgement], bool], seed: int
) -> dict[str, float | None]:
    """The share of outputs of which `holds` is true, with its 95 % interval, by items as clusters."""
    sizes = Counter(judgement.item for judgement in rows)
    sums = Counter(judgement.item for judgement in rows if holds(judgement))
    return clustered_bca_interval([sums[item] for item in sizes], list(sizes.values()), seed=seed).columns()


def describe_study(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `summarise_study` as a Markdown table, the published figures alongside."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    found = {(row["metric"], row["measure"]): row for row in rows}
    n = {row["metric"]: row["n"] for row in rows}
    lines = [
        ["measure", *(f"{metric} (n = {n[metric]})" for metric in metrics)],
        ["---"] * (len(metrics) + 1),
    ]
    for measure in dict.fromkeys(row["measure"] for row in rows):
        lines.append([measure, *(_describe_share(found[metric, measure]) for metric in metrics)])
        published = [PUBLISHED.get((metric, measure)) for metric in metrics]
        if any(value is not None for value in published):
            lines.append([f"{measure}, published", *("" if value is None else f"{value:.3g}" for value in published)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _describe_share(row: Mapping[str, Any]) -> str:
    """A share to three decimals with its interval, where it has one."""
    limits = "" if row["ci_low"] is None else f" ({row['ci_low']:.3f} to {row['ci_high']:.3f})"
    return f"{row['value']:.3f}{limits}"
