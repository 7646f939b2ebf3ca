"""Rows of a study of coverage, from counts of samples."""

from __future__ import annotations

import random
from collections import defaultdict
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from untold.jobs.study.coverage_rows import (
    COUNTS,
    Facts,
    ItemLabels,
    Items,
    count_labels,
    evaluation_rows,
    pair_rows,
    sample_rows,
)
from untold.jobs.study.judgements import Judgements, LabelledUnits
from untold.jobs.study.meta_evaluation import Cost
from untold.jobs.study.report import render_coverage
from untold.udfs.statistics.item_agreement import fleiss_kappa, krippendorff_alpha

Row = dict[str, Any]
NO_LABELS = ItemLabels(0, 0, 0, None, None, 0)
OWNER = ("icat", "m")
SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


def person(number: int, human: float | None, query: str = "q") -> Row:
    return {"sample_id": f"s{number}", "query_id": query, "labelled": 4, "ties": 0, "human": human}


def judgement(value: float | None, counts: tuple[int, int, int, int] | None = None) -> Row:
    judged = None if counts is None else sum(counts)
    return {**dict(zip(COUNTS, counts or (None,) * 4, strict=True)), "value": value, "judged": judged}


def coverage(people: list[Row], owner: tuple[str, str | None], judged: list[Row]) -> list[Row]:
    """Rows of the table `coverage` of one metric of a model."""
    named = {"metric": owner[0], "model": owner[1]}
    return [one | named | other for one, other in zip(people, judged, strict=True)]


def by_measure(rows: list[Row], metric: str | None = "icat", level: str | None = None) -> dict[str, Row]:
    return {row["measure"]: row for row in rows if row["metric"] == metric and level in (None, row["level"])}


def draw_study(samples: int) -> tuple[list[Row], list[Row], list[Row]]:
    draw = random.Random(7)
    people, judged, baselines = [], [], []
    for number in range(samples):
        hits, wrong, missed = draw.randrange(3), draw.randrange(2), draw.randrange(2)
        left = 4 - hits - wrong - missed
        people.append(person(number, (hits + missed) / 4, f"q{number // 3}"))
        judged.append(judgement((hits + wrong) / 4, (hits, wrong, missed, left)))
        baselines.append(judgement(draw.random()))
    return people, judged, baselines


def test_correlations_are_scipys_by_sample_and_by_query() -> None:
    people, judged, baselines = draw_study(30)
    samples = coverage(people, OWNER, judged) + coverage(people, ("bleu", None), baselines)
    rows = evaluation_rows(samples, NO_LABELS, clustered=True, seed=0)
    means: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for one, other, baseline in zip(people, judged, baselines, strict=True):
        means[one["query_id"]].append((one["human"], other["value"], baseline["value"]))
    points_of_samples = [pair for pairs in means.values() for pair in pairs]
    queries = [tuple(map(fmean, zip(*pairs, strict=True))) for pairs in means.values()]
    for level, points in (("sample", points_of_samples), ("query", queries)):
        for place, metric in ((1, "icat"), (2, "bleu")):
            found = by_measure(rows, metric, level)
            # Means of thirds tie as fractions do
            x, y = ([round(point[side], 12) for point in points] for side in (0, place))
            for name, of in {
                "pearson": stats.pearsonr,
                "spearman": stats.spearmanr,
                "kendall": stats.kendalltau,
            }.items():
                expected = of(x, y)
                assert (found[name]["n"], found[name]["excluded"]) == (len(points), 0)
                assert [found[name]["value"], found[name]["p_value"]] == pytest.approx(
                    [expected.statistic, expected.pvalue]
                )
    assert {row["level"] for row in evaluation_rows([], NO_LABELS, clustered=True, seed=0)} == {"item"}


def test_samples_without_labels_or_verdicts_are_omitted_and_counted() -> None:
    people = [person(0, 0.5), person(1, 0.25), person(2, 1.0), person(3, None), person(4, 0.5)]
    people[3]["labelled"] = 0
    judged = [
        judgement(0.5, (1, 1, 1, 1)),
        judgement(0.0, (0, 0, 1, 3)),
        judgement(1.0, (4, 0, 0, 0)),
        judgement(0.5, (0, 0, 0, 0)),
        judgement(None),
    ]
    samples = coverage(people, OWNER, judged)
    found = by_measure(evaluation_rows(samples, NO_LABELS, clustered=False, seed=0))
    values = {name: (row["value"], row["n"], row["excluded"]) for name, row in found.items()}
    assert values["pearson"] == (pytest.approx(stats.pearsonr([0.5, 0.25, 1.0], [0.5, 0.0, 1.0]).statistic), 3, 2)
    # No fact of s1 has the verdict covered. Its precision is 0 / 0, and its recall and F1 are 0
    assert values["precision_macro"] == (pytest.approx((0.5 + 1) / 2), 2, 3)
    assert values["recall_macro"] == (pytest.approx((0.5 + 0 + 1) / 3), 3, 2)
    assert values["f1_macro"] == (pytest.approx((0.5 + 0 + 1) / 3), 3, 2)
    assert values["precision_micro"] == (pytest.approx(5 / 6), 6, 4)
    assert values["f1_micro"] == (pytest.approx(10 / (10 + 1 + 2)), 13, 4)


def test_a_sample_without_a_judgement_has_no_value_and_one_without_labels_has_no_counts() -> None:
    rows = [("s0", ["yes"], True), ("s0", ["no"], True), ("s1", [], True), ("s1", [], None), ("s2", ["yes"], None)]
    table = pa.table(
        {
            "sample_id": [row[0] for row in rows],
            "reference_id": [str(number) for number in range(len(rows))],
            "labels": pa.array([row[1] for row in rows], pa.list_(pa.string())),
        }
    )
    people = [{"sample_id": name, "cluster": "q", "response": ""} for name in ("s0", "s1", "s2")]
    items = Items(people, LabelledUnits("input", table, ("sample_id", "reference_id")), ("yes",))
    verdicts = {("m", "icat"): pa.table({"covered": [row[2] for row in rows]})}
    given = {("m", "icat"): np.array([True, True, True, True, False])}
    found = sample_rows(items, Judgements({"m": ("icat",)}, verdicts, given), [{"sample_id": "s1", "bleu": 0.5}])
    names = (
        "sample_id",
        "metric",
        "model",
        "human",
        "labelled",
        "value",
        "true_positives",
        "false_positives",
        "judged",
    )
    assert [tuple(row[name] for name in names) for row in found] == [
        ("s0", "icat", "m", 0.5, 2, 1.0, 1, 1, 2),
        ("s1", "icat", "m", None, 0, 1.0, 0, 0, 0),
        ("s2", "icat", "m", 1.0, 1, None, None, None, None),
        *(
            (name, "bleu", None, human, size, value, None, None, None)
            for name, human, size, value in (*(("s0", 0.5, 2, None), ("s1", None, 0, 0.5), ("s2", 1.0, 1, None)),)
        ),
    ]


def test_labels_are_counted_with_their_kappa() -> None:
    votes = [(3, 0, 4), (0, 3, 5), (1, 2, 2), (1, 1, 3), (1, 0, 1), (0, 0, 6)]
    found = count_labels([(yes, no) for yes, no, count in votes for _ in range(count)])
    table = [(yes, no) for yes, no, count in votes[:4] for _ in range(count)]
    assert found == ItemLabels(21, 12, 3, fleiss_kappa(table), krippendorff_alpha(table), compared=14)
    rows = evaluation_rows([], found, clustered=False, seed=0)
    assert [(row["measure"], row["value"], row["n"], row["excluded"]) for row in rows] == [
        ("fleiss_kappa", found.kappa, 14, 7),
        ("krippendorff_alpha", found.alpha, 14, 7),
    ]


def test_the_report_has_the_values_of_the_rows() -> None:
    people, _, baselines = draw_study(30)
    labels = ItemLabels(120, 100, 5, 0.5, 0.4, 90)
    judged = [judgement(None) for _ in people]
    samples = coverage(people, ("icat", "a|b"), judged) + coverage(people, ("bleu", None), baselines)
    rows = evaluation_rows(samples, labels, clustered=True, seed=0)
    costs = {("m", "icat"): Cost(2.5, 1200.0, None, tokens_estimated=True)}
    notes = ["BERTScore is skipped, because so"]
    tables: dict[str, list[Row]] = {"meta_evaluation": rows, "tiers": [], "false_negatives": []}
    report = render_coverage(tables, labels, ["yes", "part|ly"], [], None, costs, clustered=True, notes=notes)
    # The model has no verdicts
    assert "| icat | a\\|b | 0 | 30 | - | - | - | - | - | - |" in report
    bleu = by_measure(rows, "bleu", "sample")["pearson"]
    shown = f"{bleu['value']:.3f} [{bleu['ci_low']:.3f}, {bleu['ci_high']:.3f}]"
    assert f"| bleu | (baseline) | 30 | 0 | {shown} | {bleu['p_value']:.4f} |" in report
    assert "10,000 resamples of whole queries" in report
    assert "Note: BERTScore is skipped, because so." in report
    assert (
        "Labels that mean covered: `yes`, `part\\|ly`. 100 of 120 items have a majority. 5 are ties and 15 have"
        in report
    )
    assert "| icat | m | 2.50 | ~1,200 | - |" in report
    assert "| ClueWeb | icat | - | kendall | - | 0.368 |" in report
    assert "| ClueWeb | - | - | fleiss_kappa | 0.500 | 0.829 |" in report
    assert "ClueWeb and the paper's human labels are not available" in report


def test_a_right_verdict_for_a_wrong_reason_is_a_wrong_pair() -> None:
    """Two samples with four references each: s0 names the covering facts, s1 does not."""
    rows = [
        ("s0", "right", ["yes"], ["Bees make honey."], True),
        ("s0", "wrong reason", ["yes"], ["bees make honey"], True),
        ("s0", "half", ["yes"], ["Bees make honey.", "Bees sting."], True),
        ("s0", "missed", ["yes"], ["Bees sting."], False),
        ("s1", "invented", ["no"], None, True),
        ("s1", "absent", ["no"], None, False),
        ("s1", "unnamed", ["yes"], None, True),
        ("s1", "tie", ["yes", "no"], ["Bees sting."], True),
    ]
    names = ("sample_id", "reference_id", "labels", "covered_by")
    table = pa.Table.from_pylist([dict(zip(names, row[:4], strict=True)) for row in rows])
    samples = [{"sample_id": name, "cluster": name, "response": ""} for name in ("s0", "s1")]
    items = Items(samples, LabelledUnits("input", table, ("sample_id", "reference_id")), ("yes",))
    owner = ("m", "longrecall")
    verdicts = pa.table({"covered": [row[4] for row in rows]})
    found = Judgements({"m": ("longrecall",)}, {owner: verdicts}, {owner: np.ones(len(rows), dtype=bool)})
    honey, sting = frozenset(["make honey", "Bees: make honey", "Bees make honey."]), frozenset(["Bees sting."])
    facts: Facts = {
        ("s0", "right"): [honey],
        ("s0", "wrong reason"): [sting],
        ("s0", "half"): [honey],
        ("s1", "invented"): [sting],
    }
    rows_of_pairs = {row["measure"]: row for row in pair_rows(items, found, {owner: facts}, clustered=False, seed=0)}
    # Right pairs: 2 of 4 chosen pairs, and 2 of 5 pairs of people
    shares = {"precision_pairs": (2 / 4, 4), "recall_pairs": (2 / 5, 5), "f1_pairs": (4 / 9, 9)}
    assert {name: (row["value"], row["n"]) for name, row in rows_of_pairs.items()} == shares
    # A covered item without named facts, and a tie
    assert {row["excluded"] for row in rows_of_pairs.values()} == {2}
