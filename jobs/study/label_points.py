"""What scores earn against labels and instances, as Spark counts it; methods, section 6.

Tables of *points* have the columns model, metric, convention, measure, unit, cluster strings, points and excluded long:
a row is what a unit (a sample; for ConflictBank a claim of an instance) earns of a measure's full scale, null where
nothing of it counts; `excluded` is how many of its comparisons do not count; its cluster is its question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.udfs.samples.adapters import CONFLICTBANK_CONTEXTS, CONFLICTBANK_SETS
from untold.udfs.statistics.confusion import CONVENTIONS, LABELS, UNDEFINED

LMR, STRICT, LAX = "lmr", "lmr_strict", "lmr_lax"
LABEL_BASELINES = ("baseline_constant", "baseline_overlap")
# C1, C2 and C3; D is the default fact
COUNTERFACTUALS = tuple(name for name in CONFLICTBANK_CONTEXTS if name != "D")
# What the shares of up to five, and of up to three, comparisons are whole multiples of: points are whole numbers, so
# that counts of them are exact
STRICT_SCALE, LAX_SCALE = 60, 6
LMR_SCALE = 2 * STRICT_SCALE
Earned = tuple[Column, Column]


@dataclass(frozen=True)
class Dataset:
    """How a data set is matched: `find_points(scores, samples, shares)`, and the points of a unit that matches in full.

    scores: model, metric, sample_id, score, failed. shares: as `jobs.study.study_inputs.read_source_shares` gives them,
    read where `by_source`. `has_labels`: confusion tables and baselines are made of samples' labels.
    """

    find_points: Callable[[DataFrame, DataFrame, DataFrame | None], DataFrame]
    scales: Mapping[str, int]
    has_labels: bool
    by_source: bool = False


def predicted_label() -> Column:
    """`untold.udfs.statistics.confusion.predict_label` of the column score, so that no row leaves the JVM for it."""
    score = F.col("score")
    between = F.when(score == 0, LABELS[0]).when(score == 1, LABELS[2]).otherwise(LABELS[1])
    return F.when(score.isNull(), UNDEFINED).otherwise(between)


def label_points(scores: DataFrame, samples: DataFrame, _: DataFrame | None = None) -> DataFrame:
    """Points of LMR_WC: whether scores match the labels (samples: sample_id, query, label).

    1 or 0 a sample under each convention, null where it is left out. Samples without a query are questions of their
    own. Dejl et al. 2025, match(S, l); methods, section 6.
    """
    judged = scores.join(samples.select("sample_id", "query", "label"), on="sample_id", how="inner")
    matched = F.col("label") == predicted_label()
    # An undefined score taken for 0, which is what Incorrect means
    lenient = matched | (F.isnull("score") & (F.col("label") == LABELS[0]))
    # Null where it failed: such a sample is left out
    answered = F.when(~F.col("failed"), lenient)
    found = {"mismatch": matched, "zero": answered, "published": lenient}
    earned = {(LMR, name): _whole(points) for name, points in found.items()}
    return _points(judged, F.col("sample_id"), F.coalesce("query", "sample_id"), earned)


def _whole(holds: Column) -> Earned:
    """1 or 0 of a comparison, and 1 left out where it is null: a unit of one comparison."""
    return holds.cast("long"), holds.isNull().cast("long")


def baseline_points(samples: DataFrame, constant: str) -> DataFrame:
    """Points of the baselines: of a judge that always says `constant`, and of the column overlap as a score.

    samples: sample_id, query, label string, overlap double from 0 to 1. Model and metric are null.
    """
    nobody = [F.lit(None).cast("string").alias(name) for name in ("model", "metric")]
    scored = samples.select(*nobody, "sample_id", F.col("overlap").alias("score"), F.lit(False).alias("failed"))
    always = samples.select("*", *nobody)
    found = {(LABEL_BASELINES[0], name): _whole(F.col("label") == constant) for name in CONVENTIONS}
    constants = _points(always, F.col("sample_id"), F.coalesce("query", "sample_id"), found)
    return constants.unionByName(label_points(scored, samples).withColumn("measure", F.lit(LABEL_BASELINES[1])))


def alone_points(scores: DataFrame, samples: DataFrame, _: DataFrame | None = None) -> DataFrame:
    """Points of LMR_CB, its strict and its lax part, where each context was evaluated by itself too.

    samples: sample_id string, row long, claim string (`default`, `counterfactual`), context_set string (`all` or the
    one context).

    Dejl et al. 2025 with S_X from an evaluation of its own, which is not what was published; methods, section 6.
    """
    placed = scores.join(samples.select("sample_id", "row", "claim", "context_set"), on="sample_id", how="inner")
    columns = []
    for name in CONFLICTBANK_SETS:
        here = F.col("context_set") == name
        columns += [
            F.max(F.when(here, F.col("score"))).alias(name),
            # One row an instance, claim and set at most: the maximum is that row's
            F.coalesce(F.max(F.when(here, F.col("failed"))), F.lit(False)).alias(f"{name}_failed"),
            F.lit(True).alias(f"{name}_stated"),
        ]
    return _bank_points(placed.groupBy("model", "metric", "row", "claim").agg(*columns))


def source_points(scores: DataFrame, samples: DataFrame, shares: DataFrame | None) -> DataFrame:
    """Points of LMR_CB, its strict and its lax part, from one evaluation with all contexts, as published.

    samples: sample_id string, row long, claim string. shares: model, metric, sample_id, source strings, share double:
    what of the statements of a source is covered; a source that states nothing has no row, and is left out. Dejl et al.
    2025; methods, section 6.
    """
    assert shares is not None
    by_source = [F.max(F.when(F.col("source") == name, F.col("share"))).alias(name) for name in CONFLICTBANK_CONTEXTS]
    wide = shares.groupBy("model", "metric", "sample_id").agg(*by_source)
    placed = scores.join(samples.select("sample_id", "row", "claim"), on="sample_id", how="inner")
    # Left: an evaluation that failed or has no statement has no share at all, and still counts as failed or undefined
    joined = placed.join(wide, on=["model", "metric", "sample_id"], how="left")
    flags = [F.col("failed").alias("all_failed"), F.lit(True).alias("all_stated")]
    for name in CONFLICTBANK_CONTEXTS:
        flags += [F.lit(False).alias(f"{name}_failed"), F.col(name).isNotNull().alias(f"{name}_stated")]
    names = ["model", "metric", "row", "claim", *CONFLICTBANK_CONTEXTS]
    return _bank_points(joined.select(*names, F.col("score").alias("all"), *flags))


def _bank_points(wide: DataFrame) -> DataFrame:
    """A comparison with an undefined score is false under `mismatch`; one that does not count is left out.

    wide: model, metric, row, claim, and for `all` and each context a score (null where undefined), `<name>_failed` and
    `<name>_stated` boolean. A unit is a claim of an instance, and its question the instance.
    """
    found: dict[tuple[str, str], Earned] = {}
    for convention in CONVENTIONS:
        strict, lax = _strict_points(convention), _lax_points(convention)
        # The mean of both: strict / 60 and lax / 6 are (strict + 10 lax) / 120
        both = strict[0] + lax[0] * (STRICT_SCALE // LAX_SCALE), strict[1] + lax[1]
        found |= {(LMR, convention): both, (STRICT, convention): strict, (LAX, convention): lax}
    return _points(wide, F.concat_ws("-", "row", "claim"), F.col("row").cast("string"), found)


def _strict_points(convention: str) -> Earned:
    """Five comparisons: 0 < S < 1 with all contexts, and for each context S_X = 1 where it states the claim, else 0.

    Methods, section 6, `strict`. A claim is the default fact or the counterfactual that C1, C2 and C3 share.
    """
    default, everything = F.col("claim") == "default", _score("all", convention)
    compared = [((everything > 0) & (everything < 1), _counts("all", convention))]
    for name in CONFLICTBANK_CONTEXTS:
        stated = default if name == "D" else ~default
        compared.append((_score(name, convention) == stated.cast("double"), _counts(name, convention)))
    return _share(compared, STRICT_SCALE)


def _lax_points(convention: str) -> Earned:
    """Three comparisons, of each counterfactual with D: S_X < S_D for the default claim, S_X > S_D for the other.

    Methods, section 6, `lax`.
    """
    default, of_default = F.col("claim") == "default", _score("D", convention)
    compared = []
    for name in COUNTERFACTUALS:
        score = _score(name, convention)
        holds = F.when(default, score < of_default).otherwise(score > of_default)
        compared.append((holds, _counts(name, convention) & _counts("D", convention)))
    return _share(compared, LAX_SCALE)


def _score(context_set: str, convention: str) -> Column:
    """The score to compare: one that is undefined stays null under `mismatch`, so that nothing holds of it.

    Under the others it is 0.
    """
    return F.col(context_set) if convention == "mismatch" else F.coalesce(context_set, F.lit(0.0))


def _counts(context_set: str, convention: str) -> Column:
    """Whether what is compared with a score counts: failed ones do not under `zero`, unstated sources nowhere."""
    stated = F.col(f"{context_set}_stated")
    return stated & ~F.col(f"{context_set}_failed") if convention == "zero" else stated


def _share(compared: list[tuple[Column, Column]], scale: int) -> Earned:
    """The share of the comparisons that hold among those that count, times the scale, and how many do not count."""
    held = reduce(add, ((F.coalesce(holds, F.lit(False)) & counts).cast("long") for holds, counts in compared))
    number = reduce(add, (counts.cast("long") for _, counts in compared))
    return F.try_divide(held * scale, number).cast("long"), len(compared) - number


def _points(frame: DataFrame, unit: Column, cluster: Column, found: Mapping[tuple[str, str], Earned]) -> DataFrame:
    """The columns of points, from what is earned of (measure, convention); a row a unit, measure and convention.

    One explode of an array, since a union of a frame a measure would read the scores again for each.
    """
    earned = [
        F.struct(
            F.lit(convention).alias("convention"),
            F.lit(measure).alias("measure"),
            points.alias("points"),
            excluded.alias("excluded"),
        )
        for (measure, convention), (points, excluded) in found.items()
    ]
    names = [unit.alias("unit"), cluster.alias("cluster")]
    exploded = frame.select("model", "metric", *names, F.explode(F.array(*earned)).alias("earned"))
    columns = ["earned.convention", "earned.measure", "unit", "cluster", "earned.points", "earned.excluded"]
    return exploded.select("model", "metric", *columns)


BANK_SCALES = {LMR: LMR_SCALE, STRICT: STRICT_SCALE, LAX: LAX_SCALE}
ALONE = "conflictbank_alone"  # another way to get S_X, so that no published figure is beside it
DATASETS = {
    "wikicontradict": Dataset(label_points, {LMR: 1, **dict.fromkeys(LABEL_BASELINES, 1)}, has_labels=True),
    "conflictbank": Dataset(source_points, BANK_SCALES, has_labels=False, by_source=True),
    ALONE: Dataset(alone_points, BANK_SCALES, has_labels=False),
}
