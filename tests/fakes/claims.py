"""The language of the symbolic world for ICAT's stages: claims, aspects, and the coverage of aspects.

An aspect asks for one level of one topic of one subject, `the year of the founding of Ada Mill`. A claim covers it if
it states or implies this level. The forms of the completions vary with the request, as with models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.fakes.facts import LEVELS, chain, extract, normalise, read_fact, read_query, revise, roll

_ASPECT = re.compile(r"the (?P<level>\w+) of the (?P<topic>\w+) of (?P<subject>\w+ \w+)")
STATING = ("Fact", "Claim")


def claims_of(text: str) -> list[str]:
    """Return the facts and tastes of a text, with a leading `It` resolved, conjunctions split, and duplicates kept."""
    return revise(text, [unit for unit, kind in extract(text) if kind in STATING])


def verifiable_claims(sentence: str, before: str, after: str) -> list[str]:
    """Return the facts that a sentence states, without tastes, as `claims_of` of its window has them."""
    return revise(" ".join([before, sentence, after]), [unit for unit, kind in extract(sentence) if kind == "Fact"])


def aspect_of(topic: str, level: str, subject: str) -> str:
    """Return the text of an aspect."""
    return f"the {level} of the {topic} of {subject.title()}"


def aspects_of(query: str) -> list[str]:
    """Return the aspects of a query, the requested topics first, some twice. A tenth of queries has none."""
    asked = read_query(query)
    if asked is None or roll(query, "none") % 10 == 0:
        return []
    topics, subject = asked
    # Half of the other topics are used. With the duplicates there are sometimes more than ten
    named = [key for key in LEVELS if key[0] in topics or roll(query, *key) % 2]
    texts = [aspect_of(*key, subject) for key in sorted(named, key=lambda key: key[0] not in topics)]
    return [form for text in texts for form in ([text, f"{text.upper()}."] if roll(query, text) % 5 == 0 else [text])]


def covers(claim: str, aspect: str) -> bool:
    """Return True if a claim states or implies the content of an aspect."""
    said, asked = read_fact(claim), _ASPECT.fullmatch(normalise(aspect))
    if said is None or asked is None or said[0].subject != asked["subject"]:
        return False
    return any((fact.topic, fact.level) == (asked["topic"], asked["level"]) for fact in chain(said[0]))


def align(aspects: Sequence[str], claims: Sequence[str]) -> list[list[int]]:
    """Return for each aspect the numbers of the claims that cover it, from 1."""
    return [[number for number, claim in enumerate(claims, start=1) if covers(claim, aspect)] for aspect in aspects]


def say_icat(payload: Mapping[str, Any]) -> tuple[str, dict[int, Any]] | None:
    """Return the completion for a prompt of one of ICAT's own stages, or None for another stage."""
    stage = payload.get("stage")
    if stage == "extract_claims":
        return _say_claims(claims_of(payload["text"]), roll(payload["text"])), {}
    if stage == "extract_verifiable_claims":
        claims = verifiable_claims(payload["sentence"], payload["before"], payload["after"])
        return _say_claims(claims, roll(payload["sentence"])), {}
    if stage == "generate_aspects":
        return _say_aspects(aspects_of(payload["query"]), roll(payload["query"])), {}
    if stage == "align_claims":
        return _say_alignment(payload["aspects"], payload["claims"]), {}
    return None


def _say_claims(claims: Sequence[str], form: int) -> str:
    """Write one claim per line, without bullets if no line could continue the line above."""
    plain = all(claim.endswith(".") and claim[0].isupper() for claim in claims)
    forms = [
        "\n".join(claims if plain else [f"- {claim}" for claim in claims]),
        "Claims of the text:\n\n" + _lines(f"* {claim}" for claim in claims),
        "\r\n".join(f"{number}. {claim}" for number, claim in enumerate(claims, start=1)),
        f"```json\n{json.dumps(list(claims), ensure_ascii=False)}\n```",
    ]
    return forms[form % len(forms)] if claims else ("None", "[]", "none.")[form % 3]


def _say_aspects(aspects: Sequence[str], form: int) -> str:
    objects = [json.dumps({"topic": aspect}) for aspect in aspects]
    forms = ["\n".join(objects), "Topics:\n" + _lines(f"- {each}" for each in objects), f"[{', '.join(objects)}]"]
    return forms[form % len(forms)] if aspects else ("None", "[]")[form % 2]


def _say_alignment(aspects: Sequence[str], claims: Sequence[str]) -> str:
    """Write objects with unknown numbers, with evidence of one aspect in two objects, and without evidence."""
    objects = []
    for number, evidence in enumerate(align(aspects, claims), start=1):
        form = roll(aspects[number - 1], *claims) % 4
        if evidence and form == 0:
            unknown = [len(claims) + 1, len(claims) + 7]
            objects += [_aligned(number, evidence[:1]), _aligned(number, [*evidence[1:], *unknown])]
        elif evidence or form == 1:
            objects.append(_aligned(number, evidence))
        elif form == 2:
            objects.append(_aligned(number, [len(claims) + 7]))
    if not objects:
        return ("None", "[]")[roll(*claims) % 2]
    return "\n".join([*objects, _aligned(len(aspects) + 1, [1])] if roll(*aspects) % 3 == 0 else objects)


def _aligned(topic: int, evidence: Sequence[int]) -> str:
    return json.dumps({"topic_id": topic, "evidence": list(evidence)})


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
