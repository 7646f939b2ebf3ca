"""Plan the requests and the cost of a run: the code of the metrics runs with tools that send no request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.graph.distributed import Condensed
from untold.jobs.inference.backends import local_model
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import Findings, calls_for, hours_at, runs_in_tasks
from untold.jobs.inference.stage.expected_usage import (
    EarlierRequests,
    ExpectedCall,
    Lookup,
    Outputs,
    RepeatedCall,
    keep,
    read_figures,
)
from untold.jobs.inference.stage.requests import Requests, Rows
from untold.jobs.inputs.samples import SampleError, Samples, show_invalid
from untold.jobs.metrics import METRICS, digests_of, stages_of
from untold.jobs.metrics.base import Assumptions, Metric, note_settings
from untold.jobs.metrics.scoring import Panel, ScoreRequest, bind_panel, repeated_samples, repetitions
from untold.jobs.metrics.summaries import summarise_contexts
from untold.jobs.retrieval.sources import STAGE, assumed_hits, assumed_results, context_chunks, stages_of_knowledge
from untold.jobs.run.session import open_session
from untold.jobs.run.terminal import Display, Page, amount, table, wrapped
from untold.jobs.settings.model import Settings, prices_for
from untold.udfs.llm.keys import Stage
from untold.udfs.stages import LOOKUPS
from untold.udfs.stages.definitions import MAX_TOKENS, Figures

# Names of the sent token limit; the first one counts if both are sent
COMPLETION_LIMITS = ("max_completion_tokens", "max_tokens")
# The assumed limit of a stage that sends none, because the limit of the model is unknown
UNLIMITED_COMPLETION_TOKENS = MAX_TOKENS
# The columns of `untold.graph.distributed.Condensed`
CLASSES = "graph string, node long, statement long, representative boolean, covered boolean, in_basis boolean"
COUNTS = "graph string, covered long, uncovered long, low double, high double"


def plan(
    request: ScoreRequest, display: Display | None = None, spark: SparkSession | None = None
) -> list[dict[str, Any]]:
    """Return one row per metric and stage, in the order of the stages. Sends no request and writes no file.

    Columns: metric, stage; requests, the number of distinct requests; exact, False if this number is an upper bound,
    because an earlier stage has missing requests; reused, the requests with a completion or a permanent failure in the
    store, or of an earlier metric. For the missing requests: prompt_tokens, estimated; completion_tokens, at most;
    cost and batch_cost, None without a price; hours at the limits, None without a limit, and a day per batch. The
    columns expected_requests, expected_prompt_tokens, expected_completion_tokens and expected_cost use the means of
    the store, or else the shipped figures (`untold.jobs.inference.stage.expected_usage`). Raises the errors of `untold
    score` for samples, settings and templates.
    """
    settings = request.settings
    sha256 = _embedded_sha256(settings) if request.embedded else None
    names = stages_of(request.metrics, settings)
    findings = Findings(settings, request.store)
    stages = {name: findings.applied(bind_stage(name, settings, embedded_model=sha256)) for name in names}
    display = display or Display()
    spark = spark or open_session(settings, small=request.small)
    note_settings(settings, [METRICS[name] for name in request.metrics], display.note)
    display.status(f"reading {request.input}")
    # A plan has the errors of a run
    digests_of(request.metrics, settings)
    found = request.read_samples(spark)
    _check_valid(request.input, found)
    show_invalid(found, display)
    display.status("counting requests")
    valid = found.samples.join(found.invalid.select("sample_id"), on="sample_id", how="left_anti")
    # Cached for all metrics and stages, because a plan writes no output
    samples = keep(valid)
    scorings: list[tuple[DataFrame, Mapping[str, Stage]]] = [(samples, stages)]
    if settings.llm.repeats > 1:
        some = keep(repeated_samples(samples, found.row_count, settings))
        scorings += [(keep(chosen), again) for _, chosen, again in repetitions(some, stages, settings)]
    planners: list[Planner] = []
    for chosen, bound in scorings:
        # Scorings with equal stages share requests
        if not planners or planners[-1].stages is not bound:
            panel = bind_panel(request.metrics, settings, bound)
            planners.append(Planner(Lookup(spark, request.store or None, request.retry_failed), bound, panel))
        for metric in request.metrics:
            planners[-1].add(METRICS[metric], chosen, settings)
    rows = [row for planner in planners for row in planner.rows()]
    return [one for metric in request.metrics for one in one_a_stage(row for row in rows if row["metric"] == metric)]


def _check_valid(path: str, found: Samples) -> None:
    """Raise SampleError if every row is invalid, because an empty plan looks like a run without a cost."""
    if found.invalid_count == found.row_count:
        raise SampleError(f"all {found.row_count:,} rows of {path} are invalid. The first: {found.first_invalid[0]}")


def _embedded_sha256(settings: Settings) -> str:
    """Return the sha256 of the embedded model's file. A plan does not create the file.

    The hash is a part of the keys of requests. Raises LocalModelError for an unreadable file.
    """
    if settings.llm.local_model is None:
        return local_model.MODEL_SHA256
    path = Path(settings.llm.local_model).expanduser()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise local_model.LocalModelError(
            f"llm.local_model: cannot read {path} ({error.strerror or error}). Give the path of a GGUF file"
        ) from error


@dataclass
class Planner:
    """Count the requests of the stages of several metrics, with the store and its means.

    Frames are built first and counted together, because each Spark execution costs about a second on slow cores
    (docs/architecture.md, "A start"). `rows` first counts the largest possible requests of all metrics, and then the
    expected requests of stages that depend on missing completions.
    """

    lookup: Lookup
    stages: Mapping[str, Stage]
    panel: Panel = field(default_factory=dict)
    _planned: list[_Planned] = field(default_factory=list)

    def add(self, metric: Metric, samples: DataFrame, settings: Settings) -> None:
        """Plan a metric. Requests of earlier metrics count as reused."""
        planned = _Planned(metric, samples, metric.assume(settings))
        tools = PlanningTools(planned, self.stages, self.lookup, planned.assumed.results, panel=self.panel)
        planned.calls = tools.run()
        self._planned.append(planned)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per metric and stage, as `plan`."""
        open_stages = any(call.tally["missing"] for planned in self._planned for call in planned.calls)
        figures: Mapping[str, Figures | None] = {}
        if open_stages:
            figures = read_figures(self.lookup.spark, self.lookup.place, self.stages)
            lookup = replace(self.lookup, before=EarlierRequests())
            for planned in self._planned:
                planned.expected_calls = self._expected_calls(planned, figures, lookup)
        return [row for planned in self._planned for row in one_a_stage(planned.rows(figures))]

    def _expected_calls(
        self, planned: _Planned, figures: Mapping[str, Figures | None], lookup: Lookup
    ) -> Sequence[ExpectedCall]:
        """Return the calls of a metric with average completions.

        The calls before the first stage with missing requests need no assumption, so they are counted already.
        """
        ends = (place for place, call in enumerate(planned.calls, start=1) if call.tally["missing"])
        given = planned.calls[: next(ends, len(planned.calls))]
        known = {name: one for name in planned.stages if (one := figures[name]) is not None}
        # Stages of lookups have no means in the store
        unknown = [name for name in planned.stages if name not in known and name not in LOOKUPS]
        if len(given) == len(planned.calls) or planned.assumed.expected is None or unknown:
            for call in planned.calls:
                lookup.before.add(call)
            return planned.calls
        outputs = planned.assumed.expected(known)
        return PlanningTools(planned, self.stages, lookup, outputs, given, known, self.panel).run()


@dataclass
class _Planned:
    """A metric in a plan: its assumptions, and its calls of stages as counted and as expected."""

    metric: Metric
    samples: DataFrame
    assumed: Assumptions
    calls: Sequence[ExpectedCall] = ()
    expected_calls: Sequence[ExpectedCall] = ()
    # The number of calls before the first search, None without a search
    found_after: int | None = None

    @property
    def stages(self) -> tuple[str, ...]:
        return self.metric.asks(self.assumed.settings)

    def rows(self, figures: Mapping[str, Figures | None]) -> Iterator[dict[str, Any]]:
        """Yield one row per call of a stage. After the first call with missing requests, numbers are upper bounds."""
        exact = True
        for place, call in enumerate(self.calls):
            exact = exact and (self.found_after is None or place < self.found_after)
            row = self._row(call, exact)
            expected = call if exact or place >= len(self.expected_calls) else self.expected_calls[place]
            settings = call.settings or self.assumed.settings
            yield row | _expected(row, expected, figures.get(call.stage.name), settings, exact)
            exact = exact and not call.tally["missing"]

    def _row(self, call: ExpectedCall, exact: bool) -> dict[str, Any]:
        """Return the largest possible columns. The tokens assume completions at their limit."""
        settings, to_ask, stage = call.settings or self.assumed.settings, call.tally["asked"], call.stage
        tokens = {"prompt_tokens": call.prompt_tokens, "completion_tokens": to_ask * completion_limit(stage)}
        return {
            "metric": self.metric.name,
            "stage": stage.name,
            "requests": call.tally["total"],
            "exact": exact and not (stage.name in self.assumed.at_most and to_ask),
            "reused": call.tally["total"] - to_ask,
            **tokens,
            **cost_and_hours(settings, stage, to_ask, tokens),
        }


def one_a_stage(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per stage, in the order of its first call, with the sums over all calls of the stage.

    A metric can call a stage several times, for example to embed facts and then claims.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["stage"] not in found:
            found[row["stage"]] = dict(row)
            continue
        known = found[row["stage"]]
        for name, value in row.items():
            if name == "exact":
                known[name] = known[name] and value
            elif name.endswith("cost") and None in (value, known[name]):
                # A judge without a price
                known[name] = None
            elif not isinstance(value, str) and value is not None:
                known[name] = value + (known[name] or 0)
    return list(found.values())


def _expected(
    row: Mapping[str, Any], expected: ExpectedCall, figures: Figures | None, settings: Settings, exact: bool
) -> dict[str, Any]:
    """Return the expected columns of a row, at most the possible ones. Repeated calls are added.

    Prompts of known requests are counted. Prompts of other requests have the mean length of the store, if it has one.
    """
    asked = min(expected.tally["asked"], row["requests"] - row["reused"])
    prompts, completions = float(row["prompt_tokens"]), float(row["completion_tokens"])
    if figures is not None:
        calls = max(figures.calls, 1.0)
        mean = None if exact else figures.prompt_tokens
        counted = expected.prompt_tokens * (asked / expected.tally["asked"] if expected.tally["asked"] else 0.0)
        prompts = counted * calls if mean is None else asked * mean
        variables = max(0.0, counted - asked * expected.frame_tokens)
        completions = asked * figures.completion.base + figures.completion.slope * variables
    tokens = {
        "prompt_tokens": round(prompts if exact else min(prompts, row["prompt_tokens"])),
        "completion_tokens": round(min(completions, row["completion_tokens"])),
    }
    return {
        "expected_requests": asked,
        **{f"expected_{name}": value for name, value in tokens.items()},
        "expected_cost": cost_and_hours(settings, expected.stage, asked, tokens)["cost"],
    }


def cost_and_hours(
    settings: Settings, stage: Stage, requests: int, tokens: Mapping[str, int]
) -> dict[str, float | None]:
    """Return the cost and the hours of requests at the limits, None for a stage without calls.

    `tokens` has the sums prompt_tokens and completion_tokens.
    """
    if runs_in_tasks(stage, settings):
        return {"cost": None, "batch_cost": None, "hours": None}
    calls = calls_for(settings, stage, requests)
    return {
        "cost": prices_for(settings, stage.name).cost(**tokens, calls=calls),
        "batch_cost": prices_for(settings, stage.name, "batch").cost(**tokens, calls=calls),
        "hours": hours_at(settings, stage, calls, sum(tokens.values())),
    }


@dataclass
class PlanningTools:
    """Tools of a metric that count requests and return assumed outputs.

    `given` are the first calls, if they are known. `figures` are the means for expected requests, None for the largest
    possible requests.
    """

    planned: _Planned
    stages: Mapping[str, Stage]
    lookup: Lookup
    outputs: Outputs
    given: Sequence[ExpectedCall] = ()
    figures: Mapping[str, Figures] | None = None
    panel: Panel = field(default_factory=dict)
    # The settings of a judge
    settings: Settings | None = None
    calls: list[ExpectedCall] = field(default_factory=list)

    def run(self) -> list[ExpectedCall]:
        """Return the calls of the metric. Its tables are frames that are never read."""
        self.planned.metric.score(self.planned.samples, self, self.planned.assumed.settings)
        return self.calls

    def judges(self) -> Mapping[str, PlanningTools]:
        """Return tools that count the requests of each judge among the calls of the metric."""
        return {name: replace(self, settings=own, stages=stages) for name, (own, stages) in self.panel.items()}

    def contexts(self) -> DataFrame:
        """Return the summarised contexts, which the metrics share: only the first metric has missing requests."""
        samples, known = self.planned.samples, self.lookup.before.contexts
        if samples not in known:
            summarise, place = self.planned.assumed.settings.summarise_contexts, len(self.calls)
            frame = summarise_contexts(samples, self.ask, summarise=summarise)
            shared = [replace(call, tally=RepeatedCall(call.tally)) for call in self.calls[place:]]
            known[samples] = shared, frame
            return frame
        calls, frame = known[samples]
        self.calls += calls
        return frame

    def keep(self, frame: DataFrame, name: str = "") -> DataFrame:
        """Return the frame, computed once if a later stage can use it."""
        done = {call.stage.name for call in self.calls}
        return frame if done.issuperset(self.planned.stages) else keep(frame)

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        """Count the requests of a search, once per distinct text, and return the largest number of hits."""
        settings = self.planned.assumed.settings
        most = k or settings.knowledge.top_k
        for stage in stages_of_knowledge(settings):
            if stage == STAGE:
                self.ask(STAGE, self._texts_to_embed(rows))
            else:
                self.ask(stage, rows.select("query", F.lit(most).alias("count")))
        # The found chunks are unknown, so all later requests are upper bounds
        if self.planned.found_after is None:
            self.planned.found_after = len(self.calls)
        return self.keep(assumed_hits(rows, settings, k))

    def _texts_to_embed(self, rows: DataFrame) -> DataFrame:
        """Return text and kind of the queries, and of the chunks of contexts if contexts are searched."""
        settings = self.planned.assumed.settings
        queries = rows.select(F.col("query").alias("text"), F.lit("query").alias("kind"))
        if settings.knowledge.source != "contexts":
            return queries
        chunks = context_chunks(self.planned.samples, settings.index)
        return queries.unionByName(chunks.select("text", F.lit("document").alias("kind")))

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Return no statements, because a plan ends with the last request."""
        spark = self.lookup.spark
        return Condensed(spark.createDataFrame([], CLASSES), spark.createDataFrame([], COUNTS))

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """Look up the requests and return results like `StageRunner.ask`, with assumed results for missing requests."""
        requests = Rows(rows, tuple(carry)) if isinstance(rows, DataFrame) else rows
        bound = self.stages[stage]
        if self.settings is not None:
            bound = Findings(self.settings, self.lookup.place).applied(bound)
        call = replace(self._find(bound, requests), settings=self.settings)
        self.calls.append(call)
        self.lookup.before.add(call)
        return call.results(self.outputs[stage] if stage in self.outputs else assumed_results()[stage])

    def _find(self, stage: Stage, requests: Requests) -> ExpectedCall:
        """Return the call, from the known calls, from a formula, or from a lookup.

        Pairs of assumed texts are not generated, because there can be billions. A formula gives their number.
        """
        if len(self.calls) < len(self.given):
            return self.given[len(self.calls)]
        sizes = requests.bound if self.figures is None else requests.expected
        if sizes is not None and self._is_open(requests.made_of):
            return self.lookup.by_formula(stage, requests, sizes)
        figures = None if self.figures is None else self.figures.get(stage.name)
        # The store has the mean sizes of prompts and completions, so they are not measured
        measured = figures is None or figures.prompt_tokens is None or figures.completion.slope != 0
        return self.lookup.find(stage, requests, measured=measured)

    def _is_open(self, made_of: Sequence[str]) -> bool:
        """Return True if the requests depend on missing completions. Counts only if needed.

        `made_of` are the stages that the requests depend on, by default all earlier stages.
        """
        if self.planned.found_after is not None:
            return True
        if not self.calls:
            return False
        if self.figures is not None:
            return True
        if not made_of and not self.calls[0].stored:
            return True
        before = [call for call in self.calls if not made_of or call.stage.name in made_of]
        return any(call.tally["missing"] for call in before)


def completion_limit(stage: Stage) -> int:
    """Return the token limit of a completion of the stage, 0 for vectors and hits.

    A stage without a limit counts with `UNLIMITED_COMPLETION_TOKENS`.
    """
    if not stage.has_prompt:
        return 0
    sent = (stage.decoding.get(name) for name in COMPLETION_LIMITS)
    limit = next((limit for limit in sent if isinstance(limit, int)), None)
    if limit is None:
        return UNLIMITED_COMPLETION_TOKENS
    room = limit + stage.reasoning_tokens
    return min(room, stage.most_tokens or room)


POSSIBLE = ("requests", "reused", "prompt_tokens", "completion_tokens", "cost", "hours")
EXPECTED = ("expected_requests", "expected_prompt_tokens", "expected_completion_tokens", "expected_cost")
CLUSTER = ("cluster_hours", "files", "bytes", "store_requests", "machines")
AMOUNTS = ("cost", "hours", "expected_cost", "cluster_hours")
NOTES = (
    "= means exact, <= means at most. Tokens, cost and hours are for requests that are not reused, without retries. "
    "Tokens in are estimates, tokens out are limits. Expected values use the means of the store's completions, or "
    "otherwise the figures of docs/methods.md, section 9. - means that no price or no limit is set."
)
CLUSTER_NOTE = (
    "Cluster: the expected requests on these machines, at the limits or at the measured speed, if that is slower. "
    "The columns files and bytes count completions, and store_requests counts the requests to an object store that "
    "write and read them. Machines: the number after which another machine saves no time, - if no limit is set."
)
WIDEST = 100


def plan_lines(rows: Sequence[Mapping[str, Any]], page: Page) -> list[str]:
    """Return the lines of a plan: tables of the possible, the expected and the cluster's figures, with their totals."""
    whole = [*rows, _total(rows)]
    width = Page(min(page.width or WIDEST, WIDEST))

    def show(title: str, heads: Sequence[str], names: Sequence[str]) -> list[str]:
        cells = [[row["metric"], row["stage"], *_numbers(row, names)] for row in whole]
        return [title, *table(["metric", "stage", *heads], cells, page, names=2), ""]

    heads = ("requests", "tokens in", "tokens out", "cost")
    lines = show("possible", (heads[0], "reused", *heads[1:], "hours"), POSSIBLE)
    lines += [*show("expected", heads, EXPECTED), *_by_batches(whole)]
    if CLUSTER[0] in rows[0]:
        lines += show("cluster", ("hours", "files", "bytes", "store requests", "machines"), CLUSTER)
        lines += [*wrapped(CLUSTER_NOTE, width), ""]
    return [*lines, *wrapped(NOTES, width)]


def _by_batches(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line with the cost and the rounds of batches, and nothing without prices."""
    *stages, total = rows
    if total["batch_cost"] is None:
        return []
    # Stages of several metrics also run one after another
    batched = {row["stage"] for row in stages if row["requests"] > row["reused"] and row["batch_cost"] is not None}
    rounds = amount(len(batched.difference(LOOKUPS)), "round of batches", "rounds of batches")
    cost = f"cost {total['batch_cost']:,.2f} at most"
    return [f"by batches (llm.backend=batch): {cost}, {rounds}, each within 24 hours", ""]


def _numbers(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return counts in full, amounts with two decimals, `-` for unknown numbers, and the sign of possible requests."""
    cells = ["-" if row[name] is None else format(row[name], ",.2f" if name in AMOUNTS else ",") for name in names]
    return [f"{'=' if row['exact'] else '<='} {cells[0]}", *cells[1:]] if names is POSSIBLE else cells


def _total(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of all rows. Hours are sums too, because stages run one after the other."""
    names = (*POSSIBLE, "batch_cost", *EXPECTED, *(CLUSTER if CLUSTER[0] in rows[0] else ()))
    known = {name: [row[name] for row in rows if row[name] is not None] for name in names}
    sums = {name: sum(values) if values else None for name, values in known.items()}
    # Each stage in its turn uses all machines
    most = {"machines": max(known["machines"], default=None)} if "machines" in known else {}
    return {"metric": "total", "stage": "", "exact": all(row["exact"] for row in rows), **sums, **most}
