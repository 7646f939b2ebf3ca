"""Find near-duplicates among the facts of a query by words and vectors, compared with bare SciPy."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from tests.benchmarks.figures import Figure, Options
from untold.udfs.facts.reference_facts import Vectors, merge_by_words

# The maximum facts of a query (importance.max_facts), with the dimension of the embedded model
FACTS, DIMENSION = 5_000, 384
THRESHOLD = 0.1
ROUNDS = 3
GOAL = 0.8


def measure(options: Options) -> list[Figure]:
    """Measure both in turn, repeatedly. Raises RuntimeError if they differ for texts with the same words."""
    size = options.vectors or FACTS
    vectors = _vectors(size)
    texts = ["boats sail"] * size
    ours, bare = [], []
    for _ in range(ROUNDS):
        began = perf_counter()
        labels = fcluster(linkage(pdist(vectors, "cosine"), "complete"), THRESHOLD, "distance")
        between = perf_counter()
        classes = merge_by_words(texts, vectors, THRESHOLD)
        ended = perf_counter()
        bare.append(between - began)
        ours.append(ended - between)
        if len(classes) != len(set(labels.tolist())):
            raise RuntimeError("SciPy finds other classes")
    return [
        Figure(f"facts clustered, {size:,}", tuple(ours), "s"),
        Figure("beside bare SciPy", tuple(one / other for one, other in zip(bare, ours, strict=True)), at_least=GOAL),
    ]


def _vectors(size: int) -> Vectors:
    """Return rows of length 1. Some of them are near each other."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(size // 5 + 1, DIMENSION))
    found = centres[random.integers(0, len(centres), size)] + random.normal(scale=0.2, size=(size, DIMENSION))
    return found / np.linalg.norm(found, axis=1, keepdims=True)
