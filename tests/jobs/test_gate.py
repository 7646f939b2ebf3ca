"""`untold compare BASE CANDIDATE --max-drop X`: exit codes, the comment, the XML for CI, and hostile names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.jobs.gates import Scored, failed, write_run
from untold.graph.views import one_line
from untold.jobs.cli.main import main
from untold.jobs.summary.gate import FAIL, INCONCLUSIVE, MARK, PASS

HALVES = [Scored(n, 0.25 + 0.5 * (n % 2)) for n in range(30)]
WORSE = [replace(one, score=(one.score or 0) - 0.2 - 0.01 * (one.question % 3)) for one in HALVES]
NOISE = [replace(one, score=0.25 + 0.5 * (one.question % 3 > 0)) for one in HALVES]
# Names as another tool, or an attacker, may write them
HOSTILE = 'a|b`c`\n\r\t<script>&"\x00\x07\x1b\x85\ufffe\u202e[x](http://h) *_~@user \\| -->'


@pytest.fixture
def base(tmp_path: Path) -> str:
    return write_run(tmp_path / "base", HALVES)


def cases_of(file: Path) -> dict[tuple[str, str], list[tuple[str, dict[str, str]]]]:
    """Return the elements of each case of a file of JUnit: tags and attributes."""
    root = ElementTree.parse(file).getroot()
    (suite,) = root
    cases = list(suite)
    for one in (root, suite):
        tags = [child.tag for case in cases for child in case]
        assert one.attrib["tests"] == str(len(cases))
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert one.attrib[name] == str(tags.count(tag))
    return {
        (case.attrib["classname"], case.attrib["name"]): [(child.tag, child.attrib) for child in case] for case in cases
    }


@pytest.mark.parametrize(
    ("rows", "code", "verdict", "tags"),
    [
        (HALVES, 0, PASS, ["system-out"]),
        (WORSE, 4, FAIL, ["failure"]),
        (NOISE, 8, INCONCLUSIVE, ["skipped"]),
        ([*HALVES[:25], *(failed(n) for n in range(25, 30))], 8, INCONCLUSIVE, ["error"]),
        (HALVES[:25], 8, INCONCLUSIVE, ["error"]),
        ([*WORSE[:29], failed(29)], 4, FAIL, ["failure"]),
    ],
    ids=["equal", "worse", "noise", "failed", "lost", "worse and failed"],
)
def test_the_exit_code_and_the_files_have_one_verdict(
    tmp_path: Path,
    base: str,
    capsys: pytest.CaptureFixture[str],
    rows: list[Scored],
    code: int,
    verdict: str,
    tags: list[str],
) -> None:
    candidate = write_run(tmp_path / "candidate", rows)
    files = {name: tmp_path / f"file.{name}" for name in ("markdown", "junit")}
    words = ["compare", base, candidate, "--max-drop", "0.02", "--metric", "qa"]
    words += [word for name, file in files.items() for word in (f"--{name}", str(file))]
    assert main(words) == code
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].startswith(f"{verdict}: ")
    comment = files["markdown"].read_text(encoding="utf-8")
    assert comment.startswith(f"{MARK}\n\n### Untold: {verdict}: ")
    ((name, children),) = cases_of(files["junit"]).items()
    assert (name, [tag for tag, _ in children]) == (("untold.qa", "a"), tags)
    if verdict != PASS:
        (attributes,) = [attributes for _, attributes in children]
        assert attributes["message"].startswith(f"{verdict}: ")
        # The reason is the same in all three
        assert attributes["message"] in shown
        assert attributes["message"] in unescape(comment)
        assert attributes.get("type") == (None if tags == ["skipped"] else verdict)
    assert main([*words, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["max_drop"], found["base"], found["candidate"]) == (verdict, 0.02, base, candidate)
    assert [(drop["metric"], drop["system"], drop["verdict"], drop["n"]) for drop in found["drops"]] == [
        ("qa", "a", verdict, 30)
    ]


def test_a_process_of_the_command_ends_with_the_code(tmp_path: Path, base: str) -> None:
    """It starts neither Spark nor Ray."""
    candidate = write_run(tmp_path / "candidate", NOISE)
    words = ["compare", base, candidate, "--max-drop", "0.02"]
    code = "import sys; from untold.__main__ import main; code = main(); print(*{'pyspark', 'ray'} & {*sys.modules}); "
    line = [sys.executable, "-c", f"{code} sys.exit(code)", *words]
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (8, "")
    *_, verdict, engines = ended.stdout.splitlines()
    assert (verdict, engines) == ("INCONCLUSIVE: 1 of 1 mean may have fallen by more than 0.02", "")
    assert re.search(r"INCONCLUSIVE: the mean changed by .*; about [\d,]+ questions would decide", ended.stdout)


def test_hostile_names_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name is neither markup of the comment, nor broken XML, nor a control sequence of a terminal."""
    rows = {"base": HALVES, "candidate": WORSE}
    outputs = [
        write_run(
            tmp_path / name,
            [
                replace(one, system=system, kind=HOSTILE, metric="qa|`m`")
                for one in own
                for system in (HOSTILE, "plain")
            ],
        )
        for name, own in rows.items()
    ]
    comment, junit = tmp_path / "comment.md", tmp_path / "junit.xml"
    words = ["compare", *outputs, "--max-drop", "0.02", "--markdown", str(comment), "--junit", str(junit)]
    assert main(words) == 4
    shown = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    shown_name = one_line(HOSTILE)
    # The parser of XML returns the same characters, without those that XML forbids
    assert set(cases_of(junit)) == {("untold.qa|`m`", shown_name), ("untold.qa|`m`", "plain")}
    text = comment.read_text(encoding="utf-8")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ufffe]", text)
    table = [line for line in text.splitlines() if line.startswith("|")]
    # The same number of cells on each line, and no character of a name that Markdown or HTML reads
    assert {line.count("|") for line in table} == {table[0].count("|")}
    names = re.findall(r"<code>(.*?)</code>", text)
    assert len(names) == 8
    assert not [name for name in names if re.search(r"[^\w .#&;-]|_", name)]
    assert {unescape(name) for name in names} == {"qa|`m`", shown_name, "plain"}
    assert text.count("<") == text.count("<code>") + text.count("</code>") + text.count(MARK)


def test_a_name_without_a_letter_is_shown(tmp_path: Path, base: str) -> None:
    junit = tmp_path / "junit.xml"
    candidate = write_run(tmp_path / "candidate", [replace(one, system="\x00") for one in HALVES])
    assert main(["compare", base, candidate, "--max-drop", "0.02", "--junit", str(junit)]) == 0
    assert list(cases_of(junit)) == [("untold.qa", "\ufffd")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["base"], "--max-drop compares two outputs: untold compare BASE CANDIDATE --max-drop X"),
        (["base", "base", "base"], "--max-drop compares two outputs"),
        (["base", "base", "--measure", "one_sided"], "--max-drop compares scores; leave out --measure"),
        (["base", "base", "--max-drop", "2"], "must be a number from 0 to 1, got 2"),
    ],
    ids=str,
)
def test_a_wrong_use_is_exit_code_2(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "--max-drop", "0.1", *words])
    assert message in capsys.readouterr().err


def test_files_of_a_gate_require_a_gate(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--markdown", "--junit"):
        with pytest.raises(SystemExit, match="2"):
            main(["compare", base, option, "file"])
        assert "--markdown and --junit require --max-drop" in capsys.readouterr().err


def errors_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["compare", "--max-drop", "0.02", *words]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err


def test_runs_that_cannot_be_compared_are_one_line(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error is not a verdict: the exit code is 1, and no file is written."""
    other = write_run(tmp_path / "other", [replace(one, metric="nli") for one in HALVES])
    comment = tmp_path / "comment.md"
    assert "other has no scores of metric qa" in errors_of(capsys, base, other, "--markdown", str(comment))
    assert not comment.exists()
    assert "did you mean qa?" in errors_of(capsys, base, other, "--metric", "q")
    assert "is given twice" in errors_of(capsys, base, base)
    empty = write_run(tmp_path / "empty", [])
    assert "empty has no scores of metric qa" in errors_of(capsys, base, empty)
    running = Path(write_run(tmp_path / "running", HALVES))
    (running / "manifest.json").write_text(json.dumps({"status": "running", "metrics": ["qa"]}))
    assert "the run has not ended" in errors_of(capsys, base, str(running))


def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = write_run(tmp_path / "candidate", HALVES)
    (tmp_path / "folder").mkdir()
    assert str(tmp_path / "folder") in errors_of(capsys, base, candidate, "--junit", str(tmp_path / "folder"))


def test_each_metric_and_system_is_a_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(change: dict[str, float]) -> list[Scored]:
        return [
            replace(one, system=system, metric=metric, score=(one.score or 0) - change.get(metric + system, 0))
            for metric in ("e2e", "qa")
            for system in ("a", "b")
            for one in HALVES
        ]

    outputs = [write_run(tmp_path / "base", rows({})), write_run(tmp_path / "candidate", rows({"qab": 0.125}))]
    junit = tmp_path / "junit.xml"
    assert main(["compare", *outputs, "--max-drop", "0.02", "--junit", str(junit), "--json"]) == 4
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    verdicts = {(drop["metric"], drop["system"]): drop["verdict"] for drop in found["drops"]}
    assert verdicts == {("e2e", "a"): PASS, ("e2e", "b"): PASS, ("qa", "a"): PASS, ("qa", "b"): FAIL}
    tags = {name: [tag for tag, _ in children] for name, children in cases_of(junit).items()}
    expected = {PASS: ["system-out"], FAIL: ["failure"]}
    assert tags == {(f"untold.{metric}", system): expected[one] for (metric, system), one in verdicts.items()}
    assert main(["compare", *outputs, "--max-drop", "0.02", "--metric", "e2e"]) == 0
