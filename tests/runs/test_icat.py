"""Run jobs of the metric icat on a small world: the requests, the results and the effect of errors."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.lookups import documents, vector_of
from tests.fakes.model_server import ModelServer
from tests.runs.harness import Row, read_table, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import ICAT, embedder, searcher
from tests.runs.reported import assert_reported
from tests.runs.worlds import rows_by_sample, scores_of
from tests.udfs.retrieval.onnx_files import write_classifier

SETTINGS = {"llm.max_attempts": 1, "icat.aspects": 4}
HOME, FLEET, TASTE = "Ada Mill lives in France.", "Ada Mill owns exactly 7 boats.", "Ada Mill likes tea."
BROKEN = "Ada Mill owns at least 3 boats."
CONTEXTS = ["Ada Mill lives in Lyon.", {"id": "b", "text": "Ada Mill owns exactly 5 boats."}]
ADA, EMPTY = "What is known of Ada Mill?", "What is known of nothing?"
GIVEN = [{"id": "A7", "text": "her home", "labels": ["yes", "no"]}, "her fleet"]
SAMPLES: list[Row] = [
    {"sample_id": "whole", "query": ADA, "response": "whole", "system": "x"},
    {"sample_id": "again", "query": ADA, "response": "again", "system": "y"},
    {"sample_id": "given", "query": ADA, "response": "whole", "aspects": GIVEN, "system": "x"},
    {"sample_id": "blank", "query": ADA, "response": " \n\u00a0"},
    {"sample_id": "silent", "query": ADA, "response": "silent"},
    {"sample_id": "partial", "query": ADA, "response": "partial"},
    {"sample_id": "unaligned", "query": ADA, "response": "unaligned"},
    {"sample_id": "unread", "query": ADA, "response": "unread"},
    {"sample_id": "aimless", "query": EMPTY, "response": "whole"},
    {"sample_id": "wrong", "query": ADA, "response": "whole", "aspects": "her home"},
]
CLAIMS = {
    "whole": [HOME, FLEET, "“ada mill lives in  France”", TASTE],
    "again": [HOME, TASTE],
    "silent": [],
    "partial": [BROKEN, HOME],
    "unaligned": ["Ada Mill lives in Europe."],
}
ASPECTS = {ADA: ["home", "fleet", "Home.", "taste", "later"], EMPTY: []}


def rule(deed: Any, **when: str) -> dict[str, Any]:
    return {"when": when, "do": deed}


def said(stage: str, variable: str, value: str, lines: list[str]) -> dict[str, Any]:
    text = {"text": "\n".join(lines) or "None"}
    return rule(text, stage=stage, contains=json.dumps({variable: value})[1:-1])


RULES = [
    *(said("extract_claims", "text", response, claims) for response, claims in CLAIMS.items()),
    rule({"status": 400}, stage="extract_claims", contains="unread"),
    *(
        said("generate_aspects", "query", query, [json.dumps({"topic": topic}) for topic in topics])
        for query, topics in ASPECTS.items()
    ),
    # The first chunk for the claim fails, so that the requests of the later waves are sent
    rule({"status": 400}, stage="classify_relation", contains=BROKEN),
    rule({"text": "no object"}, stage="align_claims", contains="Europe"),
    rule({"text": '{"topic_id": 1, "evidence": [1, 9]}\n{"topic_id": 12, "evidence": [1]}'}, stage="align_claims"),
]


@pytest.fixture(scope="module")
def world() -> Iterator[ModelServer]:
    with ModelServer(answer="world", rules=RULES) as server:
        yield server


@pytest.fixture(scope="module")
def job(run_here: RunHere, world: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("icat")
    path = write_samples(folder / "samples.jsonl", [{**row, "contexts": CONTEXTS} for row in SAMPLES])
    settings = {**SETTINGS, **embedder(world), "completion_store": folder / "store"}
    ended = run_here(world, path, folder / "out", *ICAT, settings=settings)
    # Some of the samples fail on purpose
    assert ended.code == 4, ended.err
    return folder


def measures_of(output: Path) -> dict[str, dict[str, tuple[float | None, ...]]]:
    """Return the value and the bounds by sample and measure."""
    return {
        name: {row["measure"]: (row["value"], row["value_low"], row["value_high"]) for row in rows}
        for name, rows in rows_by_sample(output, "measures").items()
    }


def verdicts_of(output: Path) -> dict[str, list[tuple[str, str | None]]]:
    return {
        name: [(row["text"], row["verdict"]) for row in sorted(rows, key=lambda row: row["position"])]
        for name, rows in rows_by_sample(output, "claims").items()
    }


def exactly(*values: float | None) -> tuple[tuple[float | None, ...], ...]:
    return tuple((value, value, value) for value in values)


def test_scores_measures_and_statuses_equal_the_definition(job: Path) -> None:
    scores, measures = scores_of(job / "out"), measures_of(job / "out")
    third = 1 / 3
    # s_fact, s_coverage, icat, claims
    wanted: Mapping[str, tuple[str, tuple[tuple[float | None, ...], ...]]] = {
        "whole": ("ok", exactly(third, third, 2 * third * third / (third + third), 3.0)),
        "again": ("ok", exactly(0.5, third, 2 * 0.5 * third / (0.5 + third), 2.0)),
        "given": ("ok", exactly(third, 0.5, 2 * third * 0.5 / (third + 0.5), 3.0)),
        "blank": ("no_statements", exactly(None, 0.0, None, 0.0)),
        "silent": ("no_statements", exactly(None, 0.0, None, 0.0)),
        "aimless": ("no_statements", exactly(third, None, None, 3.0)),
        "partial": (
            "partial",
            ((1.0, 0.5, 1.0), (third, third, 1.0), (0.5, 2 * 0.5 * third / (0.5 + third), 1.0), (2.0, 2.0, 2.0)),
        ),
        **dict.fromkeys(("unaligned", "unread", "wrong"), ("failed", (*[(None, 0.0, 1.0)] * 3, (None,) * 3))),
    }
    assert scores.keys() == wanted.keys() == measures.keys()
    for name, (status, figures) in wanted.items():
        found = tuple(measures[name][one] for one in ("s_fact", "s_coverage", "icat", "claims"))
        assert (scores[name]["status"], found) == (status, figures), name
        row, whole = scores[name], measures[name]["icat"]
        assert (row["score"], row["score_low"], row["score_high"]) == whole, name
    counts = {name: (row["covered"], row["uncovered"], row["unjudged"], row["dropped"]) for name, row in scores.items()}
    assert counts["whole"] == (1, 2, 0, 0)
    assert counts["partial"] == (1, 2, 1, 0)
    assert counts["blank"] == (0, 3, 0, 0)
    assert counts["unread"] == (None, None, None, None)


def test_claims_have_verdicts_and_equal_claims_are_merged(job: Path) -> None:
    found = verdicts_of(job / "out")
    assert found["whole"] == [(HOME, "supported"), (FLEET, "contradicted"), (TASTE, "not_supported")]
    assert found["partial"] == [(BROKEN, None), (HOME, "supported")]
    assert found.keys() == {"whole", "again", "given", "partial", "unaligned", "aimless"}


def test_evidence_names_chunks_by_their_text(job: Path) -> None:
    chunks = {row["chunk_id"]: row for row in read_table(job / "out", "chunks")}
    assert sorted(row["text"] for row in chunks.values()) == [CONTEXTS[0], CONTEXTS[1]["text"]]  # type: ignore[index]
    assert {row["document_id"] for row in chunks.values()} == {"1", "b"}
    claims = {row["claim_id"]: row for row in read_table(job / "out", "claims")}
    evidence = read_table(job / "out", "evidence")
    assert {row["claim_id"] for row in evidence} == set(claims)
    for row in evidence:
        assert row["relation"] is not None or claims[row["claim_id"]]["text"] == BROKEN
        assert (row["chunk_id"] in claims[row["claim_id"]]["evidence"]) == (row["relation"] == "entailment")
        assert chunks[row["chunk_id"]]
    assert {row["rank"] for row in evidence} == {1, 2}


def test_aspects_are_statements_with_the_claims_that_cover_them(job: Path) -> None:
    found = rows_by_sample(job / "out", "statements")
    shown = [
        (row["statement_id"], row["reference_id"], row["text"], row["covered"], row["claims"]) for row in found["whole"]
    ]
    assert shown == [
        ("whole:icat:1", None, "home", True, ["whole:icat:1"]),
        ("whole:icat:2", None, "fleet", False, []),
        ("whole:icat:3", None, "taste", False, []),
    ]
    assert [(row["reference_id"], row["text"]) for row in found["given"]] == [("A7", "her home"), ("2", "her fleet")]
    assert found["partial"][0]["claims"] == ["partial:icat:2"]
    assert found.keys() == {"whole", "again", "given", "blank", "silent", "partial"}


def test_the_failures_of_each_sample_are_reported(job: Path) -> None:
    failed = Counter((row["sample_id"], row["stage"], row["error_type"]) for row in read_table(job / "out", "failures"))
    assert failed == {
        ("partial", "classify_relation", "http_400"): 2,
        ("unaligned", "align_claims", "unparsable"): 1,
        ("unread", "extract_claims", "http_400"): 1,
        ("wrong", "input", "invalid_input"): 1,
    }


def test_responses_to_one_query_share_requests(world: ModelServer, job: Path) -> None:
    asked = {
        stage: world.count(stage)
        for stage in ("extract_claims", "generate_aspects", "classify_relation", "align_claims")
    }
    # Equal responses need one request, and a claim of three samples is looked up and judged once
    assert (asked["extract_claims"], asked["generate_aspects"]) == (6, 2)
    # The samples "whole", "again" and "partial" have the same grounded claims and the same aspects
    assert asked["align_claims"] == 3
    evidence, texts = (
        read_table(job / "out", "evidence"),
        {row["claim_id"]: row["text"] for row in read_table(job / "out", "claims")},
    )
    pairs = {(texts[row["claim_id"]], row["chunk_id"]) for row in evidence}
    assert asked["classify_relation"] == len(pairs) < len(evidence)


def test_measures_are_summed_up_by_system(job: Path) -> None:
    summary = {(row["measure"], row["system"]): row for row in read_table(job / "out", "measures_summary")}
    overall = summary["s_fact", None]
    assert (overall["n"], overall["defined"], overall["level"]) == (10, 5, "overall")
    assert overall["mean"] == pytest.approx((3 * 1 / 3 + 0.5 + 1.0) / 5)
    assert summary["icat", "y"]["mean"] == pytest.approx(0.4)
    assert {system for _, system in summary} == {None, "x", "y"}


@pytest.mark.slow
def test_early_stop_changes_only_the_evidence(run_here: RunHere, world: ModelServer, job: Path) -> None:
    before = world.count("classify_relation")
    settings = {**SETTINGS, **embedder(world), "completion_store": job / "store", "icat.early_stop": "false"}
    ended = run_here(world, job / "samples.jsonl", job / "whole", *ICAT, settings=settings)
    assert ended.code == 4, ended.err
    # These are the chunks after the wave that grounds the claim
    assert world.count("classify_relation") > before
    for name in ("samples", "statements", "scores", "measures", "chunks", "measures_summary", "summary", "failures"):
        assert read_table(job / "whole", name) == read_table(job / "out", name), name
    stopped, whole = read_table(job / "out", "evidence"), read_table(job / "whole", "evidence")
    assert [row for row in whole if row in stopped] == stopped
    assert len(whole) > len(stopped)
    assert verdicts_of(job / "whole") == verdicts_of(job / "out")


@pytest.mark.slow
def test_a_plan_counts_the_possible_requests(run_here: RunHere, world: ModelServer, job: Path) -> None:
    settings = {**SETTINGS, **embedder(world), "completion_store": job / "store"}
    before = world.count()
    words = words_of(world, job / "samples.jsonl", job / "out", *ICAT, "--json", settings=settings, command="plan")
    ended = run_here.command(words)
    assert (ended.code, world.count()) == (0, before), ended.err
    rows = {row["stage"]: row for row in json.loads(ended.out)}
    claims = {row["text"] for row in read_table(job / "out", "claims")}
    found = {stage: (row["requests"], row["reused"], row["exact"]) for stage, row in rows.items()}
    assert found == {
        "extract_claims": (6, 6, True),
        "generate_aspects": (2, 2, True),
        # The claims as queries, and two contexts
        "embed_text": (len(claims) + 2, len(claims) + 2, True),
        # The chunks are not known before the search, and a claim is compared with at most ten chunks
        "classify_relation": (10 * len(claims), 0, False),
        "align_claims": (rows["align_claims"]["requests"], rows["align_claims"]["reused"], False),
    }
    assert rows["align_claims"]["requests"] >= 3
    # The number of chunks until a claim is grounded is not known, so all of the chunks are expected
    assert rows["classify_relation"]["expected_requests"] == 10 * len(claims)


QRELS = """t1 A7 1 1
t1 2 1 0
t1 2 b 2
t2 2 1 1
"""
ANNOTATED: list[Row] = [
    {"sample_id": "first", "query": ADA, "response": "whole", "aspects": GIVEN, "query_id": "t1"},
    {"sample_id": "second", "query": ADA, "response": "whole", "aspects": GIVEN, "query_id": "t2"},
    {"sample_id": "unknown", "query": ADA, "response": "again", "aspects": GIVEN, "query_id": "t3"},
    {"sample_id": "aimless", "query": ADA, "response": "whole", "aspects": None, "query_id": "t1"},
    {"sample_id": "nobody", "query": ADA, "response": "whole", "aspects": GIVEN, "query_id": None},
]


@pytest.mark.slow
def test_annotated_documents_cover_aspects(run_here: RunHere, world: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "qrels.txt").write_text(QRELS)
    path = write_samples(tmp_path / "samples.jsonl", [{**row, "contexts": CONTEXTS} for row in ANNOTATED])
    before = world.count("align_claims"), world.count("generate_aspects")
    settings = {"knowledge.retriever": "bm25", "icat.variant": "m", "icat.qrels": tmp_path / "qrels.txt"}
    ended = run_here(world, path, tmp_path / "out", *ICAT, settings=settings)
    assert ended.code == 4, ended.err
    assert (world.count("align_claims"), world.count("generate_aspects")) == before
    found = {
        name: [(row["reference_id"], row["covered"], row["claims"]) for row in rows]
        for name, rows in rows_by_sample(tmp_path / "out", "statements").items()
    }
    assert found == {
        # The claim about her home is grounded by a chunk of context 1
        "first": [("A7", True, ["first:icat:1"]), ("2", False, [])],
        "second": [("A7", False, []), ("2", True, ["second:icat:1"])],
        "unknown": [("A7", False, []), ("2", False, [])],
    }
    statuses = {name: (row["status"], row["score"]) for name, row in scores_of(tmp_path / "out").items()}
    assert statuses["unknown"] == ("ok", 0.0)
    assert statuses["aimless"] == ("no_statements", None)
    assert statuses["nobody"] == ("failed", None)
    assert [row["error"].rpartition(": ")[2] for row in read_table(tmp_path / "out", "failures")] == [
        "query_id is null"
    ]


LINES = ["Ada Mill lives in Italy.", "Ada Mill lives in Osaka.", "Ada Mill likes rain."]
CORPUS = {"home": "Ada Mill lives in Turin.", "taste": "Ada Mill likes tea.", "other": "Bo Kern lives in Osaka."}
ALONE: list[Row] = [
    {"sample_id": name, "query": ADA, "response": name, "aspects": ["home", "taste"]} for name in ("one", "two")
]


def judge(*claims: str) -> list[dict[str, Any]]:
    """Return rules for two responses with the same claims in reverse order.

    The first grounded claim covers the first aspect.
    """
    covered = rule({"text": '{"topic_id": 1, "evidence": [1]}'}, stage="align_claims")
    lists = {"one": list(claims), "two": list(claims)[::-1]}
    return [*(said("extract_claims", "text", name, texts) for name, texts in lists.items()), covered]


@pytest.mark.slow
def test_claims_are_looked_up_in_an_index_without_contexts(run_here: RunHere, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": name, "text": text, "url": f"http://{name}"} for name, text in CORPUS.items()]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = write_samples(tmp_path / "samples.jsonl", ALONE)
    with ModelServer(answer="world", rules=judge(*LINES)) as server:
        embedding = embedder(server)
        given = [word for key, value in embedding.items() for word in ("--set", f"{key}={value}")]
        made = run_here.command(["index", "--input", str(corpus), "--output", str(tmp_path / "index"), *given])
        assert made.code == 0, made.err
        server.reset()
        settings = {**embedding, "knowledge.source": "index", "knowledge.index": tmp_path / "index"}
        ended = run_here(server, path, tmp_path / "out", *ICAT, settings=settings)
        asked = Counter(arrival.stage for arrival in server.arrivals())
    assert ended.code == 0, ended.err
    found = verdicts_of(tmp_path / "out")
    verdicts = list(zip(LINES, ["supported", "contradicted", "not_supported"], strict=True))
    assert found == {"one": verdicts, "two": verdicts[::-1]}
    evidence = rows_by_sample(tmp_path / "out", "evidence")
    texts = {row["claim_id"]: row["text"] for row in read_table(tmp_path / "out", "claims")}
    for rows_of_sample in evidence.values():
        for line in LINES:
            ranked = sorted(
                (row for row in rows_of_sample if texts[row["claim_id"]] == line), key=lambda row: row["rank"]
            )
            assert [row["chunk_id"] for row in ranked] == nearest_documents(line)[: len(ranked)]
            assert len(ranked) == (1 if line == LINES[0] else 3)
    chunks = {
        row["chunk_id"]: (row["document_id"], row["url"], row["text"]) for row in read_table(tmp_path / "out", "chunks")
    }
    assert chunks == {f"{name}#0": (name, f"http://{name}", text) for name, text in CORPUS.items()}
    # Both responses state the same claims: three vectors in one call, pairs of the waves, and an alignment
    assert asked == {"extract_claims": 2, "embed_text": 1, "classify_relation": 3 + 2 * 2, "align_claims": 1}


def nearest_documents(line: str) -> list[str]:
    """Return the chunks of the corpus by their cosines with a claim."""
    vectors = {f"{name}#0": np.array(vector_of(text)) for name, text in CORPUS.items()}
    asked = np.array(vector_of(line))
    cosines = {name: float(one @ asked / np.linalg.norm(one)) for name, one in vectors.items()}
    return sorted(cosines, key=lambda name: (-round(cosines[name], 9), name))


@pytest.mark.slow
def test_claims_are_looked_up_on_the_web_and_judged_by_a_classifier(run_here: RunHere, tmp_path: Path) -> None:
    grounded, wrong = "Ada Mill lives in Turin.", "Ada Mill lives in Lyon."
    words = {word for one in documents() for word in re.findall(r"\w+|[^\w\s]+", f"{one['title']} {one['text']}")}
    write_classifier(tmp_path / "judge", sorted(words), ["entailment", "neutral", "contradiction"])
    path = write_samples(tmp_path / "samples.jsonl", ALONE)
    with ModelServer(answer="world", rules=judge(grounded, wrong)) as server:
        settings = {**searcher(server), "grounding.verifier": tmp_path / "judge"}
        ended = run_here(server, path, tmp_path / "out", *ICAT, settings=settings)
        asked = Counter(arrival.stage for arrival in server.arrivals())
    assert ended.code == 0, ended.err
    assert asked == {"extract_claims": 2, "web_search": 2, "align_claims": 1}
    verdicts = verdicts_of(tmp_path / "out")
    assert verdicts["one"] == [(grounded, "supported"), (wrong, "contradicted")]
    chunks = {row["chunk_id"]: row for row in read_table(tmp_path / "out", "chunks")}
    for name, row in chunks.items():
        assert name.startswith(f"{row['url']}@")
        assert row["document_id"] == row["url"]
    evidence = read_table(tmp_path / "out", "evidence")
    assert {row["chunk_id"] for row in evidence} <= set(chunks)
    assert all((row["relation"] == "entailment") == (row["probability"] > 0.5) for row in evidence)
    scores = {name: (row["status"], row["covered"]) for name, row in scores_of(tmp_path / "out").items()}
    assert scores == {"one": ("ok", 1), "two": ("ok", 1)}


@pytest.mark.slow
def test_a_budget_ends_it_resumable(run_here: RunHere, world: ModelServer, job: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, **embedder(world)}
    # There are six responses, two queries and two calls for vectors, and then two of the five first chunks
    ended = run_here(
        world, job / "samples.jsonl", tmp_path / "out", *ICAT, settings={**settings, "budget.max_calls": 12}
    )
    assert ended.code == 3, ended.err
    waiting = {"whole", "again", "given", "partial", "unaligned", "aimless"}
    known = dict.fromkeys(("blank", "silent"), "no_statements") | dict.fromkeys(("unread", "wrong"), "failed")
    scores = scores_of(tmp_path / "out")
    assert {name: row["status"] for name, row in scores.items()} == known | dict.fromkeys(waiting, "budget")
    measures = measures_of(tmp_path / "out")
    for name in waiting:
        assert (scores[name]["score"], scores[name]["score_low"], scores[name]["score_high"]) == (None, 0.0, 1.0)
        assert [measures[name][one] for one in ("s_fact", "icat", "claims")] == [(None, 0.0, 1.0)] * 2 + [(None,) * 3]
    ended = run_here(world, job / "samples.jsonl", tmp_path / "out", *ICAT, settings=settings)
    assert ended.code == 4, ended.err
    for name in ("scores", "measures", "claims", "evidence", "chunks", "statements", "failures"):
        assert read_table(tmp_path / "out", name) == read_table(job / "out", name), name


def test_a_report_has_the_content_of_the_tables(job: Path) -> None:
    words = {one["id"]: one["metrics"]["icat"].get("words", ()) for one in assert_reported(job / "out")}
    stages = {name: [stage for stage, _ in own] for name, own in words.items()}
    assert stages["whole"] == stages["given"] == ["extract_claims", "align_claims"]
    assert (stages["unaligned"], stages["unread"]) == (["extract_claims"], [])
