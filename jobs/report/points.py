"""Which statements of several answers to one query are the same point: what one answer says and another leaves out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rapidfuzz import fuzz, process

from untold.udfs.recall.forms import match_form, shown_form

# Of 100, how alike the words of two statements are at least, in any order: a judge words one anew for each answer
ALIKE = 75
# Points of a query that a further statement is held against
MOST_COMPARED = 300


@dataclass
class _Query:
    """The points of a query under a metric: by their exact form, and in order the forms and sources they began with."""

    known: dict[str, int] = field(default_factory=dict)
    forms: list[str] = field(default_factory=list)
    sources: list[frozenset[str]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


class Points:
    """Points, by the number of the text of their first statement.

    Statements are one point where their reference, or one of their texts, is the same. Statements without other
    wordings (`members` null) are also one where their words are alike, they name the same numbers, and share a source.
    """

    def __init__(self) -> None:
        self._queries: dict[tuple[str, str], _Query] = defaultdict(_Query)

    def number(self, metric: str, query: str, statement: Mapping[str, Any], text: int) -> int:
        """The point of a statement of an answer to the query, which is its own text where it is the first."""
        own = self._queries[metric, query]
        reference = statement["reference_id"]
        texts = [statement["text"] or "", *(statement["members"] or ())]
        forms = [f"#{reference}"] if reference is not None else [match_form(shown_form(text)) for text in texts]
        found = next((own.known[form] for form in forms if form in own.known), None)
        sources = frozenset(statement["sources"] or ())
        if found is None and reference is None and statement["members"] is None:
            found = _alike(own, forms[0], sources)
        if found is None:
            found = text
            own.forms.append(forms[0])
            own.sources.append(sources)
            own.numbers.append(found)
        for form in forms:
            own.known.setdefault(form, found)
        return found


def _alike(own: _Query, form: str, sources: frozenset[str]) -> int | None:
    """The point whose words are most alike; None where none is alike enough."""
    scored = process.extract(form, own.forms[:MOST_COMPARED], scorer=fuzz.token_sort_ratio, score_cutoff=ALIKE, limit=3)
    for other, _, place in scored:
        there = own.sources[place]
        if _numbers(other) == _numbers(form) and (not sources or not there or sources & there):
            return own.numbers[place]
    return None


def _numbers(form: str) -> list[str]:
    return sorted(re.findall(r"\d+", form))
