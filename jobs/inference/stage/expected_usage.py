"""Count the requests of a plan, and estimate their tokens, cost and time from the store or from shipped figures."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inference.stage.call_settings import REMOTE_FLUSH_SECONDS, address_of
from untold.jobs.inference.stage.requests import Requests, result_schema, without_requests
from untold.jobs.inference.store import compaction, store
from untold.jobs.settings.model import STAGE_NAMES, Settings
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.store_files import FLUSH_BYTES
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.llm.units import UNIT_ROWS
from untold.udfs.llm.usage import estimate_tokens
from untold.udfs.stages import definition_of
from untold.udfs.stages.arrow import TOKENS, make_parser, measure_prompts, read_things
from untold.udfs.stages.definitions import RATINGS, Figures, LinearSize
from untold.udfs.storage import StoragePath

# The assumed outputs of missing requests, by stage and name, as columns over the variables of the stage
Outputs = Mapping[str, Mapping[str, Column]]
# Distinct requests; requests without a completion in the store; those that no earlier metric sends; the tokens of their
# prompts; the bytes of their variables if only these are known
TALLIED = ("total", "missing", "asked", TOKENS, "bytes")


def keep(frame: DataFrame) -> DataFrame:
    """Return the frame as a lazy checkpoint in memory and in the temporary folder of Spark.

    Each stage reads the previous one several times, so their plans would grow exponentially without checkpoints.
    """
    return frame.localCheckpoint(eager=False)


@dataclass
class Tallies:
    """Sums of frames. The first read of an unknown sum computes all unknown sums with one execution of Spark."""

    _waiting: list[DataFrame] = field(default_factory=list)
    _sums: list[dict[str, int]] = field(default_factory=list)
    # The number of known sums, which are the first ones
    _known: int = 0

    def add(self, *frames: DataFrame) -> ExpectedTally:
        """Return the sums of the columns in `TALLIED` over these frames."""
        number = len(self._sums)
        self._sums.append(defaultdict(int))
        for frame in frames:
            sums = [F.sum(name) if name in frame.columns else F.lit(None) for name in TALLIED]
            values = [value.cast("long").alias(name) for name, value in zip(TALLIED, sums, strict=True)]
            self._waiting.append(frame.agg(*values).select(F.lit(number).alias("number"), *TALLIED))
        return ExpectedTally(self, number)

    def look(self, number: int) -> Mapping[str, int]:
        """Return the sums with this number."""
        if number >= self._known:
            rows = reduce(DataFrame.unionByName, self._waiting).collect()
            self._waiting.clear()
            self._known = len(self._sums)
            for row in rows:
                for name in TALLIED:
                    self._sums[row["number"]][name] += row[name] or 0
        return self._sums[number]


@dataclass(frozen=True)
class ExpectedTally:
    """The sums of one call of a stage, by the names in `TALLIED`."""

    tallies: Tallies
    number: int

    def __getitem__(self, name: str) -> int:
        """Return a sum. The first read computes all unknown sums."""
        return self.tallies.look(self.number)[name]


@dataclass(frozen=True)
class ExpectedCall:
    """One call of a stage in a plan: its requests, their completions in the store, and their numbers.

    Attributes:
        known: completions of the requests, None if the store has no file of the stage.
        missing: request_id of the requests that a run would send, without regard to earlier metrics. `known` and
            `missing` are None if a formula gives the number of requests.
    """

    stage: Stage
    requests: Requests
    identified: DataFrame
    tally: ExpectedTally | RepeatedCall
    known: DataFrame | None = None
    missing: DataFrame | None = None
    by_formula: bool = False
    # The settings of a judge of a panel
    settings: Settings | None = None

    @property
    def stored(self) -> bool:
        """True if the store has completions of the stage."""
        return self.known is not None

    @property
    def ids(self) -> DataFrame:
        """The distinct requests: column request_id."""
        return self.rows.select("request_id").distinct()

    @property
    def rows(self) -> DataFrame:
        """The rows with a request."""
        return self.identified.where(F.col("request_id").isNotNull())

    @property
    def frame_tokens(self) -> int:
        """The tokens of a prompt with empty variables, 0 for lookups."""
        if not self.stage.has_prompt:
            return 0
        prompt = compile_prompt(self.stage.template, api=self.stage.api, name=self.stage.name)
        return estimate_tokens(prompt.characters(dict.fromkeys(self.stage.variables, "")))

    @property
    def prompt_tokens(self) -> int:
        """The estimated tokens of all prompts to send. A formula adds the template and the variables."""
        if not self.by_formula:
            return self.tally[TOKENS]
        # Each request has the characters of the template in addition to its variables
        return self.tally["asked"] * self.frame_tokens + estimate_tokens(self.tally["bytes"])

    def results(self, outputs: Mapping[str, Column]) -> DataFrame:
        """Return the result of `StageRunner.ask` with these outputs for missing requests. Empty for a formula."""
        schema = result_schema(self.stage, self.identified, self.requests.carry)
        if self.by_formula:
            return self.identified.sparkSession.createDataFrame([], schema)
        results = self._answered(outputs)
        if self.requests.all_asked:
            return results
        return results.unionByName(without_requests(self.identified, schema, self.requests.carry))

    def _answered(self, outputs: Mapping[str, Column]) -> DataFrame:
        """Return the columns of `carry`, request_id, output, error_type and error, with assumed outputs if missing."""
        carry, rows = self.requests.carry, self.rows
        schema = result_schema(self.stage, rows, carry)
        assumed = [
            outputs.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name)
            for one in schema.fields[len(carry) + 1 :]
        ]
        if self.known is None or self.missing is None:
            return rows.select(*carry, "request_id", *assumed)
        # The returned model is not a column of results
        best = store.one_a_request(self.known).drop("model")
        known = rows.join(self.missing, on="request_id", how="left_anti").join(best, on="request_id", how="left")
        answered = self.requests.readable(self.stage, known).mapInArrow(make_parser(self.stage, carry), schema)
        unknown = rows.join(self.missing, on="request_id", how="left_semi").select(*carry, "request_id", *assumed)
        return keep(answered.unionByName(unknown))


@dataclass(frozen=True)
class RepeatedCall:
    """The tally of a call of a stage whose requests were all sent earlier."""

    tally: ExpectedTally | RepeatedCall

    def __getitem__(self, name: str) -> int:
        """Return the total and the missing requests, and 0 for all other sums."""
        return self.tally[name] if name in ("total", "missing") else 0


@dataclass
class EarlierRequests:
    """The requests of earlier metrics by stage. The store has their completions at the time of a later metric.

    `contexts` has the requests and results for contexts by their samples, which metrics share.
    """

    askings: dict[str, list[ExpectedCall]] = field(default_factory=lambda: defaultdict(list))
    contexts: dict[DataFrame, tuple[Sequence[ExpectedCall], DataFrame]] = field(default_factory=dict)

    def add(self, asking: ExpectedCall) -> None:
        """Add the requests of a call. Single requests of a formula are unknown."""
        if not asking.by_formula:
            self.askings[asking.stage.name].append(asking)

    def ids(self, stage: Stage) -> DataFrame | None:
        """Return the distinct request_id, None without requests."""
        found = [asking.ids for asking in self.askings[stage.name]]
        return reduce(DataFrame.unionByName, found).distinct() if found else None


@dataclass
class Lookup:
    """Look up requests in the store and among the requests that were counted earlier."""

    spark: SparkSession
    place: str | None
    retry_failed: bool = False
    tallies: Tallies = field(default_factory=Tallies)
    before: EarlierRequests = field(default_factory=EarlierRequests)

    def find(self, stage: Stage, requests: Requests, *, measured: bool) -> ExpectedCall:
        """Identify the requests and look them up. `measured` also measures their prompts."""
        identified = keep(requests.identify(stage, measured=measured))
        rows = identified.where(F.col("request_id").isNotNull())
        sized = TOKENS in identified.columns
        if sized:
            # All rows of a request have the same texts
            ids = rows.groupBy("request_id").agg(F.first(TOKENS).alias(TOKENS))
        else:
            ids = rows.select("request_id").distinct()
        known = self._known(stage, ids)
        flags = self._flags(stage, ids, known)
        counts = [F.lit(1).alias("total"), *(F.col(name).cast("int").alias(name) for name in ("missing", "asked"))]
        frames = [flags.select(*counts, *([F.when(F.col("asked"), F.col(TOKENS)).alias(TOKENS)] if sized else []))]
        if measured and not sized:
            texts = requests.texts_of(stage, identified, flags.where("asked").select("request_id"))
            measure = partial(measure_prompts, stage=stage)
            frames.append(texts.select(*stage.variables).mapInArrow(measure, f"{TOKENS} long"))
        missing = None if known is None else flags.where("missing").select("request_id")
        return ExpectedCall(stage, requests, identified, self.tallies.add(*frames), known, missing)

    def by_formula(self, stage: Stage, requests: Requests, sizes: DataFrame) -> ExpectedCall:
        """Return a call with a number of requests whose texts are unknown.

        `sizes` has the columns requests and bytes: the number of requests, and the bytes of the variables of each.
        """
        count = F.col("requests").cast("long")
        numbers = [count.alias(name) for name in ("total", "missing", "asked")]
        tally = self.tallies.add(sizes.select(*numbers, (count * F.col("bytes")).alias("bytes")))
        # Only its columns are used, for the schema of results
        return ExpectedCall(stage, requests, requests.identify(stage), tally, by_formula=True)

    def _known(self, stage: Stage, ids: DataFrame) -> DataFrame | None:
        """Return the completions of the requests in the store, None if it has no file of the stage."""
        if self.place is None:
            return None
        reading = store.open_reading(self.spark, store.stage_folder(self.place, stage))
        return reading.completions.join(ids, on="request_id", how="left_semi") if reading.whole.uris else None

    def _flags(self, stage: Stage, ids: DataFrame, known: DataFrame | None) -> DataFrame:
        """Return the columns of `ids` with `missing` and `asked`, by the rule of `StageRunner`.

        `missing` is True if a run of only this metric would send the request, and `asked` if this run would. A join is
        cached.
        """
        before, columns = self.before.ids(stage), ids.columns
        missing = F.lit(True)
        if known is not None:
            ids = ids.join(store.states_of_requests(known), on="request_id", how="left")
            missing = store.is_needed(retry_failed=self.retry_failed)
        flags = ids.select(*columns, missing.alias("missing"))
        if before is None:
            flags = flags.withColumn("asked", F.col("missing"))
        else:
            marked = before.withColumn("earlier", F.lit(True))
            flags = flags.join(marked, on="request_id", how="left").select(
                *columns, "missing", (F.col("missing") & F.col("earlier").isNull()).alias("asked")
            )
        return flags if known is None and before is None else keep(flags)


# Means over this number are accurate to a few percent, and take seconds for any size of the store
MOST_COMPLETIONS = 2_000
# The number of folders of other models and settings, the newest ones
MOST_FOLDERS = 5
READ = (
    "stage string, prompt_tokens long, completion_tokens long, attempts int, ratings array<double>, texts array<long>"
)
FROM_STORE = "means of the store"


def read_figures(spark: SparkSession, place: str | None, stages: Mapping[str, Stage]) -> dict[str, Figures | None]:
    """Return the figures by stage, None for a stage without figures and completions.

    They come from completions in the folder of the stage in the store, or in other folders of the stage, with other
    models, templates or decoding. Shipped figures fill the gaps. One execution of Spark reads at most
    `MOST_COMPLETIONS` rows per stage, and the driver gets one row per stage. `place` is the store or None.
    """
    shipped = {name: definition_of(name).figures for name in stages}
    if place is None:
        return shipped
    frames = [frame for stage in stages.values() for frame in _some_completions(spark, place, stage)]
    if not frames:
        return shipped
    rows = reduce(DataFrame.unionByName, frames).mapInArrow(read_things, READ)
    means = {row["stage"]: row for row in rows.groupBy("stage").agg(*_means()).collect()}
    return {name: _figures(known, means.get(name)) for name, known in shipped.items()}


def _some_completions(spark: SparkSession, place: str, stage: Stage) -> Iterator[DataFrame]:
    """Yield some completions of the folder of the stage, or of other folders of its name."""
    own = store.stage_folder(place, stage)
    for folders in ([own], _folders_of(place, stage.name)):
        readings = [store.open_reading(spark, folder) for folder in folders]
        found = [reading.completions for reading in readings if reading.whole.uris]
        if found:
            rows = reduce(DataFrame.unionByName, found).where(F.col("error_type").isNull()).limit(MOST_COMPLETIONS)
            columns = ("text", "prompt_tokens", "completion_tokens", "attempts")
            yield rows.select(F.lit(stage.name).alias("stage"), *columns)
            return


def _folders_of(place: str, stage: str) -> list[str]:
    """Return the newest folders of a stage in the store with any digests."""
    folders = (StoragePath(place) / compaction.VERSION).entries()
    named = [entry for entry in folders if re.fullmatch(rf"{re.escape(stage)}-[0-9a-f]{{32}}", entry.name)]
    newest = sorted(named, key=lambda entry: (entry.modified, entry.name), reverse=True)
    return [str(entry.place) for entry in newest[:MOST_FOLDERS]]


def _rated(rating: float) -> Column:
    """Return the number of items of a completion with this rating, null if they are unknown."""
    return F.when(F.col("ratings").isNotNull(), F.size(F.filter("ratings", lambda one: one == rating)))


def _means() -> list[Column]:
    """Return the aggregates of `READ`. They skip the nulls of uncounted and unreadable completions."""
    rated = [F.sum(_rated(rating)).alias(f"rated_{rating:.0f}") for rating in RATINGS]
    means = {name: F.avg(name) for name in ("prompt_tokens", "completion_tokens", "attempts")}
    # The size of a null is -1 under some settings of Spark
    things = F.avg(F.when(F.col("ratings").isNotNull(), F.size("ratings")))
    # One hash per item of `MOST_COMPLETIONS` completions. Equal items are mostly of one query
    distinct = F.size(F.array_distinct(F.flatten(F.collect_list("texts"))))
    named = {**means, "things": things, "distinct": distinct}
    return [*(value.alias(name) for name, value in named.items()), *rated]


def _figures(shipped: Figures | None, means: Row | None) -> Figures | None:
    """Return the figures with the means of the store, if it has them."""
    if means is None or means["completion_tokens"] is None:
        return shipped
    known = replace(
        shipped or Figures(FROM_STORE, LinearSize()),
        source=FROM_STORE,
        completion=LinearSize(means["completion_tokens"]),
        prompt_tokens=means["prompt_tokens"],
        calls=max(1.0, means["attempts"] or 1.0),
    )
    counts = [means[f"rated_{rating:.0f}"] or 0 for rating in RATINGS]
    if means["things"] is None:
        return known
    total = sum(counts)
    things = replace(known, things=LinearSize(means["things"]))
    if not total:
        return things
    return replace(things, ratings=tuple(count / total for count in counts), distinct=means["distinct"] / total)


# For a million samples of e2e on two cores, with the model server (docs/explanation/measured.md, "Throughput")
CALLS_PER_SECOND_AND_CORE = 737 / 2
# For MiniLM and chunks of 256 tokens (docs/explanation/measured.md, "Indexes")
EMBEDDED_TEXTS_PER_SECOND_AND_CORE = 16.8
# For six layers of 384 in fp32 (docs/explanation/measured.md, "Cheaper relations")
CLASSIFIED_PAIRS_PER_SECOND_AND_CORE = 138.0
# The bytes of a row of a completion in addition to its text: id, times, counts (`Completion.size`)
ROW_BYTES = 264
# The bytes of an English token, as in `Script.tokens_of`
TOKEN_BYTES = 4
# A file is written once, and a start reads its footer and its columns
REQUESTS_OF_A_FILE = 3
HOUR = 3600.0


def cluster_of(machines: int, cores: int, settings: Settings) -> Cluster:
    """Return a cluster of this size with the settings of a run."""
    # A request of the judge has at least one pair
    in_tasks = dict.fromkeys(STAGE_NAMES, CLASSIFIED_PAIRS_PER_SECOND_AND_CORE) if settings.llm.is_judge else {}
    if settings.embeddings.base_url is None:
        in_tasks["embed_text"] = EMBEDDED_TEXTS_PER_SECOND_AND_CORE
    if settings.nli.classifier_gpus is None and address_of(settings, "classifier") is None:
        in_tasks["classify_entailment"] = CLASSIFIED_PAIRS_PER_SECOND_AND_CORE
    return Cluster(machines, cores, settings.llm.flush_seconds or REMOTE_FLUSH_SECONDS, in_tasks)


@dataclass(frozen=True)
class Cluster:
    """Equal machines. `in_tasks` has the requests per second and core of stages that models answer in tasks.

    flush_seconds: the time between two writes of an actor.
    """

    machines: int
    cores: int
    flush_seconds: float
    in_tasks: Mapping[str, float] = field(default_factory=dict)

    def takes(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of a row of a plan for a cluster, for the expected requests.

        cluster_hours: at the limits or at the speed of these machines, whichever is slower; files and bytes of
        completions before compaction; store_requests to write and read them; machines: the number of useful machines,
        None without a limit, because each additional machine is useful.
        """
        requests = row["expected_requests"]
        # The hours at the limits are for the maximum number of requests
        asked = row["requests"] - row["reused"]
        limited = None if row["hours"] is None or not asked else row["hours"] * requests / asked
        alone = requests / self._rate(row["stage"]) / self.cores / HOUR
        size = requests * ROW_BYTES + row["expected_completion_tokens"] * TOKEN_BYTES
        hours = max(limited or 0.0, alone / self.machines)
        # An actor writes at the end of a unit, at a size, and after some seconds, whichever is first
        writes = max(-(-size // FLUSH_BYTES), int(hours * HOUR / self.flush_seconds))
        files = min(requests, -(-requests // UNIT_ROWS) + writes)
        return {
            "cluster_hours": hours,
            "files": files,
            "bytes": size,
            "store_requests": files * REQUESTS_OF_A_FILE,
            "machines": None if not limited else max(1, -int(-alone // limited)),
        }

    def _rate(self, stage: str) -> float:
        """Return the requests per second and core for an endpoint without latency."""
        return self.in_tasks.get(stage, CALLS_PER_SECOND_AND_CORE)
