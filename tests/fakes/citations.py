"""Worlds for the metric citations: responses in every form of citation, and the expected results by brute force."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

from tests.fakes.asked_nuggets import label_in_lists
from tests.fakes.criteria import CITED, say_support
from tests.fakes.world import World
from untold.udfs.stages import STAGES

Row = Mapping[str, Any]
Bounds = tuple[float | None, float | None, float | None]
Verdicts = Mapping[tuple[tuple[str, ...], int], str | None]
"""Verdicts by the names of the sources, and the number of the sentence."""
FORMS = ("marks", "parts", "links", "ids", "footnotes", "list", "spans", "numbered", "none", "blank")
WEIGHTS = {"full": Fraction(1), "partial": Fraction(1, 2), "none": Fraction(0)}
MISSING = "no context, document or page has this id"
GUIDE = "# A guide\n\n"


@dataclass(frozen=True)
class Cited:
    """A sentence with the names of its sources, and their texts, None without a text."""

    text: str
    sources: tuple[str, ...]
    texts: tuple[str | None, ...]

    @property
    def known(self) -> tuple[str, ...]:
        """Return the names of the sources with a text."""
        return tuple(name for name, text in zip(self.sources, self.texts, strict=True) if text is not None)


class CitationWorld:
    """A response that cites contexts, or pages by URL, in one form. The seed determines all of it."""

    def __init__(self, seed: int, judge: str = "closed") -> None:
        self.seed, self.form = seed, FORMS[seed % len(FORMS)]
        self._world = World(seed, judge, ids=self.form == "ids")
        contexts = self._world.contexts
        self.names = [one["id"] if isinstance(one, dict) else str(n) for n, one in enumerate(contexts, start=1)]
        self.texts = [one["text"] if isinstance(one, dict) else one for one in contexts]
        self.pages = {f"https://w{seed}.org/page_(of_{n})": text for n, text in enumerate(self.texts)}
        self.known = self.pages if self._uses_urls else dict(zip(self.names, self.texts, strict=True))

    @property
    def _uses_urls(self) -> bool:
        return self.form in ("links", "list", "numbered")

    def responses(self, count: int = 1) -> list[tuple[dict[str, Any], list[Cited]]]:
        """Return a sample for each response, and its sentences."""
        return [self._response(Random(f"citations/{self.seed}/{number}"), number) for number in range(count)]

    def samples(self, responses: int = 1) -> list[dict[str, Any]]:
        """Return a sample for each response."""
        return [sample for sample, _ in self.responses(responses)]

    def _response(self, random: Random, number: int) -> tuple[dict[str, Any], list[Cited]]:
        shape = {
            "sample_id": f"c{self.seed:04d}-{number}",
            "query": self._world.query,
            "contexts": self._world.contexts,
            "system": f"S{number}",
        }
        if self.form == "blank":
            return {**shape, "response": " \n"}, []
        sentences = [self._sentence(random) for _ in range(random.randint(1, 6))]
        reference = random.sample(sorted(self.known), random.randint(0, len(self.known)))
        more: dict[str, Any] = {"reference_sources": reference or None}
        written = getattr(self, f"_{self.form}")(random, sentences)
        return {**shape, **more, **(written if isinstance(written, dict) else {"response": written})}, sentences

    def _sentence(self, random: Random) -> Cited:
        text = random.choice(self._world.leaves).sentence(0)
        count = 0 if self.form == "none" else random.choice((0, 1, 1, 2, 2, 3))
        possible = [*self.known, self._unknown()]
        sources = tuple(random.sample(possible, min(count, len(possible))))
        found = [self.known.get(name) for name in sources]
        return Cited(text, sources, tuple(text if text and text.strip() else None for text in found))

    def _unknown(self) -> str:
        return "https://gone.org" if self._uses_urls else f"[{len(self.names) + 1}]"

    def _number(self, source: str) -> int:
        return [*self.known, self._unknown()].index(source) + 1

    def _marks(self, random: Random, sentences: Sequence[Cited]) -> str:
        return GUIDE + _joined(
            random, (_marked(random, one, [self._number(each) for each in one.sources]) for one in sentences)
        )

    def _ids(self, random: Random, sentences: Sequence[Cited]) -> str:
        labels = [[each.strip("[]") for each in one.sources] for one in sentences]
        return _joined(random, (_marked(random, *pair) for pair in zip(sentences, labels, strict=True)))

    def _parts(self, random: Random, sentences: Sequence[Cited]) -> dict[str, Any]:
        parts = [{"text": one.text, "citations": [self._number(each) - 1 for each in one.sources]} for one in sentences]
        for part in parts[1:]:
            if random.random() < 0.3:
                # RAGTIME: ids with confidences
                part["citations"] = {self._name(n): 0.9 - rank / 100 for rank, n in enumerate(part["citations"])}
        return {"response": parts}

    def _name(self, place: int) -> str:
        return [*self.known, self._unknown()][place]

    def _links(self, random: Random, sentences: Sequence[Cited]) -> str:
        def linked(one: Cited) -> str:
            links = [f"[{random.choice(('w.org', '3', '[2]'))}]({url}#:~:text=a)" for url in one.sources]
            return f"{one.text} {''.join(links)}".strip()

        return _joined(random, map(linked, sentences))

    def _footnotes(self, random: Random, sentences: Sequence[Cited]) -> str:
        body = _joined(
            random, (_marked(random, one, [f"^{self._number(each)}" for each in one.sources]) for one in sentences)
        )
        return f"{body}\n\n[^note]: It is well known."

    def _list(self, random: Random, sentences: Sequence[Cited]) -> str:
        body = self._marks(random, sentences)
        entries = [
            random.choice((f"[{n}] A title. {url}", f"{n}. [A title]({url})"))
            for n, url in enumerate([*self.known, self._unknown()], start=1)
        ]
        return f"{body}\n\n## {random.choice(('References', 'Sources:'))}\n\n" + "\n".join(entries)

    def _spans(self, random: Random, sentences: Sequence[Cited]) -> dict[str, Any]:
        text = " ".join(one.text for one in sentences) + " (The end.)"
        citations, start = [], 0
        for one in sentences:
            end = start + len(one.text)
            citations += [{"start_index": start + 1, "end_index": end - 1, "source": each} for each in one.sources]
            start = end + 1
        return {"response": text[: start - 1], "citations": citations or None}

    def _numbered(self, random: Random, sentences: Sequence[Cited]) -> dict[str, Any]:
        return {"response": self._marks(random, sentences), "citations": [*self.known, self._unknown()]}

    def _none(self, random: Random, sentences: Sequence[Cited]) -> str:
        return _joined(random, (one.text for one in sentences))


def _joined(random: Random, texts: Any) -> str:
    return "".join(f"{text}{random.choice((' ', ' ', chr(10), chr(10) * 2))}" for text in texts).strip()


def _marked(random: Random, one: Cited, labels: Sequence[Any]) -> str:
    """Return a sentence with its markers before or after the full stop."""
    if not labels:
        return one.text
    together = f"[{', '.join(map(str, labels))}]"
    apart = random.choice(("", " ")).join(f"[{label}]" for label in labels)
    marks, bare = random.choice((together, apart)), one.text.removesuffix(".")
    return random.choice((f"{bare} {marks}.", f"{bare}{marks}.", f"{one.text} {marks}", f"{one.text}{marks}"))


def citation_worlds(count: int, judge: str = "closed", first: int = 0) -> list[CitationWorld]:
    """Return worlds with successive seeds."""
    return [CitationWorld(seed, judge) for seed in range(first, first + count)]


def pages_of(worlds: Sequence[CitationWorld]) -> list[dict[str, str]]:
    """Return the pages of worlds, by URL without its scheme's s and with a slash at its end."""
    return [
        {"url": f"{url.replace('https', 'http')}/", "text": text}
        for world in worlds
        for url, text in world.pages.items()
    ]


@dataclass(frozen=True)
class ExpectedCitations:
    """The expected result of a sample. `rows`: number, citation, source, support and status. Measures by name."""

    rows: tuple[tuple[int, int, str | None, str | None, str], ...]
    measures: Mapping[str, Bounds]
    status: str
    # Covered, uncovered, unjudged
    counts: tuple[int, int, int]


@dataclass(frozen=True)
class _Open:
    """The possible credits of a verdict, and the known one."""

    value: Fraction | None
    ends: tuple[Fraction, Fraction]


def _open(verdict: str | None, least: Fraction = WEIGHTS["none"]) -> _Open:
    weight = None if verdict is None else WEIGHTS[verdict]
    return _Open(weight, (least, Fraction(1)) if weight is None else (weight, weight))


def expected_citations(
    sample: Row, sentences: Sequence[Cited], verdicts: Verdicts, score: str, unasked: frozenset[Any] = frozenset()
) -> ExpectedCitations:
    """Compute the result by brute force from the verdicts."""
    rows: list[tuple[int, int, str | None, str | None, str]] = []
    single: list[list[_Open]] = []
    together: list[_Open] = []
    for number, one in enumerate(sentences, start=1):

        def row(
            place: int, names: tuple[str, ...], source: str | None, number: int = number, one: Cited = one
        ) -> str | None:
            verdict = verdicts.get((names, number)) if names else None
            lost = "unasked" if (names, number) in unasked else "failed"
            status = ("judged" if verdict else lost) if names else "no_source" if one.sources else "uncited"
            rows.append((number, place, source, verdict, status))
            return verdict

        whole = row(0, one.known, None)
        own = [
            row(place, (source,) if text is not None else (), source)
            for place, (source, text) in enumerate(zip(one.sources, one.texts, strict=True), start=1)
        ]
        single.append([_open(verdict) for verdict in own])
        is_whole = len(one.known) == len(one.sources) or whole == "full"
        known = _open(whole)
        together.append(known if is_whole else _Open(None, (known.ends[0], Fraction(1))))
    measures = _measures(sample, sentences, single, together)
    lost, value = any(each[4] == "failed" for each in rows), measures[score][0]
    unjudged = sum(each[3] is None and each[4] != "uncited" for each in rows)
    status = "partial" if lost else "ok"
    if value is None:
        status = "failed" if lost else "no_statements"
    if any(each[4] == "unasked" for each in rows):
        status = "budget"
    if status in ("failed", "budget"):
        measures = {name: (None, low, high) for name, (_, low, high) in measures.items()}
    credits = [Fraction(0) if not one.sources else each.value for one, each in zip(sentences, together, strict=True)]
    counts = credits.count(Fraction(1)), sum(one is not None and one < 1 for one in credits), unjudged
    return ExpectedCitations(tuple(rows), measures, status, counts)


def _measures(
    sample: Row, sentences: Sequence[Cited], single: Sequence[Sequence[_Open]], together: Sequence[_Open]
) -> dict[str, Bounds]:
    total, cited = len(sentences), [place for place, one in enumerate(sentences) if one.sources]
    every = [one for own in single for one in own]
    first = [own[0] for own in single if own]
    whole = [together[place] for place in cited]
    means = [_mean_of(own) for own in single if own]
    precision, recall = _mean(every, len(every)), _mean(whole, total)
    supported = [
        _Open(
            None if one.value is None else Fraction(one.value > 0),
            (Fraction(one.ends[0] > 0), Fraction(one.ends[1] > 0)),
        )
        for one in every
    ]
    f1 = _harmonic(precision, recall)
    judged = sum(one.value is not None for one in every)
    effective = sum(one.value or 0 for one in supported)
    named = {source.partition("://")[2] or source for one in sentences for source in one.sources}
    wanted = {source.partition("://")[2] or source for source in sample.get("reference_sources") or ()}
    counts = {
        "sentences": total,
        "citations": len(every),
        "citations_without_text": sum(text is None for one in sentences for text in one.texts),
    }
    return {
        "weighted_precision": precision,
        "weighted_recall": recall,
        "f1": f1,
        "first_precision": _mean(first, len(first)),
        "first_recall": _mean(first, total),
        "sentence_precision": _mean(means, len(means)),
        "sentence_recall": _mean(means, total),
        "citation_accuracy": _mean(supported, len(supported)),
        "effective_citations": (
            None if every and not judged else float(effective),
            float(effective),
            float(sum(one.ends[1] for one in supported)),
        ),
        "judged_citations": (float(judged), float(judged), float(len(every))),
        "cited_sentences": (len(cited) / total,) * 3 if total else (None,) * 3,
        "source_recall": (len(wanted & named) / len(wanted),) * 3 if wanted else (None,) * 3,
        **{name: (float(count),) * 3 for name, count in counts.items()},
    }


def _mean_of(own: Sequence[_Open]) -> _Open:
    """Return the mean credit of the citations of a sentence."""
    known = [one.value for one in own if one.value is not None]
    low, high = (sum((one.ends[place] for one in own), Fraction(0)) / len(own) for place in (0, 1))
    return _Open(sum(known, Fraction(0)) / len(known) if known else None, (low, high))


def _mean(credits: Sequence[_Open], count: int) -> Bounds:
    """Return the mean over `count` items, and its extremes over all possible credits."""
    if not count:
        return None, None, None
    possible = (
        product(*(one.ends for one in credits))
        if len(credits) < 9
        else zip(*(one.ends for one in credits), strict=True)
    )
    means = [sum(each, Fraction(0)) / count for each in possible]
    known = [one.value for one in credits if one.value is not None]
    value = sum(known) / (count - len(credits) + len(known)) if known else None if credits else Fraction(0)
    low, high = min(means), max(means)
    return None if value is None else float(min(high, max(low, value))), float(low), float(high)


def _harmonic(precision: Bounds, recall: Bounds) -> Bounds:
    if recall[1] is None:
        return None, None, None
    if precision[1] is None:
        return 0.0, 0.0, 0.0

    def of(one: float | None, other: float | None) -> float | None:
        if one is None or other is None:
            return None
        return 2 * one * other / (one + other) if one + other else 0.0

    return of(precision[0], recall[0]), of(precision[1], recall[1]), of(precision[2], recall[2])


def groups_of(sentences: Sequence[Cited]) -> list[tuple[tuple[str, ...], tuple[str, ...], dict[int, str]]]:
    """Return the names and texts of each source, or set of sources of a sentence, with the sentences by number."""
    groups: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...], dict[int, str]]] = {}
    for number, one in enumerate(sentences, start=1):
        known = [(name, text) for name, text in zip(one.sources, one.texts, strict=True) if text is not None]
        for own in [*([each] for each in known), *([known] if len(known) > 1 else [])]:
            names, texts = zip(*own, strict=True)
            groups.setdefault(names, (names, texts, {}))[2][number] = one.text
    return list(groups.values())


@dataclass
class JudgedCitations:
    """The requests of a sample by `ask`, and its expected result. `lost`: stage, variables and error per request."""

    ask: Callable[..., str | None]
    score: str = "f1"
    size: int = 10
    judge: str = "closed"
    lost: set[tuple[str, str, str]] = field(default_factory=set)

    def judged(self, sample: Row, sentences: Sequence[Cited]) -> ExpectedCitations:
        """Send all requests that a sample needs, and return its result."""
        verdicts: dict[tuple[tuple[str, ...], int], str | None] = {}
        for names, texts, listed in groups_of(sentences):
            found = self._labels(list(texts), list(listed.values()))
            verdicts |= {(names, number): one for number, one in zip(listed, found, strict=True)}
        return expected_citations(sample, sentences, verdicts, self.score)

    def _labels(self, sources: list[str], sentences: list[str]) -> list[str | None]:
        def read(places: Sequence[int]) -> tuple[Sequence[str | None], str | None]:
            asked = {"sources": sources, "sentences": [sentences[place] for place in places]}
            if error := self.ask(CITED, **asked):
                return [None] * len(places), error
            said = say_support({"stage": CITED, **asked}, self.judge)
            assert said is not None
            labels: Sequence[str | None] = STAGES[CITED].parse(said[0], asked)["supports"]
            return labels, None

        def lose(places: Sequence[int], error: str) -> None:
            self.lost.add((CITED, json.dumps([sources, *(sentences[place] for place in places)]), error))

        return label_in_lists(len(sentences), self.size, read, lose)
