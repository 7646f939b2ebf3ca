"""LongRecall (Ardestani, Kamalloo, Rafiei; docs/methods.md, section 13): the share of references a response entails.

A reference is compared with the nearest facts of the response: first by words, and then by vectors if none of these
facts entails it. A plan assumes the maximum number of facts, and that no reference is covered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import Rows, has_failed, is_unasked
from untold.jobs.metrics import base
from untold.jobs.metrics.grounded_claims import claim_id, covered_statements
from untold.jobs.metrics.reference_facts import without_unwanted
from untold.jobs.metrics.settings import LongrecallSettings
from untold.jobs.metrics.summaries import MARK, Extraction, assume_texts, whole
from untold.jobs.metrics.views import ReferenceView
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.retrieval.sources import assumed_results
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.recall import concluding, sample_facts
from untold.udfs.recall.candidates import Thresholds
from untold.udfs.recall.concluding import GENERATED, HOLISTIC, RECALL, conclude_samples
from untold.udfs.retrieval.local_models import MINILM

NAME = "longrecall"
TABLES = ("statements", "scores", "measures", "claims", "candidates", "failures")


def unknown_bounds(settings: Settings) -> base.Bounds:
    """Return the bounds of a sample without results. Counts have no upper bound."""
    return base.bounds_of((RECALL, *settings.longrecall.baselines), concluding.REFERENCES, GENERATED)


def _claim_rows(prepared: DataFrame) -> DataFrame:
    """Return the table `claims`: the generated facts, which have no verdict."""
    rows = prepared.select("sample_id", F.inline("generated"))
    return base.contract_rows("claims", NAME, rows, claim_id=claim_id(NAME), evidence=F.array())


def _candidate_rows(known: DataFrame) -> DataFrame:
    """Return the table `candidates`: each pair that was judged, with `chosen`."""
    rows = known.select("sample_id", F.inline("candidates"))
    return base.contract_rows("candidates", NAME, rows, statement_id=claim_id(NAME, "number"), claim_id=claim_id(NAME))


EXTRACT, RESOLVE, ONE, MANY, WHOLE = (
    *("extract_claims", "resolve_coreference", "match_one", "match_many", "match_holistic"),
)
BY_WORDS, BY_VECTORS = "by_words", "by_vectors"
# The shares of the 399 references of K-QA with one candidate or several, by words and then by vectors of the embedded
# model. The responses were split into sentences
SHARES = {BY_WORDS: {ONE: 32 / 399, MANY: 3 / 399}, BY_VECTORS: {ONE: 53 / 399, MANY: 293 / 399}}
Sizes = Mapping[tuple[str, str], Callable[[DataFrame, tuple[str, ...]], Rows]]
"""Functions from rows and carried columns to requests, by step and stage.

The number of requests depends on missing completions, so the functions set `Rows.bound` and `Rows.expected`.
"""


def assume(settings: Settings) -> base.Assumptions:
    """Assume the maximum number of facts, and that all references are open after each step.

    No reference is covered, so each needs both steps. Resolved facts have new texts.
    """
    judged = {
        EMBED: assumed_results()[EMBED],
        RESOLVE: {"facts": F.transform("facts", lambda text: F.concat(text, F.lit(MARK)))},
        ONE: {"matched": F.lit(False)},
        MANY: {"candidates": F.array().cast("array<int>")},
        WHOLE: {"candidates": F.transform("references", lambda _: F.array().cast("array<int>"))},
    }
    return assume_texts(settings, {EXTRACT: Extraction("claims")}, judged)


def sizes_of(facts: DataFrame, samples: DataFrame, top_k: int) -> Sizes:
    """Return the sizes from the facts of each sample (columns of `untold.udfs.recall.sample_facts.CUT`) and its query.

    In each step, a reference needs at most one request, with one candidate or with several.
    """
    sides = [F.col(f"facts.{name}") for name in (sample_facts.RESPONSE, sample_facts.REFERENCES)]
    stated, references = (F.greatest(F.coalesce(F.size(side), F.lit(0)), F.lit(0)) for side in sides)
    longest, of_reference = (F.coalesce(F.array_max(_bytes(side)), F.lit(0)) for side in sides)
    totals = [F.aggregate(_bytes(side), F.lit(0), lambda sum_, one: sum_ + one) for side in sides]
    shown = {
        ONE: (stated >= 1, of_reference + longest),
        MANY: ((stated >= 2) & F.lit(top_k >= 2), of_reference + longest * F.least(stated, F.lit(top_k))),
    }
    found = {
        (step, stage): _sizes(facts, *shown[stage], references, share)
        for step, shares in SHARES.items()
        for stage, share in shares.items()
    }
    both = (references > 0) & (stated > 0)
    with_query = facts.join(samples.select("sample_id", "query"), on="sample_id", how="inner")
    found[BY_VECTORS, EMBED] = _sizes(facts, both, F.greatest(longest, of_reference), references + stated)
    found[HOLISTIC, WHOLE] = _sizes(with_query, both, F.octet_length("query") + totals[0] + totals[1], F.lit(1))
    return found


def _bytes(facts: Column) -> Column:
    """Return the lengths of facts with the text between their parts, in bytes."""

    def length(fact: Column) -> Column:
        before = (
            F.coalesce(F.octet_length(F.nullif(fact[part], F.lit(""))) + 2, F.lit(0)) for part in ("under", "anchor")
        )
        return sum(before, F.octet_length(fact["evidence"]))

    return F.transform(facts, length)


def _sizes(
    facts: DataFrame, possible: Column, size: Column, requests: Column, share: float = 1.0
) -> Callable[[DataFrame, tuple[str, ...]], Rows]:
    """Return a function that makes the requests of `Sizes`.

    A sample has at most `requests` of this size, their share on average, and none unless they are `possible`.
    """
    most = F.when(possible, requests).otherwise(F.lit(0))
    usual = whole(most * share, F.col("sample_id")) if share < 1 else most
    bound, expected = (facts.select(number.alias("requests"), size.alias("bytes")) for number in (most, usual))
    return partial(Rows, bound=bound, expected=expected)


# The published cosine, and the cosine of the embedded model. Of the 153 entailed facts of K-QA, cut into sentences, 141
# have candidates with a cosine of 0.6, and 151 with 0.5
PUBLISHED_COSINE, MINILM_COSINE = 0.6, 0.5
_UNRESOLVED = "array<struct<side: string, facts: array<string>>>"
_OUTCOME = ("chosen", "lost", "waiting")


def stages(settings: Settings) -> tuple[str, ...]:
    """Return the stages in order. Rules need no extraction."""
    given = settings.longrecall
    extract = (EXTRACT,) if given.segmentation in ("auto", "atomic") else ()
    resolve = (RESOLVE,) if given.resolve_coreference else ()
    return (*extract, *resolve, ONE, MANY, EMBED, *((WHOLE,) if HOLISTIC in given.baselines else ()))


def options_of(settings: Settings) -> sample_facts.Options:
    """Return the options of the rules."""
    given, embeddings = settings.longrecall, settings.embeddings
    embedded = embeddings.base_url is None and embeddings.model == MINILM
    cosine = MINILM_COSINE if embedded else PUBLISHED_COSINE
    return sample_facts.Options(
        given.segmentation,
        given.anchor_words,
        given.max_facts,
        given.duplicate_similarity,
        cosine if given.cosine is None else given.cosine,
        Thresholds(given.token_similarity, given.jaccard, given.lcs, given.top_k),
    )


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Return the tables `TABLES` of valid samples (columns of the table `samples`). Methods, section 13.

    A sample without its facts is not judged. A missing judgement leaves a score with bounds. All facts of a sample meet
    in one task, and only candidates leave it.
    """
    options, calls, samples = options_of(settings), base.StageCalls(NAME, tools), without_unwanted(samples)
    facts = _facts(samples, calls, options, stages(settings))
    incomplete = [calls.incomplete()] if calls.results else []
    sizes = sizes_of(facts, samples, settings.longrecall.top_k)
    prepared = tools.keep(base.map_rows(calls.complete(facts), concluding.prepare_samples, options), "prepared")
    shown = tools.keep(base.map_rows(prepared, concluding.shown_by_words), "shown-by-words")
    by_words = _match(shown, calls, sizes, BY_WORDS)
    matched = tools.keep(_join_lists(prepared, by_words, "outcomes", "number", *_OUTCOME), "judged-by-words")
    near = tools.keep(_near(matched, calls, options, sizes), "shown-by-vectors")
    by_vectors = _match(near, calls, sizes, BY_VECTORS)
    gathered = _gather(matched, near, by_vectors)
    if WHOLE in stages(settings):
        whole = _holistic(samples, prepared, calls, sizes)
        gathered = gathered.join(whole, on="sample_id", how="left")
    else:
        gathered = gathered.withColumn("holistic", F.lit(None).cast("array<array<int>>"))
    baselines = settings.longrecall.baselines
    concluded = tools.keep(base.map_rows(gathered, conclude_samples, baselines=baselines), "concluded")
    of_sample = concluded.withColumnRenamed("unasked", "waiting"), prepared.select("sample_id", "dropped")
    judged = base.with_status(samples, *of_sample, *incomplete)
    known = judged.where(base.is_judged())
    return {
        "statements": covered_statements(known, NAME),
        # Dropped are the facts above `longrecall.max_facts`
        "scores": base.measured_scores(judged, NAME, RECALL, F.col("dropped")),
        "measures": base.measure_rows(judged, NAME, unknown_bounds(settings)),
        "claims": _claim_rows(prepared),
        "candidates": _candidate_rows(known),
        "failures": calls.failures(),
    }


def _facts(
    samples: DataFrame, calls: base.StageCalls, options: sample_facts.Options, asked: tuple[str, ...]
) -> DataFrame:
    """Return the columns of `CUT`, and resolved array<struct<side, facts>>: one row per sample."""
    rows = samples.select("sample_id", "response", "references")
    cut = base.map_rows(rows, sample_facts.cut_samples, options)
    if EXTRACT in asked:
        cut = _extracted(calls.tools.keep(cut, "cut"), calls, options)
    cut = calls.tools.keep(cut, "facts")
    if RESOLVE not in asked:
        return cut.withColumn("resolved", F.lit(None).cast(_UNRESOLVED))
    # A sample without the facts of one side needs no request for the other side
    sides = base.map_rows(calls.complete(cut), sample_facts.free_sides)
    resolved = calls.ask(RESOLVE, sides, ("sample_id", "side"))
    return _join_lists(cut, resolved, "resolved", "side", "facts")


def _extracted(cut: DataFrame, calls: base.StageCalls, options: sample_facts.Options) -> DataFrame:
    """Return the columns of `CUT`, with the extracted facts of the sides that need a model."""
    sides = cut.select("sample_id", F.inline("to_extract"))
    extracted = calls.ask(EXTRACT, sides, ("sample_id", "side"))
    joined = _join_lists(cut, extracted, "extracted", "side", "claims")
    return base.map_rows(joined, sample_facts.add_extracted, options)


def _join_lists(rows: DataFrame, others: DataFrame, name: str, *columns: str) -> DataFrame:
    """Return the rows with the list of structs of the others of each sample, or null if there are none."""
    lists = others.groupBy("sample_id").agg(F.collect_list(F.struct(*columns)).alias(name))
    return rows.join(lists, on="sample_id", how="left")


def _match(shown: DataFrame, calls: base.StageCalls, sizes: Sizes, step: str) -> DataFrame:
    """Return sample_id, number, chosen array<long>, lost, waiting: the candidates that entail each reference.

    shown: sample_id, number, positions array<long>, reference, candidates array<string>, by rank. Rows without
    candidates need no request. chosen is null without a completion.
    """
    keys = ("sample_id", "number", "positions")
    count = F.size("candidates")
    single = shown.where(count == 1).select(*keys, "reference", F.get("candidates", F.lit(0)).alias("candidate"))
    several = shown.where(count > 1).select(*keys, "reference", "candidates")
    one = calls.ask(ONE, sizes[step, ONE](single, keys), keys)
    many = calls.ask(MANY, sizes[step, MANY](several, keys), keys)
    matched = F.when(F.col("matched"), F.col("positions")).when(~F.col("matched"), F.slice("positions", 1, 0))
    numbered = F.transform("candidates", lambda number: F.get("positions", number - 1))
    return _outcomes(one, matched).unionByName(_outcomes(many, numbered))


def _outcomes(answered: DataFrame, chosen: Column) -> DataFrame:
    flags = has_failed().alias("lost"), is_unasked().alias("waiting")
    return answered.select("sample_id", "number", chosen.alias("chosen"), *flags)


def _near(judged: DataFrame, calls: base.StageCalls, options: sample_facts.Options, sizes: Sizes) -> DataFrame:
    """Return the columns of `OPEN`: the references that are open after the words, with their candidates by vectors."""
    texts = base.map_rows(judged, concluding.open_texts)
    keys = ("sample_id", "kind", "number")
    embedded = calls.ask(EMBED, sizes[BY_VECTORS, EMBED](texts, keys), keys)
    embedded = embedded.withColumn("waiting", is_unasked())
    joined = _join_lists(judged, embedded, "embedded", "kind", "number", "vector", "waiting")
    return joined.mapInArrow(partial(concluding.find_by_vectors, options=options), spark_schema(concluding.OPEN))


def _gather(judged: DataFrame, near: DataFrame, outcomes: DataFrame) -> DataFrame:
    """Return the columns of judged, and by_vectors array<struct<number, pairs, lost, waiting, outcome>>."""
    outcome = F.struct("number", *_OUTCOME).alias("outcome")
    known = outcomes.select("sample_id", "number", outcome)
    # A left join, because a reference without a near fact has no request
    rows = near.select("sample_id", "number", "pairs", "lost", "waiting")
    joined = rows.join(known, on=["sample_id", "number"], how="left")
    return _join_lists(judged, joined, "by_vectors", "number", "pairs", "lost", "waiting", "outcome")


def _holistic(samples: DataFrame, prepared: DataFrame, calls: base.StageCalls, sizes: Sizes) -> DataFrame:
    """Return sample_id, holistic: the numbers of the facts of each reference, from one prompt per sample."""
    sides = prepared.select(
        "sample_id",
        F.transform("references", lambda one: one["text"]).alias("references"),
        F.transform("generated", lambda one: one["text"]).alias("candidates"),
    ).where((F.size("references") > 0) & (F.size("candidates") > 0))
    rows = sides.join(samples.select("sample_id", "query"), on="sample_id", how="inner")
    answered = calls.ask(WHOLE, sizes[HOLISTIC, WHOLE](rows, ("sample_id",)))
    return answered.select("sample_id", F.col("candidates").alias("holistic"))


METRIC = base.Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: LongrecallSettings},
    settings=(NAME, "embeddings"),
    tables=TABLES,
    needs=("query", "response", "references"),
    reads=("references",),
    unknown=unknown_bounds,
    dropped="facts beyond longrecall.max_facts, which were left out",
    view=ReferenceView,
)
