"""Exit codes and what an output belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from untold.jobs.run.manifest import OutputError, differences, identify
from untold.jobs.run.outcome import Ending
from untold.jobs.run.progress import Display
from untold.jobs.score import ScoreRequest, score
from untold.jobs.settings.model import GraphSettings, Settings
from untold.udfs.llm.keys import Stage


@pytest.mark.parametrize(
    ("ended", "failed", "fail_on_error", "code"),
    [
        ("finished", 0, True, 0),
        ("finished", 1, True, 4),
        ("finished", 1, False, 0),
        ("finished", 1, 1, 0),
        ("finished", 2, 1, 4),
        ("finished", 1, 0, 4),
        ("finished", 1, 0.01, 0),
        ("finished", 2, 0.01, 4),
        ("budget", 9, False, 3),
        ("outage", 0, True, 5),
        ("interrupted", 0, True, 130),
        ("refused", 0, True, 1),
    ],
)
def test_exit_codes(ended: str, failed: int, fail_on_error: bool | int | float, code: int) -> None:
    statuses = {"ok": 100 - failed, "failed": failed}
    assert Ending(None if ended == "finished" else ended).exit_code(statuses, fail_on_error) == code


def test_a_partial_sample_counts_as_an_error() -> None:
    assert Ending().exit_code({"ok": 1, "partial": 1}, True) == 4


STAGE = {"evaluate_coverage": Stage("evaluate_coverage", ("query",), "model", "template")}


def test_settings_that_change_no_result_leave_the_identity_alone() -> None:
    one = identify("input", ("e2e",), Settings(), STAGE)
    llm = Settings().llm.model_copy(update={"requests_per_minute": 5.0, "base_url": "http://other/v1", "actors": 3})
    two = identify("input", ("e2e",), Settings(llm=llm, fail_on_error=0.5), STAGE)
    assert differences(one, two) == []


def test_a_setting_that_an_older_output_does_not_know_had_its_default() -> None:
    one = identify("input", ("e2e",), Settings(), STAGE)
    older = {**one, "results": {name: value for name, value in one["results"].items() if name != "graph"}}
    assert differences(one, older) == []
    other = identify("input", ("e2e",), Settings(graph=GraphSettings(max_edges_in_task=5)), STAGE)
    assert differences(other, older) == ["other settings (graph.max_edges_in_task)"]


@pytest.mark.parametrize(
    ("update", "named"),
    [
        ({"fingerprint": "b"}, "another input"),
        ({"metrics": ("other",)}, "other metrics"),
        ({"settings": Settings(summarise_contexts=False)}, "other settings (summarise_contexts)"),
        ({"stages": {"evaluate_coverage": Stage("evaluate_coverage", ("query",), "model", "templatf")}}, "template"),
    ],
)
def test_what_changes_results_is_named(update: dict[str, object], named: str) -> None:
    given = {"fingerprint": "a", "metrics": ("e2e",), "settings": Settings(), "stages": STAGE}
    other = identify(**{**given, **update})  # type: ignore[arg-type]
    (difference,) = differences(identify(**given), other)  # type: ignore[arg-type]
    assert named in difference


def test_no_table_is_written_over_the_samples_that_it_is_made_of(tmp_path: Path) -> None:
    given = tmp_path / "samples" / "part-0.parquet"
    given.parent.mkdir()
    given.write_bytes(b"answers")
    request = ScoreRequest(str(given), str(tmp_path), ("e2e",), Settings(), embedded=False, overwrite=True)
    with pytest.raises(OutputError, match="give another --output"):
        score(request, Display())
    assert given.read_bytes() == b"answers"
