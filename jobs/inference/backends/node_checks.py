"""Check nodes by their own reports: the folders that they reach and their versions. Imports no pyspark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from untold.udfs.errors import UserError
from untold.udfs.node_report import DRIVER, NodeReport, versions, within
from untold.udfs.storage import StoragePath

MACHINES_NAMED = 3
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
