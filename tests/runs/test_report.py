"""Test the report of a whole run: the run prints the command, and the report contains the judgements."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.runs.harness import make_samples, write_samples
from tests.runs.here import RunHere
from tests.runs.reported import assert_reported

pytestmark = pytest.mark.gate


def test_a_run_names_the_command_and_the_report_has_the_judges_words(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    ended = run_here(server, write_samples(tmp_path / "samples.jsonl", make_samples(6)), output)
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == f"report: untold report {output}"
    samples = assert_reported(output)
    assert all("words" in one["metrics"]["e2e"] for one in samples)
    written = run_here.command(["report", str(output), "--html", str(tmp_path / "r.html")])
    assert (written.code, written.err) == (0, "")
    assert "[Covered statements]" in (tmp_path / "r.html").read_text(encoding="utf-8")
