"""Test the lines at the end of a run with tables in the form of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.graph.views import CONFLICT_MEASURES
from untold.jobs.inference.stage.start import Outcome
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.run.terminal import Page, width_of
from untold.jobs.run_tables import open_run
from untold.jobs.score import show_summary
from untold.jobs.settings.model import Settings
from untold.jobs.summary.run_summary import DRAWN_COLUMNS, _summary, end_of_run
from untold.jobs.tables import RESULT_TABLES

Row = dict[str, Any]
START = {"started_at": "2026-11-23T10:00:00+00:00", "ended_at": "2026-11-23T10:01:05+00:00"}
TOTALS = {"calls": 12, "prompt_tokens": 3000, "completion_tokens": 400, "cost": 0.0125}


def scored(sample: str, score: float | None, status: str = "ok", **fields: Any) -> Row:
    return {"sample_id": sample, "metric": "e2e", "system": "a", "score": score, "status": status, **fields}


def failed(sample: str, kind: str, error: str) -> Row:
    return {"sample_id": sample, "metric": "e2e", "stage": "evaluate_coverage", "error_type": kind, "error": error}


def summarised(system: str | None, **fields: Any) -> Row:
    row = {"metric": "e2e", "level": "system" if system else "overall", "system": system, "n": 5, "scored": 3}
    return {**row, "undefined": 0, "failed": 2, "mean": 0.5, "ci_low": 0.25, "ci_high": 0.75, **fields}


def lines_of(folder: Path, scores: list[Row], failures: list[Row] | None = None, **manifest: Any) -> list[str]:
    """Return the last lines of a run with these tables. All other tables are empty."""
    given = {"scores": scores, "failures": failures or [], "samples": scores, **manifest.pop("tables", {})}
    for name, schema in RESULT_TABLES.items():
        (folder / name).mkdir(parents=True)
        rows = given.get(name, [])
        table = pa.Table.from_pylist([{field: row.get(field) for field in schema.names} for row in rows], schema)
        pq.write_table(table, folder / name / "part-0.parquet")
    statuses: dict[str, int] = {}
    for row in scores:
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
    counted = {name: len(given.get(name, [])) for name in RESULT_TABLES}
    known = {"status": "finished", "rows": counted, "totals": TOTALS, "starts": [START], **manifest}
    (folder / "manifest.json").write_text(json.dumps(known), encoding="utf-8")
    summary = [summarised(None), summarised("a")]
    return end_of_run(open_run(folder), summary, {"statuses": statuses}, Page(), embedded=False)


def test_items_from_the_examples_of_prompts_are_reported(tmp_path: Path) -> None:
    usage = [{"stage": "extract_facts", "leaked_example": 3}, {"stage": "check_coverage", "leaked_example": 0}]
    usage.append({"stage": "extract_claims", "leaked_example": 1})

    lines = lines_of(tmp_path / "out", [scored("a", 1.0)], starts=[{**START, "usage": usage}])

    assert "items dropped as repeats of the prompts' examples: extract_facts 3, extract_claims 1" in lines


@pytest.mark.parametrize(("model", "shown"), [("judge", False), ("gpt-4.1", True)])
def test_conflicts_by_the_judge_of_the_package_are_not_shown(tmp_path: Path, model: str, shown: bool) -> None:
    figures = {"level": "overall", "system": None, "n": 4, "defined": 4, "ci_low": 0.2, "ci_high": 0.8}
    measures = [{**figures, "metric": "nli", "measure": name, "mean": 0.5} for name in CONFLICT_MEASURES]
    usage = [{"stage": "classify_relation", "model": model}]

    lines = lines_of(
        tmp_path / "out",
        [scored("a", 1.0)],
        starts=[{**START, "usage": usage}],
        tables={"measures_summary": measures},
    )

    below = lines[lines.index("conflicts of contexts") + 1]
    assert (below.split()[:3] == ["metric", "system", "conflicts"]) == shown
    assert ("judge of the package" in below) != shown


def test_audits_of_filters_are_reported_with_their_intervals(tmp_path: Path) -> None:
    audit = {"metric": "nli", "n": 5, "defined": 2400, "mean": 0.125, "ci_low": 0.1, "ci_high": 0.15}
    lines = lines_of(tmp_path / "out", [scored("a", 1.0)], audits=[{**audit, "measure": "miss_rate"}])
    place = lines.index("audits of filters")
    assert lines[place + 1].split() == ["metric", "measure", "audited", "share", "95", "%", "interval"]
    assert lines[place + 2].split() == ["nli", "miss_rate", "2,400", "0.125", "0.100", "..", "0.150"]


def test_a_whole_run(tmp_path: Path) -> None:
    output = tmp_path / "out"
    scores = [scored("d", 0.5), scored("c", 0.25), scored("b", 0.25), scored("a", 1.0), scored("e", None, "failed")]
    failures = [failed("e", "unparsable", "missing heading"), failed("f", "timeout", "no answer within 120 s")]
    assert lines_of(output, scores, [*failures, failed("g", "timeout", "no answer within 9 s")]) == [
        "summary",
        "metric  system  n  scored  undefined  failed   mean  95 % interval",
        "e2e     all     5       3          0       2  0.500  0.250 .. 0.750 (n < 10)",
        "e2e     a       5       3          0       2  0.500  0.250 .. 0.750 (n < 10)",
        "statuses: 4 ok, 1 failed",
        "",
        "failures",
        "stage              kind        example  message                 count",
        "evaluate_coverage  timeout     f        no answer within 120 s      2",
        "evaluate_coverage  unparsable  e        missing heading             1",
        "",
        "lowest scores",
        "sample_id  metric  score",
        "b          e2e     0.250",
        "c          e2e     0.250",
        "d          e2e     0.500",
        "",
        "cost: 0.0125, 12 calls, 3,400 tokens; time: 1:05",
        f"results: {output}",
        "tables: samples, scores, failures",
        f"next: untold show {output} --sample b --metric e2e",
        f"report: untold report {output}",
    ]


def test_intervals_are_drawn_if_the_terminal_is_wide() -> None:
    rows = [
        summarised(None),
        summarised("a", mean=None, ci_low=None, ci_high=None),
        summarised("b", mean=1.0, ci_low=None, ci_high=None),
    ]
    narrow, wide = _summary(rows, {}, Page(80)), _summary(rows, {}, Page(130))

    assert "├" not in "".join(narrow)
    start = wide[0].index("0 ")
    assert wide[0].endswith(f"0{'1':>{DRAWN_COLUMNS - 1}}")
    assert [line[start:] for line in wide[1:]] == [" " * 10 + "├─────────●─────────┤", "", " " * 40 + "●"]
    assert all(width_of(line) <= 130 for line in wide)
    plain = _summary(rows, {}, Page(130, "ascii"))
    assert plain[1].endswith(" " * 10 + "|---------o---------|")


def test_unsent_samples_have_not_failed(tmp_path: Path) -> None:
    lines = lines_of(
        tmp_path, [scored("s", 1.0), scored("t", None, "budget"), scored("u", None, "budget", system=None)]
    )
    assert [line.split()[:7] for line in lines[1:4]] == [
        ["metric", "system", "n", "scored", "undefined", "failed", "not"],
        ["e2e", "all", "5", "3", "0", "0", "2"],
        ["e2e", "a", "5", "3", "0", "1", "1"],
    ]
    assert "statuses: 1 ok, 2 not asked" in lines


def test_without_scores_there_is_nothing_to_show(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, [scored("s", None, "failed")])
    assert not any(line.startswith(("next:", "lowest scores", "failures")) for line in lines)


def test_all_starts_are_summed_and_one_call_is_singular(tmp_path: Path) -> None:
    totals = {**TOTALS, "calls": 1, "cost": None}
    lines = lines_of(tmp_path, [scored("s", 1.0)], totals=totals, starts=[START, START])
    assert "cost: unknown (no price is set), 1 call, 3,400 tokens; time: 2:10, over 2 starts" in lines


def test_a_secret_in_a_message_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "sk-a-secret-of-a-judge")
    lines = lines_of(tmp_path, [scored("s", 1.0)], [failed("s", "http_400", "HTTP 400 sk-a-secret-of-a-judge")])
    assert not any("sk-a-secret-of-a-judge" in line for line in lines)


def test_what_is_next_can_be_pasted(tmp_path: Path) -> None:
    output = tmp_path / "my run"
    lines = lines_of(output, [scored("it's", 0.5), scored("two\nlines", 0.0)])
    assert r"two\nlines  e2e     0.000" in lines
    assert lines[-2:] == [
        f"next: untold show '{output}' --sample 'it'\"'\"'s' --metric e2e",
        f"report: untold report '{output}'",
    ]


def test_a_store_that_does_not_answer_at_the_end_is_a_line_and_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    lines_of(output, [scored("s", 1.0)])
    (output / "scores" / "part-0.parquet").write_bytes(b"half a tab")
    manifest = {"summary": [summarised(None)], "counts": {"statuses": {"ok": 1}}}
    request = ScoreRequest(input="", output=str(output), settings=Settings(), metrics=("e2e",), embedded=False)
    show_summary(Outcome(exit_code=0, manifest=manifest), request)
    assert capsys.readouterr().out == f"results: {output} (its tables cannot be read at the moment: ArrowInvalid)\n"
