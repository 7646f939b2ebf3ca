"""The plugin of pytest: its fixture, its assertion, and that it changes no suite that does not use it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import untold
from tests.jobs.gates import Scored, failed, write_run
from untold.pytest_plugin import assert_not_worse

ROOT = Path(__file__).resolve().parent.parent
ROWS = [Scored(n, 0.25 + 0.5 * (n % 2)) for n in range(30)]
WORSE = [replace(one, score=(one.score or 0) - 0.2 - 0.01 * (one.question % 3)) for one in ROWS]
TESTS = """
import sys

import pytest

LOADED = {"untold.jobs", "pyarrow", "duckdb", "numpy", "pyspark", "ray"} & {*sys.modules}


def test_the_plugin_loads_nothing():
    assert LOADED == set()


def test_the_run(untold_run):
    assert untold_run.status == "finished"
    assert untold_run.sql("select count(*) from scores").fetchall() == [(30,)]


@pytest.mark.parametrize("untold_run", ["base"], indirect=True)
def test_another_run(untold_run):
    assert untold_run.directory == "base"
"""


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder, with no other plugin of this environment."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_ADDOPTS", None)
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "untold.pytest_plugin", *words]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two runs, and without a configuration of pytest above it."""
    for name, rows in (("base", ROWS), ("same", ROWS), ("worse", WORSE)):
        write_run(tmp_path / name, rows)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_the_option_and_the_setting_name_the_run(folder: Path) -> None:
    (folder / "test_run.py").write_text(TESTS)
    ended = run_pytest(folder, "--untold-run", "base")
    assert (ended.returncode, "3 passed" in ended.stdout) == (0, True), ended.stdout
    (folder / "pytest.ini").write_text("[pytest]\nuntold_run = base\n")
    (folder / "below").mkdir()
    (folder / "test_run.py").rename(folder / "below" / "test_run.py")
    # From the folder of the configuration, not from the current folder
    ended = run_pytest(folder / "below", "-k", "test_the_run or loads")
    assert (ended.returncode, "2 passed" in ended.stdout) == (0, True), ended.stdout


def test_a_test_without_a_run_fails(folder: Path) -> None:
    (folder / "test_run.py").write_text(TESTS)
    ended = run_pytest(folder)
    assert ended.returncode == 1
    assert "no run: use pytest --untold-run DIR, or set untold_run in the configuration of pytest" in ended.stdout
    assert re.search(r"2 passed, 1 error", ended.stdout)


def test_a_suite_without_the_fixture_is_not_changed(folder: Path) -> None:
    (folder / "test_plain.py").write_text("def test_plain():\n    assert 1 + 1 == 2\n")
    ended = run_pytest(folder, "-W", "error")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "1 passed" in ended.stdout


def test_a_failed_assertion_is_plain_english(folder: Path) -> None:
    (folder / "test_gate.py").write_text(
        "from untold.pytest_plugin import assert_not_worse\n\n\n"
        'def test_not_worse():\n    assert_not_worse("worse", "base", max_drop=0.02, metric="qa")\n'
    )
    ended = run_pytest(folder)
    assert ended.returncode == 1
    errors = [line[1:].strip() for line in ended.stdout.splitlines() if line.startswith("E ")]
    assert errors[0] == "AssertionError: FAIL: 1 of 1 mean fell by more than 0.02"
    assert re.fullmatch(r"qa of a: FAIL: the mean changed by -0\.\d+ \(.*, 30 questions\); .*", errors[1])
    # The traceback ends at the line of the test
    assert "pytest_plugin.py" not in ended.stdout


def test_the_assertion_accepts_folders_and_runs(folder: Path) -> None:
    base, same, worse = (str(folder / name) for name in ("base", "same", "worse"))
    assert assert_not_worse(same, base, max_drop=0.02).verdict == "PASS"
    assert assert_not_worse(untold.open_run(base), Path(worse), max_drop=0.02, metric="qa").verdict == "PASS"
    with pytest.raises(AssertionError, match="FAIL"):
        assert_not_worse(Path(worse), untold.open_run(base), max_drop=0.02)
    with pytest.raises(untold.UntoldError, match="no scores of metric q; did you mean qa"):
        assert_not_worse(same, base, max_drop=0.02, metric="q")


def test_lost_samples_do_not_satisfy_the_assertion(folder: Path) -> None:
    lost = write_run(folder / "lost", ROWS[:25])
    with pytest.raises(AssertionError, match=r"INCONCLUSIVE: .*5 samples without a score of the candidate"):
        assert_not_worse(lost, folder / "base", max_drop=0.02)
    unscored = write_run(folder / "unscored", [failed(n) for n in range(30)])
    with pytest.raises(AssertionError, match=r"INCONCLUSIVE: .*30 failed scores"):
        assert_not_worse(unscored, folder / "base", max_drop=0.02)


@pytest.mark.gate
def test_pytest_finds_the_plugin_of_the_installed_package(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The metadata of the package, which a wheel has too, are on the path of the other process."""
    metadata = tmp_path_factory.mktemp("metadata")
    line = [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(metadata)]
    subprocess.run(line, cwd=ROOT, capture_output=True, check=True)
    (folder / "test_run.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(metadata), str(ROOT)])}
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--untold-run", "base"]
    ended = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, "3 passed" in ended.stdout) == (0, True), ended.stdout + ended.stderr
