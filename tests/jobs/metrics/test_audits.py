"""Test the audits of a filter and of a classifier with symbolic worlds: the miss rate and the corrected scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
import pytest
from numpy.random import Generator

from tests.fakes.expected import Options, expected_nli
from tests.fakes.facts import relate_text, roll, sentences
from tests.fakes.world import worlds
from tests.runs.harness import Row
from untold.udfs.facts.pairs import PairFilter
from untold.udfs.llm.keys import Stage, request_id
from untold.udfs.statistics.intervals import bca_interval, clopper_pearson_interval, clustered_bca_interval

Pair = tuple[str, str]
SHARE = 0.2


def told_neutral(texts: Sequence[str], pairs: Sequence[Pair], audit: float) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs of different texts that the word filter removes, and the audited pairs among them."""
    place = {text: number for number, text in enumerate(texts)}
    sides = [np.array([place[pair[side]] for pair in pairs]) for side in (0, 1)]
    taken, audited = PairFilter("words", audit_share=audit).of({"texts": texts})(*sides)
    return [pairs[n] for n in np.flatnonzero(taken)], [pairs[n] for n in np.flatnonzero(audited)]


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_interval_of_an_audit_holds_the_true_miss_rate_in_nearly_all_worlds(count: int) -> None:
    """The filter and the draws are real. Five responses share the pairs, and each pair counts once.

    The classifier of the cascade is a judge that misses the entailments of every second text.
    """
    digest = Stage("classify_entailment", ("premise", "hypothesis"), "a classifier", "").digest
    held = {"filter": 0, "cascade": 0}
    for world in worlds(count, "noisy"):
        samples = world.samples(5)
        texts = sorted({one for sample in samples for one in sentences(f"{sample['response']} {said(sample)}")})
        pairs = list(permutations(texts, 2))
        if not pairs:
            held = {name: value + 1 for name, value in held.items()}
            continue
        truth = {pair: relate_text(*pair, "noisy") for pair in pairs}
        taken, audited = told_neutral(texts, pairs, SHARE)
        held["filter"] += holds(taken, audited, truth)
        sure = [pair for pair in pairs if truth[pair] == "neutral" or roll(pair[0]) % 2]
        drawn = [
            pair
            for pair in sure
            if int(request_id(digest, {"premise": pair[0], "hypothesis": pair[1]})[:8], 16) < SHARE * 2**32
        ]
        held["cascade"] += holds(sure, drawn, truth)
    assert min(held.values()) >= 0.94 * count, held


def said(sample: Row) -> str:
    return " ".join(one if isinstance(one, str) else one["text"] for one in sample["contexts"])


def holds(told: Sequence[Pair], audited: Sequence[Pair], truth: dict[Pair, str]) -> bool:
    """Return True if the interval of the audited pairs contains the miss rate of all pairs with the label neutral."""
    if not told or not audited:
        return True
    missed = [sum(truth[pair] != "neutral" for pair in own) for own in (told, audited)]
    found = clopper_pearson_interval(missed[1], len(audited))
    assert found.low is not None
    assert found.high is not None
    return found.low <= missed[0] / len(told) <= found.high


@dataclass
class Told:
    """A sample with some wrong relations of a classifier, and its score for a set of audited pairs."""

    sample: Row
    options: Options
    truth: dict[Pair, str | None]
    wrong: dict[Pair, str]
    known: dict[frozenset[Pair], float | None] = field(default_factory=dict)

    def score(self, audited: frozenset[Pair]) -> float | None:
        if audited not in self.known:
            left = {pair: relation for pair, relation in self.wrong.items() if pair not in audited}
            self.known[audited] = expected_nli(self.sample, self.options, {**self.truth, **left}).score
        return self.known[audited]

    def corrected(self, drawn: set[Pair]) -> float:
        """Return the score plus the weighted effect of each wrong pair in the audit."""
        audited = frozenset(self.wrong.keys() & drawn)
        score = self.score(audited)
        worth = [(score or 0.0) - (self.score(audited - {pair}) or 0.0) for pair in audited]
        return (score or 0.0) + (1 / SHARE - 1) * sum(worth)


def classified(world_samples: Iterable[Row], options: Options) -> list[Told]:
    """Return samples of a classifier that misses a fifth of the entailments and reports some that are wrong."""
    found = []
    for sample in world_samples:
        relations = expected_nli(sample, options).relations
        wrong = {}
        for pair, relation in relations.items():
            if relation == "entailment" and roll("missed", *pair) % 5 == 0:
                wrong[pair] = "neutral"
            elif relation == "neutral" and roll("taken", *pair) % 100 == 0:
                wrong[pair] = "entailment"
        found.append(Told(sample, options, dict(relations), wrong))
    return [one for one in found if one.score(frozenset(one.wrong)) is not None]


def drawn_of(query: Sequence[Told], random: Generator) -> set[Pair]:
    """Return the audited pairs of a query. A pair of several responses is drawn once for all of them."""
    wrong = sorted({pair for one in query for pair in one.wrong})
    return {pair for pair in wrong if random.random() < SHARE}


@pytest.mark.slow
def test_corrected_scores_are_nearly_unbiased_and_intervals_of_whole_queries_hold_the_true_mean() -> None:
    queries = [own for world in worlds(80, "noisy") if (own := classified(world.samples(5), world.options))]
    wrong = sum(len(one.wrong) for query in queries for one in query)
    assert wrong > 100
    truths = [[one.score(frozenset(one.wrong)) or 0.0 for one in query] for query in queries]
    truth = np.mean([score for query in truths for score in query])
    as_told = np.mean([one.score(frozenset()) or 0.0 for query in queries for one in query])

    random, rounds = np.random.default_rng(0), 400
    means, held = [], {"queries": 0, "samples": 0}
    for _ in range(rounds):
        chosen = [queries[place] for place in random.integers(0, len(queries), len(queries))]
        scores = []
        for query in chosen:
            drawn = drawn_of(query, random)
            scores.append([one.corrected(drawn) for one in query])
        every = [score for query in scores for score in query]
        means.append(np.mean(every))
        sums, sizes = [sum(query) for query in scores], [len(query) for query in scores]
        values, counts = np.unique(np.round(every, 9), return_counts=True)
        found = {
            "queries": clustered_bca_interval(sums, sizes, seed=0, resamples=1_000),
            "samples": bca_interval(values, counts, seed=0, resamples=1_000),
        }
        for name, interval in found.items():
            assert interval.low is not None
            assert interval.high is not None
            held[name] += interval.low <= truth <= interval.high
    spread = np.std(means) / np.sqrt(rounds)
    assert abs(as_told - truth) > 0.02
    assert abs(np.mean(means) - truth) < 0.15 * abs(as_told - truth) + 3 * spread
    assert 0.92 <= held["queries"] / rounds <= 0.98
    # The intervals of single samples are too short, so the draws use whole queries
    assert held["samples"] < held["queries"]
