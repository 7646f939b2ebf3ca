"""Folders that a run may write into: empty, an output, or nothing but our tables; and apart from what it reads."""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from untold.jobs.run.manifest import NAME, OutputError
from untold.jobs.tables import TABLES
from untold.udfs.samples.files import is_remote
from untold.udfs.storage import Entry, Place, local_path

# What our commands write beside tables, where nobody else would; none of it is removed for its name alone
_WORK = "_work"
_RUNS = "runs"
_STORE = "completions"
_SENTINEL = "_sentinel"
_NESTS = (_RUNS, _STORE)
_FILES = re.compile(
    r"_lock.*|manifest\.json(\.tmp)?|meta_evaluation\.(md|svg|png)|human_study\.md|annotation_(key|sheet)\..*"
)
# `_SUCCESS`, `_temporary`, `.part-*.crc`: Spark leaves them beside tables, and a killed one leaves them half done
_SPARKS_OWN = re.compile(r"/[._]")
# Completions of one version, and what runs have noted that they need
_STORE_VERSION = re.compile(r"v\d+|_uses")
_WILDCARD = re.compile(r"[*?\[]")


def check_folders(inputs: Iterable[str | None], output: str, store: str | None = None) -> None:
    """Raises OutputError for an output that another may miss, and for one that lies in an input or holds one.

    An output that is not empty and has no manifest of ours must hold nothing but our tables (and `store`, which may lie
    anywhere): a run removes and replaces folders by their names. It reads names, links and a footer a table, and
    changes nothing. See docs/contract.md, "Runs, outputs, stores".
    """
    for path in inputs:
        if path is not None:
            _check_apart(path, output)
    foreign = _find_foreign(output, store)
    if foreign is not None:
        raise OutputError(
            f"{output} holds {foreign} and no manifest of a run, so that it is no output of untold, and nothing is "
            "written into it, --overwrite or not; give another --output, or an empty folder"
        )


def _check_apart(path: str, output: str) -> None:
    """Raises OutputError where, links and globs resolved, one of them lies in the other."""
    place = _real(output)
    if any(_is_within(found, place) for found in _places_of(path)):
        raise OutputError(f"{path} lies in the output {output}, which a run writes over; give another --output")
    holding = any(_is_within(place, found) for found in _places_of(path))
    if holding or _is_matched(place, path):
        raise OutputError(f"{output} lies in the input {path} and would be read with it; give another --output")


def _places_of(path: str) -> Iterator[str]:
    """The real paths of what an input names, and of the links to files in it; links to folders are not followed."""
    yield _real(path)
    if is_remote(path):
        return
    local = local_path(path)
    for match in [local] if os.path.exists(local) else glob.iglob(local, recursive=True):
        yield os.path.realpath(match)
        for parent, _, names in os.walk(match):
            links = (os.path.join(parent, name) for name in names)
            yield from (os.path.realpath(link) for link in links if os.path.islink(link))


def _real(path: str) -> str:
    """A path without links, or a URI without the differences between Spark's schemes and Arrow's."""
    if is_remote(path):
        return Place(path).spark.rstrip("/")
    return os.path.realpath(os.path.expanduser(local_path(path)))


def _is_within(inner: str, outer: str) -> bool:
    """Whether a path is another or lies below it; `data-old` does not lie in `data`."""
    return f"{inner}/".startswith(f"{outer.rstrip('/')}/")


def _is_matched(place: str, path: str) -> bool:
    """Whether a glob stands for the output too, which may not be there yet; its `*` then stops at no slash."""
    wildcard = _WILDCARD.search(path)
    if wildcard is None or (not is_remote(path) and os.path.exists(local_path(path))):
        return False
    head, _, _ = path[: wildcard.start()].rpartition("/")
    rest = path[len(head) :].lstrip("/")
    return fnmatch.fnmatchcase(place, f"{glob.escape(_real(head or os.curdir)).rstrip('/')}/{rest}")


def _find_foreign(output: str, store: str | None) -> str | None:
    """The name of something in the output that is not ours; None in an output, and where there is nothing such."""
    place = Place(output)
    if place.entry().kind == "file":
        return "the content of a file"
    found = sorted(place.entries(), key=lambda entry: entry.name)
    if any(entry.name == NAME and _is_manifest(entry.place) for entry in found):
        return None
    kept = _real(store) if store else None
    return next((entry.name for entry in found if not _is_ours(entry, output, kept)), None)


def _is_manifest(place: Place) -> bool:
    """Whether a file is the manifest of a run; browsers, packages and backups have files of this name as well."""
    with suppress(OSError, ValueError):
        manifest = json.loads(place.read_bytes())
        return isinstance(manifest, dict) and {"format", "status"} <= manifest.keys()
    return False


def _is_ours(entry: Entry, output: str, store: str | None) -> bool:
    """Whether something in a folder without a manifest is what our commands write there, by its content and not its
    name.

    `store` is where completions are kept, which may be the folder itself or lie anywhere below it.
    """
    name = entry.name
    if entry.kind == "file":
        return bool(_FILES.fullmatch(name)) and (name != NAME or _is_damaged(entry.place))
    place = f"{_real(output)}/{name}"
    if store is not None and (_is_within(store, place) or _is_version(place, store)):
        return True
    below = [str(each.place) for each in entry.place.entries()] if name in _NESTS else []
    if name == _STORE:
        return all(_is_version(each, str(entry.place)) for each in below)
    if name == _SENTINEL:
        return _find_foreign(place, None) is None
    if name == _RUNS:
        return all(_find_foreign(each, None) is None for each in below)
    return (name in TABLES or name == _WORK) and _holds_tables(entry.place, name)


def _is_version(path: str, store: str) -> bool:
    """Whether a folder is one of a store: `STORE/v1`, in which completions of one version lie, or its notes."""
    parent, _, name = path.rpartition("/")
    return parent == store and _STORE_VERSION.fullmatch(name) is not None


def _is_damaged(place: Place) -> bool:
    """Whether a file is no JSON, as a manifest is that a full disk cut short."""
    try:
        json.loads(place.read_bytes())
    except ValueError:
        return True
    return False


def _holds_tables(place: Place, name: str) -> bool:
    """Whether a folder holds Parquet alone, with the table's leading column where it has the name of a table.

    What has a leading `_` or `.` is Spark's own.
    """
    files = [entry.place for entry in place.entries(recursive=True) if entry.kind == "file"]
    files = [file for file in files if not _SPARKS_OWN.search(file.uri.removeprefix(place.uri))]
    if not all(file.name.endswith(".parquet") for file in files):
        return False
    if not files or name == _WORK:
        return True
    try:
        with files[0].open() as file:
            columns = pq.read_schema(file).names
    except (OSError, pa.ArrowException):
        return False
    return TABLES[name].names[0] in columns
