"""Collect the facts that an answer to a query should state: distinct facts of its texts, or the given facts.

"Beyond Precision" 2026; methods, section 12. A row belongs to an owner: all samples with the same query and evidence,
so that responses to a query share one list of facts. Near-duplicates are found by agglomerative clustering of their
vectors at a distance threshold, and the medoid is the canonical fact. Vectors represent the topic of statements better
than their content: among the 1,582 distinct statements of K-QA, only by distance 98 are merged within their questions
under the embedded model, most of them wrongly. If they must have the same words too, none is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

from untold.udfs.arrow import NUMBER, TEXT, Row, columns, over_rows, struct
from untold.udfs.facts.claim_verdicts import cut_passages
from untold.udfs.facts.importance_measures import FACT
from untold.udfs.facts.nodes import Node, normalise
from untold.udfs.retrieval.ranking import COSINE_DECIMALS
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


PASSAGES = columns(owner=TEXT, place=NUMBER, passage=NUMBER, source=TEXT, text=TEXT)
_SOURCE = struct(place=NUMBER, id=TEXT)
FOUND = columns(owner=TEXT, found=[struct(text=TEXT, sources=[_SOURCE], frequency=NUMBER)], left_out=NUMBER)
PAIRS = columns(owner=TEXT, source=NUMBER, target=NUMBER)
FACTS = columns(owner=TEXT, facts=[FACT])
TO_RATE = columns(owner=TEXT, batch=NUMBER, query=TEXT, facts=[TEXT])
Found = Sequence[Row]


@over_rows(PASSAGES)
def cut_texts(row: Row, words: int) -> Iterator[Row]:
    """Yield passages of at most `words` words as columns of `PASSAGES`, from owner, place, source and text."""
    return ({**row, "passage": number, "text": text} for number, text in enumerate(cut_passages(row["text"], words)))


@over_rows(FOUND)
def gather_facts(row: Row, most: int) -> Row:
    """Return columns of `FOUND`: the first `most` distinct facts of an owner in order of first appearance.

    row: owner, passages list<struct<place, passage, source, facts list<string>>>, in order. Facts that are equal after
    `normalise` are one fact, in its most frequent form, with all its sources. `left_out` counts the facts after `most`.
    """
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


@over_rows(FACTS)
def merge_near(row: Row, method: str, threshold: float) -> Row:
    """Return columns of `FACTS`: near-duplicates merged by `method` of `MERGING`, the medoid for each class.

    row: owner, found (of `FOUND`), vectors list<list<float>> of length 1 in the same order. If a vector is missing, as
    in a plan, no facts are merged.
    """
    found, vectors = row["found"] or [], _matrix(row)
    if vectors is None:
        return _merged(row, _each_alone(found))
    classes = MERGING[method]([one["text"] for one in found], vectors, threshold)
    return _merged(row, [(medoid(vectors, members), members) for members in classes])


@over_rows(PAIRS)
def pair_near(row: Row) -> Iterator[Row]:
    """Yield columns of `PAIRS`, a row per ordered pair of facts that a judge compares because they are near.

    row: as for `merge_near`. If a vector is missing, as in a plan, there are no pairs.
    """
    vectors = _matrix(row)
    if vectors is None:
        return
    for first, second in near_pairs(pair_distances(vectors), len(vectors)):
        yield {"owner": row["owner"], "source": first, "target": second}
        yield {"owner": row["owner"], "source": second, "target": first}


@over_rows(FACTS)
def merge_classes(row: Row) -> Row:
    """Return columns of `FACTS`: facts that entail each other are merged, as in the fact graph.

    row: owner, found (of `FOUND`), classes list<struct<node, statement, representative>>, one per fact in order, from
    `untold.graph.condensation.condense_batches`. If null, each fact is a separate class.
    """
    if row["classes"] is None:
        return _merged(row, _each_alone(row["found"] or []))
    members: dict[int, Class] = {}
    for one in row["classes"]:
        members.setdefault(one["statement"], []).append(one["node"])
    heads = {one["statement"]: one["node"] for one in row["classes"] if one["representative"]}
    return _merged(row, [(heads[statement], several) for statement, several in members.items()])


def _matrix(row: Row) -> Any:
    """Return the vectors as float64[n, dimension], or None if one is missing or none is needed."""
    vectors = row["vectors"]
    if not row["found"] or vectors is None or any(vector is None for vector in vectors):
        return None
    return np.array(vectors, np.float64)


def _each_alone(found: Found) -> list[tuple[int, Class]]:
    return [(place, [place]) for place in range(len(found))]


def _merged(row: Row, classes: Iterable[tuple[int, Class]]) -> Row:
    """Return columns of `FACTS`: a fact per class in order, with all texts and sources of its members.

    classes: the canonical fact of each class, and its members.
    """
    found = row["found"] or []
    facts = [
        {
            "text": found[head]["text"],
            "sources": _ids(found[place]["sources"] for place in members),
            "members": [found[place]["text"] for place in members],
        }
        for head, members in classes
    ]
    return {"owner": row["owner"], "facts": facts}


def _ids(sources: Iterable[Sequence[Row]]) -> list[str]:
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


@over_rows(TO_RATE)
def batch_facts(row: Row, most: int) -> Iterator[Row]:
    """Yield columns of `TO_RATE`, a row per prompt: the unrated facts of an owner; from owner, query and facts."""
    unrated = [fact["text"] for fact in row["facts"] or () if fact["weight"] is None]
    start = 0
    for number, size in enumerate(sizes_of_batches(len(unrated), most)):
        yield {"owner": row["owner"], "batch": number, "query": row["query"], "facts": unrated[start : start + size]}
        start += size
