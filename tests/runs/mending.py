"""Run jobs with all kinds of errors in all stages. The lost requests are as predicted, and later runs retry them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.fakes.lookups import LOOKUPS
from tests.fakes.model_server import ModelServer
from tests.runs.fates import ASKED_ONCE, ATTEMPTS, ERRORS, PASSING, RETRIED, fate_of
from tests.runs.harness import Ended, Row, read_table, write_samples
from tests.runs.here import RunHere

SHARE = 0.01
LIMITED = {"status": 429, "headers": {"Retry-After": "0.5"}}
_ONCE: Sequence[Any] = (LIMITED, {"status": 500}, "refuse", "cut_json", {"status": 503})
_ALWAYS: Sequence[Any] = ({"status": 500}, "html", *({"status": status} for status in (400, 403, 408)))
_SAID: Sequence[Any] = ("empty", "length", "filter", {"finish": "error"}, "no_usage")
_VECTORS = ("nan", "zero", "drop")
# The rules do not include connection errors and timeouts, because a busy machine also has them
_SEEN = {*ERRORS.values(), "filtered", *ASKED_ONCE, f"http_{RETRIED}"} - {"timeout", "connection"}

Request = tuple[str, str]  # a stage and its variables
SampleT = TypeVar("SampleT")


def faults_of(stages: Sequence[str], *, unread: Collection[str], hanging: Collection[str] = ()) -> list[Row]:
    """Return rules for all types of errors.

    Each rule affects one percent of the requests of a stage, once or in all attempts.

    `unread`: the stages that cannot parse garbage. All other stages accept any text. `hanging`: the stages that hang
    once.
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
    """The results of requests: the results of earlier runs in `known`, and for other requests the rules.

    `asked`: the error type of each sent request, or None if the request succeeded.
    """

    rules: Sequence[Row]
    known: Mapping[Request, str | None] = field(default_factory=dict)
    asked: dict[Request, str | None] = field(default_factory=dict)

    def of(self, stage: str, **variables: Any) -> str | None:
        """Return the error type of a request without sending it, or None."""
        request = request_of(stage, variables)
        if request in self.known:
            return self.known[request]
        return fate_of({"stage": stage, **_as_sent(stage, variables)}, self.rules).error_type

    def ask(self, stage: str, **variables: Any) -> str | None:
        """Send a request and return its error type, or None."""
        error = self.of(stage, **variables)
        self.asked[request_of(stage, variables)] = error
        return error

    def lasting(self) -> dict[Request, str | None]:
        """Return the requests that a later run does not send again."""
        return {request: error for request, error in self.asked.items() if error not in PASSING}


def request_of(stage: str, variables: Mapping[str, Any]) -> Request:
    """Return the key of a request."""
    return stage, json.dumps(variables, sort_keys=True)


def _as_sent(stage: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
    if stage == "web_search":
        return {**variables, "query": " ".join(variables["query"].split())}
    return {"texts": [variables["text"]]} if stage == "embed_text" else variables


@dataclass
class Expectation(Generic[SampleT]):
    """The expected results of a run: each sample, and the lost requests with sample_id, stage and error type."""

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
    """Run a job with the errors of these rules, then without errors, and then with `--retry-failed`.

    start: run the job with the given flags. expect: return the expected results of all samples. check: compare the
    tables with these results, except for failures. Each run only sends the missing requests, and the last run has no
    failures. Return the expected results of the first run.
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

    # Requests with a temporary error are sent again, and requests with a completion are not
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


def mend_worlds(
    run_here: RunHere,
    folder: Path,
    samples: Sequence[Row],
    *flags: str,
    rules: Sequence[Row],
    expect: Callable[[Fates], Expectation[SampleT]],
    check: Callable[[Path, Mapping[str, SampleT]], None],
    settings: Mapping[str, Any],
) -> Expectation[SampleT]:
    """Do `assert_mended` for a job over the samples of worlds in an empty folder.

    check: compare the tables of an output with the expected results.
    """
    path, output = write_samples(folder / "samples.jsonl", samples), folder / "out"
    given = {"llm.timeout_seconds": 2, "llm.max_attempts": ATTEMPTS, **settings}
    with ModelServer(answer="world") as server:
        return assert_mended(
            lambda *more: run_here(server, path, output, *flags, *more, settings=given),
            server,
            output,
            rules,
            expect,
            lambda expected: check(output, expected),
        )
