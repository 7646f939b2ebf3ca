"""Test the points of scores for labels and instances, and the baselines."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from untold.jobs.study import agreement
from untold.jobs.study.agreement import compare_points, metric_pairs
from untold.jobs.study.judgements import LabelledUnits
from untold.jobs.study.label_study import (
    BANK_SCALES,
    BankScores,
    add_overlap,
    bank_points,
    baseline_points,
    label_codes,
    label_points,
    outcomes,
)
from untold.udfs.statistics.confusion import (
    CONVENTIONS,
    LABELS,
    MEASURES,
    OUTCOMES,
    match_label,
    predict_label,
    under_convention,
)
from untold.udfs.statistics.confusion import FAILED as FAILED_OUTCOME
from untold.udfs.statistics.intervals import Interval, count_tables
from untold.udfs.statistics.permutation import clustered_permutation_test

Scores = Mapping[str, float | None]
VALUES = (0.0, 0.25, 0.5, 1.0, None)
SETS = ("all", "D", "C1", "C2", "C3")
# The value of a failed score
FAILED = -1.0


def arrays(scores: list[float | None]) -> tuple[Any, Any]:
    """Return the scores, NaN for an undefined score, and True for each failed score."""
    known = [np.nan if score in (None, FAILED) else score for score in scores]
    return np.array(known, dtype=float), np.array([score == FAILED for score in scores])


def units_of(labels: list[str], **columns: list[Any]) -> LabelledUnits:
    ids = [f"s{number}" for number in range(len(labels))]
    return LabelledUnits("input", pa.table({"sample_id": ids, "label": labels, **columns}), ("sample_id",))


def test_every_label_and_score_counts_its_matches() -> None:
    cases = [(label, score) for label in LABELS for score in VALUES]
    labels = label_codes(units_of([label for label, _ in cases]))
    earned = label_points(*arrays([score for _, score in cases]), labels)
    filled = [0.0 if score is None else score for _, score in cases]
    for convention in CONVENTIONS:
        scores = [score for _, score in cases] if convention == "mismatch" else filled
        points, excluded = earned["lmr", convention]
        assert points.tolist() == [match_label(score, label) for (label, _), score in zip(cases, scores, strict=True)]
        assert not excluded.any()


def test_a_failed_score_matches_nothing_is_omitted_or_is_zero_as_published() -> None:
    earned = label_points(*arrays([FAILED]), np.array([0]))
    found = {convention: (int(points[0]), int(left[0])) for (_, convention), (points, left) in earned.items()}
    assert found == {"mismatch": (0, 0), "zero": (-1, 1), "published": (1, 0)}
    counts = agreement.count_units("wikicontradict", [(("m", "e2e"), earned)], None, {"lmr": 1})
    zero = agreement.match_means(counts, seed=0)["m", "e2e", "zero", "lmr"]
    assert (zero["value"], zero["n"], zero["excluded"]) == (None, 0, 1)


PointsOf = dict[tuple[str, str, str], tuple[int | None, int]]


def of_points(claims: list[str], parts: agreement.Points) -> PointsOf:
    """Return points and excluded comparisons by unit, convention and measure."""
    return {
        (unit, convention, measure): (None if points[place] < 0 else int(points[place]), int(excluded[place]))
        for (measure, convention), (points, excluded) in parts.items()
        for place, unit in enumerate(claims)
    }


def bank_scores(groups: Mapping[tuple[int, str], Scores]) -> tuple[Any, Any]:
    score, failed = arrays([group[name] for group in groups.values() for name in SETS])
    return score.reshape(-1, len(SETS)), failed.reshape(-1, len(SETS))


def earned_of(groups: Mapping[tuple[int, str], Scores], scores: BankScores) -> PointsOf:
    default = np.array([claim == "default" for _, claim in groups])
    return of_points([f"{row}-{claim}" for row, claim in groups], bank_points(scores, default))


def conflictbank(groups: Mapping[tuple[int, str], Scores]) -> PointsOf:
    """Return the points of (row, claim) groups with a separate evaluation of each context set."""
    score, failed = bank_scores(groups)
    return earned_of(groups, BankScores(score, failed, np.ones_like(failed)))


def by_source(groups: Mapping[tuple[int, str], Scores]) -> PointsOf:
    """Return the points of groups with a score for all contexts and the shares of the sources with statements."""
    score, failed = bank_scores(groups)
    stated = ~np.isnan(score)
    stated[:, 0] = True
    return earned_of(groups, BankScores(score, failed, stated))


def of_sets(*scores: float | None) -> Scores:
    return dict(zip(SETS, scores, strict=True))


def parts(strict: tuple[int, int], lax: tuple[int, int]) -> dict[str, tuple[int | None, int]]:
    """Return points and excluded comparisons from the comparisons that hold and that count, of five and of three."""
    of_strict = strict[0] * 60 // strict[1] if strict[1] else None
    of_lax = lax[0] * 60 // lax[1] if lax[1] else None
    both = None if of_strict is None or of_lax is None else of_strict + of_lax
    missing = 5 - strict[1], 3 - lax[1]
    return {"lmr_strict": (of_strict, missing[0]), "lmr_lax": (of_lax, missing[1]), "lmr": (both, sum(missing))}


def check(earned: PointsOf, claim: str, convention: str, strict: tuple[int, int], lax: tuple[int, int]) -> None:
    for measure, expected in parts(strict, lax).items():
        assert earned[f"7-{claim}", convention, measure] == expected


@pytest.mark.gate
@pytest.mark.parametrize(
    ("claim", "scores", "strict", "lax"),
    [
        # all, D, C1, C2, C3: (comparisons that hold under mismatch, under zero)
        ("default", of_sets(0.5, 1.0, 0.0, 0.0, 0.0), (5, 5), (3, 3)),
        ("counterfactual", of_sets(0.5, 0.0, 1.0, 1.0, 1.0), (5, 5), (3, 3)),
        ("default", of_sets(0.5, 0.0, 1.0, 1.0, 1.0), (1, 1), (0, 0)),
        ("default", of_sets(1.0, 1.0, 0.0, 0.5, None), (2, 3), (2, 3)),
        ("counterfactual", of_sets(0.25, None, 1.0, 0.5, 0.0), (2, 3), (0, 2)),
        ("counterfactual", of_sets(0.0, 0.5, 0.5, 0.75, 1.0), (1, 1), (2, 2)),
        ("default", of_sets(None, None, None, None, None), (0, 3), (0, 0)),
        ("counterfactual", of_sets(None, None, None, None, None), (0, 1), (0, 0)),
    ],
)
def test_strict_and_lax_points_of_hand_computed_groups(
    claim: str, scores: Scores, strict: tuple[int, int], lax: tuple[int, int]
) -> None:
    earned = conflictbank({(7, claim): scores})
    for convention, place in (("mismatch", 0), ("zero", 1), ("published", 1)):
        check(earned, claim, convention, (strict[place], 5), (lax[place], 3))
    assert len(earned) == 9


def test_a_failed_context_is_only_omitted_under_zero() -> None:
    earned = conflictbank({(7, "default"): of_sets(0.5, FAILED, 0.0, 0.0, 0.0)})
    check(earned, "default", "mismatch", (4, 5), (0, 3))
    check(earned, "default", "zero", (4, 4), (0, 0))
    check(earned, "default", "published", (4, 5), (0, 3))


@pytest.mark.gate
@pytest.mark.parametrize(
    ("claim", "shares", "strict", "lax"),
    [
        ("default", of_sets(0.5, 1.0, 0.0, 0.0, 0.0), (5, 5), (3, 3)),
        ("default", of_sets(0.5, 1.0, 0.0, None, 0.5), (3, 4), (2, 2)),
        ("counterfactual", of_sets(1.0, None, 1.0, 1.0, 1.0), (3, 4), (0, 0)),
        ("default", of_sets(1.0, 1.0, None, None, None), (1, 2), (0, 0)),
        ("counterfactual", of_sets(0.75, 0.5, 1.0, None, None), (2, 3), (1, 1)),
        ("default", of_sets(None, None, None, None, None), (0, 1), (0, 0)),
    ],
)
def test_a_source_without_statements_is_omitted_and_counted(
    claim: str, shares: Scores, strict: tuple[int, int], lax: tuple[int, int]
) -> None:
    earned = by_source({(7, claim): shares, (8, claim): of_sets(0.5, 1.0, 0.0, 0.0, 0.0)})
    for convention in ("mismatch", "zero"):
        check(earned, claim, convention, strict, lax)


@pytest.mark.parametrize("claim", ["default", "counterfactual"])
@pytest.mark.parametrize(
    ("shares", "strict", "lax"),
    [
        (of_sets(None, None, None, None, None), 0.0, 0.25),
        (of_sets(FAILED, None, None, None, None), 0.0, 0.25),
        (of_sets(1.0, None, 1.0, 1.0, 1.0), 0.3, 0.9),
        (of_sets(0.5, None, 0.0, 0.5, 1.0), 0.3, 0.9),
    ],
)
def test_units_without_statements_have_the_shares_of_the_authors_code(
    claim: str, shares: Scores, strict: float, lax: float
) -> None:
    earned = by_source({(7, claim): shares})
    for measure, share in (("lmr_strict", strict), ("lmr_lax", lax), ("lmr", (strict + lax) / 2)):
        points, excluded = earned[f"7-{claim}", "published", measure]
        assert points is not None
        assert points / BANK_SCALES[measure] == pytest.approx(share)
        assert excluded == 0


def test_a_counterfactual_without_statements_is_excluded_under_the_published_convention_too() -> None:
    earned = by_source({(7, "default"): of_sets(0.5, 1.0, 0.0, None, 0.5)})
    check(earned, "default", "published", (3, 4), (2, 2))


def test_nothing_counts_of_an_evaluation_that_failed_under_zero() -> None:
    groups = {(7, "default"): of_sets(FAILED, None, None, None, None), (8, "default"): of_sets(1.0, 1.0, 1.0, 1.0, 1.0)}
    earned = by_source(groups)
    check(earned, "default", "mismatch", (0, 1), (0, 0))
    check(earned, "default", "zero", (0, 0), (0, 0))


def strict_and_lax(claim: str, scores: Scores) -> tuple[float, float]:
    """Return LMR_CB of one group by the published formula. A comparison with an undefined score is false."""
    everything, default = scores["all"], scores["D"]
    strict = [everything is not None and 0 < everything < 1]
    strict += [scores[name] == float((claim == "default") == (name == "D")) for name in SETS[1:]]
    lax = []
    for name in SETS[2:]:
        score = scores[name]
        known = score is not None and default is not None
        lax.append(known and (score < default if claim == "default" else score > default))
    return sum(strict) / 5, sum(lax) / 3


@pytest.mark.parametrize("count", [conflictbank, by_source])
def test_points_of_random_groups_equal_the_formula(count: Any) -> None:
    draw = random.Random(5)
    values = VALUES if count is conflictbank else VALUES[:-1]
    claims = ("default", "counterfactual")
    groups = {(row, claim): of_sets(*draw.choices(values, k=5)) for row in range(60) for claim in claims}
    earned = count(groups)
    for (row, claim), scores in groups.items():
        filled = {name: score or 0.0 for name, score in scores.items()}
        for convention, known in (("mismatch", scores), ("zero", filled), ("published", filled)):
            strict, lax = strict_and_lax(claim, known)
            got = [earned[f"{row}-{claim}", convention, name][0] for name in ("lmr_strict", "lmr_lax", "lmr")]
            assert [got[0] / 60, got[1] / 60, got[2] / 120] == pytest.approx([strict, lax, (strict + lax) / 2])


# Questions


def wiki_scores() -> tuple[dict[str, list[float | None]], LabelledUnits]:
    """Scores of two metrics, and samples of four answers to each of nine questions."""
    draw = random.Random(9)
    labels = [draw.choice(LABELS) for _ in range(36)]
    units = units_of(labels, query=[f"q{number // 4}" for number in range(36)])
    return {metric: [draw.choice((*VALUES, FAILED)) for _ in labels] for metric in ("a", "b")}, units


QUESTIONS = np.arange(36) // 4


@pytest.mark.gate
@pytest.mark.parametrize("clustered", [False, True])
def test_tables_of_questions_are_counted_and_measured(clustered: bool) -> None:
    scores, units = wiki_scores()
    tables: dict[str, Any] = defaultdict(lambda: np.zeros((3, 5), dtype=np.int64))
    for sample, question, label, score in zip(
        *(units.column(name) for name in ("sample_id", "query", "label")), scores["a"], strict=True
    ):
        said = FAILED_OUTCOME if score == FAILED else predict_label(score)
        tables[question if clustered else sample][LABELS.index(label), OUTCOMES.index(said)] += 1
    clusters = QUESTIONS if clustered else np.arange(36)
    predicted = outcomes(*arrays(scores["a"]))
    found = count_tables(label_codes(units), predicted, clusters, (len(LABELS), len(OUTCOMES)))
    assert sorted(found.tolist()) == sorted(table.tolist() for table in tables.values())
    intervals = agreement.confusion_intervals({("m", "a"): found}, seed=4)
    assert len(intervals) == 9
    by_hand = under_convention(found.sum(axis=0), "zero")
    kappa = intervals["m", "a", "zero", "kappa"]
    assert kappa["value"] == MEASURES["kappa"](by_hand)
    assert (kappa["n"], kappa["excluded"]) == (by_hand.sum(), 36 - by_hand.sum())
    assert kappa["ci_low"] < kappa["value"] < kappa["ci_high"]


@pytest.mark.gate
def test_metrics_are_compared_by_whole_questions() -> None:
    scores, units = wiki_scores()
    earned = {("m", metric): label_points(*arrays(own), label_codes(units)) for metric, own in scores.items()}
    pairs = metric_pairs(["m"], ("a", "b"))
    found = compare_points("wikicontradict", earned, pairs, QUESTIONS, scale=1, seed=2)
    assert [row["convention"] for row in found] == list(CONVENTIONS)
    for row in found:
        one, other = (earned["m", metric]["lmr", row["convention"]][0] for metric in ("a", "b"))
        both = (one >= 0) & (other >= 0)
        sums, sizes = (np.bincount(QUESTIONS, weights=each) for each in (np.where(both, one - other, 0), both))
        expected = clustered_permutation_test(sums, sizes.astype(int), seed=2)
        assert (row["p_value"], row["n"]) == (expected.p_value, both.sum())
        assert row["difference"] == expected.difference
    # Only `zero` excludes the failed scores
    assert found[0]["n"] == found[2]["n"] == 36 > found[1]["n"]


@pytest.mark.gate
def test_baselines_are_of_the_constant_label_and_of_the_words() -> None:
    contexts = [{"id": "1", "text": "alpha beta"}, {"id": "2", "text": "gamma delta"}]
    rows = [
        ("a", "q", "alpha gamma", contexts, "Correct"),
        ("b", "q", "Beta!", contexts, "Partially correct"),
        ("c", "p", "none of it", contexts, "Partially correct"),
        ("d", "p", "none of it", [], "Incorrect"),
        ("e", None, None, None, "Incorrect"),
    ]
    names = ("sample_id", "query", "response", "contexts", "label")
    samples = add_overlap(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]))
    # The first of two equally frequent labels is the constant label
    baselines = baseline_points(LabelledUnits("input", samples, ("sample_id",)))
    found = {key: "".join(map(str, points.tolist())) for key, (points, _) in baselines.items()}
    assert found == {
        **{("baseline_constant", convention): "00011" for convention in CONVENTIONS},
        # The overlap of d and e is undefined
        ("baseline_overlap", "mismatch"): "11000",
        ("baseline_overlap", "zero"): "11011",
        ("baseline_overlap", "published"): "11011",
    }


def test_baselines_are_next_to_every_metric_of_a_model() -> None:
    one, baseline = ({**Interval(value, None, None).columns(), "n": 20, "excluded": 0} for value in (0.5, 0.75))
    found: dict[agreement.Key, agreement.Values] = {(None, None, "zero", "baseline_constant"): baseline}
    judged = (("a", "e2e", "zero", "lmr"), ("b", "qa", "zero", "lmr"), ("b", "qa", "zero", "kappa"))
    found |= dict.fromkeys(judged, one)
    rows = agreement.agreement_rows("wikicontradict", ("qa", "e2e"), ("a", "b"), found)
    assert [(row["metric"], row["model"], row["measure"], row["value"]) for row in rows] == [
        ("qa", "b", "lmr", 0.5),
        ("qa", "b", "kappa", 0.5),
        ("qa", "b", "baseline_constant", 0.75),
        ("e2e", "a", "lmr", 0.5),
        ("e2e", "a", "baseline_constant", 0.75),
    ]


# The match rates of WikiContradict and ConflictBank of five models (Dejl et al. 2025)
PUBLISHED_RATES = {
    "qa": [(0.745, 0.876), (0.744, 0.846), (0.719, 0.847), (0.773, 0.808), (0.709, 0.878)],
    "e2e": [(0.788, 0.801), (0.756, 0.699), (0.814, 0.854), (0.806, 0.903), (0.803, 0.846)],
}


@pytest.mark.parametrize(("metric", "published"), [("qa", 0.009), ("e2e", 0.044)])
def test_the_spread_over_models_equals_the_published_value(metric: str, published: float) -> None:
    counts = [
        {"dataset": dataset, "metric": metric, "model": f"m{model}", "convention": "published", "measure": "lmr"}
        | {"scale": 1000, "points": round(1000 * rate), "size": 1, "count": 1, "excluded": 0}
        for model, rates in enumerate(PUBLISHED_RATES[metric])
        for dataset, rate in zip(("wikicontradict", "conflictbank"), rates, strict=True)
    ]
    (spread,) = [row for row in agreement.average_rows(counts, seed=0) if row["measure"] == "lmr_spread"]
    assert round(spread["value"], 3) == published == spread["published"]
    assert spread["n"] == 5
