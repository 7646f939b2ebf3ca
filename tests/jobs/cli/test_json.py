"""`--json` of every command that prints results, as docs/contract.md, "JSON", lists it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import untold
from tests.fakes.model_server import ModelServer
from tests.jobs.gates import Scored, write_run
from tests.runs.harness import words_of
from tests.runs.here import RunHere
from untold.jobs import answer, doctor
from untold.jobs.answer import AnswerOutcome
from untold.jobs.cli.arguments import JSON
from untold.jobs.cli.commands import COMMANDS
from untold.jobs.cli.main import main
from untold.jobs.doctor import CheckResult
from untold.jobs.tables import TABLES
from untold.udfs.llm.usage import Usage
from untold.udfs.stages import STAGES

CONTRACT = (Path(__file__).resolve().parents[3] / "docs/contract/commands.md").read_text(encoding="utf-8")
# They write files, or text in a format that an option names
WITHOUT = {"report", "export", "package", "completion"}


def documented() -> dict[str, str]:
    """Return the content of the JSON of each command, as the contract describes it."""
    section = CONTRACT.split("\n## JSON\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.MULTILINE)
    return {name: content for names, content in rows for name in re.findall(r"`([\w-]+)`", names)}


def test_every_command_that_prints_results_has_the_shared_option() -> None:
    with_json = {name for name, command in COMMANDS.items() if JSON in command.params}
    assert with_json == set(COMMANDS) - WITHOUT
    assert set(documented()) == with_json
    # No command declares its own option
    flags = [one for command in COMMANDS.values() for one in command.params if "--json" in one.opts]
    assert all(one is JSON for one in flags)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with --json and return what it prints."""

    def run(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


def test_the_rows_of_a_sample(printed: Callable[..., Any]) -> None:
    run = untold.open_run(untold.demo_output())
    found = printed("show", run.directory, "--sample", "01-small", "--metric", "e2e")
    expected = run.sample("01-small")
    assert [one["score"] for one in found] == [row for row in expected["scores"] if row["metric"] == "e2e"]
    statements = [row for row in expected["statements"] if row["metric"] == "e2e"]
    assert sorted(map(str, found[0]["statements"])) == sorted(map(str, statements))
    assert found[0]["sample"]["response"] == expected["samples"][0]["response"]
    assert len(printed("show", run.directory, "--sample", "01-small")) == 3


def test_a_picture_is_not_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["show", untold.demo_output(), "--sample", "01-small", "--json", "--picture", "a.svg"])
    assert "leave out --picture" in capsys.readouterr().err


def test_the_tables_of_a_run(printed: Callable[..., Any]) -> None:
    found = printed("open", "--demo")
    run = untold.open_run(untold.demo_output())
    assert found["tables"] == {name: run.dataset(name).count_rows() for name in run.tables}
    assert (found["output"], found["status"], found["metrics"]) == (run.directory, "finished", run.manifest["metrics"])
    assert found["counts"] == run.manifest["counts"]


def test_the_columns_of_tables(printed: Callable[..., Any]) -> None:
    assert printed("schema") == {name: {one.name: str(one.type) for one in TABLES[name]} for name in TABLES}
    assert list(printed("schema", "scores")) == ["scores"]


def test_the_stages_and_the_template_of_one(printed: Callable[..., Any]) -> None:
    found = printed("prompts")
    assert [(one["stage"], tuple(one["variables"])) for one in found] == [
        (name, stage.variables) for name, stage in STAGES.items()
    ]
    assert found[0]["file"] == "summarise_context.jinja"
    template = printed("prompts", "summarise_context")
    assert template["stage"] == "summarise_context"
    assert "{{ query" in template["template"]


def test_the_checks_of_the_machine(monkeypatch: pytest.MonkeyPatch, printed: Callable[..., Any]) -> None:
    """A secret of a check is hidden, and a failed check is exit code 1."""
    monkeypatch.setenv("A_TOKEN", "sk-0123456789")
    found = [CheckResult("ok", "Java", "17"), CheckResult("FAIL", "Ray", "refused sk-0123456789")]
    monkeypatch.setattr(doctor, "check_all", lambda load, needs: iter(found))
    assert printed("doctor", code=1) == [
        {"state": "ok", "about": "Java", "text": "17"},
        {"state": "FAIL", "about": "Ray", "text": "refused (not shown)"},
    ]
    monkeypatch.setattr(doctor, "check_all", lambda load, needs: iter(found[:1]))
    assert len(printed("doctor")) == 1


def test_the_usage_of_a_spool(monkeypatch: pytest.MonkeyPatch, printed: Callable[..., Any]) -> None:
    stages = {"evaluate_coverage": Usage(10, calls=2, done=2, cost=0.5)}
    monkeypatch.setattr(answer, "answer", lambda request, display: AnswerOutcome(3, stages, 1, "the budget is used up"))
    found = printed("answer", "spool", code=3)
    assert (found["exit_code"], found["left"], found["message"]) == (3, 1, "the budget is used up")
    assert {name: found["stages"]["evaluate_coverage"][name] for name in ("calls", "done", "cost")} == {
        "calls": 2,
        "done": 2,
        "cost": 0.5,
    }


SAMPLE = {"sample_id": "a", "query": "q", "response": "It is so.", "contexts": ["It is so.", "It is not."]}
RELATION = {"premise_id": "1", "hypothesis_id": "2", "relation": "entailment"}
DOCUMENT = {"document_id": "1", "text": "A lake is a body of water."}


@pytest.mark.gate
def test_the_end_of_a_run(tmp_path: Path, server: ModelServer, run_here: RunHere) -> None:
    """The commands print one JSON value on standard output, and their progress on standard error."""
    for name, row in (("samples", SAMPLE), ("relations", RELATION), ("documents", DOCUMENT)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")

    def run(command: str, *words: str) -> Any:
        ended = run_here.command([command, *words, "--output", str(tmp_path / command), "--json"])
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    words = words_of(server, tmp_path / "samples.jsonl", tmp_path / "score")
    scored = run("score", *words[1:3], *words[5:])
    assert (scored["status"], scored["exit_code"], scored["message"]) == ("finished", 0, None)
    assert scored["counts"]["samples"] == 1
    overall = [row for row in scored["summary"] if row["level"] == "overall"]
    assert [(row["metric"], row["n"], row["mean"]) for row in overall] == [("e2e", 1, 0.5)]
    # A second start changes nothing, and prints the same
    assert run("score", *words[1:3], *words[5:]) == scored
    condensed = run("condense", "--relations", str(tmp_path / "relations.jsonl"))
    assert condensed["output"] == str(tmp_path / "condense")
    assert (condensed["counts"]["graphs"], condensed["counts"]["relations"]) == (1, 1)
    indexed = run("index", "--input", str(tmp_path / "documents.jsonl"))
    assert (indexed["status"], indexed["counts"]["documents"]) == ("finished", 1)


def test_systems_and_pairs(tmp_path: Path, printed: Callable[..., Any]) -> None:
    rows = [Scored(n, 0.5 + 0.1 * (n % 2) * (system == "b"), system=system) for n in range(20) for system in "ab"]
    found = printed("compare", write_run(tmp_path / "run", rows))
    assert [row["system"] for row in found["systems"]] == ["b", "a"]
    assert [(row["first"], row["second"], row["n"]) for row in found["comparisons"]] == [("b", "a", 20)]
