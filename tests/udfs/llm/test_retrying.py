from __future__ import annotations

from typing import Any

import pytest

from untold.udfs.llm.calls import Answer, Request
from untold.udfs.llm.limiter import OUTAGE_FAULTS, Lease
from untold.udfs.llm.retrying import DOUBTS_IN_A_ROW, EndpointHealth, RetryDecision, Verdict, is_passing, judge
from untold.udfs.llm.usage import Usage

FLAGGED = Answer(error_type="http_403", refused=True)
GOOD = Answer(text="text")


def verdict(answer: Answer, attempts: int = 0, *, free: bool = False, most: int = 4) -> Verdict:
    return judge(Request("r", {}, "unit", attempts=attempts, limited=1), answer, most, free=free)


def heard(*answers: Answer, **known: Any) -> EndpointHealth:
    """Return the health of an endpoint after these answers, with one answer per second."""
    standing = EndpointHealth(**known)
    for second, answer in enumerate(answers):
        standing.record(Request("r", {}, "unit"), answer, float(second))
    return standing


PASSING = ["timeout", "connection", "bad_body", "bad_finish", "http_408", "http_409", "http_425", "http_429"]
LASTING = [None, "http_400", "http_402", "http_403", "http_404", "http_413", "http_422", "filtered", "crashed"]


@pytest.mark.parametrize("error_type", [*PASSING, "http_500", "http_503", "http_529"])
def test_a_failure_with_a_passing_reason_passes(error_type: str) -> None:
    assert is_passing(error_type)


@pytest.mark.parametrize("error_type", [*LASTING, "truncated", "empty", "unparsable", "refused", "template"])
def test_every_other_failure_lasts(error_type: str | None) -> None:
    assert not is_passing(error_type)


@pytest.mark.parametrize("error_type", ["unparsable", "refused", "empty", "truncated", "bad_body", "bad_finish"])
def test_an_unusable_completion_is_retried_until_its_attempts_are_used_up(error_type: str) -> None:
    answer = Answer(error_type=error_type)
    again = [verdict(answer, attempts).act for attempts in range(4)]
    assert again == [RetryDecision.AGAIN, RetryDecision.AGAIN, RetryDecision.AGAIN, RetryDecision.RECORD]
    assert verdict(answer).attempt
    assert verdict(answer).afresh


@pytest.mark.parametrize(
    ("sent", "used", "following"), [(300, 300, 600), (300, 0, 600), (None, 512, 1024), (None, 0, None)]
)
def test_a_request_whose_completion_was_cut_off_gets_twice_the_room(
    sent: int | None, used: int, following: int | None
) -> None:
    cut = Answer(text="- The bridge", error_type="truncated", usage=Usage(completion_tokens=used))
    assert judge(Request("r", {}, "unit", limit=sent), cut, 4, free=False).limit == following
    assert judge(Request("r", {}, "unit", limit=sent, attempts=3), cut, 4, free=False).act is RetryDecision.RECORD


@pytest.mark.parametrize(("used", "following"), [(3, 8192), (4096, 8192), (6000, 12000)])
def test_the_room_doubles_from_the_limit_in_the_body_if_the_usage_is_smaller(used: int, following: int) -> None:
    cut = Answer(text="- The bridge", error_type="truncated", usage=Usage(completion_tokens=used))
    assert judge(Request("r", {}, "unit", sent_limit=4096), cut, 4, free=False).limit == following


@pytest.mark.parametrize("error_type", ["filtered", "http_400", "http_413"])
def test_filtered_completions_and_most_client_errors_are_not_retried(error_type: str) -> None:
    assert verdict(Answer(error_type=error_type)).act is RetryDecision.RECORD


@pytest.mark.parametrize("error_type", ["http_408", "http_409", "http_425"])
def test_conflicts_of_the_moment_are_retried_after_a_wait(error_type: str) -> None:
    answer = Answer(error_type=error_type)
    assert [verdict(answer, attempts).act for attempts in range(4)] == [
        RetryDecision.AGAIN,
        RetryDecision.AGAIN,
        RetryDecision.AGAIN,
        RetryDecision.RECORD,
    ]
    assert verdict(answer).wait > 0
    assert not verdict(answer).afresh


@pytest.mark.parametrize("error_type", ["http_401", "http_402", "http_429"])
def test_key_and_credit_refuse_the_run_for_good(error_type: str) -> None:
    assert verdict(Answer(error_type=error_type, refused=True)).act is RetryDecision.REFUSE


@pytest.mark.parametrize("error_type", ["http_302", "http_400", "http_403", "http_404", "http_422"])
def test_what_a_row_may_have_caused_is_held_back(error_type: str) -> None:
    assert verdict(Answer(error_type=error_type, refused=True)).act is RetryDecision.HOLD


def test_a_429_waits_for_the_stated_time_and_uses_no_attempt() -> None:
    assert verdict(Answer(error_type="http_429", retry_after=7.0)) == Verdict(RetryDecision.AGAIN, 7.0)
    assert 0.25 <= verdict(Answer(error_type="http_429"), attempts=3).wait <= 0.5


@pytest.mark.parametrize("error_type", ["timeout", "connection", "http_500", "http_529"])
def test_faults_back_off_and_use_attempts_but_in_an_outage(error_type: str) -> None:
    waits = [verdict(Answer(error_type=error_type), attempts).wait for attempts in range(3)]
    assert all(0.25 * 2**n <= wait <= 0.5 * 2**n for n, wait in enumerate(waits))
    assert verdict(Answer(error_type=error_type), 3).act is RetryDecision.RECORD
    assert verdict(Answer(error_type=error_type), 3, free=True) == Verdict(RetryDecision.AGAIN, 0.5, anew=True)


def test_before_the_first_completion_requests_in_flight_can_prove_a_bad_row() -> None:
    standing = heard(FLAGGED)
    assert (standing.is_refused(3), standing.is_refused(0)) == (False, True)


@pytest.mark.parametrize("kind", [None, "unparsable", "refused", "truncated", "empty", "filtered"])
def test_after_a_completion_of_any_worth_a_single_error_is_its_row_s(kind: str | None) -> None:
    standing = heard(Answer(text="text", error_type=kind), FLAGGED)
    assert not standing.is_refused(0)


def test_an_earlier_start_that_was_answered_counts() -> None:
    assert not heard(FLAGGED, completed=True).is_refused(0)


def test_twenty_errors_in_a_row_are_the_run_s() -> None:
    assert DOUBTS_IN_A_ROW == 20
    assert not heard(GOOD, *[FLAGGED] * 19).is_refused(0)
    assert heard(GOOD, *[FLAGGED] * 20).is_refused(0)
    assert not heard(GOOD, *[FLAGGED] * 19, GOOD, *[FLAGGED] * 19).is_refused(0)


def test_errors_and_completions_of_other_actors_count() -> None:
    standing = heard(FLAGGED)
    standing.learn(Lease(0.0, (), 1, 0.0, None, False, False, completed=True, doubts=3), 0.0)
    assert not standing.is_refused(0)
    standing.learn(Lease(0.0, (), 1, 0.0, None, False, False, completed=True, doubts=20), 0.0)
    assert standing.is_refused(8)


def test_news_are_reported_once() -> None:
    standing = heard(GOOD, Answer(error_type="http_429"), FLAGGED)
    news = standing.tell()
    assert (news.successes, news.answered, news.served, news.completed, news.limited) == (1, True, True, True, True)
    assert news.doubts == 1
    assert standing.tell().answered is False


def test_faults_count_until_something_answers() -> None:
    broken = Answer(error_type="http_500")
    assert heard(*[broken] * 3).tell().faults == 3
    assert heard(*[broken] * 3, GOOD).tell().faults == 0


def test_an_endpoint_that_was_never_there_is_an_outage_at_once() -> None:
    standing = EndpointHealth()
    away = Answer(error_type="connection", unconnected=True)
    assert standing.record(Request("r", {}, "unit"), away, 1.0)
    assert standing.tell().faults == OUTAGE_FAULTS
