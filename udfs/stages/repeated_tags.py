"""Reading past what a completion repeats of its prompt: the tags around texts, and what was escaped within them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from itertools import accumulate, islice
from typing import Any, TypeVar, cast

from untold.udfs.llm.escaping import TAGS, find_escaped
from untold.udfs.ratings import Digit

# A line that such a tag opens is an item, as much as one behind a bullet: prompts list these one a line
_ITEMS = ("statement", "question", "aspect", "claim", "fact")
_TAG = re.compile(
    rf"(?P<before>^[^\S\n]{{0,40}}|(?<=>))?</?(?P<name>{'|'.join(TAGS)})s?"
    rf"(?:\s{{1,3}}id\s?=\s?[\"']?\d{{1,6}}[\"']?)?\s{{0,3}}>",
    re.IGNORECASE | re.MULTILINE,
)
_OPENS_NONE = re.compile(r"/|s\s{0,3}>", re.IGNORECASE)  # a closing tag, and `<claims>` around all of them
_ROLES = ("assistant", "human", "user", "usuario", "utilisateur", "benutzer", "utente", "пользователь", "用户")
_ROLE = rf"(?:{'|'.join(_ROLES)})"
# `Human: ...`, `=== user`, `Context 1: <context>`, and the names of roles that removed tokens leave
_TURN = re.compile(
    rf"^[ \t]{{0,9}}(?:(?:[*_]{{2}}|\#{{1,6}} )?(?:{_ROLE}|(?<=\# )instruction)[*_]{{0,2}}[ \t]?[:：]"
    rf"|(?:={{2,9}}|-{{2,9}}|[\[<])[ \t]?{_ROLE}[\]> \t=-]{{0,9}}\r?$"
    rf"|(?:\w{{1,20}} \d{{1,3}}: ?)?<(?P<tag>{'|'.join(TAGS)})(?: id=[^<>\n]{{1,9}})?>)"
    r"|(?:^|(?<=[^\s-])(?=\w{4,9}[ \t\r]{0,9}\n[ \t\r]{0,9}$))(?P<name>(?-i:user|assistant))[ \t\r]{0,9}$",
    re.IGNORECASE | re.MULTILINE,
)
_INTRODUCES = re.compile(r"[:：][*_]{0,2}\s{0,9}\Z")
_MOST_TURNS, _LONGEST_GAP = 32, 16  # candidates to check, characters between one and a colon above
_BULLET = "* "

Row = TypeVar("Row", bound=Mapping[str, Any])
Edit = tuple[int, int, str]  # start, end, and what stands there instead


def past_echoes(parse: Callable[[str, Mapping[str, Any]], Row]) -> Callable[[str, Mapping[str, Any]], Row]:
    """The parser, reading a completion as if the prompt had held its texts as they are; digits keep their places in it.

    The prompt's tags that it repeats go. A tag stays where a text of the variables has one of that name: there it may
    be the text's own. What was escaped in a text, and is repeated so, is as it was in the text.
    """

    @wraps(parse)
    def parse_bare(completion: str, variables: Mapping[str, Any]) -> Row:
        # The longest search of a reading, which most completions do not need
        tags = list(_TAG.finditer(completion)) if "<" in completion else []
        escaped = list(find_escaped(completion))
        if not tags and not escaped:
            return parse(completion, variables)
        texts = list(texts_of(variables.values()))
        own = {found["name"].lower() for text in texts for found in _TAG.finditer(text)}
        edits = [_without(found) for found in tags if found["name"].lower() not in own]
        edits += [edit for edit in escaped if any(edit[2] in text for text in texts)]
        bare, place_of = _edited(completion, sorted(edits))
        read = parse(bare, variables)
        return cast("Row", {name: moved(value, place_of) for name, value in read.items()})

    return parse_bare


def next_turn(text: str, variables: Mapping[str, Any]) -> tuple[int, bool] | None:
    """Return the start of a second turn, and True if it cannot be anything else. Return None if there is one turn.

    The turn begins with the name of a role, or with a tag that has the name of a variable and another text than the own
    ones. Ignore the tags of items: completions set them around their own items.
    """
    folded, begin = text.casefold(), len(text) - len(text.lstrip())
    # The pattern is slow: most completions have no candidate
    if "<" not in text and "instruction:" not in folded and not any(map(folded.__contains__, _ROLES)):
        return None
    found = [each for each in islice(_TURN.finditer(text), _MOST_TURNS) if each.start() > begin]
    own = "\n".join(texts_of(variables.values())) if found else ""
    names = {name for name in variables if name in TAGS} | {name[:-1] for name in variables}.difference(_ITEMS)
    found = [each for each in found if each["tag"] is None or (each["tag"].lower() in names and not _is_own(each, own))]
    found = [each for each in found if each[0].strip() not in own]
    answered = {"assistant" in each[0].casefold() for each in found if each["tag"] is None}
    # A lone word `user` may be an item
    first = next((each for each in found if each["name"] != "user" or True in answered), None)
    if first is None or _INTRODUCES.search(text, max(0, first.start() - _LONGEST_GAP), first.start()):
        return None
    is_glued = first["name"] is not None and text[first.start() - 1] != "\n"
    return first.start(), len(answered) > 1 or is_glued


def _is_own(tag: re.Match[str], own: str) -> bool:
    """Return True if a tag encloses an own text or the rest of the completion."""
    inside, _, behind = tag.string[tag.end() :].partition(f"</{tag['tag']}")
    return inside.strip() in own or not behind[1:].strip()


def texts_of(values: Any) -> Iterator[str]:
    """All texts, those in lists included."""
    texts = (text for value in values for text in (value if isinstance(value, (list, tuple)) else [value]))
    return (text for text in texts if isinstance(text, str))


def _without(tag: re.Match[str]) -> Edit:
    """The edit that removes a tag, or puts a bullet in the place of one that opens an item."""
    starts_line = tag.start() == 0 or tag.string[tag.start() - 1] == "\n"
    bullet = ("" if starts_line else "\n") + _BULLET
    return tag.start(), tag.end(), bullet if _opens_item(tag) else ""


def _edited(completion: str, edits: Sequence[Edit]) -> tuple[str, Callable[[int], int]]:
    """The completion after all edits, in order, and where a place in it was before."""
    kept, ends, lost, last = [], [0], [0], 0
    for start, end, instead in edits:
        kept += [completion[last:start], instead]
        last = end
        ends.append(sum(map(len, kept[-2:])))
        lost.append(end - start - len(instead))
    kept.append(completion[last:])
    places, shifts = list(accumulate(ends)), list(accumulate(lost))
    return "".join(kept), lambda place: place + shifts[bisect_right(places, place) - 1]


def _opens_item(found: re.Match[str]) -> bool:
    """Whether a line, or what stands behind another tag, begins with the opening tag of an item."""
    return found["before"] is not None and found["name"].lower() in _ITEMS and not _OPENS_NONE.search(found[0])


def moved(value: Any, place: Callable[[int], int]) -> Any:
    """The value with the digits in it at their places in the whole completion."""
    if isinstance(value, Digit):
        return replace(value, offset=place(value.offset))
    return [moved(each, place) for each in value] if isinstance(value, list) else value
