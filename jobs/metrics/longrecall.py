"""LongRecall (Ardestani, Kamalloo, Rafiei; docs/methods.md, section 13): the share of references a response entails.

Each reference is held against the few of the response's facts that are nearest: by words first, and where none of these
entails it by vectors.
A plan assumes as many facts as texts can have, and none that is covered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inference.stage.requests import Rows, failure_rows, has_failed, incomplete_samples, is_unasked
from untold.jobs.metrics import base
from untold.jobs.metrics.graphs import different_texts
from untold.jobs.metrics.grounded_claims import claim_id, covered_statements
from untold.jobs.metrics.reference_facts import without_unwanted
from untold.jobs.metrics.settings import LongrecallSettings
from untold.jobs.metrics.summaries import MARK, StageFigures, made_up, size_of_things, tokens_of, value_of, whole
from untold.jobs.metrics.views import ReferenceView
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.retrieval.sources import assumed_results
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.recall import concluding, sample_facts
from untold.udfs.recall.candidates import Thresholds
from untold.udfs.recall.concluding import BASELINES, CONCLUDED, GENERATED, HOLISTIC, RECALL, conclude_samples
from untold.udfs.retrieval.local_models import MINILM

NAME = "longrecall"
TABLES = ("statements", "scores", "measures", "claims", "candidates", "failures")


@dataclass(frozen=True)
class RecallFindings:
    """What the metric has found out about its samples, before tables are made of it.

    incomplete: what `incomplete_samples` gives; prepared: the columns of `udfs.recall.candidate_pairs.PREPARED`;
    concluded: those of `CONCLUDED`; asked: by stage its results, each with the column sample_id.
    """

    incomplete: DataFrame
    prepared: DataFrame
    concluded: DataFrame
    asked: Mapping[str, Sequence[DataFrame]]


def unknown_bounds(settings: Settings) -> base.Bounds:
    """Of a sample of which nothing is known: shares may be anything, and counts have no upper end."""
    shares = dict.fromkeys((RECALL, *settings.longrecall.baselines), (0.0, 1.0))
    return {**shares, **dict.fromkeys((concluding.REFERENCES, GENERATED), (None, None))}


def make_tables(samples: DataFrame, found: RecallFindings, settings: Settings) -> base.Tables:
    """The tables of `TABLES`, from samples (columns of the table `samples`)."""
    judged = _with_status(samples, found)
    known = judged.where(F.col("status").isin(*base.JUDGED))
    lost = [failure_rows(NAME, stage, rows) for stage, asked in found.asked.items() for rows in asked]
    return {
        "statements": covered_statements(known, NAME, "anchor", "found_by", *BASELINES),
        # Dropped are the facts beyond `longrecall.max_facts`
        "scores": base.measured_scores(judged, NAME, RECALL, F.col("dropped")),
        "measures": base.measure_rows(judged, NAME, unknown_bounds(settings)),
        "claims": _claim_rows(found.prepared),
        "candidates": _candidate_rows(known),
        # A stage that is asked twice may need one request for two references
        "failures": reduce(DataFrame.unionByName, lost).distinct(),
    }


def _with_status(samples: DataFrame, found: RecallFindings) -> DataFrame:
    """sample_id, system, status, dropped, and the columns of `CONCLUDED`: a row a sample (docs/contract.md, "Scores").

    Left joins: a sample that lacks nothing is not in `incomplete`, and one that does was not concluded.
    """
    joined = (
        samples.select("sample_id", "system")
        .join(found.concluded, on="sample_id", how="left")
        .join(found.prepared.select("sample_id", "dropped"), on="sample_id", how="left")
        .join(found.incomplete, on="sample_id", how="left")
    )
    waiting = F.col("waiting") | F.col("unasked")
    status = base.status_of(lost=F.col("lost"), waiting=waiting, empty=F.col("empty"), partial=F.col("unjudged") > 0)
    return joined.withColumn("status", status)


def _claim_rows(prepared: DataFrame) -> DataFrame:
    """The table `claims`: the generated facts, which nobody verifies."""
    return prepared.select("sample_id", F.inline("generated")).select(
        "sample_id",
        F.lit(NAME).alias("metric"),
        claim_id(NAME).alias("claim_id"),
        "position",
        "text",
        "anchor",
        F.lit(None).cast("string").alias("verdict"),
        F.array().cast("array<string>").alias("evidence"),
    )


def _candidate_rows(known: DataFrame) -> DataFrame:
    """The table `candidates`: each pair that a stage of entailment was shown, and whether it was chosen."""
    return known.select("sample_id", F.inline("candidates")).select(
        "sample_id",
        F.lit(NAME).alias("metric"),
        claim_id(NAME, "number").alias("statement_id"),
        claim_id(NAME).alias("claim_id"),
        *("step", "rank", "jaccard", "lcs", "cosine", "chosen"),
    )


# A fact takes two words at least, so that no text has more than half its words
WORDS_OF_A_FACT = 2
# Of 399 references of K-QA, beside answers cut by sentences: for how many words find one candidate or several, and then
# vectors of the embedded model
SHARES = {
    "by_words": {"match_one": 32 / 399, "match_many": 3 / 399},
    "by_vectors": {"match_one": 53 / 399, "match_many": 293 / 399},
}


@dataclass(frozen=True)
class Sizes:
    """How many requests there are where answers that nobody has decide that, as of `jobs.asking.requests.Requests`.

    Frames of requests and bytes, at most and in the mean.
    """

    bound: DataFrame
    expected: DataFrame


@dataclass(frozen=True)
class StageSizes:
    """The sizes of what is asked once the facts are known: of entailment by stage, of vectors, of the one prompt."""

    by_words: Mapping[str, Sizes]
    texts: Sizes
    by_vectors: Mapping[str, Sizes]
    whole: Sizes


def assume(settings: Settings) -> base.Assumptions:
    """As many facts as texts can have, and all references open after each step."""
    results: dict[str, Mapping[str, Column]] = {
        "extract_claims": {"claims": different_texts(WORDS_OF_A_FACT)},
        EMBED: assumed_results()[EMBED],
        **_judged(),
    }
    return base.Assumptions(settings, results, expected=_expected)


def _judged() -> dict[str, Mapping[str, Column]]:
    """A resolved fact is a new text; nothing is covered, so that all references are looked for in both ways."""
    return {
        "resolve_coreference": {"facts": F.transform("facts", lambda text: F.concat(text, F.lit(MARK)))},
        "match_one": {"matched": F.lit(False)},
        "match_many": {"candidates": F.array().cast("array<int>")},
        "match_holistic": {"candidates": F.transform("references", lambda _: F.array().cast("array<int>"))},
    }


def _expected(figures: StageFigures) -> dict[str, Mapping[str, Column]]:
    """As many facts as the figures have of a text."""
    found: dict[str, Mapping[str, Column]] = dict(_judged())
    if "extract_claims" in figures:
        extract, tokens = figures["extract_claims"], tokens_of("text")
        count = whole(value_of(extract.things, tokens), "text")
        found["extract_claims"] = {"claims": made_up(count, size_of_things(extract, tokens), "text")}
    return found


def sizes_of(facts: DataFrame, samples: DataFrame, top_k: int) -> StageSizes:
    """The sizes by the facts of each sample (columns of `untold.udfs.recall.sample_facts.CUT`) and its query.

    In each step a reference is one request at most, whichever stage has it: with one candidate or with several.
    """
    side = {name: F.col(f"facts.{name}") for name in (sample_facts.RESPONSE, sample_facts.REFERENCES)}
    count = {name: F.greatest(F.coalesce(F.size(column), F.lit(0)), F.lit(0)) for name, column in side.items()}
    longest = {name: F.coalesce(F.array_max(_bytes(column)), F.lit(0)) for name, column in side.items()}
    total = {name: F.aggregate(_bytes(column), F.lit(0), lambda sum_, one: sum_ + one) for name, column in side.items()}
    references = count[sample_facts.REFERENCES]
    shown = {
        "match_one": (
            count[sample_facts.RESPONSE] >= 1,
            longest[sample_facts.REFERENCES] + longest[sample_facts.RESPONSE],
        ),
        "match_many": (
            (count[sample_facts.RESPONSE] >= 2) & F.lit(top_k >= 2),
            longest[sample_facts.REFERENCES]
            + longest[sample_facts.RESPONSE] * F.least(count[sample_facts.RESPONSE], F.lit(top_k)),
        ),
    }
    make = partial(_sizes, facts)
    steps = {
        step: {
            stage: make(possible, references, size, SHARES[step][stage]) for stage, (possible, size) in shown.items()
        }
        for step in SHARES
    }
    both = (references > 0) & (count[sample_facts.RESPONSE] > 0)
    texts = make(both, references + count[sample_facts.RESPONSE], F.greatest(*longest.values()), 1.0)
    with_query = facts.join(samples.select("sample_id", "query"), on="sample_id", how="inner")
    prompt = _sizes(with_query, both, F.lit(1), F.octet_length("query") + sum(total.values(), F.lit(0)), 1.0)
    return StageSizes(steps["by_words"], texts, steps["by_vectors"], prompt)


def _bytes(facts: Column) -> Column:
    """The lengths of facts, with what stands between their parts."""

    def length(fact: Column) -> Column:
        before = (
            F.coalesce(F.octet_length(F.nullif(fact[part], F.lit(""))) + 2, F.lit(0)) for part in ("under", "anchor")
        )
        return sum(before, F.octet_length(fact["evidence"]))

    return F.transform(facts, length)


def _sizes(facts: DataFrame, possible: Column, requests: Column, size: Column, share: float) -> Sizes:
    """`requests` of this size where one is possible; of these, in the mean, that share."""
    most = F.when(possible, requests).otherwise(F.lit(0))
    usual = whole(most * share, F.col("sample_id")) if share < 1 else most
    return Sizes(*(facts.select(number.alias("requests"), size.alias("bytes")) for number in (most, usual)))


EXTRACT, RESOLVE, ONE, MANY, WHOLE = (
    *("extract_claims", "resolve_coreference", "match_one", "match_many", "match_holistic"),
)
# As published, and by measurement on sentences: from 0.6 on, the embedded model has candidates for 141 of K-QA's 153
# entailed facts, from 0.5 on for 151
PUBLISHED_COSINE, MINILM_COSINE = 0.6, 0.5
_UNRESOLVED = "array<struct<side: string, facts: array<string>>>"
_OUTCOME = ("chosen", "lost", "waiting")


def stages(settings: Settings) -> tuple[str, ...]:
    """The stages that the metric may ask, in order: what is cut by rules alone needs no extraction."""
    given = settings.longrecall
    extract = (EXTRACT,) if given.segmentation in ("auto", "atomic") else ()
    resolve = (RESOLVE,) if given.resolve_coreference else ()
    return (*extract, *resolve, ONE, MANY, EMBED, *((WHOLE,) if HOLISTIC in given.baselines else ()))


def options_of(settings: Settings) -> sample_facts.Options:
    """What the rules go by under these settings."""
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


@dataclass
class _StageCalls:
    """Asks the stages of a run, and keeps their results by stage: what failed is looked for in them."""

    tools: base.Tools
    results: dict[str, list[DataFrame]] = field(default_factory=dict)

    def ask(self, stage: str, rows: DataFrame, carry: tuple[str, ...], sizes: Sizes | None = None) -> DataFrame:
        """The stage's results; `sizes`: how many requests there are where answers that nobody has decide that."""
        requests = Rows(rows, carry) if sizes is None else Rows(rows, carry, sizes.bound, sizes.expected)
        answered = self.tools.ask(stage, requests, carry)
        self.results.setdefault(stage, []).append(answered)
        return answered

    def incomplete(self, samples: DataFrame) -> DataFrame:
        """Columns sample_id, lost, waiting: the samples whose facts are not all known so far."""
        asked = [rows for stage in (EXTRACT, RESOLVE) for rows in self.results.get(stage, ())]
        if asked:
            return incomplete_samples(*asked)
        return samples.select("sample_id", F.lit(False).alias("lost"), F.lit(False).alias("waiting")).limit(0)


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Scores valid samples (columns of the table `samples`): the tables of `TABLES`. Methods, section 13.

    A sample whose facts were lost on the way is not judged any further; a judgement that was lost leaves a score with
    bounds. All facts of a sample meet within one task, and only candidates leave it.
    """
    options, calls, samples = options_of(settings), _StageCalls(tools), without_unwanted(samples)
    facts = _facts(samples, calls, options, stages(settings))
    incomplete = calls.incomplete(samples)
    sizes = sizes_of(facts, samples, settings.longrecall.top_k)
    prepare = partial(concluding.prepare_samples, options=options)
    complete = facts.join(incomplete.select("sample_id"), on="sample_id", how="left_anti")
    prepared = tools.keep(complete.mapInArrow(prepare, spark_schema(concluding.PREPARED)), "prepared")
    shown = tools.keep(prepared.mapInArrow(concluding.shown_by_words, spark_schema(concluding.SHOWN)), "shown-by-words")
    by_words = _match(shown, calls, sizes.by_words)
    judged = tools.keep(_join_lists(prepared, by_words, "outcomes", "number", *_OUTCOME), "judged-by-words")
    near = tools.keep(_near(judged, calls, options, sizes.texts), "shown-by-vectors")
    by_vectors = _match(near, calls, sizes.by_vectors)
    gathered = _gather(judged, near, by_vectors)
    if WHOLE in stages(settings):
        whole = _holistic(samples, prepared, calls, sizes.whole)
        gathered = gathered.join(whole, on="sample_id", how="left")
    else:
        gathered = gathered.withColumn("holistic", F.lit(None).cast("array<array<int>>"))
    conclude = partial(conclude_samples, baselines=settings.longrecall.baselines)
    concluded = tools.keep(gathered.mapInArrow(conclude, spark_schema(CONCLUDED)), "concluded")
    return make_tables(samples, RecallFindings(incomplete, prepared, concluded, calls.results), settings)


def _facts(samples: DataFrame, calls: _StageCalls, options: sample_facts.Options, asked: tuple[str, ...]) -> DataFrame:
    """The columns of `CUT`, and resolved array<struct<side, facts>>: a row a sample, as far as nothing was lost."""
    rows = samples.select("sample_id", "response", "references")
    cut = rows.mapInArrow(partial(sample_facts.cut_samples, options=options), spark_schema(sample_facts.CUT))
    if EXTRACT in asked:
        cut = _extracted(calls.tools.keep(cut, "cut"), calls, options)
    cut = calls.tools.keep(cut, "facts")
    if RESOLVE not in asked:
        return cut.withColumn("resolved", F.lit(None).cast(_UNRESOLVED))
    # The other side of a sample that has lost one would be resolved in vain
    complete = cut.join(calls.incomplete(samples).select("sample_id"), on="sample_id", how="left_anti")
    sides = complete.mapInArrow(sample_facts.free_sides, spark_schema(sample_facts.FREE))
    resolved = calls.ask(RESOLVE, sides, ("sample_id", "side"))
    return _join_lists(cut, resolved, "resolved", "side", "facts")


def _extracted(cut: DataFrame, calls: _StageCalls, options: sample_facts.Options) -> DataFrame:
    """The columns of `CUT`, with the facts of those sides that a model has to cut."""
    sides = cut.select("sample_id", F.inline("to_extract"))
    extracted = calls.ask(EXTRACT, sides, ("sample_id", "side"))
    joined = _join_lists(cut, extracted, "extracted", "side", "claims")
    return joined.mapInArrow(partial(sample_facts.add_extracted, options=options), spark_schema(sample_facts.CUT))


def _join_lists(rows: DataFrame, others: DataFrame, name: str, *columns: str) -> DataFrame:
    """The rows, a row a sample, and as a list of structs the others of each; null where there are none."""
    lists = others.groupBy("sample_id").agg(F.collect_list(F.struct(*columns)).alias(name))
    return rows.join(lists, on="sample_id", how="left")


def _match(shown: DataFrame, calls: _StageCalls, sizes: Mapping[str, Sizes]) -> DataFrame:
    """Columns sample_id, number, chosen array<long>, lost, waiting: what of the candidates entails each reference.

    shown: sample_id, number, positions array<long>, reference, candidates array<string>, by rank. Rows without
    candidates are not asked; chosen is null where the answer could not be had.
    """
    keys = ("sample_id", "number", "positions")
    count = F.size("candidates")
    single = shown.where(count == 1).select(*keys, "reference", F.get("candidates", F.lit(0)).alias("candidate"))
    several = shown.where(count > 1).select(*keys, "reference", "candidates")
    one = calls.ask(ONE, single, keys, sizes[ONE])
    many = calls.ask(MANY, several, keys, sizes[MANY])
    matched = F.when(F.col("matched"), F.col("positions")).when(~F.col("matched"), F.slice("positions", 1, 0))
    numbered = F.transform("candidates", lambda number: F.get("positions", number - 1))
    return _outcomes(one, matched).unionByName(_outcomes(many, numbered))


def _outcomes(answered: DataFrame, chosen: Column) -> DataFrame:
    flags = has_failed().alias("lost"), is_unasked().alias("waiting")
    return answered.select("sample_id", "number", chosen.alias("chosen"), *flags)


def _near(judged: DataFrame, calls: _StageCalls, options: sample_facts.Options, sizes: Sizes) -> DataFrame:
    """The columns of `OPEN`: the references that words left open, each with its candidates by vectors."""
    texts = judged.mapInArrow(concluding.open_texts, spark_schema(concluding.TEXTS))
    embedded = calls.ask(EMBED, texts, ("sample_id", "kind", "number"), sizes)
    embedded = embedded.withColumn("waiting", is_unasked())
    joined = _join_lists(judged, embedded, "embedded", "kind", "number", "vector", "waiting")
    return joined.mapInArrow(partial(concluding.find_by_vectors, options=options), spark_schema(concluding.OPEN))


def _gather(judged: DataFrame, near: DataFrame, outcomes: DataFrame) -> DataFrame:
    """The columns of judged, and by_vectors array<struct<number, pairs, lost, waiting, outcome>> as concluded from."""
    outcome = F.struct("number", *_OUTCOME).alias("outcome")
    known = outcomes.select("sample_id", "number", outcome)
    # Left: what is near nothing was not asked about
    rows = near.select("sample_id", "number", "pairs", "lost", "waiting")
    joined = rows.join(known, on=["sample_id", "number"], how="left")
    return _join_lists(judged, joined, "by_vectors", "number", "pairs", "lost", "waiting", "outcome")


def _holistic(samples: DataFrame, prepared: DataFrame, calls: _StageCalls, sizes: Sizes) -> DataFrame:
    """Columns sample_id, holistic: of each reference the numbers of its facts, from one prompt for all of a sample."""
    sides = prepared.select(
        "sample_id",
        F.transform("references", lambda one: one["text"]).alias("references"),
        F.transform("generated", lambda one: one["text"]).alias("candidates"),
    ).where((F.size("references") > 0) & (F.size("candidates") > 0))
    rows = sides.join(samples.select("sample_id", "query"), on="sample_id", how="inner")
    answered = calls.ask(WHOLE, rows, ("sample_id",), sizes)
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
