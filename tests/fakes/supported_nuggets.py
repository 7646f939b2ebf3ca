"""Worlds and expected results of the metric nuggets with `nuggets.supported`, by brute force."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.fakes.asked_nuggets import JudgedNuggets
from tests.fakes.citations import CitationWorld, Cited, JudgedCitations
from tests.fakes.expected_nuggets import Bounds, ExpectedNuggets, Options, measures_of

Row = Mapping[str, Any]
ORDER = ("support", "partial_support", "not_support")
SCORES = ("strict_vital", "strict_all", "vital", "all", "weighted")
OPTIONS = Options(top_k=5)


def supported_samples(count: int, responses: int, judge: str = "closed") -> list[tuple[Row, list[Cited]]]:
    """Return samples of the worlds of citations with given nuggets, and the sentences of each.

    A nugget is a sentence of the world, or two sentences. Some have an importance.
    """
    found = []
    for seed in range(count):
        world, random = CitationWorld(seed, judge), Random(f"supported/{seed}")
        texts = list(
            dict.fromkeys(text for _, said in world.responses(responses) for text in (one.text for one in said))
        )
        chosen = random.sample(texts, min(6, len(texts))) or ["Somebody sails."]
        joined = [*chosen, *([f"{chosen[0]} {chosen[1]}"] if len(chosen) > 1 else [])]
        references = [{"id": f"n{place}", "text": text, **_rated(random)} for place, text in enumerate(joined, start=1)]
        found += [({**sample, "references": references}, said) for sample, said in world.responses(responses)]
    return found


def _rated(random: Random) -> Row:
    importance = random.choice(("vital", "okay", None))
    return {} if importance is None else {"importance": importance}


def response_of(sample: Row) -> str:
    """Return the text of a response, whose parts are joined by spaces."""
    said = sample["response"]
    return said if isinstance(said, str) else " ".join(part["text"] for part in said)


@dataclass
class JudgedSupport:
    """The expected result of a sample, None if it fails. `lost`: stage, variables and error per request."""

    ask: Callable[..., str | None]
    verdict: ExpectedNuggets | None = None
    lost: set[tuple[str, str, str]] = field(default_factory=set)

    def judge(self, sample: Row, sentences: Sequence[Cited]) -> None:
        """Send all requests that a sample needs, in order."""
        plain = {**sample, "response": response_of(sample)}
        judged = JudgedNuggets(OPTIONS, self.ask)
        judged.judge(plain)
        self.lost = judged.lost
        if judged.verdict is None:
            return
        citations = JudgedCitations(self.ask)
        rows = citations.judged(sample, sentences).rows
        self.lost |= citations.lost
        said = {number: [row[3:] for row in rows if row[0] == number] for number in range(1, len(sentences) + 1)}
        full = {number for number, ones in said.items() if any(support == "full" for support, _ in ones)}
        opened = {
            number
            for number, ones in said.items()
            if any(support is None and status != "uncited" for support, status in ones)
        }
        text = " ".join(sentences[number - 1].text for number in sorted(full))
        kept = [one for one in judged.verdict.nuggets if one.kept]
        asked = [one.text for one in kept if one.support in ("support", "partial_support")] if text else []
        labels = judged._label("assign_nuggets", {"query": sample["query"], "response": text}, asked)
        self.lost |= judged.lost
        within = dict(zip(asked, labels, strict=True))
        self.verdict = _concluded(judged.verdict, within, opened <= full, bool(self.lost))


def _concluded(
    plain: ExpectedNuggets, within: Mapping[str, str | None], whole: bool, is_partial: bool
) -> ExpectedNuggets:
    """Return the result with the measures over all possible supports of the nuggets."""
    kept = [one for one in plain.nuggets if one.kept]
    possible = []
    for one in kept:
        most = [each for each in ORDER if one.support in (None, each)]
        known = within.get(one.text, one.support and "not_support")
        least = [each for each in ORDER if known in (None, each)]
        # The sentences that are still open can add support, and a text never has more than the whole response
        added = least if whole else [each for each in ORDER if any(ORDER.index(each) <= ORDER.index(x) for x in least)]
        possible.append({ORDER[max(ORDER.index(first), ORDER.index(second))] for first in most for second in added})
    ends = [
        measures_of(
            [replace(one, support=pick(each, key=ORDER.index)) for one, each in zip(kept, possible, strict=True)]
        )
        for pick in (max, min)
    ]
    more: dict[str, Bounds] = {}
    for name in SCORES:
        low, high = (measures[name][0] for measures in ends)
        more[f"{name}_supported"] = (low if low == high else None, low, high)
    status = plain.status if plain.status == "no_statements" or not is_partial else "partial"
    return replace(plain, measures={**plain.measures, **more}, status=status)
