"""Run `untold index` and `untold search`: invalid rows, updates, errors and kills. No request is sent twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import sleep, time
from typing import Any

import pytest

from tests.fakes.model_server import ModelServer
from tests.jobs.retrieval.indexes import chunks_of, make_corpus, names_of, nearest
from tests.runs.harness import Ended, Run, read_manifest, read_table, score, times
from tests.runs.here import RunHere

CORPUS = make_corpus(40)
BATCH, IN_FLIGHT = 8, 2
LATENCY, FLUSH_SECONDS = 0.3, 1.0
QUERIES = ["bee seaway", "ices bees", "bee seaway"]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_corpus(path: Path, documents: Mapping[str, str], *more: Mapping[str, Any]) -> Path:
    return write_rows(path, [*({"id": name, "contents": text} for name, text in documents.items()), *more])


def settings_of(server: ModelServer) -> dict[str, Any]:
    return {
        "embeddings.base_url": server.base_url,
        "embeddings.model": "fake-model",
        "index.chunk_words": 12,
        "index.chunk_overlap": 3,
        "index.chunks_per_shard": 30,
    }


def words(command: str, server: ModelServer, *given: object) -> list[str]:
    pairs = [word for name, value in settings_of(server).items() for word in ("--set", f"{name}={value}")]
    return [command, *pairs, *map(str, given)]


def index(run: RunHere, server: ModelServer, corpus: Path, output: Path, *flags: str) -> Ended:
    return run.command(words("index", server, "--input", corpus, "--output", output, *flags))


def test_an_index_is_made_searched_and_grown(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    """Run all steps in one test, because each step takes seconds: invalid rows, hits, distinct queries, an update, a
    new model.
    """
    place = tmp_path / "index"
    corpus = write_corpus(tmp_path / "corpus.jsonl", CORPUS, {"id": "", "contents": "x"}, {"id": "none"})
    made = index(run_here, server, corpus, place, "--set", "fail_on_error.count=2")
    assert made.code == 0, made.err
    assert "2 rows are not documents" in made.err
    failures = read_table(place, "failures")
    assert [(row["stage"], row["error_type"], row["error"].split(": ", 1)[1]) for row in failures] == [
        ("input", "invalid_input", "document_id is null or empty"),
        ("input", "invalid_input", "text is null"),
    ]
    texts = server.count("embed_text")
    queries = write_rows(tmp_path / "queries.jsonl", [{"query": query} for query in QUERIES])
    found = ["--index", place, "--queries", queries, "--output", tmp_path / "hits", "--top", 4]
    searched = run_here.command(words("search", server, *found))
    assert searched.code == 0, searched.err
    rows = read_table(tmp_path / "hits", "hits")
    assert [(row["query_id"], row["query"], row["rank"]) for row in rows] == [
        (str(number), query, rank) for number, query in enumerate(QUERIES, start=1) for rank in (1, 2, 3, 4)
    ]
    for number, query in enumerate(QUERIES):
        hits = [(row["chunk_id"], row["similarity"]) for row in rows[4 * number : 4 * number + 4]]
        assert names_of(hits) == names_of(nearest(CORPUS, query, 4))
    assert server.count("embed_text") == texts + 1
    again = run_here.command(words("search", server, *found))
    assert again.code == 0, again.err
    assert "Nothing to do. The results are unchanged" in again.out, again.out

    grown = {**CORPUS, "new": "a wholly new one"}
    del grown["doc-001"]
    ended = index(run_here, server, write_corpus(tmp_path / "grown.jsonl", grown), place)
    assert ended.code == 0, ended.err
    assert server.count("embed_text") == texts + 2
    (usage,) = read_table(place, "usage")
    assert (usage["answered"], usage["calls"]) == (1, 1)
    printed = run_here.command(
        words("search", server, "--index", place, "--query", "a wholly new one", "--top", 1, "--json")
    )
    (hit,) = json.loads(printed.out)
    assert (hit["document_id"], hit["rank"], round(hit["similarity"], 5)) == ("new", 1, 1.0)

    one = words("search", server, "--index", place, "--query", "of another kind", "--json")
    elsewhere = run_here.command([*one, "--set", "spark.master=spark://host:7077"])
    assert (elsewhere.code, elsewhere.err.count("\n")) == (1, 1)
    assert "spark.master is spark://host:7077. Use --queries and --output" in elsewhere.err
    stopped = run_here.command([*one, "--set", "budget.max_calls=0"])
    assert (stopped.code, stopped.out) == (3, ""), stopped.err
    assert "the budget is used up" in stopped.err.splitlines()[-1]

    other = words("search", server, "--index", place, "--query", "a", "--set", "embeddings.query_prefix=ask: ")
    refused = run_here.command(other)
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "was built with another embedding model" in refused.err
    fewer = index(run_here, server, corpus, place, "--set", "index.chunk_overlap=4")
    assert fewer.code == 1
    assert "other settings (index.chunk_overlap)" in fewer.err


@pytest.mark.gate
@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"id": "a", "contents": "x"}, {"id": "a", "contents": "y"}], "document_id `a` has two contents: "),
        ([{"name": "a", "contents": "x"}], "no column `document_id`"),
        ([{"id": "a", "text": " "}], "no document of the corpus has a word"),
    ],
)
def test_a_corpus_of_no_use_is_one_line(
    run_here: RunHere, server: ModelServer, tmp_path: Path, rows: list[dict[str, Any]], told: str
) -> None:
    ended = index(run_here, server, write_rows(tmp_path / "corpus.jsonl", rows), tmp_path / "index")
    assert ended.code == 1
    assert told in ended.err
    assert server.count() == 0


@pytest.mark.gate
@pytest.mark.parametrize(
    ("row", "stage", "told"),
    [
        ({"id": "", "contents": "x"}, "input", "no document of the corpus has a word"),
        ({"id": "a", "contents": "poison"}, "embed_text", "because no text of the corpus could be embedded"),
    ],
)
def test_a_corpus_with_only_failures_is_written_as_failures(
    run_here: RunHere, server: ModelServer, tmp_path: Path, row: dict[str, Any], stage: str, told: str
) -> None:
    server.configure(rules=[{"when": {"contains": "poison"}, "do": "zero"}])
    place = tmp_path / "index"
    ended = index(run_here, server, write_rows(tmp_path / "corpus.jsonl", [row]), place)
    assert ended.code == 4, ended.err
    assert told in ended.err
    assert [failure["stage"] for failure in read_table(place, "failures")] == [stage]
    assert [row["stage"] for row in read_table(place, "usage")] == ["embed_text"] * (stage == "embed_text")
    assert read_manifest(place)["status"] == "finished"


@pytest.mark.gate
def test_a_folder_without_an_index_is_refused(run_here: RunHere, server: ModelServer, tmp_path: Path) -> None:
    ended = run_here.command(words("search", server, "--index", tmp_path, "--query", "a"))
    assert ended.code == 1
    assert f"{tmp_path} has no index. Build one with untold index" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["asked", "written"])
def test_a_killed_build_resumes_and_sends_no_request_twice(
    run_here: RunHere, server: ModelServer, tmp_path: Path, moment: str
) -> None:
    """Kill the build with SIGKILL during the requests for vectors, and as soon as the table exists."""
    documents = make_corpus(300)
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents)
    place = tmp_path / "index"
    settings = {**settings_of(server), "embeddings.batch": BATCH, "embeddings.max_concurrency": IN_FLIGHT}
    server.configure(latency=LATENCY if moment == "asked" else 0.0)
    run = Run(server, corpus, place, settings=settings, command="index")
    if moment == "asked":
        run.wait_for(server, 5)
    else:
        wait_for_the_table(run, place)
    killed_at = time()
    run.kill()
    server.configure(latency=0.0)
    calls = server.count()
    at_risk = IN_FLIGHT + sum(at >= killed_at - FLUSH_SECONDS for at in times(server.arrivals()))
    assert read_manifest(place)["status"] == "running"
    assert (place / "chunks.lance").is_dir() == (moment == "written")
    ended = score(server, corpus, place, settings=settings, command="index")
    assert ended.code == 0, ended.err
    texts = len(set(chunks_of(documents).values()))
    # All calls of a batch are complete, except for the last call of each run
    assert server.count() <= (-(-texts // BATCH) + 1 + at_risk if moment == "asked" else calls)
    assert read_manifest(place)["index"]["documents"] == len(documents)
    queries = write_rows(tmp_path / "queries.jsonl", [{"query": query} for query in QUERIES])
    found = ["--index", str(place), "--queries", str(queries), "--output", str(tmp_path / "hits"), "--top", "4"]
    searched = run_here.command(words("search", server, *found))
    assert searched.code == 0, searched.err
    rows = read_table(tmp_path / "hits", "hits")
    for number, query in enumerate(QUERIES):
        hits = [(row["chunk_id"], row["similarity"]) for row in rows[4 * number : 4 * number + 4]]
        assert names_of(hits) == names_of(nearest(documents, query, 4))


def wait_for_the_table(run: Run, place: Path) -> None:
    while not (place / "chunks.lance").is_dir():
        assert run.is_running, run.errors
        sleep(0.005)
