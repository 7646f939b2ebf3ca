"""Collect the facts that an answer to a query should state: distinct facts of its texts, or the given facts.

"Beyond Precision" 2026; methods, section 12. A row belongs to an owner: all samples with the same query and evidence,
so that responses to a query share one list of facts. Near-duplicates are found by agglomerative clustering of their
vectors at a distance threshold, and the medoid is the canonical fact. Vectors represent the topic of statements better
than their content: among the 1,582 distinct statements of K-QA, only by distance 98 are merged within their questions
under the embedded model, most of them wrongly. If they must have the same words too, none is merged.
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
from untold.udfs.retrieval.ranking import COSINE_DECIMALS
from untold.udfs.samples.batches import in_batches
from untold.udfs.texts import say_same_words, words_of

# Larger than any distance of two vectors, because a cosine is at least -1
APART = 2.0
# Rows of a matrix of cosines per block: 20 MB for 5,000 columns
BLOCK_ROWS = 512
# The maximum distance of two facts that a judge compares
ENTAILED_DISTANCE = 0.25

Vectors = NDArray[np.float64]
Distances = NDArray[np.float64]
Class = list[int]


def pair_distances(vectors: Vectors) -> Distances:
    """Return 1 - cosine of each pair of rows, to 6 decimals, in SciPy's condensed form: float64[n * (n - 1) / 2].

    vectors: float64[n, dimension], of length 1. Without rounding, rounding errors would separate equal texts in another
    word order.
    """
    size = len(vectors)
    # Filled in place: for 5,000 rows it has 100 MB, and all blocks together would need 200 MB more
    distances, end = np.empty(size * (size - 1) // 2), 0
    for start in range(0, size, BLOCK_ROWS):
        block = np.round(1.0 - vectors[start : start + BLOCK_ROWS] @ vectors[start:].T, COSINE_DECIMALS)
        for place, row in enumerate(block, start=1):
            begin, end = end, end + len(row) - place
            distances[begin:end] = row[place:]
    return distances


def cluster(distances: Distances, size: int, threshold: float) -> list[Class]:
    """Return the classes of complete linkage. The members of a class have distances of at most `threshold`.

    distances: as from `pair_distances`. Classes are in the order of their first members, with ascending members.

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
    """Return the member with the greatest sum of cosines to the others, to 6 decimals, or the first on a tie."""
    own = vectors[list(members)]
    cosines = own @ own.T
    sums = np.round(cosines.sum(axis=1) - cosines.diagonal(), COSINE_DECIMALS)
    return members[int(np.argmax(sums))]


def part_other_words(distances: Distances, texts: Sequence[str], threshold: float) -> Distances:
    """Return the distances, with `APART` for near texts (within `threshold`) that do not have the same words."""
    # Pairs beyond the threshold are in no class, so their words do not matter
    for at, first, second in _near(distances, len(texts), threshold):
        # Most of these pairs have the same words in another order
        if words_of(texts[first]) != words_of(texts[second]) and not say_same_words(texts[first], texts[second]):
            distances[at] = APART
    return distances


def near_pairs(distances: Distances, size: int, threshold: float = ENTAILED_DISTANCE) -> list[tuple[int, int]]:
    """Return the pairs (first, second), first < second, with a distance of at most `threshold`."""
    return [(first, second) for _, first, second in _near(distances, size, threshold)]


def _near(distances: Distances, size: int, threshold: float) -> Iterator[tuple[int, int, int]]:
    """Yield (position in `distances`, first, second) of each pair within the threshold."""
    # The start of the pairs of each first element, each with one pair fewer than the one before
    starts = np.concatenate([[0], np.cumsum(np.arange(size - 1, 0, -1))])
    places = np.flatnonzero(distances <= threshold)
    firsts = np.searchsorted(starts, places, side="right") - 1
    seconds = places - starts[firsts] + firsts + 1
    yield from zip(places.tolist(), firsts.tolist(), seconds.tolist(), strict=True)


def merge_by_words(texts: Sequence[str], vectors: Vectors, threshold: float) -> list[Class]:
    """Return classes of texts that are near and have the same words."""
    return cluster(part_other_words(pair_distances(vectors), texts, threshold), len(texts), threshold)


def merge_by_distance(texts: Sequence[str], vectors: Vectors, threshold: float) -> list[Class]:
    """Return classes of texts that are near: our reading of the paper."""
    return cluster(pair_distances(vectors), len(texts), threshold)


# The methods without a judge, by the setting `importance.duplicates`
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
    """Yield passages of at most `words` words as columns of `PASSAGES`, from owner, place, source and text."""
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
    """Yield columns of `FOUND`, a row per owner: its first `most` distinct facts in order of first appearance.

    batches: owner, passages list<struct<place, passage, source, facts list<string>>>, in order. Facts that are equal
    after `normalise` are one fact, in its most frequent form, with all its sources. `left_out` counts the facts after
    `most`.
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
    """Yield columns of `FACTS`: near-duplicates merged by `method` of `MERGING`, the medoid for each class.

    batches: owner, found (of `FOUND`), vectors list<list<float>> of length 1 in the same order. If a vector is missing,
    as in a plan, no facts are merged.
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
    """Yield columns of `PAIRS`, a row per ordered pair of facts that a judge compares because they are near.

    batches: as for `merge_near`. If a vector is missing, as in a plan, there are no pairs.
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
    """Yield columns of `FACTS`: facts that entail each other are merged, as in the fact graph.

    batches: owner, found (of `FOUND`), classes list<struct<node, statement, representative>>, one per fact in order,
    from `untold.graph.condensation.condense_batches`. If null, each fact is a separate class.
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
    """Return the vectors as float64[n, dimension], or None if one is missing or none is needed."""
    if not found or vectors is None or any(vector is None for vector in vectors):
        return None
    return np.array(vectors, np.float64)


def _each_alone(found: Found) -> tuple[list[Class], list[int]]:
    return [[place] for place in range(len(found))], list(range(len(found)))


def _merged(found: Found, classes: Iterable[Class], canonical: Iterable[int]) -> list[dict[str, Any]]:
    """Return facts of `FACT`, one per class in order of first appearance, with all texts and sources of its members."""
    return [
        {
            "text": found[head]["text"],
            "sources": _ids(found[place]["sources"] for place in members),
            "members": [found[place]["text"] for place in members],
        }
        for members, head in zip(classes, canonical, strict=True)
    ]


def _ids(sources: Iterable[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the distinct ids of the sources, in the order of the texts."""
    by_place = sorted((one["place"], one["id"]) for several in sources for one in several)
    return list(dict.fromkeys(name for _, name in by_place))


def sizes_of_batches(count: int, most: int) -> list[int]:
    """Return the number of facts per prompt: the least number of prompts with at most `most` facts, of similar size.

    >>> sizes_of_batches(101, 50), sizes_of_batches(50, 50), sizes_of_batches(0, 50)
    ([34, 34, 33], [50], [])
    """
    prompts = -(-count // most)
    return [count // prompts + (number < count % prompts) for number in range(prompts)]


def batch_facts(batches: Rows, most: int) -> Iterator[pa.RecordBatch]:
    """Yield columns of `TO_RATE`, a row per prompt: the unrated facts of an owner; from owner, query and facts."""
    for batch in batches:
        yield from in_batches((prompt for row in batch.to_pylist() for prompt in _prompts(row, most)), TO_RATE)


def _prompts(row: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    unrated = [fact["text"] for fact in row["facts"] or () if fact["weight"] is None]
    start = 0
    for number, size in enumerate(sizes_of_batches(len(unrated), most)):
        facts = unrated[start : start + size]
        yield {"owner": row["owner"], "batch": number, "query": row["query"], "facts": facts}
        start += size
