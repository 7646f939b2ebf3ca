"""Test the questions about runs that DuckDB answers. Each is one line with `untold.Run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import pearsonr, spearmanr

import untold
from tests.jobs.test_compare import draw, write_output
from untold.jobs.summary import score_counts
from untold.jobs.summary.ranking import CompareError
from untold.jobs.tables import TABLES

CONTEXTS = [{"id": "c1", "text": "It is 8,848 m."}, {"id": "c2", "text": "It is 8,849 m."}]
# sample_id, metric, system, score, status
SCORES = [
    ("s1", "e2e", "a", 0.5, "ok"),
    ("s2", "e2e", "b", 1.0, "ok"),
    ("s3", "e2e", "c", 0.0, "ok"),
    ("s4", "e2e", "a", None, "failed"),
    ("s1", "qa", "a", 0.25, "ok"),
    ("s2", "qa", "b", 0.75, "partial"),
    ("s3", "qa", "c", 0.5, "ok"),
]
# sample_id, text, covered, sources, kept
STATEMENTS = [
    ("s1", "It is 8,848 m.", True, ["c1"], None),
    ("s1", "It is 8,849 m.", False, ["c2"], None),
    ("s2", "It is 8,848 m", True, ["c1"], None),
    ("s2", "it is  8,849 m", True, ["c2"], None),
    ("s3", "It is 8,848 m.", False, ["c1"], None),
    ("s3", "it is  8,849 m", False, ["c1", "c2"], None),
    ("s3", "It is high.", False, ["c1"], False),
]
USAGE = [
    {"stage": "summarise_context", "model": "m", "requests": 2, "calls": 2, "prompt_tokens": 10, "cost": 0.25},
    {"stage": "evaluate_coverage", "model": "m", "requests": 3, "calls": 4, "prompt_tokens": 30, "cost": 0.75},
]


def write_run(folder: Path, tables: dict[str, list[dict[str, Any]]], **manifest: Any) -> untold.Run:
    folder.mkdir(parents=True)
    for name, rows in tables.items():
        (folder / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows, TABLES[name]), folder / name / "part-0.parquet")
    (folder / "manifest.json").write_text(json.dumps({"status": "finished", "metrics": ["e2e", "qa"], **manifest}))
    return untold.open_run(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> untold.Run:
    names = ("sample_id", "metric", "system", "score", "status")
    counted = {"ok": {"covered": 1, "uncovered": 1}, "partial": {"covered": 1, "uncovered": 1}}
    scores = [dict(zip(names, row, strict=True)) for row in SCORES]
    asked = {"query": "How high?", "contexts": CONTEXTS}
    stated = ("sample_id", "text", "covered", "sources", "kept")
    tables = {
        "samples": [{"sample_id": f"s{n}", "response": "r", **asked} for n in range(1, 5)],
        "scores": [row | counted.get(str(row["status"]), {}) for row in scores],
        "statements": [{"metric": "e2e", **dict(zip(stated, row, strict=True))} for row in STATEMENTS],
        "usage": USAGE,
    }
    return write_run(tmp_path_factory.mktemp("runs") / "run", tables)


def test_statements_that_most_responses_miss_come_first(run: untold.Run) -> None:
    first, second = run.left_out().to_pylist()
    assert first == {
        "metric": "e2e",
        "query": "How high?",
        "statement": "It is 8,849 m.",
        "missed": 2,
        "responses": 3,
        "share": 2 / 3,
        "systems": ["a", "c"],
        "sources": ["c1", "c2"],
    }
    assert (second["statement"], second["missed"], second["systems"]) == ("It is 8,848 m.", 1, ["c"])
    assert run.left_out(n=1).num_rows == 1


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("query", [("How high?", 3, 6, 3, 0.5)]),
        ("source", [("c1", 3, 4, 2, 0.5), ("c2", 3, 3, 2, 2 / 3)]),
        ("system", [("c", 1, 2, 2, 1.0), ("a", 1, 2, 1, 0.5), ("b", 1, 2, 0, 0.0)]),
    ],
)
def test_missing_statements_are_counted_by_query_source_and_system(run: untold.Run, by: str, rows: list[Any]) -> None:
    found = run.left_out(by=by).to_pylist()
    counts = ("responses", "statements", "missed", "share")
    assert sorted(tuple(row[name] for name in (by, *counts)) for row in found) == sorted(rows)
    if by == "source":
        assert {row["source"]: row["context"] for row in found} == {one["id"]: one["text"] for one in CONTEXTS}


def test_an_unknown_grouping_names_similar_groupings(run: untold.Run) -> None:
    with pytest.raises(untold.UntoldError, match=r"by=sources: must be statement, query, source, system.*`source`"):
        run.left_out(by="sources")


def test_metrics_agree_as_by_scipy(run: untold.Run) -> None:
    (pair,) = run.agreement().to_pylist()
    first, second = [0.5, 1.0, 0.0], [0.25, 0.75, 0.5]
    assert (pair["first"], pair["second"], pair["n"], pair["difference"]) == ("e2e", "qa", 3, 0.0)
    assert pair["spearman"] == pytest.approx(spearmanr(first, second).statistic)
    assert pair["pearson"] == pytest.approx(pearsonr(first, second).statistic)


def test_ties_share_their_rank_and_constant_scores_have_no_coefficient(tmp_path: Path) -> None:
    outputs = {"e2e": [0.0, 0.5, 0.5, 1.0], "qa": [0.25, 1.0, 0.5, 0.5], "nli": [1.0] * 4}
    rows = [
        {"sample_id": f"s{place}", "metric": metric, "score": score, "status": "ok"}
        for metric, scores in outputs.items()
        for place, score in enumerate(scores)
    ]
    found = {
        (row["first"], row["second"]): row["spearman"]
        for row in write_run(tmp_path / "run", {"scores": rows}).agreement().to_pylist()
    }
    assert found["e2e", "qa"] == pytest.approx(spearmanr(outputs["e2e"], outputs["qa"]).statistic)
    assert found["e2e", "nli"] is None


def test_scores_are_counted_in_bins_and_the_last_bin_includes_1(run: untold.Run) -> None:
    found = run.distribution(bins=4).to_pylist()
    bins = [(row["system"], row["low"], row["high"], row["count"]) for row in found if row["metric"] == "e2e"]
    assert bins == [("a", 0.5, 0.75, 1), ("b", 0.75, 1.0, 1), ("c", 0.0, 0.25, 1)]


def test_statuses_and_costs_are_shares(run: untold.Run) -> None:
    of_a = [row for row in run.statuses().to_pylist() if (row["metric"], row["system"]) == ("e2e", "a")]
    assert [(row["status"], row["count"], row["share"]) for row in of_a] == [("failed", 1, 0.5), ("ok", 1, 0.5)]
    costs = [(row["stage"], row["share"], row["cost_of_thousand"]) for row in run.costs().to_pylist()]
    assert costs == [("evaluate_coverage", 0.75, 187.5), ("summarise_context", 0.25, 62.5)]


def test_queries_in_which_systems_differ_most_come_first(run: untold.Run) -> None:
    found = run.differences_by_query(n=2, metrics=["e2e"]).to_pylist()
    assert [(row["first"], row["second"], row["difference"]) for row in found] == [("b", "c", 1.0), ("a", "b", -0.5)]
    assert found[0] | {"query": "How high?", "first_score": 1.0, "second_score": 0.0} == found[0]


def test_several_runs_are_one_table(run: untold.Run, tmp_path: Path) -> None:
    nameless = write_output(tmp_path / "late", {(None, "x", 0): 0.25})
    found = run.statuses(untold.open_run(nameless)).to_pylist()
    assert {"metric": "qa", "system": "late", "status": "ok", "count": 1, "share": 1.0} in found
    with pytest.raises(CompareError, match="given twice"):
        run.differences(run)


@pytest.mark.gate
def test_too_many_distinct_differences_are_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = draw("ab", 200) | {("a", "a", question): question / 777 for question in range(200)}
    output = untold.open_run(write_output(tmp_path / "out", scores))
    exact = output.differences().to_pylist()[0]
    monkeypatch.setattr(score_counts, "MAX_DISTINCT", 50)
    rounded = output.differences().to_pylist()[0]
    assert rounded["difference"] == pytest.approx(exact["difference"], abs=1e-4)
    assert rounded["difference"] != exact["difference"]


def test_a_trend_is_of_the_dates_of_folders(tmp_path: Path) -> None:
    row = {"metric": "e2e", "level": "overall", "n": 1, "scored": 1}
    runs = [
        write_run(
            tmp_path / name, {"summary": [{**row, "mean": mean}]}, starts=[{"started_at": "2026-01-01T00:00:00+00:00"}]
        )
        for name, mean in (("2026-11-21", 0.5), ("2026-11-20", 0.25), ("first", 0.0))
    ]
    found = runs[0].trend(*runs[1:]).to_pylist()
    assert [(row["date"], row["mean"]) for row in found] == [
        ("2026-01-01", 0.0),
        ("2026-11-20", 0.25),
        ("2026-11-21", 0.5),
    ]


def test_joins_read_files_that_only_arrow_can_read(tmp_path: Path) -> None:
    """DuckDB reads brackets as a pattern, so Arrow reads this folder in the same way as an object store."""
    ids = [{"sample_id": f"s{number}"} for number in range(5_000)]
    scores = [{**row, "score": number % 100 / 100} for number, row in enumerate(ids)]
    run = write_run(tmp_path / "[one]", {"samples": ids, "scores": scores})
    found = run.sql("select count(*) from scores join samples using (sample_id) where score < 0.01").fetchall()
    assert found == [(50,)]


def test_sql_has_the_columns_of_the_contract_and_reads_odd_paths(tmp_path: Path) -> None:
    folder = tmp_path / "it's [one] date=2026-11-20"
    run = write_run(folder, {"scores": [{"sample_id": "s", "score": 0.5}]})
    pq.write_table(pa.table({"sample_id": ["t"], "mine": [1]}), folder / "scores" / "part-1.parquet")
    found = untold.open_run(folder).sql("select sample_id, score, status, mine from scores order by 1")
    assert found.fetchall() == [("s", 0.5, None, None), ("t", None, None, 1)]
    assert "date" not in run.sql("select * from scores").columns


def test_systems_of_a_run_without_metrics_do_not_differ(tmp_path: Path) -> None:
    empty = {name: list[dict[str, Any]]() for name in ("samples", "scores", "statements")}
    assert write_run(tmp_path / "out", empty, metrics=[]).differences_by_query().num_rows == 0
