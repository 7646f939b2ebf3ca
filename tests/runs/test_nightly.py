"""Test the scores of several dates with `untold nightly`: it skips finished dates and sends only the new requests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.model_server import ModelServer
from tests.jobs.run.test_reports import Hook
from tests.runs.harness import (
    Ended,
    Row,
    canonical,
    count_distinct,
    make_samples,
    read_manifest,
    read_table,
    snapshot,
    write_samples,
)
from tests.runs.here import RunHere
from untold.jobs import nightly

pytestmark = pytest.mark.gate

PRICES = {"llm.price_per_million_prompt_tokens": 1000.0, "llm.price_per_million_completion_tokens": 1000.0}


class Nights:
    """A folder of dates, with the input in `in/<date>/*.jsonl` and the output in `out/<date>`, and `untold nightly` on
    them.
    """

    def __init__(self, run_here: RunHere, server: ModelServer, folder: Path) -> None:
        self._run, self.server, self.folder = run_here, server, folder

    def add(self, day: int, rows: list[Row], name: str = "answers") -> None:
        write_samples(self.folder / "in" / f"2026-11-{day:02d}" / f"{name}.jsonl", rows)

    def run(self, *flags: str, environment: dict[str, str] | None = None, **settings: Any) -> Ended:
        paths = [self.folder / side / "{date}" for side in ("in", "out")]
        words = ("--metric", "e2e", *flags)
        return self._run(self.server, *paths, *words, settings=settings, command="nightly", environment=environment)

    def ask(self, *flags: str, **settings: Any) -> tuple[int, dict[str, Row]]:
        """Return the exit code and the row of each date in the output of `--json`."""
        ended = self.run(*flags, "--json", **settings)
        found = json.loads(ended.out)
        assert found["exit_code"] == ended.code
        return ended.code, {row["date"]: row for row in found["dates"]}

    def out(self, day: int) -> Path:
        return self.folder / "out" / f"2026-11-{day:02d}"

    def all_dates(self) -> Row:
        found: Row = json.loads((self.folder / "out" / "nightly.json").read_text(encoding="utf-8"))
        return found


@pytest.fixture
def nights(run_here: RunHere, server: ModelServer, tmp_path: Path) -> Nights:
    return Nights(run_here, server, tmp_path)


@contextmanager
def no_engine() -> Iterator[None]:
    """Raise an error if Spark or the actor process starts."""
    with patch.object(nightly, "open_held", side_effect=AssertionError("an engine started")):
        yield


def span(first: int, last: int) -> list[str]:
    return ["--backfill", f"2026-11-{first:02d}", f"2026-11-{last:02d}"]


def day(number: int) -> list[str]:
    return ["--date", f"2026-11-{number:02d}"]


@contextmanager
def watched() -> Iterator[tuple[Hook, InMemorySpanExporter]]:
    """Start a server for messages and events, and keep the spans in memory."""
    kept, provider, hook = InMemorySpanExporter(), TracerProvider(), Hook()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with patch.object(trace, "get_tracer", provider.get_tracer):
        yield hook, kept
    hook.close()


def assert_watched(nights: Nights, hook: Hook, kept: InMemorySpanExporter, days: Sequence[int], figures: str) -> None:
    """Check the message, the events and the spans of these dates, and the figures of the newest date."""
    named = [nights.out(day) for day in days]
    (message,) = [told for told in hook.facts if "eventType" not in told]
    assert (message["command"], message["status"], message["exit_code"]) == ("nightly", "finished", 0)
    assert [one["date"] for one in message["dates"] if one["status"] == "finished"] == [one.name for one in named]
    assert "What of" not in json.dumps(message)
    events = [(told["eventType"], told["inputs"][0]["name"]) for told in hook.facts if "eventType" in told]
    assert events == [(kind, f"{nights.folder}/in/{one.name}") for one in named for kind in ("START", "COMPLETE")]
    spans = Counter(one.name for one in kept.get_finished_spans())
    usage = [row for one in named for row in read_manifest(one)["starts"][0]["usage"]]
    assert spans == Counter(["untold score"] * len(days) + [f"stage {row['stage']}" for row in usage])

    families = text_string_to_metric_families(figures)
    found = {(each.name, *each.labels.values()): each.value for one in families for each in one.samples}
    newest = read_manifest(named[-1])
    for row in newest["starts"][0]["usage"]:
        assert found["untold_cost", row["stage"]] == pytest.approx(row["cost"])
        assert row["cost"] > 0
    for one in newest["summary"]:
        for name in ("scored", "failed", "mean"):
            assert found[f"untold_{name}", "e2e", one["system"] or ""] == pytest.approx(one[name])


def test_a_week_of_nights(nights: Nights) -> None:
    samples = make_samples(30)
    nights.add(17, samples[:10])
    # Half of the samples are the same as on the date before
    nights.add(18, samples[5:15])
    nights.add(20, samples[10:20])
    figures = nights.folder / "figures.prom"
    with watched() as (hook, kept):
        words = (*span(17, 20), "--order", "oldest", "--metrics-file", str(figures))
        told = {"environment": {"OPENLINEAGE_URL": hook.url}, "notify.url": hook.url}
        first = nights.run(*words, **told, **PRICES)
    assert first.code == 0, first.err
    assert_watched(nights, hook, kept, [17, 18, 20], figures.read_text(encoding="utf-8"))
    lines = first.out.splitlines()
    assert [line.split(",")[0] for line in lines[:4]] == [
        *("2026-11-17: finished", "2026-11-18: finished", "2026-11-19: empty", "2026-11-20: finished")
    ]
    assert nights.server.count() == count_distinct(samples[:20])
    assert read_manifest(nights.out(18))["starts"][0]["usage"][-1]["reused"] > 0
    assert read_manifest(nights.out(18))["date"] == "2026-11-18"
    assert [row["date"] for row in nights.all_dates()["dates"]] == ["2026-11-17", "2026-11-18", "2026-11-20"]
    assert (nights.folder / "out" / "completions" / "v1").is_dir()

    before = snapshot(nights.folder / "out")
    with no_engine():
        again = nights.run(*day(18))
        assert (again.code, len(again.out.splitlines())) == (0, 1), again.err
        assert again.out.startswith("2026-11-18: done, 10 samples, e2e 0.")
        required = nights.run(*span(17, 20), "--require-input")
        assert required.code == 1
        assert "untold: 2026-11-19: " in required.err
        assert "does not exist" in required.err
    assert snapshot(nights.folder / "out") == before

    # Late rows wait for --refresh and only cost the new requests
    nights.add(17, samples[20:23], "late")
    with no_engine():
        changed = nights.run(*day(17))
        assert changed.code == 0
        assert changed.out.startswith("2026-11-17: done, 10 samples, e2e 0.")
        assert changed.out.endswith(", its input has changed since then. --refresh scores the changed input\n")
    paid = nights.server.count()
    code, found = nights.ask(*span(17, 20), "--refresh")
    assert (code, {name: row["status"] for name, row in found.items()}) == (
        0,
        {"2026-11-17": "finished", "2026-11-18": "done", "2026-11-19": "empty", "2026-11-20": "done"},
    )
    assert [found["2026-11-17"][name] for name in ("late", "changed", "gone", "samples")] == [3, 0, 0, 13]
    assert nights.server.count() - paid == count_distinct(samples[:23]) - count_distinct(samples[:20])
    assert len(read_table(nights.out(17), "scores")) == 13
    with no_engine():
        assert "has changed" not in nights.run(*span(17, 20)).out

    # Another judge is an error if a date has scores, and it interrupts the trend line if there are no scores yet
    nights.add(21, samples[10:20])
    with no_engine():
        refused = nights.run(*span(17, 18), **{"llm.temperature": 0.5})
        assert refused.code == 1
        assert "untold: 2026-11-17: " in refused.err
        assert "belongs to other settings (llm.temperature)" in refused.err
    broken = nights.run(*day(21), **{"llm.temperature": 0.5})
    assert broken.code == 0, broken.err
    line = "from 2026-11-21 on, figures are not comparable with those before: other settings (llm.temperature)"
    assert line in broken.out.splitlines()
    assert [one["date"] for one in nights.all_dates()["breaks"]] == ["2026-11-21"]


def test_a_file_that_was_only_touched_is_read_once(nights: Nights) -> None:
    nights.add(17, make_samples(4))
    assert nights.run(*day(17)).code == 0
    tables = canonical(nights.out(17))
    nights.add(17, make_samples(4))
    paid = nights.server.count()
    code, found = nights.ask(*day(17), "--refresh")
    assert (code, found["2026-11-17"]["status"]) == (0, "done")
    assert (nights.server.count(), canonical(nights.out(17))) == (paid, tables)
    with no_engine():
        code, found = nights.ask(*day(17))
    assert (code, found["2026-11-17"]["input_changed"]) == (0, False)


@pytest.mark.slow
def test_a_problem_of_one_date_ends_no_other_date_and_an_outage_ends_all(nights: Nights) -> None:
    samples = make_samples(12)
    for number in (17, 18, 19):
        nights.add(number, samples[4 * (number - 17) :][:4])
    nights.add(18, [{"question": "of no column that is read"}])
    code, found = nights.ask(*span(17, 19), "--fail-under", "e2e=1", "--order", "newest")
    assert code == 1
    assert {name[-2:]: (row["status"], row["exit_code"]) for name, row in found.items()} == {
        "17": ("finished", 4),
        "18": ("refused", 1),
        "19": ("finished", 4),
    }
    assert next(iter(found)) == "2026-11-19"
    assert "no column `query`" in found["2026-11-18"]["message"]

    for number in (21, 22):
        nights.add(number, make_samples(2 * number)[-2:])
    nights.server.configure(down=True)
    code, found = nights.ask(*span(19, 22), **{"llm.outage_minutes": 0.05})
    assert code == 5
    assert {name[-2:]: row["status"] for name, row in found.items()} == {
        "19": "done",
        "20": "empty",
        "21": "waiting",
        "22": "outage",
    }


@pytest.mark.slow
def test_each_night_has_a_budget_and_the_month_has_a_budget(nights: Nights) -> None:
    samples = make_samples(40)
    for number in (17, 18, 19):
        nights.add(number, samples[10 * (number - 17) :][:10])
    code, found = nights.ask(*span(17, 18), **{"budget.max_calls": 5})
    assert (code, [row["status"] for row in found.values()]) == (3, ["budget", "budget"])
    assert nights.server.count() == 10
    code, found = nights.ask(*span(17, 18), **PRICES)
    assert (code, [row["status"] for row in found.values()]) == (0, ["finished", "finished"])
    assert nights.server.count() == count_distinct(samples[:20])

    month = {**PRICES, "nightly.budget_month": 0.0001}
    paid = nights.server.count()
    with no_engine():
        code, found = nights.ask(*span(18, 19), **month)
    assert (code, [row["status"] for row in found.values()]) == (3, ["waiting", "done"])
    assert "nightly.budget_month is used up" in found["2026-11-19"]["message"]
    spent = sum(read_manifest(nights.out(number))["totals"]["cost"] for number in (17, 18))
    nights.add(16, samples[30:40])
    more = {**PRICES, "nightly.budget_month": spent * 1.2}
    code, found = nights.ask(*span(16, 19), **more)
    assert (code, [row["status"] for row in found.values()]) == (3, ["budget", "done", "done", "waiting"])
    # A call is not sent if its cost could exceed the rest of the budget
    assert paid <= nights.server.count() < paid + count_distinct(samples[20:])
    assert nights.run(*span(16, 19), **PRICES).code == 0
    without = nights.run(*day(17), **{"nightly.budget_month": 1})
    assert without.code == 1
    assert "nightly.budget_month" in without.err
    assert "needs llm.price_per_million_prompt_tokens" in without.err


@pytest.mark.slow
def test_a_sentinel_is_judged_again_each_night(run_here: RunHere, nights: Nights) -> None:
    samples, fixed = make_samples(12), make_samples(4)
    given = {"nightly.sentinel": write_samples(nights.folder / "fixed.jsonl", fixed)}
    # The samples of both dates include the sentinel
    for number in (17, 18):
        nights.add(number, samples[:6])
    first = nights.run(*span(17, 18), "--order", "oldest", **given)
    assert first.code == 0, first.err
    assert nights.server.count() == count_distinct(samples[:6]) + 2 * count_distinct(fixed)
    assert len(read_table(nights.out(17) / "_sentinel", "scores")) == len(fixed)
    rows = nights.all_dates()["dates"]
    assert [row["sentinel"]["calls"] for row in rows] == [count_distinct(fixed)] * 2
    assert [row["calls"] for row in rows] == [count_distinct(samples[:6]), 0]
    assert rows[0]["sentinel"]["summary"][0]["n"] == len(fixed)

    words = ["trend", str(nights.folder / "out"), "--output", str(nights.folder / "trend"), "--json"]
    told = json.loads(run_here.command(words).out)
    assert [row["n"] for row in told["points"] if row["level"] == "sentinel"] == [len(fixed)] * 2
    assert told["findings"] == []


@pytest.mark.slow
def test_a_sentinel_is_sent_once_per_night_and_within_its_budget(nights: Nights) -> None:
    samples, fixed = make_samples(12), make_samples(4)
    given = {"nightly.sentinel": write_samples(nights.folder / "fixed.jsonl", fixed)}
    for number in (17, 18):
        nights.add(number, samples[:6])
    assert nights.run(*span(17, 18), "--order", "oldest", **given).code == 0
    # The sentinel is not sent again for a finished date or for late rows
    paid = nights.server.count()
    with no_engine():
        assert nights.run(*span(17, 18), **given).code == 0
    nights.add(17, samples[:6] + samples[8:9], "answers")
    assert nights.run(*day(17), "--refresh", **given).code == 0
    assert nights.server.count() - paid == count_distinct(samples[:6] + samples[8:9]) - count_distinct(samples[:6])

    # The sentinel runs first and counts in the budget of the night
    nights.add(19, samples[9:12])
    paid, most = nights.server.count(), count_distinct(fixed) + 1
    code, found = nights.ask(*day(19), **given, **{"budget.max_calls": most})
    assert (code, found["2026-11-19"]["status"], nights.server.count() - paid) == (3, "budget", most)
    missing = nights.run(*day(19), "--overwrite", **{"nightly.sentinel": "/nowhere.jsonl"})
    assert (missing.code, "untold: 2026-11-19: nightly.sentinel: /nowhere.jsonl does not exist" in missing.err) == (
        1,
        True,
    )


@pytest.mark.slow
def test_a_pruned_store_has_the_completions_of_kept_outputs(run_here: RunHere, nights: Nights) -> None:
    samples = make_samples(20)
    nights.add(17, samples[:10])
    nights.add(18, samples[5:20])
    assert nights.run(*span(17, 18)).code == 0
    store, out = nights.folder / "out" / "completions", nights.folder / "out"
    prune = ["prune", "--completion-store", str(store), "--older-than", "0d", "--keep-outputs", str(out / "*-17")]
    assert run_here.command([*prune, "--apply"]).code == 0
    paid = nights.server.count()
    tables = canonical(nights.out(17))
    assert nights.run(*day(17), "--overwrite").code == 0
    assert (nights.server.count(), canonical(nights.out(17))) == (paid, tables)
    assert nights.run(*day(18), "--overwrite").code == 0
    assert nights.server.count() - paid == count_distinct(samples) - count_distinct(samples[:10])
