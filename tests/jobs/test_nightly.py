"""Test the messages of `untold nightly` about dates. These tests need no engine."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.jobs.summary.test_nights import night
from untold.jobs import nightly as nights
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.nightly import NightlyRequest, nightly
from untold.jobs.run.manifest import write_manifest
from untold.jobs.run.terminal import Display
from untold.jobs.settings.model import Settings

AUDIT = {"metric": "nli", "measure": "miss_rate", "defined": 500, "ci_high": 0.04}


def asked(folder: Path, **settings: Any) -> NightlyRequest:
    night = ScoreRequest(
        input=f"{folder}/in/{{date}}",
        output=f"{folder}/out/{{date}}",
        settings=Settings.model_validate(settings),
        metrics=("nli",),
        embedded=False,
    )
    return NightlyRequest(night=night, dates=[date(2026, 11, 20)])


@pytest.mark.parametrize(("most", "code"), [(None, 0), (0.05, 0), (0.03, 4)])
def test_a_finished_date_keeps_the_exit_code_of_its_filter(tmp_path: Path, most: float | None, code: int) -> None:
    request = asked(tmp_path, nli={"max_miss_rate": most})
    write_manifest(request.of(request.dates[0]).output, night(metrics=("nli",), audits=[AUDIT]))
    with patch.object(nights, "is_complete", return_value=True):
        found = nightly(request, Display())
    assert (found.status, found.exit_code) == ("done", code)
    assert ("max_miss_rate is 3.000%" in found.message) is (code == 4)
