"""A shard of an index on disk: chunks, vectors and postings, written once, whole or not at all, and never changed.

SHARD/chunks.parquet   the chunks in the order of their ids: who they are, what they say
SHARD/places.arrow     for each chunk its id, the number of its text, its length in tokens; mapped, never read whole
SHARD/dense.faiss      one vector a distinct text, by number
SHARD/terms.arrow      postings (`untold.udfs.retrieval.terms.POSTINGS`); mapped
SHARD/shard.json       what the others have to be: counts, and each file's size and digest; written last

Shards on a local disk are read as they are, others by way of a copy on this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from untold.udfs.errors import UserError
from untold.udfs.retrieval.catalog import CHUNKS, COARSE, DEAD, SHARDS
from untold.udfs.retrieval.dense import Dense, Integers, open_index, write_index
from untold.udfs.retrieval.terms import Terms, TermsBuilder, tokenise
from untold.udfs.storage import StoragePath, sync_folder

FORMAT = 1
CHUNKS_FILE, PLACES_FILE, DENSE_FILE, TERMS_FILE = "chunks.parquet", "places.arrow", "dense.faiss", "terms.arrow"
FACTS_FILE = "shard.json"
PLACES = pa.schema([("chunk_id", pa.string()), ("text", pa.int32()), ("length", pa.int32())])
# What a hit's text is read with: small, as few hits lie in one
ROWS_OF_A_GROUP = 1_000
# So many rows wait until they are written as row groups
ROWS_WAITING = 10_000
# Files up to this size are read whole and compared with their digest when a shard is opened; larger ones by their size
# alone, as a search reads a small part of them
CHECKED_BYTES = 16 * 2**20
READ_BYTES = 2**20

# What libraries raise for bytes that are not what they ought to be
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RuntimeError, pa.ArrowException, MemoryError)


class DamagedShardError(UserError):
    """A shard that cannot be read. The message names its folder and what to do."""


@dataclass(frozen=True)
class ShardFacts:
    """What a shard holds: chunks, distinct texts, tokens; and of each file its bytes and a hash of them."""

    chunks: int
    texts: int
    tokens: int
    files: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(size for size, _ in self.files.values())


class ShardName:
    """The name of a shard while its chunks pass by, in their order: a hash of them and of what they are indexed by."""

    def __init__(self, settings: str) -> None:
        self._digest = blake2b(settings.encode(), digest_size=16)
        self.chunks = 0

    def add(self, chunk: Iterable[str | int | None]) -> None:
        """Adds the next chunk: the values of `CHUNKS`, in that order."""
        # As JSON, so that no two chunks run together into one
        self._digest.update(json.dumps(list(chunk), ensure_ascii=False).encode() + b"\n")
        self.chunks += 1

    def __str__(self) -> str:
        return self._digest.hexdigest()


class ShardWriter:
    """Writes a shard into a folder of its own beside its place, and moves it there when it is whole.

    Chunks come in the order of their ids. `coarse`: a local file, the empty index that every shard begins as. Use it as
    a context manager: what is left of a shard that was not finished goes.
    """

    def __init__(self, folder: str, coarse: str) -> None:
        self._folder = folder
        parent, name = os.path.split(folder)
        # In the same folder, as a rename is atomic within one file system alone; hidden from those who list it
        self._aside = os.path.join(parent, f".{name}-{uuid4().hex[:8]}")
        self._index = open_index(coarse, mapped=False)
        self._terms, self._numbers = TermsBuilder(), dict[str, int]()
        self._chunks, self._tokens = 0, 0
        self._waiting: list[pa.RecordBatch] = []
        self._places: list[pa.RecordBatch] = []

    def __enter__(self) -> ShardWriter:
        StoragePath(self._aside).make_folder()
        self._text_file = pq.ParquetWriter(
            self._path(CHUNKS_FILE), CHUNKS, compression="zstd", write_page_checksum=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._text_file.close()
        shutil.rmtree(self._aside, ignore_errors=True)

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds chunks: the columns of `CHUNKS`, and `vector` (list of float, of length 1)."""
        texts = batch.column("text").to_pylist()
        vectors = batch.column("vector")
        numbers, new = [], []
        for row, text_id in enumerate(batch.column("text_id").to_pylist()):
            if text_id not in self._numbers:
                new.append(row)
            numbers.append(self._numbers.setdefault(text_id, len(self._numbers)))
        if new:
            self._index.add(rows_of(vectors.take(pa.array(new))))
        lengths = [self._count(text) for text in texts]
        place = [batch.column("chunk_id"), pa.array(numbers, pa.int32()), pa.array(lengths, pa.int32())]
        self._places.append(pa.RecordBatch.from_arrays(place, schema=PLACES))
        self._waiting.append(batch.select(CHUNKS.names))
        self._chunks += len(texts)
        self._write_groups(least=ROWS_WAITING)

    def finish(self) -> ShardFacts:
        """Writes the rest and moves the shard to its place; where another put the same one there, that one stays.

        One there that is not whole goes: what is damaged is mended by writing it again.
        """
        self._write_groups(least=1)
        self._text_file.close()
        write_index(self._index, self._path(DENSE_FILE))
        _write_mapped(self._path(TERMS_FILE), self._terms.postings())
        _write_mapped(self._path(PLACES_FILE), pa.concat_batches(self._places))
        names = (CHUNKS_FILE, PLACES_FILE, DENSE_FILE, TERMS_FILE)
        files = {name: _describe_file(self._path(name), sync=True) for name in names}
        facts = ShardFacts(self._chunks, len(self._numbers), self._tokens, files)
        plain = json.dumps({"format": FORMAT, **asdict(facts)}, indent=1)
        StoragePath(self._path(FACTS_FILE)).write_bytes(plain.encode())
        if not is_whole(self._folder):
            # No folder can be given the name of one that holds files
            shutil.rmtree(self._folder, ignore_errors=True)
        move_folder(self._aside, self._folder)
        return facts

    def _path(self, name: str) -> str:
        return os.path.join(self._aside, name)

    def _count(self, text: str) -> int:
        """Counts a chunk's terms; gives its length in tokens."""
        tokens = tokenise(text)
        self._terms.add(tokens)
        self._tokens += len(tokens)
        return len(tokens)

    def _write_groups(self, least: int) -> None:
        """Writes whole row groups once so many rows wait; all of them where `least` is 1.

        By rows and not by batches as they come, so that the same chunks are the same bytes.
        """
        waiting = pa.Table.from_batches(self._waiting, CHUNKS).combine_chunks() if self._waiting else None
        if waiting is None or len(waiting) < least:
            return
        whole = len(waiting) if least == 1 else len(waiting) // ROWS_OF_A_GROUP * ROWS_OF_A_GROUP
        for start in range(0, whole, ROWS_OF_A_GROUP):
            self._text_file.write_table(waiting.slice(start, min(ROWS_OF_A_GROUP, whole - start)).combine_chunks())
        self._waiting = waiting.slice(whole).to_batches()


def _write_mapped(path: str, batch: pa.RecordBatch) -> None:
    """Writes one batch, uncompressed, so that its columns can be used where they lie."""
    with pa.ipc.new_file(path, batch.schema) as file:
        file.write_batch(batch)


def _map(path: str) -> pa.RecordBatch:
    """The batch of a file, mapped into memory: the disk's pages, which the system may drop, and not the process's."""
    return pa.ipc.open_file(pa.memory_map(path)).get_batch(0)


def move_folder(aside: str, place: str) -> None:
    """Gives a folder its name, lastingly; where another has the name already, the new one goes.

    What has a name of its content is the same whoever made it.
    """
    try:
        os.rename(aside, place)
    except OSError:
        if not os.path.isdir(place):
            raise
        shutil.rmtree(aside, ignore_errors=True)
    sync_folder(os.path.dirname(place))


def rows_of(vectors: pa.Array) -> Any:
    """A column of lists of one length as an array, n x d, float32."""
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(flat.reshape(len(vectors), -1), dtype=np.float32)


def _describe_file(path: str, *, sync: bool = False) -> tuple[int, str]:
    """A file's bytes and a hash of them. `sync`: it is made to last through a power cut, as its folder's name will."""
    digest, size = blake2b(digest_size=16), 0
    with open(path, "rb") as file:
        if sync:
            os.fsync(file.fileno())
        while piece := file.read(READ_BYTES):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


class Shard:
    """A shard to search in, on a local disk: its parts are mapped into memory, not read.

    `dead`: positions of chunks that count no more. Raises DamagedShardError where it cannot be read.
    """

    def __init__(self, folder: str, dead: Integers | None = None) -> None:
        self._folder = folder
        self._dead = np.empty(0, np.int32) if dead is None else dead
        with self._guarded():
            self.facts = read_facts(folder)
            _check_files(folder, self.facts)
            places = _map(self._path(PLACES_FILE))
            self._ids = places.column("chunk_id")
            self._texts, self._lengths = (places.column(name).to_numpy() for name in ("text", "length"))
            if len(self._ids) != self.facts.chunks:
                raise ValueError(f"{len(self._ids):,} places of {self.facts.chunks:,} chunks")

    def dense(self) -> Dense:
        """Its vectors."""
        with self._guarded():
            index = open_index(self._path(DENSE_FILE))
            if index.ntotal != self.facts.texts:
                raise ValueError(f"{index.ntotal:,} vectors of {self.facts.texts:,} texts")
            return Dense(index, self._texts, self._dead)

    def terms(self) -> Terms:
        """Its postings."""
        with self._guarded():
            return Terms(_map(self._path(TERMS_FILE)), self._lengths, self._dead)

    def names(self, positions: Iterable[int]) -> list[str]:
        """The ids of chunks."""
        return [self._ids[int(position)].as_py() for position in positions]

    @property
    def dead(self) -> Integers:
        """The positions of the chunks that count no more."""
        return self._dead

    def is_living(self) -> Any:
        """For each chunk whether it counts."""
        living = np.ones(self.facts.chunks, bool)
        living[self._dead] = False
        return living

    def living(self) -> tuple[int, int]:
        """Chunks that count, and their tokens."""
        dead = self._dead
        return self.facts.chunks - len(dead), self.facts.tokens - int(self._lengths[dead].sum())

    def read(self, positions: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Columns of chunks at these positions, in ascending order; reads the row groups that they lie in alone."""
        wanted = np.unique(np.asarray(positions, np.int64))
        with self._guarded(), self._open_chunks() as file:
            starts = np.cumsum([0, *(file.metadata.row_group(n).num_rows for n in range(file.num_row_groups))])
            groups = np.unique(np.searchsorted(starts, wanted, side="right") - 1)
            parts = [
                file.read_row_group(int(group), list(columns)).take(
                    pa.array(wanted[(wanted >= starts[group]) & (wanted < starts[group + 1])] - starts[group])
                )
                for group in groups
            ]
        return pa.concat_tables(parts) if parts else pa.table({name: [] for name in columns})

    def chunks(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Columns of all chunks, the dead ones too, by batch with the position of its first."""
        start = 0
        with self._guarded(), self._open_chunks() as file:
            for batch in file.iter_batches(columns=list(columns)):
                yield start, batch
                start += batch.num_rows

    def _open_chunks(self) -> pq.ParquetFile:
        return pq.ParquetFile(self._path(CHUNKS_FILE), page_checksum_verification=True)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Makes one line of whatever says that a file is not what it ought to be."""
        try:
            yield
        except _UNREADABLE as error:
            raise DamagedShardError(
                f"the shard {self._folder} is damaged ({type(error).__name__}). "
                "Remove this folder and start untold index again (no text is embedded twice)"
            ) from error


def read_facts(folder: str) -> ShardFacts:
    """What a shard's folder says that it holds. Raises what reading raises where it says nothing that makes sense."""
    plain = json.loads((StoragePath(folder) / FACTS_FILE).read_bytes())
    if plain.pop("format") != FORMAT:
        raise ValueError("another format")
    files = {str(name): (int(size), str(digest)) for name, (size, digest) in plain.pop("files").items()}
    return ShardFacts(**plain, files=files)


def is_whole(folder: str) -> bool:
    """Whether all files of a shard are there, in their size; small ones with their bytes.

    On an object store what says so was written last, and a file is there whole or not at all.
    """
    try:
        facts = read_facts(folder)
        if (local := StoragePath(folder).local) is not None:
            _check_files(local, facts)
    except _UNREADABLE:
        return False
    return True


def _check_files(folder: str, facts: ShardFacts) -> None:
    """Raises ValueError or OSError for a file that is not there or not what it was."""
    for name, (size, digest) in facts.files.items():
        path = os.path.join(folder, name)
        if os.path.getsize(path) != size:
            raise ValueError(f"{name} has the wrong size")
        if size <= CHECKED_BYTES and _describe_file(path)[1] != digest:
            raise ValueError(f"{name} has the wrong digest")


def write_dead(folder: str, shard: str, positions: Integers) -> str:
    """Writes which chunks of a shard count no more; gives the name of the file, which is of its content too."""
    content = np.sort(positions).astype("<i4").tobytes()
    name = f"{shard}-{blake2b(content, digest_size=8).hexdigest()}"
    (StoragePath(folder) / name).write_bytes(content)
    return name


def read_dead(path: str) -> Integers:
    """The positions that a file of `write_dead` names. Raises DamagedShardError where it is not what its name says."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        if blake2b(content, digest_size=8).hexdigest() != path.rpartition("-")[2]:
            raise ValueError("not its digest")
    except _UNREADABLE as error:
        raise DamagedShardError(
            f"the list of removed documents {path} is damaged ({type(error).__name__}). "
            "Start untold index again with --overwrite (no text is embedded twice)"
        ) from error
    return np.frombuffer(content, "<i4").astype(np.int32)


def split_by(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Batches sorted by a column, cut where its value changes: the value, and the rows that have it."""
    for batch in batches:
        if not batch.num_rows:
            continue
        values = batch.column(column).to_pylist()
        cuts = [0, *(row for row in range(1, len(values)) if values[row] != values[row - 1]), len(values)]
        for start, end in pairwise(cuts):
            yield values[start], batch.slice(start, end - start)


def groups_by(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[Any, Iterator[pa.RecordBatch]]]:
    """For each run of one value of a column: the value, and its rows as they come."""
    for value, parts in groupby(split_by(batches, column), key=itemgetter(0)):
        yield value, (part for _, part in parts)


def shard_folder(index: str, name: str) -> str:
    """The folder of a shard, path or URI."""
    return f"{index}/{SHARDS}/{name}"


def open_shard(index: str, name: str, tombstones: str | None, cache: str) -> Shard:
    """A shard with its tombstones; of an index that is not on a local disk, a copy of it in `cache`.

    A copy is made once: a shard of one name never changes. Raises DamagedShardError.
    """
    dead = read_dead(_local_file(f"{index}/{DEAD}/{tombstones}", cache)) if tombstones else None
    return Shard(local_folder(shard_folder(index, name), cache), dead)


def local_folder(uri: str, cache: str) -> str:
    """A folder on this machine's disk with the files of `uri`."""
    source = StoragePath(uri)
    if source.local is not None:
        return source.local
    place = os.path.join(cache, source.name)
    if not os.path.isdir(place):
        aside = os.path.join(cache, f".{source.name}-{uuid4().hex[:8]}")
        StoragePath(aside).make_folder()
        try:
            source.copy(StoragePath(aside))
            move_folder(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return place


def _local_file(uri: str, cache: str) -> str:
    """A file on this machine's disk with the bytes of `uri`, whose name is of its content."""
    source = StoragePath(uri)
    if source.local is not None:
        return source.local
    place = StoragePath(cache) / source.name
    if place.entry().kind is None:
        place.put_if_absent(source.read_bytes())
    return str(place)


@contextmanager
def coarse_of(index: str) -> Iterator[str]:
    """A local file with the empty index that every shard of an index begins as, for the time of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="untold-") as folder:
        yield _local_file(f"{index}/{COARSE}", folder)


@contextmanager
def place_to_write(index: str, name: str) -> Iterator[str]:
    """A local folder name under which a shard may be written; once the block ends it is where it belongs.

    On an object store nothing can be renamed: what says that a shard is whole is copied last.
    """
    place = StoragePath(shard_folder(index, name))
    if place.local is not None:
        yield place.local
        return
    with tempfile.TemporaryDirectory(prefix="untold-") as folder:
        made = StoragePath(folder) / name
        yield str(made)
        for entry in sorted(made.entries(), key=lambda entry: (entry.name == FACTS_FILE, entry.name)):
            entry.place.copy(place / entry.name)
