"""Runs a stage over a DataFrame: distinct, anti-join, answer, join, parse. Each step is materialised as Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking import compaction, snapshots, store
from untold.jobs.asking.calling import call_settings, count_actors, runs_in_tasks, section_of
from untold.jobs.asking.endpoint import RunEndpoint, explain_refusal
from untold.jobs.asking.engines import Engines
from untold.jobs.asking.findings import Findings
from untold.jobs.asking.job import Job
from untold.jobs.asking.local_model import LocalModelError
from untold.jobs.asking.process import AnsweringError, AnsweringProcess
from untold.jobs.asking.prompts import order_of_prompt
from untold.jobs.asking.requests import Requests, Rows, result_schema, without_requests
from untold.jobs.asking.store import Reading
from untold.jobs.asking.tasks import TaskRun
from untold.jobs.asking.usage import Asked, Usage
from untold.jobs.run.locks import FolderLock, LockedError
from untold.jobs.run.outcome import Ending
from untold.jobs.run.refusals import explain, root_cause
from untold.jobs.run.session import spark_schema
from untold.jobs.run.terminal import amount
from untold.jobs.run.workspace import Counted, Workspace
from untold.jobs.settings.model import Settings, prices_for
from untold.jobs.tables import COMPLETIONS
from untold.udfs.llm.calls import CallSettings, Tally
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.limiter import Spent
from untold.udfs.llm.structure import Finding
from untold.udfs.llm.units import UNIT_BYTES, UNIT_ROWS
from untold.udfs.stages.arrow import UNASKED, reading_of
from untold.udfs.storage import Place

# So that the last unit is a small part of an actor's work, and no actor waits long for the slowest
UNITS_OF_AN_ACTOR = 4
# Requests that one task of Spark writes for the actors
REQUESTS_OF_A_TASK = 10_000
# An endpoint names one model or a few dated ones; a router that names thousands is not to fill a driver's memory
MODELS_NAMED = 100
FILES_NAMED = 5
# As `untold.jobs.asking.store.states_of_requests` names them
STATES = ("ok", "lasting", "passing")

Given = TypeVar("Given")


@dataclass
class StageRunner:
    """Asks stages of one run under some settings. It stops asking, and only reads what is known, once it `ended`.

    `ended`: None, `budget`, `outage`, `interrupted`, `refused` or `broken` (these two with `error`). `lost`: answers
    that could not be written. `store` is where completions are kept, `answered_before` whether an earlier start of the
    run was answered, `answering` the sections of the settings whose endpoints have answered since.
    """

    engines: Engines
    settings: Settings
    stages: Mapping[str, Stage]
    endpoint: RunEndpoint
    workspace: Workspace
    store: str
    answered_before: bool = False
    ended: str | None = None
    error: str | None = None
    lost: int = 0
    spent: Spent = field(default_factory=Spent)
    counted: Usage = field(default_factory=Usage)
    models: set[str | None] = field(default_factory=set)
    answering: set[str] = field(default_factory=set)
    damaged_files: int = 0
    missing_files: set[str] = field(default_factory=set)
    warned_of_ratings: bool = False

    @property
    def usage(self) -> list[dict[str, Any]]:
        """The rows of the table `usage` so far, one a stage."""
        return self.counted.rows

    @property
    def ending(self) -> Ending:
        """Why it stopped asking, if it did."""
        return Ending(self.ended, self.error, self.spent.calls, self.lost)

    def ask(self, name: str, rows: DataFrame | Requests, carry: Iterable[str] = ()) -> DataFrame:
        """The stage's results: the columns of `carry`, request_id, the stage's output, error_type, error.

        Of a frame, columns named after the stage's variables are its variables; other requests say themselves what they
        carry. A row whose request was not asked has the error_type `unasked`; one without a request has nulls. Nothing
        that goes wrong with the endpoint raises: it ends the asking (`ended`). Raises StoreError where the store cannot
        be read.
        """
        display = self.engines.display
        display.course.begin(name)
        display.status(f"{display.course.describe(name)}: looking up stored answers")
        requests = Rows(rows, tuple(carry)) if isinstance(rows, DataFrame) else rows
        asking, results = self._identify(name, requests), None
        while results is None:
            try:
                results = self._ask(asking)
            except _RestructuredError:
                asking = replace(self._identify(name, requests), tally=asking.tally, seconds=asking.seconds)
        stage, identified = asking.stage, asking.identified
        used = (asking.tally[kind] for kind in ("prompt_tokens", "completion_tokens", "calls"))
        cost = prices_for(self.settings, name).cost(*used)
        self.counted.add(Asked(stage, results, asking.reused or 0, asking.tally, asking.seconds, cost))
        if requests.all_asked:
            return results
        return results.unionByName(without_requests(identified, results.schema, requests.carry))

    @property
    def findings(self) -> Findings:
        """What the endpoint makes of schemas."""
        return Findings(self.settings, self.store)

    def _identify(self, name: str, requests: Requests) -> _Asking:
        """The stage as its endpoint can be asked, and its requests with their ids."""
        stage = self.findings.applied(self.stages[name])
        identified = self.workspace.keep(requests.identify(stage), f"{name}-requests")
        return _Asking(stage, store.stage_folder(self.store, stage), requests, identified)

    def _ask(self, asking: _Asking) -> DataFrame:
        """Looks up, answers and reads until no file of the folder turned out to be damaged on the way."""
        while True:
            self._look_up(asking)
            self._answer_missing(asking)
            before = self.damaged_files
            results, counts = self._read_results(asking)
            if self.damaged_files == before or self.ended:
                self._check(asking, counts)
                return results
            # A page was damaged that looking up did not read: what was in its file has to be asked again

    def _look_up(self, asking: _Asking) -> None:
        """What the store has for each request, written down: a frame that is kept would hide what is added later."""

        def look(reading: Reading) -> tuple[int, int]:
            asking.seen = frozenset(reading.whole.names)
            ids = asking.asked.select("request_id").distinct()
            if not reading.whole.uris and asking.requests.all_asked:
                # Nothing is known, so that nothing has to be counted: rows are at least as many as their requests
                asking.states = ids.withColumn("state", F.lit(None).cast("string"))
                return 0, self.workspace.count(asking.identified)
            completions, check = reading.counted("request_id", "error_type")
            known = store.states_of_requests(completions.join(ids, on="request_id", how="left_semi"))
            states = ids.join(known, on="request_id", how="left").select("request_id", "state")
            named = {name: F.count_if(F.col("state") == name) for name in STATES}
            counts = Counted({"all": F.count(F.lit(1)), **named})
            asking.states = self.workspace.keep(states, f"{asking.stage.name}-states", counts)
            # A join with no request reads none of the folder, and a count of nothing says nothing of its files
            if counts["all"]:
                check()
            lasting = 0 if self.engines.retry_failed else counts["lasting"]
            return counts["ok"], counts["all"] - counts["ok"] - lasting

        reused, asking.missing = self._read(asking.folder, look)
        asking.count_reused(reused)

    def _read(self, folder: str, act: Callable[[Reading], Given]) -> Given:
        """What `act` makes of a stage's folder, read whole; the user hears of files that are not."""
        return store.read_strictly(self.workspace.spark, folder, act, partial(self._tell_of_damage, folder))

    def _tell_of_damage(self, folder: str, whole: snapshots.Whole) -> None:
        """Counts and names the files that are damaged; those that are gone once in a run."""
        self.damaged_files += len(whole.damaged)
        if whole.damaged:
            where = f"moved to {folder}/{snapshots.DAMAGED}; what no other file holds is asked again"
            self._note(f"damaged files of the store were {where}: {_name(whole.damaged)}")
        missing = sorted(set(whole.missing) - self.missing_files)
        self.missing_files.update(missing)
        if missing:
            self._note(f"files of the store are gone from {folder}; what they held is asked again: {_name(missing)}")

    def _answer_missing(self, asking: _Asking) -> None:
        """Has the missing requests answered, unless asking has ended; what goes wrong ends it and is `error`."""
        if self.engines.interrupts.requested:
            self.ended = self.ended or "interrupted"
        if self.ended:
            return
        if not asking.missing:
            self._compact_what_is_left(asking.folder)
            return
        try:
            self._answer_locked(asking)
        except KeyboardInterrupt:
            if not self.engines.interrupts.requested:
                raise
            self.ended = "interrupted"
        except (AnsweringError, LockedError, LocalModelError) as error:
            # A process that is told to stop before it took its job up ends without a word
            self.ended = "interrupted" if self.engines.interrupts.requested else "broken"
            self.error = str(error)

    def _answer_locked(self, asking: _Asking) -> None:
        """Answers as the one spender of the stage's folder; where it changed meanwhile, it looks again."""
        with ExitStack() as stack:
            lock = self._lock(asking.folder)
            with self.engines.interrupts.waiting():
                in_tasks = runs_in_tasks(asking.stage, self.settings)
                # Always the server before the lock: runs that took them in other orders would wait for each other
                base_url = None if in_tasks else self.endpoint.base_url(asking.stage.api)
                if lock is not None:
                    stack.enter_context(lock)
            if store.names_of_live_files(asking.folder) != asking.seen:
                self._look_up(asking)
            if not asking.missing:
                return
            requests = self._write_requests(asking)
            if base_url is None:
                self._answer_in_tasks(asking, requests, lock)
            else:
                process = self.engines.process.open()
                if lock is not None:
                    lock.add_process(process.pid)
                self._answer(asking, requests, process, base_url, lock)
            # Still under the lock: nobody else compacts, and nobody else's files are half written
            self._compact(asking.folder)

    def _compact(self, folder: str) -> None:
        """Merges the folder's small files. Where that fails the run goes on: the files are as good as they were."""
        try:
            store.compact(self.workspace.spark, folder)
        except (*store.SPARK_ERRORS, OSError, ValueError, pa.ArrowException) as error:
            self._note(f"the store could not be compacted ({explain(error) or root_cause(error)}); nothing is lost")

    def _compact_what_is_left(self, folder: str) -> None:
        """Does the compaction of a run that was killed before or in it: this one, which asks nothing, would not.

        Who holds the folder compacts it anyway, and a store that may only be read stays as it is.
        """
        place = Place(folder).local
        if place is not None and compaction.is_due(folder):
            with suppress(LockedError, OSError), FolderLock(place, self.engines.run, wait=False):
                self._compact(folder)

    def _lock(self, folder: str) -> FolderLock | None:
        """The lock of a folder; None on an object store, where the system has none, after a line that says so."""
        place = Place(folder).local
        if place is None:
            self._note("the store is no local disk, where runs do not see each other: start one at a time on it")
            return None
        return FolderLock(place, self.engines.run, wait=self.engines.wait, notify=self._note)

    def _note(self, line: str) -> None:
        self.engines.display.note(line)

    def _write_requests(self, asking: _Asking) -> str:
        """Writes one row a missing request, in files of one unit of work; more where their texts are long.

        Without dictionaries, for the sizes in their footers are then those of the rows in memory (`list_units`).
        """
        wanted = store.needed(asking.states, retry_failed=self.engines.retry_failed)
        rows = asking.requests.texts_of(asking.stage, asking.asked, wanted)
        path = self.workspace.path(f"{asking.stage.name}-units")
        unit = self._rows_of_a_unit(asking.missing, asking.stage.api)
        # In the order of the prompt, so that a common beginning of prompts is asked together: prompt caches then hit
        keys = (*order_of_prompt(asking.stage), "request_id")
        # By number alone: what Spark would choose varies with cores, and each task's last unit is a short one
        tasks = -(-asking.missing // REQUESTS_OF_A_TASK)
        ordered = rows.repartitionByRange(tasks, *keys).sortWithinPartitions(*keys)
        options = {"maxRecordsPerFile": unit, "parquet.enable.dictionary": False, "parquet.block.size": UNIT_BYTES}
        ordered.write.mode("overwrite").options(**options).parquet(path)
        return path

    def _rows_of_a_unit(self, requests: int, api: str) -> int:
        """As many as the architecture allows, less where actors would stand idle; whole calls where one has several."""
        rows = max(1, min(UNIT_ROWS, -(-requests // (UNITS_OF_AN_ACTOR * count_actors(self.settings, api)))))
        batch = self.settings.embeddings.batch if api == "embeddings" else 1
        return min(-(-rows // batch), max(1, UNIT_ROWS // batch)) * batch

    def _answer_in_tasks(self, asking: _Asking, requests: str, lock: FolderLock | None) -> None:
        """Has a local model answer within Spark's tasks. Nothing is called, and nothing is paid for."""
        settings = call_settings(self.settings, asking.stage, "", self.store)

        def stopped() -> bool:
            return self.engines.interrupts.requested or (lock is not None and lock.lost)

        spark, run = self.workspace.spark, self.engines.run
        tasks = TaskRun(spark, asking.stage, requests, asking.folder, run, settings.flush)
        with self._shown(asking, settings) as show:
            if tasks.answer(asking.missing, show, stopped) == "interrupted":
                self.ended = "interrupted"
                if lock is not None:
                    lock.check()

    def _answer(
        self, asking: _Asking, requests: str, process: AnsweringProcess, base_url: str, lock: FolderLock | None
    ) -> None:
        """Hands the job to the answering process."""
        section = section_of(asking.stage.api)
        settings = call_settings(self.settings, asking.stage, base_url, self.store)
        job = Job(
            requests=requests,
            directory=asking.folder,
            run=self.engines.run,
            stage=asking.stage,
            settings=settings,
            actors=count_actors(self.settings, asking.stage.api),
            spent=self.spent,
            # What one endpoint answered says nothing of the others; earlier starts tell of the language model's
            answered_before=section in self.answering or (section == "llm" and self.answered_before),
            confirm_probes=self._spans_nodes(),
            tries_schema=self.findings.tries(asking.stage),
            may_drop_schema=self.findings.may_drop(asking.stage),
        )
        with self._shown(asking, settings) as show:
            if lock is not None:
                # The last look before money is spent
                lock.check()
            if not process.ready:
                self.engines.display.status("starting Ray")
            event = process.answer(job, show, self._read_probes, lambda: lock is not None and lock.lost)
            show(event)
            self._heard(asking.stage.api, event["models"])
            self.lost += event["lost"]
            if event["finding"]:
                self._note(self.findings.learn(asking.stage, Finding(**event["finding"])))
            if event["outcome"] == "restructured":
                raise _RestructuredError
            if event["outcome"] != "finished":
                self.ended, self.error = event["outcome"], event["error"]
                if self.ended == "refused":
                    self.error = explain_refusal(str(self.error), getattr(self.settings, section), section)

    @contextmanager
    def _shown(self, asking: _Asking, settings: CallSettings) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """Gives what shows the progress of an answering; what that came to counts even where it ends with an error."""
        last: dict[str, Any] = {"tally": asdict(Tally()), "seconds": 0.0}

        def show(progress: Mapping[str, Any]) -> None:
            last.update(progress)
            self.engines.display.show(progress, settings)

        self.engines.display.start(asking.stage.name)
        try:
            yield show
        finally:
            self.engines.display.end()
            tally = last["tally"]
            asking.add(tally, last["seconds"])
            tokens = tally["prompt_tokens"], tally["completion_tokens"]
            cost = settings.prices.cost(*tokens, tally["calls"]) or 0.0
            self.spent += Spent(tally["calls"], sum(tokens), cost)

    def _heard(self, api: str, models: Iterable[str | None]) -> None:
        """Notes the models that answered as an API, now or before."""
        named = set(models)
        self.models.update(named)
        if named:
            self.answering.add(section_of(api))

    def _spans_nodes(self) -> bool:
        """Whether Spark and Ray may run on machines with other disks."""
        master = self.settings.spark.master or ""
        return self.settings.ray.address is not None or not master.startswith("local")

    def _read_probes(self, uris: list[str]) -> None:
        """Raises AnsweringError where Spark cannot read what an actor wrote: completions would be paid for and lost."""
        try:
            self.workspace.spark.read.schema(spark_schema(COMPLETIONS)).parquet(*uris).count()
        except PySparkException as error:
            raise AnsweringError(
                f"Spark cannot read what the answering actors write to {self.store}: "
                "set store (or --output) to a path that all machines share"
            ) from error

    def _read_results(self, asking: _Asking) -> tuple[DataFrame, Counted]:
        """The results, and what was counted of them."""
        rows, carry = asking.asked, asking.requests.carry
        ids = rows.select("request_id").distinct()
        schema, outcomes = result_schema(asking.stage, rows, carry), _outcomes(asking.stage)

        def read(reading: Reading) -> tuple[DataFrame, Counted, Counted]:
            best = store.one_a_request(reading.completions.join(ids, on="request_id", how="left_semi"))
            models = Counted({"models": F.slice(F.array_sort(F.collect_set("model")), 1, MODELS_NAMED)})
            counts = Counted(outcomes)
            parsed = (
                models.on(rows.join(best, on="request_id", how="left"))
                .drop("model")
                .mapInArrow(reading_of(asking.stage.name, carry, structured=bool(asking.stage.structured)), schema)
            )
            return self.workspace.keep(parsed, f"{asking.stage.name}-results", counts), models, counts

        results, models, counts = self._read(asking.folder, read)
        self._heard(asking.stage.api, models["models"])
        return results, counts

    def _check(self, asking: _Asking, outcomes: Counted) -> None:
        """Ends the run where answers were paid for and cannot be read; says once that ratings are not weighted.

        Asking on would pay for the same again. A rating without probabilities is the digit that was written alone.
        """
        if outcomes["unasked"] and not self.ended:
            self.ended = "broken"
            unread = outcomes["unasked"]
            self.error = f"cannot read {amount(unread, 'completion')} back from {asking.folder}"
        if outcomes["unweighted"] and not self.warned_of_ratings:
            self.warned_of_ratings = True
            self._note("the endpoint returns no log-probabilities: ratings are not probability-weighted")


def _outcomes(stage: Stage) -> dict[str, Column]:
    """What is counted of a stage's results while they are written."""
    is_rated = F.col("error_type").isNull() & ~F.col("weighted") if stage.rated else F.lit(False)
    return {"unasked": F.count_if(F.col("error_type") == UNASKED), "unweighted": F.count_if(is_rated)}


class _RestructuredError(Exception):
    """The endpoint does not take a stage's schema as it was sent: its requests are others."""


@dataclass
class _Asking:
    """A stage while it is asked: its requests with their ids, what the store had before, what the asking came to.

    `states`: request_id, state, of all distinct requests. `seen`: the live files of the look at which these were found.
    `reused`: how many the store had answers of; None before the first look. `missing`: how many are to be asked.
    """

    stage: Stage
    folder: str
    requests: Requests
    identified: DataFrame
    states: DataFrame = field(init=False)
    seen: frozenset[str] = frozenset()
    reused: int | None = None
    missing: int = 0
    tally: Mapping[str, int] = field(default_factory=lambda: asdict(Tally()))
    seconds: float = 0.0

    @property
    def asked(self) -> DataFrame:
        """The rows that have a request."""
        return self.identified if self.requests.all_asked else self.identified.where(F.col("request_id").isNotNull())

    def count_reused(self, ok: int) -> None:
        """Takes what the store has now; what was answered since the first look is not reused, what was lost neither."""
        answered = self.tally["done"] - self.tally["failed"]
        self.reused = ok if self.reused is None else min(self.reused, max(0, ok - answered))

    def add(self, tally: Mapping[str, Any], seconds: float) -> None:
        """Adds what asking came to; a stage is asked more than once where a file of it turned out to be damaged."""
        before: Mapping[str, Any] = self.tally
        self.tally, self.seconds = asdict(Tally(**before) + Tally(**tally)), self.seconds + seconds


def _name(files: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(files) - FILES_NAMED:,} more" if len(files) > FILES_NAMED else ""
    return ", ".join(files[:FILES_NAMED]) + more
