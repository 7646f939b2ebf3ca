"""Ratings as expected scores from log-probabilities (Dejl et al. 2025; methods, section 1)."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice, zip_longest
from typing import Any

# The scale of relevance and of confidence (methods, section 1).
SCALE = "12345"

_RATING = re.compile(rf"(?<!\d)[{SCALE}](?!\d)")
_ESCAPED_BYTES = re.compile(r"(?:bytes:)?\s*(?:\\x[0-9a-fA-F]{2}|<0x[0-9A-F]{2}>)+")
_SPECIAL = re.compile(r"<[^<>\s]{1,40}>")
_MOST_ALTERNATIVES = 20  # the most that any endpoint gives
_LONGEST_TOKEN = 64  # characters; what is longer is no model's token
_ROUNDING = 1e-3  # by which a log-probability may exceed 0


@dataclass(frozen=True)
class Digit:
    """A rating as a completion says it: its value, and the character offset of its digit in the completion."""

    value: int
    offset: int


@dataclass(frozen=True)
class _Token:
    """A token as the endpoint names it, with its log-probability and its alternatives as the endpoint sent them."""

    text: str
    logprob: Any
    top: Any


def weigh(row: Mapping[str, Any], alternatives: Any) -> tuple[dict[str, Any], bool]:
    """The row with the expected score, a float, for every `Digit`, at any depth; whether all could be weighted.

    `alternatives` is a list of {"offset": int, "top": [{"token": str, "logprob": float}, ...]}, or None. The expected
    score is the sum of s * p(s) over that of p(s), s from 1 to 5, at the digit's offset; the digit itself where that
    has no alternatives, or none with a probability above 0.

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
    weighted = all(digit.offset in expected for digit in _digits(row))
    return {name: _replaced(value, expected) for name, value in row.items()}, weighted


def read_alternatives(text: str, logprobs: Any) -> list[dict[str, Any]] | None:
    """The alternatives at each digit 1 to 5 of `text` that stands alone, in the form that `weigh` takes, or None.

    `logprobs` are a choice's, chat-shaped or legacy-shaped, of any content. An alternative is named without what
    surrounds the digit in the token that was said. None where no digit has any, or where the tokens are not the text's.
    """
    tokens = _read_tokens(logprobs)
    offsets = [found.start() for found in _RATING.finditer(text)]
    found = []
    for offset, place in zip(offsets, _places(text, offsets, tokens), strict=False):
        if top := _top(*place):
            found.append({"offset": offset, "top": top})
    return found or None


def _digits(value: Any) -> Iterator[Digit]:
    """Every `Digit` within a value, at any depth."""
    if isinstance(value, Digit):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _digits(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _digits(item)


def _replaced(value: Any, expected: Mapping[int, float]) -> Any:
    """The value with every `Digit` as the score that is expected at its offset, else as the digit itself."""
    if isinstance(value, Digit):
        return expected.get(value.offset, float(value.value))
    if isinstance(value, Mapping):
        return {name: _replaced(item, expected) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(item, expected) for item in value]
    return value


def _expected_score(top: Iterable[Mapping[str, Any]]) -> float | None:
    """The mean of the scores by their probabilities; None where no alternative is a score of any probability."""
    total = weighted = 0.0
    for each in top:
        score, logprob = _score(each["token"]), _logprob(each["logprob"])
        if score is not None and logprob is not None:
            total += math.exp(logprob)
            weighted += score * math.exp(logprob)
    return weighted / total if total > 0 else None


def _score(token: Any) -> int | None:
    """The rating that a token says: one digit of the scale and no other letter or digit.

    >>> _score(" 4"), _score("**4"), _score("45"), _score("four")
    (4, 4, None, None)
    """
    said = [character for character in token if character.isalnum()] if isinstance(token, str) else []
    return int(said[0]) if len(said) == 1 and said[0] in SCALE else None


def _logprob(value: Any) -> float | None:
    """A log-probability, rounding above 0 mended; None for what is none, NaN included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        logprob = float(value)
    except OverflowError:
        return None
    return min(logprob, 0.0) if logprob <= _ROUNDING else None


def _read_tokens(logprobs: Any) -> list[_Token]:
    """The tokens of a choice's log-probabilities, of the chat shape or the older one; none for any other."""
    if not isinstance(logprobs, Mapping):
        return []
    if isinstance(content := logprobs.get("content"), list):
        return [_token(*_named(entry), _field(entry, "top_logprobs")) for entry in content]
    tokens = _list(logprobs.get("tokens"))
    beside = (_list(logprobs.get(name))[: len(tokens)] for name in ("token_logprobs", "top_logprobs"))
    return [_token(*entry) for entry in zip_longest(tokens, *beside)]


def _token(text: Any, logprob: Any, top: Any) -> _Token:
    """A token; where its name is no text, it stands for nothing in the completion."""
    return _Token(text if isinstance(text, str) else "", logprob, top)


def _list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def _field(entry: Any, name: str) -> Any:
    """A field of an entry, None where the entry is no object."""
    return entry.get(name) if isinstance(entry, Mapping) else None


def _named(entry: Any) -> tuple[Any, Any]:
    """An alternative's token and log-probability, of any type yet."""
    return _field(entry, "token"), _field(entry, "logprob")


def _alternatives(said: _Token) -> list[tuple[Any, Any]]:
    """At most so many as an endpoint gives, and the token that was said where they leave it out."""
    top = said.top.items() if isinstance(said.top, Mapping) else map(_named, _list(said.top))
    alternatives = list(islice(top, _MOST_ALTERNATIVES))
    if alternatives and all(token != said.text for token, _ in alternatives):
        alternatives.append((said.text, said.logprob))
    return alternatives


def _places(text: str, offsets: list[int], tokens: list[_Token]) -> Iterator[tuple[_Token, int]]:
    """For each offset its token and the place in that token's skeleton; nothing where the tokens are not the text's.

    Compared without white space and without all that is not ASCII: what tokens write differently from the text.
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
    """Where the text begins in the joined tokens: thinking may come before, a token that ends the completion after."""
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
    """The ASCII characters of a text but white space."""
    return "".join(text.encode("ascii", "ignore").decode("ascii").split())


def _place_in(token: str, inside: int) -> int:
    """The place in the token of the character that has `inside` others of the skeleton before it."""
    kept = (place for place, character in enumerate(token) if character.isascii() and not character.isspace())
    return next(islice(kept, inside, None))


def _top(said: _Token, inside: int) -> list[dict[str, Any]]:
    """The alternatives at a digit: those of its token, each without what surrounds the digit there."""
    if len(said.text) > _LONGEST_TOKEN:
        return []
    place = _place_in(said.text, inside)
    before, after = said.text[:place], said.text[place + 1 :]
    top = []
    for token, number in _alternatives(said):
        logprob = _logprob(number)
        if isinstance(token, str) and logprob is not None:
            bare = token.removeprefix(before).removesuffix(after)
            top.append({"token": bare.encode("utf-8", "replace").decode("utf-8"), "logprob": logprob})
    return top
