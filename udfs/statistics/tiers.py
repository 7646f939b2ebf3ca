"""Count the methods that cover a reference, and draw references by that count. LongRecall; methods, section 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FULL, PARTIAL, NONE = "full", "partial", "none"
SINGLETON = "singleton:"
KINDS = ("standard", "challenging")


@dataclass(frozen=True)
class Subset:
    """The size of a study and its choice of references: in proportion to the tiers (standard), or if methods differ."""

    kind: str
    size: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}"


def read_subset(text: str) -> Subset:
    """Return the subset that a text names. Raises ValueError for any other text.

    >>> read_subset("challenging:300")
    Subset(kind='challenging', size=300)
    """
    kind, colon, size = text.partition(":")
    if kind not in KINDS or not colon or not size.isdecimal() or int(size) < 1:
        raise ValueError(f"{text!r} is neither standard:N nor challenging:N, N at least 1")
    return Subset(kind, int(size))


def tier_of(covered: Mapping[str, bool]) -> str:
    """Return the tier of a reference from the verdict of each method.

    >>> [tier_of(dict(zip("abc", one))) for one in ([1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0])]
    ['full', 'partial', 'singleton:b', 'none']
    """
    calling = [name for name, says in covered.items() if says]
    if not calling:
        return NONE
    if len(calling) == len(covered):
        return FULL
    return f"{SINGLETON}{calling[0]}" if len(calling) == 1 else PARTIAL


def all_tiers(methods: Sequence[str]) -> list[str]:
    """Return every tier of the methods in the order of reports.

    >>> all_tiers(["a", "b"])
    ['full', 'partial', 'singleton:a', 'singleton:b', 'none']
    """
    return [FULL, PARTIAL, *(f"{SINGLETON}{name}" for name in methods), NONE]


def largest_remainder(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Divide `size` in proportion to the counts: the shares rounded down, and one more for the greatest remainders.

    Equal remainders have the order of the counts. A quota is at most its count.

    >>> largest_remainder({"full": 50, "partial": 30, "none": 21}, 10)
    {'full': 5, 'partial': 3, 'none': 2}
    """
    total = sum(counts.values())
    if size >= total:
        return dict(counts)
    # Integers keep equal fractions equal
    quotas = {name: count * size // total for name, count in counts.items()}
    rest = sorted(counts, key=lambda name: -(counts[name] * size % total))[: size - sum(quotas.values())]
    return {name: quota + (name in rest) for name, quota in quotas.items()}


def quotas_of(subset: Subset, counts: Mapping[str, int], methods: Sequence[str]) -> dict[str, int]:
    """Return the number of references to draw from each tier. A tier may have fewer.

    standard: in proportion to the counts of all tiers but `none`. challenging: half partial and half singleton, with
    an odd one partial. The methods have equal numbers of singletons, and the first methods one more if these do not
    divide.

    >>> quotas_of(Subset("standard", 10), {"full": 50, "partial": 30, "singleton:a": 20, "none": 900}, ["a"])
    {'full': 5, 'partial': 3, 'singleton:a': 2}
    >>> quotas_of(Subset("challenging", 11), {}, ["a", "b"])
    {'partial': 6, 'singleton:a': 3, 'singleton:b': 2}
    """
    if subset.kind == "standard":
        return largest_remainder(_covered(counts), subset.size)
    alone = subset.size // 2
    each, odd = divmod(alone, len(methods)) if methods else (0, 0)
    singles = {f"{SINGLETON}{name}": each + (place < odd) for place, name in enumerate(methods)}
    return {PARTIAL: subset.size - alone, **singles}


def _covered(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if name != NONE}


def shortages(subset: Subset, quotas: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the tiers with too few references: their number and the quota.

    `all` means that the methods cover too few references together.

    >>> shortages(Subset("standard", 9), {"full": 4}, {"full": 4})
    {'all': (4, 9)}
    """
    if subset.kind == "standard":
        total = sum(_covered(counts).values())
        return {"all": (total, subset.size)} if total < subset.size else {}
    return {name: (counts.get(name, 0), wanted) for name, wanted in quotas.items() if counts.get(name, 0) < wanted}
