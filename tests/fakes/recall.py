"""The language of the symbolic world as LongRecall's stages speak it: facts, what they state, and what entails what.

A fact's text states propositions, `Fact`s of `tests.fakes.facts`, each with all that is more general; in whatever form
it stands: a sentence in any of its orders, two facts of one subject joined by `and`, an entry of a list
(`Ada Mill (lives in Lyon)`, `**Ada Mill** – lives in Lyon`, `Ada Mill`), behind a bullet, in quotes, misspelt, or under
the subject's alias (`tests.fakes.names`). Whatever is said of somebody states that they are an entry, too; who is known
to somebody else (`Boris Lane knows Ada Mill`) is none by that. A namesake, `the swimmer Ada Mill`, is somebody else. A
text outside of this language states itself alone.

Candidates entail a reference if together they state all that it says, so that a joined reference may take two. The
judges `closed` and `steps` tell this truth; `noisy` tells something else of a fifth of what it is asked, by the texts
alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

from tests.fakes.claims import claims_of
from tests.fakes.facts import Fact, chain, read_fact, roll, split, unit_type
from tests.fakes.names import alias_of, is_known_name, plain

ENTRY, CIRCLE, UNKNOWN = "entry", "circle", "unknown"
_BULLET = re.compile(
    r"\A\s*(?:[-*+•‣◦▪·](?=\s)|\d{1,3}[.):](?=\s)|\(\d{1,3}\)(?=\s)|[a-z][.)](?=\s))\s*", re.IGNORECASE
)
_ENTRY = re.compile(r"\[?(?P<subject>\w+ \w+)\]?(?:: | - | \(|, | (?=- ))?(?P<evidence>.*?)\)?")
_ONE_OF = re.compile(r"(?P<subject>\w+ \w+) is one of them")
_KNOWS = re.compile(r"(?P<subject>\w+ \w+) knows (?P<other>\w+ \w+)")
_PRONOUN = re.compile(r"\s*[\"'“‘«]?it\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)")
_NUMBER = re.compile(r"(?<![\w.,])(\d{1,3})\.\s")
_ALL_BOLD = re.compile(r"\A\*\*([^*]+)\*\*\Z")
_NOISY = 5
_UNKNOWN = 999  # a number of no candidate


@lru_cache(maxsize=100_000)
def propositions(text: str) -> tuple[Fact, ...]:
    """What a text says, in its order and as it says it; one of the topic `unknown` for a text of no other."""
    return tuple(fact for unit in units(text) for fact in _read(_form(unit)))


def _read(said: str) -> list[Fact]:
    return _sentence(said) or _entry(said) or [Fact(UNKNOWN, UNKNOWN, "", said)]


def _sentence(said: str) -> list[Fact]:
    """The facts of a sentence or of two that are joined; none for any other text."""
    found = list(map(read_fact, split(said)))
    if known := _KNOWS.fullmatch(said):
        return [Fact(CIRCLE, CIRCLE, known["subject"], known["other"])]
    if one := _ONE_OF.fullmatch(said):
        return [Fact(ENTRY, ENTRY, one["subject"], "")]
    return [one[0] for one in found if one] if all(found) else []


def _entry(said: str) -> list[Fact]:
    """The facts of an entry of a list, the entry itself where there is no evidence."""
    found = _ENTRY.fullmatch(said)
    if found is None or not is_known_name(found["subject"]):
        return []
    evidence = found["evidence"].strip("- ")
    if not evidence:
        return [Fact(ENTRY, ENTRY, found["subject"], "")]
    return _sentence(f"{found['subject']} {evidence}") or _sentence(evidence)


def needed(reference: str) -> frozenset[Fact]:
    """What candidates have to state for a reference to be entailed."""
    return frozenset(propositions(reference))


@lru_cache(maxsize=100_000)
def stated(candidate: str) -> frozenset[Fact]:
    """All that a candidate states: what it says, what is more general, and who is an entry."""
    said = propositions(candidate)
    entries = {Fact(ENTRY, ENTRY, fact.subject, "") for fact in said if fact.topic != UNKNOWN}
    return frozenset(general for fact in said for general in chain(fact)) | entries


def entails(reference: str, candidates: Sequence[str], judge: str = "closed") -> bool:
    """Whether candidates together entail a reference; of one candidate it is what `match_one` is answered."""
    truth = needed(reference) <= frozenset().union(*map(stated, candidates))
    return truth != (judge == "noisy" and roll("entails", plain(reference), *map(plain, candidates)) % _NOISY == 0)


def minimal_subset(reference: str, candidates: Sequence[str], judge: str = "closed") -> list[int]:
    """The numbers of the fewest candidates that entail a reference, from 1; of as few the first ones.

    None if all together do not. It is what `match_many` is answered. Of a noisy judge it may be any one, or none.
    """
    numbers = roll("subset", plain(reference), *map(plain, candidates))
    if judge == "noisy" and numbers % _NOISY == 0:
        return [one] if (one := numbers // _NOISY % (len(candidates) + 1)) else []
    wanted = needed(reference)
    useful = [(number, stated(text) & wanted) for number, text in enumerate(candidates, start=1)]
    useful = [(number, facts) for number, facts in useful if facts]
    for size in range(1, len(wanted) + 1):
        for some in combinations(useful, size):
            if wanted == frozenset().union(*(facts for _, facts in some)):
                return [number for number, _ in some]
    return []


def map_all(references: Sequence[str], candidates: Sequence[str], judge: str = "closed") -> list[list[int]]:
    """For each reference its `minimal_subset` of all candidates, which is what `match_holistic` is answered."""
    return [minimal_subset(reference, candidates, judge) for reference in references]


def resolve_all(text: str, facts: Sequence[str]) -> list[str]:
    """The facts, a leading `It` replaced by the subject that the text names last before it.

    Facts come in the order of the text, so that of equal sentences each fact is the next one. One that the text does
    not have, and one before which it names nobody, stays as it is, but for bold type around all of it.
    """
    said = list(units(text))
    forms, resolved, place = list(map(_form, said)), [], 0
    for fact in facts:
        form = _form(fact)
        found = next((number for number in range(place, len(forms)) if forms[number] == form), None)
        place = place if found is None else found + 1
        resolved.append(_ALL_BOLD.sub(r"\1", _resolve(fact, said[:found] if found is not None else [])))
    return resolved


def _form(text: str) -> str:
    return plain(_BULLET.sub("", text, count=1))


def _resolve(fact: str, before: Sequence[str]) -> str:
    pronoun = _PRONOUN.match(fact)
    if pronoun is None:
        return fact
    named = next((name for text in reversed(before) if (name := _name_in(text))), None)
    return fact if named is None else fact[: pronoun.end() - 2] + named + fact[pronoun.end() :]


def _name_in(text: str) -> str | None:
    """The subject of a text as a text writes it, by its alias where the text has that; None where it has no subject."""
    subject = next((fact.subject for fact in propositions(text) if fact.subject), None)
    return None if subject is None else _written(subject, text)


def _written(subject: str, text: str) -> str:
    words = subject.replace("_", " ").split()
    alias = alias_of(" ".join(words[-2:]))
    # The first word of an alias stands for no other
    name = alias if alias.split()[0] in text.casefold() else " ".join(words[-2:])
    return " ".join(["the", words[0], name] if len(words) > 2 else [name]).title()


def units(text: str) -> Iterator[str]:
    """The items and sentences of a text in order: a line is one, what it numbers `1. `, `2. `, `3. ` several."""
    for line in text.splitlines():
        numbers = [int(found[1]) for found in _NUMBER.finditer(line)]
        parts = _NUMBER.split(line)[::2] if numbers[:3] == [1, 2, 3] else [line]
        for part in parts:
            yield from (unit for unit in _SENTENCE_END.split(part) if unit.strip())


def is_extended(text: str) -> bool:
    """Whether a text has a fact in a form that the language of the other metrics does not have."""
    plainly = (unit for unit in units(text) if not _PRONOUN.match(unit))
    return any(unit_type(unit) == "Other" and _read(_form(unit))[0].topic != UNKNOWN for unit in plainly)


def extracted(text: str) -> list[str]:
    """What `extract_claims` is answered of a text: a sentence a fact, misspellings mended, an entry as its evidence.

    A text without forms of this language alone is answered as `tests.fakes.claims` has it.
    """
    if not is_extended(text):
        return claims_of(text)
    said = list(units(text))
    return [sentence for place, unit in enumerate(said) for sentence in _sentences(_resolve(unit, said[:place]))]


def _sentences(unit: str) -> Iterator[str]:
    """The sentences of a unit's facts, under the names that it has for them."""
    for fact in propositions(unit):
        if fact.topic == UNKNOWN:
            continue
        name = _written(fact.subject, unit)
        if fact.topic == ENTRY:
            yield f"{name} is one of them."
        elif fact.topic == CIRCLE:
            yield f"{name} knows {_written(fact.value, '')}."
        else:
            yield Fact(fact.topic, fact.level, name.casefold(), fact.value).sentence(0)


def say_longrecall(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Any]] | None:
    """The completion for a prompt of LongRecall's stages, and for `extract_claims` of its language; None for others."""
    said = _say(payload, judge)
    return None if said is None else (said, {})


def _say(payload: Mapping[str, Any], judge: str) -> str | None:
    stage = payload.get("stage")
    if stage == "extract_claims" and is_extended(payload["text"]):
        return "\n".join(f"* {claim}" for claim in extracted(payload["text"])) or "None"
    if stage == "resolve_coreference":
        return _say_facts(resolve_all(payload["text"], payload["facts"]), roll(payload["text"]))
    if stage == "match_one":
        matched = entails(payload["reference"], [payload["candidate"]], judge)
        return _say_match(matched, roll(payload["reference"], payload["candidate"]))
    if stage == "match_many":
        numbers = minimal_subset(payload["reference"], payload["candidates"], judge)
        return _say_subset(numbers, len(payload["candidates"]), roll(payload["reference"], *payload["candidates"]))
    if stage == "match_holistic":
        return _say_map(map_all(payload["references"], payload["candidates"], judge), roll(payload["query"]))
    return None


def _say_facts(facts: Sequence[str], form: int) -> str:
    """A list with bullets or numbers; where a fact begins like an item itself, JSON."""
    if not all(fact[:1].isalpha() and not _BULLET.match(fact) for fact in facts):
        return json.dumps({"facts": list(facts)}, ensure_ascii=False)
    forms = (
        "\n".join(f"* {fact}" for fact in facts),
        "Here are the facts:\n\n" + "\n".join(f"{number}. {fact}" for number, fact in enumerate(facts, start=1)),
        "\r\n".join(f"- {fact}" for fact in facts),
        json.dumps([{"id": number, "fact": fact} for number, fact in enumerate(facts, start=1)], ensure_ascii=False),
    )
    return forms[form % len(forms)]


def _say_match(matched: bool, form: int) -> str:
    label = "Match" if matched else "No Match"
    forms = (
        *(label, label.upper(), f"**{label}**", f"Answer: {label}", json.dumps({"match": matched})),
        *(f"{label}. That is what comes of the candidate.", f"Subjects, places and years were compared.\n\n{label}"),
    )
    return forms[form % len(forms)]


def _say_subset(numbers: Sequence[int], candidates: int, form: int) -> str:
    """A list, fenced, in an object, behind lists that are no answer, or with a number that means nothing."""
    listed = json.dumps(list(numbers))
    more = json.dumps([*reversed(numbers), candidates + 1]) if numbers else "None"
    forms = (
        *(listed, f"```json\n{listed}\n```", f"Answer: {listed}", json.dumps({"candidates": list(numbers)}), more),
        f"Candidates considered: {list(range(1, candidates + 1))}\n\n{listed}",
    )
    return forms[form % len(forms)]


def _say_map(mapped: Sequence[Sequence[int]], form: int) -> str:
    """Objects a line, some references in two of them, one with a number of no reference; without any `None` or `[]`."""
    lines = []
    for number, candidates in enumerate(mapped, start=1):
        parts = [candidates[:1], [*candidates[1:], _UNKNOWN]] if (form + number) % 4 == 0 else [candidates]
        lines += [json.dumps({"reference": number, "candidates": list(part)}) for part in parts if candidates]
    if not lines:
        return ("None", "[]")[form % 2]
    unknown = json.dumps({"reference": len(mapped) + 1, "candidates": [1]})
    return "\n".join([*lines, unknown] if form % 3 == 0 else lines)
