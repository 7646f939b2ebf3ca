"""The stages of LongRecall (Ardestani, Kamalloo, Rafiei; methods, section 9)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.stages.claims import CLAIM_NAMES, has_bullets, labelled_answer, listed_texts, recorded_texts
from untold.udfs.stages.definitions import (
    TEXT,
    WRITTEN,
    Figures,
    LinearSize,
    OutputFormat,
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
from untold.udfs.stages.icat import Alignment, read_alignment
from untold.udfs.stages.labels import labels_of, read_label
from untold.udfs.stages.numbered import matching_key
from untold.udfs.stages.reading import past_echoes
from untold.udfs.stages.records import NUMBER_NAMES, Record, json_at_line_starts, read_records, unwrapped
from untold.udfs.stages.subsets import CANDIDATE_WORDS, parse_subset
from untold.udfs.stages.units import revised_text

# The new text counts where an object has the old one too
_FACT_NAMES = (
    *("resolved", "resolvedfact", "resolvedtext", "resolvedstatement", "rewritten", "rewrittenfact", "revised"),
    *("revisedfact", "selfcontained", "selfcontainedfact", "output", "new", *CLAIM_NAMES),
)
_NUMBER = re.compile(r"(?:fact|statement)?[\W_]{0,3}(\d{1,6})[\W_]{0,3}", re.IGNORECASE)
_LINE_NUMBER = re.compile(r"^[ \t>*(\[#]{0,9}(\d{1,6})[.):\]]\*{0,2}[ \t]{1,9}(?=\S)", re.MULTILINE)
_WORD = re.compile(r"\w+")


@final_answer
@past_echoes
def parse_resolved(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`facts`: a text for each of `facts`, in their order.

    Lines are the facts' by position, but where some repeat facts in another order, by those texts. Raises `Unparsable`
    where there is another number of lines, where they have an order of their own, and where a line without a bullet has
    little of its fact.
    """
    facts: Sequence[str] = variables["facts"]
    text = labelled_answer(completion)
    lines = recorded_texts(text, _FACT_NAMES)
    bare = lines is None and not has_bullets(text)
    if lines is None:
        lines = listed_texts(text, "\n".join([str(variables.get("text", "")), *facts]))
        lines = _by_number(lines, _numbers_of_lines(text, len(lines)))
    else:
        lines = _by_number(lines, _numbers(text))
    known = set(map(matching_key, facts))
    lines = [revised_text(line, known) for line in lines]
    if len(lines) != len(facts) or not all(lines):
        raise Unparsable(f"{sum(map(bool, lines))} texts of {len(facts)} facts")
    if bare and not all(map(_keeps_words, lines, facts)):
        raise Unparsable("a line without a bullet that is no form of its fact")
    return {"facts": _in_order(lines, facts)}


def _numbers(text: str) -> list[int]:
    """The numbers that the elements of a JSON list or the rows of a table have; none where some has none."""
    records = read_records(json_at_line_starts(text))
    values = unwrapped(records.values, _FACT_NAMES) if records else []
    lone = values[0] if len(values) == 1 else None
    if isinstance(lone, Record) and lone.cell(_FACT_NAMES) is None:
        said = [key for key, _ in lone.pairs]
    else:
        cells = [value.cell(NUMBER_NAMES) for value in values if isinstance(value, Record)]
        said = [cell.text for cell in cells if cell]
    found = [number for number in map(_NUMBER.fullmatch, said) if number]
    return [int(number[1]) for number in found] if len(found) == max(len(values), len(said)) else []


def _numbers_of_lines(text: str, count: int) -> list[int]:
    """The numbers before the lines where they are those of the facts in another order; none else."""
    numbers = [int(number) for number in _LINE_NUMBER.findall(text)]
    return numbers if sorted(numbers) == list(range(1, count + 1)) else []


def _by_number(lines: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """The lines in the order of their numbers. Raises `Unparsable` where those do not count the lines."""
    if not numbers:
        return list(lines)
    if sorted(numbers) not in (list(range(len(lines))), list(range(1, len(lines) + 1))):
        raise Unparsable("texts are not numbered as the facts are")
    return [lines[place] for place in sorted(range(len(lines)), key=numbers.__getitem__)]


def _keeps_words(line: str, fact: str) -> bool:
    """Whether a line has half of the words of its fact, as all have of which but names and pronouns are changed."""
    words = set(_WORD.findall(matching_key(fact)))
    return 2 * len(words & set(_WORD.findall(matching_key(line)))) >= len(words)


def _in_order(lines: Sequence[str], facts: Sequence[str]) -> list[str]:
    """The lines in the order of the facts: where they are, but for those that repeat facts of other places.

    A line that repeats another fact than its own belongs to that one, unless that has its own text in its place: two
    facts may become one. Raises `Unparsable` where the lines that are so moved leave a fact without one.
    """
    said, keys = list(map(matching_key, lines)), list(map(matching_key, facts))
    places = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    kept = {key for key, own in zip(said, keys, strict=True) if key == own}
    moved = [place for place, key in enumerate(said) if key in places and key not in kept]
    targets = [places[said[place]].pop(0) for place in moved if places[said[place]]]
    if sorted(targets) != moved:
        raise Unparsable("lines repeat facts in an order that leaves some without one")
    ordered = list(lines)
    for place, target in zip(moved, targets, strict=True):
        ordered[target] = lines[place]
    return ordered


_CANDIDATE_NAMES = (
    *("candidates", "candidateids", "candidatenumbers", "matches", "matchedcandidates", "matchingcandidates"),
    *("matched", "candidate", "candidateid", "candidatenumber", "evidence", "support", "supportedby", "coveredby"),
    *("generated", "generatedfacts", "generatedids", "claims", "claimids"),
)
_REFERENCES_AND_CANDIDATES = Alignment(
    left_names=(
        *("reference", "referenceid", "referencenumber", "referencefact", "referencefactid", "ref", "refid"),
        *("id", "number", "no", "index", ""),
    ),
    text_names=("referencetext", "referencefact", "text", "fact", "statement"),
    # `Reference 3`, `ref_3`, `R1`
    left_words=re.compile(r"(?<![^\W_])(?:references?|refs?|facts?|no|number|id|r)(?![^\W\d_])", re.IGNORECASE),
    right_names=_CANDIDATE_NAMES,
    listing=(*_CANDIDATE_NAMES, "id", "number", "text", "fact"),
    right_words=CANDIDATE_WORDS,
    verdict_names=("covered", "iscovered", "match", "ismatch", "entailed", "status", "verdict", "label", "coverage"),
    other_form=re.compile(
        r"\{|\[\s{0,3}\d|\b(?:references?|ref|fact)\s?#?\d{1,4}\W{1,6}(?:candidates?\W{1,3})?\d", re.IGNORECASE
    ),
)


@final_answer
@past_echoes
def parse_holistic(completion: str, variables: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """`candidates`: for each of `references` the numbers of the `candidates` that together entail it.

    Numbers are from 1, ascending; `[]` where there are none. As `read_alignment` reads them: unknown ones are dropped,
    and those of a reference that stands twice united. Raises `Unparsable` where there is no object, or one that cannot
    be read.
    """
    aligned = read_alignment(completion, _REFERENCES_AND_CANDIDATES, variables["references"], variables["candidates"])
    return {"candidates": aligned}


MATCH_VARIABLES = ("reference", "candidate")

_STRONG = r"exact|perfect|literal|verbatim|strict|direct|strong|clear|good|full|complete|true|real|valid|definite"
_WEAK = r"partial|near|close|approximate|possible|potential|likely|probable|weak|loose|rough|half|borderline"
_ADVERBS = r"really|actually|truly|quite|fully|exactly|clearly|directly|strictly|entirely|completely"
_MATCH, _NO_MATCH = "Match", "No Match"
_LABELS = labels_of(
    {
        _NO_MATCH: (
            r"no(?:t|n)?(?:[\s_‐‑‒–—-]|[*`]{1,3}\s){0,2}match(?:es|ed|ing)?"
            r"|mis[\s-]?match(?:es|ed|ing)?|unmatched|without (?:a )?match"
            r"|(?:do(?:es)? not|not|[a-z]{2,6}n['’]t|cannot)[\s_]"
            rf"(?:(?:{_ADVERBS}|be|considered|counted|count|as|constitute|seem|to)\s){{0,4}}(?:an?[\s_])?match(?:es|ed"
            rf"|ing)?"
            r"|fails? to match|neither\s(?:an?\s)?match"
        ),
        _MATCH: rf"(?:(?:{_STRONG})[\s_-])?match(?:es|ed)?(?![\s:=*_-]{{0,6}}[❌✗✘✖🚫👎])",
    },
    # What is neither: a partial match, and what is no exact one
    hedged=(
        rf"(?:(?:no|not|[a-z]{{2,6}}n['’]t)\s(?:be\s)?(?:an?\s)?(?:{_STRONG})|{_WEAK})[\s_-]match(?:es|ed|ing)?"
        r"|(?:partially|partly|nearly|almost|possibly|probably|maybe|perhaps|somewhat|loosely|only|in part)\s(?:an?\s)?"
        r"match(?:es|ed)?"
    ),
    inputs=MATCH_VARIABLES,
    positive=_MATCH,
    denial=_NO_MATCH,
    fields=("match", "ismatch", "matched", "matches", "entailed", "entails", "entailment"),
)


@final_answer
def parse_match(completion: str, variables: Mapping[str, Any]) -> dict[str, bool]:
    """`matched`: whether the answer is `Match`, not `No Match`, as `read_label` finds it.

    Raises `Unparsable` where that is none or both, and for what is neither, such as a partial match.
    """
    own = [str(variables.get(name) or "") for name in MATCH_VARIABLES]
    return {"matched": read_label(completion, _LABELS, own) == _MATCH}


# One text a fact, in the order of the variable
RESOLVED_SCHEMA = pa.schema([pa.field("facts", pa.list_(pa.string()))])
MATCH_SCHEMA = pa.schema([pa.field("matched", pa.bool_())])
# Numbers of candidates from 1, ascending; an empty list is no match
SUBSET_SCHEMA = pa.schema([pa.field("candidates", pa.list_(pa.int32()))])
# One such list a reference, in the order of the variable
HOLISTIC_SCHEMA = pa.schema([pa.field("candidates", pa.list_(pa.list_(pa.int32())))])
_CANDIDATES = listed(number_of("candidates"))

RESOLVE_COREFERENCE = StageDefinition(
    "resolve_coreference",
    ("text", "facts"),
    parse_resolved,
    RESOLVED_SCHEMA,
    schema=record(facts=listed(record(id=number_of("facts"), fact=TEXT))),
    form=lines_of(r"\* .+", "* fact", "one line for each fact, in their order:"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.82)),
    max_tokens=8_192,
)
MATCH_ONE = StageDefinition(
    "match_one",
    MATCH_VARIABLES,
    parse_match,
    MATCH_SCHEMA,
    schema=record(label=one_of(("Match", "No Match"))),
    form=label_of(("Match", "No Match")),
    figures=Figures(WRITTEN, completion=LinearSize(12.0)),
)
MATCH_MANY = StageDefinition(
    "match_many",
    ("reference", "candidates"),
    parse_subset,
    SUBSET_SCHEMA,
    schema=record(candidates=_CANDIDATES),
    form=OutputFormat("a JSON list of the candidates' numbers, such as [1, 3], or []", re.compile(r"\[[\d, ]*\]")),
    figures=Figures(WRITTEN, completion=LinearSize(9.0)),
)
MATCH_HOLISTIC = StageDefinition(
    "match_holistic",
    ("query", "references", "candidates"),
    parse_holistic,
    HOLISTIC_SCHEMA,
    schema=record(entailed=listed(record(reference=number_of("references"), candidates=_CANDIDATES))),
    form=lines_of(r'\{"reference": \d+, "candidates": \[[\d, ]*\]\}', '{"reference": n, "candidates": [n, ...]}'),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.29)),
    max_tokens=8_192,
)
