"""The language of the symbolic world for LongRecall's stages: facts, their propositions, and entailment.

A fact's text states propositions, `Fact`s of `tests.fakes.facts`, each with all its generalisations. A fact may have
any form: a sentence in any word order, two facts of one subject joined by `and`, an entry of a list (`Ada Mill (lives
in Lyon)`, `**Ada Mill** – lives in Lyon`, `Ada Mill`), after a bullet, in quotes, misspelt, or with the alias of the
subject (`tests.fakes.names`). Every fact about a person also states that the person is an entry. A person in the object
of a fact (`Boris Lane knows Ada Mill`) is not an entry. A namesake, `the swimmer Ada Mill`, is another person. A text
outside of this language states only itself.

Candidates entail a reference if together they state its whole content, so a joined reference may need two. The judges
`closed` and `steps` report this truth. `noisy` reports another result for a fifth of the requests, determined by the
texts.
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
_UNKNOWN = 999  # not the number of a candidate


@lru_cache(maxsize=100_000)
def propositions(text: str) -> tuple[Fact, ...]:
    """Return the propositions of a text in its order. Other texts have one proposition with the topic `unknown`."""
    return tuple(fact for unit in units(text) for fact in _read(_form(unit)))


def _read(said: str) -> list[Fact]:
    return _sentence(said) or _entry(said) or [Fact(UNKNOWN, UNKNOWN, "", said)]


def _sentence(said: str) -> list[Fact]:
    """Return the facts of a sentence or of two joined sentences, none for any other text."""
    found = list(map(read_fact, split(said)))
    if known := _KNOWS.fullmatch(said):
        return [Fact(CIRCLE, CIRCLE, known["subject"], known["other"])]
    if one := _ONE_OF.fullmatch(said):
        return [Fact(ENTRY, ENTRY, one["subject"], "")]
    return [one[0] for one in found if one] if all(found) else []


def _entry(said: str) -> list[Fact]:
    """Return the facts of an entry of a list, or the entry itself if there is no evidence."""
    found = _ENTRY.fullmatch(said)
    if found is None or not is_known_name(found["subject"]):
        return []
    evidence = found["evidence"].strip("- ")
    if not evidence:
        return [Fact(ENTRY, ENTRY, found["subject"], "")]
    return _sentence(f"{found['subject']} {evidence}") or _sentence(evidence)


def needed(reference: str) -> frozenset[Fact]:
    """Return the propositions that candidates must state to entail a reference."""
    return frozenset(propositions(reference))


@lru_cache(maxsize=100_000)
def stated(candidate: str) -> frozenset[Fact]:
    """Return all propositions of a candidate: its facts, their generalisations, and its entries."""
    said = propositions(candidate)
    entries = {Fact(ENTRY, ENTRY, fact.subject, "") for fact in said if fact.topic != UNKNOWN}
    return frozenset(general for fact in said for general in chain(fact)) | entries


def entails(reference: str, candidates: Sequence[str], judge: str = "closed") -> bool:
    """Return True if candidates together entail a reference. For one candidate it is the result of `match_one`."""
    truth = needed(reference) <= frozenset().union(*map(stated, candidates))
    return truth != (judge == "noisy" and roll("entails", plain(reference), *map(plain, candidates)) % _NOISY == 0)


def minimal_subset(reference: str, candidates: Sequence[str], judge: str = "closed") -> list[int]:
    """Return the numbers (from 1) of the smallest set of candidates that entails a reference, the first on a tie.

    It is empty if all candidates together do not entail it. It is the result of `match_many`. A noisy judge may return
    any single number, or none.
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
    """Return the `minimal_subset` of all candidates for each reference, which is the result of `match_holistic`."""
    return [minimal_subset(reference, candidates, judge) for reference in references]


def resolve_all(text: str, facts: Sequence[str]) -> list[str]:
    """Return the facts, with a leading `It` replaced by the last subject in the text before the fact.

    Facts are in the order of the text, so each of several equal sentences is the next fact. A fact that is not in the
    text, or has no subject before it, is unchanged, except for bold type around the whole fact.
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
    """Return the subject of a text in its form, which may be the alias, or None without a subject."""
    subject = next((fact.subject for fact in propositions(text) if fact.subject), None)
    return None if subject is None else _written(subject, text)


def _written(subject: str, text: str) -> str:
    words = subject.replace("_", " ").split()
    alias = alias_of(" ".join(words[-2:]))
    # The first word of an alias identifies it
    name = alias if alias.split()[0] in text.casefold() else " ".join(words[-2:])
    return " ".join(["the", words[0], name] if len(words) > 2 else [name]).title()


def units(text: str) -> Iterator[str]:
    """Yield the items and sentences of a text in order. A line is one unit, or several if it numbers them."""
    for line in text.splitlines():
        numbers = [int(found[1]) for found in _NUMBER.finditer(line)]
        parts = _NUMBER.split(line)[::2] if numbers[:3] == [1, 2, 3] else [line]
        for part in parts:
            yield from (unit for unit in _SENTENCE_END.split(part) if unit.strip())


def is_extended(text: str) -> bool:
    """Return True if a text has a fact in a form that only this language has."""
    plainly = (unit for unit in units(text) if not _PRONOUN.match(unit))
    return any(unit_type(unit) == "Other" and _read(_form(unit))[0].topic != UNKNOWN for unit in plainly)


def extracted(text: str) -> list[str]:
    """Return the result of `extract_claims` for a text: a sentence per fact, with misspellings fixed.

    An entry becomes its evidence. A text without forms of this language is handled as in `tests.fakes.claims`.
    """
    if not is_extended(text):
        return claims_of(text)
    said = list(units(text))
    return [sentence for place, unit in enumerate(said) for sentence in _sentences(_resolve(unit, said[:place]))]


def _sentences(unit: str) -> Iterator[str]:
    """Yield the sentences of a unit's facts, with the names in the unit."""
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
    """Return the completion of LongRecall's stages, and of `extract_claims` for its language, or None."""
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
    """Write a list with bullets or numbers, or JSON if a fact begins like an item."""
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
    """Write a list, fenced, in an object, after lists that are not the answer, or with an unknown number."""
    listed = json.dumps(list(numbers))
    more = json.dumps([*reversed(numbers), candidates + 1]) if numbers else "None"
    forms = (
        *(listed, f"```json\n{listed}\n```", f"Answer: {listed}", json.dumps({"candidates": list(numbers)}), more),
        f"Candidates considered: {list(range(1, candidates + 1))}\n\n{listed}",
    )
    return forms[form % len(forms)]


def _say_map(mapped: Sequence[Sequence[int]], form: int) -> str:
    """Write one object per line, some references twice, one with an unknown number, without `None` and `[]`."""
    lines = []
    for number, candidates in enumerate(mapped, start=1):
        parts = [candidates[:1], [*candidates[1:], _UNKNOWN]] if (form + number) % 4 == 0 else [candidates]
        lines += [json.dumps({"reference": number, "candidates": list(part)}) for part in parts if candidates]
    if not lines:
        return ("None", "[]")[form % 2]
    unknown = json.dumps({"reference": len(mapped) + 1, "candidates": [1]})
    return "\n".join([*lines, unknown] if form % 3 == 0 else lines)
