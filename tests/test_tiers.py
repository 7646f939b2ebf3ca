"""The quick tier holds the tests that it must have, and each test is run in some tier."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.slow import SLOW
from untold.jobs.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("slow", "gate", "hypothesis", "graphframes", "alone")
# One whole job per metric, on a real Spark and a real Ray, compared with brute force
WHOLE_JOBS = {
    "e2e": "tests/runs/test_faults.py::test_every_fault_is_accounted_for",
    "nli": "tests/runs/test_nli.py::test_scores_and_statuses_equal_brute_force",
    "qa": "tests/runs/test_qa.py::test_scores_and_statuses_equal_brute_force",
    "icat": "tests/runs/test_icat.py::test_scores_measures_and_statuses_equal_the_definition",
    "importance": "tests/runs/test_importance.py::test_scores_equal_brute_force",
    "longrecall": "tests/runs/test_longrecall.py::test_every_table_is_that_of_brute_force",
    "nuggets": "tests/runs/test_nuggets.py::test_all_tables_equal_brute_force",
    "rag": "tests/runs/test_rag.py::test_measures_equal_brute_force",
    "citations": "tests/runs/test_citations.py::test_all_tables_equal_brute_force",
    "answer_relevancy": "tests/runs/test_answer_relevancy.py::test_all_tables_are_those_of_brute_force",
    "rubric": "tests/runs/test_rubric.py::test_all_tables_equal_brute_force",
}
# One kill per writer, and one of a whole run
KILLS = {
    "a whole run": "tests/runs/test_kill.py::test_a_killed_run_continues_without_paying_twice[once]",
    "segments": "tests/jobs/inference/test_actor_driver.py::test_a_killed_actor_loses_requests_since_its_last_write",
    "batches": "tests/jobs/inference/test_batch_jobs.py::test_a_kill_before_and_after_each_call_costs_nothing[10.0]",
    "tables": "tests/jobs/run/test_output.py::test_a_kill_during_the_replacement_of_tables_leaves_an_incomplete_output",
}
OTHERS = {
    "a faulty endpoint": WHOLE_JOBS["e2e"],
    "a limit": "tests/runs/test_limits.py::test_four_actors_keep_a_limit_and_all_honour_retry_after",
    "a process of the command": "tests/test_snippets.py::test_a_command_works"
    "[untold score --input answers.jsonl --output results --metric e2e]",
    "an index and a search": "tests/runs/test_index.py::test_an_index_is_made_searched_and_grown",
    "a large graph in Spark": "tests/graph/test_distributed.py::test_the_condenser_sends_small_graphs_to_tasks",
}
NAMED = {*WHOLE_JOBS.values(), *KILLS.values(), *OTHERS.values()}


def expressions() -> dict[str, str]:
    """Return the expression of marks of each tier."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    words = shlex.split(options)
    (wider,) = re.findall(r"^pytest -m '([^']+)'$", (ROOT / ".ci" / "run").read_text(), re.M)
    return {"quick": words[words.index("-m") + 1], "wider": wider, "slow": SLOW}


def tiers_of(marks: set[str]) -> set[str]:
    """Return the tiers that run a test with these marks. Python can evaluate an expression of marks."""
    names = {mark: mark in marks for mark in MARKS}
    return {tier for tier, expression in expressions().items() if eval(expression, {}, names)}


def test_a_job_of_each_metric_is_named() -> None:
    assert sorted(WHOLE_JOBS) == sorted(METRICS)


def test_the_quick_tier_has_the_tests_that_are_named() -> None:
    """The options come from pyproject.toml, as in the command in the README."""
    command = [sys.executable, "-m", "pytest", "--collect-only", *sorted({one.split("::")[0] for one in NAMED})]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert NAMED - set(found.stdout.splitlines()) == set()


@pytest.mark.parametrize(
    ("marks", "tiers"),
    [
        (set(), {"quick"}),
        ({"gate"}, {"wider"}),
        ({"slow"}, {"slow"}),
        ({"gate", "slow"}, {"slow"}),
        ({"hypothesis"}, {"quick", "wider"}),
        ({"gate", "hypothesis"}, {"wider"}),
        ({"slow", "hypothesis"}, {"slow"}),
    ],
    ids=lambda given: ",".join(sorted(given)) or "no mark",
)
def test_marks_select_a_tier(marks: set[str], tiers: set[str]) -> None:
    assert tiers_of(marks) == tiers


def test_every_test_is_in_a_tier() -> None:
    every = [set(some) for count in range(len(MARKS) + 1) for some in itertools.combinations(MARKS, count)]
    assert [marks for marks in every if not tiers_of(marks)] == []
