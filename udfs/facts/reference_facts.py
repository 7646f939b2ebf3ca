"""The facts that an answer to a query ought to give: those of its texts, each once, or those that are given.

"Beyond Precision" 2026; methods, section 12. Rows are of owners: of what samples share that have one query and one
evidence, so that responses to one query have one list of facts. Near-duplicates are found by agglomerative clustering
of their vectors at a distance threshold; the medoid is the canonical fact. Vectors tell what statements are about
better than what they say of it: of the 1,582 distinct statements of K-QA distance alone merges 98 within their
questions under the embedded model, most of them wrongly, and none where they must say the same words too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

from untold.udfs.facts.claim_verdicts import cut_passages
from untold.udfs.facts.nodes import Node, normalise
from untold.udfs.retrieval.terms import COSINE_DECIMALS
from untold.udfs.samples.batches import in_batches
from untold.udfs.texts import say_same_words, words_of

# Beyond any distance of two vectors, as a cosine is at least -1
APART = 2.0
# Rows of a matrix of cosines that are made at a time: 20 MB of 5,000 columns
BLOCK_ROWS = 512
# How near two facts have to be for a judge to be asked whether they say the same
ENTAILED_DISTANCE = 0.25

Vectors = NDArray[np.float64]
Distances = NDArray[np.float64]
Class = list[int]


def pair_distances(vectors: Vectors) -> Distances:
    """1 - cosine of each pair of rows, to 6 decimals: the condensed form of SciPy, float64[n * (n - 1) / 2].

    vectors: float64[n, dimension], of length 1. Rounded, as equal texts of other word order would else be told apart
    by rounding errors.
    """
    size = len(vectors)
    # Filled in place: of 5,000 rows it has 100 MB, and the rows of all blocks together would have 200 MB more
    distances, end = np.empty(size * (size - 1) // 2), 0
    for start in range(0, size, BLOCK_ROWS):
        block = np.round(1.0 - vectors[start : start + BLOCK_ROWS] @ vectors[start:].T, COSINE_DECIMALS)
        for place, row in enumerate(block, start=1):
            begin, end = end, end + len(row) - place
            distances[begin:end] = row[place:]
    return distances


def cluster(distances: Distances, size: int, threshold: float) -> list[Class]:
    """The classes of complete linkage: no two members of one are farther apart than `threshold`.

    distances: as of `pair_distances`. Classes in the order of their first members, members ascending.

    >>> cluster(np.array([0.05, 0.9, 0.9]), 3, 0.1)
    [[0, 1], [2]]
    """
    if size < 2:
        return [[place] for place in range(size)]
    labels = fcluster(linkage(distances, "complete"), threshold, "distance")
    classes: dict[int, Class] = {}
    for place, label in enumerate(labels.tolist()):
        classes.setdefault(label, []).append(place)
    return list(classes.values())


def medoid(vectors: Vectors, members: Sequence[int]) -> int:
    """The member with the greatest sum of cosines to the others, to 6 decimals; of several the first."""
    own = vectors[list(members)]
    cosines = own @ own.T
    sums = np.round(cosines.sum(axis=1) - cosines.diagonal(), COSINE_DECIMALS)
    return members[int(np.argmax(sums))]


def part_other_words(distances: Distances, texts: Sequence[str], threshold: float) -> Distances:
    """The distances, `APART` where two texts do not say the same words; those beyond `threshold` stay as they are."""
    # What is farther apart than the threshold is in no class, whatever it says
    for at, first, second in _near(distances, len(texts), threshold):
        # Most that pass say the same words but for their order
        if words_of(texts[first]) != words_of(texts[second]) and not say_same_words(texts[first], texts[second]):
            distances[at] = APART
    return distances


def near_pairs(distances: Distances, size: int, threshold: float = ENTAILED_DISTANCE) -> list[tuple[int, int]]:
    """The pairs (first, second), first < second, that are no farther apart than `threshold`."""
    return [(first, second) for _, first, second in _near(distances, size, threshold)]


def _near(distances: Distances, size: int, threshold: float) -> Iterator[tuple[int, int, int]]:
    """(place in `distances`, first, second) of each pair within the threshold."""
    # Where the pairs of each first begin: it has one fewer than the one before
    starts = np.concatenate([[0], np.cumsum(np.arange(size - 1, 0, -1))])
    places = np.flatnonzero(distances <= threshold)
    firsts = np.searchsorted(starts, places, side="right") - 1
    seconds = places - starts[firsts] + firsts + 1
    yield from zip(places.tolist(), firsts.tolist(), seconds.tolist(), strict=True)


def merge_by_words(texts: Sequence[str], vectors: Vectors, threshold: float) -> list[Class]:
    """Classes of texts that are near and say the same words."""
    return cluster(part_other_words(pair_distances(vectors), texts, threshold), len(texts), threshold)


def merge_by_distance(texts: Sequence[str], vectors: Vectors, threshold: float) -> list[Class]:
    """Classes of texts that are near: the published reading."""
    return cluster(pair_distances(vectors), len(texts), threshold)


# By the setting `importance.duplicates`, those that are found without a judge
MERGING: dict[str, Callable[[Sequence[str], Vectors, float], list[Class]]] = {
    "words": merge_by_words,
    "distance": merge_by_distance,
}


PASSAGES = pa.schema(
    [
        ("owner", pa.string()),
        ("place", pa.int64()),
        ("passage", pa.int64()),
        ("source", pa.string()),
        ("text", pa.string()),
    ]
)
_SOURCE = pa.struct([("place", pa.int64()), ("id", pa.string())])
_FOUND = pa.struct([("text", pa.string()), ("sources", pa.list_(_SOURCE)), ("frequency", pa.int64())])
FOUND = pa.schema([("owner", pa.string()), ("found", pa.list_(_FOUND)), ("left_out", pa.int64())])
PAIRS = pa.schema([("owner", pa.string()), ("source", pa.int64()), ("target", pa.int64())])
FACT = pa.struct(
    [
        ("reference_id", pa.string()),
        ("text", pa.string()),
        ("anchor", pa.string()),
        ("sources", pa.list_(pa.string())),
        ("members", pa.list_(pa.string())),
        ("weight", pa.float64()),
    ]
)
FACTS = pa.schema([("owner", pa.string()), ("facts", pa.list_(FACT))])
TO_RATE = pa.schema(
    [("owner", pa.string()), ("batch", pa.int64()), ("query", pa.string()), ("facts", pa.list_(pa.string()))]
)
Rows = Iterable[pa.RecordBatch]
Found = Sequence[Mapping[str, Any]]


def cut_texts(batches: Rows, words: int) -> Iterator[pa.RecordBatch]:
    """Columns of `PASSAGES`, a row a passage of at most `words` words; from owner, place, source and text."""
    for batch in batches:
        yield from in_batches(
            (
                {**row, "passage": number, "text": passage}
                for row in batch.to_pylist()
                for number, passage in enumerate(cut_passages(row["text"], words))
            ),
            PASSAGES,
        )


def gather_facts(batches: Rows, most: int) -> Iterator[pa.RecordBatch]:
    """Columns of `FOUND`, a row an owner: its distinct facts in order of first appearance, the first `most` of them.

    batches: owner, passages list<struct<place, passage, source, facts list<string>>>, in order. Facts that are equal
    after `normalise` are one, in its most frequent form, with all its sources; `left_out` are those beyond `most`.
    """
    for batch in batches:
        yield pa.RecordBatch.from_pylist([_gather(row, most) for row in batch.to_pylist()], FOUND)


def _gather(row: Mapping[str, Any], most: int) -> dict[str, Any]:
    nodes: dict[str, Node] = {}
    for passage in row["passages"] or ():
        for text in passage["facts"] or ():
            nodes.setdefault(normalise(text), Node()).add(text, passage["place"], passage["source"], None, passes=True)
    found = [
        {
            "text": node.text,
            "sources": [{"place": place, "id": source} for place, source in node.sources.items()],
            "frequency": node.in_contexts.total(),
        }
        for node in nodes.values()
    ]
    return {"owner": row["owner"], "found": found[:most], "left_out": max(0, len(found) - most)}


def merge_near(batches: Rows, method: str, threshold: float) -> Iterator[pa.RecordBatch]:
    """Columns of `FACTS`: near-duplicates merged by `method` of `MERGING`, the medoid for each class.

    batches: owner, found (of `FOUND`), vectors list<list<float>> of length 1 in the same order. Where a vector is
    missing, as in a plan, no fact is known to be near another.
    """
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            found, vectors = row["found"] or [], _matrix(row["found"], row["vectors"])
            if vectors is None:
                classes, canonical = _each_alone(found)
            else:
                classes = MERGING[method]([one["text"] for one in found], vectors, threshold)
                canonical = [medoid(vectors, members) for members in classes]
            rows.append({"owner": row["owner"], "facts": _merged(found, classes, canonical)})
        yield pa.RecordBatch.from_pylist(rows, FACTS)


def pair_near(batches: Rows) -> Iterator[pa.RecordBatch]:
    """Columns of `PAIRS`, a row an ordered pair of facts that are near enough to be one, for a judge to say.

    batches as of `merge_near`; where a vector is missing, as in a plan, any two facts may be near.
    """
    for batch in batches:
        yield from in_batches((pair for row in batch.to_pylist() for pair in _pairs(row)), PAIRS)


def _pairs(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    vectors = _matrix(row["found"], row["vectors"])
    if vectors is None:
        return
    for first, second in near_pairs(pair_distances(vectors), len(vectors)):
        yield {"owner": row["owner"], "source": first, "target": second}
        yield {"owner": row["owner"], "source": second, "target": first}


def merge_classes(batches: Rows) -> Iterator[pa.RecordBatch]:
    """Columns of `FACTS`: facts that entail each other merged, as the fact graph has them.

    batches: owner, found (of `FOUND`), classes list<struct<node, statement, representative>>, one a fact in order, as
    of `untold.graph.condensation.condense_batches`; null: each fact is a class of its own.
    """
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            found = row["found"] or []
            classes, canonical = _each_alone(found)
            if row["classes"] is not None:
                members: dict[int, Class] = {}
                for one in row["classes"]:
                    members.setdefault(one["statement"], []).append(one["node"])
                heads = {one["statement"]: one["node"] for one in row["classes"] if one["representative"]}
                classes, canonical = list(members.values()), [heads[statement] for statement in members]
            rows.append({"owner": row["owner"], "facts": _merged(found, classes, canonical)})
        yield pa.RecordBatch.from_pylist(rows, FACTS)


def _matrix(found: Found | None, vectors: Sequence[Sequence[float] | None] | None) -> Any:
    """The vectors as float64[n, dimension]; None where one is missing, or none is needed."""
    if not found or vectors is None or any(vector is None for vector in vectors):
        return None
    return np.array(vectors, np.float64)


def _each_alone(found: Found) -> tuple[list[Class], list[int]]:
    return [[place] for place in range(len(found))], list(range(len(found)))


def _merged(found: Found, classes: Iterable[Class], canonical: Iterable[int]) -> list[dict[str, Any]]:
    """Facts of `FACT`, one a class in the order of first appearance, with the texts and the sources of its members."""
    return [
        {
            "text": found[head]["text"],
            "sources": _ids(found[place]["sources"] for place in members),
            "members": [found[place]["text"] for place in members],
        }
        for members, head in zip(classes, canonical, strict=True)
    ]


def _ids(sources: Iterable[Sequence[Mapping[str, Any]]]) -> list[str]:
    """The ids of the sources, each once, in the order of the texts."""
    by_place = sorted((one["place"], one["id"]) for several in sources for one in several)
    return list(dict.fromkeys(name for _, name in by_place))


def sizes_of_batches(count: int, most: int) -> list[int]:
    """How many of `count` facts each prompt rates: as few prompts as `most` a prompt allows, of near-equal size.

    >>> sizes_of_batches(101, 50), sizes_of_batches(50, 50), sizes_of_batches(0, 50)
    ([34, 34, 33], [50], [])
    """
    prompts = -(-count // most)
    return [count // prompts + (number < count % prompts) for number in range(prompts)]


def batch_facts(batches: Rows, most: int) -> Iterator[pa.RecordBatch]:
    """Columns of `TO_RATE`, a row a prompt: the unrated facts of an owner in order; from owner, query and facts."""
    for batch in batches:
        yield from in_batches((prompt for row in batch.to_pylist() for prompt in _prompts(row, most)), TO_RATE)


def _prompts(row: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    unrated = [fact["text"] for fact in row["facts"] or () if fact["weight"] is None]
    start = 0
    for number, size in enumerate(sizes_of_batches(len(unrated), most)):
        facts = unrated[start : start + size]
        yield {"owner": row["owner"], "batch": number, "query": row["query"], "facts": facts}
        start += size
