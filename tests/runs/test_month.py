"""Run a month of nights on an object store, and check the cost, the tables and the trend."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import untold
from tests.fakes.answers import DISPUTED, expected_e2e
from tests.fakes.model_server import ModelServer
from tests.fakes.object_store import BUCKET, ObjectStore
from tests.runs.harness import PROMPTS, Ended, Row, Run, write_samples
from untold.jobs.cli.main import main

QUERIES, NIGHTS = 12, 30
LATE, KILLED, EMPTY, CHANGED, DRIFTS, FALLS = 3, 5, 8, 12, 20, 25
IN_FLIGHT = 2
FLAGS = ("--metric", "e2e", "--order", "oldest")


def facts(query: int) -> list[str]:
    """Return the facts in the contexts of a query. The judge later disputes the last fact."""
    return [*(f"Fact {name}{query}." for name in "ABC"), f"Fact D{query}{DISPUTED}"]


def sample(name: str, system: str, query: int, said: list[str], note: str = "") -> Row:
    stated = facts(query)
    contexts = [" ".join(stated[:2]), " ".join(stated[2:])]
    response = " ".join([*said, note]).strip()
    return {
        "sample_id": name,
        "query": f"What of {query}?",
        "response": response,
        "contexts": contexts,
        "system": system,
    }


def night_of(day: int) -> list[Row]:
    """Return the responses of a night.

    Most responses are new and contain some of the four facts. The response to the first query never changes.
    """
    rows = []
    for system in ("a", "b"):
        drawn = random.Random(f"{day} {system}")
        for query in range(QUERIES):
            said = [fact for fact in facts(query) if drawn.random() < 0.8 or DISPUTED in fact]
            if system == "b" and day >= FALLS:
                said = [fact for fact in said if "Fact A" not in fact and "Fact B" not in fact]
            same = query == 0
            note = "" if same else f"Said on night {day}."
            rows.append(sample(f"{system}-{query}", system, query, facts(query) if same else said, note))
    return rows


SENTINEL = [sample(f"s-{query}", "fixed", query, facts(query)[query % 2 :]) for query in range(QUERIES)]


class Month:
    """The nights in a bucket, and separate processes that run `untold nightly` on them."""

    def __init__(self, server: ModelServer, store: ObjectStore, folder: Path) -> None:
        self.server, self._store, self._folder = server, store, folder
        self._sentinel = write_samples(folder / "sentinel.jsonl", SENTINEL)
        for day in range(1, NIGHTS + 1):
            if day != EMPTY:
                self.add(day, night_of(day)[: -1 if day == LATE else None])

    def add(self, day: int, rows: list[Row], name: str = "answers") -> None:
        path = write_samples(self._folder / f"{name}-{day}.jsonl", rows)
        self._store.put(f"in/2026-11-{day:02d}/{name}.jsonl", path.read_bytes())

    def start(self, first: int, last: int, *flags: str, prompts: Path = PROMPTS) -> Run:
        span = ["--backfill", f"2026-11-{first:02d}", f"2026-11-{last:02d}"]
        settings = {
            "prompts_dir": prompts,
            "nightly.sentinel": self._sentinel,
            "summarise_contexts": "false",
            "llm.max_concurrency": IN_FLIGHT,
            "llm.flush_seconds": 0.5,
        }
        places = ["--input", f"s3://{BUCKET}/in/{{date}}", "--output", f"s3a://{BUCKET}/out/{{date}}"]
        return Run(
            *(self.server, self._folder, self._folder / "run", *places, *FLAGS, *span, *flags),
            environment=self._store.variables,
            settings=settings,
            command="nightly",
        )

    def run(self, first: int, last: int, *flags: str, prompts: Path = PROMPTS) -> Ended:
        ended = self.start(first, last, *flags, prompts=prompts).wait()
        assert ended.code == 0, ended.err
        return ended


@pytest.fixture
def month(server: ModelServer, object_store: ObjectStore, tmp_path: Path) -> Month:
    return Month(server, object_store, tmp_path)


def changed_prompts(folder: Path) -> Path:
    """Write templates. One of them requests the same result with another text."""
    folder.mkdir()
    for file in PROMPTS.iterdir():
        (folder / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    template = folder / "evaluate_coverage.jinja"
    template.write_text(f"=== system\nJudge with care.\n{template.read_text(encoding='utf-8')}", encoding="utf-8")
    return folder


def score_of(row: Row, *, drifted: bool) -> float:
    """Return the score of a response by a judge."""
    response = row["response"].replace(DISPUTED, "") if drifted else row["response"]
    covered, uncovered = expected_e2e(row["query"], row["contexts"], response)
    return len(covered) / (len(covered) + len(uncovered))


def asked() -> Iterator[tuple[int, Row, str]]:
    """Yield the requests of the nights in order: the night, the sample and its key."""
    for day in range(1, NIGHTS + 1):
        if day != EMPTY:
            for row in night_of(day):
                yield day, row, json.dumps([day >= CHANGED, row["query"], row["response"]])


@pytest.mark.slow
def test_the_trend_of_a_month_names_its_three_causes(
    month: Month, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = month.server
    server.configure(rules=[{"when": {}, "do": {"delay": 0.05}}])
    killed = month.start(1, CHANGED - 1)
    # The run is killed in the fifth night. Each night has its sentinel
    killed.wait_for(server, (KILLED - 1) * QUERIES * 3)
    killed.kill()
    server.configure(rules=[])
    month.add(LATE, night_of(LATE)[-1:], "late")
    again = month.run(1, CHANGED - 1, "--refresh").out
    assert {f"2026-11-{LATE:02d}: finished", f"2026-11-{EMPTY:02d}: empty"} <= {
        line.split(",")[0] for line in again.splitlines()
    }
    prompts = changed_prompts(tmp_path / "prompts")
    assert f"from 2026-11-{CHANGED} on" in month.run(CHANGED, DRIFTS - 1, prompts=prompts).out
    server.configure(answer="strict")
    month.run(DRIFTS, NIGHTS, prompts=prompts)

    # The new requests, the sentinel of each night, and the requests in flight at the kill
    first: dict[str, int] = {}
    for day, _, key in asked():
        first.setdefault(key, day)
    new = len(first) + (NIGHTS - 1) * QUERIES
    assert new <= server.count() <= new + IN_FLIGHT
    for day in range(1, NIGHTS + 1):
        if day != EMPTY:
            assert_tables(day, first)

    output = f"s3://{BUCKET}/trend"
    capsys.readouterr()
    assert main(["trend", f"s3://{BUCKET}/out/*", "--output", output, "--alert", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    causes = [(row["kind"], row["date"][-2:], row.get("system")) for row in found["findings"]]
    assert causes == [("break", f"{CHANGED}", None), ("judge", f"{DRIFTS}", None), ("system", f"{FALLS}", "b")]
    assert found["findings"][1]["systems"] == ["a", "b"]
    assert {row["system"] for row in found["falls"]} == {"b"}


def assert_tables(day: int, first: dict[str, int]) -> None:
    """Check that the scores of a night and of its sentinel equal the scores of its judge."""
    run = untold.open_run(f"s3://{BUCKET}/out/2026-11-{day:02d}")
    rows = {row["sample_id"]: row["score"] for row in run.table("scores").to_pylist()}
    expected = {
        row["sample_id"]: score_of(row, drifted=first[key] >= DRIFTS) for night, row, key in asked() if night == day
    }
    assert rows == pytest.approx(expected), day
    sentinel = untold.open_run(f"{run.directory}/_sentinel")
    judged = {row["sample_id"]: row["score"] for row in sentinel.table("scores").to_pylist()}
    assert judged == pytest.approx({row["sample_id"]: score_of(row, drifted=day >= DRIFTS) for row in SENTINEL}), day
    known: dict[str, Any] = run.sql("select count(*) as failed from failures").df().to_dict("records")[0]
    assert known == {"failed": 0}
