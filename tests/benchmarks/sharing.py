"""Count calls that judge pairs: five responses per query against one, and the savings of implied pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import run_job
from tests.fakes.expected import Options as Judging
from tests.fakes.expected import count_requests, expected_nli
from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.runs.harness import SETTINGS
from untold.graph.condensation import FIRST_CONTEXTS, OTHER_CONTEXTS, OTHER_RESPONSES, RESPONSE_ENDS, choose_by_wave
from untold.udfs.facts.pairs import between

STAGE = "classify_relation"
QUERIES = 40
RESPONSES = 5
CLOSED, NOISY = "closed", "noisy"
SKIP = "nli.skip_implied=true"
# Calls are counted and not timed, so Spark has the settings of the tests, which start faster
QUICK = tuple(f"{name}={value}" for name, value in SETTINGS.items() if name.startswith("spark."))
# As in `tests.benchmarks.samples.SETTINGS`
JUDGING = Judging(summarise=False)
# The simulation: atoms of a sample, samples of a kind, and statements by their number of paraphrases
CONTEXT_ATOMS, RESPONSE_ATOMS = 40, 20
SIMULATED = 20
PARAPHRASES = (1, 3, 4, 5)
# The probabilities that a statement implies the next, a response atom is in a context, and an entailment is overlooked
IMPLIES, COVERED, OVERLOOKED = 0.3, 0.5, 0.1
UNIT = "calls"
Samples = Sequence[dict[str, Any]]
Places = NDArray[np.int64]
Pairs = tuple[Places, Places]
Judged = NDArray[np.bool_]
Edges = list[dict[str, int]]


def measure(options: Options) -> list[Figure]:
    """Run whole jobs over symbolic worlds, counted by the model server, and simulate denser samples.

    Raises RuntimeError if a job does not send exactly the distinct pairs that brute force counts.
    """
    groups = [world.samples(RESPONSES) for world in worlds(options.requests or QUERIES)]
    every, single = [one for group in groups for one in group], [group[0] for group in groups]
    with TemporaryDirectory(prefix="untold-") as name:
        folder = Path(name)
        shared, alone = (_ask(folder, CLOSED, samples) for samples in (every, single))
        skipped = {judge: _ask(folder, judge, every, SKIP) for judge in (CLOSED, NOISY)}
    for asked, samples in ((shared, every), (alone, single)):
        if asked != count_pairs(samples):
            raise RuntimeError(f"{asked:,} pairs were asked, not {count_pairs(samples):,}: the figures would be off")
    return [*_shared(groups, shared), *_skipped(shared, skipped), *_simulated()]


def _ask(folder: Path, judge: str, samples: Samples, *settings: str) -> int:
    """Return the number of pairs that a whole job sends to the model server."""
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    with ModelServer(answer=f"world_{judge}") as server:
        run_job(server, path, folder / "job", *QUICK, *settings, metric="nli")
        return server.count(STAGE)


def count_pairs(samples: Samples) -> int:
    """Return the number of distinct pairs, by brute force."""
    return count_requests(samples, JUDGING)[STAGE]


# Five responses per query


def _shared(groups: Sequence[Samples], shared: int) -> list[Figure]:
    first = {number: [one for group in groups for one in group[:number]] for number in range(1, RESPONSES + 1)}
    alone = sum(count_pairs([group[number] for group in groups]) for number in range(RESPONSES))
    by_formula, alone_by_formula = count_by_formula(groups)
    return [
        *(Figure(_responses(number), (count_pairs(samples),), UNIT) for number, samples in first.items()),
        Figure(f"{_responses(RESPONSES)}: 2kRC + C(C-1)", (by_formula,), UNIT),
        Figure(f"{RESPONSES} jobs of a response to each", (alone,), UNIT),
        Figure(f"{RESPONSES} jobs of a response to each: k(2RC + C(C-1))", (alone_by_formula,), UNIT),
        Figure("one job / 2kRC + C(C-1)", (shared / by_formula,), at_most=1.0),
        Figure(f"one job / {RESPONSES} jobs", (shared / alone,)),
        Figure("2kRC + C(C-1) / k(2RC + C(C-1))", (by_formula / alone_by_formula,)),
        *_atoms(groups),
    ]


def _responses(number: int) -> str:
    return f"{number} response{'s' if number > 1 else ''} to each query"


def count_by_formula(groups: Sequence[Samples]) -> tuple[int, int]:
    """Return the pairs of samples grouped by query, with context pairs once per query, and once per sample.

    Methods, section 2.
    """
    shared = alone = 0
    for group in groups:
        expected = [expected_nli(sample, JUDGING) for sample in group]
        crossing = sum(2 * one.response_atoms * one.context_atoms for one in expected)
        between_contexts = [one.context_atoms * (one.context_atoms - 1) for one in expected]
        shared += crossing + between_contexts[0]
        alone += crossing + sum(between_contexts)
    return shared, alone


def _atoms(groups: Sequence[Samples]) -> list[Figure]:
    expected = [expected_nli(sample, JUDGING) for group in groups for sample in group]
    return [
        Figure("context atoms a query, mean", (mean(one.context_atoms for one in expected),)),
        Figure("response atoms that no context has, mean", (mean(one.response_atoms for one in expected),)),
    ]


# Implied pairs


def _skipped(shared: int, skipped: dict[str, int]) -> list[Figure]:
    figures = []
    for judge, asked in skipped.items():
        figures.append(Figure(f"{_responses(RESPONSES)}, implied skipped, judge {judge}", (asked,), UNIT))
        figures.append(Figure(f"share of pairs saved by skipping, judge {judge}", (1 - asked / shared,)))
    return figures


def _simulated() -> list[Figure]:
    """Run `untold.graph.condensation` on invented judgements, without jobs. Only entailments can be implied."""
    figures = []
    for paraphrases in PARAPHRASES:
        for overlooked in (0.0, OVERLOOKED):
            chances = [np.random.default_rng(seed) for seed in range(SIMULATED)]
            judgements = [make_judgements(paraphrases, overlooked, chance) for chance in chances]
            what = f"simulation, {paraphrases} to a statement, {overlooked:.0%} overlooked: "
            entailed, asked = (_share(map(count, judgements)) for count in (_count_entailed, count_asked))
            figures += [Figure(f"{what}entailments", (entailed,)), Figure(f"{what}saved by skipping", (1 - asked,))]
    return figures


def _share(counts: Iterable[int]) -> float:
    """Return the share of all pairs of a query."""
    return mean(counts) / (2 * RESPONSES * RESPONSE_ATOMS * CONTEXT_ATOMS + CONTEXT_ATOMS * (CONTEXT_ATOMS - 1))


def _count_entailed(judged: Judged) -> int:
    """Return the number of entailed pairs with a context atom, between two different atoms."""
    different = judged & ~np.eye(len(judged), dtype=bool)
    return int(different.sum() - different[CONTEXT_ATOMS:, CONTEXT_ATOMS:].sum())


def count_asked(judged: Judged) -> int:
    """Return the number of pairs that the three waves of a job send for a query with `RESPONSES` responses."""
    contexts = between(np.arange(CONTEXT_ATOMS * (CONTEXT_ATOMS - 1)), CONTEXT_ATOMS)
    halves = judged[:CONTEXT_ATOMS, :CONTEXT_ATOMS]
    first = _choose(FIRST_CONTEXTS, contexts, halves, [], [])
    entailed = _edges(first, judged)
    second = _choose(OTHER_CONTEXTS, contexts, halves, entailed, [])
    known = entailed + _edges(second, judged)
    asked = len(first[0]) + len(second[0])
    for number in range(RESPONSES):
        own = CONTEXT_ATOMS + RESPONSE_ATOMS * number + np.arange(RESPONSE_ATOMS)
        places = np.concatenate([np.arange(CONTEXT_ATOMS), own])
        asked += _count_crossing(judged[np.ix_(places, places)], entailed, known)
    return asked


def _count_crossing(judged: Judged, entailed: Edges, known: Edges) -> int:
    """Return the pairs of one response's atoms with the contexts' atoms, in the second and third wave."""
    one, other = (side.ravel() for side in np.indices((CONTEXT_ATOMS, RESPONSE_ATOMS)))
    crossing = np.concatenate([one, CONTEXT_ATOMS + other]), np.concatenate([CONTEXT_ATOMS + other, one])
    second = _choose(RESPONSE_ENDS, crossing, judged, entailed, [])
    third = _choose(OTHER_RESPONSES, crossing, judged, entailed, known + _edges(second, judged))
    return len(second[0]) + len(third[0])


def _choose(part: str, pairs: Pairs, judged: Judged, first: Edges, known: Edges) -> Pairs:
    """Return the pairs that are sent."""
    texts = [""] * len(judged)
    owner = {"part": part, "contexts": CONTEXT_ATOMS, "texts": texts, "first": first, "known": known}
    asked, _ = choose_by_wave(owner)(*pairs)
    return pairs[0][asked], pairs[1][asked]


def _edges(asked: Pairs, judged: Judged) -> Edges:
    entailed = judged[asked]
    pairs = zip(*(side[entailed].tolist() for side in asked), strict=True)
    return [{"source": source, "target": target} for source, target in pairs]


def make_judgements(paraphrases: int, overlooked: float, chance: np.random.Generator) -> Judged:
    """Return bool[n, n]: the entailments of a judge, for context atoms and then for the atoms of each response.

    Each statement has `paraphrases` context atoms, in random order, and implies everything after it in its chain. A
    response atom repeats a statement or belongs to none.
    """
    statements = -(-CONTEXT_ATOMS // paraphrases)
    of_contexts = chance.permutation(np.arange(CONTEXT_ATOMS) // paraphrases)
    size = RESPONSES * RESPONSE_ATOMS
    own = statements + np.arange(size)
    of_responses = np.where(chance.random(size) < COVERED, chance.integers(0, statements, size), own)
    statement = np.concatenate([of_contexts, of_responses])
    chain = np.cumsum(chance.random(statements + size) >= IMPLIES)
    chain[statements:] = chain[statements - 1] + 1 + np.arange(size)
    implies = (chain[:, None] == chain) & (np.arange(len(chain))[:, None] <= np.arange(len(chain)))
    truth: Judged = implies[np.ix_(statement, statement)]
    return truth & (chance.random(truth.shape) >= overlooked)
