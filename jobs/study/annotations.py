"""Write blinded sheets of the samples of a run for people to judge, and report on filled sheets.

Dejl et al. 2025; methods, section 6. `untold.udfs.blinding` has the format of the sheets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from untold.jobs.run import manifest
from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.study_tables import HUMAN_STUDY
from untold.udfs.blinding import (
    ERROR_TYPES,
    AnnotationError,
    DrawnSample,
    MetricOutput,
    describe_study,
    make_sheet,
    plain_line,
    read_annotations,
    summarise_study,
)
from untold.udfs.facts.nodes import ANSWER_FORM
from untold.udfs.llm.store_files import write_file
from untold.udfs.sheets import read_rows, to_csv, to_xlsx
from untold.udfs.statistics.confusion import LABELS
from untold.udfs.storage import PlaceError, StoragePath

KEY = "annotation_key.csv"
SHEET = "annotation_sheet"
TABLE = "human_study"
REPORT = f"{TABLE}.md"
# The number of metrics of a sheet. The published sheet has three
FEWEST, MOST = 2, 3
# The metric whose statements are questions with answers
QA = "qa"
# The statuses with a result that people can judge
JUDGED = ("ok", "partial", "no_statements")
Row = Mapping[str, Any]
Pair = tuple[str, str]
Restate = Callable[[Sequence[Pair]], Sequence[Row]]
"""Pairs of question and answer to rows of question, answer, statement and error_type."""


@dataclass(frozen=True)
class SheetCounts:
    """The items of a sheet, its rows (items times metrics), and its restated questions with answers."""

    items: int
    rows: int
    restated: int


def report_study(annotations: str, key: str, output: str, *, seed: int) -> str:
    """Write the report on a filled sheet and the table `human_study` to `output`. Return the report as Markdown.

    Raises AnnotationError and SpreadsheetError for unreadable files, and writes nothing then.
    """
    judgements = read_annotations(
        (annotations, read_rows(annotations, _read(annotations))), (key, read_rows(key, _read(key)))
    )
    rows = summarise_study(judgements, seed=seed)
    items = len({judgement.item for judgement in judgements})
    report = f"# Human study\n\n{items} samples, shares with 95 % intervals.\n\n{describe_study(rows)}\n"
    (StoragePath(output) / REPORT).write_bytes(report.encode())
    table = StoragePath(output) / TABLE
    table.make_folder()
    write_file(str(table / "part-0.parquet"), pa.Table.from_pylist(rows, HUMAN_STUDY))
    if manifest.read_manifest(output) is None:
        manifest.write_manifest(
            output, {"format": manifest.FORMAT, "status": "finished", "versions": manifest.versions()}
        )
    return report


def _read(place: str) -> bytes:
    """Return the bytes of a file. Raises AnnotationError without the text of the error for an unreadable file."""
    try:
        return StoragePath(place).read_bytes()
    except (OSError, PlaceError) as error:
        raise AnnotationError(f"{place} cannot be read ({type(error).__name__}). Give an existing file") from error


def write_sheet(
    run: str | Mapping[str, str], metrics: Sequence[str], n: int, seed: int, output: str, restate: Restate
) -> SheetCounts:
    """Draw `n` labelled samples of a run of `untold score`, and write the blinded sheet and its key to `output`.

    `run` is the folder of a run of all metrics, or the folders by metric. Draws samples with a result under every
    metric; an empty list is a result. `restate` is called for the distinct answers of qa, if there are any. Equal
    arguments give equal files. An existing draw stays, filled or not.

    Raises AnnotationError for too few samples, for statements that cannot be restated, and for an output with another
    draw; UnreadableRunError without a run. Writes nothing then. Dejl et al. 2025; methods, section 6.
    """
    if not FEWEST <= len(metrics) <= MOST:
        raise AnnotationError(
            f"an annotation sheet sets {FEWEST} or {MOST} metrics side by side; --metric names {len(metrics)}"
        )
    runs = dict.fromkeys(metrics, run) if isinstance(run, str) else {name: run[name] for name in metrics}
    opened = {metric: open_run(place) for metric, place in runs.items()}
    for name in ("samples", "scores", "statements"):
        # Raises before any request if a table is missing
        for each in opened.values():
            each.dataset(name)
    drawn, restated = _gather(opened, _draw(opened, n, seed), restate)
    sheet, key = make_sheet(drawn, seed)
    meanings = [["errors", "meaning"], *([code, meaning] for code, meaning in ERROR_TYPES.items())]
    files = {
        KEY: to_csv(key),
        f"{SHEET}.csv": to_csv(sheet),
        f"{SHEET}.xlsx": to_xlsx({"sheet": sheet, "errors": meanings}),
    }
    _write_draw(output, files)
    return SheetCounts(n, len(sheet) - 1, restated)


def _draw(runs: Mapping[str, RunTables], n: int, seed: int) -> list[Row]:
    """Return the `n` labelled samples of the first run with the lowest hashes of seed and sample_id.

    Draws samples that have a result under every metric. Raises AnnotationError for too few samples.
    """
    first = next(iter(runs.values()))
    columns = ["sample_id", "query", "response", "contexts", "label"]
    samples = first.dataset("samples").to_table(columns=columns, filter=ds.field("label").isin(LABELS)).to_pylist()
    for metric, run in runs.items():
        wanted = (ds.field("metric") == metric) & ds.field("status").isin(JUDGED)
        judged = run.dataset("scores").to_table(columns=["sample_id"], filter=wanted)["sample_id"].to_pylist()
        known = set(judged)
        samples = [row for row in samples if row["sample_id"] in known]
    if len(samples) < n:
        places = dict.fromkeys(run.directory for run in runs.values())
        raise AnnotationError(
            f"--annotation-sheet {n}: {' and '.join(places)} has {len(samples)} labelled samples with a result of each "
            f"of {', '.join(runs)}. Set a smaller number"
        )
    drawn: list[Row] = sorted(samples, key=lambda row: (_hash(seed, row["sample_id"]), row["sample_id"]))[:n]
    return drawn


def _hash(seed: int, sample_id: str) -> str:
    return sha256(f"{seed}:{sample_id}".encode()).hexdigest()


def _gather(runs: Mapping[str, RunTables], samples: Sequence[Row], restate: Restate) -> tuple[list[DrawnSample], int]:
    """Return the samples with the results of the metrics, and the number of restated answers.

    Restates the answers of qa, so that the form of a list does not reveal its metric.
    """
    metrics = list(runs)
    statements = sorted(_rows(runs, "statements", samples, metrics), key=_place)
    answered = [row for row in statements if row["metric"] == QA]
    answers = find_answers(answered, _rows(runs, "atoms", samples, [QA])) if answered else []
    restated = _restate(sorted(set(answers)), restate) if answers else {}
    # find_answers keeps the order of the statements
    texts = {_place(row): restated[pair] for row, pair in zip(answered, answers, strict=True)}
    lists: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for row in statements:
        text = texts[_place(row)] if row["metric"] == QA else row["text"]
        lists[row["sample_id"], row["metric"], row["covered"]].append(plain_line(text))
    outputs: dict[str, list[MetricOutput]] = defaultdict(list)
    for row in _rows(runs, "scores", samples, metrics):
        place = row["sample_id"], row["metric"]
        outputs[place[0]].append(MetricOutput(place[1], row["score"], lists[*place, True], lists[*place, False]))
    return [_drawn_sample(sample, outputs[sample["sample_id"]]) for sample in samples], len(restated)


def _rows(runs: Mapping[str, RunTables], table: str, samples: Sequence[Row], metrics: Sequence[str]) -> list[Row]:
    """Return the rows of the drawn samples under the metrics."""
    ids = [sample["sample_id"] for sample in samples]
    rows: list[Row] = []
    for metric in metrics:
        wanted = ds.field("sample_id").isin(ids) & (ds.field("metric") == metric)
        rows += runs[metric].dataset(table).to_table(filter=wanted).to_pylist()
    return rows


def _place(statement: Row) -> tuple[str, ...]:
    """Return the key of a row of `statements` or `atoms`: sample, metric and statement."""
    return statement["sample_id"], statement["metric"], statement["statement_id"]


def find_answers(statements: Sequence[Row], atoms: Sequence[Row]) -> list[Pair]:
    """Return question and answer of each statement of qa: those of the atom with its text.

    `statements` and `atoms` are rows of tables of a run. Raises AnnotationError for a statement without such an atom.
    """
    # Several atoms may have one statement, which has the text of one of them
    made = {(_place(atom), ANSWER_FORM % (atom["question"], atom["text"])): atom for atom in atoms}
    found = [made.get((_place(row), row["text"])) for row in statements]
    if None in found:
        raise AnnotationError(
            f"{found.count(None)} of {len(found)} Q&A statements have no answer in the table atoms; "
            "score the samples again"
        )
    return [(atom["question"], atom["text"]) for atom in found if atom is not None]


def _drawn_sample(sample: Row, outputs: Sequence[MetricOutput]) -> DrawnSample:
    contexts = [context["text"] for context in sample["contexts"]]
    return DrawnSample(sample["sample_id"], sample["query"], sample["response"], contexts, sample["label"], outputs)


def _restate(pairs: Sequence[Pair], restate: Restate) -> dict[Pair, str]:
    """Return the statement of each question and answer. Raises AnnotationError if one has none, without its text.

    The store keeps the completions of the others.
    """
    rows = restate(pairs)
    stated = {(row["question"], row["answer"]): row["statement"] for row in rows if not row["error_type"]}
    missing = {pair for pair in pairs if not stated.get(pair)}
    if missing:
        types = Counter(row["error_type"] or "empty" for row in rows if (row["question"], row["answer"]) in missing)
        told = ", ".join(f"{name} {count}" for name, count in sorted(types.items()))
        raise AnnotationError(
            f"{len(missing)} of {len(pairs)} Q&A statements could not be restated ({told}), so no sheet was written. "
            "Start again to send only the missing requests"
        )
    return stated


def _write_draw(output: str, files: Mapping[str, bytes]) -> None:
    """Write the missing files of a draw, the key first. Raises AnnotationError if the output has another draw.

    The key identifies the draw, so that a second start completes the files after a kill. A sheet may contain days of
    work, and is never replaced.
    """
    present = [name for name in files if (StoragePath(output) / name).entry().kind]
    if present and (KEY not in present or _read(f"{output}/{KEY}") != files[KEY]):
        raise AnnotationError(
            f"{output} holds {', '.join(present)} of another draw; move them away, or give another --output"
        )
    for name, content in files.items():
        (StoragePath(output) / name).put_if_absent(content)
