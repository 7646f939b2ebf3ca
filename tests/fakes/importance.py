"""The language of the symbolic world for importance-aware precision and recall: facts, ratings, verdicts.

A fact may join two facts, `Ada Mill was founded in 1912 and lives in Lyon.`, so that only two claims together state it.
It may also have another word order, `Was founded in 1912 Ada Mill.` The same applies to texts, claims and evidence. The
forms of the completions vary with the request, as with models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.fakes.claims import STATING, claims_of
from tests.fakes.facts import FOREIGN, NEEDED, Odds, extract, normalise, rate, read_fact, relate, resolve, roll, split

SUPPORTED, CONTRADICTED, NOT_SUPPORTED = VERDICTS = ("supported", "contradicted", "not_supported")
# In the last two, the digit and the expected score are on different sides of a threshold
SALIENCES: Sequence[Odds] = (
    {"5": 0.8, "4": 0.15, "n": 0.05},
    {"3": 0.7, "4": 0.2, "n": 0.1},
    {"1": 0.9, "2": 0.05, "n": 0.05},
    {"2": 0.45, "5": 0.35, "4": 0.15, "n": 0.05},
    {"4": 0.45, "1": 0.4, "2": 0.1, "n": 0.05},
)
_IN_TWO, _TURNED = 2, 5  # of so many facts that could be, one is joined, or has its words in another order


def facts_of(text: str) -> list[str]:
    """Return the facts and tastes of a text, with a leading `It` resolved and duplicates kept.

    Half of the conjunctions are not split. A fifth of the facts have another word order in this text, so they are
    near-duplicates of facts in other texts.
    """
    units = [resolve(text, unit) for unit, kind in extract(text) if kind in STATING]
    parts = [part for unit in units for part in ([unit] if roll(unit) % _IN_TWO else split(unit))]
    return [turned(part) if roll(text, part) % _TURNED == 0 else part for part in parts]


def turned(fact: str) -> str:
    """Return a fact with its first two words at the end. If this would change its meaning, return it unchanged.

    >>> turned("Ada Mill lives in Lyon.")
    'Lives in Lyon Ada Mill.'
    """
    words = fact.removesuffix(".").split()
    again = " ".join([*words[2:], *words[:2]])
    if len(words) < 4 or len(split(fact)) > 1 or read_fact(again) or _turned_back(again) != " ".join(words):
        return fact
    return f"{again[0].upper()}{again[1:]}."


def parts_of(fact: str) -> list[str]:
    """Return the parts of a fact or claim, each with one subject and one value, in normal word order."""
    return split(fact if read_fact(fact) else _turned_back(fact) or fact)


def _turned_back(fact: str) -> str | None:
    words = fact.strip().removesuffix(".").split()
    back = " ".join([*words[-2:], *words[:-2]])
    return back if read_fact(back) else None


def importance(query: str, facts: Sequence[str]) -> list[tuple[Odds, Odds]]:
    """Return the token odds of each fact's relevance and salience. The token of the completion is first.

    Relevance is computed by `tests.fakes.facts.rate`. The relevance of a joined fact is the maximum of its parts. If
    the result is `related`, and for salience, the odds depend on query, fact and the length of the list.
    """
    return [(_relevance(query, fact, len(facts)), _salience(query, fact, len(facts))) for fact in facts]


def _relevance(query: str, fact: str, length: int) -> Odds:
    parts = parts_of(fact)
    rated = rate(query, parts)
    if NEEDED in rated or all(odds == FOREIGN for odds in rated):
        return NEEDED if NEEDED in rated else FOREIGN
    related = next(part for part, odds in zip(parts, rated, strict=True) if odds != FOREIGN)
    return rate(query, [related] * length)[0]


def _salience(query: str, fact: str, length: int) -> Odds:
    return SALIENCES[roll(normalise(query), normalise(fact), str(length)) % len(SALIENCES)]


def verify(claim: str, evidence: Sequence[str], judge: str = "closed") -> str:
    """Return the verdict on a claim: supported if the evidence entails all its parts, one sentence per part.

    Otherwise it is contradicted if the evidence contradicts a part that it does not entail, else not supported.
    """
    stated = [sentence for text in evidence for sentence in claims_of(text)]
    relations = [{relate(sentence, part, judge) for sentence in stated} for part in parts_of(claim)]
    if all("entailment" in found for found in relations):
        return SUPPORTED
    against = any("contradiction" in found and "entailment" not in found for found in relations)
    return CONTRADICTED if against else NOT_SUPPORTED


def covering(fact: str, claims: Sequence[str], judge: str = "closed") -> list[int]:
    """Return the numbers of the claims that state the parts of the fact, or none if a part is missing."""
    by_part = [
        [number for number, claim in enumerate(claims, start=1) if _says(claim, part, judge)] for part in parts_of(fact)
    ]
    return sorted({number for numbers in by_part for number in numbers}) if all(by_part) else []


def _says(claim: str, part: str, judge: str) -> bool:
    return any(relate(said, part, judge) == "entailment" for said in parts_of(claim))


def say_importance(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]] | None:
    """Return the completion of a stage of importance, with the odds at its positions, or None for another stage."""
    stage = payload.get("stage")
    if stage == "extract_facts":
        return _say_facts(facts_of(payload["text"]), roll(payload["text"])), {}
    if stage == "rate_importance":
        return _say_ratings(payload["facts"], importance(payload["query"], payload["facts"]), roll(payload["query"]))
    if stage == "verify_claim":
        return _say_verdict(verify(payload["claim"], payload["evidence"], judge), roll(payload["claim"])), {}
    if stage == "check_coverage":
        numbers = covering(payload["fact"], payload["claims"], judge)
        return _say_covering(numbers, len(payload["claims"]), roll(payload["fact"], *payload["claims"])), {}
    return None


def _say_facts(facts: Sequence[str], form: int) -> str:
    forms = [
        "\n".join(f"- {fact}" for fact in facts),
        "Facts of the text:\n\n" + "\n".join(f"* {fact}" for fact in facts),
        "\r\n".join(f"{number}. {fact}" for number, fact in enumerate(facts, start=1)),
        json.dumps({"facts": [{"fact": fact} for fact in facts]}, ensure_ascii=False),
    ]
    return forms[form % len(forms)] if facts else ("None", "[]", "- none.")[form % 3]


def _say_ratings(facts: Sequence[str], rated: Sequence[tuple[Odds, Odds]], form: int) -> tuple[str, dict[int, Odds]]:
    """Write a list (bare, fenced or wrapped, with one object per line) or a mapping. Ids are numbers or texts."""
    keys = [json.dumps(number if form % 2 else str(number)) for number in range(1, len(facts) + 1)]
    objects = [[f'{{"id": {key}, ', *_scales(odds), "}"] for key, odds in zip(keys, rated, strict=True)]
    if form % 5 == 0:
        texts = (f'"{number}": {{' for number in range(1, len(facts) + 1))
        named = [[text, *_scales(odds), "}"] for text, odds in zip(texts, rated, strict=True)]
        return _assemble(["{", *_joined(named, ",\n"), "}"])
    if form % 5 == 1:
        unknown = [f'{{"id": {len(facts) + 1}, ', *_scales((FOREIGN, FOREIGN)), "}"]
        return _assemble(["From 1 to 5:\n\n", *_joined([*objects, unknown], "\n"), "\n\nNote: 4 and 5 matter most."])
    if form % 5 == 2:
        return _assemble(['```json\n{"ratings": [', *_joined(objects, ", "), "]}\n```"])
    if form % 5 == 3:
        objects = [[*each[:-1], f', "fact": {json.dumps(fact)}}}'] for each, fact in zip(objects, facts, strict=True)]
    return _assemble(["[\n", *_joined(objects, ",\n"), "\n]"])


def _scales(odds: tuple[Odds, Odds]) -> list[str | Odds]:
    return ['"relevance": ', odds[0], ', "salience": ', odds[1]]


def _joined(groups: Iterable[Sequence[str | Odds]], separator: str) -> list[str | Odds]:
    found = [piece for group in groups for piece in (separator, *group)]
    return found[1:]


def _assemble(pieces: Iterable[str | Odds]) -> tuple[str, dict[int, Odds]]:
    """Join the pieces to a text, and return the odds by position. The first token of the odds is in the text."""
    text, places = "", {}
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
        else:
            places[len(text)] = piece
            text += next(iter(piece))
    return text, places


def _say_verdict(verdict: str, form: int) -> str:
    """Write the label in any case and spelling, plain, in bold, after a word, in JSON, or with its reason."""
    words = verdict.replace("_", " ")
    reason = "The pieces of evidence were read one by one."
    forms = (
        *(verdict, verdict.upper(), f"**{words.capitalize()}**", f"Label: {words}", words.replace(" ", "-")),
        *(json.dumps({"label": verdict.upper(), "reason": reason}), f"{reason}\n\nClassification: {words}"),
    )
    return forms[form % len(forms)]


def _say_covering(numbers: Sequence[int], claims: int, form: int) -> str:
    """Write an object, fenced, twice or with unknown numbers. An uncovered fact may have evidence too."""
    label = "COVERED" if numbers else "NOT_COVERED"
    whole = json.dumps({"label": label, "evidence_claim_ids": list(numbers)})
    loose = {
        "evidence_claim_ids": [*map(str, numbers), f"claim {claims + 3}"],
        "label": label.replace("_", " ").lower(),
    }
    forms = (
        *(whole, f"```json\n{whole}\n```", f"{whole}\n{whole}", f"Answer: {json.dumps(loose)}"),
        json.dumps({"label": label, "evidence_claim_ids": [claims + 1, *reversed(numbers)]}),
    )
    return forms[form % len(forms)]
