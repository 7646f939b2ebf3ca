"""The language of the symbolic world: sentences, their facts, and the entailments of facts.

All results are computed only from texts, so one model server without state knows the truth about every world.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import combinations
from random import Random
from typing import Any

Odds = Mapping[str, float]

IRRELEVANT = "IRRELEVANT"
TOPICS = ("founding", "home", "fleet", "taste")
QA_TOPICS = (*TOPICS, "length")
CITIES = {"Lyon": "France", "Nantes": "France", "Turin": "Italy", "Osaka": "Japan", "Kyoto": "Japan", "Cusco": "Peru"}
CONTINENTS = {"France": "Europe", "Italy": "Europe", "Japan": "Asia", "Peru": "America"}
TASTES = ("tea", "coffee", "chess", "rain")
# In metres, within the rounding of their text
LENGTHS = {"5 km": 5000, "5,000 m": 5000, "5,470 yards": 5000, "8 km": 8000, "8,000 m": 8000, "8,750 yards": 8000}
LOOSE_LENGTHS = {"about 5 km": 5000, "about 5 miles": 8000}
DURATION = "20 minutes"
MONTHS = ("January", "March", "May", "August", "October")
NEEDED: Odds = {"5": 0.85, "4": 0.1, "n": 0.05}
FOREIGN: Odds = {"1": 0.9, "2": 0.06, "n": 0.04}
# In the last two, the digit and the expected score are on different sides of the threshold
RELATED: Sequence[Odds] = (
    {"4": 0.8, "5": 0.15, "n": 0.05},
    {"3": 0.8, "2": 0.15, "n": 0.05},
    {"4": 0.45, "2": 0.4, "1": 0.1, "n": 0.05},
    {"3": 0.45, "5": 0.35, "4": 0.15, "n": 0.05},
)
_RELATIONS = ("entailment", "contradiction", "neutral")
NOISE = 0.2
_QUOTES = "\"'“”‘’«»"
_SENTENCE_BREAK = re.compile(r"\n+|(?<=[.!?])\s+")
_IRRELEVANT = re.compile(rf"\b{IRRELEVANT}\b")
_QUERY = re.compile(r"what is known of (?P<topics>.+) of (?P<subject>\w+ \w+)\?")
_PRONOUN = re.compile(rf"\A([{_QUOTES}]?)it\b", re.IGNORECASE)
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_NOTED = re.compile(r"many say: (?P<x>\w+ \w+) is great")

_FOUNDED = ("{x} was founded in {v}", "The founding {level} of {x} is {v}", "In {v} came the founding of {x}")
_FOUNDED_ON = ("{x} was founded on {v}", "The founding day of {x} is {v}", "On {v} came the founding of {x}")
_LIVES = ("{x} lives in {v}", "The home of {x} is in {v}", "{v} is where {x} lives")
_OWNS = ("{x} owns {v} boats", "The fleet of {x} has {v} boats", "{v} boats belong to {x}")
_EXTENDS = ("{x} is {v} long", "The length of {x} is {v}", "{v} is the length of {x}")
_LIKES = ("{x} likes {v}", "{v} is what {x} likes")


def _any_of(words: Sequence[str]) -> str:
    return "|".join(map(re.escape, words)).casefold()


# Topic and level: the sentences that state it, which entail one another, and its values
LEVELS: Mapping[tuple[str, str], tuple[tuple[str, ...], str]] = {
    ("founding", "day"): (_FOUNDED_ON, rf"\d\d? (?:{_any_of(MONTHS)}) \d{{4}}"),
    ("founding", "year"): (_FOUNDED, r"\d{4}"),
    ("founding", "decade"): (_FOUNDED, r"the \d{3}0s"),
    ("founding", "century"): (_FOUNDED, r"the \d\dth century"),
    ("home", "city"): (_LIVES, _any_of(tuple(CITIES))),
    ("home", "country"): (_LIVES, _any_of(tuple(CONTINENTS))),
    ("home", "continent"): (_LIVES, _any_of(tuple(CONTINENTS.values()))),
    ("fleet", "exact"): (_OWNS, r"exactly \d+"),
    ("fleet", "least"): (_OWNS, r"at least \d+"),
    ("taste", "taste"): (_LIKES, _any_of(TASTES)),
    ("length", "length"): (_EXTENDS, _any_of((*LENGTHS, *LOOSE_LENGTHS, DURATION))),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A value of a subject at one level of generality. Subject and value are case folded."""

    topic: str
    level: str
    subject: str
    value: str

    @property
    def written(self) -> str:
        """Return the value as written in a text."""
        return self.value.title() if self.topic == "home" or self.level == "day" else self.value

    @property
    def forms(self) -> int:
        """Return the number of sentences for the fact."""
        return len(LEVELS[self.topic, self.level][0])

    def sentence(self, form: int = 0) -> str:
        """Return the fact as a sentence with a full stop. Form 0 begins with the subject."""
        template = LEVELS[self.topic, self.level][0][form]
        text = template.format(x=self.subject.title(), v=self.written, level=self.level)
        return f"{text[0].upper()}{text[1:]}."


_GENERAL: Mapping[str, Callable[[str], tuple[str, str] | None]] = {
    "day": lambda value: ("year", value[-4:]),
    "year": lambda value: ("decade", f"the {value[:3]}0s"),
    "decade": lambda value: ("century", f"the {int(value[4:6]) + 1}th century"),
    "city": lambda value: ("country", CITIES[value.title()].casefold()),
    "country": lambda value: ("continent", CONTINENTS[value.title()].casefold()),
    "exact": lambda value: ("least", value.replace("exactly", "at least")),
    "least": lambda value: ("least", f"at least {int(value[9:]) - 1}") if int(value[9:]) > 1 else None,
}


def generalise(fact: Fact) -> Fact | None:
    """Return the next more general fact: a day's year, a year's decade, a city's country; None at the top."""
    found = _GENERAL[fact.level](fact.value) if fact.level in _GENERAL else None
    return Fact(fact.topic, found[0], fact.subject, found[1]) if found else None


def chain(fact: Fact) -> list[Fact]:
    """Return the fact and all its generalisations, in this order."""
    facts: list[Fact] = []
    general: Fact | None = fact
    while general is not None:
        facts.append(general)
        general = generalise(general)
    return facts


def normalise(text: str) -> str:
    """Return the text of a node: NFKC, single spaces, no outer quotes or final full stop, case folded."""
    text = " ".join(unicodedata.normalize("NFKC", text).split())
    while (stripped := text.strip(_QUOTES).removesuffix(".").strip()) != text:
        text = stripped
    return text.casefold()


def _patterns() -> Iterator[tuple[re.Pattern[str], str, str, int]]:
    for (topic, level), (forms, values) in LEVELS.items():
        for form, template in enumerate(forms):
            pattern = template.casefold().format(x=r"(?P<x>\w+ \w+)", v=f"(?P<v>{values})", level=level)
            yield re.compile(pattern), topic, level, form


_PATTERNS = tuple(_patterns())


@lru_cache(maxsize=100_000)
def read_fact(sentence: str) -> tuple[Fact, int] | None:
    """Return the fact of a sentence and its form, or None for any other text."""
    text = normalise(sentence)
    for pattern, topic, level, form in _PATTERNS:
        if found := pattern.fullmatch(text):
            return Fact(topic, level, found["x"], found["v"]), form
    return None


def entails(premise: Fact, hypothesis: Fact) -> bool:
    """Return True if the hypothesis is the premise or a generalisation of it."""
    return hypothesis in chain(premise)


def _entails_in_one_step(premise: tuple[Fact, int], hypothesis: tuple[Fact, int]) -> bool:
    """Return True for the next generalisation, and among three forms of a fact only for the next form."""
    (fact, form), (other, said) = premise, hypothesis
    return said in (form, (form + 1) % fact.forms) if fact == other else generalise(fact) == other


def relate(premise: str, hypothesis: str, judge: str) -> str:
    """Return the relation of two texts by one of `JUDGES`.

    `closed` is the truth, transitively closed. `steps` finds only entailments of one step, so it is not transitive.
    `noisy` is `closed` with a fifth of random answers, determined by the two texts. Raises KeyError for an unknown
    judge.
    """
    return JUDGES[judge](premise, hypothesis)


def relate_text(premise: str, hypothesis: str, judge: str) -> str:
    """Return the relation for a premise of several sentences: an entailment of one, a contradiction, or `neutral`."""
    relations = [relate(sentence, hypothesis, judge) for sentence in sentences(premise)]
    return (
        min([*relations, "neutral"], key=_RELATIONS.index) if len(relations) > 1 else relate(premise, hypothesis, judge)
    )


def _relate_closed(premise: str, hypothesis: str) -> str:
    first, second = read_fact(premise), read_fact(hypothesis)
    if first is None or second is None:
        return "neutral"
    if entails(first[0], second[0]):
        return "entailment"
    same = (first[0].topic, first[0].subject) == (second[0].topic, second[0].subject)
    exclusive = same and first[0].topic != "taste" and not entails(second[0], first[0])
    return "contradiction" if exclusive else "neutral"


def _relate_by_steps(premise: str, hypothesis: str) -> str:
    first, second = read_fact(premise), read_fact(hypothesis)
    truth = _relate_closed(premise, hypothesis)
    if truth != "entailment" or first is None or second is None:
        return truth
    return truth if _entails_in_one_step(first, second) else "neutral"


def _relate_noisily(premise: str, hypothesis: str) -> str:
    number = roll(normalise(premise), normalise(hypothesis))
    return _RELATIONS[number % 3] if number % 1000 < NOISE * 1000 else _relate_closed(premise, hypothesis)


def roll(*texts: str) -> int:
    """Return a number of 64 bits, determined by these texts."""
    return int.from_bytes(blake2b(json.dumps(texts).encode(), digest_size=8).digest(), "big")


JUDGES: Mapping[str, Callable[[str, str], str]] = {
    "closed": _relate_closed,
    "steps": _relate_by_steps,
    "noisy": _relate_noisily,
}


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in order. They end at line ends, or with `.`, `!` or `?` before a space."""
    return [sentence.strip() for sentence in _SENTENCE_BREAK.split(text) if sentence.strip()]


def summarise(text: str) -> str | None:
    """Return the sentences without the word IRRELEVANT, one per line, or None if there are none."""
    return "\n".join(sentence for sentence in sentences(text) if not _IRRELEVANT.search(sentence)) or None


def extract(text: str) -> list[tuple[str, str]]:
    """Return the sentences of a text, each with its unit type."""
    return [(sentence, unit_type(sentence)) for sentence in sentences(text)]


def unit_type(sentence: str) -> str:
    """Return `Claim` for tastes and praise, `Fact` for other facts (also joined), otherwise by the first words."""
    text = normalise(sentence)
    openings = {
        "this text ": "Meta Statement",
        "ask ": "Instruction",
        "dates are ": "Data Format",
        "many say: ": "Claim",
    }
    known = next((kind for opening, kind in openings.items() if text.startswith(opening)), None)
    if known or text.endswith("?"):
        return known or "Question"
    found = read_fact(split(_PRONOUN.sub(r"\1Some One", sentence))[0])
    return "Other" if found is None else "Claim" if found[0].topic == "taste" else "Fact"


def revise(text: str, statements: Sequence[str]) -> list[str]:
    """Return the statements with a leading `It` replaced by the last subject before it, and conjunctions split."""
    return [part for statement in statements for part in split(resolve(text, statement))]


def resolve(text: str, statement: str) -> str:
    """Return the statement with a leading `It` replaced by the last subject before it in the text."""
    if not _PRONOUN.match(statement):
        return statement
    named = None
    for sentence in sentences(text):
        if normalise(sentence) == normalise(statement):
            break
        found = read_fact(split(sentence)[0])
        named = found[0].subject if found else named
    return _PRONOUN.sub(rf"\1{named.title()}", statement) if named else statement


def split(statement: str) -> list[str]:
    """Return `X was founded in 1912 and lives in Lyon.` as two sentences, and any other text unchanged."""
    parts = _AND.split(statement.strip(_QUOTES + " ").removesuffix("."))
    if len(parts) != 2:
        return [statement]
    subject = " ".join(parts[0].split()[:2])
    halves = [f"{parts[0]}.", f"{subject} {parts[1]}."]
    return halves if all(map(read_fact, halves)) else [statement]


def rate(query: str, statements: Sequence[str]) -> list[Odds]:
    """Return the token probabilities of each statement's relevance. The token of the completion is first.

    The content of the query is needed, and other subjects are foreign. Other facts about the subject get one of
    `RELATED`, which depends on the statement and the length of the list, as a real judge depends on the prompt.
    """
    asked = read_query(query)
    return [_rate(asked, statement, len(statements)) for statement in statements]


def read_query(query: str) -> tuple[Sequence[str], str] | None:
    """Return the topics and the subject of a query, or None for any other text."""
    found = _QUERY.fullmatch(normalise(query))
    return (found["topics"].split(), found["subject"]) if found else None


def _rate(asked: tuple[Sequence[str], str] | None, statement: str, length: int) -> Odds:
    found, noted = read_fact(statement), _NOTED.fullmatch(normalise(statement))
    subject = found[0].subject if found else noted["x"] if noted else None
    if asked is None or subject != asked[1]:
        return FOREIGN
    if found and found[0].topic in asked[0]:
        return NEEDED
    return RELATED[roll(normalise(statement), str(length)) % len(RELATED)]


def say(payload: Mapping[str, Any], judge: str) -> tuple[str, dict[int, Odds]] | None:
    """Return the completion of a stage of nli and the odds at its positions, or None for another stage."""
    stage = payload.get("stage")
    if stage == "summarise_context":
        return summarise(payload["text"]) or "None", {}
    if stage == "extract_atoms":
        return "\n".join(f"- {unit}: {kind}" for unit, kind in extract(payload["text"])) or "None", {}
    if stage == "revise_atoms":
        return "\n".join(f"* {statement}" for statement in revise(payload["text"], payload["statements"])) or "None", {}
    if stage == "rate_relevance":
        return _say_ratings(payload["statements"], rate(payload["query"], payload["statements"]))
    if stage == "classify_relation":
        return relate_text(payload["premise"], payload["hypothesis"], judge), {}
    if stage == "list_conflicts":
        return _say_conflicts(conflicts_among(payload["contexts"], judge)), {}
    if stage == "cover_sides":
        said = [conveys(payload["response"], text, judge) for text in payload["statements"]]
        return "\n".join(f"{n}: {'covered' if one else 'uncovered'}" for n, one in enumerate(said, 1)), {}
    if stage in ("classify_relations", "check_claims"):
        return "\n".join(relation_lines(payload["premise"], payload["hypotheses"], judge)), {}
    return None


def conflicts_among(contexts: Sequence[str], judge: str) -> list[tuple[str, list[int], str, list[int]]]:
    """Return contradicting sentences of contexts, each with the numbers of its contexts.

    Some are reworded.
    """
    sources: dict[str, list[int]] = {}
    for number, context in enumerate(contexts, start=1):
        for sentence in dict.fromkeys(sentences(context)):
            sources.setdefault(sentence, []).append(number)
    pairs = [(one, other) for one, other in combinations(sources, 2) if relate(one, other, judge) == "contradiction"]
    return [(reworded(one), sources[one], reworded(other), sources[other]) for one, other in pairs]


def reworded(sentence: str) -> str:
    """Return the sentence in another form, if it states a fact and its hash decides so."""
    found = read_fact(sentence)
    return found[0].sentence((found[1] + 1) % found[0].forms) if found and roll(sentence) % 2 else sentence


def conveys(response: str, statement: str, judge: str) -> bool:
    """Return True if a sentence of the response entails the statement."""
    return any(relate(sentence, statement, judge) == "entailment" for sentence in sentences(response))


def _say_conflicts(conflicts: Sequence[tuple[str, list[int], str, list[int]]]) -> str:
    names = ("first", "first_sources", "second", "second_sources")
    return "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in conflicts) or "None"


def relation_lines(premise: str, hypotheses: Sequence[str], judge: str) -> list[str]:
    """Return the relation of the premise to each hypothesis, `1: neutral`."""
    return [f"{number}: {relate_text(premise, text, judge)}" for number, text in enumerate(hypotheses, start=1)]


def careless_lines(premise: str, hypotheses: Sequence[str], judge: str) -> list[str]:
    """Return the same lines with faults per list: missing, repeated, swapped, and with unknown numbers.

    The label of a number that occurs once is correct, and a list with one item has no fault.
    """
    return made_careless(relation_lines(premise, hypotheses, judge), _RELATIONS, premise, *hypotheses)


def made_careless(lines: list[str], labels: Sequence[str], *texts: str) -> list[str]:
    """Return lines `1: label` with these faults, which depend only on the texts."""
    if len(lines) == 1:
        return lines
    dice = Random(roll(*texts))
    kept = [line for line in lines if dice.random() > 0.15]
    wrong = [f"{dice.randint(1, len(lines))}: {dice.choice(labels)}" for _ in range(dice.choice((0, 0, 1, 2)))]
    # A number that is only in `wrong` would be read as a judgement
    said = {line.partition(":")[0] for line in kept}
    kept += [line for line in wrong if line.partition(":")[0] in said]
    dice.shuffle(kept)
    return [*kept, f"{len(lines) + 1}: {labels[0]}"]


def _say_ratings(statements: Sequence[str], rated: Sequence[Odds]) -> tuple[str, dict[int, Odds]]:
    text, places = "", {}
    for statement, odds in zip(statements, rated, strict=True):
        text += f"* {statement} [Relevance: "
        places[len(text)] = odds
        text += f"{next(iter(odds))}]\n"
    return text, places
