"""Read questions: samples without responses, from one file, or from a file of questions and a file of contexts."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions
from untold.jobs.inputs.reading import SHOWN_INVALID, column_named
from untold.jobs.inputs.samples import CONTEXTS as CONTEXTS_TYPE
from untold.jobs.inputs.samples import OPTIONAL_TYPES, SampleError, Samples, read_rows
from untold.jobs.inputs.sampling import Draw
from untold.udfs.samples.adapters import CONTEXTS, FORMATS, QUESTIONS
from untold.udfs.samples.conversion import OF_ANSWERS

# The required columns of a question with contexts
QUESTION = ("query", "contexts")


def read_questions(
    spark: SparkSession,
    path: str,
    *,
    contexts: str | None = None,
    format: str | None = None,
    limit: int | None = None,
    draw: Draw | None = None,
    options: ReadOptions = AS_THEY_ARE,
) -> tuple[Samples, list[str]]:
    """Return the questions of a file, a folder or a glob, and lines about skipped parts of the input.

    The columns are sample_id (question_id or sample_id of the file, otherwise a hash of the columns), query, contexts
    array<struct<id, text>>, then the rest by name. Columns of answers (`response`, `system`, `label`) are dropped, so
    rows that differ only in these are one question.

    `format` is a format of `udfs.samples.adapters.FORMATS` with questions, or with answers to questions. If it has no
    contexts, they are empty. With `contexts`, the questions have the format of ELI5-Category (q_id, title, selftext,
    ...), and that file has rows of q_id and contexts. `draw` keeps random questions, only with contexts, and `limit`
    the first of these by id. `options` are as in `read_samples`. Raises the errors of `read_samples`, and SampleError
    if no question has contexts. Methods, section 8.
    """
    if contexts is not None:
        return _join_contexts(spark, path, contexts, limit, draw, options)
    if format is None:
        found = read_rows(spark, path, None, limit, QUESTION, draw, options=options)
    else:
        found = _read_known(spark, path, format, limit, draw, options)
    ignored = [f"`{name}`" for name in OF_ANSWERS if name in found.columns]
    notes = [f"{path}: {', '.join(ignored)} skipped, because columns of answers are not part of a question"]
    return replace(found, samples=found.samples.drop(*OF_ANSWERS)), notes if ignored else []


def _read_known(
    spark: SparkSession, path: str, format: str, limit: int | None, draw: Draw | None, options: ReadOptions
) -> Samples:
    """Return questions of a known data set. Missing contexts become empty lists."""
    found = read_rows(spark, path, FORMATS[format], limit, ("query",), draw, tuple(OPTIONAL_TYPES), options)
    contexts = F.coalesce("contexts", F.array().cast(CONTEXTS_TYPE))
    samples = found.samples.select("sample_id", "query", contexts.alias("contexts"), *_rest(found.samples))
    return replace(found, samples=samples)


def _join_contexts(
    spark: SparkSession, path: str, contexts: str, limit: int | None, draw: Draw | None, options: ReadOptions
) -> tuple[Samples, list[str]]:
    """Join questions and contexts by sample_id. Return them with lines about the rows without a partner."""
    asked = read_rows(spark, path, QUESTIONS, required=("query",), options=options)
    # The options rename columns of the questions' file only
    given = read_rows(spark, contexts, CONTEXTS, required=("contexts",), options=replace(options, columns={}))
    all_questions = asked.samples.drop(*OF_ANSWERS, "contexts").join(
        given.samples.select("sample_id", "contexts"), on="sample_id", how="inner"
    )
    joined = all_questions.count()
    if not joined:
        raise SampleError(f"{contexts} has no contexts for the questions of {path}. Check their q_id")
    # After the join, because drawn rows without contexts would be missing
    drawn = all_questions if draw is None else draw.keep(all_questions)
    count = joined if draw is None else drawn.count()
    questions = drawn.orderBy("sample_id").limit(limit) if limit is not None and limit < count else drawn
    invalid = _invalid_of([asked.invalid, given.invalid], questions)
    found = Samples(
        samples=questions.select("sample_id", "query", "contexts", *_rest(questions)),
        invalid=invalid,
        row_count=count if limit is None else min(limit, count),
        invalid_count=invalid.count(),
        duplicates=asked.duplicates + given.duplicates,
        first_invalid=[row["error"] for row in invalid.orderBy("error").limit(SHOWN_INVALID).collect()],
        columns=asked.columns | given.columns,
    )
    return found, _describe_left_out((path, asked.row_count), (contexts, given.row_count), joined)


def _rest(questions: DataFrame) -> list[Column]:
    """Return the other columns, in their order."""
    known = ("sample_id", "query", "contexts")
    return [column_named(name) for name in questions.columns if name not in known]


def _invalid_of(rows: list[DataFrame], questions: DataFrame) -> DataFrame:
    """Return sample_id and error of the questions that are invalid in one or both files."""
    both = rows[0].unionByName(rows[1]).join(questions.select("sample_id"), on="sample_id", how="left_semi")
    return both.groupBy("sample_id").agg(F.concat_ws("; ", F.array_sort(F.collect_list("error"))).alias("error"))


def _describe_left_out(asked: tuple[str, int], given: tuple[str, int], joined: int) -> list[str]:
    """Return lines about questions and contexts without a partner. `asked`, `given`: path and rows of each."""
    (path, questions), (contexts, rows) = asked, given
    notes = []
    if questions > joined:
        notes.append(f"{questions - joined:,} of {questions:,} questions skipped (no contexts in {contexts})")
    if rows > joined:
        notes.append(f"{rows - joined:,} of {rows:,} rows of {contexts} skipped (no question in {path})")
    return notes
