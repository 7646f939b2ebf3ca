"""Check that all machines of a run reach its folders and have the same versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

from pyspark.sql import SparkSession

from untold.jobs.inference.backends.process import ProcessWhenNeeded
from untold.jobs.inference.store.store import SPARK_ERRORS
from untold.jobs.run.error_messages import explain, root_cause
from untold.jobs.run.folders import write_parquet
from untold.jobs.run.output import WORK
from untold.jobs.run.session import is_connect, is_local, read_parquet, task_slots
from untold.udfs.errors import UserError
from untold.udfs.llm.store_files import digest_of
from untold.udfs.node_report import DRIVER, NodeReport, versions, visit_in_task, within
from untold.udfs.storage import StoragePath

MACHINES_NAMED = 3
SHARE = "give --output, store, work and llm.spool a place that all machines share"
INSTALL = "install untold on the workers as it is here, or use `untold package`"
# Actors have no use for them
NOT_OF_ACTORS = frozenset({"pyspark", "graphframes-py"})


class NodeCheckError(UserError):
    """Machines that do not reach a place of the run, or have other versions. The message has a line a problem."""


def check_nodes(
    places: Mapping[str, str],
    visit_nodes: Callable[[Mapping[str, str], str], Sequence[NodeReport]],
    note: Callable[[str], None],
) -> None:
    """Raises ReachError for what nodes of Ray do not reach; `visit_nodes` has them visit folders with a nonce."""
    with probing(places) as probe:
        probe.check(visit_nodes(probe.folders, probe.nonce), note, NOT_OF_ACTORS)


@dataclass(frozen=True)
class Probe:
    """Folders of one look by place. The driver has written a file with `nonce` into each."""

    folders: Mapping[str, str]
    nonce: str

    def check(
        self, reports: Sequence[NodeReport], note: Callable[[str], None], not_needed: frozenset[str] = frozenset()
    ) -> None:
        """Raises ReachError for what machines did not reach, and for what they wrote and the driver does not see."""
        found = [(*problem, report["machine"]) for report in reports for problem in self._problems_of(report)]
        silent = [("untold cannot run on", f": {one['silence']}", one["machine"]) for one in reports if one["silence"]]
        lines = [f"{line}; {SHARE}" for line in _lines(found)] + [f"{line}; {INSTALL}" for line in _lines(silent)]
        wrong, differing = compare_versions(versions(), reports, not_needed)
        for line in differing:
            note(line)
        if lines or wrong:
            raise NodeCheckError("\n".join([*lines, *wrong]))

    def _problems_of(self, report: NodeReport) -> Iterator[tuple[str, str]]:
        """What stands before and behind the machine's name in a line."""
        if report["silence"]:
            return
        for place, problem in report["problems"].items():
            yield f"{place} is not shared by", f": {problem}"
        for place in self.folders.keys() - report["problems"].keys():
            unseen = within(partial(self._find, self.folders[place], report["file"]))
            if unseen is not None:
                yield f"{place} is not shared by", f": {unseen}"

    def _find(self, folder: str, name: str) -> None:
        """Raises ValueError where what a machine wrote cannot be seen."""
        listed = {entry.name for entry in StoragePath(folder).entries()}
        if name not in listed or (StoragePath(folder) / name).read_bytes() != self.nonce.encode():
            raise ValueError("what it wrote there cannot be seen here")


@contextmanager
def probing(places: Mapping[str, str]) -> Iterator[Probe]:
    """A probe whose folders the driver has written to, and that are removed. Raises ReachError where it cannot."""
    nonce = uuid4().hex
    folders = {place: f"{folder}/_reach-{nonce}" for place, folder in places.items()}
    _each(folders, lambda folder: (folder / DRIVER).write_bytes(nonce.encode()), "cannot be written")
    try:
        yield Probe(folders, nonce)
    except BaseException:
        for folder in folders.values():
            within(StoragePath(folder).remove)
        raise
    _each(folders, StoragePath.remove, "is written, and files cannot be removed")


def _each(folders: Mapping[str, str], act: Callable[[StoragePath], None], what: str) -> None:
    """Does something with every folder. Raises ReachError with a line for each that refuses."""
    tried = {place: within(partial(act, StoragePath(folder))) for place, folder in folders.items()}
    lines = [f"{place} {what} from here: {problem}" for place, problem in tried.items() if problem is not None]
    if lines:
        raise NodeCheckError("\n".join(f"{line}; see to its permissions and credentials" for line in lines))


def compare_versions(
    own: Mapping[str, str], reports: Iterable[NodeReport], not_needed: frozenset[str] = frozenset()
) -> tuple[list[str], list[str]]:
    """The versions on machines that are wrong, and those that only differ, a line each.

    Wrong are another minor version of Python, another PySpark or Untold, and a package that is missing where untold is
    installed.
    """
    wrong: list[tuple[str, str, str]] = []
    differing: list[tuple[str, str, str]] = []
    for report in reports:
        for name, here in own.items():
            there = report["versions"].get(name)
            if there is None and "untold" in report["versions"] and name not in not_needed:
                wrong.append((f"{name} is missing on", "", report["machine"]))
            elif there is not None and there != here:
                strict = name in ("untold", "pyspark") or (name == "python" and _minor(there) != _minor(here))
                (wrong if strict else differing).append((f"{name} is {there} on", f", {here} here", report["machine"]))
    return [f"{line}; {INSTALL}" for line in _lines(wrong)], _lines(differing)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _lines(found: Iterable[tuple[str, str, str]]) -> list[str]:
    """A line for each problem, with the machines that have it between its two halves."""
    machines: dict[tuple[str, str], list[str]] = {}
    for before, behind, machine in found:
        machines.setdefault((before, behind), []).append(machine)
    return [f"{before} {_name(names)}{behind}" for (before, behind), names in machines.items()]


def _name(machines: Iterable[str]) -> str:
    names = sorted(set(machines))
    more = f" and {len(names) - MACHINES_NAMED:,} more" if len(names) > MACHINES_NAMED else ""
    return ", ".join(names[:MACHINES_NAMED]) + more


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
        """Raises ReachError for what executors do not reach; those that answered before are not asked again.

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
        """Raises ReachError for what nodes of Ray's cluster do not reach. It asks them once."""
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
    """Raises ReachError for object stores that Spark does not write and read: it has a client of its own."""
    for place in places:
        path = f"{probe.folders[place]}/spark"
        try:
            write_parquet(spark.range(1), path)
            read_parquet(spark, path).collect()
        except SPARK_ERRORS as error:
            raise NodeCheckError(
                f"{place}: Spark cannot write and read there ({explain(error) or root_cause(error)}); "
                "check the settings storage and spark.conf"
            ) from error


def _count_executors(spark: SparkSession) -> int:
    """How many executors Spark knows of now; over Spark Connect it does not say."""
    # The driver is among them
    return 0 if is_connect(spark) else len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
