"""RAGChecker (Ru et al. 2024; docs/methods.md, section 16): measures of the retriever and of the generator.

The claims of a response and of its ground truth are checked against each other's text and against each context.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics import base
from untold.jobs.metrics.grounded_claims import claim_rows, covered_statements
from untold.jobs.metrics.judging import PAIR, judge_lists
from untold.jobs.metrics.panel import RELATIONS, ask_judges, vote_rows
from untold.jobs.metrics.settings import RagSettings
from untold.jobs.metrics.summaries import Extraction, assume_texts
from untold.jobs.metrics.views import RagView
from untold.jobs.settings.model import Settings
from untold.udfs.facts import rag_measures
from untold.udfs.samples.items import RESPONSE, SIDES, TRUTH

NAME = "rag"
EXTRACT, CHECK = STAGES = ("extract_claims", "check_claims")
TABLES = ("statements", "scores", "measures", "claims", "contexts_used", "failures")
# Without a ground truth, only faithfulness and its parts are defined
READS = ("ground_truth", "claim_checks")
UNKNOWN = base.bounds_of(rag_measures.names_of_measures(), rag_measures.CLAIMS, rag_measures.TRUTH_CLAIMS)


def assume(settings: Settings) -> base.Assumptions:
    """Assume the maximum number of claims, each checked against all texts, and complete lists."""
    judged = {CHECK: {"relations": F.transform("targets", lambda _: F.lit("neutral"))}}
    return assume_texts(settings, {EXTRACT: Extraction("claims")}, judged)


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Return the tables `TABLES` of valid samples (columns of the table `samples`).

    Ru et al. 2024; methods, section 16. A sample without its claims is not checked. A missing relation leaves measures
    with bounds. The given `claim_checks` of samples need no request.
    """
    calls = base.StageCalls(NAME, tools)
    brought = samples.select("sample_id", "response", "contexts", *base.optional_columns(samples, READS))
    extracted = calls.ask(EXTRACT, _texts(brought), carry=("sample_id", "side"))
    incomplete = calls.incomplete()
    gathered = _gather(calls.complete(brought), extracted)
    owners = tools.keep(base.map_rows(gathered, rag_measures.claim_owners), "owners")
    ask = partial(judge_lists, owners, stage=CHECK, size=settings.rag.claims_per_request)
    related = ask_judges(lambda own: ask(tools=own), tools, settings, PAIR, "relation", RELATIONS)
    checked = calls.record(CHECK, _of_samples(owners, tools.keep(related, "judged")))
    judged = base.with_status(samples, tools.keep(_conclude(gathered, checked), "concluded"), incomplete)
    known = judged.where(base.is_judged())
    stated = known.select("sample_id", F.inline("claims"))
    return {
        "statements": covered_statements(known, NAME),
        "scores": base.measured_scores(judged, NAME, rag_measures.F1, F.lit(0)),
        "measures": base.measure_rows(judged, NAME, UNKNOWN),
        "claims": claim_rows(NAME, stated.select("sample_id", "position", "text"), stated),
        "contexts_used": base.contract_rows("contexts_used", NAME, known.select("sample_id", F.inline("contexts"))),
        "failures": calls.failures(),
        **vote_rows(NAME, CHECK, checked, "side", "rank", F.col("place") + 1),
    }


def _texts(brought: DataFrame) -> DataFrame:
    """Return sample_id, side, text: the texts without given claims. A blank text has no claims and no request."""
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


def _gather(known: DataFrame, extracted: DataFrame) -> DataFrame:
    """Return the samples with their extracted claims, as `claim_owners` reads them."""
    of_side = [
        F.any_value(F.when(F.col("side") == side, F.col("claims")), True).alias(f"{side}_claims") for side in SIDES
    ]
    claims = extracted.groupBy("sample_id").agg(*of_side)
    return known.join(claims, on="sample_id", how="left")


def _of_samples(owners: DataFrame, judged: DataFrame) -> DataFrame:
    """Return the columns of `JUDGED` with sample_id, side, the rank of the text, and the place of the claim."""
    places = owners.select("owner", "sample_id", "side", "ranks", F.size("ranks").alias("premises"))
    joined = judged.join(places, on="owner", how="inner")
    rank = F.get("ranks", F.col("source").cast("int"))
    return joined.withColumns({"rank": rank, "place": F.col("target") - F.col("premises")}).drop("ranks", "premises")


def _conclude(gathered: DataFrame, checked: DataFrame) -> DataFrame:
    """Return the columns of `CONCLUDED`, and waiting: one row per sample with claims."""
    relations = base.collect(checked, "judged", "side", "rank", "place", "relation")
    named = F.transform("contexts", lambda one: F.struct(one["id"].alias("id")))
    rows = gathered.withColumn("contexts", named).drop("response").join(relations, on="sample_id", how="left")
    return base.conclude(rows, rag_measures.conclude_checks)


METRIC = base.Metric(
    name=NAME,
    stages=lambda _: STAGES,
    score=score,
    assume=assume,
    sections={NAME: RagSettings},
    judged=lambda _: (CHECK,),
    settings=(NAME,),
    tables=TABLES,
    reads=READS,
    unknown=UNKNOWN,
    supported_share=rag_measures.PRECISION,
    reference_claims=rag_measures.TRUTH_CLAIMS,
    undefined_zero=rag_measures.PUBLISHED,
    view=RagView,
)
