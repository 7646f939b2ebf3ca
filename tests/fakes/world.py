"""A symbolic world for tests: a query, facts with known entailments, and samples with texts written from them.

`tests.fakes.facts` and `tests.fakes.questions` are the language, which the model server uses too.
`tests.fakes.expected` and `tests.fakes.expected_qa` compute the results by brute force.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tests.fakes.expected import Options
from tests.fakes.facts import (
    CITIES,
    DURATION,
    IRRELEVANT,
    LENGTHS,
    LOOSE_LENGTHS,
    MONTHS,
    QA_TOPICS,
    TASTES,
    TOPICS,
    Fact,
    chain,
)
from tests.fakes.names import FIRST, LAST

_WIDE = str.maketrans("0123456789", "０１２３４５６７８９")
_MOST_BOATS = 5
_ASIDES = (
    "This text is about {x}.",
    "Where does {x} live?",
    "Ask {x} about boats.",
    "Dates are written day first.",
    "Well, well.",
    "Many say: {x} is great.",
)


class World:
    """A query, its contexts and any number of responses, determined only by the seed.

    `judge` is one of `tests.fakes.facts.JUDGES`: the server must answer with `answer`, and the oracle of nli must use
    `options`. With `ids` the contexts are objects with ids, otherwise strings. `topics` are the topics of the texts.
    """

    def __init__(self, seed: int, judge: str = "closed", ids: bool = False, topics: Sequence[str] = TOPICS) -> None:
        random = Random(seed)
        self.seed, self.answer, self.options = seed, f"world_{judge}", Options(judge=judge)
        subject, other = (f"{random.choice(FIRST)} {last}" for last in random.sample(LAST, 2))
        asked, aside = random.sample(topics, 2), random.choice(topics)
        self.subject = subject
        self.query = f"What is known of the {asked[0]} and the {asked[1]} of {subject.title()}?"
        leaves = [_leaf(random, topic, subject) for topic in [*asked, *asked, aside]]
        self.leaves = [*leaves, _leaf(random, asked[0], other)]
        texts = [self._context(random) for _ in range(random.randint(1, 3))]
        texts += texts[:1] if random.random() < 0.1 else []
        named = [{"id": f"source {number}", "text": text} for number, text in enumerate(texts)]
        self.contexts: Sequence[Any] = named if ids else texts

    def samples(self, responses: int = 1) -> list[dict[str, Any]]:
        """Return a sample for each response. The first samples do not depend on the number."""
        return [
            {
                "sample_id": f"w{self.seed:04d}-{number}",
                "query": self.query,
                "response": self._response(Random(f"{self.seed}/{number}")),
                "contexts": self.contexts,
                "system": f"system{number}",
            }
            for number in range(responses)
        ]

    def _context(self, random: Random) -> str:
        if random.random() < 0.1:
            return f"{IRRELEVANT} weather of day {random.randint(1, 9)}."
        return self._write(random, random.randint(1, 5))

    def _response(self, random: Random) -> str:
        return "" if random.random() < 0.05 else self._write(random, random.randint(1, 5))

    def _write(self, random: Random, length: int) -> str:
        written: list[str] = []
        named = ""
        for _ in range(length):
            fact = _some(random, self.leaves)
            written.append(_vary(random, self._sentence(random, fact, named)))
            named = fact.subject
            if random.random() < 0.2:
                written.append(random.choice(_ASIDES).format(x=self.subject.title()))
            if random.random() < 0.1:
                written.append(f"{IRRELEVANT} remark {random.randint(1, 9)}.")
        return "".join(sentence + _gap(random, sentence) for sentence in written).strip()

    def _sentence(self, random: Random, fact: Fact, named: str) -> str:
        form = random.choice([0, 0, *range(fact.forms)])
        sentence = fact.sentence(form)
        if form == 0 and random.random() < 0.15:
            also = next(
                (leaf for leaf in self.leaves if leaf.subject == fact.subject and leaf.topic != fact.topic), fact
            )
            sentence = f"{sentence.removesuffix('.')} and {also.sentence().removeprefix(also.subject.title()).strip()}"
        if form == 0 and fact.subject == named and random.random() < 0.3:
            sentence = f"It{sentence.removeprefix(fact.subject.title())}"
        return sentence


def worlds(count: int, judge: str = "closed", ids: bool = False, first: int = 0) -> list[World]:
    """Return worlds with successive seeds."""
    return [World(seed, judge, ids) for seed in range(first, first + count)]


def qa_worlds(count: int, judge: str = "closed", ids: bool = False, first: int = 0) -> list[World]:
    """Return worlds with successive seeds that also have lengths."""
    return [World(seed, judge, ids, QA_TOPICS) for seed in range(first, first + count)]


def _leaf(random: Random, topic: str, subject: str) -> Fact:
    if topic == "founding":
        day = f"{random.randint(1, 28)} {random.choice(MONTHS)} {random.randint(1880, 1919)}"
        return Fact(topic, "day", subject, day.casefold())
    if topic == "home":
        return Fact(topic, "city", subject, random.choice(list(CITIES)).casefold())
    if topic == "fleet":
        return Fact(topic, "exact", subject, f"exactly {random.randint(1, _MOST_BOATS)}")
    if topic == "length":
        return Fact(topic, "length", subject, random.choice([*LENGTHS, *LENGTHS, *LOOSE_LENGTHS, DURATION]))
    return Fact(topic, "taste", subject, random.choice(TASTES))


def _some(random: Random, leaves: Sequence[Fact]) -> Fact:
    """Return a fact or a generalisation. The last fact, about another subject, is rare."""
    leaf = random.choice([*leaves[:-1], *leaves])
    return random.choice(chain(leaf))


def _vary(random: Random, sentence: str) -> str:
    """Return another form of the same node: case, white space, full stop, quotes, compatibility characters."""
    return random.choice(
        [
            *[sentence] * 8,
            sentence.upper(),
            sentence.casefold(),
            sentence.replace(" ", "  ", 1),
            sentence.replace(" ", "\u00a0"),
            sentence.removesuffix("."),
            f'"{sentence}"',
            f"“{sentence}”",
            sentence.translate(_WIDE),
        ]
    )


def _gap(random: Random, sentence: str) -> str:
    return random.choice("\n ") if sentence.endswith((".", "?")) else "\n"
