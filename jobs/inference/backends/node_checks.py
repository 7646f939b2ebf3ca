"""Check before the first call that all machines of a run reach its folders and have the same versions."""

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
# Executors can start while others already answer
ROUNDS = 5
SHARE = "give --output, store, work and llm.spool a place that all machines share"
INSTALL = "install the same version of untold on the workers, or use `untold package`"
# Packages that actors do not need
NOT_OF_ACTORS = frozenset({"pyspark", "graphframes-py"})


class NodeCheckError(UserError):
    """Machines do not reach a folder of the run or have other versions. The message has one line per problem."""


def check_nodes(
    places: Mapping[str, str],
    visit_nodes: Callable[[Mapping[str, str], str], Sequence[NodeReport]],
    note: Callable[[str], None],
) -> None:
    """Raise NodeCheckError for folders that nodes of Ray do not reach. `visit_nodes` visits folders with a nonce."""
    with probing(places) as probe:
        probe.check(visit_nodes(probe.folders, probe.nonce), note, NOT_OF_ACTORS)


@dataclass(frozen=True)
class Probe:
    """The folders of one check by place. The driver has written a file with `nonce` into each folder."""

    folders: Mapping[str, str]
    nonce: str

    def check(
        self, reports: Sequence[NodeReport], note: Callable[[str], None], not_needed: frozenset[str] = frozenset()
    ) -> None:
        """Raise NodeCheckError for folders that a machine does not reach, or whose files the driver does not see."""
        found = [(*problem, report["machine"]) for report in reports for problem in self._problems_of(report)]
        silent = [("untold cannot run on", f": {one['silence']}", one["machine"]) for one in reports if one["silence"]]
        lines = [f"{line}; {SHARE}" for line in _lines(found)] + [f"{line}; {INSTALL}" for line in _lines(silent)]
        wrong, differing = compare_versions(versions(), reports, not_needed)
        for line in differing:
            note(line)
        if lines or wrong:
            raise NodeCheckError("\n".join([*lines, *wrong]))

    def _problems_of(self, report: NodeReport) -> Iterator[tuple[str, str]]:
        """Yield the text before and after the name of the machine in a line."""
        if report["silence"]:
            return
        for place, problem in report["problems"].items():
            yield f"{place} is not shared by", f": {problem}"
        for place in self.folders.keys() - report["problems"].keys():
            unseen = within(partial(self._find, self.folders[place], report["file"]))
            if unseen is not None:
                yield f"{place} is not shared by", f": {unseen}"

    def _find(self, folder: str, name: str) -> None:
        """Raise ValueError if the file of a machine cannot be read here."""
        listed = {entry.name for entry in StoragePath(folder).entries()}
        if name not in listed or (StoragePath(folder) / name).read_bytes() != self.nonce.encode():
            raise ValueError("its files there are not visible here")


@contextmanager
def probing(places: Mapping[str, str]) -> Iterator[Probe]:
    """Return a probe with written folders, and remove them at the end. Raises NodeCheckError for a failed write."""
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
    """Call a function with every folder. Raises NodeCheckError with one line per failure."""
    tried = {place: within(partial(act, StoragePath(folder))) for place, folder in folders.items()}
    lines = [f"{place} {what} from here: {problem}" for place, problem in tried.items() if problem is not None]
    if lines:
        raise NodeCheckError("\n".join(f"{line}; check its permissions and credentials" for line in lines))


def compare_versions(
    own: Mapping[str, str], reports: Iterable[NodeReport], not_needed: frozenset[str] = frozenset()
) -> tuple[list[str], list[str]]:
    """Return the lines of the wrong versions and of the versions that only differ.

    Another minor version of Python, another PySpark or Untold, and a missing package next to an installed Untold are
    wrong.
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
    """Return one line per problem, with the names of its machines between the two halves."""
    machines: dict[tuple[str, str], list[str]] = {}
    for before, behind, machine in found:
        machines.setdefault((before, behind), []).append(machine)
    return [f"{before} {_name(names)}{behind}" for (before, behind), names in machines.items()]


def _name(machines: Iterable[str]) -> str:
    names = sorted(set(machines))
    more = f" and {len(names) - MACHINES_NAMED:,} more" if len(names) > MACHINES_NAMED else ""
    return ", ".join(names[:MACHINES_NAMED]) + more


@dataclass
class ClusterChecks:
    """The checked machines of a run: the executors of Spark, and the nodes of Ray before the first request.

    `places` are the folders that all machines write and read, by their names in messages. `files` are the files that
    executors read. `note` is called with harmless differences.
    """

    spark: SparkSession
    places: Mapping[str, str]
    files: Sequence[str] = ()
    note: Callable[[str], None] = print
    _executors: set[str] = field(default_factory=set)
    _nodes_known: bool = False

    def check_executors(self) -> None:
        """Raise NodeCheckError for folders that executors do not reach. Each executor is checked once.

        A local Spark has the disks and the versions of this process, so only its object stores are checked, except the
        store of the output, which it writes before the first request.
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
        """Raise NodeCheckError for folders that nodes of the Ray cluster do not reach. The nodes are checked once."""
        if not self._nodes_known:
            check_nodes(self.places, process.open().visit_nodes, self.note)
        self._nodes_known = True

    def _visit_executors(self, probe: Probe) -> list[NodeReport]:
        """Return the report of every executor. Small tasks run until all known executors have reported."""
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
    """Return the folders that every machine writes and reads, by their names in messages.

    >>> reached_places("/out", "/out/_work", "/out/completions"), reached_places("/out", "/w", "/s")
    ({'/out': '/out/_work'}, {'/out': '/out/_work', '/w': '/w', '/s': '/s'})
    """
    # The next run removes this folder of the output, also after a kill
    places = {output: f"{output}/{WORK}"}
    others = [place for place in (work, store) if place and not f"{place}/".startswith(f"{output}/")]
    return places | {place: place for place in others}


def _check_spark(spark: SparkSession, probe: Probe, places: Iterable[str]) -> None:
    """Raise NodeCheckError for object stores that Spark cannot write and read with its own client."""
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
    """Return the number of known executors, 0 over Spark Connect."""
    # The driver is one of them
    return 0 if is_connect(spark) else len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
