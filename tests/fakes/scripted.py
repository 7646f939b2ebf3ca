"""A judge with a script: topics written by hand, the facts of their contexts, and the facts of answers.

A line of `scripted.jsonl` is a topic. Its facts have the words of the contexts (`text`) and of answers (`said`).
`contexts` and `says` list facts by number and other sentences as texts. Facts of one question contradict each other if
`contradictory` lists them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

# A rating, and the odds of its tokens
HIGH, LOW = {"5": 0.85, "4": 0.15}, {"2": 0.9, "1": 0.1}
# One of this number of statements in a response is overlooked, by the hasty judge of e2e, and by nli and qa, as with
# models
OVERLOOKED, UNSEEN = 4, 7


@dataclass(frozen=True)
class Topic:
    """A query, its contexts, the responses of systems, and the facts in all of them."""

    query: str
    contexts: Mapping[str, Sequence[int | str]]
    says: Mapping[str, Sequence[int | str]]
    contradictory: Sequence[Sequence[int]]
    facts: Sequence[Mapping[str, str]]

    def context_rows(self) -> list[dict[str, str]]:
        """Return the contexts in the format of samples."""
        return [{"id": name, "text": self._written(parts, "text")} for name, parts in self.contexts.items()]

    def answer(self, parts: Sequence[int | str]) -> str:
        """Return a response with these facts and sentences."""
        return self._written(parts, "said")

    def stated(self, text: str) -> list[int]:
        """Return the facts of a text, in its words or in the words of answers."""
        return [place for place, fact in enumerate(self.facts) if any(word and word in text for word in _words(fact))]

    def _written(self, parts: Sequence[int | str], words: str) -> str:
        return " ".join(self.facts[part][words] if isinstance(part, int) else part.strip() for part in parts)


@cache
def topics() -> tuple[Topic, ...]:
    """Return all topics of the script."""
    lines = Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Topic(**json.loads(line)) for line in lines)


def say_scripted(payload: Mapping[str, Any], *, hasty: bool = False) -> tuple[str, dict[int, dict[str, float]]] | None:
    """Return the completion of e2e, nli or qa, and the odds of its ratings, or None for another stage.

    `hasty`: the judge overlooks a part of the covered statements.
    """
    match payload.get("stage"):
        case "evaluate_coverage":
            return _coverage(payload, hasty), {}
        case "extract_atoms":
            return "\n".join(f"- {atom}: Fact" for atom in _atoms(payload["text"])) or "None", {}
        case "revise_atoms":
            return "\n".join(f"* {atom}" for atom in payload["statements"]) or "None", {}
        case "rate_relevance":
            return _rated("* ", "Relevance", [(atom, HIGH if _places(atom) else LOW) for atom in payload["statements"]])
        case "classify_relation":
            return _relation(payload["premise"], payload["hypothesis"]), {}
        case "mine_questions":
            return "\n".join(f"* {question}" for question in _questions(payload["text"])) or "None", {}
        case "refine_questions":
            return _rated("* ", "Relevance", [(question, HIGH) for question in payload["questions"]])
        case "answer_questions":
            return _answers(payload["text"], payload["questions"])
        case "compare_answers":
            return f"{payload['first']} - {payload['second']} [{_comparison(payload)}]", {}
    return None


def _coverage(payload: Mapping[str, Any], hasty: bool) -> str:
    covered, uncovered = [], []
    (topic,) = [topic for topic in topics() if topic.query == payload["query"]]
    said = topic.stated(payload["response"])
    for place, fact in enumerate(topic.facts):
        numbers = [number for number, text in enumerate(payload["contexts"], 1) if place in topic.stated(text)]
        overlooked = hasty and _roll(fact["text"], payload["response"]) % OVERLOOKED == 0
        listed = covered if place in said and not overlooked else uncovered
        listed += [f"- {fact['text']} {numbers}"] if numbers else []
    lists = {"Covered statements": covered, "Uncovered statements": uncovered}
    return "\n\n".join("\n".join([f"[{name}]", *lines]) for name, lines in lists.items())


def _atoms(text: str) -> list[str]:
    """Return the facts of a text in its words, and its other sentences."""
    facts = [word for topic, place in _places(text) for word in _words(topic.facts[place])]
    others = [
        part for topic in topics() for parts in topic.contexts.values() for part in parts if isinstance(part, str)
    ]
    return sorted({one for one in [*facts, *others] if one and one in text}, key=text.index)


def _relation(premise: str, hypothesis: str) -> str:
    first, second = _places(premise), _places(hypothesis)
    if any(one in first for one in second):
        return "neutral" if premise != hypothesis and _roll(premise, hypothesis) % UNSEEN == 0 else "entailment"
    return "contradiction" if any(_contradict(*one, other) for one in first for _, other in second) else "neutral"


def _questions(text: str) -> list[str]:
    return list(dict.fromkeys(topic.facts[place]["question"] for topic, place in _places(text)))


def _answers(text: str, questions: Sequence[str]) -> tuple[str, dict[int, dict[str, float]]]:
    written, odds = "", {}
    for question in questions:
        said = [topic.facts[place] for topic, place in _places(text)]
        said = [fact for fact in said if fact["text"] in text or _roll(text, fact["said"]) % UNSEEN]
        answers = [fact["answer"] for fact in said if fact["question"] == question]
        rated, more = _rated("A: ", "Confidence", [(one, HIGH) for one in answers], " | ")
        written += f"* {question}\n"
        odds |= {len(written) + place: one for place, one in more.items()}
        written += f"{rated or 'A: unknown'}\n"
    return written, odds


def _comparison(payload: Mapping[str, Any]) -> str:
    """Return the relation of two answers: contradictory or neutral. Equal answers are never compared."""
    places = {
        fact["answer"]: (topic, place)
        for topic in topics()
        for place, fact in enumerate(topic.facts)
        if fact["question"] == payload["question"]
    }
    topic, first = places[payload["first"]]
    return "contradictory" if _contradict(topic, first, places[payload["second"]][1]) else "neutral"


def _rated(
    mark: str, name: str, items: Sequence[tuple[str, dict[str, float]]], between: str = "\n"
) -> tuple[str, dict[int, dict[str, float]]]:
    """Return lines with a rating each, and the odds at the positions of the ratings."""
    written, places = "", {}
    for text, odds in items:
        written += f"{between if written else ''}{mark}{text} [{name}: "
        places[len(written)] = odds
        written += f"{next(iter(odds))}]"
    return written, places


def _places(text: str) -> list[tuple[Topic, int]]:
    """Return the facts of a text, from any topic."""
    return [(topic, place) for topic in topics() for place in topic.stated(text)]


def _contradict(topic: Topic, first: int, second: int) -> bool:
    return sorted((first, second)) in [sorted(pair) for pair in topic.contradictory]


def _words(fact: Mapping[str, str]) -> Iterator[str]:
    yield from (fact["text"], fact["said"])


def _roll(*texts: str) -> int:
    return int.from_bytes(sha256("\0".join(texts).encode()).digest()[:4], "big")
