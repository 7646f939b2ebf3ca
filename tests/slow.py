"""Run the slow tests and print a summary: `python -m tests.slow [PATHS AND OPTIONS OF PYTEST]`.

Files with tests marked `alone` run one after another, each in its own process. The other files run in two processes.
A failure does not stop the rest. Each process has a time limit; after the limit, its whole process group is killed and
counted as a failure. The exit code is 1 if a test failed or a process of pytest broke.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

SLOW = "(slow or graphframes)"
JAR = "UNTOLD_GRAPHFRAMES_JAR"
OK, FAILED_TESTS, NO_TESTS = 0, 1, 5
# Seconds for the tests of one file marked `alone`, and for all other files together
FILE_SECONDS, SHARED_SECONDS = 1800, 3 * 3600
TIMED_OUT = -signal.SIGKILL


@dataclass(frozen=True)
class Outcome:
    """The results of one process of pytest."""

    name: str
    passed: int = 0
    failed: tuple[str, ...] = ()
    skipped: int = 0
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """The row of the summary."""
        return f"{self.name:<60}{self.passed:>8}{len(self.failed):>8}{self.skipped:>8}{self.seconds:>9.0f}"


def pytest(*options: str, seconds: float, stdout: int | None = None) -> tuple[int, str | None]:
    """Run pytest in this folder, without the options of pyproject.toml. Return its exit code and its captured output.

    The exit code is TIMED_OUT if pytest ran longer than `seconds`.
    """
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", *options]
    with subprocess.Popen(command, text=True, stdout=stdout, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return TIMED_OUT, None
    return process.returncode, output


def collect_alone(options: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the ids of the slow tests marked `alone`, by file. Raises SystemExit if pytest cannot collect them."""
    # The ids come one per line at this verbosity alone, so a `-v` among the options must not change it
    collect = ("--collect-only", "-m", f"{SLOW} and alone", *options, "--verbosity=-1")
    code, output = pytest(*collect, seconds=FILE_SECONDS, stdout=subprocess.PIPE)
    if output is None or code not in (OK, NO_TESTS):
        raise SystemExit(output or "pytest did not collect the tests in time")
    ids = [line for line in output.splitlines() if "::" in line]
    return [(file, list(group)) for file, group in groupby(ids, lambda one: one.split("::")[0])]


def run(name: str, options: Sequence[str], seconds: float = FILE_SECONDS) -> Outcome:
    """Run one process of pytest for at most `seconds` and read its results."""
    print(f"\n== {name}", flush=True)
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code, _ = pytest(f"--junitxml={report}", *options, seconds=seconds)
        return read_report(name, report, code)


def read_report(name: str, report: Path, code: int) -> Outcome:
    """Read the results from a report in JUnit's format. A broken process counts as a failure."""
    reason = "pytest was killed after its time limit" if code == TIMED_OUT else f"pytest ended with exit code {code}"
    broken = () if code in (OK, FAILED_TESTS, NO_TESTS) else (f"{name}: {reason}",)
    if not report.exists():
        return Outcome(name, failed=broken)
    suites = ElementTree.parse(report).getroot()
    cases = list(suites.iter("testcase"))
    failed = [_id_of(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    seconds = sum(float(suite.get("time", 0)) for suite in suites.iter("testsuite"))
    failed_ids = tuple(dict.fromkeys(failed))
    return Outcome(name, len(cases) - len(failed) - skipped, failed_ids + broken, skipped, seconds)


def _id_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


def summarise(outcomes: Sequence[Outcome]) -> str:
    """Return the table of the groups, the ids of the failed tests, and a closing line."""
    failed = [one for outcome in outcomes for one in outcome.failed]
    total = Outcome(
        "all",
        sum(outcome.passed for outcome in outcomes),
        tuple(failed),
        sum(outcome.skipped for outcome in outcomes),
        sum(outcome.seconds for outcome in outcomes),
    )
    lines = [f"{'group':<60}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}"]
    lines += [outcome.line for outcome in (*outcomes, total)]
    lines += [f"FAILED {one}" for one in failed]
    if not os.environ.get(JAR):
        lines.append(f"The tests of GraphFrames were skipped: set {JAR} to its jar.")
    return "\n".join(lines)


def main(options: Sequence[str]) -> int:
    """Run all groups and return the exit code."""
    outcomes = [run(file, ["-n", "0", *ids]) for file, ids in collect_alone(options)]
    shared = ["-m", f"{SLOW} and not alone", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *options]
    outcomes.append(run("all other files, in two processes", shared, SHARED_SECONDS))
    print(f"\n{summarise(outcomes)}")
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
