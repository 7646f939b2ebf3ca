"""The commands of the README, run as they stand there against a model server on this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.here import RunHere
from untold.jobs.results import open_run

CITIES = ("Lyon", "Lyon", "Turin", "Lyon", "Osaka")
ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ROOT / "tests" / "fakes" / "prompts"
RUN_ELSEWHERE = {
    "pip install -e '.[local]' && untold demo": "tests/jobs/test_demo.py, marked slow",
    "pip install -e '.[test]' && pytest": ".ci/run",
    "python -m tests.benchmarks": "by hand",
}


def commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and line not in RUN_ELSEWHERE]


# The same jobs as others of the README, under other settings
SLOW = (
    *("results-vllm", "results-config", "--annotation-sheet", "demo --metric icat"),
    "plan --input answers.jsonl --metric e2e",
)


# A process of its own in the user's folder; the others run in this one
AS_IT_STANDS = "untold score --input answers.jsonl --output results --metric e2e"
INPUTS = ("--input", "--relations", "--nodes", "--queries")


def absolute_inputs(words: Sequence[str], folder: Path) -> list[str]:
    """The words with whole paths for what Spark reads: the JVM of the tests stays in the folder where it started."""
    before = ["", *words]
    return [str(folder / word) if flag in INPUTS else word for flag, word in zip(before, words, strict=False)]


def test_one_command_runs_as_it_stands() -> None:
    assert AS_IT_STANDS in commands()


def parameters() -> list[Any]:
    marks = {command: [pytest.mark.slow] for command in commands() if any(part in command for part in SLOW)}
    return [pytest.param(command, marks=marks.get(command, [])) for command in commands()]


def block(kind: str, number: int = 0) -> str:
    """What a user would copy: a block of the README by its kind and its place among those."""
    blocks = re.findall(rf"```{kind}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return str(blocks[number])


LABELLED = {
    "question": "What is known of the home and the fleet of Ada Mill?",
    "model": "model-a",
    "context1_self_contained": "Ada Mill lives in Lyon.",
    "context2_self_contained": "Ada Mill lives in Turin.",
    **{f"answer{number}": f"Ada Mill lives in {city}." for number, city in enumerate(CITIES)},
    **{f"label{number}": "Correct" for number in range(len(CITIES))},
}
VERDICTS = [
    {"sample_id": "1", "metric": "icat", "reference_id": name, "covered": name == "honey"}
    for name in ("honey", "crops")
]
FILLED = "item,method,errors\n1,1,NONE\n1,2,DUP_ATOM\n"
KEY = "item,method,sample_id,metric,score,label\n1,1,a,e2e,1,Correct\n1,2,a,qa,0.5,Partially correct\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(answer="world") as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    for name, text in {
        "answers.jsonl": block("json"),
        "questions.jsonl": block("json", 1),
        "judge.yaml": block("yaml"),
        "systems.yaml": block("yaml", 1),
        "labelled.jsonl": json.dumps(LABELLED),
        "aspects.jsonl": block("jsonl"),
        "references.jsonl": block("jsonl", 1),
        "filled.csv": FILLED,
        "key.csv": KEY,
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "relations.jsonl").write_text(
        '{"premise_id": "r", "hypothesis_id": "c", "relation": "entailment"}\n', encoding="utf-8"
    )
    (folder / "nodes.jsonl").write_text(
        '{"id": "c", "text": "In 1912.", "origin": "context"}\n'
        '{"id": "r", "text": "On 3 May 1912.", "origin": "response"}\n',
        encoding="utf-8",
    )
    (folder / "verdicts").mkdir()
    pq.write_table(pa.Table.from_pylist(VERDICTS), folder / "verdicts" / "part-0.parquet")
    (folder / "conf" / "demo").mkdir(parents=True)
    shutil.copy(ROOT / "conf" / "demo" / "corpus.jsonl", folder / "conf" / "demo")
    night = folder / "incoming" / "2026-11-20"
    night.mkdir(parents=True)
    (night / "answers.jsonl").write_text(block("json"), encoding="utf-8")
    return folder


@pytest.mark.parametrize("command", parameters())
def test_a_command_of_the_readme_works(
    run_here: RunHere, monkeypatch: pytest.MonkeyPatch, command: str, folder: Path, server: ModelServer
) -> None:
    words = shlex.split(command.replace("http://localhost:8000/v1", server.base_url))
    assert words[0] == "untold"
    environment = {"UNTOLD_PROMPTS_DIR": str(PROMPTS), "OPENAI_API_KEY": "not-a-real-key"}
    if server.base_url not in command:
        environment["UNTOLD_LLM__BASE_URL"] = server.base_url
        environment["UNTOLD_LLM__MODEL"] = "fake-model"
    if words[1] in ("schema", "prompts"):
        environment.pop("UNTOLD_PROMPTS_DIR")
    monkeypatch.chdir(folder)
    if command == AS_IT_STANDS:
        line = [sys.executable, "-P", "-m", "untold.jobs.cli", *words[1:]]
        run = subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        code, out, err = run.returncode, run.stdout, run.stderr
    else:
        ended = run_here.command(absolute_inputs(words[1:], folder), environment)
        code, out, err = ended.code, ended.out, ended.err
    assert code == 0, err
    assert out.strip()


def test_the_python_of_the_readme_reads_what_the_commands_wrote(folder: Path) -> None:
    scores = open_run(str(folder / "results")).table("scores").to_pylist()
    assert [row["status"] for row in scores] == ["ok"]
    nightly = open_run(str(folder / "nightly" / "2026-11-20")).table("scores").to_pylist()
    assert [row["status"] for row in nightly] == ["ok"]
    assert list((folder / "nightly" / "completions" / "v1").glob("evaluate_coverage-*/*.parquet"))
