"""Test a whole run with a metric of another package, added by the steps in CONTRIBUTING."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import SETTINGS
from untold.jobs.run_tables import open_run

TOY = Path(__file__).with_name("toy.py")
ENTRY_POINTS = "[untold.stages]\nlist_words = toy:LIST_WORDS\n\n[untold.metrics]\nwords = toy:WORDS\n"
TEMPLATE = "=== user\nList the words of this text, one per line, as `- word`:\n{{ text }}\n"
SAMPLES = [
    {"sample_id": "all", "response": "high tower", "contexts": ["The TOWER is high."]},
    {"sample_id": "half", "response": "azure tower", "contexts": ["A tower.", "It is high."]},
    {"sample_id": "lost", "response": "unlisted", "contexts": ["A tower."]},
]
RULES = [
    {"when": {"contains": "high tower"}, "do": {"text": "- high\n- tower"}},
    {"when": {"contains": "azure tower"}, "do": {"text": "- azure\n- tower"}},
    {"do": {"text": "I would rather not."}},
]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Create a folder of packages that contains the toy metric, in the same layout as pip."""
    folder = tmp_path / "site-packages"
    described = folder / "toy-1.0.dist-info"
    described.mkdir(parents=True)
    shutil.copy(TOY, folder / "toy.py")
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def untold(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UNTOLD_", "OPENAI_"))}
    return subprocess.run(
        [sys.executable, "-m", "untold", *arguments],
        env={**environment, "PYTHONPATH": os.pathsep.join([str(packages), str(TOY.parents[3])])},
        capture_output=True,
        text=True,
        check=False,
    )


@dataclass(frozen=True)
class Toy:
    """The folder of the installed toy metric, and the options of a command over its samples."""

    packages: Path
    output: Path
    options: list[str]


@pytest.fixture
def toy(installed: Path, tmp_path: Path) -> Iterator[Toy]:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "list_words.jinja").write_text(TEMPLATE)
    samples, output = tmp_path / "samples.jsonl", tmp_path / "out"
    samples.write_text("\n".join(json.dumps({"query": "What is known?", **sample}) for sample in SAMPLES))
    with ModelServer(rules=RULES) as server:
        chosen = {**SETTINGS, "llm.base_url": server.base_url, "prompts_dir": tmp_path / "prompts"}
        given = ["--input", str(samples), "--output", str(output), "--metric", "words"]
        yield Toy(
            installed, output, given + [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        )


@pytest.mark.slow
def test_a_toy_metric_is_planned(toy: Toy) -> None:
    planned = untold(toy.packages, "plan", *toy.options, "--json")
    assert [(row["metric"], row["stage"], row["requests"]) for row in json.loads(planned.stdout)] == [
        ("words", "list_words", 3)
    ], planned.stderr


@pytest.mark.gate
def test_a_toy_metric_runs_in_a_whole_job(toy: Toy) -> None:
    ended = untold(toy.packages, "score", *toy.options, "--set", "llm.max_attempts=1", "--set", "toy.letters=5")
    assert ended.returncode == 4, ended.stderr
    run = open_run(toy.output)
    scores = {row["sample_id"]: (row["score"], row["status"]) for row in run.table("scores").to_pylist()}
    assert scores == {"all": (1.0, "ok"), "half": (0.5, "ok"), "lost": (None, "failed")}
    assert [(row["sample_id"], row["error_type"]) for row in run.table("failures").to_pylist()] == [
        ("lost", "unparsable")
    ]
    (summary,) = [row for row in run.summary().to_pylist() if row["level"] == "overall"]
    assert (summary["metric"], summary["n"], summary["mean"]) == ("words", 3, 0.75)
    shown = untold(toy.packages, "show", str(toy.output), "--sample", "all")
    assert "1.00 (ok), 1 covered, 0 missing, 1 of fewer letters than toy.letters" in shown.stdout, shown.stderr


@pytest.mark.slow
def test_a_setting_of_a_toy_metric_belongs_to_its_output(toy: Toy) -> None:
    first = untold(toy.packages, "score", *toy.options, "--set", "toy.letters=5")
    assert first.returncode == 4, first.stderr
    second = untold(toy.packages, "score", *toy.options, "--set", "toy.letters=4")
    assert (second.returncode, "toy.letters" in second.stderr) == (1, True), second.stderr


def test_the_toy_is_small() -> None:
    assert len(TOY.read_text(encoding="utf-8").splitlines()) < 60
