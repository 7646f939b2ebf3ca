"""ICAT (Samarinas et al. 2025; docs/methods.md, section 11).

The measures are the share of claims with a source, the share of the query's aspects that these claims cover, and the
weighted harmonic mean of both.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.call_settings import RELATION
from untold.jobs.metrics import base, grounded_claims
from untold.jobs.metrics.judging import CLASSIFY_LISTS
from untold.jobs.metrics.settings import IcatSettings
from untold.jobs.metrics.summaries import Extraction, assume_texts
from untold.jobs.metrics.views import ClaimView
from untold.jobs.settings.model import Settings, SettingsError
from untold.udfs.facts import aspect_coverage
from untold.udfs.facts.claim_verdicts import SUPPORTED, number_claims
from untold.udfs.storage import absolute

NAME = "icat"
# In their order. Claims are judged between the last two
EXTRACT, GENERATE, ALIGN = ("extract_claims", "generate_aspects", "align_claims")
TABLES = ("statements", "scores", "measures", "claims", "evidence", "chunks", "failures")
SHARES = (aspect_coverage.FACT, aspect_coverage.COVERAGE, aspect_coverage.ICAT)
UNKNOWN = base.bounds_of(SHARES, aspect_coverage.CLAIMS)


def stages(settings: Settings) -> tuple[str, ...]:
    """Return the stages in order. Given aspects are not generated, and annotations need no alignment."""
    variant = settings.icat.variant
    generate = (GENERATE,) if variant in ("auto", "a") else ()
    align = () if variant == "m" else (ALIGN,)
    return (EXTRACT, *generate, verifying_stage(settings), *align)


def verifying_stage(settings: Settings) -> str:
    """Return the stage that verifies claims. Raises UserError for lists of a classifier."""
    return grounded_claims.grounding_stage(settings, in_lists=settings.icat.judgement == "lists")


def judged_stages(settings: Settings) -> tuple[str, ...]:
    """Return the stage that verifies claims. Raises SettingsError for a classifier, which has no model."""
    if settings.grounding.verifier != RELATION:
        raise SettingsError(
            "judges: grounding.verifier is a classifier. Remove judges, or set grounding.verifier=relation"
        )
    return (verifying_stage(settings),)


def needs(settings: Settings) -> tuple[str, ...]:
    """Return the required columns: aspects unless they are generated, and the topic of annotations."""
    more = {"m": ("query_id", "aspects"), "s": ("aspects",)}
    return ("query", "response", *more.get(settings.icat.variant, ()))


def digests(settings: Settings) -> dict[str, str]:
    """Return the digest of the annotations, if they are used. Raises QrelsError for an unusable file."""
    if settings.icat.variant != "m":
        return {}
    if settings.icat.qrels is None:
        raise aspect_coverage.QrelsError("icat.qrels is not set, and icat.variant is m. Use --set icat.qrels=FILE")
    return {"icat.qrels": aspect_coverage.digest_of_qrels(absolute(settings.icat.qrels))}


def assume(settings: Settings) -> base.Assumptions:
    """Assume the maximum number of claims. All chunks are judged, and all claims are grounded and aligned.

    With `icat.early_stop`, a run may need fewer relations than the plan counts, so the number is an upper bound.
    """
    verifier, own = verifying_stage(settings), settings.icat
    judged = {
        verifier: {"relation": F.lit(grounded_claims.ENTAILMENT), "probability": F.lit(1.0)},
        CLASSIFY_LISTS: {"relations": F.transform("hypotheses", lambda _: F.lit(grounded_claims.ENTAILMENT))},
        ALIGN: {"evidence": F.array()},
    }
    extracting = {EXTRACT: Extraction("claims"), GENERATE: Extraction("aspects", "query", most=own.aspects)}
    at_once = settings.model_copy(update={NAME: own.model_copy(update={"early_stop": False})})
    return assume_texts(at_once, extracting, judged, {verifier} if own.early_stop else ())


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Return the tables `TABLES` of valid samples (columns of the table `samples`).

    Samarinas et al. 2025; methods, section 11. A sample without its claims or aspects has no retrieval. A missing
    judgement leaves a score with bounds.
    """
    own, calls = settings.icat, base.StageCalls(NAME, tools)
    questions = _questions(samples, own.variant)
    # A blank response has no claims and no request, but it has aspects
    stated = samples.where(~base.is_blank("response"))
    extracted = calls.ask(EXTRACT, stated.select("sample_id", F.col("response").alias("text")))
    without_aspects = questions.where(F.coalesce(F.size("given"), F.lit(0)) <= 0)
    to_generate = calls.complete(without_aspects.select("sample_id", "query"))
    generated = calls.ask(GENERATE, to_generate) if GENERATE in stages(settings) else None
    aspects = tools.keep(_aspects(questions, generated, own.aspects), "aspects")
    claims = tools.keep(base.map_rows(extracted.select("sample_id", "claims"), number_claims), "claims")
    size = own.list_size if own.judgement == "lists" else None
    grounded = grounded_claims.ground_claims(
        calls.complete(claims), tools, settings, early_stop=own.early_stop, list_size=size
    )
    gathered = tools.keep(_gather(questions, aspects, _annotated(grounded.claims, questions, settings)), "gathered")
    aligned = calls.ask(ALIGN, _to_align(gathered)) if ALIGN in stages(settings) else None
    concluded = tools.keep(_conclude(gathered, aligned, settings), "concluded")
    judged = base.with_status(samples, concluded, calls.incomplete())
    failures = grounded_claims.claim_failures(NAME, verifying_stage(settings), grounded)
    return {
        "statements": grounded_claims.covered_statements(judged.where(base.is_judged()), NAME),
        "scores": base.measured_scores(judged, NAME, aspect_coverage.ICAT, F.lit(0)),
        "measures": base.measure_rows(judged, NAME, UNKNOWN),
        "claims": grounded_claims.claim_rows(NAME, claims, grounded.claims),
        "evidence": grounded_claims.evidence_rows(NAME, grounded),
        "chunks": grounded_claims.chunk_rows(grounded.hits),
        "failures": calls.failures().unionByName(failures),
        **grounded_claims.pair_votes(NAME, verifying_stage(settings), grounded),
    }


def _questions(samples: DataFrame, variant: str) -> DataFrame:
    """Return sample_id, query, topic, given array<struct<id, text>> (null without given aspects, or in ICAT-A)."""
    has = {name: name in samples.columns for name in ("query_id", "aspects")}
    topic = F.col("query_id") if has["query_id"] else F.lit(None).cast("string")
    nothing = F.lit(None).cast("array<struct<id: string, text: string>>")
    wanted = has["aspects"] and variant != "a"
    given = F.transform("aspects", lambda one: F.struct(one["id"].alias("id"), one["text"].alias("text")))
    return samples.select("sample_id", "query", topic.alias("topic"), (given if wanted else nothing).alias("given"))


def _aspects(questions: DataFrame, generated: DataFrame | None, most: int) -> DataFrame:
    """Return the columns of `ASPECTS`: the aspects of each query, none if they are missing."""
    if generated is None:
        rows = questions.select("sample_id", "given", F.lit(None).cast("array<string>").alias("generated"))
    else:
        found = generated.select("sample_id", F.col("aspects").alias("generated"))
        rows = questions.select("sample_id", "given").join(found, on="sample_id", how="left")
    return base.map_rows(rows, aspect_coverage.choose_aspects, most=most)


def _annotated(claims: DataFrame, questions: DataFrame, settings: Settings) -> DataFrame:
    """Return the claims with the column subtopics: the annotations of the document of the first supporting chunk.

    The column is null except in ICAT-M.
    """
    if settings.icat.variant != "m":
        return claims.withColumn("subtopics", F.lit(None).cast("array<string>"))
    path = absolute(str(settings.icat.qrels))
    files = claims.sparkSession.createDataFrame([(path,)], "path string")
    annotations = base.map_rows(files, aspect_coverage.annotated_documents)
    by_document = annotations.groupBy("topic", F.col("document").alias("document_id")).agg(
        F.collect_set("subtopic").alias("subtopics")
    )
    topics = claims.join(questions.select("sample_id", "topic"), on="sample_id", how="inner")
    return topics.join(by_document, on=["topic", "document_id"], how="left").drop("topic")


def _gather(questions: DataFrame, aspects: DataFrame, claims: DataFrame) -> DataFrame:
    """Return sample_id, query, aspects, stated array<struct<position, text, verdict, unjudged, subtopics>>, waiting.

    `stated` has the claims in order, and is null without claims. waiting: a request that may ground a claim was not
    sent.
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
    """Return sample_id, query, aspects, claims: the texts of samples with aspects and grounded claims.

    A sample with a waiting claim has no request, because the next attempt may ground more of its claims.
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
    """Return the columns of `CONCLUDED`, and waiting: one row per sample."""
    rows = gathered.select("sample_id", F.col("stated").alias("claims"), "aspects", "waiting")
    if aligned is None:
        rows = rows.withColumn("evidence", F.lit(None).cast("array<array<int>>"))
    else:
        rows = rows.join(aligned.select("sample_id", "evidence"), on="sample_id", how="left")
    own = settings.icat
    return base.conclude(rows, aspect_coverage.conclude_samples, beta=own.beta, by_documents=own.variant == "m")


METRIC = base.Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: IcatSettings},
    judged=judged_stages,
    settings=(NAME, "grounding"),
    tables=TABLES,
    needs=needs,
    retrieves=True,
    reads=("query_id", "aspects"),
    unknown=UNKNOWN,
    supported_share=aspect_coverage.FACT,
    zeroed=SHARES,
    digests=digests,
    view=ClaimView,
)
