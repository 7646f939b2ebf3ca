"""Worlds for ICAT: a corpus with some facts of a world, responses that claim some facts, aspects and annotations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from tests.fakes.claims import aspect_of, covers
from tests.fakes.facts import LEVELS, Fact, sentences
from tests.fakes.world import World, _some

Document = dict[str, str]
Annotation = tuple[str, str, str, int]
# Sentences of a document, of about six words each, so that the longest documents have several chunks of 128 words
_LENGTHS = (1, 2, 3, 5, 8, 30, 60)


class IcatWorld:
    """A query, a corpus, and any number of responses, determined only by the seed. Contexts and judge are from `World`.

    `given` are the aspects of samples, None if they have none. Every second world has some. Texts of documents are
    plain sentences, so a chunk has their facts, except for a sentence that is cut in two.
    """

    def __init__(self, seed: int, judge: str = "closed", ids: bool = False) -> None:
        self._world, random = World(seed, judge, ids), Random(f"icat/{seed}")
        self.seed, self.answer, self.query = seed, self._world.answer, self._world.query
        self.query_id = f"topic {seed}"
        known = [leaf for leaf in self._world.leaves if random.random() < 0.6] or self._world.leaves[-1:]
        texts = [_document(random, known) for _ in range(random.randint(1, 4))]
        # One text under two ids, to test the order of equal similarities
        texts += texts[:1] if random.random() < 0.2 else []
        self.documents = [
            {"document_id": f"w{seed:04d}-d{number}", "text": text, "url": f"https://example.org/{seed}/{number}"}
            for number, text in enumerate(texts)
        ]
        self.given = _given(random, self._world.subject) if seed % 2 else None

    def samples(self, responses: int = 1) -> list[dict[str, Any]]:
        """Return a sample for each response, with `sample_id` to `system` as in `World`, `query_id` and any aspects."""
        more = {"query_id": self.query_id, "aspects": self.given}
        return [sample | more for sample in self._world.samples(responses)]

    def annotations(self) -> list[Annotation]:
        """Return (topic, subtopic, document, relevance) for given aspects in documents. Only values above 0 count."""
        named = [(f"{number}" if isinstance(one, str) else one["id"], text_of(one)) for number, one in _numbered(self)]
        return [
            (self.query_id, subtopic, document["document_id"], _relevance(document, text))
            for subtopic, text in [*named, ("unknown", "the year of the founding of Some One")]
            for document in self.documents
        ]


def icat_worlds(count: int, judge: str = "closed", ids: bool = False, first: int = 0) -> list[IcatWorld]:
    """Return worlds with successive seeds."""
    return [IcatWorld(seed, judge, ids) for seed in range(first, first + count)]


def text_of(aspect: Any) -> str:
    """Return the text of a given aspect, which is a string or has an id."""
    return str(aspect if isinstance(aspect, str) else aspect["text"])


def _numbered(world: IcatWorld) -> Iterator[tuple[int, Any]]:
    return enumerate(world.given or [], start=1)


def _relevance(document: Document, aspect: str) -> int:
    stated = sum(covers(sentence, aspect) for sentence in sentences(document["text"]))
    return stated if stated else -(len(document["text"]) % 2)


def _document(random: Random, known: Sequence[Fact]) -> str:
    facts = [_some(random, known) for _ in range(random.choice(_LENGTHS))]
    return " ".join(fact.sentence(random.randrange(fact.forms)) for fact in facts)


def _given(random: Random, subject: str) -> list[Any]:
    """Return up to six aspects: strings, with their numbers as ids, or objects with ids."""
    texts = [aspect_of(*key, subject) for key in random.sample(list(LEVELS), random.randint(0, 6))]
    return [text if random.random() < 0.5 else {"id": f"A{number}", "text": text} for number, text in enumerate(texts)]
