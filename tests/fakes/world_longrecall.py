"""Worlds for LongRecall: references as lists and as prose, and responses with some of them in other words.

A world has a few subjects with facts (`tests.fakes.world`). Its references state these facts: single facts, two facts,
generalisations, or entries of a list with or without evidence. For most references a response has another form
(`VARIANTS`): the same or another sentence, two facts for one, an alias, a misspelling, other quotes and dashes. It may
also be near without entailing the reference: a generalisation, a namesake, another value, or the name in a minor role.

`tests.fakes.recall` computes the truth only from the texts. The model server with `LongRecallWorld.answer` returns
`entails` and `minimal_subset` of any facts, `map_all` of all at once, `resolve_all` of pronouns, and `extracted` of
texts that a model cuts. Its vectors (`tests.fakes.lookups.vector_of`) of aliases are near.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.fakes.facts import TOPICS, Fact, chain
from tests.fakes.names import FIRST, LAST, ROLES, alias_of, misspellings, namesake_of
from tests.fakes.world import _ASIDES, _WIDE, _gap, _leaf

REFERENCE_FORMS = ("texts", "objects", "list", "prose")
RESPONSE_FORMS = ("list", "numbers", "prose")
_SAID = 0.7  # the share of references with a statement in a response
_BULLETS = ("- ", "* ", "• ", "1. ", "(1) ", "a) ")
_MOST_NUMBERED = 26  # the number of letters


@dataclass(frozen=True)
class Saying:
    """A statement about a person in a reference or a response: up to two facts, or none for an entry.

    `subject` is a name in lower case (`str.title` restores it), which may be an alias or a namesake.
    """

    subject: str
    facts: tuple[Fact, ...] = ()
    form: int = 0

    def sentence(self) -> str:
        """Return the statement as a sentence. An entry is `one of them`."""
        if not self.facts:
            return f"{self.subject.title()} is one of them."
        first, *others = (replace(fact, subject=self.subject) for fact in self.facts)
        if not others:
            return first.sentence(self.form % first.forms)
        return " and ".join([first.sentence()[:-1], *map(_predicate, others)]) + "."

    def item(self, random: Random) -> str:
        """Return the statement as an entry of a list: the anchor, then its evidence."""
        name, evidence = self.subject.title(), self.evidence()
        if not evidence:
            return random.choice((name, f"**{name}**", f"“{name}”"))
        forms = (
            *(f"{name}: {evidence}", f"**{name}**: {evidence}", f"{name} – {evidence}", f"{name} ({evidence})"),
            *(f"[{name}] {evidence}", f"{name} — {evidence}."),
        )
        return random.choice(forms)

    def evidence(self) -> str:
        """Return the sentence without its subject, "" for an entry."""
        return " and ".join(_predicate(replace(fact, subject=self.subject)) for fact in self.facts)


Variant = Callable[[Random, Saying], list[Saying | str]]


def _same(random: Random, saying: Saying) -> list[Saying | str]:
    return [saying]


def _reordered(random: Random, saying: Saying) -> list[Saying | str]:
    return [replace(saying, form=random.randrange(3))]


def _more_general(random: Random, saying: Saying) -> list[Saying | str]:
    """Return each fact in a more general form: an entailed sentence that does not entail the fact."""
    return [replace(saying, facts=tuple(random.choice(chain(fact)) for fact in saying.facts))]


def _apart(random: Random, saying: Saying) -> list[Saying | str]:
    """Return a saying for each fact, sometimes one with the alias. Together they entail the joined saying."""
    parts = [replace(saying, facts=(fact,), form=random.randrange(3)) for fact in saying.facts]
    return [_alias(random, part)[0] if random.random() < 0.2 else part for part in parts] or [saying]


def _alias(random: Random, saying: Saying) -> list[Saying | str]:
    return [replace(saying, subject=alias_of(saying.subject), form=random.randrange(3))]


def _misspelt(random: Random, saying: Saying) -> list[Saying | str]:
    return [random.choice(list(misspellings(saying.sentence())))]


def _namesake(random: Random, saying: Saying) -> list[Saying | str]:
    return [replace(saying, subject=namesake_of(saying.subject, random.choice(ROLES)))]


def _other_value(random: Random, saying: Saying) -> list[Saying | str]:
    return [replace(saying, facts=tuple(_leaf(random, fact.topic, fact.subject) for fact in saying.facts))]


def _background(random: Random, saying: Saying) -> list[Saying | str]:
    other = f"{random.choice(FIRST)} {random.choice(LAST)}".title()
    return [f"{other} knows {saying.subject.title()}."]


VARIANTS: Mapping[str, Variant] = {
    "same": _same,
    "reordered": _reordered,
    "general": _more_general,
    "apart": _apart,
    "alias": _alias,
    "misspelt": _misspelt,
    "namesake": _namesake,
    "other value": _other_value,
    "background": _background,
}


class LongRecallWorld:
    """A query, references in one of `REFERENCE_FORMS`, and any number of responses, determined only by the seed.

    `judge` is one of `tests.fakes.facts.JUDGES`: the server must answer with `answer`. `references` have the format of
    samples: `texts` and `objects` ({id, anchor, text, weight}, anchors only for entries) are lists, `list` is a text
    with items on lines, and `prose` a text of sentences, some with a leading `It`. A twentieth has no references.
    """

    def __init__(self, seed: int, judge: str = "closed") -> None:
        random = Random(f"recall/{seed}")
        self.seed, self.judge, self.answer = seed, judge, f"world_{judge}"
        self.query = random.choice(("Who is known for a home or a fleet?", "What is known of the people of the coast?"))
        self.form = REFERENCE_FORMS[seed % len(REFERENCE_FORMS)]
        lasts = random.sample(LAST, random.randint(2, 4))
        self._known = [_known(random, f"{random.choice(FIRST)} {last}") for last in lasts]
        self.sayings = [] if random.random() < 0.05 else _sayings(random, self._known, self.form)
        self.references: str | list[Any] = _references(random, self.sayings, self.form)

    def samples(self, responses: int = 1) -> list[dict[str, Any]]:
        """Return a sample per response: sample_id, query, response, references, system. The first do not change.

        Responses are lists on lines (`list`), on one line with numbers (`numbers`), or `prose`. A twentieth is empty.
        """
        return [
            {
                "sample_id": f"l{self.seed:04d}-{number}",
                "query": self.query,
                "response": self._response(Random(f"recall/{self.seed}/{number}")),
                "references": self.references,
                "system": f"system{number}",
            }
            for number in range(responses)
        ]

    def _response(self, random: Random) -> str:
        if random.random() < 0.05:
            return ""
        kept = [saying for saying in self.sayings if random.random() < _SAID]
        said = [variant for saying in kept for variant in _variant(random)(random, saying)]
        said += [saying for facts in self._known for saying in _sayings(random, [facts], "objects")[:1]]
        random.shuffle(said)
        form = random.choice(RESPONSE_FORMS)
        if form == "prose":
            return _prose(random, said, asides=True)
        items = [_varied(random, one if isinstance(one, str) else one.item(random)) for one in said]
        if form == "numbers":
            return " ".join(f"{number}. {item}" for number, item in enumerate(items, start=1))
        return _lines(random, items)


def longrecall_worlds(count: int, judge: str = "closed", first: int = 0) -> list[LongRecallWorld]:
    """Return worlds with successive seeds. Four consecutive worlds have references in all forms."""
    return [LongRecallWorld(seed, judge) for seed in range(first, first + count)]


def _variant(random: Random) -> Variant:
    return VARIANTS[random.choice(list(VARIANTS))]


def _known(random: Random, subject: str) -> list[Fact]:
    """Return facts of one subject with different topics."""
    return [_leaf(random, topic, subject) for topic in random.sample(TOPICS, random.randint(2, 3))]


def _sayings(random: Random, known: Sequence[Sequence[Fact]], form: str) -> list[Saying]:
    """Return up to seven sayings of the facts: single, joined or more general. Only entries have an anchor."""
    sayings = []
    for _ in range(random.randint(1, 7)):
        facts = random.choice(known)
        kind = random.choice(("one", "one", "general", "joined", "joined", "entry" if form != "prose" else "one"))
        chosen = random.sample(facts, {"joined": 2, "entry": 0}.get(kind, 1))
        if kind == "general":
            chosen = [random.choice(chain(fact)) for fact in chosen]
        sayings.append(Saying(facts[0].subject, tuple(chosen), random.randrange(3)))
    return sayings


def _predicate(fact: Fact) -> str:
    """Return `lives in Lyon` for `Ada Mill lives in Lyon.`"""
    return fact.sentence()[len(fact.subject) : -1].strip()


def _references(random: Random, sayings: Sequence[Saying], form: str) -> str | list[Any]:
    if form == "objects":
        return [_object(random, number, saying) for number, saying in enumerate(sayings, start=1)]
    if form == "texts":
        return [
            _varied(random, saying.sentence() if random.random() < 0.6 else saying.item(random)) for saying in sayings
        ]
    if form == "list":
        return _lines(random, [_varied(random, saying.item(random)) for saying in sayings]) if sayings else []
    return _prose(random, sayings, asides=False) if sayings else []


def _object(random: Random, number: int, saying: Saying) -> dict[str, Any]:
    """Return a reference with an id. An entry is its anchor, and the anchor is the text if there is no evidence."""
    evidence = saying.evidence()
    anchored = not evidence or random.random() < 0.5
    anchor = saying.subject.title() if anchored and evidence else None
    text = (evidence or saying.subject.title()) if anchored else saying.sentence()
    return {"id": f"R{number}", "anchor": anchor, "text": text, "weight": float(random.randint(1, 5))}


def _lines(random: Random, items: Sequence[str]) -> str:
    """Return the items after bullets, numbers or letters of one kind, sometimes below an introduction."""
    bullet = random.choice(_BULLETS if len(items) <= _MOST_NUMBERED else _BULLETS[:3])
    lines = [_counted(bullet, number) + item for number, item in enumerate(items)]
    return "\n".join([*(["These are known:"] if random.random() < 0.5 else []), *lines])


def _counted(bullet: str, number: int) -> str:
    return bullet.replace("1", str(number + 1)).replace("a", chr(ord("a") + number))


def _prose(random: Random, sayings: Sequence[Saying | str], asides: bool) -> str:
    """Return sentences, in half of the texts by subject. A sentence about the same subject may begin with `It`."""
    if random.random() < 0.5:
        sayings = sorted(sayings, key=lambda one: "" if isinstance(one, str) else one.subject)
    written, named = [], ""
    for saying in sayings:
        if isinstance(saying, str):
            written.append(_varied(random, saying))
            named = ""
            continue
        sentence = saying.sentence()
        if saying.subject == named and sentence.startswith(named.title()) and random.random() < 0.5:
            written.append(f"It{sentence.removeprefix(named.title())}")
        else:
            written.append(_varied(random, sentence))
        named = saying.subject
        if asides and random.random() < 0.1:
            written.append(random.choice(_ASIDES).format(x="Some One"))
            named = ""
    return "".join(sentence + _gap(random, sentence) for sentence in written).strip()


def _varied(random: Random, text: str) -> str:
    """Return another form of the same text: case, white space, quotes, dashes, compatibility characters."""
    forms = [
        *[text] * 6,
        *(text.casefold(), text.replace(" ", "  ", 1), text.replace(" ", "\u00a0"), text.translate(_WIDE)),
        *(
            f"“{text}”" if text.endswith(".") else text,
            text.replace("–", "—"),
            text.replace("“", '"').replace("”", '"'),
        ),
    ]
    return random.choice(forms)
