"""Compare the metric icat with brute force on symbolic worlds. Every table is the same for each kind of lookup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.expected_icat import ExpectedIcat, Options, cut, expected_icat
from tests.fakes.lookups import documents as pages
from tests.fakes.model_server import ModelServer
from tests.fakes.world_icat import IcatWorld, icat_worlds
from tests.runs.harness import Row, read_manifest, read_table, sorted_rows, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import (
    CONCLUSIONS,
    ICAT,
    Source,
    chunks_of,
    concluded,
    embedder,
    in_contexts,
    in_index,
    on_the_web,
    read_concluded,
    searcher,
    verify_by_words,
    words_among,
    write_annotations,
    write_corpus,
)
from tests.udfs.retrieval.onnx_files import write_classifier
from untold.jobs.retrieval.sources import catalog_in
from untold.udfs.retrieval.index_table import open_table

ENTAILS = ["entailment", "neutral", "contradiction"]


@dataclass
class Worlds:
    """The samples of many worlds, and the server and the folder of the jobs."""

    run: RunHere
    server: ModelServer
    folder: Path
    known: Sequence[IcatWorld]
    samples: list[Row]

    @property
    def documents(self) -> list[dict[str, str]]:
        return [document for world in self.known for document in world.documents]

    def job(self, name: str, **settings: Any) -> Path:
        """Run a job and return its output. All jobs share one store."""
        given = {**embedder(self.server), "completion_store": self.folder / "store", **settings}
        path = self.folder / "samples.jsonl"
        ended = self.run(self.server, path, self.folder / name, *ICAT, settings=given)
        assert ended.code == 0, ended.err
        return self.folder / name

    def index(self, shards: int) -> dict[str, Any]:
        """Index all documents of the worlds in this number of shards, and return the settings of a job."""
        corpus = write_corpus(self.folder / "corpus.jsonl", self.documents)
        chunks = sum(len(cut(document)) for document in self.documents)
        place = self.folder / f"index-{shards}"
        pairs = {**embedder(self.server), "index.chunks_per_shard": -(-chunks // shards)}
        words = ["index", "--input", str(corpus), "--output", str(place)]
        ended = self.run.command(
            [*words, *(word for key, value in pairs.items() for word in ("--set", f"{key}={value}"))]
        )
        assert ended.code == 0, ended.err
        catalog = catalog_in(read_manifest(place), str(place))
        assert catalog is not None
        rows = open_table(str(place), catalog.version).search().with_row_id(True).to_arrow()["_rowid"].to_pylist()
        # The upper half of the id of a row is the number of its file
        assert len({row >> 32 for row in rows}) == shards
        return {"knowledge.source": "index", "knowledge.index": place}

    def expected(self, source: Source, options: Options) -> dict[str, ExpectedIcat]:
        """Brute force over all samples."""
        annotations = [one for world in self.known for one in world.annotations()]
        return {one["sample_id"]: expected_icat(one, source(one), options, annotations) for one in self.samples}

    def classifier(self, texts: Sequence[str]) -> tuple[dict[str, Any], Options]:
        """Write a classifier with the words of these texts, and return it as settings of a job and as options of brute
        force.
        """
        words = words_among(texts)
        write_classifier(self.folder / "judge", words, ENTAILS)
        return {"grounding.verifier": self.folder / "judge"}, Options(verify=verify_by_words(words))


def assert_as_expected(output: Path, expected: dict[str, ExpectedIcat], source: Source, samples: Sequence[Row]) -> None:
    """Check that every table equals the result of brute force."""
    found = read_concluded(output)
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert found[name] == concluded(one), name
    chunks = {}
    for sample in samples:
        look = source(sample)
        for claim in expected[sample["sample_id"]].claims:
            chunks |= {chunk.chunk_id: (chunk.document_id, chunk.text) for chunk in look(claim.text)}
    assert chunks_of(output) == chunks


@pytest.fixture(scope="module")
def worlds(
    run_here: RunHere, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Worlds]:
    """Run worlds with a noisy judge and two responses to each query."""
    folder = tmp_path_factory.mktemp("worlds")
    known = [*icat_worlds(100, "noisy"), *icat_worlds(100, "noisy", ids=True, first=100)]
    samples = [sample for world in known for sample in world.samples(2)]
    write_samples(folder / "samples.jsonl", samples)
    with ModelServer(answer=known[0].answer) as server:
        yield Worlds(run_here, server, folder, known, samples)


NOISY = Options(judge="noisy")


@pytest.mark.slow
def test_contexts(worlds: Worlds) -> None:
    output = worlds.job("contexts")
    assert_as_expected(output, worlds.expected(in_contexts, NOISY), in_contexts, worlds.samples)
    # Each pair of a claim and a chunk is sent once
    texts = {row["claim_id"]: row["text"] for row in read_table(output, "claims")}
    said = {name: text for name, (_, text) in chunks_of(output).items()}
    evidence = read_table(output, "evidence")
    pairs = {(said[row["chunk_id"]], texts[row["claim_id"]]) for row in evidence}
    assert worlds.server.count("classify_relation") == len(pairs) < len(evidence)


@pytest.mark.slow
def test_repeated_contexts_need_no_request(worlds: Worlds) -> None:
    first = worlds.job("contexts")
    worlds.server.reset()
    again = worlds.job("contexts-again", **{"spark.conf.spark.sql.shuffle.partitions": 7})
    assert worlds.server.count() == 0
    for name in (*CONCLUSIONS, "claims", "evidence"):
        assert sorted_rows(again, name) == sorted_rows(first, name), name


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 7])
def test_an_index_of_any_number_of_shards(worlds: Worlds, shards: int) -> None:
    source = in_index(worlds.documents)
    output = worlds.job(f"index-of-{shards}", **worlds.index(shards))
    assert_as_expected(output, worlds.expected(source, NOISY), source, worlds.samples)


@pytest.mark.slow
def test_without_early_stop_only_evidence_changes(worlds: Worlds) -> None:
    source, settings = in_index(worlds.documents), worlds.index(7)
    stopped, whole = worlds.job("stopped", **settings), worlds.job("whole", **settings, **{"icat.early_stop": "false"})
    expected = worlds.expected(source, replace(NOISY, early_stop=False))
    assert_as_expected(whole, expected, source, worlds.samples)
    for name in CONCLUSIONS:
        assert sorted_rows(stopped, name) == sorted_rows(whole, name), name
    assert len(read_table(stopped, "evidence")) < 0.8 * len(read_table(whole, "evidence"))


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [False, True])
def test_lists_have_the_results_of_pairs_if_a_judge_omits_or_repeats_items(worlds: Worlds, indexed: bool) -> None:
    source = in_index(worlds.documents) if indexed else in_contexts
    settings = {**(worlds.index(7) if indexed else {}), "icat.judgement": "lists", "icat.list_size": 3}
    worlds.server.reset()
    worlds.server.configure(answer="careless_noisy")
    try:
        output = worlds.job(f"lists-{indexed}", **settings)
    finally:
        worlds.server.configure(answer=worlds.known[0].answer)
    assert_as_expected(output, worlds.expected(source, NOISY), source, worlds.samples)
    assert worlds.server.count("classify_relation") == 0
    assert 0 < worlds.server.count("classify_relations") < len(read_table(output, "evidence"))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["m", "s", "a"])
def test_every_variant(worlds: Worlds, variant: str) -> None:
    annotations = [one for world in worlds.known for one in world.annotations()]
    qrels = write_annotations(worlds.folder / "qrels.jsonl", annotations)
    source = in_index(worlds.documents)
    settings = {**worlds.index(7), "icat.variant": variant, "icat.qrels": qrels, "icat.beta": 2}
    output = worlds.job(f"variant-{variant}", **settings)
    expected = worlds.expected(source, replace(NOISY, variant=variant, beta=2.0))
    assert_as_expected(output, expected, source, worlds.samples)
    covered = Counter(bool(aspect.claims) for one in expected.values() for aspect in one.aspects)
    assert covered[True] > 100
    assert covered[False] > 100


@pytest.mark.slow
def test_an_index_and_a_classifier(worlds: Worlds) -> None:
    judge, options = worlds.classifier([document["text"] for document in worlds.documents])
    source = in_index(worlds.documents)
    output = worlds.job("index-classified", **worlds.index(7), **judge)
    assert_as_expected(output, worlds.expected(source, options), source, worlds.samples)


@pytest.mark.slow
@pytest.mark.parametrize("classified", [False, True])
def test_the_web(worlds: Worlds, classified: bool) -> None:
    judge, options = worlds.classifier([page["text"] for page in pages()]) if classified else ({}, NOISY)
    output = worlds.job(f"web-{classified}", **searcher(worlds.server), **judge)
    assert_as_expected(output, worlds.expected(on_the_web, options), on_the_web, worlds.samples)


@pytest.mark.slow
def test_contexts_and_a_classifier(worlds: Worlds) -> None:
    judge, options = worlds.classifier([str(sample["contexts"]) for sample in worlds.samples])
    output = worlds.job("contexts-classified", **judge)
    assert_as_expected(output, worlds.expected(in_contexts, options), in_contexts, worlds.samples)
