"""RAGChecker (Ru et al. 2024; docs/methods.md, section 16): claims of a response and of its ground truth, held against
each other's text and against every context, tell what retriever and generator each contribute.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import failure_rows, incomplete_samples, is_unasked
from untold.jobs.inputs.samples import OPTIONAL_TYPES
from untold.jobs.metrics import base
from untold.jobs.metrics.graphs import different_texts
from untold.jobs.metrics.grounded_claims import claim_id, claim_rows
from untold.jobs.metrics.judging import judge_lists
from untold.jobs.metrics.settings import RagSettings
from untold.jobs.metrics.summaries import StageFigures, made_up, size_of_things, tokens_of, value_of, whole
from untold.jobs.metrics.views import RagView
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts import rag_measures
from untold.udfs.samples.items import RESPONSE, SIDES, TRUTH

NAME = "rag"
EXTRACT, CHECK = STAGES = ("extract_claims", "check_claims")
TABLES = ("statements", "scores", "measures", "claims", "contexts_used", "failures")
# A claim takes two words at least, so that no text has more claims than half its words
WORDS_OF_A_CLAIM = 2
# Without a ground truth, only faithfulness and its parts are defined
READS = ("ground_truth", "claim_checks")
# Of a sample of which nothing is known: rates may be anything, and counts have no upper end
UNKNOWN: Mapping[str, tuple[float | None, float | None]] = {
    name: (None, None) if name in (rag_measures.CLAIMS, rag_measures.TRUTH_CLAIMS) else (0.0, 1.0)
    for name in rag_measures.names_of_measures()
}


def assume(settings: Settings) -> base.Assumptions:
    """As many claims as a text can have, each held against all texts; no list is asked again."""
    results = {EXTRACT: {"claims": different_texts(WORDS_OF_A_CLAIM)}, **_judged()}
    return base.Assumptions(settings, results, expected=_expected)


def _judged() -> dict[str, Mapping[str, Column]]:
    return {CHECK: {"relations": F.transform("targets", lambda _: F.lit("neutral"))}}


def _expected(figures: StageFigures) -> dict[str, Mapping[str, Column]]:
    """As many claims as the figures have of a text."""
    tokens = tokens_of("text")
    count = whole(value_of(figures[EXTRACT].things, tokens), "text")
    return {EXTRACT: {"claims": made_up(count, size_of_things(figures[EXTRACT], tokens), "text")}, **_judged()}


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Scores valid samples (columns of the table `samples`): the tables of `TABLES`.

    Ru et al. 2024; methods, section 16. A sample whose claims were lost is not checked; a relation that was lost leaves
    measures with bounds. What samples bring in `claim_checks` is not asked.
    """
    brought = _with_checks(samples)
    extracted = tools.ask(EXTRACT, _texts(brought), carry=("sample_id", "side"))
    incomplete = incomplete_samples(extracted)
    gathered = _gather(brought, extracted, incomplete)
    owners = tools.keep(gathered.mapInArrow(rag_measures.claim_owners, spark_schema(rag_measures.OWNERS)), "owners")
    judged = tools.keep(judge_lists(owners, tools, CHECK, settings.rag.claims_per_request), "judged")
    checked = _of_samples(owners, judged)
    concluded = tools.keep(_conclude(gathered, checked), "concluded")
    return _tables(samples, extracted, incomplete, checked, concluded)


def _with_checks(samples: DataFrame) -> DataFrame:
    """Return sample_id, response, contexts, and the columns of `READS`, null if the input lacks them."""
    optional = [
        F.col(name) if name in samples.columns else F.lit(None).cast(OPTIONAL_TYPES[name]).alias(name) for name in READS
    ]
    return samples.select("sample_id", "response", "contexts", *optional)


def _texts(brought: DataFrame) -> DataFrame:
    """sample_id, side, text: the texts whose claims are not given. A blank one states nothing and is not asked for."""
    given = {
        RESPONSE: F.col("claim_checks.response_claims"),
        TRUTH: F.coalesce("claim_checks.gt_answer_claims", "ground_truth.claims"),
    }
    texts = {RESPONSE: F.col("response"), TRUTH: F.col("ground_truth.text")}
    sides = [
        F.struct(F.lit(side).alias("side"), texts[side].alias("text"), given[side].isNull().alias("wanted"))
        for side in SIDES
    ]
    rows = brought.select("sample_id", F.inline(F.array(*sides)))
    return rows.where(F.col("wanted") & ~base.is_blank("text")).select("sample_id", "side", "text")


def _gather(brought: DataFrame, extracted: DataFrame, incomplete: DataFrame) -> DataFrame:
    """The samples whose claims are known, with those that were extracted: what `claim_owners` reads."""
    of_side = [
        F.any_value(F.when(F.col("side") == side, F.col("claims")), True).alias(f"{side}_claims") for side in SIDES
    ]
    claims = extracted.groupBy("sample_id").agg(*of_side)
    known = brought.join(incomplete.select("sample_id"), on="sample_id", how="left_anti")
    return known.join(claims, on="sample_id", how="left")


def _of_samples(owners: DataFrame, judged: DataFrame) -> DataFrame:
    """The columns of `JUDGED` with sample_id, side, the rank of the text, and the place of the claim."""
    places = owners.select("owner", "sample_id", "side", "ranks", F.size("ranks").alias("premises"))
    joined = judged.join(places, on="owner", how="inner")
    rank = F.get("ranks", F.col("source").cast("int"))
    return joined.withColumns({"rank": rank, "place": F.col("target") - F.col("premises")}).drop("ranks", "premises")


def _conclude(gathered: DataFrame, checked: DataFrame) -> DataFrame:
    """The columns of `CONCLUDED`, and waiting: whether some claim was never checked. A row a sample with its claims."""
    one = F.struct("side", "rank", "place", "relation")
    by_sample = checked.groupBy("sample_id").agg(
        F.collect_list(one).alias("judged"), F.max(is_unasked()).alias("waiting")
    )
    named = F.transform("contexts", lambda one: F.struct(one["id"].alias("id")))
    rows = gathered.withColumn("contexts", named).drop("response").join(by_sample, on="sample_id", how="left")
    concluded = rows.drop("waiting").mapInArrow(rag_measures.conclude_checks, spark_schema(rag_measures.CONCLUDED))
    return concluded.join(by_sample.select("sample_id", "waiting"), on="sample_id", how="left")


def _tables(
    samples: DataFrame, extracted: DataFrame, incomplete: DataFrame, checked: DataFrame, concluded: DataFrame
) -> base.Tables:
    judged = _with_status(samples, incomplete, concluded)
    known = judged.where(F.col("status").isin(*base.JUDGED))
    stated = known.select("sample_id", F.inline("claims"))
    return {
        "statements": _statement_rows(known),
        "scores": base.measured_scores(judged, NAME, rag_measures.F1, F.lit(0)),
        "measures": base.measure_rows(judged, NAME, UNKNOWN),
        "claims": claim_rows(NAME, stated.select("sample_id", "position", "text"), stated),
        "contexts_used": known.select("sample_id", F.lit(NAME).alias("metric"), F.inline("contexts")),
        "failures": failure_rows(NAME, EXTRACT, extracted).unionByName(failure_rows(NAME, CHECK, checked)),
    }


def _with_status(samples: DataFrame, incomplete: DataFrame, concluded: DataFrame) -> DataFrame:
    """sample_id, system, status, and the columns of `CONCLUDED`: a row a sample (docs/contract.md, "Scores")."""
    joined = (
        samples.select("sample_id", "system")
        .join(concluded, on="sample_id", how="left")
        .join(incomplete.withColumnRenamed("waiting", "unasked"), on="sample_id", how="left")
    )
    waiting = F.col("unasked") | F.col("waiting")
    status = base.status_of(lost=F.col("lost"), waiting=waiting, empty=F.col("empty"), partial=F.col("unjudged") > 0)
    return joined.withColumn("status", status)


def _statement_rows(known: DataFrame) -> DataFrame:
    """The table `statements`: the claims of the ground truth, with the contexts that state each."""
    texts = F.lit(None).cast("array<string>")
    return known.select("sample_id", F.inline("statements")).select(
        "sample_id",
        F.lit(NAME).alias("metric"),
        claim_id(NAME, "number").alias("statement_id"),
        "text",
        "covered",
        F.lit(None).cast("boolean").alias("in_basis"),
        "sources",
        texts.alias("members"),
        "relation",
    )


METRIC = base.Metric(
    name=NAME,
    stages=lambda _: STAGES,
    score=score,
    assume=assume,
    sections={NAME: RagSettings},
    settings=(NAME,),
    tables=TABLES,
    reads=READS,
    unknown=UNKNOWN,
    undefined_zero=rag_measures.PUBLISHED,
    view=RagView,
)
