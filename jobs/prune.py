"""Remove the completions of a store that no output needs: `untold prune`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from untold.jobs.inference.store.compaction import (
    VERSION,
    Pruned,
    ReferenceFile,
    find_unneeded,
    folder_of_uses,
    list_uses,
    prune_folder,
)
from untold.jobs.inputs.files import NoInputError, find_files
from untold.jobs.inputs.options import PruneRequest
from untold.jobs.run.locks import lock_folder
from untold.jobs.run.manifest import NAME, read_manifest
from untold.jobs.run.output import store_of
from untold.jobs.run.terminal import Page, table
from untold.jobs.settings.model import Settings
from untold.jobs.summary.nights import SENTINEL_FOLDER
from untold.udfs.errors import UserError
from untold.udfs.llm.store_files import Unneeded
from untold.udfs.llm.units import RequestIds
from untold.udfs.storage import StoragePath, absolute

_STAGE = re.compile(r"\w+-[0-9a-f]{32}")


class PruneError(UserError):
    """An error of a store or of an output without a record of its requests. The message contains the remedy."""


def prune(request: PruneRequest) -> list[Pruned]:
    """Remove the old completions that no recent run and no kept output needs. Return one row for each stage.

    Without `apply`, only return the rows that would be removed. Raises LockedError if a run has the lock of a folder,
    and PruneError if a kept output has no record of its requests. The errors are raised before any row is removed.
    """
    stages = (StoragePath(request.store) / VERSION).entries()
    folders = [str(entry.place) for entry in stages if _STAGE.fullmatch(entry.name)]
    if not folders:
        raise PruneError(
            f"{request.store} has no completions. Give the store of runs, STORE in --set completion_store=STORE"
        )
    before = datetime.now(UTC) - request.older_than
    with ExitStack() as locks:
        if request.apply:
            # The lock of the records is the first one, because a new run waits for it before the first lookup
            for folder in (folder_of_uses(request.store), *folders):
                locks.enter_context(lock_folder(folder, f"prune-{uuid4().hex[:12]}", wait=False))
        uses = list_uses(request.store)
        kept = _runs_of_outputs(request, {use.run for use in uses})
        stay = [use for use in uses if use.run in kept or use.at >= before.timestamp()]
        act = prune_folder if request.apply else find_unneeded
        found = [act(folder, Unneeded(before, _ids_of(stay, StoragePath(folder).name))) for folder in sorted(folders)]
        if request.apply:
            for run in {use.run for use in uses} - {use.run for use in stay}:
                (StoragePath(folder_of_uses(request.store)) / run).remove()
    return found


def _ids_of(uses: Iterable[ReferenceFile], stage: str) -> RequestIds:
    """Return the ids of the requests of a stage in these records. Raises PruneError if a record cannot be read."""
    ids: list[NDArray[np.bytes_]] = []
    for use in uses:
        if use.stage == stage:
            try:
                ids += (np.asarray(some, np.bytes_) for some in use.ids())
            except (OSError, ValueError, pa.ArrowException) as error:
                raise PruneError(
                    f"{use.place} cannot be read, so the completions of run {use.run} are unknown"
                ) from error
    return RequestIds(np.concatenate(ids) if ids else ())


def _runs_of_outputs(request: PruneRequest, noted: set[str]) -> set[str]:
    """Return the ids of the runs of the kept outputs. Raises PruneError if an output of this store has no record."""
    runs: set[str] = set()
    for pattern in request.keep_outputs:
        for place in _outputs(pattern):
            manifest = read_manifest(place) or {}
            own = {str(manifest.get("run")), *(start["run"] for start in manifest.get("starts", ()))}
            if not own & noted and _needs(manifest, place, request.store):
                raise PruneError(
                    f"{place}: none of its runs has recorded in {request.store} which completions it needs. Score it "
                    "again, which sends no requests, or remove it from --keep-outputs"
                )
            runs |= own
    return runs


def _outputs(pattern: str) -> list[str]:
    """Return the outputs of a path or a glob, and the runs of a study. Raises PruneError if there is no output."""
    found = []
    for form in (f"{pattern.rstrip('/')}/{NAME}", f"{pattern.rstrip('/')}/runs/*/{NAME}"):
        with suppress(NoInputError):
            found += [file.path.rpartition("/")[0] for file in find_files(form)]
    if not found:
        raise PruneError(f"--keep-outputs {shlex.quote(pattern)} matches no output. Correct or remove it")
    return [path for one in found for path in (one, f"{one}/{SENTINEL_FOLDER}")]


def _needs(manifest: Mapping[str, Any], output: str, store: str) -> bool:
    """Return True if the completions of an output are in this store."""
    asked = any(row["requests"] for start in manifest.get("starts", ()) for row in start["usage"])
    named = (manifest.get("settings") or {}).get("completion_store")
    return asked and absolute(store) == store_of(Settings(completion_store=named), absolute(output))


def prune_lines(found: Sequence[Pruned], page: Page, *, applied: bool) -> list[str]:
    """Return the lines of the table, with one line for each stage and one line for the total."""
    total = Pruned("all", *(sum(getattr(one, name) for one in found) for name in _NUMBERS))
    heads = ["stage", "rows", "bytes", "rows removed" if applied else "rows to remove", "bytes freed"]
    rows = [[one.stage, *(f"{getattr(one, name):,}" for name in _NUMBERS)] for one in (*found, total)]
    end = "removed" if applied else "nothing was removed. --apply removes these rows. Bytes are estimates"
    return [*table(heads, rows, page, names=1), end]


_NUMBERS = ("rows", "size", "unneeded_rows", "unneeded_bytes")
