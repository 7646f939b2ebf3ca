"""End-to-end comprehensiveness (Dejl et al. 2025; docs/methods.md, section 4): one judgement per sample, no graph."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import has_failed, is_unasked
from untold.jobs.metrics import base, summaries
from untold.jobs.metrics.graphs import MEASURES, SIDES, conflict_measures, conflict_rows
from untold.jobs.metrics.grounded_claims import claim_id
from untold.jobs.metrics.judging import NumberedList
from untold.jobs.metrics.panel import COVERED, vote_rows
from untold.jobs.metrics.settings import E2eSettings
from untold.jobs.settings.model import Settings, SettingsError
from untold.udfs.facts.importance_measures import Weighting
from untold.udfs.facts.nodes import find_sides

NAME = "e2e"
STAGE = "evaluate_coverage"
LIST, COVER = "list_conflicts", "cover_sides"
# The statements that a judge of a panel labels in one request
LISTED = 20
_COVERING = NumberedList(COVER, LISTED, {"statements": "text"}, {"covered": "covered"})


def stages(settings: Settings) -> tuple[str, ...]:
    """Return the stages in order."""
    more = (LIST, COVER) if settings.e2e.conflicts else (COVER,) if settings.judges else ()
    return summaries.stages_with_contexts(settings, STAGE, *more)


def judged_stages(settings: Settings) -> tuple[str, ...]:
    """Return the stage of a panel's verdicts. Raises SettingsError for conflicts, which the run's model judges."""
    if settings.e2e.conflicts:
        raise SettingsError("judges: a panel cannot judge the conflicts of e2e. Remove judges, or e2e.conflicts")
    return (COVER,)


def assume(settings: Settings) -> base.Assumptions:
    """Assume a judgement without statements, or one statement for a panel, and a conflict with two other sides."""
    numbers = F.array(F.lit(1))
    side = {name: F.struct(F.lit(name).alias("text"), numbers.alias("sources")) for name in SIDES}
    conflict = F.struct(*(value.alias(name) for name, value in side.items()))
    statement = F.struct(F.col("query").alias("text"), F.lit(False).alias("covered"), numbers.alias("sources"))
    judgement = {
        STAGE: {"statements": F.array(*([statement] if settings.judges else [])), "dropped": F.lit(0)},
        LIST: {"conflicts": F.array(conflict), "dropped": F.lit(0)},
        COVER: _COVERING.assumed(label=False),
    }
    return summaries.assume_texts(settings, {}, judgement, {COVER})


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Return the tables of valid samples (columns of the table `samples`). Dejl et al. 2025; methods, section 4.

    A sample is judged in one request after its contexts are summarised. A sample with a failed summary has no request,
    because the statements would not come from all its contexts.
    """
    calls = base.StageCalls(NAME, tools)
    prepared = summaries.gather_contexts(calls.record(summaries.STAGE, tools.contexts()))
    judged = calls.ask(STAGE, rows_to_judge(samples, prepared), carry=("sample_id", "context_ids"))
    statements = read_statements(judged)
    votes: dict[str, DataFrame] = {}
    if settings.judges:
        statements, verdicts = _judge_statements(samples, statements, tools, settings)
        votes = vote_rows(NAME, COVER, calls.record(COVER, verdicts), "number")
    tables = {"statements": statements.drop("waiting"), "scores": _score_samples(samples, prepared, judged, statements)}
    if settings.e2e.conflicts:
        tables |= _find_conflicts(samples, prepared, judged, tables["scores"], calls)
    return {**tables, **votes, "failures": calls.failures()}


def _judge_statements(
    samples: DataFrame, statements: DataFrame, tools: base.Tools, settings: Settings
) -> tuple[DataFrame, DataFrame]:
    """Return the statements with the verdicts of a panel, and the verdicts: sample_id, number, covered and votes.

    The verdicts of the run's model do not count. `covered` is null if the votes do not decide, and waiting is true if a
    vote was not requested. A blank response covers no statement without a request.
    """
    number = F.element_at(F.split("statement_id", ":"), -1).cast("int").alias("number")
    listed = F.array_sort(F.collect_list(F.struct(number, "text"))).alias("listed")
    stated = samples.where(~base.is_blank("response")).select("sample_id", "response")
    rows = stated.join(statements.groupBy("sample_id").agg(listed), on="sample_id", how="inner")
    listing = tools.keep(rows, "listed-statements")
    verdicts = _COVERING.judge(tools, settings, COVERED, listing, "sample_id")
    found = verdicts.select(
        claim_id(NAME, "number").alias("statement_id"),
        F.struct("covered", is_unasked().alias("waiting")).alias("found"),
    )
    joined = statements.join(found, on="statement_id", how="left")
    covered = F.when(F.col("found").isNull(), F.lit(False)).otherwise(F.col("found.covered"))
    judged = joined.withColumns({"covered": covered, "waiting": F.col("found.waiting")}).drop("found")
    return tools.keep(judged, "statements-of-panel"), verdicts


def _find_conflicts(
    samples: DataFrame, prepared: DataFrame, judged: DataFrame, scores: DataFrame, calls: base.StageCalls
) -> dict[str, DataFrame]:
    """Return the tables conflicts and measures, and scores that count dropped pairs.

    Conflicts are listed once for all responses to a query. The coverage of a statement counts for an equal side, and
    the other sides share one request. A blank response covers no side without a request.
    """
    texts = F.col("kept.summary").alias("contexts"), F.col("kept.context_id").alias("context_ids")
    several = prepared.where(summaries.is_ready() & (F.size("kept") > 1)).select("sample_id", *texts)
    queries = samples.select("sample_id", "query").join(several, on="sample_id", how="inner")
    listed = calls.ask(LIST, queries, carry=("sample_id", "context_ids"))
    known = judged.where(F.col("error_type").isNull()).select("sample_id", "statements")
    both = listed.where(F.col("error_type").isNull()).join(known, on="sample_id", how="inner")
    columns = ("sample_id", "context_ids", "conflicts", "statements")
    sides = calls.tools.keep(base.map_rows(both.select(*columns), find_sides), "sides")
    left = sides.where(F.col("place").isNull()).groupBy("sample_id").agg(F.collect_set("text").alias("all"))
    statements = F.array_sort("all").alias("statements")
    responses = samples.select("sample_id", "response", base.is_blank("response").alias("blank"))
    told = left.join(responses, on="sample_id", how="inner").where(~F.col("blank"))
    to_cover = told.select("sample_id", statements.alias("asked"), "response", statements)
    covered = calls.ask(COVER, to_cover, carry=("sample_id", "asked"))
    answered = covered.where(F.col("error_type").isNull())
    pairs = answered.select("sample_id", F.inline(F.arrays_zip("asked", "covered")))
    found = pairs.withColumnsRenamed({"asked": "text", "covered": "told"})
    answers = sides.join(found, on=["sample_id", "text"], how="left").join(responses, on="sample_id", how="left")
    known_id = F.when(F.col("place").isNotNull(), claim_id(NAME, "place"))
    is_covered = F.coalesce("covered", "told", F.when(F.col("blank"), F.lit(False)))
    stated = answers.withColumns({"statement_id": known_id, "covered": is_covered})
    firsts = sides.where(F.col("statement") % 2 == 0).select("sample_id", F.col("statement").alias("first"))
    conflicts = conflict_rows(NAME, firsts.withColumn("second", F.col("first") + 1), stated)
    return {
        "conflicts": conflicts,
        "measures": conflict_measures(NAME, _known_of_conflicts(scores, listed, covered), conflicts),
        "scores": _with_dropped_pairs(scores, listed),
    }


def _with_dropped_pairs(scores: DataFrame, listed: DataFrame) -> DataFrame:
    """Return the table `scores`, with `dropped` including the pairs with a side without a context."""
    pairs = listed.select("sample_id", F.col("dropped").alias("pairs"))
    joined = scores.join(pairs, on="sample_id", how="left")
    return joined.withColumn("dropped", F.col("dropped") + F.coalesce("pairs", F.lit(0))).drop("pairs")


def _known_of_conflicts(scores: DataFrame, listed: DataFrame, covered: DataFrame) -> DataFrame:
    """Return sample_id, status: failed without the list of conflicts, and partial without the coverage of a side."""
    lost = listed.select("sample_id", F.col("error_type").isNotNull().alias("unlisted"))
    left = covered.select("sample_id", F.col("error_type").isNotNull().alias("uncovered"))
    rows = scores.select("sample_id", "status").join(lost, on="sample_id", how="left")
    known = F.when(F.col("unlisted"), "failed").when(F.col("uncovered"), "partial").otherwise(F.col("status"))
    return rows.join(left, on="sample_id", how="left").select("sample_id", known.alias("status"))


def rows_to_judge(samples: DataFrame, prepared: DataFrame) -> DataFrame:
    """Return sample_id, context_ids, query, contexts list of texts, response: the samples with all summaries."""
    return (
        samples.select("sample_id", "query", "response")
        .join(prepared.where(summaries.is_ready()), on="sample_id", how="inner")
        .select(
            "sample_id",
            F.col("kept.context_id").alias("context_ids"),
            "query",
            F.col("kept.summary").alias("contexts"),
            "response",
        )
    )


def read_statements(judged: DataFrame) -> DataFrame:
    """Return the table `statements`, with the ids of contexts instead of their numbers in the prompt.

    judged: sample_id, context_ids array<string>, statements array<struct<text, covered, sources array<int>>>, the
    sources counted from 1 as the prompt numbers the contexts. Ids read `<sample_id>:e2e:<n>`, n from 1 in the order of
    the lists; in_basis and members are null, since there is no graph (docs/contract.md, "Tables").
    """
    exploded = judged.select("sample_id", "context_ids", F.posexplode("statements").alias("position", "statement"))
    rows = exploded.select(
        "sample_id", "context_ids", "position", "statement.text", "statement.covered", "statement.sources"
    )
    sources = F.transform("sources", lambda number: F.get("context_ids", number - 1))
    return base.contract_rows(
        "statements", NAME, rows, statement_id=claim_id(NAME, F.col("position") + 1), sources=sources
    )


def _score_samples(samples: DataFrame, prepared: DataFrame, judged: DataFrame, statements: DataFrame) -> DataFrame:
    """Return the table `scores`: one row per sample.

    A sample without contexts has no row in `prepared`, a sample without a request has none in `judged`, and a sample
    with empty lists has none in `counts`. Without a panel, low, high and unjudged are null, because a single judgement
    has no parts. statements: also with the column waiting of a panel.
    """
    has_panel = "waiting" in statements.columns
    counts = statements.groupBy("sample_id").agg(
        F.count_if("covered").alias("covered"),
        F.count_if(~F.col("covered")).alias("uncovered"),
        F.count_if(F.col("covered").isNull()).alias("unjudged"),
        F.max("waiting" if has_panel else F.lit(False)).alias("waiting"),
    )
    flags = has_failed().alias("lost"), is_unasked().alias("waiting")
    total = F.coalesce(F.col("covered") + F.col("uncovered") + F.col("unjudged"), F.lit(0))
    joined = base.with_status(
        samples,
        prepared.select("sample_id", "lost", "waiting"),
        judged.select("sample_id", "dropped", *flags),
        counts,
        empty=total == 0,
    )
    nothing = F.lit(None).cast("double")
    low, high = F.col("covered").cast("double"), (F.col("covered") + F.col("unjudged")).cast("double")
    if has_panel:
        ends = {"low": F.try_divide(low, total), "high": F.try_divide(high, total)}
    else:
        ends = dict.fromkeys(("unjudged", "low", "high"), nothing)
    return joined.withColumns(ends).select(*base.score_columns(NAME, F.col("dropped")))


def unknown_bounds(settings: Settings) -> base.Bounds:
    """Return the measures of conflicts, if they are listed."""
    return MEASURES if settings.e2e.conflicts else {}


METRIC = base.Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: E2eSettings},
    tables=("statements", "conflicts", "scores", "measures", "failures"),
    judged=judged_stages,
    settings=("summarise_contexts", NAME),
    unknown=unknown_bounds,
    weighting=lambda settings: Weighting(settings.sources.weights),
)
