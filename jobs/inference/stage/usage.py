"""The usage of a start, and the table `usage`, which is counted once over all stages at the end of the run."""

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
# Columns with the numbers of requests by the way in which their completions were read, and by the error
READINGS = (*READ_AS, "unparsable", "refused", "empty", "truncated")
ANSWERED, FAILED = "answered", "failed"
_BEST_FIRST = (ANSWERED, FAILED, UNASKED)
# The first outcome of a request counts. Indices are compared, because Spark sorts all rows for the least text
_OUTCOMES = tuple(product(_BEST_FIRST, (None, *READINGS)))


@dataclass(frozen=True)
class StageResult:
    """The result of one call of a stage: its rows, the number of requests with stored completions, and the usage.

    `endpoint` is the address, None for several endpoints, which are in `usage`, and for local models.
    """

    stage: Stage
    results: DataFrame
    reused: int
    usage: Usage
    endpoint: str | None = None


@dataclass
class Account:
    """The calls of all stages so far and their usage. After an addition, `rows` costs one execution of Spark.

    Attributes:
        spent: usage that counts against the budget.
        models: names of models in responses, also of earlier starts.
        sections: sections of the settings whose endpoints have responded.
    """

    spent: Usage = field(default_factory=Usage)
    models: set[str | None] = field(default_factory=set)
    sections: set[str] = field(default_factory=set)
    asked: list[StageResult] = field(default_factory=list)
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _counted: int = 0

    def note_models(self, section: str, models: Iterable[str | None]) -> None:
        """Record the names of the models in the responses of the endpoint of a section."""
        named = set(models)
        self.models |= named
        if named:
            self.sections.add(section)

    def add(self, asked: StageResult) -> None:
        """Add a call of a stage. A request of an earlier call counts once."""
        self.asked.append(asked)

    def sort(self, stages: Iterable[str]) -> None:
        """Sort the calls of parallel metrics by the order of the stages."""
        places = {name: place for place, name in enumerate(stages)}
        self.asked.sort(key=lambda one: places[one.stage.name])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table `usage` in the order of the calls: one per stage and model, and endpoint if several."""
        if self._counted < len(self.asked):
            outcomes = _count_outcomes(self.asked)
            names = dict.fromkeys((one.stage.name, one.stage.model) for one in self.asked)
            whole = (_row(name, self.asked, outcomes[name]) for name in names)
            self._rows = [row for one in whole for row in _by_endpoint(*one)]
            self._counted = len(self.asked)
        return self._rows


@dataclass
class _Outcomes:
    """The distinct requests of a stage by their best outcome and by the way they were read, and the completed per call.

    `leaked` is the number of dropped items.
    """

    best: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    readings: dict[str | None, int] = field(default_factory=lambda: defaultdict(int))
    leaked: int = 0
    answered: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def _count_outcomes(asked: list[StageResult]) -> dict[tuple[str, str], _Outcomes]:
    """Return the outcomes by stage and model, with calls by their indices in the list.

    The best outcome of a request counts. One execution of Spark counts all stages, because each execution takes about
    a second on slow cores.
    """
    frames = [
        one.results.select(
            F.lit(one.stage.name).alias("stage"),
            F.lit(one.stage.model).alias("model"),
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
        .groupBy("stage", "model", "request_id")
        .agg(
            F.min("outcome").alias("outcome"),
            F.max(LEAKED).alias(LEAKED),
            *(F.max(answered & (F.col("asking") == number)).alias(name) for number, name in enumerate(names)),
        )
    )
    found: dict[tuple[str, str], _Outcomes] = defaultdict(_Outcomes)
    counted = [F.count("*").alias("count"), F.coalesce(F.sum(LEAKED), F.lit(0)).alias(LEAKED)]
    counted += [F.count_if(name).alias(name) for name in names]
    for row in requests.groupBy("stage", "model", "outcome").agg(*counted).collect():
        (best, reading), of_stage = _OUTCOMES[row["outcome"]], found[row["stage"], row["model"]]
        of_stage.best[best] += row["count"]
        of_stage.readings[reading] += row["count"]
        of_stage.leaked += row[LEAKED]
        for number, name in enumerate(names):
            of_stage.answered[number] += row[name]
    return found


def _outcome(results: DataFrame) -> Column:
    """Return the index of each row in `_OUTCOMES`: its state, and how its completion was read, or its error."""
    error = F.col("error_type")
    state = F.when(error.isNull(), ANSWERED).when(error == UNASKED, UNASKED).otherwise(FAILED)
    read_as = F.col("read_as") if "read_as" in results.columns else F.lit(None).cast("string")
    # `array_position` is 0 for a text that is not in the list, and null for null
    reading = F.coalesce(F.array_position(_listed(READINGS), F.coalesce(read_as, error)), F.lit(0))
    return (F.array_position(_listed(_BEST_FIRST), state) - 1) * (len(READINGS) + 1) + reading


def _listed(texts: Iterable[str]) -> Column:
    return F.array(*map(F.lit, texts))


def _row(stage: tuple[str, str], everything: list[StageResult], outcomes: _Outcomes) -> tuple[dict[str, Any], Usage]:
    """Return the row of a stage and model in the table `usage`, and its usage with the parts of several endpoints.

    Requests are distinct over all calls of the stage, and calls and tokens are sums. Retries are calls that are not the
    first call of a request, not rate limited, and not a turn after a tool.
    """
    asked = [one for one in everything if (one.stage.name, one.stage.model) == stage]
    used = sum((one.usage for one in asked), NOTHING_USED)
    # The completions of a call are its results without those that the store had before
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
    """Return the columns of `usage` about HTTP calls."""
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
    """Return the row of a stage, and one row per endpoint if there are several. Their sums are the sums of the stage.

    Requests without a response in this start stay in the first row, with the time and the readings of the stage.
    """
    rows = [whole]
    for endpoint, part in used.endpoints.items():
        # A request that was sent with and without a schema has two responses and counts once
        counts = {"answered": part.done - part.failed, "failed": part.failed}
        counts = {name: min(count, whole[name]) for name, count in counts.items()}
        own = {**counts, "requests": sum(counts.values()), **_calls(part)}
        for name in (*_COUNTED, "cost"):
            if own[name] is not None:
                whole[name] -= own[name]
        # Exactly zero, because differences of floats are not
        nothing = {name: None if name == "endpoint" else 0 for name in whole} | {"seconds": 0.0}
        rows.append({**nothing, "stage": whole["stage"], "model": whole["model"], **own, "endpoint": endpoint})
    if used.endpoints:
        whole["cost"] = None if whole["cost"] is None else 0.0
        whole["tokens_estimated"] = False
    return rows
