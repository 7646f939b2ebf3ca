"""Worlds for the metric answer_relevancy, and the expected results by brute force."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

from tests.fakes.asked_nuggets import label_in_lists
from tests.fakes.criteria import RELEVANCY, say_relevancy
from tests.fakes.world import World
from untold.udfs.stages import STAGES

Row = Mapping[str, Any]
Bounds = tuple[float | None, float | None, float | None]
CREDITED = {"answer_relevancy": ("relevant", "background"), "direct_relevancy": ("relevant",)}


def relevancy_samples(count: int, judge: str = "closed") -> list[tuple[dict[str, Any], list[str]]]:
    """Return a sample for each world, and the sentences of its response. Some responses are blank or have markers."""
    found = []
    for seed in range(count):
        world, random = World(seed, judge), Random(f"relevancy/{seed}")
        said = [random.choice(world.leaves).sentence(0) for _ in range(random.choice((0, 1, 2, 4, 9)))]
        written = [f"{text.removesuffix('.')} [{n}]." if random.random() < 0.2 else text for n, text in enumerate(said)]
        heading, end = random.choice((("", ""), ("# A guide\n\n", "\n\n## References\n\n[1] https://a.org")))
        body = random.choice((" ", "\n", "\n\n- ")).join(written)
        response = f"{heading}{body}{end}" if said else (" \n", "")[seed % 2]
        found.append(({"sample_id": f"a{seed:04d}", "query": world.query, "response": response}, said))
    return found


@dataclass(frozen=True)
class ExpectedRelevancy:
    """The expected result of a sample. `labels` by sentence. Measures by name: value, low, high."""

    labels: tuple[tuple[str, str | None], ...]
    measures: Mapping[str, Bounds]
    status: str
    # Covered, uncovered, unjudged
    counts: tuple[int, int, int]


def expected_relevancy(sentences: Sequence[str], labels: Sequence[str | None]) -> ExpectedRelevancy:
    """Compute the result by brute force."""
    count, lost = len(sentences), labels.count(None)
    measures: dict[str, Bounds] = {"sentences": (float(count),) * 3}
    for name, credited in CREDITED.items():
        earned = sum(one in credited for one in labels)
        ends = [float(Fraction(part, count)) if count else None for part in (earned, earned + lost)]
        value = float(Fraction(earned, count - lost)) if count > lost else None
        measures[name] = (value, ends[0], ends[1])
    on = sum(one in CREDITED["answer_relevancy"] for one in labels)
    status = "no_statements" if not count else "failed" if lost == count else "partial" if lost else "ok"
    if status == "failed":
        measures = {**dict.fromkeys(CREDITED, (None, 0.0, 1.0)), "sentences": (None, None, None)}
    return ExpectedRelevancy(
        tuple(zip(sentences, labels, strict=True)), measures, status, (on, count - on - lost, lost)
    )


@dataclass
class JudgedRelevancy:
    """The requests of a sample by `ask`, and its expected result. `lost`: stage, variables and error per request."""

    ask: Callable[..., str | None]
    size: int = 20
    judge: str = "closed"
    lost: set[tuple[str, str, str]] = field(default_factory=set)

    def judged(self, sample: Row, sentences: Sequence[str]) -> ExpectedRelevancy:
        """Send all requests that a sample needs, and return its result."""

        def read(places: Sequence[int]) -> tuple[Sequence[str | None], str | None]:
            asked = {"query": sample["query"], "sentences": [sentences[place] for place in places]}
            if error := self.ask(RELEVANCY, **asked):
                return [None] * len(places), error
            said = say_relevancy({"stage": RELEVANCY, **asked}, self.judge)
            assert said is not None
            labels: Sequence[str | None] = STAGES[RELEVANCY].parse(said[0], asked)["labels"]
            return labels, None

        def lose(places: Sequence[int], error: str) -> None:
            self.lost.add((RELEVANCY, json.dumps([sentences[place] for place in places]), error))

        return expected_relevancy(sentences, label_in_lists(len(sentences), self.size, read, lose))
