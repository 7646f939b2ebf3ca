"""Reading past the tags of the shipped prompts, which small models repeat around what they write."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from itertools import accumulate
from typing import Any, TypeVar, cast

from untold.udfs.ratings import Digit

# Between these tags the templates in `conf/prompts` put their texts (docs/contract.md, "Templates")
TAGS: tuple[str, ...] = (
    *("query", "text", "context", "response", "statement", "question", "answer", "premise", "hypothesis"),
    *("first", "second", "aspect", "claim", "fact", "evidence"),
    *("reference", "candidate"),
)
# A line that such a tag opens is an item, as much as one behind a bullet: prompts list these one a line
_ITEMS = ("statement", "question", "aspect", "claim", "fact")
_TAG = re.compile(
    rf"(?P<before>^[^\S\n]{{0,40}}|(?<=>))?</?(?P<name>{'|'.join(TAGS)})s?"
    rf"(?:\s{{1,3}}id\s?=\s?[\"']?\d{{1,6}}[\"']?)?\s{{0,3}}>",
    re.IGNORECASE | re.MULTILINE,
)
_OPENS_NONE = re.compile(r"/|s\s{0,3}>", re.IGNORECASE)  # a closing tag, and `<claims>` around all of them
_BULLET = "* "

Row = TypeVar("Row", bound=Mapping[str, Any])


def past_echoes(parse: Callable[[str, Mapping[str, Any]], Row]) -> Callable[[str, Mapping[str, Any]], Row]:
    """The parser, reading a completion without the prompt's tags that it repeats; digits keep their places in it.

    A tag stays where a text of the variables has one of that name: there it may be the text's own.
    """

    @wraps(parse)
    def parse_bare(completion: str, variables: Mapping[str, Any]) -> Row:
        if not _TAG.search(completion):
            return parse(completion, variables)
        bare, moved = _without_tags(completion, _names_within(variables.values()))
        read = parse(bare, variables)
        return cast("Row", {name: _moved(value, moved) for name, value in read.items()})

    return parse_bare


def _names_within(values: Any) -> set[str]:
    """The names of all tags that the texts hold, lists of texts included."""
    texts = (text for value in values for text in (value if isinstance(value, (list, tuple)) else [value]))
    return {found["name"].lower() for text in texts if isinstance(text, str) for found in _TAG.finditer(text)}


def _without_tags(completion: str, own: set[str]) -> tuple[str, Callable[[int], int]]:
    """The completion without tags but those of `own` names, and where a place in it was before."""
    kept, ends, lost, last = [], [0], [0], 0
    for found in _tags(completion, own):
        sign = ("" if found.start() == 0 or found.string[found.start() - 1] == "\n" else "\n") + _BULLET
        sign = sign if _opens_item(found) else ""
        kept += [completion[last : found.start()], sign]
        last = found.end()
        ends.append(sum(map(len, kept[-2:])))
        lost.append(len(found[0]) - len(sign))
    kept.append(completion[last:])
    places, shifts = list(accumulate(ends)), list(accumulate(lost))
    return "".join(kept), lambda place: place + shifts[bisect_right(places, place) - 1]


def _tags(completion: str, own: set[str]) -> Iterator[re.Match[str]]:
    return (found for found in _TAG.finditer(completion) if found["name"].lower() not in own)


def _opens_item(found: re.Match[str]) -> bool:
    """Whether a line, or what stands behind another tag, begins with the opening tag of an item."""
    return found["before"] is not None and found["name"].lower() in _ITEMS and not _OPENS_NONE.search(found[0])


def _moved(value: Any, place: Callable[[int], int]) -> Any:
    """The value with the digits in it at their places in the whole completion."""
    if isinstance(value, Digit):
        return replace(value, offset=place(value.offset))
    return [_moved(each, place) for each in value] if isinstance(value, list) else value
