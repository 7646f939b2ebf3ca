"""Judge the relations of pairs: all at once, in waves, or in lists of the hypotheses of a premise.

A classifier may judge pairs first. The pairs belong to owners: distinct sets of context atoms, and samples
(`jobs.metrics.nli.add_owners`). An audit counts the errors of a filter or a classifier, and corrects scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.graph.condensation import FIRST_CONTEXTS, OTHER_CONTEXTS, OTHER_RESPONSES, RESPONSE_ENDS, choose_by_wave
from untold.graph.distributed import Condensed
from untold.jobs.inference.stage.requests import OUTCOME, Lists, Pairs, Rows, has_failed, is_unasked
from untold.jobs.inference.store.store import is_transient
from untold.jobs.metrics.base import Bounds, Tools, contract_rows, measure_structs
from untold.jobs.metrics.panel import Scale, ask_judges
from untold.jobs.metrics.settings import NliSettings
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.run_tables import RunTables, connect_tables, quoted
from untold.jobs.settings.model import Settings
from untold.jobs.summary.score_counts import fetch_rows
from untold.udfs.facts.pairs import AUDIT, FILTERED, IMPLIED, MODEL, Choice, PairFilter, ask_again, ask_all
from untold.udfs.statistics.intervals import clopper_pearson_interval

# The value of `relations.judged_by` for a relation from a list
LIST = "list"
AskLists = Callable[[DataFrame | None, int], DataFrame]
"""Requests items in lists of at most a size: the given items, or all items for None. The result has a row per item.

Its columns are the columns that identify an item, listed (the size of its list), its label, error_type, and others.
"""


def ask_in_lists(ask: AskLists, size: int, label: str = "relation") -> DataFrame:
    """Return the labels of all items, a row per item.

    An item without a label is requested again in a list with the others, then alone, and so is each item of a list that
    failed for a lasting reason. Equal completions make equal requests, so a second attempt requests nothing twice.
    """
    first = ask(None, size)
    is_open = F.col(label).isNull() & F.col("error_type").isNull()
    second = ask(first.where(is_open), size)
    both = first.where(~is_open).unionByName(second)
    has_lasted = F.col("error_type").isNull() | (has_failed() & ~is_transient())
    is_alone = F.col(label).isNull() & (F.col("listed") > 1) & has_lasted
    third = ask(both.where(is_alone), 1)
    return both.where(~is_alone).unionByName(third)


@dataclass(frozen=True)
class NumberedList:
    """A stage that labels numbered texts in lists of at most `size`.

    Attributes:
        variables: by variable of the stage the field of an item.
        outputs: by column of the stage's output the column of the result. The first is the label.
    """

    stage: str
    size: int
    variables: Mapping[str, str]
    outputs: Mapping[str, str]

    def assumed(self, label: str | bool) -> dict[str, Column]:
        """Return the columns of `outputs` for a plan: the label for each item, and null in all other columns."""
        items = next(iter(self.variables))

        def each(value: Column) -> Column:
            return F.transform(items, lambda _: value)

        first, *others = self.outputs
        return {first: each(F.lit(label)), **dict.fromkeys(others, each(F.lit(None).cast("string")))}

    def ask(self, tools: Tools, rows: DataFrame, *keys: str, requests: Callable[..., Rows] = Rows) -> DataFrame:
        """Return `keys`, number, and the columns of `outputs` and `OUTCOME`: a row per listed item.

        rows: `keys`, listed array<struct<number, ...>>, and the other variables of the stage. `number` identifies an
        item of a row, and has any type. An item without a clear label is requested again (`ask_in_lists`), and finally
        has no label. requests: makes the first requests from rows and the carried columns.
        """

        def ask(wanted: DataFrame | None, size: int) -> DataFrame:
            if wanted is None:
                return self._ask(tools, rows, keys, size, requests)
            return self._ask(tools, self._again(tools, rows, wanted, keys), keys, size, Rows)

        return ask_in_lists(ask, self.size, next(iter(self.outputs.values()))).drop("listed")

    def judge(self, tools: Tools, settings: Settings, scale: Scale, rows: DataFrame, *keys: str) -> DataFrame:
        """Return the result of `ask` with the verdicts of the panel, if there is one (`ask_judges`)."""
        label = next(iter(self.outputs.values()))
        return ask_judges(lambda own: self.ask(own, rows, *keys), tools, settings, (*keys, "number"), label, scale)

    def _ask(
        self, tools: Tools, rows: DataFrame, keys: Sequence[str], size: int, requests: Callable[..., Rows]
    ) -> DataFrame:
        """Return the results, and `listed`: the size of the list of each."""
        starts = F.filter(F.sequence(F.lit(1), F.size("listed") + 1, F.lit(size)), lambda one: one <= F.size("listed"))
        lists = rows.withColumn("start", F.explode(starts)).withColumn(
            "listed", F.slice("listed", F.col("start"), size)
        )
        columns = {"numbers": "number", **self.variables}
        named = lists.withColumns({name: F.col(f"listed.{own}") for name, own in columns.items()})
        answered = tools.ask(self.stage, requests(named.drop("listed", "start"), (*keys, "numbers")))
        placed = answered.select(
            *keys,
            *self.outputs,
            *OUTCOME,
            F.size("numbers").alias("listed"),
            F.posexplode("numbers").alias("place", "number"),
        )
        found = [F.get(name, F.col("place")).alias(own) for name, own in self.outputs.items()]
        return placed.select(*keys, "number", *found, "listed", *OUTCOME)

    def _again(self, tools: Tools, rows: DataFrame, wanted: DataFrame, keys: Sequence[str]) -> DataFrame:
        """Return the rows with only the wanted items, and without the rows that have none."""
        by_key = wanted.groupBy(*keys).agg(F.collect_set("number").alias("wanted"))
        again = F.filter("listed", lambda one: F.array_contains("wanted", one["number"]))
        joined = rows.join(by_key, on=list(keys), how="inner")
        return tools.keep(joined.withColumn("listed", again).drop("wanted"), "labels-to-ask-again")


def gather_items(tools: Tools, rows: DataFrame, head: Sequence[str], text: Column, *number: str | Column) -> DataFrame:
    """Keep and return the columns of `head` and listed array<struct<text, number>> for `NumberedList`.

    The order of texts makes equal sets of texts equal requests. number: the columns that identify an item.
    """
    item = F.struct(text.alias("text"), F.struct(*number).alias("number"))
    lists = rows.groupBy(*head).agg(F.array_sort(F.collect_list(item)).alias("listed"))
    # Each attempt reads the lists
    return tools.keep(lists, "lists")


CLASSIFY, CLASSIFY_LISTS, ENTAIL = "classify_relation", "classify_relations", "classify_entailment"
# The columns of a judged pair. `told` is the relation of an audited pair by the filter or the classifier
JUDGED = ("owner", "source", "target", "judged_by", "request_id", "relation", "told", "error_type", "error")
PAIR = ["owner", "source", "target"]
CLASSIFIER, NEUTRAL = "classifier", "neutral"
EDGES = "array<struct<source: bigint, target: bigint>>"
_ALL = "all"
_NO_FILTER = PairFilter()


def stage_of(settings: NliSettings) -> str:
    """Return the stage that judges relations."""
    return CLASSIFY_LISTS if settings.judgement == "lists" else CLASSIFY


def stages_of(settings: NliSettings) -> tuple[str, ...]:
    """Return the stages of judging in order."""
    vectors = (EMBED,) if pair_filter_of(settings).needs_vectors else ()
    return (*vectors, *((ENTAIL,) if settings.classifies else ()), stage_of(settings))


def pair_filter_of(settings: NliSettings) -> PairFilter:
    """Return the filter of pairs with the audited share of its pairs."""
    return PairFilter(settings.filter, settings.filter_cosine, settings.audit_share)


def is_audited(settings: NliSettings) -> bool:
    """Return True if a filter or a classifier judges relations, so that a share of them is audited."""
    return bool(pair_filter_of(settings)) or settings.classifies


def judge_pairs(owners: DataFrame, tools: Tools, settings: NliSettings) -> DataFrame:
    """Return the columns of `JUDGED`: each pair of an owner once.

    relation is null if it is missing, `implied` for an implied pair, and neutral for a filtered pair. A certain
    relation comes from the classifier. The score is the same with `nli.skip_implied` (methods, section 2).
    """
    pair_filter = pair_filter_of(settings)
    vectors = _vectors_of(owners, tools) if pair_filter.needs_vectors else None
    if settings.skip_implied:
        return _judge_in_waves(owners, tools, settings, vectors)
    of_responses = _owners_of_responses(owners, _ALL).drop("contexts_owner")
    everything = _with_vectors(_owners_of_contexts(owners, _ALL).unionByName(of_responses), vectors)
    kept = tools.keep(everything, "owners-of-pairs")
    return _judge(kept, tools, settings, ask_all)


def _judge(owners: DataFrame, tools: Tools, settings: NliSettings, choose: Callable[..., Choice]) -> DataFrame:
    """Return the columns of `JUDGED` for the chosen pairs, by the classifier if there is one, and then by the model."""
    pair_filter = pair_filter_of(settings)
    if settings.classifies:
        return _judge_in_cascade(tools.ask(ENTAIL, Pairs(owners, choose, pair_filter)), owners, tools, settings)
    if settings.judgement == "lists":
        return judge_lists(owners, tools, CLASSIFY_LISTS, settings.list_size, pair_filter, choose)
    return _told(tools.ask(CLASSIFY, Pairs(owners, choose, pair_filter)))


def _judge_in_cascade(classified: DataFrame, owners: DataFrame, tools: Tools, settings: NliSettings) -> DataFrame:
    """Return the columns of `JUDGED`: the certain relations of the classifier, and the model's for the other pairs.

    The model also judges `nli.audit_share` of the filtered and classified pairs, and the pairs that the classifier
    could not judge.
    """
    teller = F.col("judged_by")
    # The request_id depends on the texts and the classifier, so a pair is drawn for all its owners or for none
    drawn = F.conv(F.substring("request_id", 1, 8), 16, 10).cast("long") < settings.audit_share * 2**32
    is_sure = F.col("error_type").isNull() & (F.col("certainty") >= (settings.classifier_threshold or 0.0))
    by = F.when((teller != MODEL) | ~is_sure, teller).when(drawn, AUDIT).otherwise(CLASSIFIER)
    told = F.when(teller == AUDIT, NEUTRAL).when(F.col("by") == AUDIT, F.col("relation"))
    by_classifier = _told(classified.withColumn("by", by), "by").withColumns({"judged_by": F.col("by"), "told": told})
    found = tools.keep(by_classifier.select(*JUDGED), "classified")
    goes_on = F.col("judged_by").isin(MODEL, AUDIT) & ~is_unasked()
    left = found.where(goes_on)
    again = _again(owners, left, tools)
    if settings.judgement == "lists":
        asked = judge_lists(again, tools, CLASSIFY_LISTS, settings.list_size, choose=ask_again)
    else:
        asked = _told(tools.ask(CLASSIFY, Pairs(again, ask_again)))
    by = F.when(F.col("by") == AUDIT, AUDIT).otherwise(F.col("judged_by"))
    why = left.select(*PAIR, F.col("judged_by").alias("by"), "told")
    joined = asked.drop("told").join(why, on=PAIR, how="inner").withColumn("judged_by", by)
    return found.where(~goes_on).unionByName(joined.select(*JUDGED))


def _told(judged: DataFrame, *more: str) -> DataFrame:
    """Return the columns of `JUDGED` and more, with the relations of implied and filtered pairs."""
    teller = F.col("judged_by")
    relation = F.when(teller == IMPLIED, IMPLIED).when(teller == FILTERED, NEUTRAL).otherwise(F.col("relation"))
    told = F.when(teller == AUDIT, NEUTRAL)
    return judged.withColumns({"relation": relation, "told": told}).select(*JUDGED, *more)


def _vectors_of(owners: DataFrame, tools: Tools) -> DataFrame:
    """Return text, vector: each text of the owners once. A missing vector is null."""
    texts = owners.select(F.explode("texts").alias("text")).distinct()
    found = tools.ask(EMBED, texts.withColumn("kind", F.lit("document")), carry=("text",))
    return found.select("text", "vector")


def _with_vectors(owners: DataFrame, vectors: DataFrame | None) -> DataFrame:
    """Return the owners with the column vectors, in the order of their texts."""
    if vectors is None:
        return owners
    places = owners.select("owner", F.posexplode("texts").alias("place", "text")).join(vectors, on="text", how="left")
    in_order = F.array_sort(F.collect_list(F.struct("place", "vector")))
    by_owner = places.groupBy("owner").agg(F.transform(in_order, lambda one: one["vector"]).alias("vectors"))
    return owners.join(by_owner, on="owner", how="inner")


def judge_lists(
    owners: DataFrame,
    tools: Tools,
    stage: str,
    size: int,
    pair_filter: PairFilter = _NO_FILTER,
    choose: Callable[..., Choice] = ask_all,
) -> DataFrame:
    """Return the columns of `JUDGED`, with the pairs in lists of the hypotheses of a premise (`ask_in_lists`).

    stage: a stage of such lists. owners: the columns that `generate_lists` reads. They are read several times.
    """

    def ask(pairs: DataFrame | None, size: int) -> DataFrame:
        if pairs is None:
            return _ask_lists(tools, stage, Lists(owners, choose, pair_filter, size=size))
        return _ask_lists(tools, stage, Lists(_again(owners, pairs, tools), ask_again, pair_filter, size=size))

    return ask_in_lists(ask, size).select(*JUDGED)


def _ask_lists(tools: Tools, stage: str, lists: Lists) -> DataFrame:
    """Return the columns of `JUDGED`, and listed, the number of hypotheses in the list."""
    found = tools.ask(stage, lists).withColumnRenamed("judged_by", "tellers")
    pairs = found.select("*", F.size("targets").alias("listed"), F.posexplode("targets").alias("place", "target"))
    # relations is null for a failed list
    of_pair = {"judged_by": F.get("tellers", F.col("place")), "relation": F.get("relations", F.col("place"))}
    told = _told(pairs.withColumns(of_pair), "listed")
    return told.withColumn("judged_by", F.when(F.col("judged_by") == MODEL, LIST).otherwise(F.col("judged_by")))


def _again(owners: DataFrame, pairs: DataFrame, tools: Tools) -> DataFrame:
    """Return the owners of the pairs, with the pairs as `again`."""
    wanted = _edges_by(pairs, "owner", "again")
    return tools.keep(owners.drop("again").join(wanted, on="owner", how="inner"), "owners-of-open-pairs")


def _judge_in_waves(owners: DataFrame, tools: Tools, settings: NliSettings, vectors: DataFrame | None) -> DataFrame:
    """Judge in three waves. Each wave skips the pairs that earlier waves imply (`untold.graph.condensation`)."""
    of_contexts = partial(_owners_of_contexts, owners)
    of_responses = partial(_owners_of_responses, owners)

    def ask(wave: DataFrame, number: int) -> DataFrame:
        kept = tools.keep(_with_vectors(wave, vectors), f"owners-of-wave-{number}")
        return _judge(kept, tools, settings, choose_by_wave)

    first = ask(of_contexts(FIRST_CONTEXTS), 1)
    rest = _with_edges(of_contexts(OTHER_CONTEXTS).withColumn("contexts_owner", F.col("owner")), first=first)
    ends = _with_edges(of_responses(RESPONSE_ENDS), first=first)
    second = ask(rest.unionByName(ends).drop("contexts_owner"), 2)
    # The third wave reads the edges between contexts and the edges of the sample
    both = first.unionByName(second)
    others = _with_edges(of_responses(OTHER_RESPONSES), first=first, known=both)
    return both.unionByName(ask(others.drop("contexts_owner"), 3))


def _with_edges(owners: DataFrame, first: DataFrame, known: DataFrame | None = None) -> DataFrame:
    """Return the owners with the entailments of their context atoms, and of `known` also their own."""
    is_edge = F.col("relation") == "entailment"
    edges = _edges_by(first.where(is_edge), "contexts_owner", "first")
    found = owners.drop("first").join(edges, on="contexts_owner", how="left")
    if known is None:
        return found
    between = _edges_by(known.where(is_edge), "contexts_owner", "between")
    own = _edges_by(known.where(is_edge), "owner", "own")
    empty = F.array().cast(EDGES)
    together = F.concat(F.coalesce("between", empty), F.coalesce("own", empty))
    joined = found.join(between, on="contexts_owner", how="left").join(own, on="owner", how="left")
    return joined.withColumn("known", together).drop("between", "own")


def _edges_by(pairs: DataFrame, owner: str, name: str) -> DataFrame:
    """Return `owner`, and the column `name` array<struct<source, target>>: the sorted pairs of each owner.

    The order makes the result independent of the partitions.
    """
    return pairs.groupBy(F.col("owner").alias(owner)).agg(
        F.array_sort(F.collect_list(F.struct("source", "target"))).alias(name)
    )


def _owners_of_contexts(owners: DataFrame, part: str) -> DataFrame:
    """Return one owner per distinct set of context atoms, for `generate_pairs`.

    The samples of a set have equal texts. `first` and `known` are null before the first wave
    (`untold.graph.condensation.choose_by_wave`).
    """
    texts = F.slice("texts", F.lit(1), F.col("contexts").cast("int"))
    return (
        owners.groupBy("contexts_owner", "contexts", "between_contexts")
        .agg(F.any_value(texts).alias("texts"))
        .select(
            F.col("contexts_owner").alias("owner"),
            F.lit(part).alias("part"),
            "texts",
            "contexts",
            "between_contexts",
            *(F.lit(0).cast("long").alias(name) for name in ("to_contexts", "to_responses")),
            *(F.lit(None).cast(EDGES).alias(name) for name in ("first", "known")),
        )
    )


def _owners_of_responses(owners: DataFrame, part: str) -> DataFrame:
    """Return one owner per sample with an atom of the response.

    The columns are those of `_owners_of_contexts`, and contexts_owner, the owner of its context atoms.
    """
    return owners.where(F.col("to_contexts") > 0).select(
        F.col("response_owner").alias("owner"),
        F.lit(part).alias("part"),
        "texts",
        "contexts",
        F.lit(0).cast("long").alias("between_contexts"),
        "to_contexts",
        "to_responses",
        *(F.lit(None).cast(EDGES).alias(name) for name in ("first", "known")),
        "contexts_owner",
    )


AUDITED, SCORE_AUDITED = "audited", "score_audited"
ENTAILED = "entailment"
MISSED = {relation: f"missed_{relation}" for relation in (ENTAILED, "contradiction", "neutral")}
MISS_RATE = "miss_rate"
MEASURES: Bounds = dict.fromkeys((SCORE_AUDITED, AUDITED, *MISSED.values()), (None, None))


def audit_measures(metric: str, scores: DataFrame, counts: DataFrame, corrections: DataFrame) -> DataFrame:
    """Return rows of the table `measures`, a row per sample and measure of `MEASURES`.

    scores: the table `scores` of the metric. counts: from `count_audited`. corrections: from `correct`.
    """
    joined = scores.join(counts, on="sample_id", how="left").join(corrections, on="sample_id", how="left")
    values = {
        SCORE_AUDITED: F.col("score") + F.coalesce("correction", F.lit(0.0)),
        **{name: F.coalesce(name, F.lit(0)) for name in MEASURES if name != SCORE_AUDITED},
    }
    rows = measure_structs({name: (value, None, None) for name, value in values.items()})
    return contract_rows("measures", metric, joined.select("sample_id", F.inline(rows)))


def count_audited(judged: DataFrame, owners: DataFrame) -> DataFrame:
    """Return sample_id, audited, and the columns of `MISSED`: the number of pairs with a wrong relation.

    A pair of texts counts for the first sample that has it, so sums over samples count each pair once.

    judged: owner, source, target, judged_by, relation, told. owners: sample_id, texts, contexts_owner, response_owner.
    """
    known = judged.where((F.col("judged_by") == AUDIT) & F.col("relation").isNotNull())
    of_samples = owners.select(
        F.explode(F.array("contexts_owner", "response_owner")).alias("owner"), "sample_id", "texts"
    )
    pair = [F.get("texts", F.col(side).cast("int")).alias(side) for side in ("source", "target")]
    pairs = known.join(of_samples, on="owner", how="inner").select("sample_id", "relation", "told", *pair)
    different = pairs.groupBy("source", "target").agg(
        *(F.min(name).alias(name) for name in ("sample_id", "relation", "told"))
    )
    is_missed = F.col("relation") != F.col("told")
    missed = [F.count_if(is_missed & (F.col("relation") == name)).alias(measure) for name, measure in MISSED.items()]
    return different.groupBy("sample_id").agg(F.count(F.lit(1)).alias(AUDITED), *missed)


def correct(
    relations: DataFrame, graphs: tuple[DataFrame, DataFrame], condensed: Condensed, tools: Tools, share: float
) -> DataFrame:
    """Return sample_id, correction: the estimated effect of unaudited pairs on a score (Horvitz and Thompson).

    A wrong pair changes the score by the difference between its graph and the graph with the relation of the filter or
    classifier. Each audited pair represents 1 / share pairs, and 1 / share - 1 of them were not audited (methods,
    section 2).

    relations: sample_id, source, target, judged_by, relation, told. graphs: nodes and edges. condensed: their result.
    """
    is_told = F.col("told") == ENTAILED
    wrong = (F.col("judged_by") == AUDIT) & ((F.col("relation") == ENTAILED) != is_told)
    found = relations.where(wrong).select(
        F.col("sample_id").alias("graph"),
        F.concat_ws(":", "sample_id", "source", "target").alias("as_told"),
        F.col("source").alias("missed_source"),
        F.col("target").alias("missed_target"),
        is_told.alias("is_told"),
    )
    missed = tools.keep(found, "missed-pairs")
    is_missed = (F.col("source") == F.col("missed_source")) & (F.col("target") == F.col("missed_target"))
    nodes, edges = (
        _of_missed(frame, missed, kept) for frame, kept in zip(graphs, (F.lit(True), ~is_missed), strict=True)
    )
    ends = F.col("missed_source").alias("source"), F.col("missed_target").alias("target")
    told = missed.where("is_told").select(F.col("as_told").alias("graph"), *ends, F.lit(True).alias("judged"))
    score = F.col("covered") / (F.col("covered") + F.col("uncovered"))
    condensed_before_audit = tools.condense(nodes, edges.unionByName(told))
    before = condensed_before_audit.counts.select(F.col("graph").alias("as_told"), score.alias("before"))
    scores = condensed.counts.select("graph", score.alias("score"))
    worth = missed.join(scores, on="graph", how="inner").join(before, on="as_told", how="inner")
    change = F.sum(F.col("score") - F.col("before")) * (1 / share - 1 if share else 0.0)
    return worth.groupBy(F.col("graph").alias("sample_id")).agg(change.alias("correction"))


def _of_missed(frame: DataFrame, missed: DataFrame, kept: Column) -> DataFrame:
    """Return the rows of graphs once per wrong pair, with the name of the graph before the audit."""
    joined = frame.join(missed, on="graph", how="inner").where(kept)
    return joined.select(*(F.col("as_told" if name == "graph" else name).alias(name) for name in frame.columns))


def pool_audits(run: RunTables, metric: str) -> list[dict[str, Any]]:
    """Return rows of `measures_summary` of a run: the miss rate of the filter and the classifier over all samples.

    There is a row for all pairs and one per relation, and none without an audit. `defined` counts audited pairs. The
    interval is Clopper and Pearson's.
    """
    database = connect_tables([run], ["measures", "scores"])
    of_metric = f"where metric = {quoted(metric)}"
    totals = fetch_rows(database, f"select measure, sum(value) as total from measures {of_metric} group by measure")
    sums = {row["measure"]: int(row["total"] or 0) for row in totals}
    if AUDITED not in sums:
        return []
    missed = {relation: sums[measure] for relation, measure in MISSED.items()}
    (samples,) = fetch_rows(database, f"select count(*) as count from scores {of_metric}")
    rates = {MISS_RATE: sum(missed.values()), **{f"{MISS_RATE}_{name}": count for name, count in missed.items()}}
    return [_rate_row(metric, name, count, sums[AUDITED], samples["count"]) for name, count in rates.items()]


def _rate_row(metric: str, measure: str, missed: int, audited: int, samples: int) -> dict[str, Any]:
    interval = clopper_pearson_interval(missed, audited)
    key = {"metric": metric, "measure": measure, "level": "overall", "system": None}
    return {**key, "n": samples, "defined": audited, **interval.columns("mean")}
