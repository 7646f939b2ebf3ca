"""The curve of recall at k: means of samples by ranking and k, a table and two pictures in the run's output."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.graph.plotting import draw_picture
from untold.jobs.run.manifest import FORMAT
from untold.jobs.run_tables import UnreadableRunError, open_run
from untold.jobs.sweep import UnmeasuredError, curve, draw_curve
from untold.jobs.tables import CLAIMS, MEASURES, SCORES

# sample, system, recall at 5 and at 20 by each ranking
SAMPLES = [
    ("a", "x", 1.0, 0.5),
    ("b", "x", 0.25, 0.75),
    ("c", "y", 0.0, None),
    ("d", None, 0.5, 1.0),
]
NAMES = {"combined": "recall", "relevance": "recall_relevance", "salience": "recall_salience"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a finished run with two metrics. No recall by salience is defined."""
    measures = [
        {"sample_id": name, "metric": "importance", "measure": f"{NAMES[ranking]}@{k}", "value": value and value * size}
        for name, _, *recalls in SAMPLES
        for ranking, size in (("combined", 1.0), ("relevance", 0.5), ("salience", None))
        for k, value in zip((5, 20), recalls if size else (None, None), strict=True)
    ]
    measures += [{**measures[0], "measure": name, "value": 0.9} for name in ("recall", "weighted_recall", "facts")]
    measures += [{**row, "metric": "other", "value": 0.125} for row in measures]
    scores = [
        {"sample_id": name, "metric": metric, "system": system}
        for name, system, *_ in SAMPLES
        for metric in ("importance", "other")
    ]
    folder = tmp_path / "out"
    for name, rows, schema in (("measures", measures, MEASURES), ("scores", scores, SCORES)):
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / name / "part-0.parquet")
    (folder / "manifest.json").write_text(json.dumps({"format": FORMAT, "identity": {}, "status": "finished"}))
    return folder


def test_means_are_of_samples_at_each_k(run: Path) -> None:
    rows = curve(str(run))
    assert open_run(run).table("recall_curve").to_pylist() == rows
    found = [(row["system"], row["ranking"], row["k"], row["n"], row["mean"]) for row in rows]
    wanted = {None: ((4, 0.4375), (3, 0.75)), "x": ((2, 0.625), (2, 0.625)), "y": ((1, 0.0), None)}
    assert found == [
        (system, ranking, k, figures[0], pytest.approx(figures[1] * size))
        for system, both in wanted.items()
        for ranking, size in (("combined", 1.0), ("relevance", 0.5))
        for k, figures in zip((5, 20), both, strict=True)
        if figures is not None
    ]
    for row in rows:
        assert row["ci_low"] is None or row["ci_low"] <= row["mean"] <= row["ci_high"]
    assert (run / "pictures" / "recall_curve.png").read_bytes().startswith(b"\x89PNG")
    text = " ".join(ElementTree.fromstring((run / "pictures" / "recall_curve.svg").read_bytes()).itertext())
    assert all(name in text for name in ("combined", "relevance", "salience", "all", "x", "y"))


@pytest.mark.parametrize("metric", ["importance", "rag", "icat"])
def test_claims_at_k_are_as_by_brute_force(tmp_path: Path, metric: str) -> None:
    """Compute the formulas of SAFE per sample. Lost verdicts, failed samples and other metrics are left out."""
    draw = random.Random(7)
    verdicts = ("supported", "contradicted", "not_supported")
    samples = {f"s{n:02}": [draw.choice(verdicts) for _ in range(draw.randrange(8))] for n in range(40)}
    systems = {name: draw.choice(["x", "y"]) for name in samples}
    rows: dict[str, list[dict[str, object]]] = {"measures": [], "scores": [], "claims": []}
    for name, own in [*samples.items(), ("lost", ["supported", None]), ("failed", [])]:
        known = {"sample_id": name, "metric": metric}
        count = None if name == "failed" else float(len(own))
        rows["measures"].append({**known, "measure": "claims", "value": count})
        rows["scores"].append({**known, "system": systems.get(name, "x")})
        rows["claims"] += [{**known, "position": n, "verdict": one} for n, one in enumerate(own, start=1)]
    # Without a ground truth, a response without claims has no claim that could be supported
    rows["measures"] += [
        {"sample_id": "untrue", "metric": metric, "measure": "claims", "value": 0.0},
        {"sample_id": "untrue", "metric": metric, "measure": "ground_truth_claims", "value": None},
    ]
    rows["scores"].append({"sample_id": "untrue", "metric": metric, "system": "x"})
    others = [{**row, "metric": "toy"} for row in rows["claims"]]
    for table, schema, more in (("measures", MEASURES, []), ("scores", SCORES, []), ("claims", CLAIMS, others)):
        (tmp_path / table).mkdir()
        pq.write_table(pa.Table.from_pylist([*rows[table], *more], schema), tmp_path / table / "part-0.parquet")
    (tmp_path / "manifest.json").write_text(json.dumps({"format": FORMAT, "identity": {}, "status": "finished"}))

    def by_hand(own: list[str], k: int) -> tuple[float, float]:
        supported = own.count("supported")
        recall = min(supported / k, 1)
        return recall, 2 * supported / len(own) * recall / (supported / len(own) + recall) if supported else 0.0

    middle = max(1, sorted(len(own) for own in samples.values())[len(samples) // 2])
    for ks in ((), (1, 3, 64)):
        found = {
            (row["system"], row["ranking"], row["k"]): (row["n"], row["mean"]) for row in curve(str(tmp_path), ks=ks)
        }
        wanted = {}
        for system, k, (place, ranking) in product(
            (None, "x", "y"), ks or (middle,), enumerate(("claims", "claims_f1"))
        ):
            own = [by_hand(one, k)[place] for name, one in samples.items() if system in (None, systems[name])]
            wanted[system, ranking, k] = (len(own), pytest.approx(sum(own) / len(own)))
        assert found == wanted


def test_a_run_without_the_metric_is_one_line(run: Path) -> None:
    pq.write_table(pa.Table.from_pylist([], MEASURES), run / "measures" / "part-0.parquet")
    with pytest.raises(UnmeasuredError, match="no measures of importance"):
        curve(str(run))
    with pytest.raises(UnreadableRunError):
        curve(str(run / "measures"))


def test_a_plot_of_the_same_rows_has_the_same_bytes() -> None:
    rows = [
        {"system": system, "ranking": "combined", "k": k, "mean": 0.5, "ci_low": None, "ci_high": None, "n": 1}
        for system in (None, *map(str, range(20)))
        for k in (5, 10)
    ]
    assert draw_picture("svg", lambda: draw_curve(rows)) == draw_picture("svg", lambda: draw_curve(rows))
    assert b"the first 12 of 21 lines" in draw_picture("svg", lambda: draw_curve(rows))
