from __future__ import annotations

import pytest

from untold.jobs.inference.backends import actor_pool
from untold.jobs.inference.backends.actor_pool import ActorFailures

DEATH = RuntimeError("out of\n  memory")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(actor_pool, "monotonic", clock)
    return clock


def test_many_deaths_in_a_long_run_do_not_end_it(clock: Clock) -> None:
    dead = ActorFailures()
    for _ in range(400):
        clock.now += 90.0
        dead.count(DEATH)


def test_many_deaths_in_an_hour_end_the_job_with_the_cause_of_the_last(clock: Clock) -> None:
    dead = ActorFailures()
    for _ in range(50):
        clock.now += 60.0
        dead.count(DEATH)
    with pytest.raises(RuntimeError, match="51 answering actors died within an hour, the last because: out of memory"):
        dead.count(DEATH)
