"""The stages of LongRecall (Ardestani, Kamalloo, Rafiei; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from untold.udfs.errors import Unparsable
from untold.udfs.stages import lists
from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import WRITTEN, Figures, LinearSize, StageDefinition
from untold.udfs.stages.labels import Vocabulary, read_label
from untold.udfs.stages.schemas import TEXT, OutputFormat, label_of, lines_of, listed, number_of, one_of, record

MATCH_VARIABLES = ("reference", "candidate")
_MATCH, _NO_MATCH = "match", "no match"
_LABELS = Vocabulary(
    {
        _MATCH: ("matches", "it matches"),
        _NO_MATCH: (
            *("nomatch", "not match", "does not match", "do not match", "don't match", "doesn't match", "mismatch"),
            *("not a match", "isn't a match", "not matched"),
        ),
    },
    positive=_MATCH,
    flags=(_MATCH, _NO_MATCH),
    names=("match", "matched", "ismatch", "matches"),
    inputs=("reference", "candidate", "reference fact", "candidate fact"),
)
_RESOLVED_NAMES = (
    *("resolvedfact", "resolved", "resolvedtext", "resolvedstatement", "rewritten", "rewrittenfact", "revised"),
    *("revisedfact", "selfcontained", "selfcontainedfact", "output", "new"),
)
_CANDIDATE_NAMES = (
    *("candidates", "candidatenumbers", "candidateids", "candidate", "numbers", "answer", "matches", "ids", "subset"),
    *("selected", "result", "entailing", "output", "matchingcandidates", "entailed"),
)
_REFERENCE_NAMES = ("reference", "referenceid", "ref", "referencenumber", "referencefact")
_CANDIDATES = listed(number_of("candidates"))


@reader
def parse_resolved(text: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the `facts`: one rewritten text for each of the `facts` in the request, by number or by position.

    Raises `Unparsable` if the number of texts is wrong, if a number is not the number of a fact, if a text is equal to
    another fact, and if a line without a bullet has less than half of the words of its fact.
    """
    facts: Sequence[str] = variables["facts"]
    items = lists.read_items(text, lists.FACT_NAMES, preferred=_RESOLVED_NAMES, may_be_plain=len(facts) == 1)
    lists.check_rewritten([item.text for item in items], "\n".join([str(variables.get("text") or ""), *facts]))
    numbers = [item.number for item in items if item.number is not None]
    # Markdown lists may have the same number before each item
    if len(set(numbers)) > 1:
        if sorted(numbers) != list(range(1, len(facts) + 1)):
            raise Unparsable("a number that is not the number of a fact")
        items = sorted(items, key=lambda item: item.number or 0)
    if len(items) != len(facts):
        raise Unparsable(f"{len(items)} texts for {len(facts)} facts")
    keys = list(map(lists.matching_key, facts))
    texts = [lists.matching_key(item.text) for item in items]
    for key, said, item in zip(keys, texts, items, strict=True):
        words = set(key.split())
        # A fact may become equal to another one, which then has this text too
        if said != key and said in keys and texts[keys.index(said)] != said:
            raise Unparsable("the text of another fact")
        if not item.is_marked and 2 * len(words.intersection(said.split())) < len(words):
            raise Unparsable("a line without the words of its fact")
    return {"facts": [item.text for item in items]}


@reader
def parse_match(text: str, variables: Mapping[str, Any]) -> dict[str, bool]:
    """Return `matched`, True for the label Match. Raises `Unparsable` if there is no label or more than one."""
    own = [str(variables.get(name) or "") for name in MATCH_VARIABLES]
    return {"matched": read_label(text, _LABELS, own) == _MATCH}


@reader
def parse_subset(text: str, variables: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the numbers of the `candidates` in ascending order. Raises `Unparsable` if there is no clear list."""
    return {"candidates": lists.read_numbers(text, _CANDIDATE_NAMES, variables["candidates"])}


@reader
def parse_holistic(text: str, variables: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """Return the numbers of the `candidates` for each of the `references`, in ascending order."""
    names = ("candidates", "candidate", "candidateids", "candidatenumbers", "evidence")
    references, candidates = variables["references"], variables["candidates"]
    return {"candidates": lists.read_number_lists(text, _REFERENCE_NAMES, names, references, candidates)}


RESOLVE_COREFERENCE = StageDefinition(
    "resolve_coreference",
    ("text", "facts"),
    parse_resolved,
    pa.schema({"facts": lists.TEXTS}),
    schema=record(facts=listed(record(id=number_of("facts"), fact=TEXT))),
    form=lines_of(r"\* .+", "* fact", "one line for each fact, in their order:"),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.82)),
    max_tokens=8_192,
)
MATCH_ONE = StageDefinition(
    "match_one",
    MATCH_VARIABLES,
    parse_match,
    pa.schema({"matched": pa.bool_()}),
    schema=record(label=one_of(("Match", "No Match"))),
    form=label_of(("Match", "No Match")),
    figures=Figures(WRITTEN, completion=LinearSize(12.0)),
)
MATCH_MANY = StageDefinition(
    "match_many",
    ("reference", "candidates"),
    parse_subset,
    pa.schema({"candidates": lists.NUMBERS}),
    schema=record(candidates=_CANDIDATES),
    form=OutputFormat("a JSON list of the candidates' numbers, such as [1, 3], or []", re.compile(r"\[[\d, ]*\]")),
    figures=Figures(WRITTEN, completion=LinearSize(9.0)),
)
MATCH_HOLISTIC = StageDefinition(
    "match_holistic",
    ("query", "references", "candidates"),
    parse_holistic,
    pa.schema({"candidates": pa.list_(lists.NUMBERS)}),
    schema=record(entailed=listed(record(reference=number_of("references"), candidates=_CANDIDATES))),
    form=lines_of(r'\{"reference": \d+, "candidates": \[[\d, ]*\]\}', '{"reference": n, "candidates": [n, ...]}'),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.29)),
    max_tokens=8_192,
)
