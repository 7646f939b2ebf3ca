"""Check that all machines of a run reach its folders and have the same versions, before the first call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import SparkSession

from untold.jobs.inference.backends.node_checks import NodeCheckError, Probe, check_nodes, probing
from untold.jobs.inference.backends.process import ProcessWhenNeeded
from untold.jobs.inference.store.store import SPARK_ERRORS
from untold.jobs.run.error_messages import explain, root_cause
from untold.jobs.run.folders import write_parquet
from untold.jobs.run.output import WORK
from untold.jobs.run.session import is_connect, is_local, read_parquet, task_slots
from untold.udfs.llm.store_files import digest_of
from untold.udfs.node_report import NodeReport, visit_in_task
from untold.udfs.storage import StoragePath

# Executors may come while others answer already
ROUNDS = 5


@dataclass
class ClusterChecks:
    """The machines of a start as they were looked at: Spark's executors, and Ray's nodes before the first request.

    `places`: folders that all write and read, by the names that messages have for them; `files`: those that executors
    read. `note` hears of differences that may do no harm.
    """

    spark: SparkSession
    places: Mapping[str, str]
    files: Sequence[str] = ()
    note: Callable[[str], None] = print
    _executors: set[str] = field(default_factory=set)
    _nodes_known: bool = False

    def check_executors(self) -> None:
        """Raises NodeCheckError for what executors do not reach; those that answered before are not asked again.

        Of a local Spark only object stores are tried: it has this process's disks and versions. Not that of the output,
        where it writes before anything is asked.
        """
        local = is_local(self.spark)
        remote = {place: folder for place, folder in self.places.items() if StoragePath(folder).local is None}
        if local:
            remote = {place: folder for place, folder in remote.items() if not folder.endswith(f"/{WORK}")}
        if self._executors and (local or _count_executors(self.spark) <= len(self._executors)):
            return
        if not local or remote:
            with probing(remote if local else self.places) as probe:
                if not local:
                    probe.check(self._visit_executors(probe), self.note)
                _check_spark(self.spark, probe, remote)
        self._executors |= {"driver"} if local else set()

    def check_nodes(self, process: ProcessWhenNeeded) -> None:
        """Raises NodeCheckError for what nodes of Ray's cluster do not reach. It asks them once."""
        if not self._nodes_known:
            check_nodes(self.places, process.open().visit_nodes, self.note)
        self._nodes_known = True

    def _visit_executors(self, probe: Probe) -> list[NodeReport]:
        """What every executor says; each is asked by small tasks until all that Spark knows have answered."""
        files = {path: digest_of(StoragePath(path)) for path in self.files if StoragePath(path).entry().kind == "file"}
        visit = partial(visit_in_task, folders=probe.folders, files=files, nonce=probe.nonce)
        found: dict[str, NodeReport] = {}
        for _ in range(ROUNDS):
            tasks = task_slots(self.spark)
            rows = self.spark.range(0, tasks, 1, tasks).mapInArrow(visit, "executor string, report string").collect()
            found |= {row["executor"]: json.loads(row["report"]) for row in rows}
            if len(found) >= _count_executors(self.spark):
                break
        self._executors |= set(found)
        return list(found.values())


def reached_places(output: str, work: str, store: str) -> dict[str, str]:
    """The folders that every machine writes and reads, by what messages call them.

    >>> reached_places("/out", "/out/_work", "/out/completions"), reached_places("/out", "/w", "/s")
    ({'/out': '/out/_work'}, {'/out': '/out/_work', '/w': '/w', '/s': '/s'})
    """
    # In the output where a killed start's steps lie too: the next one removes what is there
    places = {output: f"{output}/{WORK}"}
    others = [place for place in (work, store) if place and not f"{place}/".startswith(f"{output}/")]
    return places | {place: place for place in others}


def _check_spark(spark: SparkSession, probe: Probe, places: Iterable[str]) -> None:
    """Raises NodeCheckError for object stores that Spark does not write and read: it has a client of its own."""
    for place in places:
        path = f"{probe.folders[place]}/spark"
        try:
            write_parquet(spark.range(1), path)
            read_parquet(spark, path).collect()
        except SPARK_ERRORS as error:
            raise NodeCheckError(
                f"{place}: Spark cannot write and read there ({explain(error) or root_cause(error)}). "
                "Check the settings storage and spark.conf"
            ) from error


def _count_executors(spark: SparkSession) -> int:
    """How many executors Spark knows of now; over Spark Connect it does not say."""
    # The driver is among them
    return 0 if is_connect(spark) else len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
