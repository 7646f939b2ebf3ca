from __future__ import annotations

from io import StringIO
from typing import Any

import pytest

from untold.jobs.run import progress
from untold.jobs.run.progress import Display, describe
from untold.udfs.llm.calls import CallSettings
from untold.udfs.llm.prices import Prices

SETTINGS = CallSettings(base_url="http://127.0.0.1:9/v1")
PRICED = CallSettings(base_url="http://127.0.0.1:9/v1", prices=Prices(2.0, 8.0))


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def event(**fields: Any) -> dict[str, Any]:
    tally = {"done": 1500, "calls": 1600, "failed": 0, "rate_limited": 0}
    tokens = {"prompt_tokens": 1_000_000, "completion_tokens": 250_000}
    total = fields.pop("total", 6000)
    return {"stage": "evaluate_coverage", "total": total, "tally": {**tally, **tokens, **fields}}


def test_a_line_says_how_far_a_stage_is() -> None:
    line = describe(event(), SETTINGS, 100.0)
    assert line == "evaluate_coverage: 1,500 / 6,000, 16.0 calls/s, 1,250,000 tokens, 5:00 left"


def test_cost_is_shown_where_there_are_prices() -> None:
    assert "cost 4.0000" in describe(event(), PRICED, 100.0)
    assert "cost" not in describe(event(), SETTINGS, 100.0)


def test_what_went_wrong_is_counted() -> None:
    line = describe(event(failed=3, rate_limited=12), SETTINGS, 100.0)
    assert "3 failed, 12 rate limited" in line


@pytest.mark.parametrize(("done", "shown"), [(0, False), (1, True), (5999, True), (6000, False)])
def test_the_time_left_is_known_between_start_and_end(done: int, shown: bool) -> None:
    assert ("left" in describe(event(done=done), SETTINGS, 10.0)) is shown


@pytest.mark.parametrize(("seconds", "left"), [(1.0, "0:03 left"), (400.0, "20:00 left"), (3600.0, "3:00:00 left")])
def test_the_time_left_is_in_minutes_and_hours(seconds: float, left: str) -> None:
    assert describe(event(), SETTINGS, seconds).endswith(left)


def test_the_first_moment_has_a_line_too() -> None:
    assert "0 / 6,000" in describe(event(done=0, calls=0), SETTINGS, 0.0)


def test_without_a_terminal_there_are_plain_lines() -> None:
    stream = StringIO()
    display = Display(stream)
    display.start("evaluate_coverage")
    display.show(event(), SETTINGS)
    display.note("a note")
    display.end()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "evaluate_coverage: starting"
    assert "a note" in lines
    assert lines[-1].startswith("evaluate_coverage: 1,500 / 6,000")
    assert all(character not in stream.getvalue() for character in "\r\x1b")


def test_without_a_terminal_lines_are_seconds_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    stream = StringIO()
    display = Display(stream)
    display.start("s")
    for _ in range(100):
        now += 0.5
        display.show(event(), SETTINGS)
    assert 4 <= len(stream.getvalue().splitlines()) - 1 <= 6


def test_on_a_terminal_one_line_rewrites_itself() -> None:
    stream = Terminal()
    display = Display(stream)
    display.start("s")
    for done in (1, 2, 3):
        display.show(event(done=done), SETTINGS)
    assert stream.getvalue().count("\n") == 0
    display.end()
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().split("\r")[-1].startswith("\x1b[2Kevaluate_coverage: 3 / 6,000")


def test_a_stage_without_events_ends_without_a_line() -> None:
    stream = Terminal()
    display = Display(stream)
    display.start("s")
    display.end()
    assert stream.getvalue() == ""


def test_a_long_wait_is_said_once_and_again_when_it_comes_again() -> None:
    stream = StringIO()
    display = Display(stream)
    display.start("s")
    for paused in (30.0, 3600.0, 3599.0, 0.0, 120.0):
        display.show({**event(), "paused": paused, "unwritten": 0, "trouble": None}, SETTINGS)
    lines = [line for line in stream.getvalue().splitlines() if "Retry-After" in line]
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["1:00:00", "2:00"]


def test_the_line_of_a_stage_says_how_long_it_is_paused() -> None:
    assert "paused by the endpoint for 1:01" in describe({**event(), "paused": 61.0}, SETTINGS, 1.0)
    assert "paused" not in describe({**event(), "paused": 59.0}, SETTINGS, 1.0)


def test_a_disk_that_cannot_be_written_is_said_once() -> None:
    stream = StringIO()
    display = Display(stream)
    display.start("s")
    for unwritten in (5, 90, 0):
        trouble = "No space left on device" if unwritten else None
        display.show({**event(), "paused": 0.0, "unwritten": unwritten, "trouble": trouble}, SETTINGS)
    (line,) = [line for line in stream.getvalue().splitlines() if "No space left on device" in line]
    assert line.startswith("5 answers cannot be written")
