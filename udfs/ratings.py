"""Compute ratings as expected scores from log-probabilities (Dejl et al. 2025; methods, section 1)."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice, zip_longest
from typing import Any

# The scale of relevance and of confidence (methods, section 1).
SCALE = "12345"

_RATING = re.compile(rf"(?<!\d)[{SCALE}](?!\d)")
_ESCAPED_BYTES = re.compile(r"(?:bytes:)?\s*(?:\\x[0-9a-fA-F]{2}|<0x[0-9A-F]{2}>)+")
_SPECIAL = re.compile(r"<[^<>\s]{1,40}>")
_MOST_ALTERNATIVES = 20  # the maximum of all endpoints
_LONGEST_TOKEN = 64  # characters; models have no longer tokens
_ROUNDING = 1e-3  # tolerance for log-probabilities above 0


@dataclass(frozen=True)
class Digit:
    """A rating in a completion: its value, and the character offset of its digit in the completion."""

    value: int
    offset: int


@dataclass(frozen=True)
class _Token:
    """A token with its log-probability and its alternatives, as the endpoint sent them."""

    text: str
    logprob: Any
    top: Any


def weigh(row: Mapping[str, Any], alternatives: Any) -> tuple[dict[str, Any], bool]:
    """Return the row with the expected score for every `Digit`, at any depth, and whether all have alternatives.

    `alternatives` is a list of {"offset": int, "top": [{"token": str, "logprob": float}, ...]}, or None. The expected
    score is the sum of s * p(s) over the sum of p(s), s from 1 to 5, at the offset of the digit. It is the digit itself
    if there are no alternatives with a probability above 0.

    >>> half = [{"token": "4", "logprob": math.log(0.5)}, {"token": "5", "logprob": math.log(0.5)}]
    >>> weigh({"rating": Digit(5, offset=12)}, [{"offset": 12, "top": half}])
    ({'rating': 4.5}, True)
    >>> weigh({"rating": Digit(5, offset=12)}, None)
    ({'rating': 5.0}, False)
    """
    expected: dict[int, float] = {}
    for place in alternatives or []:
        score = _expected_score(place["top"] or [])
        if score is not None:
            expected.setdefault(place["offset"], score)
    weighted = all(leaf.offset in expected for leaf in leaves(row) if isinstance(leaf, Digit))

    def score_of(leaf: Any) -> Any:
        return expected.get(leaf.offset, float(leaf.value)) if isinstance(leaf, Digit) else leaf

    return with_leaves(row, score_of), weighted


def read_alternatives(text: str, logprobs: Any) -> list[dict[str, Any]] | None:
    """Return the alternatives at each separate digit 1 to 5 of `text`, in the format of `weigh`, or None.

    `logprobs` are the log-probabilities of a choice, in the format of chat or the older format, unchecked. The text of
    an alternative excludes the characters that surround the digit in the token of the completion. The result is None if
    no digit has alternatives, or if the tokens do not match the text.
    """
    tokens = _read_tokens(logprobs)
    offsets = [found.start() for found in _RATING.finditer(text)]
    found = []
    for offset, place in zip(offsets, _places(text, offsets, tokens), strict=False):
        if top := _top(*place):
            found.append({"offset": offset, "top": top})
    return found or None


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values within mappings and lists, at any depth."""
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(item)
    else:
        yield value


def with_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with the result of `change` in place of each of its `leaves`."""
    if isinstance(value, Mapping):
        return {name: with_leaves(item, change) for name, item in value.items()}
    return [with_leaves(item, change) for item in value] if isinstance(value, list | tuple) else change(value)


def _expected_score(top: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the mean of the scores weighted by probability, or None if no alternative is a score."""
    total = weighted = 0.0
    for each in top:
        score, logprob = _score(each["token"]), _logprob(each["logprob"])
        if score is not None and logprob is not None:
            total += math.exp(logprob)
            weighted += score * math.exp(logprob)
    return weighted / total if total > 0 else None


def _score(token: Any) -> int | None:
    """Return the rating of a token: one digit of the scale and no other letter or digit.

    >>> _score(" 4"), _score("**4"), _score("45"), _score("four")
    (4, 4, None, None)
    """
    said = [character for character in token if character.isalnum()] if isinstance(token, str) else []
    return int(said[0]) if len(said) == 1 and said[0] in SCALE else None


def _logprob(value: Any) -> float | None:
    """Return a log-probability, with rounding errors above 0 removed, or None for an invalid value such as NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        logprob = float(value)
    except OverflowError:
        return None
    return min(logprob, 0.0) if logprob <= _ROUNDING else None


def _read_tokens(logprobs: Any) -> list[_Token]:
    """Return the tokens of a choice's log-probabilities, in the format of chat or the older format."""
    if not isinstance(logprobs, Mapping):
        return []
    entries: Iterable[tuple[Any, Any, Any]]
    if isinstance(content := logprobs.get("content"), list):
        entries = ((*_named(entry), _field(entry, "top_logprobs")) for entry in content)
    else:
        tokens = _list(logprobs.get("tokens"))
        beside = (_list(logprobs.get(name))[: len(tokens)] for name in ("token_logprobs", "top_logprobs"))
        entries = zip_longest(tokens, *beside)
    return [_Token(text if isinstance(text, str) else "", logprob, top) for text, logprob, top in entries]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, Mapping) else None


def _named(entry: Any) -> tuple[Any, Any]:
    """Return the token and log-probability of an alternative, unchecked."""
    return _field(entry, "token"), _field(entry, "logprob")


def _places(text: str, offsets: list[int], tokens: list[_Token]) -> Iterator[tuple[_Token, int]]:
    """Yield for each offset its token and the position in that token's skeleton, if the tokens match the text.

    The comparison ignores white space and non-ASCII characters, because tokens write them differently.
    """
    skeletons = ["" if _ESCAPED_BYTES.fullmatch(token.text) else _skeleton(token.text) for token in tokens]
    start = _start_of(_skeleton(text), skeletons, tokens)
    if start is None:
        return
    ends = list(accumulate(map(len, skeletons)))
    before = last = 0
    for offset in offsets:
        before, last = before + len(_skeleton(text[last:offset])), offset
        number = bisect_right(ends, start + before)
        inside = start + before - (ends[number] - len(skeletons[number]))
        yield tokens[number], inside


def _start_of(wanted: str, skeletons: list[str], tokens: list[_Token]) -> int | None:
    """Return the start of the text in the joined tokens. Reasoning may precede it, and an end token may follow it."""
    joined = "".join(skeletons)
    last = joined.rfind(wanted) if wanted else -1
    if last < 0:
        return None
    if last == joined.find(wanted):
        return last
    behind = len(joined)
    for token, skeleton in zip(reversed(tokens), reversed(skeletons), strict=True):
        if behind == last + len(wanted) or not (skeleton == "" or _SPECIAL.fullmatch(token.text)):
            break
        behind -= len(skeleton)
    return last if behind == last + len(wanted) else None


def _skeleton(text: str) -> str:
    """Return the ASCII characters of a text without white space."""
    return "".join(text.encode("ascii", "ignore").decode("ascii").split())


def _top(said: _Token, inside: int) -> list[dict[str, Any]]:
    """Return the alternatives at a digit, without the characters that surround the digit in its token."""
    if len(said.text) > _LONGEST_TOKEN:
        return []
    kept = [place for place, character in enumerate(said.text) if character.isascii() and not character.isspace()]
    place = kept[inside]
    before, after = said.text[:place], said.text[place + 1 :]
    named = said.top.items() if isinstance(said.top, Mapping) else map(_named, _list(said.top))
    alternatives = list(islice(named, _MOST_ALTERNATIVES))
    if alternatives and all(token != said.text for token, _ in alternatives):
        # The endpoint omits the token itself
        alternatives.append((said.text, said.logprob))
    top = []
    for token, number in alternatives:
        logprob = _logprob(number)
        if isinstance(token, str) and logprob is not None:
            bare = token.removeprefix(before).removesuffix(after)
            top.append({"token": bare.encode("utf-8", "replace").decode("utf-8"), "logprob": logprob})
    return top
