"""What a start used, and the table `usage`: counted once over all that was asked, when the run ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.udfs.llm.keys import Stage
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.stages.arrow import LEAKED, UNASKED
from untold.udfs.stages.definitions import READ_AS

_COUNTED = (
    *("requests", "answered", "failed", "calls", "retries", "rate_limited", "prompt_tokens", "completion_tokens"),
    *("retries_after_parse", "reasoning_tokens", "cut_prompts"),
)
# Columns that count requests by how their completions were read, and by why they could not be
READINGS = (*READ_AS, "unparsable", "refused", "empty", "truncated")
ANSWERED, FAILED = "answered", "failed"
_BEST_FIRST = (ANSWERED, FAILED, UNASKED)
# Of a request the first counts. They are compared by place: to find the least of texts, Spark sorts all rows.
_OUTCOMES = tuple(product(_BEST_FIRST, (None, *READINGS)))


@dataclass(frozen=True)
class StageResult:
    """One asking of a stage: its results, how many requests the store had answers of, and what the asking used.

    `endpoint`: the address that was asked; None for several, which `usage` tells apart, and for local models.
    """

    stage: Stage
    results: DataFrame
    reused: int
    usage: Usage
    endpoint: str | None = None


@dataclass
class Account:
    """What was asked of all stages so far, and what it used. `rows` costs one Spark execution after an addition.

    `spent`: against the budget. `models`: the names that answered, now or before. `sections`: those of the settings
    whose endpoints have answered.
    """

    spent: Usage = field(default_factory=Usage)
    models: set[str | None] = field(default_factory=set)
    sections: set[str] = field(default_factory=set)
    asked: list[StageResult] = field(default_factory=list)
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _counted: int = 0

    def note_models(self, section: str, models: Iterable[str | None]) -> None:
        """Notes the models that the endpoint of a section answered as."""
        named = set(models)
        self.models |= named
        if named:
            self.sections.add(section)

    def add(self, asked: StageResult) -> None:
        """Adds what was asked once; a request that was needed before is the same request."""
        self.asked.append(asked)

    def sort(self, stages: Iterable[str]) -> None:
        """Puts what was asked side by side in the order of the stages."""
        places = {name: place for place, name in enumerate(stages)}
        self.asked.sort(key=lambda one: places[one.stage.name])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table `usage`, in the order of asking: one a stage, and one for each of several endpoints."""
        if self._counted < len(self.asked):
            outcomes = _count_outcomes(self.asked)
            names = dict.fromkeys(one.stage.name for one in self.asked)
            whole = (_row(name, self.asked, outcomes[name]) for name in names)
            self._rows = [row for one in whole for row in _by_endpoint(*one)]
            self._counted = len(self.asked)
        return self._rows


@dataclass
class _Outcomes:
    """The distinct requests of a stage by their best outcome, by how they were read, and by asking the answered.

    `leaked`: items that were dropped of them.
    """

    best: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    readings: dict[str | None, int] = field(default_factory=lambda: defaultdict(int))
    leaked: int = 0
    answered: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def _count_outcomes(asked: list[StageResult]) -> dict[str, _Outcomes]:
    """By stage; askings by their place in the list. Of several outcomes of a request the best counts.

    One Spark execution for all stages together: on slow cores each costs about a second, whatever its size.
    """
    frames = [
        one.results.select(
            F.lit(one.stage.name).alias("stage"),
            F.lit(number).alias("asking"),
            "request_id",
            _outcome(one.results).alias("outcome"),
            (F.col(LEAKED) if LEAKED in one.results.columns else F.lit(None).cast("long")).alias(LEAKED),
        )
        for number, one in enumerate(asked)
    ]
    names = [f"answered_{number}" for number in range(len(asked))]
    answered = F.col("outcome") < _OUTCOMES.index((FAILED, None))
    requests = (
        reduce(DataFrame.unionByName, frames)
        .groupBy("stage", "request_id")
        .agg(
            F.min("outcome").alias("outcome"),
            F.max(LEAKED).alias(LEAKED),
            *(F.max(answered & (F.col("asking") == number)).alias(name) for number, name in enumerate(names)),
        )
    )
    found: dict[str, _Outcomes] = defaultdict(_Outcomes)
    counted = [F.count("*").alias("count"), F.coalesce(F.sum(LEAKED), F.lit(0)).alias(LEAKED)]
    counted += [F.count_if(name).alias(name) for name in names]
    for row in requests.groupBy("stage", "outcome").agg(*counted).collect():
        (best, reading), of_stage = _OUTCOMES[row["outcome"]], found[row["stage"]]
        of_stage.best[best] += row["count"]
        of_stage.readings[reading] += row["count"]
        of_stage.leaked += row[LEAKED]
        for number, name in enumerate(names):
            of_stage.answered[number] += row[name]
    return found


def _outcome(results: DataFrame) -> Column:
    """The place in `_OUTCOMES` of each row: its state, and how its completion was read or why it could not be."""
    error = F.col("error_type")
    state = F.when(error.isNull(), ANSWERED).when(error == UNASKED, UNASKED).otherwise(FAILED)
    read_as = F.col("read_as") if "read_as" in results.columns else F.lit(None).cast("string")
    # The place of a text in a list is 0 where it is not in it, and null for null
    reading = F.coalesce(F.array_position(_listed(READINGS), F.coalesce(read_as, error)), F.lit(0))
    return (F.array_position(_listed(_BEST_FIRST), state) - 1) * (len(READINGS) + 1) + reading


def _listed(texts: Iterable[str]) -> Column:
    return F.array(*map(F.lit, texts))


def _row(stage: str, everything: list[StageResult], outcomes: _Outcomes) -> tuple[dict[str, Any], Usage]:
    """The row of a stage in the table `usage`: requests distinct over all its askings, calls and tokens their sums.

    With it what it used, of which several endpoints have parts.

    Retries are calls that were neither a request's first, nor told to slow down, nor a further turn after a tool.
    """
    asked = [one for one in everything if one.stage.name == stage]
    used = sum((one.usage for one in asked), NOTHING_USED)
    # An asking answered what it has answers of, less what the store had before it
    answered = sum(max(0, count - everything[number].reused) for number, count in outcomes.answered.items())
    row = {
        "stage": asked[0].stage.name,
        "model": asked[0].stage.model,
        "requests": sum(outcomes.best.values()),
        "reused": max(0, outcomes.best.get(ANSWERED, 0) - answered),
        "answered": answered,
        "failed": outcomes.best.get(FAILED, 0),
        "unasked": outcomes.best.get(UNASKED, 0),
        **_calls(used),
        "seconds": used.seconds,
        LEAKED: outcomes.leaked,
        **{name: outcomes.readings.get(name, 0) for name in READINGS},
        "endpoint": asked[0].endpoint,
    }
    return row, used


def _calls(used: Usage) -> dict[str, Any]:
    """The columns of `usage` that are of calls."""
    return {
        "calls": used.calls,
        "retries": used.calls - used.asked - used.rate_limited - used.tool_turns,
        "rate_limited": used.rate_limited,
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "tokens_estimated": used.estimated,
        "cost": used.cost,
        "retries_after_parse": used.retries_after_parse,
        "reasoning_tokens": used.reasoning_tokens,
        "cut_prompts": used.cut_prompts,
    }


def _by_endpoint(whole: dict[str, Any], used: Usage) -> list[dict[str, Any]]:
    """The row of a stage, and of several endpoints a row each. Their sums are those of the stage.

    What no endpoint answered in this start stays in the first row, with the time and the readings of the stage.
    """
    rows = [whole]
    for endpoint, part in used.endpoints.items():
        # A request that was asked twice, with a schema and without, was answered twice and counts once
        counts = {"answered": part.done - part.failed, "failed": part.failed}
        counts = {name: min(count, whole[name]) for name, count in counts.items()}
        own = {**counts, "requests": sum(counts.values()), **_calls(part)}
        for name in (*_COUNTED, "cost"):
            if own[name] is not None:
                whole[name] -= own[name]
        # None of it is left, and differences of floats are
        nothing = {name: None if name == "endpoint" else 0 for name in whole} | {"seconds": 0.0}
        rows.append({**nothing, "stage": whole["stage"], "model": whole["model"], **own, "endpoint": endpoint})
    if used.endpoints:
        whole["cost"] = None if whole["cost"] is None else 0.0
        whole["tokens_estimated"] = False
    return rows
