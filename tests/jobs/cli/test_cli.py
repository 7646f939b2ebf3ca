from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import untold
from untold.jobs import run_analysis
from untold.jobs.cli.arguments import Command, Options
from untold.jobs.cli.commands import COMMANDS
from untold.jobs.cli.main import main
from untold.jobs.run.locks import LockedError
from untold.jobs.settings.model import SettingsError
from untold.jobs.settings.templates import find_template
from untold.jobs.tables import TABLES
from untold.udfs.errors import UserError
from untold.udfs.stages import STAGES

RUN = ["--input", "in.jsonl", "--output", "out", "--metric", "nli"]
SCORE = ["score", "--input", "in.jsonl", "--output", "out", "--metric", "e2e"]


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the message for an invalid command line."""
    with pytest.raises(SystemExit) as raised:
        main(list(arguments))
    assert raised.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    return shown.err


SECRET = "s3cr3t/Value+9="


@pytest.mark.parametrize("flags", [[], ["--debug"]])
def test_no_secret_of_a_command_line_or_the_environment_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.setenv("OTHER_TOKEN", "a-value-of-the-environment")
    place = f"hdfs://user:{SECRET}@host/a-value-of-the-environment?sig={SECRET}"
    assert main(["show", place, "--sample", "s", *flags]) == 1
    shown = capsys.readouterr()
    assert "hdfs://(not shown)@host/(not shown)?sig=(not shown)" in shown.err
    assert ("Traceback" in shown.err) is bool(flags)
    assert not any(secret in shown.err + shown.out for secret in (SECRET, "a-value-of-the-environment"))


def test_the_command_to_resume_contains_no_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Options) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "score", Command("", interrupted, COMMANDS["score"].params[:-1]))
    hidden = ["--set", f"spark.conf.spark.hadoop.fs.s3a.secret.key={SECRET} {SECRET}"]
    assert main([*SCORE, *hidden, "--limit", "5"]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("--set 'spark.conf.spark.hadoop.fs.s3a.secret.key=(not shown)' --limit 5")


@pytest.mark.parametrize(
    ("unknown", "near"), [("--overwrit", "--overwrite"), ("--retry-faild", "--retry-failed"), ("--nowait", "--no-wait")]
)
def test_an_unknown_flag_names_the_nearest(capsys: pytest.CaptureFixture[str], unknown: str, near: str) -> None:
    shown = usage_error(capsys, *SCORE, unknown)
    assert "No such option" in shown
    assert f"did you mean {near}?" in shown


def test_an_unknown_flag_with_a_value_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean --limit?" in usage_error(capsys, *SCORE, "--limt=5")


def test_a_misspelt_required_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    shown = usage_error(capsys, "score", "--inputt", "in.jsonl", "--output", "out", "--metric", "e2e")
    assert "did you mean --input?" in shown


def test_a_flag_unlike_any_other_is_refused_without_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    shown = usage_error(capsys, "schema", "--zzzzzzzz")
    assert "--zzzzzzzz" in shown
    assert "did you mean" not in shown


def test_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--over" in usage_error(capsys, *SCORE, "--over")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["scor"],
        ["score"],
        ["plan", "--metric", "e2e"],
        ["score", "--input", "a", "--output", "b", "--metric", "e3e"],
        [*SCORE, "--limit", "0"],
        [*SCORE, "--limit", "many"],
        ["schema", "no_such_table"],
        ["prompts", "no_such_stage"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert "untold" in usage_error(capsys, *arguments)


def test_an_unknown_metric_is_an_error_with_the_known_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    shown = usage_error(capsys, "score", "--input", "a", "--output", "b", "--metric", "e3e")
    assert "Invalid value for '--metric': no metric" in shown
    assert "there are e2e" in shown


@pytest.mark.parametrize("command", ["score", "plan", "demo"])
def test_commands_that_run_or_plan_a_metric_take_settings(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main([command, "--help"])
    assert raised.value.code == 0
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in ("--config", "--set", "--endpoint", "--debug"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--help"], "evaluate metrics against human labels"),
        (["score", "--help"], "retry permanently failed requests"),
        (["index", "--help"], "--set KEY=VALUE"),
        (["compare", "--help"], "print all pairs"),
    ],
)
def test_the_help_explains_each_command(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert told in " ".join(capsys.readouterr().out.split())


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Add a command `fail` that raises the given error."""

    def fail(_: Options) -> int:
        raise error

    monkeypatch.setitem(COMMANDS, "fail", Command("fails", fail))


def test_a_user_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, SettingsError("llm.model: wrong"))
    assert main(["fail"]) == 1
    assert capsys.readouterr().err == "untold: llm.model: wrong\n"


def test_any_other_error_is_one_line_with_a_hint_to_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, ZeroDivisionError("first line\nsecond line"))
    assert main(["fail"]) == 1
    assert capsys.readouterr().err == "untold: ZeroDivisionError: first line; --debug shows more\n"


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, SettingsError("llm.model: wrong"))
    assert main(["fail", "--debug"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_is_130_with_the_command_that_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert main(["fail"]) == 130
    shown = capsys.readouterr().err
    assert shown.endswith("Continue with: untold fail\n")
    assert "Traceback" not in shown


def test_a_wrong_setting_is_one_line_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCORE[:4], str(tmp_path / "out"), *SCORE[5:], "--set", "llm.modle=m"]) == 1
    shown = capsys.readouterr().err
    assert "llm.modle" in shown
    assert "llm.model" in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["prompts"],
        ["prompts", "evaluate_coverage"],
        ["meta-evaluate", "--annotations", "sheet.csv", "--key", "key.csv", "--output", "out"],
        ["compare", "out"],
        ["sweep", "out"],
        ["curve", "out"],
        ["combine-studies", "a", "b", "--output", "out"],
        ["condense", "--relations", "a", "--output", "out"],
        ["index", "--input", "a", "--output", "out"],
        ["search", "--index", "a", "--query", "b"],
        pytest.param(["doctor"], marks=pytest.mark.slow),
        ["demo"],
        ["plan", "--input", "a", "--metric", "e2e"],
        ["generate", "--input", "a", "--output", "out", "--systems", "none.yaml"],
    ],
    ids=" ".join,
)
def test_a_command_that_takes_settings_reads_them(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert main([*command, "--config", "none.yaml"]) == 1
    assert "none.yaml cannot be read (No such file or directory)" in "".join(capsys.readouterr())


def test_prompts_lists_the_templates_that_a_run_would_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "--set", "llm.api=completions"]) == 0
    assert "file evaluate_coverage.text.jinja" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert (raised.value.code, capsys.readouterr().out) == (0, f"untold {version('untold')}\n")


@pytest.mark.parametrize("given", ["qa=.5", "e2e", "e2e=", "=.5", "e2e=1.5", "e2e=nan", ""])
def test_a_bar_of_no_use_is_wrong_use(capsys: pytest.CaptureFixture[str], given: str) -> None:
    assert "Invalid value for '--fail-under': " in usage_error(capsys, *SCORE, "--fail-under", given)


def test_schema_shows_every_table_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(TABLES)
    assert sum(line.startswith("  ") for line in lines) == sum(len(schema) for schema in TABLES.values())


def test_atoms_are_only_drawn_in_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--raw requires --picture" in usage_error(capsys, "show", "o", "--sample", "s", "--raw")


def test_schema_shows_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "failures"]) == 0
    columns = ["sample_id", "metric", "stage", "request_id", "error_type", "error"]
    assert capsys.readouterr().out.splitlines() == ["failures", *(f"  {name}: string" for name in columns)]


def test_prompts_lists_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(STAGES)
    assert "summarise_context: variables query, text; file summarise_context.jinja" in lines


def test_prompts_shows_the_shipped_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompts", "evaluate_coverage"]) == 0
    assert capsys.readouterr().out.strip() == find_template("evaluate_coverage", "chat", None).source.strip()


def test_prompts_shows_the_template_that_a_run_would_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evaluate_coverage.jinja").write_text("mine {{ query }}")
    chosen = ["--set", f"prompts_dir={tmp_path}", "--set", "llm.base_url=http://127.0.0.1:9/v1", "--set", "llm.model=m"]
    assert main(["prompts", "evaluate_coverage", *chosen]) == 0
    assert capsys.readouterr().out == "mine {{ query }}\n"


def test_an_unknown_variable_is_one_line_of_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UNTOLD_RUN", "UNTOLD_HOME"):
        monkeypatch.setenv(name, "/opt/untold")
    assert main(["prompts", "evaluate_coverage"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("untold: warning: UNTOLD_HOME (environment): no setting has a name like this")


def in_a_folder_with_jobs(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with packages of the same names. Their import raises an error."""
    for name in ("jobs", "udfs", "conf"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('the wrong one')\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ, check=False, timeout=60)


def test_a_folder_with_its_own_jobs_package_does_no_harm(tmp_path: Path) -> None:
    ended = in_a_folder_with_jobs(tmp_path, sys.executable, "-m", "untold", "schema", "scores")
    assert ended.stderr == ""
    assert ended.stdout.startswith("scores\n")


def test_the_command_works_in_a_folder_with_its_own_jobs_package(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("untold")
    if not command.exists():
        pytest.skip("the command untold is not installed beside this Python")
    ended = in_a_folder_with_jobs(tmp_path, str(command), "prompts")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "evaluate_coverage" in ended.stdout


def test_a_closed_pipe_is_not_an_error() -> None:
    command = f"{sys.executable} -m untold schema | head -1"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.stderr) == ("samples\n", "")


ENGINES = ("pyspark", "ray", "scipy", "openai", "aiohttp", "matplotlib", "networkx", "pandas", "jinja2")
SETTINGS_READERS = ("pydantic", "yaml")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        ("--help", (*ENGINES, *SETTINGS_READERS, "pyarrow", "numpy")),
        ("schema", (*ENGINES, *SETTINGS_READERS)),
        ("schema scores", (*ENGINES, *SETTINGS_READERS)),
        ("prompts", (*ENGINES, *SETTINGS_READERS)),
        ("prompts evaluate_coverage", (*ENGINES, "pyarrow", "numpy")),
        ("score --inputt a", (*ENGINES, *SETTINGS_READERS, "pyarrow", "numpy")),
        ("index --help", (*ENGINES, *SETTINGS_READERS, "pyarrow", "numpy")),
        ("search --query a", (*ENGINES, *SETTINGS_READERS, "pyarrow", "numpy")),
    ],
)
def test_a_command_imports_no_engine_that_it_does_not_need(arguments: str, absent: tuple[str, ...]) -> None:
    program = (
        "import sys\nfrom untold.jobs.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments.split()],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = ended.stderr.splitlines()[-1].split()
    assert "click" in imported
    assert sorted(set(absent) & set(imported)) == []


@pytest.mark.usefixtures("spark")
def test_compare_takes_several_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "absent-a", "absent-b", "--metric", "e2e"]) == 1
    assert "absent-a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["score", "--metric", "e2e", "--input"], "untold score: Option '--input' requires an argument.\n"),
        (["compare"], "untold compare: Missing argument 'RUN...'.\n"),
        (["score", "--input", "a"], "untold score: Missing option '--output'.\n"),
        (["scor"], "did you mean score?"),
        (["schema", "score"], "did you mean scores?"),
        (["prompts", "extract_atom"], "did you mean extract_atoms?"),
        ([*SCORE, "--limit", "0"], "Invalid value for '--limit': must be a positive integer, got 0\n"),
        ([*SCORE, "--limit", "many"], "Invalid value for '--limit': must be a positive integer, got many\n"),
        ([*SCORE, "--limit", "²"], "Invalid value for '--limit': must be a positive integer, got ²\n"),
        (["meta-evaluate", "--seed", "one"], "Invalid value for '--seed': must be an integer, got one\n"),
        (["sweep", "a", "--betas", "1,x"], "Invalid value for '--betas': must be numbers above 0, up to 1000, got x\n"),
        (["schema", "scores", "atoms"], "untold schema: Got unexpected extra argument (atoms)"),
        ([], "untold: Missing command.\n"),
    ],
)
def test_a_wrong_command_line_has_an_error_message(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert told in usage_error(capsys, *arguments)


def test_several_settings_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists both invalid settings, so both were read."""
    assert main([*SCORE, "--set", "llm.modle=m", "--set", "qa.question=all"]) == 1
    shown = capsys.readouterr().err
    assert "llm.modle" in shown
    assert "qa.question" in shown


def error_classes() -> list[type[BaseException]]:
    """Return the error classes of the project."""
    found = []
    for folder in ("jobs", "udfs", "graph"):
        for file in (Path(__file__).parents[3] / folder).rglob("*.py"):
            module = ".".join(["untold", *file.relative_to(Path(__file__).parents[3]).with_suffix("").parts])
            for name in re.findall(r"^class (\w+Error)\(", file.read_text(encoding="utf-8"), re.MULTILINE):
                found.append(getattr(importlib.import_module(module), name))
    return found


# The callers convert these errors into errors of their own, with the location of the problem
TURNED = {
    "RowError",
    "RefusedYamlError",
    "UnreadableFileError",
    "UndecodableError",
    "OverdueError",
    "CondensationError",
    "DamagedError",
    "NoHitsError",
    "BatchError",
    "KeyCommandError",
    "EndedError",
    "NotYetError",
    "_OtherClassesError",
    "_TooLargeError",
}


def test_every_error_that_a_user_can_fix_has_one_base_class() -> None:
    classes = error_classes()
    assert {SettingsError, LockedError} <= set(classes)
    assert {one.__name__ for one in classes if not issubclass(one, UserError)} == TURNED


@pytest.mark.parametrize(
    ("words", "absent", "told"),
    [
        (["meta-evaluate", "--output", "o"], ["nltk", "openpyxl"], "meta-evaluate needs nltk, openpyxl"),
        (["combine-studies", "s", "--output", "o"], ["matplotlib"], "combine-studies needs matplotlib"),
        (["sweep", "run"], ["matplotlib"], "sweep needs matplotlib"),
        (["curve", "run"], ["networkx"], "curve needs networkx"),
        (["show", "run", "--sample", "a", "--picture", "a.svg"], ["matplotlib"], "show --picture needs matplotlib"),
    ],
)
def test_a_command_names_the_package_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], absent: list[str], told: str
) -> None:
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(words) == 1
    assert capsys.readouterr() == ("", f"untold: {told}: pip install 'untold[study]'\n")


@pytest.mark.parametrize(
    "words",
    [
        *(["score", *RUN], ["plan", *RUN], ["nightly", *RUN], ["calibrate", *RUN]),
        *(["demo"], ["answer", "spool"], ["batches", "out"], ["package", "--output", "o"], ["curve", "run"]),
        ["generate", "--input", "in", "--output", "out", "--systems", "s.yaml"],
        *(["index", "--input", "in", "--output", "out"], ["search", "--index", "i", "--query", "q"]),
        *(["condense", "--relations", "r", "--output", "o"], ["meta-evaluate", "--output", "o"]),
        *(["sweep", "run"], ["combine-studies", "s", "--output", "o"]),
        ["prune", "--completion-store", "s", "--older-than", "1d"],
        ["estimate", "--proxy", "judge"],
    ],
    ids=lambda words: str(words[0]),
)
def test_a_command_without_the_engine_is_one_line_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    what = "estimate without RUN" if words[0] == "estimate" else words[0]
    for absent, extra in (("openai", "platform"), ("pyspark", "engine")):
        monkeypatch.setitem(sys.modules, absent, None)
        assert main(words) == 1
        out, error = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(rf"untold: {what} needs [\w, -]*ray[\w, -]*: pip install 'untold\[{extra}\]'\n", error)


def test_a_missing_module_of_the_engine_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: Options) -> int:
        raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers.models")

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(COMMANDS, "refuse", Command("refuses", refuse))
    assert main(["refuse"]) == 1
    assert capsys.readouterr() == ("", "untold: refuse needs tokenizers: pip install 'untold[platform]'\n")


def test_the_python_interface_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in ("Session", "Plan"):
        with pytest.raises(UserError, match=rf"^untold\.{name} needs pyspark: pip install 'untold\[engine\]'$"):
            getattr(untold, name)
    assert untold.judge is not None
    run = untold.open_run(untold.demo_output())
    with pytest.raises(UserError, match=r"^Run\.spark needs pyspark: "):
        run.spark("scores")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"^untold\.judge needs tokenizers: pip install 'untold\[engine\]'$"):
        _ = untold.judge
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"^Run\.pandas needs pandas: pip install 'untold\[notebook\]'$"):
        run.pandas("scores")


def test_open_shows_lines_that_need_no_pandas_if_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["open", "--demo"]) == 0
    assert "  run.summary().to_pandas()\n" in capsys.readouterr().out
    monkeypatch.setattr(run_analysis, "find_spec", lambda _: None)
    assert main(["open", "--demo"]) == 0
    shown = capsys.readouterr().out
    assert "  run.summary()\n" in shown
    assert "to_pandas" not in shown


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["score", "--input", "dbfs:/mnt/in", "--output", "out", "--metric", "e2e"], "--input"),
        (["score", "--input", "in", "--output", "x:/out", "--metric", "e2e"], "--output"),
        (["score", "--input", "in", "--output", "out", "--metric", "e2e", "--config", "wasb://a/b"], "--config"),
        (["search", "--index", "dbfs:/index", "--query", "Who?"], "--index"),
        (["show", "dbfs:/out", "--sample", "s"], "RUN"),
        (["compare", "a", "dbfs:/out"], "RUN..."),
    ],
)
def test_a_scheme_that_is_not_known_is_refused_by_the_option(
    capsys: pytest.CaptureFixture[str], arguments: list[str], option: str
) -> None:
    error = usage_error(capsys, *arguments)
    assert f"Invalid value for '{option}'" in error
    assert "unknown scheme" in error
    assert "Give a local path, or a URI of s3, gs, abfss, hdfs" in error
