"""Whole jobs among every kind of fault in every stage: all that was lost is as predicted, and later starts mend it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.fakes.lookups import LOOKUPS
from tests.fakes.model_server import ModelServer
from tests.runs.fates import ASKED_ONCE, ERRORS, PASSING, RETRIED, fate_of
from tests.runs.harness import Ended, Row, read_table

SHARE = 0.01
LIMITED = {"status": 429, "headers": {"Retry-After": "0.5"}}
_ONCE: Sequence[Any] = (LIMITED, {"status": 500}, "refuse", "cut_json", {"status": 503})
_ALWAYS: Sequence[Any] = ({"status": 500}, "html", *({"status": status} for status in (400, 403, 408)))
_SAID: Sequence[Any] = ("empty", "length", "filter", {"finish": "error"}, "no_usage")
_VECTORS = ("nan", "zero", "drop")
# Connections and timeouts of a machine under load come of no rule
_SEEN = {*ERRORS.values(), "filtered", *ASKED_ONCE, f"http_{RETRIED}"} - {"timeout", "connection"}

Request = tuple[str, str]  # a stage and its variables
SampleT = TypeVar("SampleT")


def faults_of(stages: Sequence[str], *, unread: Collection[str], hanging: Collection[str] = ()) -> list[Row]:
    """A hundredth of each fault in each stage, once or until the end of all attempts.

    `unread`: the stages that garbage is no answer to; elsewhere any text is one. `hanging`: those that hang, once.
    """
    prompted = [stage for stage in stages if stage not in LOOKUPS]
    rules = [_rule(stage, deed, attempt_below=2) for stage in stages for deed in _ONCE]
    rules += [_rule(stage, "hang", attempt_below=2) for stage in stages if stage in hanging]
    rules += [_rule(stage, deed) for stage in stages for deed in _ALWAYS]
    rules += [_rule(stage, deed) for stage in prompted for deed in _SAID]
    rules += [_rule(stage, "garbage") for stage in prompted if stage in unread]
    return rules + [_rule(stage, deed) for stage in stages if stage == "embed_text" for deed in _VECTORS]


def _rule(stage: str, deed: Any, **more: Any) -> Row:
    return {"when": {"share": SHARE, "stage": stage, **more}, "do": deed}


@dataclass
class Fates:
    """What becomes of requests: those of `known` by what came of them in earlier starts, others by the rules.

    `asked`: the error type of what was asked, None where it was answered.
    """

    rules: Sequence[Row]
    known: Mapping[Request, str | None] = field(default_factory=dict)
    asked: dict[Request, str | None] = field(default_factory=dict)

    def of(self, stage: str, **variables: Any) -> str | None:
        """The error type of a request that is not asked yet, or None."""
        request = request_of(stage, variables)
        if request in self.known:
            return self.known[request]
        return fate_of({"stage": stage, **_as_sent(stage, variables)}, self.rules).error_type

    def ask(self, stage: str, **variables: Any) -> str | None:
        """The same of one that is asked now."""
        error = self.of(stage, **variables)
        self.asked[request_of(stage, variables)] = error
        return error

    def lasting(self) -> dict[Request, str | None]:
        """What a later start does not ask again."""
        return {request: error for request, error in self.asked.items() if error not in PASSING}


def request_of(stage: str, variables: Mapping[str, Any]) -> Request:
    """What tells requests apart."""
    return stage, json.dumps(variables, sort_keys=True)


def _as_sent(stage: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
    if stage == "web_search":
        return {**variables, "query": " ".join(variables["query"].split())}
    return {"texts": [variables["text"]]} if stage == "embed_text" else variables


@dataclass
class Expectation(Generic[SampleT]):
    """What must come of a start: each sample, and what of its requests was lost: sample_id, stage, error type."""

    samples: dict[str, SampleT] = field(default_factory=dict)
    failures: Counter[tuple[str, str, str]] = field(default_factory=Counter)


def assert_mended(
    start: Callable[..., Ended],
    server: ModelServer,
    output: Path,
    rules: Sequence[Row],
    expect: Callable[[Fates], Expectation[SampleT]],
    check: Callable[[Mapping[str, SampleT]], None],
) -> Expectation[SampleT]:
    """Starts a job among the faults of these rules, without them, and with `--retry-failed`.

    start: runs it with these flags; expect: what must come of all samples; check: asserts that of the tables but
    failures. Each start asks what it has to and no more; the last one leaves nothing lost. What came of the first.
    """

    def assert_ended(ended: Ended, code: int, expected: Expectation[SampleT]) -> None:
        assert ended.code == code, ended.err
        check(expected.samples)
        rows = read_table(output, "failures")
        assert Counter((row["sample_id"], row["stage"], row["error_type"]) for row in rows) == expected.failures

    server.configure(rules=rules)
    fates = Fates(rules)
    ended, first = start(), expect(fates)
    assert_ended(ended, 4, first)
    assert set(fates.asked.values()) >= _SEEN
    assert {stage for stage, _ in fates.asked} == {rule["when"]["stage"] for rule in rules}

    # What may pass is asked again, without what was answered
    server.configure(rules=[])
    server.reset()
    later = Fates([], fates.lasting())
    ended, second = start(), expect(later)
    assert_ended(ended, 4, second)
    assert second.failures.total() < first.failures.total()
    new = Counter(stage for stage, variables in later.asked if (stage, variables) not in fates.lasting())
    assert Counter(arrival.stage for arrival in server.arrivals()) == new

    ended, last = start("--retry-failed"), expect(Fates([]))
    assert_ended(ended, 0, last)
    assert not last.failures
    return first
