"""The expected requests of the metric nuggets for a sample of the symbolic world, and the results of lost requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fakes.expected_nuggets import ExpectedNuggets, Options, expected_nuggets
from tests.fakes.facts import summarise
from tests.fakes.nuggets import created, say_nuggets
from tests.fakes.world_importance import contexts_of
from untold.udfs.stages import STAGES

LISTED = 10
# After these errors the nuggets of a list get no single requests, because the list is sent again later
PASSING = {"http_408", "http_500", "connection", "timeout", "bad_body", "bad_finish"}
# Returns the error type of a request, or None for a success
Ask = Callable[..., str | None]


@dataclass
class JudgedNuggets:
    """`verdict`: the expected result of a sample, None if it fails. `lost`: stage, variables, error per request."""

    options: Options
    ask: Ask
    verdict: ExpectedNuggets | None = None
    lost: set[tuple[str, str, str]] = field(default_factory=set)

    def judge(self, sample: Mapping[str, Any]) -> None:
        """Send all requests that a sample needs, in order."""
        query, response, references = sample["query"], sample["response"], sample.get("references")
        texts = [] if references else self._summarise(sample)
        nuggets = [references] if isinstance(references, str) else references or self._create(query, texts)
        open_ones = [one for one in nuggets if isinstance(one, str) or not {"importance", "weight"} & one.keys()]
        self._label("rate_nuggets", {"query": query}, [_text(one) for one in open_ones])
        if self.lost:
            return
        whole = expected_nuggets(sample, texts, self.options)
        kept = [one.text for one in whole.nuggets if one.kept] if response.strip() else []
        labels = self._label("assign_nuggets", {"query": query, "response": response}, kept)
        lacking = {text for text, label in zip(kept, labels, strict=True) if label is None}
        options = replace(self.options, unassigned=lambda _, text: text in lacking)
        self.verdict = expected_nuggets(sample, texts, options)

    def _summarise(self, sample: Mapping[str, Any]) -> list[str]:
        texts = [text for _, text in contexts_of(sample)]
        for text in texts:
            self._lose("summarise_context", {"query": sample["query"], "text": text})
        return [summary for text in texts if (summary := summarise(text))]

    def _create(self, query: str, texts: Sequence[str]) -> list[str]:
        """Return the nuggets. After a lost request there are none, and no request follows."""
        nuggets: list[str] = []
        for first in range(0, len(texts), self.options.window):
            window = list(texts[first : first + self.options.window])
            variables = {"query": query, "texts": window, "nuggets": nuggets, "most": self.options.max_generated}
            if self.lost or self._lose("create_nuggets", variables):
                return []
            nuggets = created(window, nuggets, self.options.max_generated)
        return [] if self.lost else nuggets

    def _label(self, stage: str, variables: Mapping[str, Any], texts: Sequence[str]) -> list[str | None]:
        """Return a label for each text."""

        def read(places: Sequence[int]) -> tuple[Sequence[str | None], str | None]:
            return self._read(stage, variables, [texts[place] for place in places])

        def lose(places: Sequence[int], error: str) -> None:
            self.lost.add((stage, json.dumps([variables, *(texts[place] for place in places)]), error))

        return label_in_lists(len(texts), LISTED, read, lose)

    def _read(
        self, stage: str, variables: Mapping[str, Any], texts: list[str]
    ) -> tuple[Sequence[str | None], str | None]:
        """Return the labels of a list, and its error."""
        asked = {**variables, "nuggets": texts}
        if error := self.ask(stage, **asked):
            return [None] * len(texts), error
        said = say_nuggets({"stage": stage, **asked}, self.options.judge)
        assert said is not None
        labels: Sequence[str | None] = STAGES[stage].parse(said[0], asked)["labels"]
        return labels, None

    def _lose(self, stage: str, variables: Mapping[str, Any]) -> bool:
        """Send a request, and return True if it is lost."""
        error = self.ask(stage, **variables)
        self.lost |= {(stage, json.dumps(variables), error)} if error else set()
        return error is not None


def label_in_lists(
    count: int,
    size: int,
    read: Callable[[Sequence[int]], tuple[Sequence[Any], str | None]],
    lose: Callable[[Sequence[int], str], None],
) -> list[Any]:
    """Return a label for each of `count` texts: from lists, then from lists of the open texts, then one by one.

    read: the labels of the texts at these indices, and the error of the request. lose: called for a lost request.
    """
    labels: list[Any] = [None] * count
    waiting, alone = list(range(count)), []
    for _ in range(2):
        opened = []
        for first in range(0, len(waiting), size):
            places = waiting[first : first + size]
            said, error = read(places)
            labels = [said[places.index(n)] if n in places else label for n, label in enumerate(labels)]
            if error and (len(places) == 1 or error in PASSING):
                lose(places, error)
            elif error:
                alone += places
            opened += [] if error else [place for place in places if labels[place] is None]
        waiting = opened
    for place in [*alone, *waiting]:
        (labels[place],), error = read([place])
        if error:
            lose([place], error)
    return labels


def _text(one: Any) -> str:
    return str(one if isinstance(one, str) else one["text"])


def judge_nuggets(sample: Mapping[str, Any], options: Options, ask: Ask) -> JudgedNuggets:
    """Return the expected result of a sample with requests by `ask`."""
    judged = JudgedNuggets(options, ask)
    judged.judge(sample)
    return judged
