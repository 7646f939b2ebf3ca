"""Test the command for the slow tests: it runs all tests, even after failures, and counts the results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import slow

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import os
import pytest

@pytest.mark.slow
@pytest.mark.alone
def test_alone_fails():
    assert "PYTEST_XDIST_WORKER" in os.environ

@pytest.mark.slow
@pytest.mark.alone
def test_alone_passes():
    pass

@pytest.mark.slow
def test_shared_passes():
    assert "PYTEST_XDIST_WORKER" in os.environ

@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.skip(reason="no need")
def test_shared_is_skipped():
    pass

@pytest.mark.slow
def test_shared_breaks(missing):
    pass

def test_quick():
    raise AssertionError
"""


def run(folder: Path, tests: str) -> tuple[int, list[list[str]], str]:
    """Run the command over a file of tests. Return its exit code, the words of its summary, and its output."""
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (folder / "test_some.py").write_text(tests)
    # The process that runs this test may be one of xdist itself
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "tests.slow", "test_some.py"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    output = ended.stdout + ended.stderr
    return ended.returncode, [line.split() for line in output.rpartition("group ")[2].splitlines()], output


@pytest.mark.gate
def test_all_slow_tests_run_and_are_counted_after_failures(tmp_path: Path) -> None:
    code, lines, output = run(tmp_path, TESTS)
    assert code == 1, output
    (alone, shared, total), failed = lines[1:4], lines[4:6]
    assert alone[:4] == ["test_some.py", "1", "1", "0"], output
    assert (shared[:3], shared[-4:-1]) == (["all", "other", "files,"], ["1", "1", "1"]), output
    assert (total[0], total[1:4]) == ("all", ["2", "2", "1"])
    assert failed == [["FAILED", f"test_some.py::test_{name}"] for name in ("alone_fails", "shared_breaks")]


def test_a_file_that_cannot_be_collected_is_an_error(tmp_path: Path) -> None:
    code, _, output = run(tmp_path, "raise ZeroDivisionError")
    assert (code, "ZeroDivisionError" in output) == (1, True)


@pytest.mark.gate
def test_a_file_that_hangs_is_killed_with_its_processes_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "test_hangs.py").write_text(
        "import subprocess, time\n"
        "def test_hangs():\n"
        "    process = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(child)!r}, 'w').write(str(process.pid))\n"
        "    time.sleep(600)\n"
    )
    monkeypatch.chdir(tmp_path)
    outcome = slow.run("test_hangs.py", ["-n", "0", "test_hangs.py"], seconds=10)
    assert outcome.failed == ("test_hangs.py: pytest was killed after its time limit",)
    state = Path(f"/proc/{child.read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
