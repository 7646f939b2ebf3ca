"""ICAT (Samarinas et al. 2025; docs/methods.md, section 11): the share of claims that are grounded in a source of
knowledge, the share of the query's aspects that grounded claims cover, and the weighted harmonic mean of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import (
    failure_rows,
    has_failed,
    incomplete_samples,
    is_unasked,
    leave_complete,
)
from untold.jobs.metrics import base, grounded_claims
from untold.jobs.metrics.graphs import LONGEST_ATOM, different_texts
from untold.jobs.metrics.judging import CLASSIFY_LISTS
from untold.jobs.metrics.settings import IcatSettings
from untold.jobs.metrics.summaries import (
    MARK,
    StageFigures,
    made_up,
    numbers,
    size_of_things,
    tokens_of,
    value_of,
    whole,
)
from untold.jobs.metrics.views import ClaimView
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts import aspect_coverage
from untold.udfs.facts.claim_verdicts import CLAIM_SCHEMA, SUPPORTED, number_claims
from untold.udfs.storage import absolute

NAME = "icat"
# In the order in which they are asked; claims are judged between the last two
EXTRACT, GENERATE, ALIGN = ("extract_claims", "generate_aspects", "align_claims")
TABLES = ("statements", "scores", "measures", "claims", "evidence", "chunks", "failures")
# Of a sample of which nothing is known: rates may be anything, and a count has no upper end
UNKNOWN: Mapping[str, tuple[float | None, float | None]] = {
    **dict.fromkeys((aspect_coverage.FACT, aspect_coverage.COVERAGE, aspect_coverage.ICAT), (0.0, 1.0)),
    aspect_coverage.CLAIMS: (None, None),
}
# A claim takes two words at least, so that no text has more claims than half its words
WORDS_OF_A_CLAIM = 2


def stages(settings: Settings) -> tuple[str, ...]:
    """The stages that the metric asks, in order: given aspects are not generated, and annotations need no alignment."""
    variant = settings.icat.variant
    generate = (GENERATE,) if variant in ("auto", "a") else ()
    align = () if variant == "m" else (ALIGN,)
    return (EXTRACT, *generate, verifying_stage(settings), *align)


def verifying_stage(settings: Settings) -> str:
    """The stage that holds claims against chunks. Raises UserError for lists of a classifier."""
    return grounded_claims.grounding_stage(settings, in_lists=settings.icat.judgement == "lists")


def needs(settings: Settings) -> tuple[str, ...]:
    """The columns that samples must have: aspects where none are generated, and the topic where it is annotated."""
    more = {"m": ("query_id", "aspects"), "s": ("aspects",)}
    return ("query", "response", *more.get(settings.icat.variant, ()))


def digests(settings: Settings) -> dict[str, str]:
    """The digest of the annotations, where they are read. Raises QrelsError for a file that cannot be used."""
    if settings.icat.variant != "m":
        return {}
    if settings.icat.qrels is None:
        raise aspect_coverage.QrelsError("icat.qrels is not set, and icat.variant is m. Use --set icat.qrels=FILE")
    return {"icat.qrels": aspect_coverage.digest_of_qrels(absolute(settings.icat.qrels))}


def assume(settings: Settings) -> base.Assumptions:
    """As many claims as a text can have, each judged with all its chunks and grounded, so that all are aligned.

    With `icat.early_stop` a run may ask fewer relations than are counted, so that stage is given as a bound.
    """
    verifier = verifying_stage(settings)
    aspect = F.substring("query", 1, LONGEST_ATOM)
    names = F.transform(numbers(F.lit(settings.icat.aspects)), lambda number: F.concat(number, F.lit(MARK), aspect))
    results = {EXTRACT: {"claims": different_texts(WORDS_OF_A_CLAIM)}, GENERATE: {"aspects": names}}
    at_once = settings.model_copy(update={NAME: settings.icat.model_copy(update={"early_stop": False})})
    at_most = frozenset({verifier}) if settings.icat.early_stop else frozenset[str]()
    return base.Assumptions(at_once, results | _judged(verifier), at_most, partial(_expected, settings))


def _judged(verifier: str) -> dict[str, Mapping[str, Column]]:
    """What judging and aligning give in a plan: nothing is asked of the one that follows from the other's answer."""
    return {
        verifier: {"relation": F.lit(grounded_claims.ENTAILMENT), "probability": F.lit(1.0)},
        CLASSIFY_LISTS: {"relations": F.transform("hypotheses", lambda _: F.lit(grounded_claims.ENTAILMENT))},
        ALIGN: {"evidence": F.array()},
    }


def _expected(settings: Settings, figures: StageFigures) -> dict[str, Mapping[str, Column]]:
    """As many claims and aspects as the figures have. How many chunks ground a claim no figure says: all are judged."""
    found: dict[str, Mapping[str, Column]] = dict(_judged(verifying_stage(settings)))
    for stage, variable, name in ((EXTRACT, "text", "claims"), (GENERATE, "query", "aspects")):
        if stage in figures:
            tokens = tokens_of(variable)
            count = whole(value_of(figures[stage].things, tokens), variable)
            count = F.least(count, F.lit(settings.icat.aspects)) if stage == GENERATE else count
            found[stage] = {name: made_up(count, size_of_things(figures[stage], tokens), variable)}
    return found


@dataclass(frozen=True)
class _IcatResults:
    """What the metric has found out about its samples, before tables are made of it.

    claims: sample_id, position, text, all that were extracted; incomplete: what `incomplete_samples` gives; concluded:
    the columns of `CONCLUDED`, and waiting; aligned: the results of the alignment, None under ICAT-M.
    """

    claims: DataFrame
    incomplete: DataFrame
    grounded: grounded_claims.GroundedClaims
    concluded: DataFrame
    aligned: DataFrame | None
    asked: Mapping[str, DataFrame]


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Scores valid samples (columns of the table `samples`): the tables of `TABLES`.

    Samarinas et al. 2025; methods, section 11. A sample whose claims or aspects were lost is not looked up any further;
    a judgement that was lost leaves a score with bounds.
    """
    questions = _questions(samples, settings.icat.variant)
    extracted = tools.ask(EXTRACT, _responses(samples), carry=("sample_id",))
    asked = {EXTRACT: extracted}
    if GENERATE in stages(settings):
        asked[GENERATE] = tools.ask(GENERATE, _to_generate(questions, extracted), carry=("sample_id",))
    incomplete = incomplete_samples(*asked.values())
    aspects = tools.keep(_aspects(questions, asked.get(GENERATE), settings.icat.aspects), "aspects")
    claims = tools.keep(
        extracted.select("sample_id", "claims").mapInArrow(number_claims, spark_schema(CLAIM_SCHEMA)), "claims"
    )
    known = claims.join(incomplete.select("sample_id"), on="sample_id", how="left_anti")
    size = settings.icat.list_size if settings.icat.judgement == "lists" else None
    grounded = grounded_claims.ground_claims(
        known, tools, settings, early_stop=settings.icat.early_stop, list_size=size
    )
    gathered = tools.keep(_gather(questions, aspects, _annotated(grounded.claims, questions, settings)), "gathered")
    aligned = None
    if ALIGN in stages(settings):
        aligned = tools.ask(ALIGN, _to_align(gathered), carry=("sample_id",))
        asked[ALIGN] = aligned
    concluded = tools.keep(_conclude(gathered, aligned, settings), "concluded")
    return _tables(
        samples, _IcatResults(claims, incomplete, grounded, concluded, aligned, asked), verifying_stage(settings)
    )


def _responses(samples: DataFrame) -> DataFrame:
    """Columns sample_id, text. A blank response says nothing and is not asked for; its aspects are."""
    return samples.where(~base.is_blank("response")).select("sample_id", F.col("response").alias("text"))


def _questions(samples: DataFrame, variant: str) -> DataFrame:
    """Columns sample_id, query, topic, given array<struct<id, text>>, null where none are given or none are wanted."""
    has = {name: name in samples.columns for name in ("query_id", "aspects")}
    topic = F.col("query_id") if has["query_id"] else F.lit(None).cast("string")
    nothing = F.lit(None).cast("array<struct<id: string, text: string>>")
    wanted = has["aspects"] and variant != "a"
    given = F.transform("aspects", lambda one: F.struct(one["id"].alias("id"), one["text"].alias("text")))
    return samples.select("sample_id", "query", topic.alias("topic"), (given if wanted else nothing).alias("given"))


def _to_generate(questions: DataFrame, extracted: DataFrame) -> DataFrame:
    """Columns sample_id, query: the samples that are given no aspects, but for those whose claims are missing."""
    none = F.coalesce(F.size("given"), F.lit(0)) <= 0
    return leave_complete(questions.where(none).select("sample_id", "query"), extracted)


def _aspects(questions: DataFrame, generated: DataFrame | None, most: int) -> DataFrame:
    """The columns of `ASPECTS`: what each query's aspects are, none where they could not be had."""
    if generated is None:
        rows = questions.select("sample_id", "given", F.lit(None).cast("array<string>").alias("generated"))
    else:
        found = generated.select("sample_id", F.col("aspects").alias("generated"))
        rows = questions.select("sample_id", "given").join(found, on="sample_id", how="left")
    return rows.mapInArrow(partial(aspect_coverage.choose_aspects, most=most), spark_schema(aspect_coverage.ASPECTS))


def _annotated(claims: DataFrame, questions: DataFrame, settings: Settings) -> DataFrame:
    """The claims with the column subtopics: those that the document of their first supporting chunk is annotated with.

    Null but under ICAT-M.
    """
    if settings.icat.variant != "m":
        return claims.withColumn("subtopics", F.lit(None).cast("array<string>"))
    path = absolute(str(settings.icat.qrels))
    files = claims.sparkSession.createDataFrame([(path,)], "path string")
    annotations = files.mapInArrow(aspect_coverage.annotated_documents, spark_schema(aspect_coverage.ANNOTATIONS))
    by_document = annotations.groupBy("topic", F.col("document").alias("document_id")).agg(
        F.collect_set("subtopic").alias("subtopics")
    )
    topics = claims.join(questions.select("sample_id", "topic"), on="sample_id", how="inner")
    return topics.join(by_document, on=["topic", "document_id"], how="left").drop("topic")


def _gather(questions: DataFrame, aspects: DataFrame, claims: DataFrame) -> DataFrame:
    """Columns sample_id, query, aspects, stated array<struct<position, text, verdict, unjudged, subtopics>>, waiting.

    `stated` are the claims in order, null without any; waiting: some claim could be grounded by what was not asked.
    """
    one = F.struct("position", "text", "verdict", "unjudged", "subtopics")
    stated = claims.groupBy("sample_id").agg(
        F.array_sort(F.collect_list(one)).alias("stated"), F.max("waiting").alias("waiting")
    )
    return (
        questions.select("sample_id", "query")
        .join(aspects, on="sample_id", how="left")
        .join(stated, on="sample_id", how="left")
    )


def _to_align(gathered: DataFrame) -> DataFrame:
    """Columns sample_id, query, aspects, claims: the texts of both, where there are aspects and grounded claims.

    A sample of which some claim still waits is left for the next start: its grounded claims may become more.
    """
    grounded = F.filter("stated", lambda one: one["verdict"] == SUPPORTED)
    texts = gathered.where(~F.coalesce("waiting", F.lit(False))).select(
        "sample_id",
        "query",
        F.transform("aspects", lambda one: one["text"]).alias("aspects"),
        F.transform(grounded, lambda one: one["text"]).alias("claims"),
    )
    return texts.where((F.size("aspects") > 0) & (F.size("claims") > 0))


def _conclude(gathered: DataFrame, aligned: DataFrame | None, settings: Settings) -> DataFrame:
    """The columns of `CONCLUDED`, a row a sample."""
    rows = gathered.select("sample_id", F.col("stated").alias("claims"), "aspects")
    if aligned is None:
        rows = rows.withColumn("evidence", F.lit(None).cast("array<array<int>>"))
    else:
        rows = rows.join(aligned.select("sample_id", "evidence"), on="sample_id", how="left")
    conclude = partial(
        aspect_coverage.conclude_samples, beta=settings.icat.beta, by_documents=settings.icat.variant == "m"
    )
    concluded = rows.mapInArrow(conclude, spark_schema(aspect_coverage.CONCLUDED))
    return concluded.join(gathered.select("sample_id", "waiting"), on="sample_id", how="left")


def _tables(samples: DataFrame, found: _IcatResults, verifier: str) -> base.Tables:
    judged = _with_status(samples, found)
    asked = [failure_rows(NAME, stage, rows) for stage, rows in found.asked.items()]
    return {
        "statements": grounded_claims.covered_statements(judged.where(F.col("status").isin(*base.JUDGED)), NAME),
        "scores": base.measured_scores(judged, NAME, aspect_coverage.ICAT, F.lit(0)),
        "measures": base.measure_rows(judged, NAME, UNKNOWN),
        "claims": grounded_claims.claim_rows(NAME, found.claims, found.grounded.claims),
        "evidence": grounded_claims.evidence_rows(NAME, found.grounded),
        "chunks": grounded_claims.chunk_rows(found.grounded.hits),
        "failures": reduce(
            DataFrame.unionByName, [*asked, grounded_claims.claim_failures(NAME, verifier, found.grounded)]
        ),
    }


def _with_status(samples: DataFrame, found: _IcatResults) -> DataFrame:
    """sample_id, system, status, and the columns of `CONCLUDED`: a row a sample (docs/contract.md, "Scores").

    Left joins, as what is missing says something: a sample that lacks nothing is not in `incomplete`, and one without
    aspects or grounded claims was not aligned.
    """
    joined = (
        samples.select("sample_id", "system")
        .join(found.concluded, on="sample_id", how="left")
        .join(found.incomplete.withColumnRenamed("waiting", "unasked"), on="sample_id", how="left")
    )
    lost, waiting = F.col("lost"), F.col("unasked") | F.col("waiting")
    if found.aligned is not None:
        flags = found.aligned.select("sample_id", has_failed().alias("unaligned"), is_unasked().alias("not_aligned"))
        joined = joined.join(flags, on="sample_id", how="left")
        lost, waiting = lost | F.col("unaligned"), waiting | F.col("not_aligned")
    status = base.status_of(lost=lost, waiting=waiting, empty=F.col("empty"), partial=F.col("unjudged") > 0)
    return joined.withColumn("status", status)


METRIC = base.Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: IcatSettings},
    settings=(NAME, "grounding"),
    tables=TABLES,
    needs=needs,
    retrieves=True,
    reads=("query_id", "aspects"),
    unknown=UNKNOWN,
    zeroed=(aspect_coverage.FACT, aspect_coverage.COVERAGE, aspect_coverage.ICAT),
    digests=digests,
    view=ClaimView,
)
