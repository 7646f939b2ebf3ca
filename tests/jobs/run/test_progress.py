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

from untold.jobs.run import terminal
from untold.jobs.run.outcome import Interrupts
from untold.jobs.run.terminal import CLEAR, Display, Pace, RunProgress, describe, fit, width_of


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def event(**fields: Any) -> dict[str, Any]:
    usage = {"done": 1500, "calls": 1600, "prompt_tokens": 1_000_000, "completion_tokens": 250_000}
    total = fields.pop("total", 6000)
    return {"stage": "evaluate_coverage", "total": total, "usage": {**usage, **fields}}


def line_of(event: dict[str, Any], seconds: float, course: RunProgress | None = None) -> str:
    return ", ".join(described(event, seconds, course or RunProgress()).values())


def described(event: dict[str, Any], seconds: float, course: RunProgress) -> dict[str, str]:
    """Return the parts of the line for a run with a constant rate."""
    pace, done = Pace(0.0), event["usage"]["done"]
    for share in (0.0, 0.5, 1.0):
        pace.see(seconds * share, int(done * share), 1)
    return describe(event, seconds, course, pace.left(event["total"]))


def test_a_line_shows_the_progress_of_a_stage() -> None:
    line = line_of(event(), 100.0)
    assert line == "evaluate_coverage: 1,500 / 6,000, 16.0 calls/s, 1,250,000 tokens, 5:00 left"


def test_estimated_tokens_are_marked() -> None:
    assert ", ~1,250,000 tokens," in line_of(event(estimated=True), 100.0)


def test_cost_is_shown_if_there_are_prices() -> None:
    assert "cost 4.0000" in line_of(event(cost=4.0), 100.0)
    assert "cost" not in line_of(event(), 100.0)


def test_what_went_wrong_is_counted() -> None:
    line = line_of(event(failed=3, rate_limited=12), 100.0)
    assert "3 failed, 12 rate limited" in line


@pytest.mark.parametrize(("done", "shown"), [(0, False), (1, False), (2, True), (5999, True), (6000, False)])
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
    monkeypatch.setattr(terminal, "monotonic", lambda: now)
    stream = StringIO()
    display = Display(stream)
    display.start("s")
    for _ in range(300):
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


def test_each_long_wait_is_reported_once() -> None:
    stream = StringIO()
    display = Display(stream)
    display.start("s")
    for paused in (30.0, 3600.0, 3599.0, 0.0, 120.0):
        display.show({**event(), "paused": paused, "unwritten": 0, "trouble": None})
    lines = [line for line in stream.getvalue().splitlines() if "Retry-After" in line]
    assert [line.rsplit(" ", 1)[1] for line in lines] == ["1:00:00", "2:00"]


def test_the_line_of_a_stage_shows_the_length_of_a_pause() -> None:
    assert "paused by the endpoint for 1:01" in line_of({**event(), "paused": 61.0}, 1.0)
    assert "paused" not in line_of({**event(), "paused": 59.0}, 1.0)


def test_an_unwritable_disk_is_reported_once() -> None:
    stream = StringIO()
    display = Display(stream)
    display.start("s")
    for unwritten in (5, 90, 0):
        trouble = "No space left on device" if unwritten else None
        display.show({**event(), "paused": 0.0, "unwritten": unwritten, "trouble": trouble})
    (line,) = [line for line in stream.getvalue().splitlines() if "No space left on device" in line]
    assert line.startswith("5 answers cannot be written")


def course(total: int, *stages: str, metric: str = "e2e") -> RunProgress:
    """Return a run with this number of stages after the start of the given stages."""
    found = RunProgress(total)
    found.enter(metric)
    for stage in stages:
        found.begin(stage)
    return found


def test_a_line_shows_the_number_of_the_stage_and_the_metric() -> None:
    line = line_of(event(), 100.0, course(3, "summarise_context", "evaluate_coverage"))
    assert line.startswith("stage 2 of 3, e2e evaluate_coverage: 1,500 / 6,000, ")


def test_a_stage_that_runs_in_turns_counts_once() -> None:
    assert course(3, "embed_text", "extract_claims", "embed_text").describe("embed_text").startswith("stage 2 of 3, ")


def test_the_time_left_is_that_of_the_stage_while_others_are_to_come() -> None:
    assert line_of(event(), 100.0, course(3, "one")).endswith(", 5:00 left of this stage")
    assert line_of(event(), 100.0, course(1, "one")).endswith(", 5:00 left")


def by_concurrency(total: int, at_once: int, latency: float) -> list[tuple[float, int]]:
    """Return the times and counts of a run with this number of requests in flight. They complete in bursts."""
    return [(latency * burst, min(total, at_once * burst)) for burst in range(1, -(-total // at_once) + 1)]


def by_rate(total: int, a_second: float, latency: float) -> list[tuple[float, int]]:
    """Return the times and counts of a run that sends one request at a time."""
    return [(latency + number / a_second, number) for number in range(1, total + 1)]


def slower_from(given: list[tuple[float, int]], share: float, times: float) -> list[tuple[float, int]]:
    """Return the same course with a longer duration for each request after a share of the time."""
    turn = given[-1][0] * share
    return [(at if at <= turn else turn + (at - turn) * times, done) for at, done in given]


# The number of requests in flight, and the course
COURSES = {
    "few at once": (10, by_concurrency(100, 10, 3.0)),
    "many at once": (64, by_concurrency(4000, 64, 2.0)),
    "one by one": (1, by_concurrency(40, 1, 5.0)),
    "by a rate": (50, by_rate(1200, 10.0, 5.0)),
    "slowly by a rate": (2, by_rate(60, 0.5, 4.0)),
    "a slow beginning": (10, slower_from(by_rate(2000, 10.0, 1.0), 0.03, 0.5)),
    "a cold cache": (1, [(90.0 + 40.0 * number, number + 1) for number in range(6)]),
}


@pytest.mark.parametrize("startup", [0.0, 60.0])
@pytest.mark.parametrize("name", COURSES)
def test_the_time_left_is_right_within_half_as_much_after_a_tenth(name: str, startup: float) -> None:
    """Check the time left twice per second on a simulated clock. The rate does not include the start of the actors."""
    (in_flight, course), pace, now, seen = COURSES[name], Pace(0.0), 0.0, 0
    total, end = course[-1][1], startup + course[-1][0]
    while now < end:
        done = max((done for at, done in course if startup + at <= now), default=0)
        pace.see(now, done, in_flight if now >= startup else 0)
        left = pace.left(total)
        # Differences below one second are caused by the time between two checks
        if done >= total / 10 and done > course[0][1]:
            assert left is not None
            assert (end - now) / 1.5 - 1 <= left <= (end - now) * 1.5 + 1, (done, now, end)
            seen += 1
        now += 0.5
    assert seen > 10


def test_a_stalled_stage_has_no_time_left() -> None:
    pace = Pace(0.0)
    for now, done in [(0.0, 0), (1.0, 10), (2.0, 20), (2.5, 20)]:
        pace.see(now, done, 10)
    assert pace.left(30) == 0.5
    pace.see(60.0, 20, 10)
    assert pace.left(30) == 1.0


def test_the_pace_follows_an_endpoint_that_became_slower() -> None:
    pace = Pace(0.0)
    for at, done in slower_from(by_rate(1000, 10.0, 1.0), 0.2, 4.0):
        pace.see(at, done, 10)
        if done == 600:
            left = pace.left(1000)
    assert left is not None
    assert left == pytest.approx(400 * 0.4, rel=0.1)


def test_a_pause_of_the_endpoint_is_part_of_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, stream = 0.0, Terminal()
    monkeypatch.setattr(terminal, "monotonic", lambda: now)
    display = Display(stream)
    display.start("s")
    display.show({**event(done=0), "in_flight": 1})
    now = 5.0
    display.show({**event(done=2900), "in_flight": 1})
    now = 10.0
    display.show({**event(done=5900), "in_flight": 1, "paused": 45.0, "unwritten": 0, "trouble": None})
    assert stream.getvalue().endswith("0:45 left")
    now = 70.0
    display.end()
    assert stream.getvalue().endswith(", took 1:10\n")


@given(
    width=st.integers(20, 200),
    done=st.integers(0, 10**9),
    metric=st.text(max_size=40),
    failed=st.integers(0, 10**6),
    paused=st.floats(0, 10**5),
)
def test_the_line_fits_any_terminal(width: int, done: int, metric: str, failed: int, paused: float) -> None:
    told = {**event(done=done, total=10**9, failed=failed), "paused": paused}
    line = fit(described(told, 1000.0, course(12, "evaluate_coverage", metric=metric)), width)
    assert width_of(line) <= width
    assert line.isprintable()


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (76, "stage 1 of 2, e2e evaluate_coverage: 1,500 / 6,000, 5:00 left of this stage"),
        (57, "stage 1 …coverage: 1,500 / 6,000, 5:00 left of this stage"),
    ],
)
def test_a_narrow_terminal_shows_the_most_important_parts(width: int, line: str) -> None:
    assert fit(described(event(), 100.0, course(2, "evaluate_coverage")), width) == line


class Screen:
    """A terminal that can change its width. `text` is the text written since the last read."""

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


def test_a_terminal_shows_and_clears_the_starting_part() -> None:
    stream = Terminal()
    with Display(stream) as display:
        display.status("starting Java")
        display.status("reading answers.jsonl")
        display.note("a note")
        display.status("starting Ray")
    shown = stream.getvalue().split(CLEAR)
    assert shown == ["", "starting Java ...", "reading answers.jsonl ...", "a note\n", "starting Ray ...", ""]


def test_a_log_does_not_show_the_starting_part() -> None:
    stream = StringIO()
    with Display(stream) as display:
        display.status("starting Java")
    assert stream.getvalue() == ""


def test_an_interrupt_is_reported_above_the_line() -> None:
    stream = Terminal()
    display = Display(stream)
    display.start("evaluate_coverage")
    interrupts = Interrupts(display.note)
    interrupts._note(signal.SIGINT, None)
    assert stream.getvalue().split(CLEAR)[-1] == "Stopping. Press Ctrl-C again to stop at once\n"
    with pytest.raises(KeyboardInterrupt):
        interrupts._note(signal.SIGINT, None)
