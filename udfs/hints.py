"""Near misses: which known words somebody may have meant, and how that is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

ALIKE = 0.6  # difflib's own threshold of similarity: a slip or two in a word of usual length
LONGEST_SHOWN = 40


def near_misses(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = ALIKE) -> list[str]:
    """The known words that are most like `word`, nearest first; case and outer spaces do not count.

    `cutoff` is the least similarity, from 0 (anything) to 1 (the same).

    >>> near_misses("Sampel_ID ", ["query", "sample_id"])
    ['sample_id']
    """
    by_folded: dict[str, str] = {}
    for name in known:
        # Of names that differ by case alone, the first is offered.
        by_folded.setdefault(name.strip().lower(), name)
    return [by_folded[match] for match in get_close_matches(word.strip().lower(), by_folded, n=most, cutoff=cutoff)]


def did_you_mean(near: Sequence[str], quote: str = "`") -> str:
    """What is asked for these near misses, `did you mean a or b?`; empty where there are none.

    >>> did_you_mean(["query", "response"])
    'did you mean `query` or `response`?'
    """
    return f"did you mean {' or '.join(f'{quote}{name}{quote}' for name in near)}?" if near else ""


def aside(near: Sequence[str]) -> str:
    """The same in brackets behind a name, with the space before them, long names cut; empty where there are none.

    >>> aside(["sample_id"])
    ' (did you mean `sample_id`?)'
    """
    return f" ({did_you_mean([shorten(name) for name in near])})" if near else ""


def shorten(name: str, most: int = LONGEST_SHOWN) -> str:
    """The name, cut where it is longer than `most` characters: ids may be whole texts.

    >>> shorten("a-long-name", 6)
    'a-long…'
    """
    return name if len(name) <= most else f"{name[:most]}…"
