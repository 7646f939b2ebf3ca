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
from untold.jobs.study.report import CoverageFindings, render_coverage
from untold.udfs.statistics.item_agreement import fleiss_kappa, krippendorff_alpha

Row = dict[str, Any]
NO_LABELS = ItemLabels(0, 0, 0, None, None, 0)
OWNER = ("icat", "m")
SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


def person(number: int, human: float | None, query: str = "q") -> Row:
    return {"sample_id": f"s{number}", "cluster": query, "labelled": 4, "ties": 0, "human": human}


def judgement(number: int, value: float, counts: tuple[int, int, int, int]) -> Row:
    named = zip(("true_positives", "false_positives", "false_negatives", "true_negatives"), counts, strict=True)
    return {
        "sample_id": f"s{number}",
        "metric": "icat",
        "model": "m",
        "value": value,
        **dict(named),
        "judged": sum(counts),
    }


def by_measure(rows: list[Row], metric: str | None = "icat", level: str | None = None) -> dict[str, Row]:
    return {row["measure"]: row for row in rows if row["metric"] == metric and level in (None, row["level"])}


def draw_study(samples: int) -> tuple[list[Row], list[Row], list[Row]]:
    draw = random.Random(7)
    people, judged, baselines = [], [], []
    for number in range(samples):
        hits, wrong, missed = draw.randrange(3), draw.randrange(2), draw.randrange(2)
        left = 4 - hits - wrong - missed
        people.append(person(number, (hits + missed) / 4, f"q{number // 3}"))
        judged.append(judgement(number, (hits + wrong) / 4, (hits, wrong, missed, left)))
        baselines.append({"sample_id": f"s{number}", "bleu": draw.random()})
    return people, judged, baselines


def test_correlations_are_scipys_by_sample_and_by_query() -> None:
    people, judged, baselines = draw_study(30)
    rows = evaluation_rows(sample_rows(people, judged, baselines, [OWNER]), NO_LABELS, clustered=True, seed=0)
    means: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for one, other, baseline in zip(people, judged, baselines, strict=True):
        means[one["cluster"]].append((one["human"], other["value"], baseline["bleu"]))
    samples = [pair for pairs in means.values() for pair in pairs]
    queries = [tuple(map(fmean, zip(*pairs, strict=True))) for pairs in means.values()]
    for level, points in (("sample", samples), ("query", queries)):
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


def test_samples_without_labels_or_verdicts_are_left_out_and_counted() -> None:
    people = [person(0, 0.5), person(1, 0.25), person(2, 1.0), person(3, None), person(4, 0.5)]
    people[3]["labelled"] = 0
    judged = [
        judgement(0, 0.5, (1, 1, 1, 1)),
        judgement(1, 0.0, (0, 0, 1, 3)),
        judgement(2, 1.0, (4, 0, 0, 0)),
        judgement(3, 0.5, (0, 0, 0, 0)),
    ]
    samples = sample_rows(people, judged, [], [OWNER])
    assert [(row["sample_id"], row["value"], row["judged"]) for row in samples[3:]] == [
        ("s3", 0.5, 0),
        ("s4", None, None),
    ]
    found = by_measure(evaluation_rows(samples, NO_LABELS, clustered=False, seed=0))
    values = {name: (row["value"], row["n"], row["excluded"]) for name, row in found.items()}
    assert values["pearson"] == (pytest.approx(stats.pearsonr([0.5, 0.25, 1.0], [0.5, 0.0, 1.0]).statistic), 3, 2)
    # No fact of s1 has the verdict covered. Its precision is 0 / 0, and its recall and F1 are 0
    assert values["precision_macro"] == (pytest.approx((0.5 + 1) / 2), 2, 3)
    assert values["recall_macro"] == (pytest.approx((0.5 + 0 + 1) / 3), 3, 2)
    assert values["f1_macro"] == (pytest.approx((0.5 + 0 + 1) / 3), 3, 2)
    assert values["precision_micro"] == (pytest.approx(5 / 6), 6, 4)
    assert values["f1_micro"] == (pytest.approx(10 / (10 + 1 + 2)), 13, 4)


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


def test_the_report_says_what_the_rows_say() -> None:
    people, judged, baselines = draw_study(30)
    labels = ItemLabels(120, 100, 5, 0.5, 0.4, 90)
    rows = evaluation_rows(sample_rows(people, judged, baselines, [("icat", "a|b")]), labels, clustered=True, seed=0)
    costs = {"m": {"icat": Cost(2.5, 1200.0, None, tokens_estimated=True)}}
    notes = ["BERTScore is skipped, because so"]
    report = render_coverage(CoverageFindings(rows, labels, ["yes", "part|ly"]), costs, clustered=True, notes=notes)
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
