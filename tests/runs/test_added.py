"""Test that metrics can be added to an output. The existing tables stay, and no stored request is sent again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.runs.harness import Row, make_samples, read_manifest, read_table, snapshot, write_samples
from tests.runs.here import RunHere

pytestmark = pytest.mark.gate

TABLES = ("statements", "scores", "summary", "failures")


def rows_of(output: Path, metric: str) -> dict[str, list[Row]]:
    return {name: [row for row in read_table(output, name) if row["metric"] == metric] for name in TABLES}


def test_a_metric_is_added_with_each_command(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    known = worlds(2, "noisy")
    server.configure(answer=known[0].answer)
    samples = [sample for world in known for sample in world.samples(2)]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    output = tmp_path / "out"
    assert run_here(server, path, output).code == 0
    e2e, paid = rows_of(output, "e2e"), server.count()

    settings = {"nli.skip_implied": "true"}
    refused = run_here(server, path, output, "--metric", "nli", settings={**settings, "summarise_contexts": "false"})
    assert refused.code == 1
    assert "belongs to other settings (summarise_contexts); give another --output" in refused.err

    added = run_here(server, path, output, "--metric", "nli", settings=settings)
    assert added.code == 0, added.err
    assert f"{output} already has e2e, which stays unchanged" in added.err
    assert rows_of(output, "e2e") == e2e
    assert {row["status"] for row in rows_of(output, "nli")["scores"]} == {"ok"}
    assert server.count("summarise_context") + server.count("evaluate_coverage") == paid
    assert read_manifest(output)["identity"]["metrics"] == ["e2e", "nli"]

    before, asked = snapshot(output), server.count()
    for metrics in ("e2e", "nli", "nli,e2e"):
        again = run_here(server, path, output, "--metric", metrics, settings=settings)
        assert (again.code, server.count()) == (0, asked), again.err
    assert {name: it for name, it in snapshot(output).items() if "_lock" not in name}.items() <= before.items()


@pytest.mark.slow
def test_a_metric_over_budget_keeps_the_existing_metrics(
    run_here: RunHere, server: ModelServer, tmp_path: Path
) -> None:
    # The metric e2e reads the aspects as texts, and icat reads them as aspects with ids
    samples = [{**sample, "aspects": ["height", "year"]} for sample in make_samples(4)]
    path = write_samples(tmp_path / "samples.jsonl", samples)
    output = tmp_path / "out"
    first = run_here(server, path, output, "--fail-under", "e2e=.99")
    assert first.code == 4, first.err
    assert re.search(r"untold: e2e: mean 0\.\d+ is below the bar 0\.99 \(n 4, scored 4\)\n", first.err)
    e2e, paid = rows_of(output, "e2e"), server.count()

    settings = {"knowledge.retriever": "bm25", "budget.max_calls": 0}
    ended = run_here(server, path, output, "--metric", "icat", settings=settings)
    assert (ended.code, server.count()) == (3, paid), ended.err
    assert rows_of(output, "e2e") == e2e
    assert {row["status"] for row in rows_of(output, "icat")["scores"]} == {"budget"}
    assert read_manifest(output)["status"] == "budget"
