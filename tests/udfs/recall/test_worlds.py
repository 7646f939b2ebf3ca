"""Compare the steps from a response to its recall with brute force on symbolic worlds, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.fakes import expected_longrecall
from tests.fakes.expected_longrecall import ExpectedRecall, expect
from tests.fakes.lookups import vector_of
from tests.fakes.recall import entails, extracted, minimal_subset, resolve_all
from tests.fakes.world_longrecall import longrecall_worlds
from untold.udfs.recall.candidates import Thresholds
from untold.udfs.recall.concluding import (
    OUTCOME,
    PREPARED,
    conclude_samples,
    find_by_vectors,
    open_texts,
    prepare_samples,
    shown_by_words,
)
from untold.udfs.recall.sample_facts import CUT, Options, add_extracted, cut_samples, free_sides
from untold.udfs.recall.segmentation import cut
from untold.udfs.samples.items import normalise_references

Row = dict[str, Any]
Step = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
WORLDS = 100
_TEXTS = pa.list_(pa.string())
GIVEN = pa.schema(
    [
        ("sample_id", pa.string()),
        ("response", pa.string()),
        ("references", pa.list_(pa.struct([(name, pa.string()) for name in ("id", "text", "anchor")]))),
    ]
)
EXTRACTED = pa.field("extracted", pa.list_(pa.struct([("side", pa.string()), ("claims", _TEXTS)])))
RESOLVED = pa.field("resolved", pa.list_(pa.struct([("side", pa.string()), ("facts", _TEXTS)])))
OUTCOMES = pa.field("outcomes", pa.list_(OUTCOME))
_VECTOR = [("kind", pa.string()), ("number", pa.int64()), ("vector", pa.list_(pa.float32())), ("waiting", pa.bool_())]


def through(step: Step, rows: list[Row], schema: pa.Schema) -> list[Row]:
    """Return the output rows of a step."""
    return [row for batch in step([pa.RecordBatch.from_pylist(rows, schema)]) for row in batch.to_pylist()]


def judged(requests: list[Row]) -> list[Row]:
    """Return the candidates that are right in the world."""
    outcomes = []
    for row in requests:
        texts = row["candidates"]
        numbers = minimal_subset(row["reference"], texts) if len(texts) > 1 else [1] * entails(row["reference"], texts)
        chosen = [row["positions"][number - 1] for number in numbers]
        outcomes.append({"number": row["number"], "chosen": chosen, "lost": False, "waiting": False})
    return outcomes


def unit(text: str) -> list[float]:
    vector = np.array(vector_of(text))
    return list(vector / np.linalg.norm(vector))


def conclude(sample: Row, options: Options) -> Row:
    """Run a sample through all steps. The results of the stages are the truth of the world."""
    given = {**sample, "references": normalise_references(sample["references"])}
    (known,) = through(partial(cut_samples, options=options), [given], GIVEN)
    claims = [{"side": one["side"], "claims": extracted(one["text"])} for one in known["to_extract"]]
    add = partial(add_extracted, options=options)
    (known,) = through(add, [{**known, "extracted": claims}], CUT.append(EXTRACTED))
    sides = through(free_sides, [known], CUT)
    resolved = [{"side": one["side"], "facts": resolve_all(one["text"], one["facts"])} for one in sides]
    prepare = partial(prepare_samples, options=options)
    (prepared,) = through(prepare, [{**known, "resolved": resolved}], CUT.append(RESOLVED))
    row = {**prepared, "outcomes": judged(through(shown_by_words, [prepared], PREPARED))}
    schema = PREPARED.append(OUTCOMES)
    texts = through(open_texts, [row], schema)
    row["embedded"] = [{**one, "vector": unit(one["text"]), "waiting": False} for one in texts]
    embedded = pa.field("embedded", pa.list_(pa.struct(_VECTOR)))
    near = through(partial(find_by_vectors, options=options), [row], schema.append(embedded))
    second = {one["number"]: one for one in judged([one for one in near if one["candidates"]])}
    row["by_vectors"] = [{**one, "outcome": second.get(one["number"])} for one in near]
    row["holistic"] = None
    (concluded,) = conclude_samples_of(row)
    return concluded


def conclude_samples_of(row: Row) -> list[Row]:
    pairs = PREPARED.field("pairs").type
    named = [("number", pa.int64()), ("pairs", pairs), ("lost", pa.bool_()), ("waiting", pa.bool_())]
    by_vectors = pa.field("by_vectors", pa.list_(pa.struct([*named, ("outcome", OUTCOME)])))
    holistic = pa.field("holistic", pa.list_(pa.list_(pa.int32())))
    schema = PREPARED.append(OUTCOMES).append(by_vectors).append(holistic)
    return through(partial(conclude_samples, baselines=("arecall", "erecall")), [row], schema)


def shown(concluded: Row) -> set[tuple[Any, ...]]:
    names = ("number", "position", "step", "rank", "jaccard", "lcs", "chosen")
    return {tuple(row[name] for name in names) for row in concluded["candidates"]}


def shown_as_expected(one: ExpectedRecall) -> set[tuple[Any, ...]]:
    return {
        (each.reference, each.position, each.step, each.rank, each.jaccard, each.lcs, each.chosen)
        for each in one.candidates
    }


@pytest.mark.parametrize("segmentation", ["auto", "list", "sentences", "atomic"])
def test_every_reference_is_as_brute_force_has_it(segmentation: Any) -> None:
    found_by = set()
    for world in longrecall_worlds(WORLDS):
        for sample in world.samples(2):
            one = expect(sample, expected_longrecall.Options(segmentation=segmentation))
            concluded = conclude(sample, Options(segmentation=segmentation))
            assert [
                (row["text"], row["reference_id"], row["covered"], tuple(row["claims"]), row["found_by"])
                for row in concluded["statements"]
            ] == [(row.text, row.reference_id, row.covered, row.claims, row.found_by) for row in one.statements], (
                sample["sample_id"]
            )
            assert [(row["arecall"], row["erecall"]) for row in concluded["statements"]] == [
                (row.baselines["arecall"], row.baselines["erecall"]) for row in one.statements
            ], sample["sample_id"]
            assert shown(concluded) == shown_as_expected(one), sample["sample_id"]
            found_by |= {row.found_by for row in one.statements}
    assert found_by == {None, "lexical", "semantic"}


# The number is as high as the number of facts, so that an additional fact does not displace another fact
WIDE = Options("list", thresholds=Thresholds(top_k=1_000))


def recalled(sample: Row, items: list[str]) -> set[str]:
    """Return the references that a response with these items covers."""
    listed = {**sample, "response": "\n".join(f"- {item}" for item in items)}
    return {row["text"] for row in conclude(listed, WIDE)["statements"] if row["covered"]}


def test_an_additional_fact_never_lowers_recall_and_the_order_has_no_effect() -> None:
    random = Random("order")
    grown = 0
    for world in longrecall_worlds(40):
        if not world.sayings or world.form == "prose":
            continue
        (sample, other) = world.samples(2)
        items, further = ([fact.text for fact in cut(text["response"], "list", 10)] for text in (sample, other))
        before = recalled(sample, items)
        assert recalled(sample, random.sample(items, len(items))) == before
        after = recalled(sample, [*items, *further])
        assert before <= after
        grown += len(after) > len(before)
    assert grown > 5
