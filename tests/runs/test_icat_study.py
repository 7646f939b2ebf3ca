"""Run icat on samples with human labels for aspects, and evaluate the output in a study of coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.inter_rater import fleiss_kappa

from tests.fakes.claims import claims_of, covers
from tests.fakes.expected_icat import ExpectedIcat, Options, expected_icat
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import icat_worlds, text_of
from tests.runs.harness import SETTINGS, Ended, Row, read_table, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder, in_contexts

SCIPY = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
ANNOTATORS = 3
WRONG = 0.2


def labelled_samples() -> list[Row]:
    """Return the responses of worlds with given aspects. The annotators label the aspects with some errors."""
    known = [world for world in icat_worlds(60) if world.given]
    return [_labelled(sample) for world in known for sample in world.samples(2)]


def _labelled(sample: Row) -> Row:
    claims, draw, aspects = claims_of(sample["response"]), Random(sample["sample_id"]), []
    for number, given in enumerate(sample["aspects"], start=1):
        covered = any(covers(claim, text_of(given)) for claim in claims)
        labels = ["yes" if covered != (draw.random() < WRONG) else "no" for _ in range(ANNOTATORS)]
        name = str(number) if isinstance(given, str) else given["id"]
        aspects.append({"id": name, "text": text_of(given), "labels": labels})
    return {**sample, "aspects": aspects}


def people_say(sample: Row) -> list[bool]:
    """Return the majority of the labels of each aspect."""
    return [2 * aspect["labels"].count("yes") > ANNOTATORS for aspect in sample["aspects"]]


def meta_evaluate(run_here: RunHere, server: ModelServer, path: Path, output: Path, *flags: str) -> Ended:
    settings = {**SETTINGS, **embedder(server), "llm.base_url": server.base_url}
    words = ["meta-evaluate", "--dataset", "coverage", "--input", str(path), "--output", str(output), *flags]
    return run_here.command(
        [*words, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]
    )


def by_sample(output: Path, metric: str = "icat") -> dict[str, Row]:
    return {row["sample_id"]: row for row in read_table(output, "coverage") if row["metric"] == metric}


def expected_counts(said: Sequence[bool], people: Sequence[bool]) -> dict[str, int]:
    pairs = Counter(zip(said, people, strict=True))
    names = {
        "true_positives": (True, True),
        "false_positives": (True, False),
        "false_negatives": (False, True),
        "true_negatives": (False, False),
    }
    return {name: pairs[pair] for name, pair in names.items()}


def check_measures(rows: Sequence[Row], people: dict[str, list[bool]], said: dict[str, list[bool]]) -> None:
    """Check the correlations against SciPy, and the means of covered items against their definitions."""
    found = {(row["measure"], row["level"]): row for row in rows if row["metric"] == "icat"}
    names = sorted(said)
    pairs = [[float(np.mean(side[name])) for name in names] for side in (people, said)]
    for measure, of in SCIPY.items():
        expected, row = of(*pairs), found[measure, "sample"]
        assert (row["n"], row["value"]) == (len(names), pytest.approx(float(expected.statistic)))
        assert row["p_value"] == pytest.approx(float(expected.pvalue))
        assert row["ci_low"] < row["value"] < row["ci_high"]
    counts = [expected_counts(said[name], people[name]) for name in names]
    for measure, other in (("precision", "false_positives"), ("recall", "false_negatives")):
        shares = [
            one["true_positives"] / (one["true_positives"] + one[other])
            for one in counts
            if one["true_positives"] + one[other]
        ]
        macro = found[f"{measure}_macro", "sample"]
        assert (macro["n"], macro["value"]) == (len(shares), pytest.approx(np.mean(shares)))
        hits, others = sum(one["true_positives"] for one in counts), sum(one[other] for one in counts)
        assert found[f"{measure}_micro", "item"]["value"] == pytest.approx(hits / (hits + others))


@pytest.mark.slow
def test_a_study_of_the_coverage_of_icat_equals_brute_force(run_here: RunHere, tmp_path: Path) -> None:
    samples = labelled_samples()
    path = write_samples(tmp_path / "labelled.jsonl", samples)
    with ModelServer(answer="world") as server:
        ended = meta_evaluate(run_here, server, path, tmp_path / "study", "--metric", "icat")
        assert ended.code == 0, ended.err
        asked = server.count()
        run = tmp_path / "study" / "runs" / SETTINGS["llm.model"]
        again = meta_evaluate(run_here, server, path, tmp_path / "again", "--scores", f"fake-model={run}")
        assert (again.code, server.count()) == (0, asked), again.err
    assert read_table(tmp_path / "again", "coverage") == read_table(tmp_path / "study", "coverage")
    expected: dict[str, ExpectedIcat] = {
        one["sample_id"]: expected_icat(one, in_contexts(one), Options()) for one in samples
    }
    people = {one["sample_id"]: people_say(one) for one in samples}
    said = {name: [bool(aspect.claims) for aspect in one.aspects] for name, one in expected.items()}
    found = by_sample(tmp_path / "study")
    assert found.keys() == expected.keys()
    judged: dict[str, Any] = {}
    for name, row in found.items():
        assert (row["human"], row["labelled"], row["ties"]) == (np.mean(people[name]), len(people[name]), 0)
        assert row["value"] == pytest.approx(np.mean(said[name])), name
        assert {
            key: row[key] for key in ("true_positives", "false_positives", "false_negatives", "true_negatives")
        } == expected_counts(said[name], people[name])
        judged[name] = said[name]
    rows = read_table(tmp_path / "study", "meta_evaluation")
    check_measures(rows, people, judged)
    votes = [
        [aspect["labels"].count("yes"), aspect["labels"].count("no")] for one in samples for aspect in one["aspects"]
    ]
    (kappa,) = [row["value"] for row in rows if row["measure"] == "fleiss_kappa"]
    assert kappa == pytest.approx(fleiss_kappa(np.array(votes)))
    assert {"rouge1", "bleu", "meteor"} <= {row["metric"] for row in rows}
    assert "| icat |" in ended.out
