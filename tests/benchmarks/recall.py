"""Measure pairs of facts per second and core for lexical candidates, against a loop of the same J over rapidfuzz."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import process_time

import numpy as np
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from tests.benchmarks.figures import Figure, Options
from untold.udfs.recall.candidates import MatchText, Thresholds, form_of, lexical_candidates, number_tokens
from untold.udfs.recall.fact_texts import Fact, match_form, shown_form, tokens_of

REPETITIONS = 3
# The facts of a sample as in the paper's data sets, with the length of a sentence. A tenth is misspelt
REFERENCES, GENERATED, WORDS = 108, 100, (5, 15)
SAMPLES = 10
GOAL_RATIO, GOAL_RATE = 5.0, 50_000.0
UNIT = "pairs/s"
_WORDS = (Path(__file__).resolve().parents[2] / "LICENSE").read_text(encoding="utf-8").split()
_THRESHOLDS = Thresholds()
Sample = tuple[list[str], list[str]]
Step = Callable[[Sample], object]


def measure(options: Options) -> list[Figure]:
    """Measure samples with the loop, with J of all pairs, and with all steps of candidates: forms, J, L and order."""
    steps: dict[str, Step] = {
        "J, a bare loop": loop,
        "J of a sample at once": all_at_once,
        "candidates of a sample": candidates,
    }
    turns = [
        {name: rate(samples(turn), step) for name, step in steps.items()}
        for turn in range(options.pairs or REPETITIONS)
    ]
    bare, at_once, whole = ([turn[name] for turn in turns] for name in steps)
    ratios = {
        name: tuple(ours / theirs for ours, theirs in zip(rates, bare, strict=True))
        for name, rates in (("J of a sample at once", at_once), ("candidates of a sample", whole))
    }
    return [
        Figure("J, a bare loop", tuple(bare), UNIT),
        *(
            Figure(name, tuple(rates), UNIT, at_least=GOAL_RATE)
            for name, rates in zip(ratios, (at_once, whole), strict=True)
        ),
        *(Figure(f"{name} / a bare loop of J", values, at_least=GOAL_RATIO) for name, values in ratios.items()),
    ]


def samples(seed: int) -> list[Sample]:
    """Return references and generated facts. Each turn has different texts."""
    random = Random(seed)
    return [
        ([_fact(random) for _ in range(REFERENCES)], [_fact(random) for _ in range(GENERATED)]) for _ in range(SAMPLES)
    ]


def _fact(random: Random) -> str:
    words = random.choices(_WORDS, k=random.randint(*WORDS))
    place = random.randrange(len(words))
    words[place] += words[place][-1] if random.random() < 0.1 else ""
    return " ".join(words)


def rate(given: Sequence[Sample], step: Step) -> float:
    """Return pairs per second of processor time, which excludes other load."""
    began = process_time()
    for sample in given:
        step(sample)
    return len(given) * REFERENCES * GENERATED / (process_time() - began)


def loop(sample: Sample) -> list[float]:
    """Run a loop over rapidfuzz and SciPy: single pairs, with the tokens of each text computed once."""
    references, generated = ([tokens_of(match_form(shown_form(text))) for text in texts] for texts in sample)
    return [_jaccard(first, second) for first in references for second in generated]


def _jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    common, left, right = first & second, list(first - second), list(second - first)
    matched = len(common)
    if left and right:
        near = cdist(left, right, scorer=Indel.normalized_similarity, dtype=np.float64) >= _THRESHOLDS.token_similarity
        if near.any():
            matched += int((maximum_bipartite_matching(csr_array(near)) >= 0).sum())
    return matched / (len(first) + len(second) - matched)


def all_at_once(sample: Sample) -> object:
    """Compute J of all pairs as a task does, exact for candidates."""
    sets = [tokens_of(match_form(shown_form(text))) for texts in sample for text in texts]
    numbered = number_tokens(sets, _THRESHOLDS.token_similarity)
    return numbered.jaccard(range(REFERENCES), range(REFERENCES, len(sets)), _THRESHOLDS.jaccard)


def candidates(sample: Sample) -> object:
    """Compute the lexical candidates of all references."""
    references, generated = (_forms(texts) for texts in sample)
    return lexical_candidates(references, generated, _THRESHOLDS)


def _forms(texts: Sequence[str]) -> list[MatchText]:
    return [form_of(Fact(shown_form(text))) for text in texts]
