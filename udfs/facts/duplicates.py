"""Near-duplicates among the facts of a query: clusters of their vectors, and one canonical fact of each.

"Beyond Precision" 2026; methods, section 12: agglomerative clustering at a distance threshold, and the medoid. Vectors
tell what statements are about better than what they say of it: of the 1,582 distinct statements of K-QA distance alone
merges 98 within their questions under the embedded model, most of them wrongly, and none where they must say the same
words too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

from untold.udfs.facts.words import say_same_words, words_of
from untold.udfs.retrieval.ranking import COSINE_DECIMALS

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
