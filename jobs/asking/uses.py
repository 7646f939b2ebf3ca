"""What runs need of a store: the ids of their requests, noted in it before they are looked up. Imports no pyspark.

`STORE/_uses/<run>/<stage>-<digest>-<n>.parquet`, one file each time that a run asks a stage. Manifests name runs, so
that an output says by its notes which completions its tables are made of: `untold prune` goes by them alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from untold.jobs.run.object_locks import NAME, lock_folder
from untold.udfs.storage import Place

FOLDER = "_uses"
IDS = pa.schema([("request_id", pa.string())])
_NAME = re.compile(r"(\w+-[0-9a-f]{32})-[0-9a-f]+\.parquet")


@dataclass(frozen=True)
class Use:
    """A file of notes: which run needs what of which stage's folder, and since when (seconds since 1970)."""

    place: Place
    run: str
    stage: str
    at: float

    def ids(self) -> Iterator[list[str]]:
        """The ids of the requests, some at a time. Raises OSError or ValueError where they cannot be read."""
        with self.place.open() as file:
            for batch in pq.ParquetFile(file).iter_batches(columns=IDS.names):
                yield batch.column(0).to_pylist()


def folder_of_uses(store: str) -> str:
    """Where the notes lie in a store."""
    return str(Place(store) / FOLDER)


def note_use(store: str, run: str, stage: str, ids: Iterable[pa.Array]) -> None:
    """Notes the requests that a run needs of a stage. A store that may only be read keeps no notes.

    stage: the name of its folder. ids: texts, null where a row has no request; a file is written whatever there is, so
    that every run has one.
    """

    def write(stream: Any) -> None:
        # A dictionary of ids that are all different would be their whole copy
        with pq.ParquetWriter(stream, IDS, compression="zstd", use_dictionary=False) as writer:
            for column in ids:
                writer.write_table(pa.table([pc.unique(column.drop_null())], schema=IDS))

    own = Place(folder_of_uses(store)) / run
    with suppress(OSError):
        own.make_folder()
        (own / f"{stage}-{uuid4().hex[:12]}.parquet").write_whole(write)


def wait_for_prune(store: str, run: str, *, wait: bool, notify: Callable[[str], None]) -> None:
    """Waits while completions of a store are being removed; to be called once the run has noted its use.

    Who removes takes this lock before it reads the notes: either it sees the run's, or the run sees the lock. Raises
    LockedError where the run is not to wait.
    """
    uses = folder_of_uses(store)
    if (Place(uses) / NAME).entry().kind is not None:
        with lock_folder(uses, run, wait=wait, notify=notify):
            return


def list_uses(store: str) -> list[Use]:
    """All notes of a store."""
    found = []
    for entry in Place(folder_of_uses(store)).entries(recursive=True):
        known = _NAME.fullmatch(entry.name)
        if known is not None:
            run = str(entry.place).rpartition("/")[0].rpartition("/")[2]
            found.append(Use(entry.place, run, known[1], entry.modified))
    return found
