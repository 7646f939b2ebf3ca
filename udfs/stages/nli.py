"""The stages of NLI comprehensiveness (Dejl et al. 2025; methods, section 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import pyarrow as pa

from untold.udfs.ratings import SCALE, Digit
from untold.udfs.stages.definitions import (
    FACTSCORE,
    RATING,
    TEXT,
    WRITTEN,
    ExtractedItem,
    Figures,
    LinearSize,
    StageDefinition,
    Unparsable,
    label_of,
    lines_of,
    listed,
    number_of,
    one_of,
    record,
)
from untold.udfs.stages.final_answers import final_answer
from untold.udfs.stages.labels import labels_of, read_label
from untold.udfs.stages.numbered import (
    NumberedTexts,
    is_known,
    is_named,
    match_lines,
    matching_key,
    rank,
    rating_pattern,
    read_digit,
    read_numbered_labels,
)
from untold.udfs.stages.reading import answer_span, past_echoes, split_marker
from untold.udfs.stages.records import (
    NUMBER_NAMES,
    RATING_NAMES,
    STATEMENT_NAMES,
    Cell,
    Record,
    Value,
    read_rating,
    read_records,
    unwrapped,
)
from untold.udfs.stages.units import UNIT_TYPES as UNIT_TYPES
from untold.udfs.stages.units import parse_atoms, parse_revised

RELATIONS = ("entailment", "contradiction", "neutral")
RELATION_VARIABLES = ("premise", "hypothesis")
LIST_VARIABLES = ("premise", "hypotheses")

# What stands beside a hypothesis's number: `Hypothesis 3`, `h3`
_NUMBER_WORDS = re.compile(
    r"(?<![^\W_])(?:hypothes[ei]s|statements?|claims?|nos?|numbers?|ids?|h)(?![^\W\d_])", re.IGNORECASE
)

# `certain`, `impossible` and `open` are the words by which other prompts explain the labels
_LABELS = labels_of(
    {
        "entailment": r"entail(?:ment|s|ed|ing)?|certain",
        "contradiction": r"contradict(?:ion|s|ed|ing|ory)?|impossible",
        "neutral": r"neutral|open",
    },
    hedged=r"(?:partial|weak|near|possible|apparent|likely)[\s_-](?:entailment|contradiction)",
    inputs=RELATION_VARIABLES,
    positive="entailment",
    neither="neutral",
    opposites=("entailment", "contradiction"),
)


@final_answer
def parse_relation(completion: str, variables: Mapping[str, Any]) -> dict[str, str]:
    """`relation`: the one of `RELATIONS` that is the answer, as `read_label` finds it; what neither entails nor
    contradicts is neutral. Raises `Unparsable` where that is none or several.
    """
    own = [str(variables.get(name) or "") for name in RELATION_VARIABLES]
    return {"relation": read_label(completion, _LABELS, own)}


@final_answer
def parse_relations(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """`relations`: one of `RELATIONS` for each of `hypotheses`, in their order, as `read_numbered_labels` finds them.

    None where a hypothesis has no clear relation or several. Raises `Unparsable` where none has one.
    """
    hypotheses, premise = variables["hypotheses"], str(variables.get("premise") or "")

    def read(text: str, number: int) -> str:
        return read_label(text, _LABELS, (premise, hypotheses[number - 1]))

    return {"relations": read_numbered_labels(completion, NumberedTexts(hypotheses, _NUMBER_WORDS), read)}


ATOM_TYPE = pa.struct([pa.field("text", pa.string()), pa.field("unit_type", pa.string())])
ATOMS_SCHEMA = pa.schema([pa.field("atoms", pa.list_(ATOM_TYPE))])
REVISED_SCHEMA = pa.schema([pa.field("atoms", pa.list_(pa.string()))])
RATINGS_SCHEMA = pa.schema([pa.field("ratings", pa.list_(pa.float64()))])
RELATION_SCHEMA = pa.schema([pa.field("relation", pa.string())])
# In the order of the hypotheses; null where one has to be asked again
RELATIONS_SCHEMA = pa.schema([pa.field("relations", pa.list_(pa.string()))])

# The types of units that go on by default (methods, section 2)
STATING = ("Fact", "Claim")

_RATING = rating_pattern("relevance|relevancy")
# `statement (4)`, `statement: 4/5`: a digit that ends a line, and is part of no larger number
_LAST_NUMBER = re.compile(rf"(?<![\w.,/+-])(?P<number>[{SCALE}])(?:\s?/\s?{SCALE[-1]})?[\W_]{{0,8}}\Z")
# `Statement 3` in place of the statement
_NUMBERED = re.compile(r"[\W_]*(?:(?:statement|atom|item|no)[\W_]{1,3})?(\d{1,6})[\W_]*", re.IGNORECASE)
_LONGEST_END = 24  # characters in which that digit is looked for


@dataclass(frozen=True)
class _Rated:
    """A line that rates: its text without the rating, and the digit, null where that is out of scale."""

    text: str
    digit: Digit | None


@final_answer
@past_echoes
def parse_relevance(completion: str, variables: Mapping[str, Any]) -> dict[str, list[Digit]]:
    """`ratings`: a `Digit` for each of `statements`, in their order.

    Lines are matched to statements by text first, by position second, the latter only where there are as many rated
    lines as statements. Raises `Unparsable` where a statement has no rating from 1 to 5.
    """
    statements: Sequence[str] = variables["statements"]
    known = set(map(matching_key, statements))
    rated = _in_order(_rated_records(completion, known) or list(_rated_lines(completion, known)), known)
    chosen = match_lines(statements, [line.text for line in rated])
    if any(_is_torn(completion, [rated[line] for line in lines]) for lines in chosen.values()):
        raise Unparsable("two ratings of one statement")
    ratings = [rated[chosen[place][-1]].digit if place in chosen else None for place in range(len(statements))]
    found = [digit for digit in ratings if digit is not None]
    if len(found) < len(statements):
        raise Unparsable(f"no rating from 1 to 5 for {len(statements) - len(found)} of {len(statements)} statements")
    return {"ratings": found}


def _is_torn(completion: str, lines: Sequence[_Rated]) -> bool:
    """Whether the last two of a statement's ratings differ with no word between them that the later one is meant."""
    digits = [line.digit for line in lines[-2:]]
    if len({digit.value if digit else None for digit in digits}) < 2:
        return False
    first, last = (digit.offset if digit else 0 for digit in digits)
    between = completion[first:last].split("\n")[1:-1]
    return not any(matching_key(line) and not _RATING.search(line) for line in between)


def _rated_records(completion: str, known: set[str]) -> list[_Rated]:
    """The ratings of a JSON list or a table; none where it is none of statements and ratings."""
    records = read_records(completion)
    values = unwrapped(records.values, STATEMENT_NAMES) if records else []
    rated = [one for value in values for one in _rated_record(value)]
    if records and rated and any(_rated_lines(records.rest, known)):
        raise Unparsable("ratings beside a list of ratings")
    return rated


def _in_order(rated: Sequence[_Rated], known: set[str]) -> Sequence[_Rated]:
    """The ratings by their numbers, where they have those in place of statements; `1.` before each says nothing."""
    found = [_NUMBERED.fullmatch(line.text) for line in rated if not is_known(line.text, known)]
    numbers = [int(number[1]) for number in found if number]
    if len(numbers) < len(rated) or len(set(numbers)) < 2:
        return rated
    if sorted(numbers) not in (list(range(len(rated))), list(range(1, len(rated) + 1))):
        raise Unparsable("ratings are not numbered as the statements are")
    return [line for _, line in sorted(zip(numbers, rated, strict=True), key=itemgetter(0))]


def _rated_record(value: Value) -> Iterator[_Rated]:
    """One of an object with statement and rating, or one for each pair of `{"statement": 4}`."""
    if not isinstance(value, Record):
        return
    rating = value.field(RATING_NAMES)
    statement = value.cell(STATEMENT_NAMES) or value.cell(NUMBER_NAMES)
    if rating is not None:
        yield _Rated(statement.text if statement else "", read_rating(rating))
    elif statement is None:
        digits = [(key, read_rating(each)) for key, each in value.pairs if isinstance(each, Cell)]
        yield from (_Rated(key, digit) for key, digit in digits)


def _rated_lines(completion: str, known: set[str]) -> Iterator[_Rated]:
    """Every rating with the text that it is for: its own line's, or that of the lines that it ends."""
    begun: list[str] = []
    bulleted = False
    offset, end = answer_span(completion)
    for line in completion[offset:end].split("\n"):
        rated, marked = _read_rating(line, offset, known), split_marker(line).marked
        offset += len(line) + 1
        if rated is not None:
            yield _Rated(_rated_text(rated.text, [] if marked else begun, known), rated.digit)
            begun, bulleted = [], False
        elif line.strip():
            if marked or not bulleted:
                begun = []
            begun.append(line)
            bulleted = bulleted or marked


def _read_rating(line: str, offset: int, known: set[str]) -> _Rated | None:
    """The last rating of a line, null where it has none; a line that repeats a statement and no more has none."""
    if is_known(line, known):
        return None
    ratings = [found for found in _RATING.finditer(line) if found["number"] or is_named(found)]
    last = max(reversed(ratings), key=lambda found: rank(line, found.start()), default=None)
    bare = _read_bare_rating(line, offset, known)
    if last is None or bare is not None:
        return bare
    before = line[: last.start()]
    digits = {found["number"] for found in ratings if rank(line, found.start()) == rank(line, last.start())}
    if len(digits) > 1 and not is_known(before, known):
        return _Rated(before, None)
    return _Rated(before if matching_key(before) else line[last.end() :], read_digit(line, last, offset))


def _read_bare_rating(line: str, offset: int, known: set[str]) -> _Rated | None:
    """A digit without a word, `statement (4)`: only where all before it is one of the statements."""
    end = line.rstrip()[-_LONGEST_END:]
    found = _LAST_NUMBER.search(end)
    if found is None:
        return None
    place = len(line.rstrip()) - len(end) + found.start()
    text = line[:place]
    return _Rated(text, Digit(int(line[place]), offset + place)) if is_known(text, known) else None


def _rated_text(text: str, begun: Sequence[str], known: set[str]) -> str:
    """The text that a rating is for: of what may be meant, the one that is a statement, else all of it."""
    if not begun:
        return text
    joined = " ".join([*begun, text])
    meant = [text, joined, begun[0]]
    return next((each for each in meant if is_known(each, known)), text if matching_key(text) else joined)


def atoms_in(completion: str) -> list[ExtractedItem]:
    """The units that state something: Facts and Claims. Raises `Unparsable`."""
    return [
        ExtractedItem(unit["text"]) for unit in parse_atoms(completion, {})["atoms"] if unit["unit_type"] in STATING
    ]


def revised_in(completion: str) -> list[ExtractedItem]:
    """The statements. Raises `Unparsable`."""
    return list(map(ExtractedItem, parse_revised(completion, {})["atoms"]))


def relevances_in(completion: str) -> list[ExtractedItem]:
    """What is rated, whatever statements were given. Raises `Unparsable` where nothing is, or numbers stand for it."""
    rated = _rated_records(completion, set()) or list(_rated_lines(completion, set()))
    things = [ExtractedItem(line.text, line.digit.value) for line in rated if line.digit]
    if all(map(_NUMBERED.fullmatch, (thing.text for thing in things))):
        raise Unparsable("no rating from 1 to 5 beside its statement")
    return things


EXTRACT_ATOMS = StageDefinition(
    "extract_atoms",
    ("text",),
    parse_atoms,
    ATOMS_SCHEMA,
    schema=record(atoms=listed(record(unit=TEXT, type=one_of(UNIT_TYPES)))),
    form=lines_of(rf"- .+: (?:{'|'.join(UNIT_TYPES)})", "- unit: Unit Type"),
    figures=Figures(FACTSCORE, completion=LinearSize(slope=2.05), things=LinearSize(slope=0.158)),
    things=atoms_in,
    max_tokens=8_192,
    items=("atoms",),
)
REVISE_ATOMS = StageDefinition(
    "revise_atoms",
    ("text", "statements"),
    parse_revised,
    REVISED_SCHEMA,
    schema=record(statements=listed(TEXT)),
    form=lines_of(r"\* .+", "* statement"),
    # The same facts as if revised: as many, beside the text and themselves
    figures=Figures(FACTSCORE, completion=LinearSize(slope=0.64), things=LinearSize(slope=0.056)),
    things=revised_in,
    max_tokens=8_192,
    items=("atoms",),
)
RATE_RELEVANCE = StageDefinition(
    "rate_relevance",
    ("query", "statements"),
    parse_relevance,
    RATINGS_SCHEMA,
    schema=record(ratings=listed(record(id=number_of("statements"), relevance=RATING))),
    form=lines_of(r"\* .+ \[Relevance: [1-5]\]", "* statement [Relevance: n]"),
    rated=True,
    figures=Figures(
        WRITTEN,
        completion=LinearSize(slope=1.21),
        things=LinearSize(slope=0.09),
        ratings=(0.34, 0.08, 0.03, 0.11, 0.44),
    ),
    things=relevances_in,
    max_tokens=8_192,
)
CLASSIFY_RELATION = StageDefinition(
    "classify_relation",
    RELATION_VARIABLES,
    parse_relation,
    RELATION_SCHEMA,
    schema=record(relation=one_of(RELATIONS)),
    form=label_of(RELATIONS),
    figures=Figures(WRITTEN, completion=LinearSize(12.0)),
    read_alone=True,
)
CLASSIFY_RELATIONS = StageDefinition(
    "classify_relations",
    LIST_VARIABLES,
    parse_relations,
    RELATIONS_SCHEMA,
    schema=record(relations=listed(record(id=number_of("hypotheses"), relation=one_of(RELATIONS)))),
    form=lines_of(rf"\d{{1,9}}: (?:{'|'.join(RELATIONS)})", "n: relation", "one line for each hypothesis:"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.66)),
)
# The same for claims held against whole texts (Ru et al. 2024; methods, section 16): a few of them, however long these
CHECK_CLAIMS = replace(CLASSIFY_RELATIONS, name="check_claims", figures=Figures(WRITTEN, completion=LinearSize(23.0)))
