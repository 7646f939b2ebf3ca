"""The store of completions as one start of a run uses it: looked up, locked, read and compacted, a stage at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking import compaction, snapshots, store
from untold.jobs.asking.engines import Engines
from untold.jobs.asking.requests import Requests
from untold.jobs.asking.results import result_schema
from untold.jobs.asking.store import STATES, Reading
from untold.jobs.run.locks import Lock, LockedError
from untold.jobs.run.object_locks import lock_folder
from untold.jobs.run.refusals import explain, root_cause
from untold.jobs.run.workspace import Counted, Workspace
from untold.udfs.llm.keys import Stage
from untold.udfs.stages.arrow import UNASKED, reading_of

# An endpoint names one model or a few dated ones; a router that names thousands is not to fill a driver's memory
MODELS_NAMED = 100
FILES_NAMED = 5
# Rows of a folder for each row of requests, up to which all are read
MOST_OTHERS = 2

Given = TypeVar("Given")


@dataclass(frozen=True)
class Found:
    """What the store has of the requests of a stage, by one look at its folder.

    `states`: request_id, state of all distinct requests. `ok`: how many are answered. `missing`: how many are to be
    asked, or more where the store has nothing. `files`: the live files of the look.
    """

    states: DataFrame
    ok: int
    missing: int
    files: frozenset[str]


@dataclass(frozen=True)
class Results:
    """The results of a stage: rows, models that answered, and how many requests were not asked or not weighted."""

    rows: DataFrame
    models: Collection[str | None]
    unasked: int
    unweighted: int


class StageStore:
    """The folder of a stage in the store. `damaged`: how many of its files were moved aside so far.

    `runs`: earlier starts that this one goes on with; what failed in them is not asked again.
    """

    def __init__(
        self, path: str, stage: Stage, engines: Engines, workspace: Workspace, runs: Collection[str] = ()
    ) -> None:
        self.folder = store.stage_folder(path, stage)
        self.damaged = 0
        self._stage, self._engines, self._workspace, self._runs = stage, engines, workspace, runs
        self._missing_files: set[str] = set()

    def look_up(self, requests: Requests, identified: DataFrame) -> Found:
        """What the store has for each request, written down: a frame that is kept would hide what is added later."""
        ids = with_request(requests, identified).select("request_id").distinct()

        def look(reading: Reading) -> Found:
            files = frozenset(reading.whole.names)
            if not reading.whole.uris and requests.all_asked:
                # Nothing is known, so that nothing has to be counted: rows are at least as many as their requests
                states = ids.withColumn("state", F.lit(None).cast("string"))
                return Found(states, 0, self._workspace.count(identified), files)
            completions, check = reading.counted("request_id", "error_type", *(["run_id"] if self._runs else []))
            known = self._of_requests(completions, ids, reading, identified)
            states = ids.join(store.states_of_requests(known, self._runs), on="request_id", how="left")
            named = {name: F.count_if(F.col("state") == name) for name in STATES}
            counts = Counted({"all": F.count(F.lit(1)), **named})
            kept = self._workspace.keep(states.select("request_id", "state"), f"{self._stage.name}-states", counts)
            # A join with no request reads none of the folder, and a count of nothing says nothing of its files
            if counts["all"]:
                check()
            settled = counts["ok"] + counts["tried"] + (0 if self._engines.retry_failed else counts["lasting"])
            return Found(kept, counts["ok"], counts["all"] - settled, files)

        return self._read(look)

    def has_changed(self, found: Found) -> bool:
        """Whether something was answered since a look."""
        return store.names_of_live_files(self.folder) != found.files

    def missing(self, requests: Requests, identified: DataFrame, found: Found) -> DataFrame:
        """The requests that are to be asked: request_id and the stage's variables, one row each."""
        wanted = store.needed(found.states, retry_failed=self._engines.retry_failed)
        return requests.texts_of(self._stage, with_request(requests, identified), wanted)

    def read(self, requests: Requests, identified: DataFrame) -> Results:
        """The results of all requests, unasked ones included."""
        rows, carry = with_request(requests, identified), requests.carry
        ids = rows.select("request_id").distinct()
        schema, outcomes = result_schema(self._stage, rows, carry), _outcomes(self._stage)

        def read(reading: Reading) -> Results:
            best = store.one_a_request(self._of_requests(reading.completions, ids, reading, identified))
            models = Counted({"models": F.slice(F.array_sort(F.collect_set("model")), 1, MODELS_NAMED)})
            counts = Counted(outcomes)
            parsed = (
                models.on(requests.readable(self._stage, rows.join(best, on="request_id", how="left")))
                .drop("model")
                .mapInArrow(reading_of(self._stage, carry), schema)
            )
            kept = self._workspace.keep(parsed, f"{self._stage.name}-results", counts)
            return Results(kept, models["models"], counts["unasked"], counts["unweighted"])

        return self._read(read)

    def _of_requests(
        self, completions: DataFrame, ids: DataFrame, reading: Reading, identified: DataFrame
    ) -> DataFrame:
        """The completions of some requests, and perhaps of others: of a store that has few others, all.

        What joins them with their requests passes over the others; to do it twice takes longer than to carry a few.
        """
        if reading.whole.rows <= MOST_OTHERS * self._workspace.count(identified):
            return completions
        return completions.join(ids, on="request_id", how="left_semi")

    @contextmanager
    def locked(self) -> Iterator[Lock | None]:
        """Holds the folder as its one spender; None where this start locks nothing, after a line that says so.

        Raises LockedError where another run holds it and this one is not to wait, UnlockableError where it cannot be.
        """
        if not self._engines.lock:
            self._note("the store is not locked: start one run at a time on it")
            yield None
            return
        with ExitStack() as stack:
            lock = lock_folder(self.folder, self._engines.run, wait=self._engines.wait, notify=self._note)
            with self._engines.interrupts.waiting():
                stack.enter_context(lock)
            yield lock

    def compact(self) -> None:
        """Merges the folder's small files. Where that fails the run goes on: the files are as good as they were.

        Call it under the lock: nobody else compacts then, and nobody else's files are half written.
        """
        try:
            store.compact(self._workspace.spark, self.folder)
        except (*store.SPARK_ERRORS, OSError, ValueError, pa.ArrowException) as error:
            self._note(f"the store could not be compacted ({explain(error) or root_cause(error)}); nothing is lost")

    def compact_leftovers(self) -> None:
        """Does the compaction of a run that was killed before or in it: this one, which asks nothing, would not.

        Another run that holds the folder compacts it anyway, and a store that may only be read stays as it is.
        """
        if self._engines.lock and compaction.is_due(self.folder):
            with suppress(LockedError, OSError), lock_folder(self.folder, self._engines.run, wait=False):
                self.compact()

    def _read(self, act: Callable[[Reading], Given]) -> Given:
        """What `act` makes of the folder, read whole; the user hears of files that are not."""
        return store.read_strictly(self._workspace.spark, self.folder, act, self._tell_of_damage)

    def _tell_of_damage(self, whole: snapshots.Whole) -> None:
        """Counts and names the files that are damaged; those that are gone once in a run."""
        self.damaged += len(whole.damaged)
        if whole.damaged:
            where = f"moved to {self.folder}/{snapshots.DAMAGED}; what no other file holds is asked again"
            self._note(f"damaged files of the store were {where}: {_name(whole.damaged)}")
        missing = sorted(set(whole.missing) - self._missing_files)
        self._missing_files.update(missing)
        if missing:
            gone = f"files of the store are gone from {self.folder}; what they held is asked again"
            self._note(f"{gone}: {_name(missing)}")

    def _note(self, line: str) -> None:
        self._engines.display.note(line)


def with_request(requests: Requests, identified: DataFrame) -> DataFrame:
    """The rows that have a request."""
    return identified if requests.all_asked else identified.where(F.col("request_id").isNotNull())


def _outcomes(stage: Stage) -> dict[str, Column]:
    """What is counted of a stage's results while they are written."""
    is_rated = F.col("error_type").isNull() & ~F.col("weighted") if stage.rated else F.lit(False)
    return {"unasked": F.count_if(F.col("error_type") == UNASKED), "unweighted": F.count_if(is_rated)}


def _name(files: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(files) - FILES_NAMED:,} more" if len(files) > FILES_NAMED else ""
    return ", ".join(files[:FILES_NAMED]) + more
