"""Reading the relation of a premise to a hypothesis (Dejl et al. 2025; methods, section 2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from udfs.stages.definitions import Unparsable
from udfs.stages.reading import split_marker, strip_thinking

RELATIONS = ("entailment", "contradiction", "neutral")
VARIABLES = ("premise", "hypothesis")

# The beginnings of the labels and of the words by which prompts explain them
_STARTS = {
    "entail": "entailment",
    "certain": "entailment",
    "contradict": "contradiction",
    "impossible": "contradiction",
    "neutral": "neutral",
    "open": "neutral",
}
_WORDS = r"entail(?:ment|s|ed|ing)?|contradict(?:ion|s|ed|ing|ory)?|neutral"
# A word that goes on, a question, and a key of JSON (`{"entailment": 0.1, "neutral": 0.9}`) are no answers.
_ENDS_WORD = r"(?![^\W_]|[\W_]{0,3}\?|\"\s{0,3}:\s{0,3}(?:[\d\"{\[]|true|false|null))"
# The words by which prompts explain the labels: an answer where one is stated or leads, in prose they say nothing.
_EXPLAINS = (
    r"(?:certain|impossible|open)(?=[*_\"'`)\]\s]{0,4}(?:[.,;:!?/|}–—(-]|\Z|(?:given|because|since|as|or|and)\b))"
)
_LABEL = rf"(?:{_WORDS}|{_EXPLAINS}){_ENDS_WORD}"
_OTHER_LABEL = rf"[*_\"'`]{{0,3}}\s{{0,2}}(?:[/|,]\s?(?:or|and)?|or|and)\s{{0,2}}[*_\"'`]{{0,3}}{_LABEL}"
_MENTION = re.compile(rf"(?<![^\W_])(?:{_WORDS}){_ENDS_WORD}", re.IGNORECASE)
_NEITHER = re.compile(
    rf"(?<![^\W_])neither(?: \w+)?[\W_]{{1,4}}(?P<one>{_WORDS}|certain|impossible)\b[^.;:!?\n]{{0,80}}?\bnor"
    rf"(?: \w+)?[\W_]{{1,4}}(?P<other>{_WORDS}|certain|impossible)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    rf"(?:\bnot|n['’]t)\s(?:\w{{1,20}}\s)?(?P<one>{_WORDS})\b(?:\s(?:or|nor)\s(?P<other>{_WORDS})\b)?", re.IGNORECASE
)
_STATED = re.compile(
    r"(?<![^\W_])(?:answer|hypothesis(?= (?:is|would be)\b)|relation(?:ship)?|label"
    r"|classification|category|conclusion|verdict|judge?ment|therefore|thus|hence)"
    rf"(?: between [\w ,]{{1,60}}?)?[\W_]{{0,6}}(?:is|would be)?[\W_]{{0,8}}(?P<label>{_LABEL})(?!{_OTHER_LABEL})",
    re.IGNORECASE,
)
# A label that leads a line and is followed by a sign or the end, but not by `: no`
_LEADING = re.compile(
    rf"[\W_]{{0,8}}(?P<label>{_LABEL})(?!{_OTHER_LABEL})(?![\W_]{{1,5}}(?:no|not|false)\b)(?:\s{{0,3}}[^\w\s]|\s*\Z)",
    re.IGNORECASE,
)
# A plain completion repeats its pair, or goes on with an example of its own
_PAIR_LINE = re.compile(r"[\W_]{0,8}(?:premise|hypothesis)(?:[\s*_]{0,4}[:：]|>)", re.IGNORECASE)
_BREAK = re.compile(r"[.;:!?\n]|\bbut\b", re.IGNORECASE)
_WORD = re.compile(r"[\w'’]+")
_NEGATIONS = {
    *("not", "no", "never", "neither", "nor", "cannot", "without", "non", "than", "if", "would", "fails", "fail"),
    *("lacks", "lack", "far", "partially", "partly", "almost", "nearly", "might", "may"),
}
_DOUBTS = {"whether", "insufficient", "could"}  # these reach over all of their clause
_DENIED_BEHIND = re.compile(
    r"\s(?:at first\b|(?:is|are|was|would|can|could|may|might|does|seems)(?:n['’]t|\s(?:be\s)?(?:not|possible|excluded"
    r"|ruled|unlikely|require|need|impossible|false|wrong))\b)",
    re.IGNORECASE,
)
_NEGATION_REACH, _CHARACTERS_BEFORE = 3, 60  # words that a negation reaches over; of the clause so much is read


def parse_relation(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`relation`: the one of `RELATIONS` that is the answer.

    That is the last one stated as the answer, else the one that a line begins with, else the only one that is spoken
    of without a negation; what neither entails nor contradicts is neutral. Raises `Unparsable` where that is none or
    several.
    """
    lines = first_answer(strip_thinking(completion).split("\n"), _PAIR_LINE, _answers)
    for labels in (_stated_labels(lines), _leading_labels(lines), _spoken_labels(lines, variables)):
        if len(labels) == 1:
            return {"relation": labels.pop()}
        if labels:
            raise Unparsable("several relations and no clear answer")
    raise Unparsable(f"none of {', '.join(RELATIONS)} is the answer")


def first_answer(lines: Iterable[str], repeated: re.Pattern[str], answers: Callable[[str], bool]) -> list[str]:
    """The lines up to where a plain completion runs on into a further example, without a pair that is `repeated`."""
    kept: list[str] = []
    answered = False
    for line in lines:
        if not repeated.match(line):
            kept.append(line)
            answered = answered or answers(line)
        elif answered:
            break
    return kept


def _answers(line: str) -> bool:
    return bool(_stated_labels([line]) or _leading_labels([line]))


def _stated_labels(lines: Iterable[str]) -> set[str]:
    """The last relation that is stated as the answer, `Answer: neutral` or `the relation is neutral`."""
    found = [match for line in lines for match in _STATED.finditer(line)]
    return {_relation(found[-1]["label"])} if found else set()


def _leading_labels(lines: Iterable[str]) -> set[str]:
    """The relations with which lines begin, `**Neutral.** The premise ...`."""
    found = [_LEADING.match(split_marker(line).text) for line in lines]
    return {_relation(match["label"]) for match in found if match}


def _spoken_labels(lines: Iterable[str], variables: Mapping[str, Any]) -> set[str]:
    """The relations spoken of without a negation, but for those that premise or hypothesis speak of themselves."""
    own = " ".join(str(variables.get(name) or "") for name in VARIABLES)
    own_labels = {_relation(match[0]) for match in _MENTION.finditer(own)}
    text = "\n".join(lines)
    spoken = {_relation(match[0]) for match in _MENTION.finditer(text) if not _is_negated(text, match)}
    return (spoken - own_labels) | ({"neutral"} if _says_neither(text) else set())


def _says_neither(text: str) -> bool:
    """Whether the text says that neither entailment nor contradiction holds, in either order, or denies each."""
    denied = {_relation(word) for found in _DENIED.finditer(text) for word in found.groups() if word}
    if denied == {"entailment", "contradiction"}:
        return True
    pairs = ({_relation(found["one"]), _relation(found["other"])} for found in _NEITHER.finditer(text))
    return any(pair == {"entailment", "contradiction"} for pair in pairs)


def _relation(word: str) -> str:
    """The relation that a word of `_WORDS` or `_EXPLAINS` stands for."""
    return next(relation for start, relation in _STARTS.items() if word.lower().startswith(start))


def _is_negated(text: str, mention: re.Match[str]) -> bool:
    """Whether the clause around a mention denies or doubts it: `not entailed`, `a contradiction is excluded`."""
    place = mention.start()
    if _DENIED_BEHIND.match(text, mention.end()):
        return True
    before = _BREAK.split(text[max(0, place - _CHARACTERS_BEFORE) : place])[-1]
    words = _WORD.findall(before.lower())
    if not _DOUBTS.isdisjoint(words):
        return True
    return any(word in _NEGATIONS or word.endswith(("n't", "n’t")) for word in words[-_NEGATION_REACH:])
