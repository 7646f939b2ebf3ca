"""The texts of a report: each stored once, and cut so far that the page stays within its bytes."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Characters of one text, and of all: beyond these a text is cut while it is read, so that memory stays bounded
LONGEST, MOST, SHORT = 200_000, 60_000_000, 300
# Bytes of the data in the page: it has 5 MB in all, and its figures, style and script take some 0.2 MB
BUDGET = 4_400_000
# Up to so many bytes the data stands in the page as it is; beyond, it is packed
PLAIN = 1_500_000
# Characters that texts are cut to, until the data fits
LIMITS = (LONGEST, 20_000, 8_000, 4_000, 2_000, 1_200, 800, 500, 300, 200, 120, 60)
# JSON of texts packs to no less than a part in so many
PACKED = 12


@dataclass
class Texts:
    """Distinct texts by number, in the order in which they came: what is asked for first is what a reader needs most."""

    texts: list[str] = field(default_factory=list)
    # Characters of those that are cut
    lengths: dict[int, int] = field(default_factory=dict)
    _known: dict[tuple[str, int], int] = field(default_factory=dict)
    _size: int = 0

    def add(self, text: str | None) -> int | None:
        """The number of a text; None for none."""
        if text is None:
            return None
        kept = text[: LONGEST if self._size < MOST else SHORT]
        # Long texts may begin alike
        key = (kept, hash(text))
        if key not in self._known:
            self._known[key] = len(self.texts)
            if len(kept) < len(text):
                self.lengths[len(self.texts)] = len(text)
            self.texts.append(kept)
            self._size += len(kept)
        return self._known[key]

    def cut(self, limit: int) -> dict[str, Any]:
        """`texts`, none longer than the limit, and `lengths` of those that are cut, by number."""
        longer = {number: len(text) for number, text in enumerate(self.texts) if len(text) > limit}
        lengths = {**longer, **self.lengths}
        return {"texts": [text[:limit] for text in self.texts], "lengths": lengths, "limit": limit if lengths else None}


@dataclass(frozen=True)
class Packed:
    """Data as it stands in the page: JSON, or where that is large `packed` by gzip and base64; what texts are cut to."""

    text: str
    packed: bool
    limit: int | None


def pack(data: Mapping[str, Any], texts: Texts, budget: int = BUDGET) -> Packed:
    """The data with its texts, cut to the first of `LIMITS` that fits the budget, or the last."""
    size = len(_json(data))
    for limit in LIMITS:
        total = size + sum(min(len(text), limit) for text in texts.texts)
        if total > PACKED * budget and limit != LIMITS[-1]:
            continue
        found = texts.cut(limit)
        written = _json({**data, **found})
        if len(written) <= PLAIN:
            return Packed(written, False, found["limit"])
        packed = base64.b64encode(gzip.compress(written.encode(), 9, mtime=0)).decode()
        if len(packed) <= budget:
            break
    return Packed(packed, True, found["limit"])


def _json(value: Any) -> str:
    """JSON that no element of a page can end or begin in: `<` and what else HTML reads is escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def compact(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what is null or empty.

    >>> compact({"a": 0, "b": None, "c": [], "d": False})
    {'a': 0, 'd': False}
    """
    return {name: value for name, value in row.items() if value is not None and value != [] and value != {}}


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A number with few digits; None for null and for what is no number."""
    return None if value is None or value != value else round(value, digits)


def numbers_of(texts: Texts, found: Sequence[str | None] | None) -> list[int | None]:
    """The numbers of several texts."""
    return [texts.add(text) for text in found or ()]
