"""Test the completion of the shell and the groups of the help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from untold.jobs.cli.arguments import COMPLETE
from untold.jobs.cli.commands import COMMANDS
from untold.jobs.cli.main import GROUPS, main

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("untold sc", ["score", "schema"]),
        ("untold score --metric im", ["importance"]),
        ("untold score --metric e2e,im", ["e2e,importance"]),
        ("untold plan --set llm.mod", ["llm.model="]),
        ("untold prompts extract_a", ["extract_atoms"]),
        ("untold schema summ", ["summary"]),
        ("untold score --form", ["--format"]),
        ("untold score --format rag", ["ragas", "ragchecker", "ragtime"]),
        ("untold doctor --endpoint open", ["openai", "openai-reasoning", "openrouter"]),
        ("untold export run --to p", ["parquet", "phoenix"]),
        ("untold completion z", ["zsh"]),
    ],
)
def test_a_shell_completes_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, words: list[str]
) -> None:
    for name, value in {COMPLETE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(f"plain,{word}" for word in words)


@pytest.mark.parametrize(("line", "kind"), [("untold score --input ", "file"), ("untold score --output ", "dir")])
def test_a_shell_completes_paths_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, kind: str
) -> None:
    for name, value in {COMPLETE: "zsh_complete", "COMP_WORDS": line, "COMP_CWORD": "3"}.items():
        monkeypatch.setenv(name, value)
    main([])
    assert capsys.readouterr().out.startswith(f"{kind}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main(["completion", shell]) == 0
    assert f"{COMPLETE}={shell}_complete" in capsys.readouterr().out


def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    command = tmp_path / "untold"
    command.write_text(f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m untold "$@"\n')
    command.chmod(0o755)
    program = 'eval "$(untold completion bash)"; COMP_WORDS=(untold exp); COMP_CWORD=1; _untold_completion untold; '
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "-c", f'{program} echo "${{COMPREPLY[@]}}"'],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "export\n"


@pytest.mark.parametrize("line", ["untold", "untold sc", "untold score --metric e", "untold score --set llm."])
def test_completion_imports_no_engine(line: str) -> None:
    """The help imports no engine either. The command `untold` prints it."""
    program = (
        "import sys\nfrom untold.jobs.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), len(sys.modules), file=sys.stderr)"
    )
    asked = {COMPLETE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    words, asked = ([], asked) if " " in line else (["--help"], {})
    ended = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT,
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    *imported, count = ended.stderr.split()
    assert {"pyspark", "ray", "scipy", "openai", "matplotlib", "pandas"} & set(imported) == set()
    # A line without options only needs the modules of the help. A hundred modules take 0.1 seconds
    assert int(count) < (1000 if "--" in line else 350)


def test_the_help_has_every_command_once_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    headings = [line[:-1] for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options", *GROUPS]
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ") and line[2].isalpha()]
    assert sorted(name for name in listed if name in COMMANDS) == sorted(COMMANDS)
