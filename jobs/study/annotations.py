"""The human study: blinded sheets of a run's samples for people to judge, and the report on filled ones.

Dejl et al. 2025; methods, section 6. What a sheet looks like is `untold.udfs.blinding`'s.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.run import manifest
from untold.jobs.run.session import read_parquet
from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.tables import HUMAN_STUDY
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
from untold.udfs.llm.segments import write_file
from untold.udfs.sheets import read_rows, to_csv, to_xlsx
from untold.udfs.statistics.confusion import LABELS
from untold.udfs.storage import PlaceError, StoragePath

KEY = "annotation_key.csv"
SHEET = "annotation_sheet"
TABLE = "human_study"
REPORT = f"{TABLE}.md"
FEWEST, MOST = 2, 3  # metrics that a sheet sets side by side
QA = "qa"  # its statements are questions with answers, and are restated
# Statuses with a result that a person can judge; an empty list is one too
JUDGED = ("ok", "partial", "no_statements")
Row = Mapping[str, Any]
Pair = tuple[str, str]
Restate = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class SheetCounts:
    """What a sheet holds: items, rows (items times metrics), and distinct questions with answers restated for it."""

    items: int
    rows: int
    restated: int


def report_study(annotations: str, key: str, output: str, *, seed: int) -> str:
    """The report on a filled sheet as Markdown, written with the table `human_study` to `output`.

    Raises AnnotationError and SpreadsheetError for files that cannot be read; then nothing is written.
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
    """The bytes of a file. Raises AnnotationError, without the error's text, where there is none that can be read."""
    try:
        return StoragePath(place).read_bytes()
    except (OSError, PlaceError) as error:
        raise AnnotationError(f"{place}: cannot be read ({type(error).__name__}); give a file that is there") from error


def write_sheet(
    spark: SparkSession,
    run: str | Mapping[str, str],
    metrics: Sequence[str],
    n: int,
    seed: int,
    output: str,
    restate: Restate,
) -> SheetCounts:
    """Draws `n` labelled samples of a run of `untold score`, and writes the blinded sheet and its key to `output`.

    `run` is the folder of one for all metrics, or of one for each, where each has a judge of its own.

    The same run, metrics, n and seed give the same files, whatever the partitioning. Samples are drawn that have a
    result under every metric (status ok, partial or no_statements: lists that are wrongly empty are judged as well).
    `restate` turns a frame of distinct (question, answer) into question, answer, statement, error_type; it is called
    where `metrics` has qa and there is something to restate. A draw that is there already stays as it is, filled in
    or not.

    Raises AnnotationError where samples are too few, statements cannot be restated, or `output` holds another draw, and
    UnreadableRunError where there is no such run; then nothing is written. Dejl et al. 2025; methods, section 6.
    """
    _check_metrics(metrics)
    runs = dict.fromkeys(metrics, run) if isinstance(run, str) else {name: run[name] for name in metrics}
    opened = {metric: open_run(place) for metric, place in runs.items()}
    for name in ("samples", "scores", "statements"):
        # Before any work: a sheet that cannot be finished costs nobody a question to the model
        for each in opened.values():
            each.dataset(name)  # says in one line which is missing: scores alone have no sheet
    samples = _draw(spark, opened, n, seed)
    drawn, restated = _gather(spark, opened, metrics, samples, restate)
    sheet, key = make_sheet(drawn, seed)
    meanings = [["errors", "meaning"], *([code, meaning] for code, meaning in ERROR_TYPES.items())]
    files = {
        KEY: to_csv(key),
        f"{SHEET}.csv": to_csv(sheet),
        f"{SHEET}.xlsx": to_xlsx({"sheet": sheet, "errors": meanings}),
    }
    _write_draw(output, files)
    return SheetCounts(n, len(sheet) - 1, restated)


def _check_metrics(metrics: Sequence[str]) -> None:
    """Raises AnnotationError for fewer or more metrics than are set side by side (published: three)."""
    if not FEWEST <= len(metrics) <= MOST:
        raise AnnotationError(
            f"an annotation sheet sets {FEWEST} or {MOST} metrics side by side; --metric names {len(metrics)}"
        )


def _draw(spark: SparkSession, runs: Mapping[str, RunTables], n: int, seed: int) -> list[Row]:
    """The drawn samples: rows of `find_drawable` in the order of the draw.

    samples are those of the first run: all runs are of one input. Raises AnnotationError where there are too few.
    """
    judged = [
        read_parquet(spark, run.path_of("scores").spark)
        .where(F.col("metric") == metric)
        .select("sample_id", "metric", "status")
        for metric, run in runs.items()
    ]
    metrics, places = list(runs), list(dict.fromkeys(run.directory for run in runs.values()))
    samples = read_parquet(spark, runs[metrics[0]].path_of("samples").spark)
    drawable = find_drawable(samples, reduce(DataFrame.unionByName, judged), metrics, seed)
    # Ties of the hash, which nobody expects, go by id, so that the draw has one order
    drawn: list[Row] = drawable.orderBy("draw", "sample_id").limit(n).toArrow().to_pylist()
    if len(drawn) < n:
        raise AnnotationError(
            f"--annotation-sheet {n}: {' and '.join(places)} has {len(drawn)} labelled samples with a result of each "
            f"of {', '.join(metrics)}; ask for fewer"
        )
    return drawn


def find_drawable(samples: DataFrame, scores: DataFrame, metrics: Sequence[str], seed: int) -> DataFrame:
    """The labelled samples with a result under every metric: sample_id, query, response, contexts, label, draw.

    `draw` is a hash of seed and sample_id: samples in its order are in a random one, the same for one seed.
    """
    judged = (
        scores.where(F.col("metric").isin(*metrics) & F.col("status").isin(*JUDGED))
        .groupBy("sample_id")
        .agg(F.count_distinct("metric").alias("judged"))
        # A sample that one metric failed on cannot be compared between them
        .where(F.col("judged") == len(metrics))
    )
    return (
        samples.where(F.col("label").isin(*LABELS))
        .join(judged, on="sample_id", how="left_semi")
        .withColumn("draw", F.sha2(F.concat_ws(":", F.lit(str(seed)), "sample_id"), 256))
        .select("sample_id", "query", "response", "contexts", "label", "draw")
    )


def _gather(
    spark: SparkSession, runs: Mapping[str, RunTables], metrics: Sequence[str], samples: Sequence[Row], restate: Restate
) -> tuple[list[DrawnSample], int]:
    """What the metrics gave for the samples, and how many questions with answers were restated.

    runs: by metric the opened run. Answers of Q&A are restated, so that no list shows by its form which metric it is
    from.
    """
    statements = sorted(_rows(runs, "statements", samples, metrics), key=_place)
    answered = [row for row in statements if row["metric"] == QA]
    answers = find_answers(answered, _rows(runs, "atoms", samples, [QA])) if answered else []
    restated = _restate(spark, sorted(set(answers)), restate) if answers else {}
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
    """The rows of the drawn samples under the metrics. Only these are kept in memory."""
    ids = [sample["sample_id"] for sample in samples]
    rows: list[Row] = []
    for metric in metrics:
        wanted = ds.field("sample_id").isin(ids) & (ds.field("metric") == metric)
        rows += runs[metric].dataset(table).to_table(filter=wanted).to_pylist()
    return rows


def _place(statement: Row) -> tuple[str, ...]:
    """Sample, metric and statement of a row of `statements` or `atoms`: what joins the two."""
    return statement["sample_id"], statement["metric"], statement["statement_id"]


def find_answers(statements: Sequence[Row], atoms: Sequence[Row]) -> list[Pair]:
    """Question and answer of each statement of Q&A: those of its atom that its text was made of.

    Both are rows of tables of a run. Raises AnnotationError where a statement has no such atom.
    """
    # Several atoms share a statement; its text tells which of them speaks for it
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


def _restate(spark: SparkSession, pairs: Sequence[Pair], restate: Restate) -> dict[Pair, str]:
    """The statement of each question and answer. Raises AnnotationError where one has none.

    The line counts errors by type and shows no text of the model's. What was answered stays in the store.
    """
    frame = restate(spark.createDataFrame(list(pairs), "question string, answer string"))
    rows = frame.select("question", "answer", "statement", "error_type").toArrow().to_pylist()
    stated = {(row["question"], row["answer"]): row["statement"] for row in rows if not row["error_type"]}
    missing = {pair for pair in pairs if not stated.get(pair)}
    if missing:
        types = Counter(row["error_type"] or "empty" for row in rows if (row["question"], row["answer"]) in missing)
        told = ", ".join(f"{name} {count}" for name, count in sorted(types.items()))
        raise AnnotationError(
            f"{len(missing)} of {len(pairs)} Q&A statements could not be restated ({told}); no sheet was written: "
            "start again to ask for these alone"
        )
    return stated


def _write_draw(output: str, files: Mapping[str, bytes]) -> None:
    """Writes the files of a draw, the key first; where the same key is there, only what is missing.

    The key goes first because it says whose draw the others are: after a kill between two files, a second start finds
    it and completes the draw. A sheet may hold days of work. Raises AnnotationError where another draw's is in the way.
    """
    present = [name for name in files if (StoragePath(output) / name).entry().kind]
    if present and (KEY not in present or _read(f"{output}/{KEY}") != files[KEY]):
        raise AnnotationError(
            f"{output} holds {', '.join(present)} of another draw; move them away, or give another --output"
        )
    for name, content in files.items():
        (StoragePath(output) / name).put_if_absent(content)
