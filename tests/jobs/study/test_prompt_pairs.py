"""Two prompts of a model compared: on labels of responses, and on labelled items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from untold.jobs.settings.model import LlmSettings, PromptSet, Settings
from untold.jobs.study.agreement import compare_points, prompt_pairs
from untold.jobs.study.coverage_rows import compare_prompts
from untold.jobs.study.judgements import MetaEvaluationError
from untold.jobs.study.meta_evaluation import (
    MetaEvaluationRequest,
    StudyEndpoint,
    check_prompts,
    endpoint_of,
)
from untold.jobs.study.rendering import find_published
from untold.jobs.study.report import prompts_table
from untold.udfs.statistics.confusion import CONVENTIONS
from untold.udfs.statistics.permutation import adjust_p_values, clustered_permutation_test


def judge(prompt_set: PromptSet | None, model: str = "org/m", **settings: Any) -> StudyEndpoint:
    llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model=model)
    return endpoint_of(Settings(llm=llm, **settings), embedded=False, prompt_set=prompt_set)


THEIRS, OURS = judge("published"), judge("untold")
PAIR = (THEIRS, OURS)


def test_a_judge_is_a_model_and_its_prompts() -> None:
    assert (THEIRS.model, THEIRS.folder, THEIRS.settings.prompt_set) == (
        *("org/m (published prompts)", "org-m-published-prompts", "published"),
    )
    assert (judge(None).model, judge(None).folder) == ("org/m", "org-m")
    endpoints = (THEIRS, OURS, judge("published", "n"), judge("untold", "n"))
    request = MetaEvaluationRequest(dataset="coverage", input="i", output="o", settings=Settings(), endpoints=endpoints)
    assert [(one.name, one.prompt_set, other.prompt_set) for one, other in request.prompt_pairs] == [
        ("org/m", "published", "untold"),
        ("n", "published", "untold"),
    ]


def test_published_figures_are_found_for_a_judge_under_any_prompts() -> None:
    found = find_published("wikicontradict", "e2e", "meta-llama/Llama-3.3-70B-Instruct (published prompts)", "lmr")
    assert found is not None
    assert found["value"] == 0.8142


@pytest.mark.parametrize("metrics", [("qa",), ("longrecall", "qa")])
def test_prompts_that_are_the_same_are_not_compared(metrics: tuple[str, ...]) -> None:
    check_prompts([PAIR], ("e2e", *metrics))
    with pytest.raises(MetaEvaluationError, match=f"{', '.join(metrics)} would send org/m equal prompts under both"):
        check_prompts([PAIR], metrics)


def test_the_prompts_of_a_stage_leave_nothing_to_compare() -> None:
    own = {"evaluate_coverage": {"prompt_set": "untold"}}
    pair = (judge("published", stages=own), judge("untold", stages=own))
    with pytest.raises(MetaEvaluationError, match="prompts_dir or stages"):
        check_prompts([pair], ["e2e"])


def test_labels_are_compared_by_metric_and_only_under_two_prompts_of_a_model() -> None:
    points = {
        (THEIRS.model, "e2e"): [1, 1, 1, 1, 0, -1],
        (OURS.model, "e2e"): [0, 0, 1, 0, 0, 1],
        (THEIRS.model, "nli"): [1, 0, 0, 0, 0, 0],
        (OURS.model, "nli"): [1, 0, 0, 1, 0, 0],
        ("n (untold prompts)", "e2e"): [0] * 6,
    }
    nothing = np.zeros(6, dtype=np.int64)
    earned = {
        key: {("lmr", convention): (np.array(own), nothing) for convention in CONVENTIONS}
        for key, own in points.items()
    }
    pairs = prompt_pairs(("e2e", "nli"), [PAIR])
    everything = compare_points("wiki", earned, pairs, None, scale=1, seed=0)
    assert [row["convention"] for row in everything] == [one for one in CONVENTIONS for _ in range(2)]
    found = everything[:2]
    tests = [
        clustered_permutation_test([1, 0], [1, 1], [3, 2], seed=0),
        clustered_permutation_test([0, -1], [1, 1], [5, 1], seed=0),
    ]
    assert [(row["metric"], row["model"], row["first"], row["second"], row["n"]) for row in found] == [
        ("e2e", "org/m", "published", "untold", 5),
        ("nli", "org/m", "published", "untold", 6),
    ]
    assert [row["difference"] for row in found] == [test.difference for test in tests]
    assert [row["p_value"] for row in found] == pytest.approx([test.p_value for test in tests], abs=0.02)
    assert [row["p_adjusted"] for row in found] == adjust_p_values([row["p_value"] for row in found])


def counted(judge: StudyEndpoint, sample: str, query: str, agreeing: int, judged: int | None) -> dict[str, Any]:
    counts = {"true_positives": agreeing, "true_negatives": 0, "judged": judged}
    return {"metric": "importance", "model": judge.model, "sample_id": sample, "query_id": query, **counts}


def test_items_are_compared_by_sample_and_by_query() -> None:
    rows = [counted(THEIRS, f"s{place}", f"q{place // 2}", 3, 4) for place in range(8)]
    rows += [counted(OURS, f"s{place}", f"q{place // 2}", 1, 4) for place in range(6)]
    # The other prompt judged another number of items of one sample, and no item of another sample
    rows += [counted(OURS, "s6", "q3", 1, 2), counted(OURS, "s7", "q3", 0, None)]
    (by_sample,) = compare_prompts(rows, [PAIR], clustered=False, seed=0)
    (by_query,) = compare_prompts(rows, [PAIR], clustered=True, seed=0)
    assert (by_sample["difference"], by_sample["n"]) == (by_query["difference"], by_query["n"]) == (0.5, 24)
    # All six samples and all three queries have one sign: 2 of 2^6 choices of signs, and 2 of 2^3
    assert by_sample["p_value"] == pytest.approx(2 / 2**6, abs=0.01)
    assert by_query["p_value"] == pytest.approx(2 / 2**3, abs=0.02)
    assert "| importance | org/m | published | untold | 24 | 0.5000 |" in prompts_table([by_sample])


def test_a_metric_that_judged_under_one_prompt_only_has_a_row_without_samples() -> None:
    (row,) = compare_prompts([counted(THEIRS, "s", "q", 1, 2)], [PAIR], clustered=False, seed=0)
    assert (row["metric"], row["n"], row["difference"], row["p_adjusted"]) == ("importance", 0, None, None)


def test_without_pairs_nothing_is_compared() -> None:
    assert compare_prompts([counted(OURS, "s", "q", 1, 2)], [], clustered=False, seed=0) == []
    assert prompts_table([]) == ""
