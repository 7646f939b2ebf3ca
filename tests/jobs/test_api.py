"""Test the Python API in notebooks and scripts with a model server on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import duckdb
import numpy
import pandas
import polars
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import untold
from tests.fakes.model_server import ModelServer
from tests.runs.cluster import SHARED_RAY, SharedCluster
from untold.jobs import api
from untold.jobs.api import notebook_bars

PROMPTS = str(Path(__file__).parents[1] / "fakes" / "prompts")
CITIES = ("Lyon", "Turin", "Osaka")
ROWS = [
    {
        "sample_id": f"s{place}",
        "query": "Where does Ada Mill live?",
        "response": f"Ada Mill lives in {city}.",
        "contexts": ["Ada Mill lives in Lyon.", "Ada Mill lives in Turin."],
        "system": f"model-{place % 2}",
    }
    for place, city in enumerate(CITIES)
]
TABLES = ("samples", "statements", "scores", "summary")


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(answer="world") as running:
        yield running


@pytest.fixture(scope="module")
def session(spark: SparkSession, shared_cluster: SharedCluster, server: ModelServer) -> Iterator[untold.Session]:
    settings = {
        "llm": {"base_url": server.base_url, "model": "fake-model"},
        "prompts_dir": PROMPTS,
        "ray.address": shared_cluster.address,
    }
    with patch.dict(os.environ, SHARED_RAY), untold.Session(spark, settings=settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def of_file(session: untold.Session, tmp_path_factory: pytest.TempPathFactory) -> untold.Run:
    path = tmp_path_factory.mktemp("api") / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return session.score(str(path), ["e2e"], progress=lambda _: None)


def tables_of(run: untold.Run) -> dict[str, list[dict[str, Any]]]:
    return {name: run.table(name).to_pylist() for name in TABLES}


def frames(spark: SparkSession) -> dict[str, Any]:
    table = pa.Table.from_pylist(ROWS)
    return {
        "pyarrow": table,
        "pandas": pandas.DataFrame(ROWS).set_index(pandas.Index([7, 8, 9])),
        "polars": polars.DataFrame(ROWS),
        "duckdb": duckdb.from_arrow(table),
        "spark": spark.createDataFrame(pandas.DataFrame(ROWS)),
    }


@pytest.mark.gate
@pytest.mark.parametrize("kind", ["pyarrow", "pandas", "polars", "duckdb", "spark"])
def test_a_frame_gives_the_tables_that_a_file_gives(
    spark: SparkSession, session: untold.Session, of_file: untold.Run, server: ModelServer, kind: str
) -> None:
    before = server.count()
    run = session.score(frames(spark)[kind], "e2e", progress=lambda _: None)
    assert tables_of(run) == tables_of(of_file)
    # Calls without an output share a store, so no request is sent twice
    assert server.count() == before
    assert run.status == "finished"


@pytest.mark.gate
def test_columns_map_ours_to_theirs(session: untold.Session, of_file: untold.Run) -> None:
    theirs = pandas.DataFrame(ROWS).rename(columns={"query": "question", "contexts": "passages"})
    columns = {"query": "question", "contexts": "passages"}
    run = session.score(theirs, "e2e", columns=columns, progress=lambda _: None)
    assert run.table("scores").to_pylist() == of_file.table("scores").to_pylist()
    with pytest.raises(untold.UntoldError, match="question"):
        session.score(theirs, "e2e")


@pytest.mark.gate
def test_the_session_of_the_caller_does_not_change(
    spark: SparkSession, session: untold.Session, of_file: untold.Run
) -> None:
    options, environment = dict(spark.conf.getAll), dict(os.environ)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    session.score(pa.Table.from_pylist(ROWS), "e2e", progress=lambda _: None)
    assert dict(spark.conf.getAll) == options
    assert dict(os.environ) == environment
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert spark.range(3).count() == 3


@pytest.mark.gate
def test_a_score_in_a_thread_works(session: untold.Session, of_file: untold.Run) -> None:
    found: list[untold.Run] = []
    thread = threading.Thread(target=lambda: found.append(session.score(of_file.table("samples"), "e2e")))
    thread.start()
    thread.join()
    assert [run.status for run in found] == ["finished"]


@pytest.mark.gate
def test_a_plan_has_rows_and_totals(session: untold.Session) -> None:
    plan = session.plan(pa.Table.from_pylist(ROWS), ["e2e"])
    assert [(row["stage"], row["requests"]) for row in plan.rows] == [
        ("summarise_context", 2),
        ("evaluate_coverage", 3),
    ]
    assert plan.totals["requests"] == 5
    assert "evaluate_coverage" in plan._repr_html_()


@pytest.mark.gate
def test_progress_is_sent_to_a_callback(session: untold.Session) -> None:
    events: list[Any] = []
    other = [{**row, "query": "In which city does Ada Mill live?"} for row in ROWS]
    session.score(pa.Table.from_pylist(other), "e2e", progress=events.append)
    done = {event["stage"]: event["done"] for event in events if "stage" in event}
    assert done == {"summarise_context": 2, "evaluate_coverage": 3}
    assert {event["left"] for event in events if "total" in event and event["done"] == event["total"]} == {None}


@pytest.mark.gate
def test_a_score_shows_if_it_waits(session: untold.Session, of_file: untold.Run) -> None:
    with (
        patch.object(api, "score", return_value=SimpleNamespace(exit_code=7)) as score,
        patch.object(api, "open_run", return_value=SimpleNamespace(status="batched")),
    ):
        for poll in (True, False):
            assert session.score(of_file.table("samples"), "e2e", wait=False, poll=poll).status == "batched"
    assert [(call.args[0].poll, call.args[0].wait) for call in score.call_args_list] == [(True, False), (False, False)]


@pytest.mark.gate
def test_a_run_answers_the_questions_of_an_analyst(of_file: untold.Run) -> None:
    assert of_file.sql("select count(*) from scores").fetchall() == [(3,)]
    joined = "select s.response from samples s join scores c using (sample_id) where c.uncovered = 2"
    assert of_file.sql(joined).fetchall() == [("Ada Mill lives in Osaka.",)]
    worst = of_file.missing(1).to_pylist()
    assert [(row["sample_id"], row["uncovered"]) for row in worst] == [("s2", 2)]
    assert worst[0]["missing"] == ["Ada Mill lives in Lyon.", "Ada Mill lives in Turin."]
    assert of_file.sample("s0")["samples"][0]["response"] == "Ada Mill lives in Lyon."
    assert set(of_file.pandas("scores")["sample_id"]) == {"s0", "s1", "s2"}
    assert of_file.spark("scores").count() == 3
    assert "model-1" in of_file._repr_html_()
    assert set(of_file.compare()["systems"]["system"].to_pylist()) == {"model-0", "model-1"}
    assert [axes.get_title(loc="left") for axes in of_file.plot().axes] == ["e2e"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"llm.modle": "m"}, "llm.modle"), ({"llm": {"base_url": "nowhere", "model": "m"}}, "llm.base_url")],
)
def test_a_wrong_setting_is_one_clear_error(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(untold.UntoldError, match=told):
        untold.Session(settings=settings)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"random": 0}, "random=0: must be a positive integer"),
        ({"limit": -1}, "limit=-1: must be a positive integer"),
        ({"random": True}, "random=True: must be a positive integer"),
        ({"limit": "2"}, "limit='2': must be a positive integer"),
        ({"stratify": ["system"]}, "stratify requires random"),
    ],
)
def test_wrong_draws_are_clear_errors(session: untold.Session, options: dict[str, Any], told: str) -> None:
    for call in (session.score, session.plan):
        with pytest.raises(untold.UntoldError, match=told):
            call(pa.Table.from_pylist(ROWS), "e2e", **options)


@pytest.mark.gate
def test_samples_are_drawn_by_strata(session: untold.Session) -> None:
    samples = pandas.DataFrame(ROWS)
    for number, stratify in ((2, "system"), (numpy.int64(2), samples.columns[-1:])):
        run = session.score(samples, "e2e", random=number, stratify=stratify, progress=lambda _: None)
        assert sorted(run.table("scores")["system"].to_pylist()) == ["model-0", "model-1"]


@pytest.mark.gate
def test_wrong_arguments_are_clear_errors(session: untold.Session, of_file: untold.Run) -> None:
    with pytest.raises(untold.UntoldError, match="did you mean e2e"):
        session.score(pa.Table.from_pylist(ROWS), "e2")
    for call in (session.score, session.plan):
        with pytest.raises(TypeError, match=r"argument .colums. .did you mean `columns`"):
            call(pa.Table.from_pylist(ROWS), "e2e", colums={"query": "question"})
    with pytest.raises(untold.UntoldError, match="samples is a list"):
        session.score(ROWS, "e2e")
    with pytest.raises(untold.UntoldError, match="no sample 'nobody'"):
        of_file.sample("nobody")


def test_a_notebook_draws_a_bar_a_stage() -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(HTML=str, display=lambda *_, **__: handle)
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()), display=display)
    with patch.dict(sys.modules, {"IPython": kernel}):
        draw = notebook_bars()
    assert draw is not None
    draw({"stage": "match_one", "total": 4, "done": 3, "calls": 4, "failed": 0, "cost": 0.2, "left": 65.0})
    assert "match_one: 3 / 4, 4 calls, cost 0.2000, 1:05 left" in shown[-1]
    draw({"stage": "match_one", "total": 4, "done": 4, "calls": 5, "failed": 0, "cost": 0.25, "left": None})
    draw({"note": "<b>late</b>"})
    draw({"stage": "match_many", "total": 2, "done": 2, "calls": 2, "failed": 0, "cost": None})
    assert 'value="4" max="4"' in shown[-1]
    assert "match_one: 4 / 4, 5 calls, cost 0.2500" in shown[-1]
    assert "&lt;b&gt;late" in shown[-1]


def test_the_package_loads_no_engine() -> None:
    program = (
        "import untold, sys; untold.__version__; print({'pyspark', 'ray', 'lancedb', 'pyarrow'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"
