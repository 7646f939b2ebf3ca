"""Responses with citations as data sets publish them: TREC RAG, RAGTIME, DeepResearch Bench and open-rag-eval."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.inputs.test_tool_files import samples_in, written
from tests.sample_files import write_lines
from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions
from untold.jobs.inspect import inspect, inspection_lines
from untold.jobs.run.terminal import Page
from untold.udfs.samples.citations import cited_sentences
from untold.udfs.samples.conversion import Sample

TREC = {
    "run_id": "r1",
    "topic_id": "2024-1",
    "topic": "What is honey?",
    "references": ["msmarco_v2.1_doc_1#2", "msmarco_v2.1_doc_7#1"],
    "answer": [{"text": "Bees make honey.", "citations": [1, 0]}, {"text": "Ice floats.", "citations": [5]}],
}
RAGTIME = {
    "metadata": {"team_id": "t", "run_id": "r1", "topic_id": "300"},
    "responses": [
        {"text": "Bees make honey.", "citations": {"d1": 0.4, "d2": 0.9}},
        {"text": "Ice floats.", "citations": {}},
    ],
    "references": ["d1", "d2"],
}
ARTICLE = {
    "id": 1,
    "prompt": "Bees?",
    "article": "# Bees\n\nBees make honey [1][2].\n\n## References\n[1] https://a.org/p\n[2] https://b.org",
    "citations": [{"fact": "Bees make honey", "ref_idx": 1, "url": "https://a.org/p"}],
    "citations_deduped": {
        "https://a.org/p": {"facts": ["Bees make honey"], "url_content": "Bees make honey."},
        "https://b.org": {"facts": [], "url_content": "scrape failed: 404"},
    },
}
OPEN_RAG_EVAL = """query_id,query,query_run,passage_id,passage,generated_answer
q1,What is honey?,1,[1],Bees make honey.,Bees make honey [1]. It is sweet [2][3].
q1,What is honey?,1,[2],Honey is sweet.,
q1,What is honey?,2,[1],Bees make honey.,It is made [1].
q2,What floats?,1,[1],Ice floats.,
"""


def sources_of(sample: Sample) -> list[tuple[str, ...]]:
    """Return the sources of each sentence."""
    ids = [one["id"] for one in sample.known["contexts"] or ()]
    found = cited_sentences(sample.known["response"], sample.rest["citations"], ids)
    return [one.sources for one in found]


def test_parts_of_trec_rag_keep_their_positions_in_the_references(tmp_path: Path) -> None:
    (segments,) = written(tmp_path, "trec_rag_answers", TREC)
    assert segments.known["response"] == "Bees make honey. Ice floats."
    assert sources_of(segments) == [("msmarco_v2.1_doc_7#1", "msmarco_v2.1_doc_1#2"), ("[6]",)]
    texts = {**TREC, "references": [{"docid": "a", "segment": "Bees."}, {"docid": "b", "segment": "Ice."}]}
    (known,) = written(tmp_path, "trec_rag", texts)
    assert sources_of(known) == [("b", "a"), ("[6]",)]


def test_reports_of_ragtime_have_documents_by_confidence(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [RAGTIME])
    found = inspect(str(path))
    assert (found.format, found.problems) == ("ragtime", [])
    assert found.command.endswith("--metric citations --set citations.sources=TEXTS")
    (one,) = samples_in(Path(path), "ragtime")
    assert (one.known["query"], one.rest["query_id"], one.known["system"]) == ("300", "300", "r1")
    assert sources_of(one) == [("d2", "d1"), ()]
    assert "  citations: 2: d2, d1" in inspection_lines(found, Page())


def test_articles_of_deepresearch_bench_have_scraped_pages_as_contexts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [ARTICLE])
    found = inspect(str(path))
    assert (found.format, found.problems) == ("deepresearch_articles", [])
    (one,) = samples_in(Path(path), "deepresearch_articles")
    assert one.known["contexts"] == [{"id": "https://a.org/p", "text": "Bees make honey."}]
    assert (one.error, one.rest["citations"], one.rest["extracted"]) == (None, None, ARTICLE["citations"])
    assert sources_of(one) == [("https://a.org/p", "https://b.org")]
    (bare,) = written(tmp_path, "deepresearch_articles", {"id": 2, "prompt": "q", "article": "Bees make honey."})
    assert (bare.known["contexts"], sources_of(bare)) == ([], [()])


def test_rows_of_open_rag_eval_are_passages_of_one_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(OPEN_RAG_EVAL, encoding="utf-8-sig")
    found = inspect(str(path))
    assert (found.format, found.read) == ("open_rag_eval", 3)
    first, second, third = samples_in(path, "open_rag_eval")
    assert [one["id"] for one in first.known["contexts"]] == ["1", "2"]
    assert sources_of(first) == [("1",), ("2", "[3]")]
    assert (second.known["response"], second.rest["run"]) == ("It is made [1].", "2")
    assert third.error == "response is null"


@pytest.mark.parametrize(("mark", "options"), [(";", AS_THEY_ARE), ("|", ReadOptions(delimiter="|"))])
def test_files_of_open_rag_eval_may_have_another_delimiter(tmp_path: Path, mark: str, options: ReadOptions) -> None:
    path = tmp_path / "a.csv"
    path.write_text(OPEN_RAG_EVAL.replace(",", mark))
    first, *others = samples_in(path, "open_rag_eval", options)
    assert (first.known["query"], first.error) == ("What is honey?", None)
    assert [one["id"] for one in first.known["contexts"]] == ["1", "2"]
    assert len(others) == 2
