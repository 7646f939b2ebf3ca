"""Facts of texts and their comparison for LongRecall, by brute force: docs/methods.md, section 13.

Each text is normalised sign by sign, and each pair of facts is compared separately. Matchings use networkx, and
sentences use nupunkt.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import hypot

import networkx as nx
from nupunkt import sent_tokenize
from rapidfuzz.distance import Indel, LCSseq

from tests.fakes.lookups import vector_of

_PLAIN = {
    **dict.fromkeys("‘’‚‛′`´", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    "【": "[",
    "】": "]",
}
_MARKS = tuple("-*+•‣◦▪·")
_NEGATIONS = ("not", "no", "never", "none", "neither", "nor", "without", "cannot")


@dataclass(frozen=True)
class Fact:
    """A fact in its shown form: its whole text, and its anchor."""

    text: str
    anchor: str | None = None
    name: str | None = None
    free: bool = False


@lru_cache(maxsize=100_000)
def shown(text: str) -> str:
    """Return N(text)."""
    signs = unicodedata.normalize("NFKC", "".join(_PLAIN.get(sign, sign) for sign in text))
    return " ".join("".join(s for s in signs if s.isspace() or unicodedata.category(s) not in ("Cc", "Cf")).split())


@lru_cache(maxsize=100_000)
def match(text: str) -> str:
    """Return M of a text in its shown form."""
    folded, before = text.casefold(), None
    while folded != before:
        before = folded
        folded = folded.strip().removesuffix(folded.strip()[-1:] if folded.strip()[-1:] in tuple(".;:,!?") else "")
        if len(folded) > 1 and folded[0] == folded[-1] and folded[0] in "'\"":
            folded = folded[1:-1]
    return folded


@lru_cache(maxsize=100_000)
def tokens(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", match(text)))


@lru_cache(maxsize=200_000)
def jaccard(one: str, other: str) -> float:
    """Return J of two texts in their shown form. Tokens are similar from 0.8 on."""
    first, second = tokens(one), tokens(other)
    common = first & second
    pairs = [
        (("first", a), ("second", b))
        for a in first - common
        for b in second - common
        if Indel.normalized_similarity(a, b) >= 0.8
    ]
    m = len(common) + len(nx.max_weight_matching(nx.Graph(pairs), maxcardinality=True))
    return m / (len(first) + len(second) - m) if m else 0.0


def alike(one: Fact, other: Fact) -> tuple[float, float]:
    """Return J and L of two facts."""
    pairs = [(one.text, other.text)]
    if one.anchor and other.anchor:
        pairs.append((one.anchor, other.anchor))
    letters = [LCSseq.normalized_similarity(match(a), match(b)) for a, b in pairs]
    return max(jaccard(a, b) for a, b in pairs), max(letters)


def cosine(one: str, other: str) -> float:
    """Return the cosine to the precision of single-precision vectors."""
    first, second = vector_of(one), vector_of(other)
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return round(product / (hypot(*first) * hypot(*second)), 6)


def items_of(text: str) -> tuple[str, list[str]]:
    """Return the text before a list, and its items. There are no items if the text has fewer than two."""
    before: list[str] = []
    items: list[list[str]] = []
    for raw in text.splitlines():
        line = shown(raw)
        start = _length_of_mark(line)
        if start is not None:
            items.append([line[start:].strip()])
        elif items:
            items[-1].append(line)
        else:
            before.append(raw)
    if len(items) >= 2:
        return "\n".join(before), [" ".join(filter(None, lines)) for lines in items]
    line, places = shown(text), []
    while (
        found := re.compile(rf"(?<![\w.,]){len(places) + 1}\. ").search(line, places[-1][1] if places else 0)
    ) is not None:
        places.append(found.span())
    if len(places) < 3:
        return "\n".join(before), [" ".join(filter(None, lines)) for lines in items]
    ends = [start for start, _ in places[1:]] + [len(line)]
    return line[: places[0][0]], [line[start:end].strip() for (_, start), end in zip(places, ends, strict=True)]


def _length_of_mark(line: str) -> int | None:
    """Return the length of the mark at the beginning of a line, or None without a mark."""
    if line.startswith("["):
        return 0
    mark, _, _ = line.partition(" ")
    bare = mark.strip("().:")
    numbered = bare.isascii() and bare.isdigit() and len(bare) <= 3
    lettered = bare.isascii() and len(bare) == 1 and bare.isalpha()
    forms = [*_MARKS]
    forms += [f"{bare}.", f"{bare})", f"({bare})", f"{bare}:"] if numbered else []
    forms += [f"{bare})"] if lettered else []
    forms += [f"{bare}."] if lettered and bare.islower() else []
    return len(mark) if mark in forms else None


def fact_of_item(item: str) -> Fact:
    """Return an item as a fact: anchor and evidence, only an anchor, or one statement."""
    opening = next((mark for mark in ("***", "**", "__", "[") if item.startswith(mark)), None)
    closing = {"[": "]"}.get(opening or "", opening)
    anchor = evidence = ""
    if opening and closing and closing in item[len(opening) :]:
        anchor, _, evidence = item[len(opening) :].partition(closing)
        evidence = evidence.strip()
        evidence = evidence[1:] if evidence[:1] in tuple(":,;(") or evidence[:2] == "- " else evidence
    else:
        places = sorted((item.find(mark), mark) for mark in (": ", " - ", " (") if mark in item)
        if places and 1 <= len(item[: places[0][0]].split()) <= 10:
            anchor, evidence = item[: places[0][0]], item[places[0][0] + len(places[0][1]) :]
    anchor = anchor.strip().rstrip(":").strip()
    evidence = _balanced(evidence.strip())
    if anchor and evidence:
        return Fact(f"{anchor}: {evidence}", anchor)
    alone = anchor or item
    is_name = len(alone.split()) <= 10 and not _is_sentence(alone)
    return Fact(alone, alone) if is_name else Fact(alone, free=True)


def _is_sentence(text: str) -> bool:
    """Return True if a text ends like a sentence, and a word after its first has no capital."""
    return text.rstrip("\"')]")[-1:] in (".", "!", "?") and any(word[0].islower() for word in text.split()[1:])


def _balanced(text: str) -> str:
    """Return the text without unmatched closing brackets."""
    for opening, closing in ("()", "[]"):
        while True:
            depths = [text[: end + 1].count(opening) - text[: end + 1].count(closing) for end in range(len(text))]
            first = next((place for place, depth in enumerate(depths) if depth < 0), None)
            if first is None:
                break
            text = text[:first] + text[first + 1 :]
    return text.strip()


def sentences_of(text: str) -> list[Fact]:
    return [Fact(shown(one), free=True) for line in text.splitlines() for one in sent_tokenize(line)]


def cut(text: str, how: str) -> list[Fact]:
    if how == "sentences":
        return sentences_of(text)
    before, items = items_of(text)
    announced = bool(items) and shown(before).rstrip("*_ ").endswith(":")
    return [*([] if announced else sentences_of(before)), *map(fact_of_item, items)]


def numbers_and_negations(text: str) -> tuple[frozenset[str], Counter[str]]:
    said = match(text)
    numbers = frozenset(token for token in tokens(text) if any(sign.isdigit() for sign in token))
    negations = Counter(word for word in re.findall(r"\w+", said) if word in _NEGATIONS)
    return numbers, negations + Counter({"n't": len(re.findall(r"n't\b", said))})


def distinct(facts: Sequence[Fact], generated: bool) -> list[Fact]:
    """Return the distinct facts. For generated facts, near-duplicates are removed too."""
    kept: list[Fact] = []
    for fact in facts:
        equal = [other for other in kept if match(other.text) == match(fact.text)]
        if match(fact.text) and not equal:
            kept.append(fact)
    if not generated:
        return kept
    apart: list[Fact] = []
    for fact in kept:
        said = numbers_and_negations(fact.text)
        near = [other for other in apart if jaccard(other.text, fact.text) >= 0.9]
        if not any(numbers_and_negations(other.text) == said for other in near):
            apart.append(fact)
    return apart
