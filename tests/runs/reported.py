"""Compare the report of a finished job with the tables of the job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.jobs.report.outputs import data_of
from tests.runs.harness import Row, read_table
from untold.jobs.api import open_run
from untold.jobs.report.page import make_report

SIGNS = {True: "1", False: "0", None: "?"}
DRAWN = ("contradiction", "contradictory")


def assert_reported(output: Path) -> list[Row]:
    """Check that the report contains all scores, statements, claims and failures of the tables. Return its samples."""
    data = data_of(make_report([open_run(output)]))
    samples: list[Row] = data["samples"]
    found = {(one["id"], metric): own for one in samples for metric, own in one["metrics"].items()}
    tables = {
        name: read_table(output, name)
        for name in ("scores", "statements", "claims", "conflicts", "failures", "relations")
    }
    assert {key: own.get("score") for key, own in found.items()} == {
        (row["sample_id"], row["metric"]): None if row["score"] is None else round(row["score"], 4)
        for row in tables["scores"]
    }
    stated, claimed, failed = Counter[tuple[str, ...]](), Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for key, own in found.items():
        stated.update((*key, sign.replace("b", "0")) for sign in own.get("statements", {}).get("is", ""))
        claimed.update((*key, str(one.get("verdict"))) for one in own.get("claims", ()))
        failed.update((key[0], stage) for stage, *_ in own.get("failures", ()))
    assert stated == Counter((row["sample_id"], row["metric"], SIGNS[row["covered"]]) for row in tables["statements"])
    assert claimed == Counter((row["sample_id"], row["metric"], str(row["verdict"])) for row in tables["claims"])
    assert failed == Counter((row["sample_id"], row["stage"]) for row in tables["failures"])
    told = {key: len(own["conflicts"]) for key, own in found.items() if "conflicts" in own}
    assert told == Counter((row["sample_id"], row["metric"]) for row in tables["conflicts"])
    conflicts = {(row["sample_id"], row["metric"]) for row in tables["relations"] if row["relation"] in DRAWN}
    drawn = {key for key, own in found.items() if any(kind for *_, kind in own.get("graph", {}).get("edges", ()))}
    assert drawn <= conflicts
    assert bool(drawn) == bool(conflicts)
    return samples
