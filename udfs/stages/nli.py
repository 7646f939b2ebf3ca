"""The stages of NLI comprehensiveness (Dejl et al. 2025; methods, section 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from untold.udfs.errors import Unparsable
from untold.udfs.ratings import Digit
from untold.udfs.stages import lists
from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import FACTSCORE, WRITTEN, ExtractedItem, Figures, LinearSize, StageDefinition
from untold.udfs.stages.forms import ListLine, find_records, get_field, read_list, says_nothing, undecorated
from untold.udfs.stages.labels import Vocabulary, label_stage, labels_stage
from untold.udfs.stages.non_answers import says_absent
from untold.udfs.stages.schemas import RATING, TEXT, lines_of, listed, number_of, one_of, record

RELATIONS = ("entailment", "contradiction", "neutral")
RELATION_VARIABLES = ("premise", "hypothesis")
LIST_VARIABLES = ("premise", "hypotheses")
UNIT_TYPES = ("Fact", "Claim", "Instruction", "Data Format", "Meta Statement", "Question", "Other")
# The types of units that become atoms by default (methods, section 2)
STATING = ("Fact", "Claim")

# Some prompts use the labels `certain`, `impossible` and `open`
_LABELS = Vocabulary(
    {
        "entailment": ("entails", "entailed", "entail", "entailing", "certain"),
        "contradiction": ("contradicts", "contradict", "contradictory", "contradicted", "impossible"),
        "neutral": (
            *("open", "neither entails nor contradicts", "neither contradicts nor entails"),
            *("neither entailment nor contradiction", "neither contradiction nor entailment"),
            *("neither entailed nor contradicted", "neither contradicted nor entailed"),
            "neither an entailment nor a contradiction",
        ),
    },
    positive="entailment",
    inputs=("premise", "hypothesis", "hypotheses", "claim", "claims"),
)
_TYPES = {kind.casefold(): kind for kind in UNIT_TYPES} | {f"{kind.casefold()}s": kind for kind in UNIT_TYPES}
_TYPE = r"(?:facts?|claims?|instructions?|data[ _-]formats?|meta[ _-]statements?|questions?|others?)"
_GAPS = re.compile(r"[\s_-]+")
# `unit: Fact`, `unit (Fact)`, with or without a reason
_TYPE_BEHIND = re.compile(
    rf"(?s:(?P<text>.+))(?:\s?(?:[:：→|]|\s[-–—]{{1,2}}\s|->|=>)[\s*_`\[(\"]{{0,4}}|\s?[\s*_`]{{0,3}}[\[(（【][\s*_`]{{0,3}}"
    rf"(?:type: ?)?)(?P<type>{_TYPE})[\s*_`\]）】)\".]{{0,4}}(?:\s?(?:\(|[-–—]\s)[^:]*|[^\w]*)\Z",
    re.IGNORECASE,
)
# `Fact: unit`, `[Fact] unit`
_TYPE_BEFORE = re.compile(
    rf"(?:[*_]{{0,2}}(?P<type>{_TYPE})(?: \d+)?[*_]{{0,2}}\s*[:：][*_]{{0,2}}"
    rf"|[\[(][*_]{{0,2}}(?P<inside>{_TYPE})[*_]{{0,2}}[\])][:：]?)\s*(?P<text>.+)",
    re.IGNORECASE | re.DOTALL,
)
# Several units on one line, or a line with only a type
_GLUED = re.compile(
    r"(?:[:：]\s?|\()(?:facts?|claims?|questions?|instructions?)\b\)?(?:[.;,)]|\s[-–*|•]\s)|\bType\W*\Z", re.IGNORECASE
)
_UNIT_NAMES = ("unit", "contentunit", "atom", "value", "text", "statement", "item", "content")
_TYPE_NAMES = ("type", "unittype", "label", "category")


@reader
def parse_atoms(text: str, variables: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """Return the `atoms` in order, each with a `text` and a `unit_type` of `UNIT_TYPES`. `None` is an empty list.

    The type is after the unit, before the unit, or in a heading. Raises `Unparsable` if a unit has no type.
    """
    if says_nothing(text) or says_absent(text):
        return {"atoms": []}
    found = find_records(text, (*_UNIT_NAMES[:3], *_TYPE_NAMES[:2], *_UNIT_NAMES[4:]))
    if found is not None and not found[0]:
        return {"atoms": []}
    if found is not None:
        units = [_unit_of(each) for each in found[0]]
    else:
        items = [item for item in read_list(text) if not (item.heading and says_nothing(item.text))]
        units = [_typed(item) for item in items]
        before = [_TYPE_BEFORE.match(item.text.strip()) for item in items]
        if None in units and all(before):
            units = [(each["text"], _type_of(each["type"] or each["inside"])) for each in before if each]
    if not units or any(unit is None or unit[1] is None for unit in units):
        raise Unparsable("a unit without a type")
    return {"atoms": [{"text": undecorated(unit[0]), "unit_type": str(unit[1])} for unit in units if unit]}


def _type_of(said: Any) -> str | None:
    return _TYPES.get(_GAPS.sub(" ", str(said).strip(" #*_:：-")).casefold())


def _typed(item: ListLine) -> tuple[str, str | None] | None:
    found = _TYPE_BEHIND.match(item.text.strip())
    if found is None:
        return (item.text, _type_of(item.heading)) if item.heading else None
    if _GLUED.search(found["text"]):
        raise Unparsable("several units on one line")
    return found["text"], _type_of(found["type"])


def _unit_of(value: Any) -> tuple[str, str | None] | None:
    if isinstance(value, str):
        return _typed(ListLine(value, None, 0))
    unit = get_field(value, _UNIT_NAMES)
    return (unit, _type_of(get_field(value, _TYPE_NAMES))) if isinstance(unit, str) else None


def read_revised(text: str, variables: Mapping[str, Any]) -> list[str]:
    """Return the revised atoms in order. `None` is an empty list. Raises `Unparsable` if the list is not clear."""
    statements = list(variables.get("statements") or ())
    own = "\n".join([str(variables.get("text") or ""), *statements])
    atoms = lists.read_texts(text, lists.STATEMENT_NAMES, own, may_be_plain=len(statements) == 1)
    lists.check_rewritten(atoms, own)
    return atoms


@reader
def parse_relevance(text: str, variables: Mapping[str, Any]) -> dict[str, list[Digit]]:
    """Return the `ratings`, a `Digit` for each of the `statements`, in the same order.

    Raises `Unparsable` if a statement has no rating from 1 to 5, or if it has more than one rating.
    """
    statements = variables["statements"]
    return {"ratings": lists.ratings_in_order(lists.read_rated_texts(text, _RATED_NAMES, statements), statements)}


_RATED_NAMES = ("statement", "statementtext", "atom", "text", "item", "content")


def atoms_in(completion: str) -> list[ExtractedItem]:
    """Return the units with a type in `STATING`. Raises `Unparsable`."""
    units = parse_atoms(completion, {})["atoms"]
    return [ExtractedItem(unit["text"]) for unit in units if unit["unit_type"] in STATING]


def relevances_in(completion: str) -> list[ExtractedItem]:
    """Return the statements with their ratings. Raises `Unparsable` if the completion only has their numbers."""
    rated = lists.read_rated_texts(completion, _RATED_NAMES)
    if not any(any(map(str.isalpha, one.text)) for one in rated):
        raise Unparsable("no statement with its rating")
    return [ExtractedItem(one.text, one.digit.value) for one in rated]


EXTRACT_ATOMS = StageDefinition(
    "extract_atoms",
    ("text",),
    parse_atoms,
    pa.schema({"atoms": pa.list_(pa.struct({"text": pa.string(), "unit_type": pa.string()}))}),
    schema=record(atoms=listed(record(unit=TEXT, type=one_of(UNIT_TYPES)))),
    form=lines_of(rf"- .+: (?:{'|'.join(UNIT_TYPES)})", "- unit: Unit Type"),
    figures=Figures(FACTSCORE, completion=LinearSize(slope=2.05), things=LinearSize(slope=0.158)),
    things=atoms_in,
    max_tokens=8_192,
    items=("atoms",),
)
REVISE_ATOMS = lists.list_stage(
    "revise_atoms",
    ("text", "statements"),
    "atoms",
    read_revised,
    field="statements",
    form=lines_of(r"\* .+", "* statement"),
    # The number of facts stays the same, and the variables also have the text
    figures=Figures(FACTSCORE, completion=LinearSize(slope=0.64), things=LinearSize(slope=0.056)),
    max_tokens=8_192,
)
RATE_RELEVANCE = StageDefinition(
    "rate_relevance",
    ("query", "statements"),
    parse_relevance,
    pa.schema({"ratings": pa.list_(pa.float64())}),
    schema=record(ratings=listed(record(id=number_of("statements"), relevance=RATING))),
    form=lines_of(r"\* .+ \[Relevance: [1-5]\]", "* statement [Relevance: n]"),
    rated=True,
    figures=Figures(WRITTEN, LinearSize(slope=1.21), LinearSize(slope=0.09), ratings=(0.34, 0.08, 0.03, 0.11, 0.44)),
    things=relevances_in,
    max_tokens=8_192,
)
CLASSIFY_RELATION = label_stage(
    "classify_relation",
    RELATION_VARIABLES,
    RELATIONS,
    _LABELS,
    "relation",
    figures=Figures(WRITTEN, completion=LinearSize(12.0)),
    read_alone=True,
)
CLASSIFY_RELATIONS = labels_stage(
    "classify_relations",
    LIST_VARIABLES,
    RELATIONS,
    _LABELS,
    ("relations", "id", "relation"),
    Figures(WRITTEN, completion=LinearSize(slope=0.66)),
    one="hypothesis",
)
# The relations of claims to whole texts (Ru et al. 2024; methods, section 16). Lists are short, and texts are long
CHECK_CLAIMS = replace(CLASSIFY_RELATIONS, name="check_claims", figures=Figures(WRITTEN, completion=LinearSize(23.0)))
