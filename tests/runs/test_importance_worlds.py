"""Compare the metric importance with brute force in hundreds of worlds. Every table is the same for all sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.expected_icat import Chunk, cut
from tests.fakes.expected_importance import ExpectedImportance, Options, expected_importance
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import icat_worlds
from tests.fakes.world_importance import ImportanceWorld, chunks_of, importance_worlds, texts_of
from tests.runs.harness import Row, sorted_rows, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import Nearest, embedder, on_the_web, searcher, write_corpus
from tests.runs.importance_jobs import assert_concluded

pytestmark = pytest.mark.slow
IMPORTANCE = ("--metric", "importance")
WORLDS, RESPONSES = 210, 5
# The samples of one query share the requests of these stages
TABLES = ("statements", "scores", "measures", "claims", "evidence", "chunks", "failures", "summary", "measures_summary")
# The texts and the chunks of a sample: the source of the facts, and the evidence for the claims
Source = Callable[[Mapping[str, Any]], tuple[Sequence[tuple[str, str]], Sequence[Chunk]]]


@dataclass
class Worlds:
    """The samples of many worlds, and the server and the folder of the jobs."""

    run: RunHere
    server: ModelServer
    folder: Path
    known: Sequence[ImportanceWorld]

    def job(self, name: str, responses: int, **settings: Any) -> tuple[Path, list[Row]]:
        """Return the output of a job with this number of responses to each query, and its samples.

        All jobs share one store.
        """
        samples = [sample for world in self.known for sample in world.samples(responses)]
        path = write_samples(self.folder / f"samples-{responses}.jsonl", samples)
        given = {**embedder(self.server), "completion_store": self.folder / "store", **settings}
        ended = self.run(self.server, path, self.folder / name, *IMPORTANCE, settings=given)
        assert ended.code == 0, ended.err
        return self.folder / name, samples


@pytest.fixture(scope="module")
def worlds(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """Run worlds with a noisy judge."""
    with ModelServer(answer="world_noisy") as server:
        yield Worlds(run_here, server, tmp_path_factory.mktemp("worlds"), importance_worlds(WORLDS, "noisy"))


def by_cosines(claim: str, chunks: Sequence[Chunk], most: int) -> Sequence[Chunk]:
    """Return the nearest chunks by the stored vectors."""
    return _index(tuple(chunks))(claim)[:most]


@lru_cache(maxsize=10_000)
def _index(chunks: tuple[Chunk, ...]) -> Nearest:
    return Nearest(chunks)


NOISY = Options(judge="noisy", nearest=by_cosines)


def expect(samples: Sequence[Row], source: Source, options: Options) -> dict[str, ExpectedImportance]:
    return {sample["sample_id"]: expected_importance(sample, *source(sample), options) for sample in samples}


def in_contexts(sample: Mapping[str, Any]) -> tuple[Sequence[tuple[str, str]], Sequence[Chunk]]:
    return texts_of(sample), chunks_of(sample)


def of_index(documents: Sequence[Mapping[str, str]], most: int) -> Source:
    """Return the chunks of a query in the best documents, one document after the other."""
    nearest = Nearest([chunk for one in documents for chunk in cut(dict(one))])

    def found(sample: Mapping[str, Any]) -> tuple[Sequence[tuple[str, str]], Sequence[Chunk]]:
        hits = list(nearest(sample["query"]))
        cosines = dict(zip(hits, nearest.cosines(sample["query"]), strict=False))
        best = {
            hit.document_id: max(cosines[one] for one in hits if one.document_id == hit.document_id) for hit in hits
        }
        order = sorted(best, key=lambda document: (-best[document], document))[:most]
        chunks = [hit for document in order for hit in hits if hit.document_id == document]
        return [(chunk.chunk_id, chunk.text) for chunk in chunks], chunks

    return found


def of_the_web(sample: Mapping[str, Any]) -> tuple[Sequence[tuple[str, str]], Sequence[Chunk]]:
    hits = list(on_the_web(sample)(sample["query"]))
    return [(hit.chunk_id, hit.text) for hit in hits], hits


@pytest.mark.parametrize("responses", [1, RESPONSES])
@pytest.mark.parametrize("duplicates", ["words", "distance", "entailed", "none"])
def test_contexts(worlds: Worlds, duplicates: str, responses: int) -> None:
    settings = {
        "importance.duplicates": duplicates,
        "importance.evidence_chunks": 1,
        "index.chunk_words": 20,
        "index.chunk_overlap": 5,
    }
    output, samples = worlds.job(f"contexts-{duplicates}-{responses}", responses, **settings)
    options = replace(NOISY, duplicates=duplicates, evidence_chunks=1)

    def source(sample: Mapping[str, Any]) -> tuple[Sequence[tuple[str, str]], Sequence[Chunk]]:
        return texts_of(sample), chunks_of(sample, 20, 5)

    assert_concluded(output, expect(samples, source, options))


def test_the_published_profile(worlds: Worlds) -> None:
    """The claims are extracted from windows of sentences, and a verdict depends on more chunks than by default."""
    settings = {"profile": "published", "index.chunk_words": 10, "index.chunk_overlap": 2}
    output, samples = worlds.job("published", 3, **settings)
    options = replace(NOISY, duplicates="distance", windows=True, evidence_chunks=None)
    expected = expect(samples, lambda sample: (texts_of(sample), chunks_of(sample, 10, 2)), options)
    assert_concluded(output, expected)
    assert sum(len(claim.evidence) > 5 for one in expected.values() for claim in one.claims) > 50


def test_unchanged_contexts_and_kept_completions(worlds: Worlds) -> None:
    settings = {
        "summarise_contexts": "false",
        "importance.top_k": 3,
        "importance.min_weight": 0.5,
        "importance.relevance_weight": 0.8,
        "importance.max_facts": 4,
        "importance.batch": 3,
        "importance.ks": "[2,1]",
    }
    output, samples = worlds.job("contexts-as-they-are", 2, **settings)
    options = replace(NOISY, top_k=3, min_weight=0.5, relevance_weight=0.8, max_facts=4, batch=3, ks=(2, 1))
    expected = expect(samples, lambda sample: (texts_of(sample, condensed=False), chunks_of(sample)), options)
    assert_concluded(output, expected)
    assert sum(one.left_out for one in expected.values()) > 50
    assert sum(not fact.kept for one in expected.values() for fact in one.facts) > 50


@pytest.mark.parametrize("duplicates", ["words", "entailed"])
def test_an_index(worlds: Worlds, duplicates: str) -> None:
    documents = [document for world in icat_worlds(WORLDS) for document in world.documents]
    corpus = write_corpus(worlds.folder / "corpus.jsonl", documents)
    place, given = worlds.folder / "index", embedder(worlds.server)
    words = ["index", "--input", str(corpus), "--output", str(place)]
    made = worlds.run.command([*words, *(word for key, value in given.items() for word in ("--set", f"{key}={value}"))])
    assert made.code == 0, made.err
    settings = {"knowledge.index": place, "importance.documents": 3, "importance.duplicates": duplicates}
    output, samples = worlds.job(f"index-{duplicates}", 2, **settings)
    options = replace(NOISY, duplicates=duplicates, source="index")
    assert_concluded(output, expect(samples, of_index(documents, 3), options))


def test_the_web(worlds: Worlds) -> None:
    output, samples = worlds.job("web", RESPONSES, **searcher(worlds.server))
    assert_concluded(output, expect(samples, of_the_web, replace(NOISY, source="web")))


def test_a_repeated_run_sends_no_request(worlds: Worlds) -> None:
    settings = {"importance.evidence_chunks": 1}
    first, _ = worlds.job("first", 2, **settings)
    worlds.server.reset()
    again, _ = worlds.job("again", 2, **settings, **{"spark.conf.spark.sql.shuffle.partitions": 7})
    assert worlds.server.count() == 0
    for name in TABLES:
        assert sorted_rows(again, name) == sorted_rows(first, name), name
