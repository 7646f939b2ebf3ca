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

from untold.jobs.inference.stage.call_settings import address_of
from untold.jobs.inference.stage.requests import Requests, result_schema, without_requests
from untold.jobs.inference.store import compaction, store
from untold.jobs.settings.model import STAGE_NAMES, Settings
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.segments import JOURNALED_BYTES
from untold.udfs.llm.templates import compile_prompt
from untold.udfs.llm.units import UNIT_ROWS
from untold.udfs.llm.usage import estimate_tokens
from untold.udfs.stages import definition_of
from untold.udfs.stages.arrow import TOKENS, make_parser, measure_prompts, read_things
from untold.udfs.stages.definitions import RATINGS, Figures, LinearSize
from untold.udfs.storage import StoragePath

# The outputs of unanswered requests, by stage and name, as columns over the stage's variables
Outputs = Mapping[str, Mapping[str, Column]]
# Distinct requests; those that the store has no answer of; those of them that no metric before asks; the tokens of
# their prompts; the bytes of their variables, where only these are known
TALLIED = ("total", "missing", "asked", TOKENS, "bytes")


def keep(frame: DataFrame) -> DataFrame:
    """The frame, computed once where it is read at all, in memory and Spark's temporary folder.

    Its plan is cut off: each stage reads the one before several times, and their plans would grow exponentially.
    """
    return frame.localCheckpoint(eager=False)


@dataclass
class Tallies:
    """Sums of frames, those that are not known computed together by one execution of Spark's once one is looked at."""

    _waiting: list[DataFrame] = field(default_factory=list)
    _sums: list[dict[str, int]] = field(default_factory=list)
    # How many of the sums are known, the first ones
    _known: int = 0

    def add(self, *frames: DataFrame) -> ExpectedTally:
        """The sums over these frames of their columns that are named in `TALLIED`."""
        number = len(self._sums)
        self._sums.append(defaultdict(int))
        for frame in frames:
            sums = [F.sum(name) if name in frame.columns else F.lit(None) for name in TALLIED]
            values = [value.cast("long").alias(name) for name, value in zip(TALLIED, sums, strict=True)]
            self._waiting.append(frame.agg(*values).select(F.lit(number).alias("number"), *TALLIED))
        return ExpectedTally(self, number)

    def look(self, number: int) -> Mapping[str, int]:
        """The sums of that number."""
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
    """The sums of one asking, by the names of `TALLIED`."""

    tallies: Tallies
    number: int

    def __getitem__(self, name: str) -> int:
        """A sum; the first look computes all that wait."""
        return self.tallies.look(self.number)[name]


@dataclass(frozen=True)
class ExpectedCall:
    """A stage that is asked once: its requests, what the store has of them, and their numbers.

    `known`: completions of the requests; None where the store has no file of the stage. `missing`: request_id of what a
    run would ask, metrics before it aside. Both are None of an asking whose number is a formula's.
    """

    stage: Stage
    requests: Requests
    identified: DataFrame
    tally: ExpectedTally | RepeatedCall
    known: DataFrame | None = None
    missing: DataFrame | None = None
    by_formula: bool = False

    @property
    def stored(self) -> bool:
        """Whether the store has anything of the stage."""
        return self.known is not None

    @property
    def ids(self) -> DataFrame:
        """Column request_id: the distinct requests."""
        return self.rows.select("request_id").distinct()

    @property
    def rows(self) -> DataFrame:
        """The rows that have a request."""
        return self.identified.where(F.col("request_id").isNotNull())

    @property
    def frame_tokens(self) -> int:
        """The tokens of a prompt whose variables are empty; lookups have none."""
        if not self.stage.has_prompt:
            return 0
        prompt = compile_prompt(self.stage.template, api=self.stage.api, name=self.stage.name)
        return estimate_tokens(prompt.characters(dict.fromkeys(self.stage.variables, "")))

    @property
    def prompt_tokens(self) -> int:
        """The estimated tokens of the prompts that would be sent; of a formula's, frames and variables together."""
        if not self.by_formula:
            return self.tally[TOKENS]
        # The template's own characters come on top of the variables' for every request
        return self.tally["asked"] * self.frame_tokens + estimate_tokens(self.tally["bytes"])

    def results(self, outputs: Mapping[str, Column]) -> DataFrame:
        """What `StageRunner.ask` would give, with these outputs where there is no answer; nothing of a formula's."""
        schema = result_schema(self.stage, self.identified, self.requests.carry)
        if self.by_formula:
            return self.identified.sparkSession.createDataFrame([], schema)
        results = self._answered(outputs)
        if self.requests.all_asked:
            return results
        return results.unionByName(without_requests(self.identified, schema, self.requests.carry))

    def _answered(self, outputs: Mapping[str, Column]) -> DataFrame:
        """Columns of `carry`, request_id, the stage's output, error_type, error: parsed where known, assumed else."""
        carry, rows = self.requests.carry, self.rows
        schema = result_schema(self.stage, rows, carry)
        assumed = [
            outputs.get(one.name, F.lit(None)).cast(one.dataType).alias(one.name)
            for one in schema.fields[len(carry) + 1 :]
        ]
        if self.known is None or self.missing is None:
            return rows.select(*carry, "request_id", *assumed)
        # The model as returned is no column of results
        best = store.one_a_request(self.known).drop("model")
        known = rows.join(self.missing, on="request_id", how="left_anti").join(best, on="request_id", how="left")
        answered = self.requests.readable(self.stage, known).mapInArrow(make_parser(self.stage, carry), schema)
        unknown = rows.join(self.missing, on="request_id", how="left_semi").select(*carry, "request_id", *assumed)
        return keep(answered.unionByName(unknown))


@dataclass(frozen=True)
class RepeatedCall:
    """The tally of an asking whose requests are all asked before."""

    tally: ExpectedTally | RepeatedCall

    def __getitem__(self, name: str) -> int:
        """What there is and what is missing; nothing of what would be asked."""
        return self.tally[name] if name in ("total", "missing") else 0


@dataclass
class EarlierRequests:
    """By stage the requests that metrics before would ask: the store has their answers by the time of a later one.

    `contexts`: by their samples, what they ask for contexts and get, which metrics share.
    """

    askings: dict[str, list[ExpectedCall]] = field(default_factory=lambda: defaultdict(list))
    contexts: dict[DataFrame, tuple[Sequence[ExpectedCall], DataFrame]] = field(default_factory=dict)

    def add(self, asking: ExpectedCall) -> None:
        """Adds what an asking would ask. Requests of a formula's are not known one by one."""
        if not asking.by_formula:
            self.askings[asking.stage.name].append(asking)

    def ids(self, stage: Stage) -> DataFrame | None:
        """Column request_id, distinct; None where there is none."""
        found = [asking.ids for asking in self.askings[stage.name]]
        return reduce(DataFrame.unionByName, found).distinct() if found else None


@dataclass
class Lookup:
    """How requests are looked up: in the store, and among those counted before."""

    spark: SparkSession
    tallies: Tallies
    place: str | None
    retry_failed: bool
    before: EarlierRequests

    def find(self, stage: Stage, requests: Requests, *, measured: bool) -> ExpectedCall:
        """The requests, told apart and looked up; `measured`: their prompts too."""
        identified = keep(requests.identify(stage, measured=measured))
        rows = identified.where(F.col("request_id").isNotNull())
        sized = TOKENS in identified.columns
        if sized:
            # Rows of one request have the same texts
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
        """Requests that are counted where texts to count are not known.

        sizes: requests, bytes: so many requests, the variables of each together so long.
        """
        count = F.col("requests").cast("long")
        numbers = [count.alias(name) for name in ("total", "missing", "asked")]
        tally = self.tallies.add(sizes.select(*numbers, (count * F.col("bytes")).alias("bytes")))
        # Only its columns are of use, for the schema of results
        return ExpectedCall(stage, requests, requests.identify(stage), tally, by_formula=True)

    def _known(self, stage: Stage, ids: DataFrame) -> DataFrame | None:
        """The completions that the store has of the requests; None where it has no file of the stage."""
        if self.place is None:
            return None
        reading = store.open_reading(self.spark, store.stage_folder(self.place, stage))
        return reading.completions.join(ids, on="request_id", how="left_semi") if reading.whole.uris else None

    def _flags(self, stage: Stage, ids: DataFrame, known: DataFrame | None) -> DataFrame:
        """The columns of `ids`, missing, asked: whether a run of the metric alone would ask it, and whether this would.

        By the rule of `StageRunner`. Kept where it is a join.
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


# Means are good to a few percent from so many, and reading them takes seconds whatever a store holds
MOST_COMPLETIONS = 2_000
# The newest folders of other models and settings; a store that sees many of them has too many to read them all
MOST_FOLDERS = 5
READ = (
    "stage string, prompt_tokens long, completion_tokens long, attempts int, ratings array<double>, texts array<long>"
)
FROM_STORE = "means of the store"


def read_figures(spark: SparkSession, place: str | None, stages: Mapping[str, Stage]) -> dict[str, Figures | None]:
    """By stage its figures; None for a stage that has none and of which the store has no completion.

    From the completions of the stage's own folder of the store, else from those of other folders of the same stage:
    other models, templates or decoding. What these do not tell is as shipped. One Spark execution where there are any,
    of at most `MOST_COMPLETIONS` rows a stage; the driver gets a row a stage. `place`: the store; None for none.
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
    """Some completions of the stage's own folder, or of others of its name; none where no folder has any."""
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
    """The newest folders of a stage in the store, whatever their digests."""
    folders = (StoragePath(place) / compaction.VERSION).entries()
    named = [entry for entry in folders if re.fullmatch(rf"{re.escape(stage)}-[0-9a-f]{{32}}", entry.name)]
    newest = sorted(named, key=lambda entry: (entry.modified, entry.name), reverse=True)
    return [str(entry.place) for entry in newest[:MOST_FOLDERS]]


def _rated(rating: float) -> Column:
    """How many things of a completion have this rating; null where these are unknown."""
    return F.when(F.col("ratings").isNotNull(), F.size(F.filter("ratings", lambda one: one == rating)))


def _means() -> list[Column]:
    """The aggregates of `READ`, each passing over the nulls of what was not counted or could not be read."""
    rated = [F.sum(_rated(rating)).alias(f"rated_{rating:.0f}") for rating in RATINGS]
    means = {name: F.avg(name) for name in ("prompt_tokens", "completion_tokens", "attempts")}
    # The size of a null is -1 under some settings of Spark
    things = F.avg(F.when(F.col("ratings").isNotNull(), F.size("ratings")))
    # As many hashes as `MOST_COMPLETIONS` have things: what equals each other is mostly of one query, hence near
    distinct = F.size(F.array_distinct(F.flatten(F.collect_list("texts"))))
    named = {**means, "things": things, "distinct": distinct}
    return [*(value.alias(name) for name, value in named.items()), *rated]


def _figures(shipped: Figures | None, means: Row | None) -> Figures | None:
    """The figures with a store's means in place of what these tell."""
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


# Of a million samples of e2e on two cores, model server included, while it asked (docs/explanation/measured.md,
# "Throughput")
CALLS_PER_SECOND_AND_CORE = 737 / 2
# MiniLM, chunks of 256 tokens (docs/explanation/measured.md, "Indexes")
EMBEDDED_TEXTS_PER_SECOND_AND_CORE = 16.8
# Six layers of 384, in fp32 (docs/explanation/measured.md, "Cheaper relations")
CLASSIFIED_PAIRS_PER_SECOND_AND_CORE = 138.0
# Of a completion's row beside its text: id, times, counts (`Completion.size`)
ROW_BYTES = 264
# Of a token of English, as `Script.tokens_of` takes it
TOKEN_BYTES = 4
# A row of a file is written once; a start reads its footer and its columns
REQUESTS_OF_A_FILE = 3
HOUR = 3600.0


def cluster_of(machines: int, cores: int, settings: Settings) -> Cluster:
    """So many machines, under the settings of a run."""
    # A request of the judge has at least one pair
    in_tasks = dict.fromkeys(STAGE_NAMES, CLASSIFIED_PAIRS_PER_SECOND_AND_CORE) if settings.llm.is_judge else {}
    if settings.embeddings.base_url is None:
        in_tasks["embed_text"] = EMBEDDED_TEXTS_PER_SECOND_AND_CORE
    if settings.nli.classifier_gpus is None and address_of(settings, "classifier") is None:
        in_tasks["classify_entailment"] = CLASSIFIED_PAIRS_PER_SECOND_AND_CORE
    return Cluster(machines, cores, in_tasks)


@dataclass(frozen=True)
class Cluster:
    """Machines that all do the same work; requests a second and core of stages that a model answers within tasks."""

    machines: int
    cores: int
    in_tasks: Mapping[str, float] = field(default_factory=dict)

    def takes(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Further columns of a row of a plan, of the requests that are expected.

        cluster_hours: by limits or by the speed of these machines, whichever is slower; files and bytes of completions
        before compaction; store_requests: to write and read them; machines: how many are worth having, None without a
        limit, for then each one more is.
        """
        requests = row["expected_requests"]
        # Those of the limits are of as many requests as are possible
        asked = row["requests"] - row["reused"]
        limited = None if row["hours"] is None or not asked else row["hours"] * requests / asked
        alone = requests / self._rate(row["stage"]) / self.cores / HOUR
        size = requests * ROW_BYTES + row["expected_completion_tokens"] * TOKEN_BYTES
        files = -(-requests // UNIT_ROWS) + -(-size // JOURNALED_BYTES) if requests else 0
        return {
            "cluster_hours": max(limited or 0.0, alone / self.machines),
            "files": files,
            "bytes": size,
            "store_requests": files * REQUESTS_OF_A_FILE,
            "machines": None if not limited else max(1, -int(-alone // limited)),
        }

    def _rate(self, stage: str) -> float:
        """Requests a second and core, where the endpoint answers at once."""
        return self.in_tasks.get(stage, CALLS_PER_SECOND_AND_CORE)
