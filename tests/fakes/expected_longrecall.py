"""What the metric longrecall must make of samples of the symbolic world, by brute force.

Ardestani, Kamalloo and Rafiei, LongRecall; docs/methods.md, section 13. Each text is normalised sign by sign, each pair
of facts compared by itself: matchings are networkx's, substrings difflib's, sentences nupunkt's. Answers are those of
`tests.fakes.recall`, and each request that they take is written down. Figures are exact fractions, rounded once.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from fractions import Fraction
from functools import lru_cache
from math import hypot
from typing import Any

import networkx as nx
from nupunkt import sent_tokenize
from rapidfuzz.distance import Indel, LCSseq

from tests.fakes.lookups import vector_of
from tests.fakes.recall import entails, extracted, map_all, minimal_subset, resolve_all

Bounds = tuple[float | None, float | None, float | None]
Variables = Mapping[str, Any]
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
class Options:
    """What a job does with a world: the judge that the server is, and the settings `longrecall.*`.

    `lost(stage, variables)` says which requests fail.
    """

    judge: str = "closed"
    segmentation: str = "auto"
    resolve_coreference: bool = True
    cosine: float = 0.6
    top_k: int = 3
    baselines: tuple[str, ...] = ("arecall", "erecall")
    max_facts: int = 2_000
    lost: Callable[[str, Variables], bool] = lambda stage, variables: False


@dataclass(frozen=True)
class Fact:
    """A fact as it is shown: its whole text, and its anchor."""

    text: str
    anchor: str | None = None
    name: str | None = None
    free: bool = False


@dataclass(frozen=True)
class Shown:
    """A candidate as it was shown: positions are those of references and generated facts from 1."""

    reference: int
    position: int
    step: str
    rank: int
    jaccard: float
    lcs: float
    cosine: float | None
    chosen: bool | None


@dataclass(frozen=True)
class Statement:
    """A reference, and the positions of the facts that cover it; covered is None where it is unjudged."""

    text: str
    reference_id: str | None
    anchor: str | None
    covered: bool | None
    claims: tuple[int, ...] | None
    found_by: str | None
    baselines: Mapping[str, bool | None]


@dataclass(frozen=True)
class ExpectedRecall:
    """What longrecall must make of a sample; measures by name: value, low, high. requests: stage and variables."""

    status: str
    statements: tuple[Statement, ...] = ()
    claims: tuple[tuple[str, str | None], ...] = ()
    candidates: frozenset[Shown] = frozenset()
    measures: Mapping[str, Bounds] = field(default_factory=dict)
    dropped: int = 0
    requests: frozenset[tuple[str, str]] = frozenset()

    def count(self, covered: bool | None) -> int:
        """How many references are covered, are not, or are unjudged (None)."""
        return sum(one.covered is covered for one in self.statements)


@lru_cache(maxsize=100_000)
def shown(text: str) -> str:
    """N(text)."""
    signs = unicodedata.normalize("NFKC", "".join(_PLAIN.get(sign, sign) for sign in text))
    return " ".join("".join(s for s in signs if s.isspace() or unicodedata.category(s) not in ("Cc", "Cf")).split())


@lru_cache(maxsize=100_000)
def match(text: str) -> str:
    """M of a text that is in its shown form."""
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
    """J of two texts in their shown form, tokens similar from 0.8 on."""
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
    """J and L of two facts."""
    pairs = [(one.text, other.text)]
    if one.anchor and other.anchor:
        pairs.append((one.anchor, other.anchor))
    letters = [LCSseq.normalized_similarity(match(a), match(b)) for a, b in pairs]
    return max(jaccard(a, b) for a, b in pairs), max(letters)


def cosine(one: str, other: str) -> float:
    """To the digits that single-precision vectors have."""
    first, second = vector_of(one), vector_of(other)
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return round(product / (hypot(*first) * hypot(*second)), 6)


def items_of(text: str) -> tuple[str, list[str]]:
    """The text before a list, and its items; no items where it is none, or has one alone."""
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
    """How long the mark of an item is that a line begins with; None without one."""
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
    """An item as a fact: anchor and evidence, an anchor alone, or one statement."""
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
    return Fact(alone, alone) if len(alone.split()) <= 10 else Fact(alone)


def _balanced(text: str) -> str:
    """Without closing brackets that nothing opens."""
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
    """Equal facts once, and of generated ones those that are nearly equal."""
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


class _Asker:
    """Answers by the world's truth, and writes down what was asked."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.requests: set[tuple[str, str]] = set()
        self.failed: set[str] = set()

    def ask(self, stage: str, **variables: Any) -> Any:
        """The answer, None where the request is lost."""
        self.requests.add((stage, json.dumps(variables, sort_keys=True, ensure_ascii=False)))
        if self._options.lost(stage, variables):
            self.failed.add(stage)
            return None
        judge = self._options.judge
        answers: Mapping[str, Callable[..., Any]] = {
            "extract_claims": lambda text: extracted(text),
            "resolve_coreference": lambda text, facts: resolve_all(text, facts),
            "match_one": lambda reference, candidate: [1] if entails(reference, [candidate], judge) else [],
            "match_many": lambda reference, candidates: minimal_subset(reference, candidates, judge),
            "match_holistic": lambda query, references, candidates: map_all(references, candidates, judge),
            "embed_text": lambda text, kind: vector_of(text),
        }
        return answers[stage](**variables)


def expect(sample: Mapping[str, Any], options: Options) -> ExpectedRecall:
    """What must come of a sample."""
    asker = _Asker(options)
    sides, dropped = _sides(sample, options, asker)
    if asker.failed:
        return ExpectedRecall("failed", requests=frozenset(asker.requests))
    references = distinct(sides["references"], generated=False)
    stated = sides["response"]
    generated = None if stated is None else distinct(stated, generated=True)
    verdicts = _verdicts(references, generated or [], options, asker)
    baselines = _baselines(sample, references, generated or [], options, asker)
    statements = tuple(
        Statement(
            one.text,
            one.name,
            one.anchor,
            None if chosen is None else bool(chosen),
            None if chosen is None else tuple(sorted(chosen)),
            step if chosen else None,
            {name: None if said is None else said[place] for name, said in baselines.items()},
        )
        for place, (one, (chosen, step, _)) in enumerate(zip(references, verdicts, strict=True))
    )
    unjudged = any(one.covered is None for one in statements)
    return ExpectedRecall(
        "no_statements" if not references else "partial" if unjudged else "ok",
        statements,
        tuple((one.text, one.anchor) for one in generated or ()),
        frozenset(one for _, _, candidates in verdicts for one in candidates),
        _measures(statements, baselines, generated),
        dropped,
        frozenset(asker.requests),
    )


Sides = dict[str, list[Fact] | None]
Verdict = tuple[Sequence[int] | None, str | None, list[Shown]]
"""The positions that cover a reference (None: unjudged), the step that found them, and what was shown."""


def _sides(sample: Mapping[str, Any], options: Options, asker: _Asker) -> tuple[dict[str, Any], int]:
    """The facts of both sides before equal ones are one, None where they are not known; how many the cap left out."""
    response, given = sample["response"], sample["references"]
    text = given if isinstance(given, str) else None
    how = options.segmentation
    if how == "auto":
        lists = len(items_of(response)[1]) >= 2 and (text is None or len(items_of(text)[1]) >= 2)
        how = "list" if lists else "sentences" if text is None else "atomic"
    dropped = 0
    sides: Sides = {"response": None, "references": None}
    for side, whole in (("references", text), ("response", response)):
        if whole is None:
            sides[side] = list(map(_given, given, range(1, len(given) + 1)))
        elif how != "atomic" or not shown(whole):
            sides[side] = cut(whole, "sentences" if how == "atomic" else how)
        elif side == "references" or sides["references"] != []:
            claims = asker.ask("extract_claims", text=whole)
            sides[side] = None if claims is None else [Fact(shown(one), free=True) for one in claims]
        said = [one for one in sides[side] or () if match(one.text)]
        dropped += max(0, len(said) - options.max_facts)
        sides[side] = None if sides[side] is None else said[: options.max_facts]
    if options.resolve_coreference and not asker.failed and all(sides.values()):
        for side, whole in (("references", text), ("response", response)):
            sides[side] = _resolved(str(whole), sides[side] or [], asker)
    return dict(sides), dropped


def _given(reference: Any, place: int) -> Fact:
    one = reference if isinstance(reference, Mapping) else {"text": reference}
    anchor = shown(one.get("anchor") or "") or None
    text = ": ".join(part for part in (anchor, shown(one["text"])) if part)
    return Fact(text, anchor, one.get("id") or str(place))


def _resolved(text: str, facts: list[Fact], asker: _Asker) -> list[Fact]:
    free = [one.text for one in facts if one.free]
    said = asker.ask("resolve_coreference", text=text, facts=free) if free else []
    answers = iter(said or free)
    return [Fact(shown(next(answers)), free=True) if one.free else one for one in facts]


def _entailing(
    number: int, reference: Fact, generated: Sequence[Fact], near: Sequence[Any], step: str, asker: _Asker
) -> Verdict:
    """What the stages say of candidates: (position, J, L, cosine), by rank."""
    texts = [generated[position - 1].text for position, *_ in near]
    if not texts:
        return [], None, []
    if len(texts) == 1:
        said = asker.ask("match_one", reference=reference.text, candidate=texts[0])
    else:
        said = asker.ask("match_many", reference=reference.text, candidates=texts)
    chosen = None if said is None else [near[place - 1][0] for place in said]
    candidates = [
        Shown(number, position, step, rank, words, letters, angle, None if chosen is None else position in chosen)
        for rank, (position, words, letters, angle) in enumerate(near, start=1)
    ]
    return chosen, step, candidates


def _verdicts(references: Sequence[Fact], generated: Sequence[Fact], options: Options, asker: _Asker) -> list[Verdict]:
    verdicts = []
    for number, reference in enumerate(references, start=1):
        near = [(position, *alike(reference, fact), None) for position, fact in enumerate(generated, start=1)]
        near = [one for one in near if one[1] >= 0.3 or one[2] >= 0.7]
        near.sort(key=lambda one: (-one[1], -one[2], one[0]))
        verdicts.append(_entailing(number, reference, generated, near[: options.top_k], "lexical", asker))
    left = [place for place, (chosen, _, _) in enumerate(verdicts) if chosen == []]
    if not generated or not left:
        return verdicts
    lost = {
        position
        for position, fact in enumerate(generated, start=1)
        if asker.ask("embed_text", text=fact.text, kind="document") is None
    }
    for place in left:
        reference, (_, _, before) = references[place], verdicts[place]
        if asker.ask("embed_text", text=reference.text, kind="query") is None:
            verdicts[place] = None, None, before
            continue
        blocked = {one.position for one in before}
        angles = [
            (position, *alike(reference, fact), cosine(reference.text, fact.text))
            for position, fact in enumerate(generated, start=1)
            if position not in blocked | lost
        ]
        near = sorted((one for one in angles if one[3] >= options.cosine), key=lambda one: (-one[3], one[0]))
        chosen, step, found = _entailing(place + 1, reference, generated, near[: options.top_k], "semantic", asker)
        # What has no vector might have been near
        verdicts[place] = None if chosen == [] and lost - blocked else chosen, step, [*before, *found]
    return verdicts


def _baselines(
    sample: Mapping[str, Any], references: Sequence[Fact], generated: Sequence[Fact], options: Options, asker: _Asker
) -> dict[str, list[bool] | None]:
    texts = [match(one.text) for one in generated]
    said: dict[str, list[bool] | None] = {
        "arecall": [any(match(one.anchor or one.text) in text for text in texts) for one in references],
        "erecall": [any(_shares(match(one.text), text) for text in texts) for one in references],
    }
    if "holistic" in options.baselines:
        mapped: Any = [[] for _ in references]
        if references and generated:
            mapped = asker.ask(
                "match_holistic",
                query=sample["query"],
                references=[one.text for one in references],
                candidates=[one.text for one in generated],
            )
        said["holistic"] = None if mapped is None else list(map(bool, mapped))
    return {name: said[name] for name in options.baselines}


@lru_cache(maxsize=100_000)
def _shares(reference: str, text: str) -> bool:
    size = SequenceMatcher(None, reference, text, autojunk=False).find_longest_match().size
    return size / len(reference) >= 0.4


def _measures(
    statements: Sequence[Statement], baselines: Mapping[str, Sequence[bool] | None], generated: Sequence[Fact] | None
) -> dict[str, Bounds]:
    count = Counter(one.covered for one in statements)
    total = len(statements)
    recall = [
        _share(count[True], count[True] + count[False]),
        _share(count[True], total),
        _share(count[True] + count[None], total),
    ]
    found: dict[str, Bounds] = {"recall": tuple(recall)}  # type: ignore[dict-item]
    for name, said in baselines.items():
        share = None if said is None else _share(sum(said), total)
        found[name] = (None, 0.0, 1.0) if said is None else (share, share, share)
    stated = None if generated is None else float(len(generated))
    return found | {"references": (float(total),) * 3, "generated": (stated, stated, stated)}


def _share(part: int, whole: int) -> float | None:
    return float(Fraction(part, whole)) if whole else None
