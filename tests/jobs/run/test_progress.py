from __future__ import annotations

import os
import pty
import signal
import termios
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.jobs.run import progress
from untold.jobs.run.interrupts import Interrupts
from untold.jobs.run.progress import CLEAR, Course, Display, describe, fit
from untold.jobs.run.terminal import width_of


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def event(**fields: Any) -> dict[str, Any]:
    usage = {"done": 1500, "calls": 1600, "prompt_tokens": 1_000_000, "completion_tokens": 250_000}
    total = fields.pop("total", 6000)
    return {"stage": "evaluate_coverage", "total": total, "usage": {**usage, **fields}}


def line_of(event: dict[str, Any], seconds: float, course: Course | None = None) -> str:
    return ", ".join(describe(event, seconds, course or Course()).values())


def test_a_line_says_how_far_a_stage_is() -> None:
    line = line_of(event(), 100.0)
    assert line == "evaluate_coverage: 1,500 / 6,000, 16.0 calls/s, 1,250,000 tokens, 5:00 left"


def test_tokens_that_nobody_counted_are_marked() -> None:
    assert ", ~1,250,000 tokens," in line_of(event(estimated=True), 100.0)


def test_cost_is_shown_where_there_are_prices() -> None:
    assert "cost 4.0000" in line_of(event(cost=4.0), 100.0)
    assert "cost" not in line_of(event(), 100.0)


def test_what_went_wrong_is_counted() -> None:
    line = line_of(event(failed=3, rate_limited=12), 100.0)
    assert "3 failed, 12 rate limited" in line


@pytest.mark.parametrize(("done", "shown"), [(0, False), (1, True), (5999, True), (6000, False)])
def test_the_time_left_is_known_between_start_and_end(done: int, shown: bool) -> None:
    assert ("left" in line_of(event(done=done), 10.0)) is shown


@pytest.mark.parametrize(("seconds", "left"), [(1.0, "0:03 left"), (400.0, "20:00 left"), (3600.0, "3:00:00 left")])
def test_the_time_left_is_in_minutes_and_hours(seconds: float, left: str) -> None:
    assert line_of(event(), seconds).endswith(left)


def test_the_first_moment_has_a_line_too() -> None:
    assert "0 / 6,000" in line_of(event(done=0, calls=0), 0.0)


def test_without_a_terminal_there_are_plain_lines() -> None:
    stream = StringIO()
    display = Display(stream)
    display.start("evaluate_coverage")
    display.show(event())
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
        display.show(event())
    assert 4 <= len(stream.getvalue().splitlines()) - 1 <= 6


def test_on_a_terminal_one_line_rewrites_itself() -> None:
    stream = Terminal()
    display = Display(stream)
    display.start("s")
    for done in (1, 2, 3):
        display.show(event(done=done))
    assert stream.getvalue().count("\n") == 0
    display.end()
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().split(CLEAR)[-1].startswith("evaluate_coverage: 3 / 6,000")


def test_a_stage_without_events_ends_without_a_line() -> None:
    stream = Terminal()
    display = Display(stream)
    display.start("s")
    display.end()
    assert stream.getvalue() == f"{CLEAR}s: starting ..."


def test_a_long_wait_is_said_once_and_again_when_it_comes_again() -> None:
    stream = StringIO()
    display = Display(stream)
    display.start("s")
    for paused in (30.0, 3600.0, 3599.0, 0.0, 120.0):
        display.show({**event(), "paused": paused, "unwritten": 0, "trouble": None})
    lines = [line for line in stream.getvalue().splitlines() if "Retry-After" in line]
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["1:00:00", "2:00"]


def test_the_line_of_a_stage_says_how_long_it_is_paused() -> None:
    assert "paused by the endpoint for 1:01" in line_of({**event(), "paused": 61.0}, 1.0)
    assert "paused" not in line_of({**event(), "paused": 59.0}, 1.0)


def test_a_disk_that_cannot_be_written_is_said_once() -> None:
    stream = StringIO()
    display = Display(stream)
    display.start("s")
    for unwritten in (5, 90, 0):
        trouble = "No space left on device" if unwritten else None
        display.show({**event(), "paused": 0.0, "unwritten": unwritten, "trouble": trouble})
    (line,) = [line for line in stream.getvalue().splitlines() if "No space left on device" in line]
    assert line.startswith("5 answers cannot be written")


def course(total: int, *stages: str, metric: str = "e2e") -> Course:
    """A run of so many stages that has begun these."""
    found = Course(total, metric)
    for stage in stages:
        found.begin(stage)
    return found


def test_a_line_says_which_stage_of_how_many_it_is_and_of_which_metric() -> None:
    line = line_of(event(), 100.0, course(3, "summarise_context", "evaluate_coverage"))
    assert line.startswith("stage 2 of 3, e2e evaluate_coverage: 1,500 / 6,000, ")


def test_a_stage_that_is_asked_in_turns_counts_once() -> None:
    assert course(3, "embed_text", "extract_claims", "embed_text").describe("embed_text").startswith("stage 2 of 3, ")


def test_the_time_left_is_that_of_all_stages() -> None:
    # 300 s of this one, and two more of 400 s each, as this one will have taken 400 s
    assert course(3, "one").left(100.0, 1500, 6000) == "about 18:20 left"
    later = course(3, "one", "two")
    later.ended, later.seconds = 1, 200.0
    # 300 s of this one, and one more of the mean of 200 s and 400 s
    assert later.left(100.0, 1500, 6000) == "about 10:00 left"
    assert later.left(400.0, 6000, 6000) == "about 5:00 left"
    assert course(2, "one", "two").left(100.0, 1500, 6000) == "5:00 left"


@given(
    width=st.integers(20, 200),
    done=st.integers(0, 10**9),
    metric=st.text(max_size=40),
    failed=st.integers(0, 10**6),
    paused=st.floats(0, 10**5),
)
def test_the_line_fits_any_terminal(width: int, done: int, metric: str, failed: int, paused: float) -> None:
    told = {**event(done=done, total=10**9, failed=failed), "paused": paused}
    line = fit(describe(told, 1000.0, course(12, "evaluate_coverage", metric=metric)), width)
    assert width_of(line) <= width
    assert line.isprintable()


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (76, "stage 1 of 2, e2e evaluate_coverage: 1,500 / 6,000, about 11:40 left"),
        (50, "stage 1 …coverage: 1,500 / 6,000, about 11:40 left"),
    ],
)
def test_a_narrow_terminal_has_what_matters_most(width: int, line: str) -> None:
    assert fit(describe(event(), 100.0, course(2, "evaluate_coverage")), width) == line


class Screen:
    """A terminal that can be made narrower; `text` is what was written to it since the last look."""

    def __init__(self, columns: int) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(columns)
        self.stream = os.fdopen(self._slave, "w")

    def resize(self, columns: int) -> None:
        termios.tcsetwinsize(self._slave, (24, columns))

    def text(self) -> str:
        return os.read(self._master, 65536).decode()


def test_the_terminal_is_measured_at_every_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    screen = Screen(120)
    display = Display(screen.stream)
    display.course = course(2, "evaluate_coverage")
    display.show(event())
    assert "calls/s" in screen.text()
    for columns in (80, 40, 20):
        screen.resize(columns)
        display.show(event())
        assert len(screen.text().removeprefix(CLEAR)) < columns


def test_a_terminal_says_what_is_starting_and_forgets_it() -> None:
    stream = Terminal()
    with Display(stream) as display:
        display.status("starting Java")
        display.status("reading answers.jsonl")
        display.note("a note")
        display.status("starting Ray")
    shown = stream.getvalue().split(CLEAR)
    assert shown == ["", "starting Java ...", "reading answers.jsonl ...", "a note\n", "starting Ray ...", ""]


def test_a_log_does_not_say_what_is_starting() -> None:
    stream = StringIO()
    with Display(stream) as display:
        display.status("starting Java")
    assert stream.getvalue() == ""


def test_an_interrupt_is_told_over_the_line() -> None:
    stream = Terminal()
    display = Display(stream)
    display.start("evaluate_coverage")
    interrupts = Interrupts(display.note)
    interrupts._note(signal.SIGINT, None)
    assert stream.getvalue().split(CLEAR)[-1] == "Stopping; press Ctrl-C again to stop now\n"
    with pytest.raises(KeyboardInterrupt):
        interrupts._note(signal.SIGINT, None)
