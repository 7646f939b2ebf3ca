"""Every snippet of the README and of the pages in `docs/` runs, on a model server on this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fakes.model_server import ModelServer
from tests.jobs.metrics.test_toy_metric import ENTRY_POINTS, TEMPLATE, TOY
from tests.notebooks import execute, path_of, text_of
from tests.runs.cluster import SHARED_RAY, SharedCluster
from tests.runs.harness import write_foreign_modules
from tests.runs.here import RunHere
from untold.jobs.cli.commands import COMMANDS
from untold.jobs.run_tables import open_run
from untold.jobs.settings.layers import read_yaml

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ROOT / "tests" / "fakes" / "prompts"
# The README, and then the pages in the order of the site, because a page can read the output of an earlier page
PAGES = (
    "README.md",
    *(f"docs/{page}" for page in re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)),
)
FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LANGUAGES = {"bash", "cron", "python", "json", "jsonl", "yaml", "toml", "jinja", "groovy"}
# Files of pages that are not settings of Untold, and tests, which pytest runs
CI_FILES = (".github/workflows/untold.yml", ".gitlab-ci.yml", "Jenkinsfile")
TEST_FILES = ("test_responses.py",)
RUN_ELSEWHERE = {
    "pip install -e '.[engine]' && untold demo": "tests/jobs/test_demo.py",
    "pip install -e '.[test]' && pytest": ".ci/run",
    # The templates of these tests are the same for each `prompt_set`
    "untold meta-evaluate --dataset wikicontradict --input labelled.jsonl --output two-prompts --metric e2e "
    "--prompt-set published,untold": "tests/runs/test_meta_evaluate.py",
    # The completions of these tests have no claims for this sample, so there are no values for a sweep
    "untold sweep grounded": "tests/jobs/test_sweep.py",
    "untold answer /shared/spool --ray-address ray://ray-head:10001": "tests/runs/test_spool.py",
    **{
        f"untold {words}": "tests/runs/test_batches.py"
        for words in (
            "score --input answers.jsonl --output batched --metric e2e --config batches.yaml",
            "score --input answers.jsonl --output batched --metric e2e --config batches.yaml --no-poll",
            *("batches batched", "batches batched fetch", "batches batched cancel"),
        )
    },
    "untold doctor --config replicas.yaml": "tests/jobs/test_doctor.py",
    # This command needs a panel of judges
    "untold compare scored --judges --families rag-a=gpt,rag-b=claude": "tests/jobs/summary/test_judge_families.py",
    # This command needs prices
    "untold estimate --proxy judge --input answered/samples --metric nli --judge-budget 20 --output estimated": (
        "tests/runs/test_judge_budget.py"
    ),
    # The samples of these commands belong to a project
    **dict.fromkeys(
        (
            *(
                f"untold score --input {name}.jsonl --output {name} --metric nli --set completion_store=completions "
                "--set fail_on_error=none"
                for name in ("base", "candidate")
            ),
            "untold compare base candidate --max-drop 0.02 --markdown comment.md --junit junit.xml",
            "pytest test_responses.py --untold-run candidate",
        ),
        "tests/test_ci.py",
    ),
    "untold package --output /shared/untold": "tests/test_distribution.py",
    "untold score --input answers.jsonl --output /shared/out --metric e2e "
    "--config /shared/untold/cluster.yaml": "tests/test_distribution.py",
    "UNTOLD_RUN=results jupyter lab notebooks/results.ipynb": "tests/test_snippets.py",
    "jupyter lab notebooks/results.ipynb": "tests/test_notebooks.py",
    "pip install 'untold[notebook]' jupyterlab": "tests/test_distribution.py",
    "pip install 'untold[platform]'": "tests/test_distribution.py",
    # Training needs the packages of the extra `judge`
    **dict.fromkeys(
        (
            "pip install -e '.[engine,judge]'",
            "python tools/train_judge.py --pairs pairs.jsonl.gz --base all-MiniLM-L6-v2 "
            "--tokenizer conf/minilm/tokenizer.json --out trained",
            "python tools/export_judge.py --weights trained/model.pt --base all-MiniLM-L6-v2 "
            "--tokenizer conf/minilm/tokenizer.json --held-back held_back.jsonl.gz --out conf/judge",
            "python tools/measure_judge.py --k-qa data/k_qa --realsumm held_back.jsonl.gz --wikicontradict "
            "data/wikicontradict",
        ),
        "tests/test_judge_tools.py",
    ),
}
# The same jobs as others, under other settings
SLOW = (
    *("results-vllm", "results-config", "--annotation-sheet", "demo --metric icat", "--output rescored"),
    *(
        "results-graph",
        "recalled",
        "--output calibrated",
        "--output repeated",
        "meta-evaluate --dataset wikicontradict",
    ),
    "plan --input answers.jsonl --metric e2e",
)
# This command runs in its own process in the folder of the user. The others run in this process
AS_IT_STANDS = "untold score --input answers.jsonl --output results --metric e2e"
# Whole jobs of the other pages. Commands that read their output follow them
GATE = (
    *("--output results-reasoning", "--metric qa,nli", "--output 'lakenights", "--output 'rescores"),
    *(
        "untold doctor --set",
        "--output library",
        "--output rubric-results",
        "--output report-results",
        "--output answered",
        "--backfill",
        "--refresh",
        "fail_on_error.share",
        "sentinel=sentinel",
    ),
    *("untold trend", "untold report", "untold meta-evaluate", "untold condense"),
)
QUICK_PAGES = ("README.md", "docs/tutorial/notebook.md", "docs/howto/extend.md")
INPUTS = ("--input", "--relations", "--nodes", "--queries")


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page: its language, the file that it is written to if any, and its text."""

    page: str
    language: str
    title: str
    text: str


SNIPPETS = [
    Snippet(page, *found)
    for page in PAGES
    if (ROOT / page).exists()  # others are generated
    for found in FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
]
COMMAND_LINES = list(
    dict.fromkeys(line for one in SNIPPETS if one.language == "bash" for line in one.text.splitlines() if line)
)
PYTHON = {
    page: [one.text for one in SNIPPETS if (one.page, one.language) == (page, "python") and one.title not in TEST_FILES]
    for page in PAGES
    if any((one.page, one.language) == (page, "python") and one.title not in TEST_FILES for one in SNIPPETS)
}
INCLUDED = f'--8<-- "{TOY.relative_to(ROOT)}"\n'

CITIES = ("Lyon", "Lyon", "Turin", "Lyon", "Osaka")
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
UNSHOWN = {
    "labelled.jsonl": json.dumps(LABELLED),
    "filled.csv": "item,method,errors\n1,1,NONE\n1,2,DUP_ATOM\n",
    "key.csv": "item,method,sample_id,metric,score,label\n1,1,a,e2e,1,Correct\n1,2,a,qa,0.5,Partially correct\n",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(answer="world") as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: the files that pages show by their titles, and inputs that no page shows."""
    folder = tmp_path_factory.mktemp("snippets")
    shown = {one.title: one.text for one in SNIPPETS if one.title}
    night = {"incoming/2026-11-20/answers.jsonl": shown["answers.jsonl"]}
    for name, text in {**shown, **UNSHOWN, **night}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    write_foreign_modules(folder)
    (folder / "verdicts").mkdir()
    pq.write_table(pa.Table.from_pylist(VERDICTS), folder / "verdicts" / "part-0.parquet")
    (folder / "conf" / "demo").mkdir()
    shutil.copy(ROOT / "conf" / "demo" / "corpus.jsonl", folder / "conf" / "demo")
    return folder


def absolute_inputs(words: Sequence[str], folder: Path) -> list[str]:
    """Return the words with absolute paths for inputs of Spark, because the JVM of the tests has another folder."""
    before = ["", *words]
    moved = [flag in INPUTS and not word.startswith("delta:") for flag, word in zip(before, words, strict=False)]
    return [str(folder / word) if found else word for found, word in zip(moved, words, strict=True)]


def written_by(command: str) -> set[str]:
    """Return the folders that a command writes."""
    found = re.findall(r"(?:--output |lakehouse\.path=)'?([\w-]+)(?![\w.-])", command)
    return {*found}


# The first command that writes a folder
WRITERS = {
    folder: command
    for command in reversed(COMMAND_LINES)
    if command not in RUN_ELSEWHERE
    for folder in written_by(command)
}


def read_by(command: str) -> set[str]:
    """Return the folders of other commands that a command reads."""
    words = {word for part in shlex.split(command)[2:] for word in re.findall(r"[\w.-]+", part)}
    return words & {*WRITERS} - written_by(command)


def read_in(code: str) -> set[str]:
    """Return the folders of commands that Python code reads."""
    return {*re.findall(r'"([\w-]+)["/]', code)} & {*WRITERS}


def is_gate(command: str) -> bool:
    """Return True if a command, or a command that writes its input, takes long."""
    return any(part in command for part in GATE) or any(is_gate(WRITERS[folder]) for folder in read_by(command))


def marks_of(command: str) -> list[pytest.MarkDecorator]:
    """Return the mark of the tier that runs a command."""
    if command == "untold doctor" or any(part in command for part in SLOW):
        return [pytest.mark.slow]
    return [pytest.mark.gate] if is_gate(command) else []


def parameters() -> list[Any]:
    return [pytest.param(line, marks=marks_of(line), id=line) for line in COMMAND_LINES if line not in RUN_ELSEWHERE]


class User:
    """A user in a folder who runs commands of pages. Before each command, the commands that write its input run."""

    def __init__(self, folder: Path, server: ModelServer, run_here: RunHere) -> None:
        self._folder, self._server, self._run_here = folder, server, run_here

    def run(self, command: str, alone: bool = False) -> tuple[int, str, str]:
        """Run a command, in its own process if `alone`. Return its exit code, its output and its errors."""
        self.prepare(read_by(command))
        words = shlex.split(command.replace("http://localhost:8000/v1", self._server.base_url))
        assert words[0] == "untold"
        environment = {"UNTOLD_PROMPTS_DIR": str(PROMPTS), "OPENAI_API_KEY": "not-a-real-key"}
        environment |= {"UNTOLD_LLM__BASE_URL": self._server.base_url, "UNTOLD_LLM__MODEL": "fake-model"}
        if words[1] in ("schema", "prompts"):
            environment.pop("UNTOLD_PROMPTS_DIR")
        if alone:
            line = [sys.executable, "-m", "untold", *words[1:]]
            # No process must import files from the folder of the user
            environment["PYTHONPATH"] = str(self._folder)
            run = subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
            return run.returncode, run.stdout, run.stderr
        ended = self._run_here.command(absolute_inputs(words[1:], self._folder), environment)
        return ended.code, ended.out, ended.err

    def prepare(self, folders: Iterable[str]) -> None:
        """Run the commands that write these folders, unless they are there."""
        for name in sorted(folders):
            if not (self._folder / name).exists():
                code, _, err = self.run(WRITERS[name])
                assert code == 0, err


@pytest.fixture
def user(folder: Path, server: ModelServer, run_here: RunHere, monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.chdir(folder)
    return User(folder, server, run_here)


def test_every_snippet_has_a_language_that_is_tested() -> None:
    assert {one.language for one in SNIPPETS} <= LANGUAGES
    fences = sum(
        len(re.findall(r"^ *```", (ROOT / page).read_text(), re.M)) for page in PAGES if (ROOT / page).exists()
    )
    assert fences == 2 * len(SNIPPETS)


def test_a_file_has_one_text_on_all_pages() -> None:
    texts = {(one.title, one.text) for one in SNIPPETS if one.title}
    assert len(texts) == len({title for title, _ in texts})


def test_commands_that_run_elsewhere_are_on_a_page() -> None:
    assert set(RUN_ELSEWHERE) <= set(COMMAND_LINES)
    assert [place for place in RUN_ELSEWHERE.values() if not (ROOT / place).exists()] == []
    assert AS_IT_STANDS in COMMAND_LINES


@pytest.mark.parametrize(
    "one", [one for one in SNIPPETS if one.language in ("json", "jsonl")], ids=lambda one: one.title
)
def test_json_is_json(one: Snippet) -> None:
    assert all(isinstance(json.loads(line), dict) for line in one.text.splitlines())


@pytest.mark.parametrize("one", [one for one in SNIPPETS if one.language == "yaml"], ids=lambda one: one.page)
def test_yaml_contains_settings(one: Snippet) -> None:
    """Settings are valid. The command reads the settings of systems, and tests/test_ci.py the files of CI."""
    assert one.title in ("systems.yaml", *CI_FILES) or read_yaml(one.text, one.page).problems == []


def test_the_documented_package_that_adds_a_metric_is_tested() -> None:
    toml, mask = [one for one in SNIPPETS if one.language == "toml"]
    assert "untold.masks" in mask.text
    groups = tomllib.loads(toml.text)["project"]["entry-points"]
    told = "\n\n".join(f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in of.items()) for group, of in groups.items())
    assert told == ENTRY_POINTS.strip()
    assert TEMPLATE in {one.text for one in SNIPPETS if one.language == "jinja"}
    assert INCLUDED in PYTHON["docs/howto/extend.md"]


def test_a_line_of_cron_starts_a_valid_command(folder: Path) -> None:
    (cron,) = [one.text for one in SNIPPETS if one.language == "cron"]
    command = cron.split(maxsplit=5)[5].replace("\\%", "%").replace("/data", str(folder))
    shim = folder / "bin" / "untold"
    shim.parent.mkdir()
    shim.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shim.chmod(0o755)
    path = os.pathsep.join([str(shim.parent), os.environ["PATH"]])
    subprocess.run(["bash", "-c", command], env={**os.environ, "PATH": path}, check=True)
    name, *words = (folder / "nightly.log").read_text(encoding="utf-8").splitlines()
    options = COMMANDS[name].make_context(name, words).params
    assert (name, options["output"], options["date"]) == ("nightly", "nightly/{date}", None)


def test_a_command_reads_the_outputs_of_earlier_commands() -> None:
    assert (read_by("untold compare ranked"), written_by(WRITERS["ranked"])) == ({"ranked"}, {"ranked"})
    assert read_by(WRITERS["ranked"]) == {"answered"}
    assert read_by("untold prune --store nightly/completions --keep-outputs 'nightly/2026-11-*'") == {"nightly"}
    assert (read_by(AS_IT_STANDS), written_by(AS_IT_STANDS)) == (set(), {"results"})
    assert read_in('open_run("results"); read_table("lake/scores"); report("report.html")') == {"results", "lake"}


@pytest.mark.parametrize("command", parameters())
def test_a_command_works(user: User, command: str) -> None:
    code, out, err = user.run(command, alone=command == AS_IT_STANDS)
    assert code == 0, err
    assert out.strip()


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page in QUICK_PAGES else pytest.mark.gate) for page in PYTHON]
)
@pytest.mark.usefixtures("spark")
def test_the_python_of_a_page_works(
    page: str,
    user: User,
    server: ModelServer,
    shared_cluster: SharedCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    user.prepare(read_in("".join(PYTHON[page])))
    capsys.readouterr()
    address = {"UNTOLD_LLM__BASE_URL": server.base_url, "UNTOLD_LLM__MODEL": "fake-model"}
    for name, value in {
        **address,
        **SHARED_RAY,
        "UNTOLD_RAY__ADDRESS": shared_cluster.address,
        "UNTOLD_PROMPTS_DIR": str(PROMPTS),
    }.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    for text in PYTHON[page]:
        if text != INCLUDED:
            exec(compile(text, page, "exec"), names)
            assert capsys.readouterr().out.strip()


@pytest.mark.gate
def test_the_notebook_shows_the_outputs_of_the_commands(user: User, folder: Path) -> None:
    user.prepare(["results"])
    shown = execute({"results": (path_of("results"), folder / "results")})["results"]
    assert "results: finished" in text_of(shown["look"])


def test_the_nightly_run_has_its_own_store(user: User, folder: Path) -> None:
    user.prepare(["nightly"])
    scores = open_run(str(folder / "nightly" / "2026-11-20")).table("scores").to_pylist()
    assert [row["status"] for row in scores] == ["ok"]
    assert list((folder / "nightly" / "completions" / "v1").glob("evaluate_coverage-*/*.parquet"))
