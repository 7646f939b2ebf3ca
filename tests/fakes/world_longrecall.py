"""Worlds for LongRecall: references as lists and as prose, and responses that say some of them in other words.

A world has a few subjects with facts of their own (`tests.fakes.world`). Its references say these, some two facts at
once, some in general terms, some as entries of a list with or without evidence. Of most a response says something in
other forms (`VARIANTS`): by the same sentence or another one, in two facts for one, under an alias, with a misspelling,
in other quotes and dashes; or something that is near and does not entail it: in more general terms, of a namesake, with
another value, or with the name in the background alone.

`tests.fakes.recall` is the truth over all of this, from the texts alone: the model server, asked with
`LongRecallWorld.answer`, tells `entails` and `minimal_subset` of any facts, `map_all` of all at once, `resolve_all` of
pronouns, and `extracted` of texts that a model cuts. Its vectors (`tests.fakes.lookups.vector_of`) of aliases are near.
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
_SAID = 0.7  # of the references a response says something of
_BULLETS = ("- ", "* ", "• ", "1. ", "(1) ", "a) ")
_MOST_NUMBERED = 26  # letters are as many


@dataclass(frozen=True)
class Saying:
    """What a reference or a response says of somebody: up to two facts, or none, which makes it a mere entry.

    `subject` is a name as `str.title` writes it, case folded: an alias or a namesake, too.
    """

    subject: str
    facts: tuple[Fact, ...] = ()
    form: int = 0

    def sentence(self) -> str:
        """It as a sentence; an entry is `one of them`."""
        if not self.facts:
            return f"{self.subject.title()} is one of them."
        first, *others = (replace(fact, subject=self.subject) for fact in self.facts)
        if not others:
            return first.sentence(self.form % first.forms)
        return " and ".join([first.sentence()[:-1], *map(_predicate, others)]) + "."

    def item(self, random: Random) -> str:
        """It as an entry of a list: the anchor, then its evidence."""
        name, evidence = self.subject.title(), self.evidence()
        if not evidence:
            return random.choice((name, f"**{name}**", f"“{name}”"))
        forms = (
            *(f"{name}: {evidence}", f"**{name}**: {evidence}", f"{name} – {evidence}", f"{name} ({evidence})"),
            *(f"[{name}] {evidence}", f"{name} — {evidence}."),
        )
        return random.choice(forms)

    def evidence(self) -> str:
        """What its sentence says of the subject, without that; "" for an entry."""
        return " and ".join(_predicate(replace(fact, subject=self.subject)) for fact in self.facts)


Variant = Callable[[Random, Saying], list[Saying | str]]


def _same(random: Random, saying: Saying) -> list[Saying | str]:
    return [saying]


def _reordered(random: Random, saying: Saying) -> list[Saying | str]:
    return [replace(saying, form=random.randrange(3))]


def _more_general(random: Random, saying: Saying) -> list[Saying | str]:
    """Each fact no more exact than it is: an entailed sentence that does not entail."""
    return [replace(saying, facts=tuple(random.choice(chain(fact)) for fact in saying.facts))]


def _apart(random: Random, saying: Saying) -> list[Saying | str]:
    """A saying for each fact, one of them under the alias at times: together they entail what was joined."""
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
    """One query, references in one of `REFERENCE_FORMS`, and any number of responses, all of the seed alone.

    `judge` is one of `tests.fakes.facts.JUDGES`: the server has to answer with `answer`. `references` are as samples
    have them: `texts` and `objects` ({id, anchor, text, weight}, anchors of entries alone) are lists, `list` is a text
    with items by lines, `prose` a text of sentences, some of which begin with `It`. A twentieth has none.
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
        """A sample for each response: sample_id, query, response, references, system; the first ones stay the same.

        Responses are lists by lines (`list`), in one line by numbers (`numbers`), or `prose`; a twentieth is empty.
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
    """Worlds of successive seeds; each four of them have references in all forms."""
    return [LongRecallWorld(seed, judge) for seed in range(first, first + count)]


def _variant(random: Random) -> Variant:
    return VARIANTS[random.choice(list(VARIANTS))]


def _known(random: Random, subject: str) -> list[Fact]:
    """Facts of one subject, of different topics."""
    return [_leaf(random, topic, subject) for topic in random.sample(TOPICS, random.randint(2, 3))]


def _sayings(random: Random, known: Sequence[Sequence[Fact]], form: str) -> list[Saying]:
    """Up to seven sayings of the facts, single, joined or more general; entries alone where references have anchors."""
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
    """`lives in Lyon` of `Ada Mill lives in Lyon.`"""
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
    """A reference with an id of its own; an entry is its anchor, which is the text where there is no evidence."""
    evidence = saying.evidence()
    anchored = not evidence or random.random() < 0.5
    anchor = saying.subject.title() if anchored and evidence else None
    text = (evidence or saying.subject.title()) if anchored else saying.sentence()
    return {"id": f"R{number}", "anchor": anchor, "text": text, "weight": float(random.randint(1, 5))}


def _lines(random: Random, items: Sequence[str]) -> str:
    """The items behind bullets, numbers or letters of one kind, sometimes below a line that introduces them."""
    bullet = random.choice(_BULLETS if len(items) <= _MOST_NUMBERED else _BULLETS[:3])
    lines = [_counted(bullet, number) + item for number, item in enumerate(items)]
    return "\n".join([*(["These are known:"] if random.random() < 0.5 else []), *lines])


def _counted(bullet: str, number: int) -> str:
    return bullet.replace("1", str(number + 1)).replace("a", chr(ord("a") + number))


def _prose(random: Random, sayings: Sequence[Saying | str], asides: bool) -> str:
    """Sentences, in half of the texts by subject; one that goes on about the same may begin with `It`."""
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
    """One text, several forms: case, white space, quotes, dashes, compatibility characters."""
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
