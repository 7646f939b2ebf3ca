"""The action of GitHub and the files of docs/howto/ci.md: a shell runs their steps, and their commands are valid."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.model_server import ModelServer
from tests.jobs.gates import Scored, write_run
from tests.runs.harness import SETTINGS, clean_environment, write_samples
from tests.test_snippets import SNIPPETS
from untold.jobs.cli.commands import COMMANDS
from untold.jobs.run_tables import open_run
from untold.jobs.settings.layers import unknown_variables
from untold.jobs.settings.loading import load_given
from untold.jobs.summary.gate import MARK

ROOT = Path(__file__).resolve().parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: Sequence[Mapping[str, Any]] = ACTION["runs"]["steps"]
FILES = {one.title: one.text for one in SNIPPETS if one.page == "docs/howto/ci.md" and one.title}
# In place of `untold` or `pip`: writes its words, and ends with the code of its subcommand
SHIM = """#!/bin/sh
echo "$(basename "$0")" "$@" >> "$LOG"
eval "code=\\${CODE_$1:-0}"
if [ "$1" = compare ] && [ "$code" != 1 ]; then echo comment > "$COMMENT"; fi
exit "$code"
"""
UNTOLD = f'#!/bin/sh\nexec {sys.executable} -m untold "$@"\n'


def write_program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@dataclass
class Workflow:
    """A run of the action in a folder. `programs` is the first folder of PATH."""

    folder: Path
    programs: Path
    inputs: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)

    def evaluate(self, text: str) -> str:
        """Return a text with the values of its expressions."""
        given = {name: one.get("default", "") for name, one in ACTION["inputs"].items()} | dict(self.inputs)
        known = {f"inputs.{name}": value for name, value in given.items()}
        known |= {"github.action_path": str(ROOT), "github.run_id": "7", "github.run_attempt": "1"}
        known |= {f"steps.compare.outputs.{name}": value for name, value in self.outputs.items()}
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: known[found[1]], text)

    def run(self) -> int:
        """Run the steps with a script like GitHub does, up to the first failure. Return the exit code."""
        files = {name: self.folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.write_text("")
        code = 0
        for step in STEPS:
            if "run" not in step or code:
                continue
            assert step["shell"] == "bash"
            # A value of an input in the script could be a command
            assert "${{" not in step["run"]
            own = {name: self.evaluate(value) for name, value in step["env"].items()}
            path = os.pathsep.join([str(self.programs), os.environ["PATH"]])
            environment = {**clean_environment(), "PATH": path, **map_texts(files), **self.variables, **own}
            line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            ended = subprocess.run(line, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
            code, self.errors = ended.returncode, ended.stderr
            self.outputs |= dict(row.split("=", 1) for row in files["GITHUB_OUTPUT"].read_text().splitlines())
        return code


def map_texts(values: Mapping[str, Path]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def check_command(line: str) -> dict[str, Any]:
    """Return the options of a command line of `untold`. An unknown option or a wrong value is an error."""
    program, name, *words = shlex.split(line)
    assert program == "untold"
    found: dict[str, Any] = COMMANDS[name].make_context(name, words).params
    return found


@pytest.fixture
def shims(tmp_path: Path) -> dict[str, str]:
    """Replace the programs, and return the variables that they read."""
    for name in ("untold", "pip"):
        write_program(tmp_path / "bin", name, SHIM)
    (tmp_path / ".untold").mkdir()
    return {"LOG": str(tmp_path / "log"), "COMMENT": str(tmp_path / ".untold" / "comment.md")}


GIVEN = {"base": "base rows.jsonl", "candidate": "new.jsonl", "options": "--endpoint judge --set llm.model=a"}


@pytest.mark.parametrize(
    ("codes", "inputs", "code", "verdict"),
    [
        ({}, {}, 0, "PASS"),
        ({"CODE_compare": "4"}, {}, 4, "FAIL"),
        ({"CODE_compare": "8"}, {}, 8, "INCONCLUSIVE"),
        ({"CODE_compare": "8"}, {"inconclusive": "pass"}, 0, "INCONCLUSIVE"),
        ({"CODE_compare": "4"}, {"inconclusive": "pass"}, 4, "FAIL"),
        ({"CODE_compare": "1"}, {}, 1, None),
        ({"CODE_score": "5"}, {}, 5, None),
        ({"CODE_install": "1"}, {}, 1, None),
    ],
    ids=str,
)
def test_the_action_ends_with_the_verdict(
    tmp_path: Path,
    shims: dict[str, str],
    codes: dict[str, str],
    inputs: dict[str, str],
    code: int,
    verdict: str | None,
) -> None:
    workflow = Workflow(tmp_path, tmp_path / "bin", {**GIVEN, **inputs}, {**shims, **codes})
    assert (workflow.run(), workflow.outputs.get("verdict")) == (code, verdict)
    summary = (tmp_path / "github_step_summary").read_text()
    assert summary == ("" if verdict is None else "comment\n")


def test_the_commands_of_the_action_are_valid(tmp_path: Path, shims: dict[str, str]) -> None:
    assert Workflow(tmp_path, tmp_path / "bin", {**GIVEN, "metric": "e2e,nli"}, shims).run() == 0
    install, *commands = (tmp_path / "log").read_text().replace("base rows.jsonl", "'base rows.jsonl'").splitlines()
    assert install == f"pip install --quiet {ROOT}[engine]"
    base, candidate, compare = map(check_command, commands)
    assert (base["input"], candidate["input"]) == ("base rows.jsonl", "new.jsonl")
    assert (base["output"], candidate["output"]) == compare["runs"] == (".untold/base", ".untold/candidate")
    assert base["overrides"] == candidate["overrides"]
    assert base["overrides"][:2] == ("completion_store=.untold/completions", "fail_on_error=none")
    assert base["overrides"][2:] == ("llm.model=a",)
    assert (base["endpoint"], base["metric"], compare["metrics"]) == ("judge", ("e2e", "nli"), ("e2e", "nli"))
    assert (compare["max_drop"], compare["markdown"]) == (0.02, ".untold/comment.md")
    assert compare["junit"] == ".untold/junit.xml"


def test_an_input_is_never_run_as_a_command(tmp_path: Path, shims: dict[str, str]) -> None:
    hostile = {name: f"$(touch {tmp_path}/{name}); `touch {tmp_path}/{name}`" for name in ACTION["inputs"]}
    Workflow(tmp_path, tmp_path / "bin", {**hostile, "folder": ".untold"}, shims).run()
    assert not [name for name in hostile if (tmp_path / name).exists()]


def test_the_cache_is_saved_under_the_key_that_is_restored() -> None:
    """A failed comparison comes after the save, and a failed scoring does not prevent it."""
    names = [step["name"] for step in STEPS]
    restore, save = (STEPS[names.index(f"{word} the completions")] for word in ("Restore", "Save"))
    assert save["with"].items() <= restore["with"].items()
    assert restore["with"]["key"].startswith(restore["with"]["restore-keys"])
    assert names.index("Save the completions") < names.index("Compare")
    assert "always()" in save["if"]
    assert "always()" in STEPS[names.index("Upload the results")]["if"]


def test_the_workflow_passes_the_inputs_of_the_action() -> None:
    workflow = yaml.safe_load(FILES[".github/workflows/untold.yml"])
    (job,) = workflow["jobs"].values()
    (step,) = [step for step in job["steps"] if step.get("id") == "untold"]
    assert step["with"].keys() <= ACTION["inputs"].keys()
    required = {name for name, one in ACTION["inputs"].items() if one.get("required")}
    assert required <= step["with"].keys()
    assert re.findall(r"steps\.untold\.outputs\.(\w+)", str(job)) == ["comment"]
    assert "comment" in ACTION["outputs"]


def test_the_job_of_gitlab_ends_with_the_code_of_the_comparison(tmp_path: Path, shims: dict[str, str]) -> None:
    (job,) = yaml.safe_load(FILES[".gitlab-ci.yml"]).values()
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    for code in (0, 4, 8):
        environment = {**clean_environment(), "PATH": path, **shims, "CODE_compare": str(code)}
        ended = subprocess.run(["bash", "-ec", "\n".join(job["script"])], cwd=tmp_path, env=environment, check=False)
        assert ended.returncode == code
    assert job["allow_failure"] == {"exit_codes": 8}
    check_files(job["script"], [*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]])
    check_settings(job["variables"], f"$CI_PROJECT_DIR/{job['cache']['paths'][0]}")


def test_the_pipeline_of_jenkins_has_valid_commands() -> None:
    text = FILES["Jenkinsfile"]
    files = re.findall(r"(?:junit|archiveArtifacts) '(.*?)'", text)
    check_files(re.findall(r"'(untold .*?)'", text), [files[1], files[0]])
    assert text.count("{") == text.count("}")
    check_settings(dict(re.findall(r"(UNTOLD_\w+) = ['\"](.*)['\"]", text)), "${JENKINS_HOME}/untold/completions")


def check_settings(variables: Mapping[str, str], store: str) -> None:
    """Check that the variables of a job are settings: the store, and no limit of failed samples."""
    given = load_given(None, (), variables)
    assert (given.completion_store, given.fail_on_error) == (store, "none")
    assert unknown_variables(variables) == []
    assert len(variables) == 2


def check_files(commands: Sequence[str], files: Sequence[str]) -> None:
    """Check the commands of a configuration: two runs, their comparison, and the kept files of the comparison."""
    base, candidate, compare = map(check_command, commands)
    assert compare["runs"] == (base["output"], candidate["output"])
    assert (compare["max_drop"], [compare["markdown"], compare["junit"]]) == (0.02, files)


def test_the_commands_of_the_page_are_valid() -> None:
    (first, _) = [one.text for one in SNIPPETS if one.page == "docs/howto/ci.md" and one.language == "bash"]
    check_files(first.splitlines(), ["comment.md", "junit.xml"])


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    for name in ("base", "candidate"):
        write_run(tmp_path / name, [Scored(n, 0.5 + 0.25 * (n % 2), metric="nli") for n in range(20)])
    (tmp_path / "test_responses.py").write_text(FILES["test_responses.py"])
    (_, last) = [one.text for one in SNIPPETS if one.page == "docs/howto/ci.md" and one.language == "bash"]
    words = shlex.split(last)
    line = [sys.executable, "-m", *words, "-q", "-p", "untold.pytest_plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, "3 passed" in ended.stdout) == (0, True), ended.stdout


def samples(responses: Sequence[str]) -> list[dict[str, Any]]:
    """Return samples with two statements each. A response covers the statements that it contains."""
    return [
        {
            "sample_id": str(number),
            "query": f"What is known of {number}?",
            "contexts": [f"Fact {number} is red.", f"Fact {number} is round."],
            "response": response.format(number),
        }
        for number, response in enumerate(responses)
    ]


@pytest.mark.gate
def test_a_pull_request_pays_only_for_changed_responses(tmp_path: Path) -> None:
    """The steps run in a shell with the real command, and a model server counts the requests."""
    write_program(tmp_path / "bin", "untold", UNTOLD)
    write_program(tmp_path / "bin", "pip", "#!/bin/sh\n")
    (tmp_path / "settings.yaml").write_text(
        yaml.safe_dump({key: str(value) for key, value in SETTINGS.items()}), encoding="utf-8"
    )
    both = "Fact {0} is red. Fact {0} is round."
    base = [both] * 6
    with ModelServer() as server:
        inputs = {
            **{name: str(tmp_path / f"{name}.jsonl") for name in ("base", "candidate")},
            "metric": "e2e",
            "options": f"--config {tmp_path / 'settings.yaml'} --set llm.base_url={server.base_url}",
        }

        def run(name: str, candidate: Sequence[str], store: Path | None) -> tuple[int, Workflow]:
            folder = tmp_path / name
            folder.mkdir()
            if store is not None:
                # The cache of GitHub
                shutil.copytree(store, folder / ".untold" / "completions")
            write_samples(tmp_path / "base.jsonl", samples(base))
            write_samples(tmp_path / "candidate.jsonl", samples(candidate))
            workflow = Workflow(folder, tmp_path / "bin", inputs)
            return workflow.run(), workflow

        code, workflow = run("main", base, None)
        assert (code, workflow.outputs["verdict"]) == (0, "PASS"), workflow.errors
        paid = server.count()
        assert server.count("evaluate_coverage") >= 6
        changed = [*base[:4], "Fact {0} is red.", "Fact {0} is round."]
        code, workflow = run("pull", changed, tmp_path / "main" / ".untold" / "completions")
        assert (server.count() - paid, server.count("summarise_context")) == (2, 12)
        assert (code, workflow.outputs["verdict"]) == (8, "INCONCLUSIVE"), workflow.errors
        scores = open_run(str(tmp_path / "pull" / ".untold" / "candidate")).table("scores")["score"].to_pylist()
        assert sorted(scores) == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
        summary = (tmp_path / "pull" / "github_step_summary").read_text()
        assert summary.startswith(f"{MARK}\n\n### Untold: INCONCLUSIVE")
        # Three more changed responses; the outputs of the last run are still there
        write_samples(tmp_path / "candidate.jsonl", samples(["Fact {0} is red."] * 5 + ["Fact {0} is round."]))
        assert (workflow.run(), workflow.outputs["verdict"]) == (4, "FAIL"), workflow.errors
        assert server.count() - paid == 2 + 4
