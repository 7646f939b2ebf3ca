"""What a run would ask and cost, before it does: the metric's own code, asked by a planner that calls nobody."""

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
from untold.jobs.inference.stage.call_settings import calls_for, hours_at, runs_in_tasks
from untold.jobs.inference.stage.expected_usage import (
    EarlierRequests,
    ExpectedCall,
    Lookup,
    Outputs,
    RepeatedCall,
    Tallies,
    keep,
    read_figures,
)
from untold.jobs.inference.stage.requests import Requests, Rows
from untold.jobs.inference.stage.schema_support import Findings
from untold.jobs.inputs.samples import SampleError, Samples, show_invalid
from untold.jobs.metrics import METRICS, digests_of, stages_of
from untold.jobs.metrics.base import Assumptions, Metric, note_profile
from untold.jobs.metrics.request import ScoreRequest
from untold.jobs.metrics.scoring import repeated_samples, salted_stages
from untold.jobs.metrics.summaries import summarise_contexts
from untold.jobs.retrieval.sources import STAGE, assumed_hits, assumed_results, context_chunks, stages_of_knowledge
from untold.jobs.run.session import open_session
from untold.jobs.run.terminal import Display, Page, amount, table, wrapped
from untold.jobs.settings.model import Settings, prices_for
from untold.udfs.llm.keys import Stage
from untold.udfs.stages import LOOKUPS
from untold.udfs.stages.definitions import MAX_TOKENS, Figures

# Names under which a limit is sent; the first counts where both are
COMPLETION_LIMITS = ("max_completion_tokens", "max_tokens")
# A model's own limit is not known; this one stands for it where a stage sends none.
UNLIMITED_COMPLETION_TOKENS = MAX_TOKENS
# The columns of `untold.graph.distributed.Condensed`
CLASSES = "graph string, node long, statement long, representative boolean, covered boolean, in_basis boolean"
COUNTS = "graph string, covered long, uncovered long, low double, high double"


def plan(
    request: ScoreRequest, display: Display | None = None, spark: SparkSession | None = None
) -> list[dict[str, Any]]:
    """One row a metric and stage, in the order in which they are asked. Asks nothing and writes nothing.

    metric, stage; requests: distinct ones; exact: whether that is their number or an upper bound, as it is after a
    stage with requests still to be asked; reused: requests that this run would not ask, because the store, or an
    earlier metric of the list, has their answer or lasting failure. For the others: prompt_tokens, estimated;
    completion_tokens, at most; cost, None without a price, and batch_cost, what batches would cost; hours at the
    limits, None without a limit, and of batches a day. Beside these expected_requests, expected_prompt_tokens,
    expected_completion_tokens and expected_cost: what is likely, by the means of the store, else by the shipped figures
    (`untold.jobs.inference.stage.expected_usage`). Raises what `untold score` raises for samples, settings and
    templates.
    """
    settings = request.settings
    sha256 = _embedded_sha256(settings) if request.embedded else None
    names = stages_of(request.metrics, settings)
    findings = Findings(settings, request.store)
    stages = {name: findings.applied(bind_stage(name, settings, embedded_model=sha256)) for name in names}
    display = display or Display()
    spark = spark or open_session(settings, small=request.small)
    note_profile(settings, [METRICS[name] for name in request.metrics], display.note)
    display.status(f"reading {request.input}")
    # What a run would refuse a plan refuses too
    digests_of(request.metrics, settings)
    found = request.read_samples(spark)
    _check_valid(request.input, found)
    show_invalid(found, display)
    display.status("counting requests")
    valid = found.samples.join(found.invalid.select("sample_id"), on="sample_id", how="left_anti")
    # Read by every metric and stage; a plan has no output to write them to
    samples = keep(valid)
    scorings = [(samples, stages)]
    if settings.llm.repeats > 1:
        some = keep(repeated_samples(samples, found.row_count, settings))
        scorings += [(some, salted) for _, salted in salted_stages(stages, settings.llm)]
    rows: list[dict[str, Any]] = []
    for chosen, bound in scorings:
        planner = Planner(spark, bound, request.store or None, retry_failed=request.retry_failed)
        for metric in request.metrics:
            planner.add(METRICS[metric], chosen, settings)
        rows += planner.rows()
    return [one for metric in request.metrics for one in one_a_stage(row for row in rows if row["metric"] == metric)]


def _check_valid(path: str, found: Samples) -> None:
    """Raises SampleError where no row can be scored: a plan of nothing would read as a run that costs nothing."""
    if found.invalid_count == found.row_count:
        raise SampleError(f"{path}: all {found.row_count:,} rows are invalid; the first: {found.first_invalid[0]}")


def _embedded_sha256(settings: Settings) -> str:
    """The sha256 of the embedded model's file, which is not put together for a plan, nor remembered.

    It is part of the key, so that the store is asked for the right requests. Raises LocalModelError for a file that
    cannot be read.
    """
    if settings.llm.local_model is None:
        return local_model.MODEL_SHA256
    path = Path(settings.llm.local_model).expanduser()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise local_model.LocalModelError(
            f"llm.local_model: cannot read {path}: {error.strerror or error}; give the path of a GGUF file"
        ) from error


@dataclass
class Planner:
    """Counts what stages would ask, and reads what the store knows, for one metric after the other.

    Frames are built first and counted together, as each execution of Spark's costs about a second on slow cores
    whatever its size (docs/architecture.md, "A start"): `rows` has all metrics counted as far as they can be, then, of
    those that depend on answers that nobody has, what is likely.
    """

    spark: SparkSession
    stages: Mapping[str, Stage]
    store: str | None
    retry_failed: bool = False
    tallies: Tallies = field(default_factory=Tallies)
    _planned: list[_Planned] = field(default_factory=list)
    _before: EarlierRequests = field(default_factory=EarlierRequests)

    def add(self, metric: Metric, samples: DataFrame, settings: Settings, name: str | None = None) -> None:
        """Plans a metric after those before it: what they would ask counts as reused. `name`: what its rows say."""
        planned = _Planned(name or metric.name, metric, samples, metric.assume(settings))
        tools = self._tools(planned, planned.assumed.results, self._before)
        planned.calls = tools.run()
        self._planned.append(planned)

    def rows(self) -> list[dict[str, Any]]:
        """One row a metric and stage, as `plan` gives them."""
        open_stages = any(call.tally["missing"] for planned in self._planned for call in planned.calls)
        figures: Mapping[str, Figures | None] = {}
        if open_stages:
            figures = read_figures(self.spark, self.store, self.stages)
            before = EarlierRequests()
            for planned in self._planned:
                planned.expected_calls = self._expected_calls(planned, figures, before)
        return [row for planned in self._planned for row in one_a_stage(planned.rows(figures))]

    def _expected_calls(
        self, planned: _Planned, figures: Mapping[str, Figures | None], before: EarlierRequests
    ) -> Sequence[ExpectedCall]:
        """The askings of a metric were unanswered requests answered as usual.

        Up to the first stage with something to ask nothing is assumed, so that these are counted already.
        """
        ends = (place for place, call in enumerate(planned.calls, start=1) if call.tally["missing"])
        given = planned.calls[: next(ends, len(planned.calls))]
        known = {name: one for name in planned.stages if (one := figures[name]) is not None}
        # What looks something up yields nothing that its store's means would tell
        unknown = [name for name in planned.stages if name not in known and name not in LOOKUPS]
        if len(given) == len(planned.calls) or planned.assumed.expected is None or unknown:
            for call in planned.calls:
                before.add(call)
            return planned.calls
        return self._tools(planned, planned.assumed.expected(known), before, given, known).run()

    def _tools(
        self,
        planned: _Planned,
        outputs: Outputs,
        before: EarlierRequests,
        given: Sequence[ExpectedCall] = (),
        figures: Mapping[str, Figures] | None = None,
    ) -> PlanningTools:
        lookup = Lookup(self.spark, self.tallies, self.store, self.retry_failed, before)
        return PlanningTools(planned, self.stages, lookup, outputs, given, figures)


@dataclass
class _Planned:
    """A metric in a plan: what is assumed of it, its askings as they are counted, and as they are likely."""

    name: str
    metric: Metric
    samples: DataFrame
    assumed: Assumptions
    calls: Sequence[ExpectedCall] = ()
    expected_calls: Sequence[ExpectedCall] = ()
    # The askings before something was looked up; None where nothing is
    found_after: int | None = None

    @property
    def stages(self) -> tuple[str, ...]:
        return self.metric.asks(self.assumed.settings)

    def rows(self, figures: Mapping[str, Figures | None]) -> Iterator[dict[str, Any]]:
        """A row an asking. From the first with something to ask on, numbers are bounds and need not be exact."""
        exact = True
        for place, call in enumerate(self.calls):
            exact = exact and (self.found_after is None or place < self.found_after)
            row = self._row(call, exact)
            expected = call if exact or place >= len(self.expected_calls) else self.expected_calls[place]
            yield row | _expected(row, expected, figures.get(call.stage.name), self.assumed.settings, exact)
            exact = exact and not call.tally["missing"]

    def _row(self, call: ExpectedCall, exact: bool) -> dict[str, Any]:
        """What is possible. Tokens are of the requests still to be asked: completions at their limit."""
        settings, to_ask, stage = self.assumed.settings, call.tally["asked"], call.stage
        tokens = {"prompt_tokens": call.prompt_tokens, "completion_tokens": to_ask * completion_limit(stage)}
        return {
            "metric": self.name,
            "stage": stage.name,
            "requests": call.tally["total"],
            "exact": exact and not (stage.name in self.assumed.at_most and to_ask),
            "reused": call.tally["total"] - to_ask,
            **tokens,
            **cost_and_hours(settings, stage, to_ask, tokens),
        }


def one_a_stage(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row a stage, in the order in which they are first asked, with the sums over the turns that it is asked in.

    Facts and claims are both embedded, say, and not known at one time.
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
            elif not isinstance(value, str) and value is not None:
                known[name] = value + (known[name] or 0)
    return list(found.values())


def _expected(
    row: Mapping[str, Any], expected: ExpectedCall, figures: Figures | None, settings: Settings, exact: bool
) -> dict[str, Any]:
    """What is likely of a row, and no more than what is possible; calls that fail and are made again come on top.

    Where the requests are known, their prompts are counted; else they have the mean of the store, if that knows it.
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
    """What so many requests cost, and how long the limits make them take; None for a stage that calls nobody.

    tokens: prompt_tokens, completion_tokens of all of them.
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
    """Stands in for the tools of a run: looks up what is asked, and gives outputs that nobody wrote.

    `given`: askings that are known beforehand. `figures`: those that what is likely is counted by; None where what is
    possible is.
    """

    planned: _Planned
    stages: Mapping[str, Stage]
    lookup: Lookup
    outputs: Outputs
    given: Sequence[ExpectedCall] = ()
    figures: Mapping[str, Figures] | None = None
    calls: list[ExpectedCall] = field(default_factory=list)

    def run(self) -> list[ExpectedCall]:
        """The askings of the metric. The tables that it gives are frames nobody reads."""
        self.planned.metric.score(self.planned.samples, self, self.planned.assumed.settings)
        return self.calls

    def contexts(self) -> DataFrame:
        """As in a run, where metrics share them: each but the first has nothing to ask."""
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
        """The frame, computed once, as long as anything is still to be asked that may be made of it."""
        done = {call.stage.name for call in self.calls}
        return frame if done.issuperset(self.planned.stages) else keep(frame)

    def retrieve(self, rows: DataFrame, k: int | None = None) -> DataFrame:
        """Looks up what finding asks, each distinct text once, and gives as many hits as there may be."""
        settings = self.planned.assumed.settings
        most = k or settings.knowledge.top_k
        for stage in stages_of_knowledge(settings):
            if stage == STAGE:
                self.ask(STAGE, self._texts_to_embed(rows))
            else:
                self.ask(stage, rows.select("query", F.lit(most).alias("count")))
        # Which chunks are found is known once they were: what is asked of them from here on is a bound
        if self.planned.found_after is None:
            self.planned.found_after = len(self.calls)
        return self.keep(assumed_hits(rows, settings, k))

    def _texts_to_embed(self, rows: DataFrame) -> DataFrame:
        """text, kind: the queries, and where the contexts are what is looked in, their chunks."""
        settings = self.planned.assumed.settings
        queries = rows.select(F.col("query").alias("text"), F.lit("query").alias("kind"))
        if settings.knowledge.source != "contexts":
            return queries
        chunks = context_chunks(self.planned.samples, settings.index)
        return queries.unionByName(chunks.select("text", F.lit("document").alias("kind")))

    def condense(self, nodes: DataFrame, edges: DataFrame) -> Condensed:
        """Nothing: a plan ends where everything is asked."""
        spark = self.lookup.spark
        return Condensed(spark.createDataFrame([], CLASSES), spark.createDataFrame([], COUNTS))

    def ask(self, stage: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """Looks the requests up and gives results as `StageRunner.ask` does, assumed ones among them."""
        requests = Rows(rows, tuple(carry)) if isinstance(rows, DataFrame) else rows
        call = self._find(self.stages[stage], requests)
        self.calls.append(call)
        self.lookup.before.add(call)
        return call.results(self.outputs[stage] if stage in self.outputs else assumed_results()[stage])

    def _find(self, stage: Stage, requests: Requests) -> ExpectedCall:
        """The asking, known beforehand, by a formula, or looked up.

        Pairs of made-up texts are not generated: their number follows from a formula, and may be billions.
        """
        if len(self.calls) < len(self.given):
            return self.given[len(self.calls)]
        sizes = requests.bound if self.figures is None else requests.expected
        if sizes is not None and self._is_open(requests.made_of):
            return self.lookup.by_formula(stage, requests, sizes)
        figures = None if self.figures is None else self.figures.get(stage.name)
        # What a store's means say of prompts and completions need not be measured
        measured = figures is None or figures.prompt_tokens is None or figures.completion.slope != 0
        return self.lookup.find(stage, requests, measured=measured)

    def _is_open(self, made_of: Sequence[str]) -> bool:
        """Whether what is asked now depends on answers that nobody has. Counts, unless that is plain.

        made_of: the stages whose answers it is made of, all before it where none is named.
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
    """The most tokens that a completion of the stage may have, as it is asked for.

    A stage that sends no limit is taken to have `UNLIMITED_COMPLETION_TOKENS`, so that a plan has a number. Vectors and
    hits are no tokens.
    """
    if stage.name in LOOKUPS:
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
    "=: exact, <=: at most. Tokens, cost and hours are for requests that are not reused, without retries. Tokens in "
    "are estimated, tokens out are at most. Expected: from the means of the store's completions, otherwise from the "
    "figures of docs/methods.md, section 9. -: no price or no limit is set."
)
CLUSTER_NOTE = (
    "Cluster: the expected requests on these machines, at the limits or at the measured speed, if that is slower; "
    "files and bytes of completions, and the requests to an object store that write and read them. Machines: the "
    "number after which another machine saves no time, - if no limit is set."
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
    # Stages of several metrics run one after the other too
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
