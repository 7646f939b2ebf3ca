"""The expected results of the metric longrecall for samples of the symbolic world, by brute force.

Ardestani, Kamalloo and Rafiei, LongRecall; docs/methods.md, section 13. Substrings use difflib, and facts use
`tests.fakes.expected_facts`. Answers come from `tests.fakes.recall`, and each of their requests is recorded. Figures
are exact fractions that are rounded once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from fractions import Fraction
from functools import lru_cache
from typing import Any

from tests.fakes.expected_facts import Fact, alike, cosine, cut, distinct, items_of, match, shown
from tests.fakes.lookups import vector_of
from tests.fakes.recall import entails, extracted, map_all, minimal_subset, resolve_all

Bounds = tuple[float | None, float | None, float | None]
Variables = Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """The options of a job in a world: the judge of the server, and the settings `longrecall.*`.

    `lost(stage, variables)` returns True for a failed request.
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
class Shown:
    """A shown candidate. Positions are the positions of references and generated facts, from 1."""

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
    """A reference, and the positions of the facts that cover it. covered is None if it is unjudged."""

    text: str
    reference_id: str | None
    anchor: str | None
    covered: bool | None
    claims: tuple[int, ...] | None
    found_by: str | None
    baselines: Mapping[str, bool | None]


@dataclass(frozen=True)
class ExpectedRecall:
    """The expected longrecall result of a sample. Measures by name: value, low, high. requests: stage, variables."""

    status: str
    statements: tuple[Statement, ...] = ()
    claims: tuple[tuple[str, str | None], ...] = ()
    candidates: frozenset[Shown] = frozenset()
    measures: Mapping[str, Bounds] = field(default_factory=dict)
    dropped: int = 0
    requests: frozenset[tuple[str, str]] = frozenset()

    def count(self, covered: bool | None) -> int:
        """Return the number of covered, uncovered, or unjudged (None) references."""
        return sum(one.covered is covered for one in self.statements)


class _Asker:
    """Answers with the world's truth, and records the requests."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.requests: set[tuple[str, str]] = set()
        self.failed: set[str] = set()

    def ask(self, stage: str, **variables: Any) -> Any:
        """Return the answer, or None if the request is lost."""
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
    """Return the expected result of a sample."""
    asker = _Asker(options)
    sides, dropped = _sides(sample, options, asker)
    if asker.failed:
        return ExpectedRecall("failed", requests=frozenset(asker.requests))
    named = [replace(one, name=one.name or str(place)) for place, one in enumerate(sides["references"], start=1)]
    references = distinct(named, generated=False)
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
"""The positions that cover a reference (None if unjudged), the step that found them, and the shown candidates."""


def _sides(sample: Mapping[str, Any], options: Options, asker: _Asker) -> tuple[dict[str, Any], int]:
    """Return the facts of both sides with duplicates, None if unknown, and the number of facts beyond the cap."""
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
    """Return the entailed candidates (position, J, L, cosine) by rank."""
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
        # A fact without a vector could have been near
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
