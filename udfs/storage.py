"""Places: files and folders on local disks, object stores and HDFS, and files that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from untold.udfs import object_stores
from untold.udfs.redaction import redact
from untold.udfs.schemes import STORES, complaint_of
from untold.udfs.schemes import PlaceError as PlaceError

# A password before a host may hold slashes; what follows a port is a path
_URI = re.compile(r"([A-Za-z][\w+.-]*)://((?:[^/@:]+:(?!\d+/)[^@]*@|[^/@]*@)?[^/]*)/?(.*)", re.DOTALL)
_LOCAL = fs.LocalFileSystem()
_KINDS: Any = {fs.FileType.NotFound: None, fs.FileType.File: "file", fs.FileType.Directory: "folder"}
# Files whose footers are read side by side: each is one or two small reads, which wait on the network elsewhere
FOOTERS_AT_ONCE = 8
# A file that is on its way to an object store and larger waits on disk
_SPOOLED_BYTES = 8 * 2**20
# What file systems answer that cannot sync a folder; they keep the names of a folder in order by themselves.
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


@dataclass(frozen=True)
class StoragePath:
    """A file or folder: a local path, or the URI of one in a file system that Arrow knows. It need not exist.

    A path in a URI is taken as it stands: it may hold spaces, brackets and percent signs. Methods that reach the file
    system raise OSError where it fails, PlaceError where it cannot be opened.

    >>> (StoragePath("s3://bucket/out/") / "scores").spark, StoragePath("file:///data/out").local, StoragePath("s3://bucket").local
    ('s3a://bucket/out/scores', '/data/out', None)
    """

    uri: str

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> StoragePath:
        return StoragePath(f"{self.uri.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.uri.rstrip("/").rpartition("/")[2]

    @property
    def local(self) -> str | None:
        """The path on a local disk, where a rename is atomic; None elsewhere. Raises PlaceError for `dbfs:/`."""
        path = local_path(self.uri)
        if _URI.match(path):
            return None
        if complaint := complaint_of(path):
            raise PlaceError(redact(complaint))
        return path

    @property
    def spark(self) -> str:
        """The same place for Spark, in every process: an absolute path, or a URI; `~` is the user's home."""
        if self.local is not None:
            return os.path.abspath(os.path.expanduser(self.local))
        return re.sub("(?<=[^/:])/+$", "", re.sub("^s3n?://", "s3a://", self.uri))

    @property
    def arrow(self) -> tuple[fs.FileSystem, str]:
        """Arrow's file system, opened once a process, and the path in it."""
        if self.local is not None:
            return _LOCAL, self.local
        root, path = self.root
        try:
            system, above = object_stores.open_arrow(root)
        except (TypeError, ValueError) as error:
            if isinstance(error, PlaceError):
                raise
            # What Arrow says of an address repeats it, key and all
            reason = "" if isinstance(error, pa.ArrowInvalid) else f" ({error})"
            text = f"{self.uri} cannot be opened{reason}. Check the address and storage.options"
            raise PlaceError(redact(text)) from error
        return system, f"{above.rstrip('/')}/{path}".rstrip("/") or "/"

    @property
    def has_conditions(self) -> bool:
        """Whether it lies in an object store, which writes on a condition and has no folders."""
        return self.local is None and self.root[0].scheme in STORES

    def entry(self) -> FileInfo:
        """What is there now."""
        system, path = self.arrow
        found = _entry(self, system.get_file_info(path))
        return found._replace(kind="folder") if self._is_marker(found) else found

    def _is_marker(self, found: FileInfo) -> bool:
        """Whether an object, as it was found, is the marker of a folder: empty, with others below its name."""
        return found.kind == "file" and not found.size and self.has_conditions and bool(self.entries())

    def entries(self, *, recursive: bool = False, missing_ok: bool = True) -> list[FileInfo]:
        """What lies in a folder, in no order; nothing where there is no folder, or FileNotFoundError."""
        system, path = self.arrow
        found = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=missing_ok))
        return [_entry(self / info.path[len(path) :].lstrip("/"), info) for info in found]

    def open(self) -> Any:
        """A file's bytes, to be read in any order. Raises FileNotFoundError where there is none."""
        if self.has_conditions:
            return object_stores.open_object(*self.root)
        system, path = self.arrow
        return system.open_input_file(path)

    def read_bytes(self) -> bytes:
        """All bytes of a file. Raises FileNotFoundError where there is none."""
        if self.has_conditions:
            # One request, where Arrow would first ask for the size
            found = self.read_written()
            if found is None:
                raise FileNotFoundError(self.uri)
            return found.content
        with self.open() as file:
            return bytes(file.read())

    def write_bytes(self, content: bytes) -> None:
        """Writes a file whole, and makes the folder that it lies in on a local disk; others make their own."""
        self._make_parent()
        self.write_whole(lambda file: file.write(content))

    def write_whole(self, write: Callable[[IO[bytes]], Any]) -> None:
        """Writes a file that readers see as it was before or whole, and that a power cut leaves so once this returns.

        Locally aside, synced, renamed, and the folder synced; an object store takes it in one put. What is left of a
        write that fails is removed, so that a full disk is no fuller for it. A pipe or a device takes what it gets.
        """
        if self.local is not None:
            if os.path.exists(self.local) and not os.path.isfile(self.local):
                # No rename may replace it
                with open(self.local, "wb") as taking:
                    write(taking)
                return
            # In the same folder, as a rename is atomic within one file system alone; hidden from those who list it.
            # Where a link stands, the file that it leads to is written.
            _write_aside(os.path.realpath(self.local), ".tmp", write, os.replace)
            return
        # Written here first: a put that fails half way through `write` would leave what there is of it.
        with tempfile.SpooledTemporaryFile(_SPOOLED_BYTES) as file:
            write(cast(IO[bytes], file))
            file.seek(0)
            if self.has_conditions:
                object_stores.put(*self.root, cast(IO[bytes], file))
                return
            system, path = self.arrow
            with system.open_output_stream(path) as stream:
                shutil.copyfileobj(file, stream)

    def put_if_absent(self, content: bytes) -> bool:
        """Writes a file whole where there is none; gives whether it did.

        Of two at once one writes, on local disks and object stores. HDFS has no such put for us: there the later stays.
        """
        if self.has_conditions:
            return self.put_if(content, None) is not None
        if self.local is None:
            absent = self.entry().kind is None
            if absent:
                self.write_bytes(content)
            return absent
        self._make_parent()
        try:
            # A name of its own: of two at once, neither may write into what the other is about to publish.
            _write_aside(self.local, f".{uuid4().hex[:8]}.tmp", lambda file: file.write(content), _link)
        except FileExistsError:
            return False
        return True

    def put_if(self, content: bytes, tag: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Writes an object where there is none, or where it is as a tag says; its new tag, None where it is not so."""
        return object_stores.put_if(*self.root, content, tag)

    def read_written(self) -> object_stores.WrittenObject | None:
        """An object with its time and its tag; None where there is none."""
        return object_stores.read(*self.root)

    def make_folder(self) -> None:
        """Makes a folder and those above it; on a local disk their names last through a power cut.

        Each new folder is synced in the one above it: a file that was synced is lost with a folder whose name was not.
        """
        if self.has_conditions:
            return
        if self.local is None:
            system, path = self.arrow
            system.create_dir(path, recursive=True)
            return
        path = os.path.abspath(self.local)
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.makedirs(folder, exist_ok=True)
            sync_folder(os.path.dirname(folder))

    def move(self, target: StoragePath) -> None:
        """Gives a file another name in its file system. Raises FileNotFoundError where there is none."""
        if self.has_conditions:
            # No store renames, and Arrow does it in three ways: of an Azure account without folders not at all
            self.copy(target)
            self.remove()
            return
        system, path = self.arrow
        system.move(path, target.arrow[1])

    def remove(self) -> None:
        """Removes a file, or a folder with all that is in it. What is gone already was removed by another run."""
        system, path = self.arrow
        found = _entry(self, system.get_file_info(path))
        kind = found.kind
        if kind == "file" and self.has_conditions:
            # Arrow would make an empty object where the folder was
            object_stores.remove(*self.root)
            if not self._is_marker(found):
                return
            kind = "folder"
        act = system.delete_dir if kind == "folder" else system.delete_file
        with suppress(FileNotFoundError):
            try:
                if kind is not None:
                    act(path)
            except OSError as error:
                # Some stores refuse to remove the marker of a folder before what is in it, in one request
                if not self.has_conditions or isinstance(error, FileNotFoundError | PermissionError):
                    raise
                act(path)

    def copy(self, target: StoragePath) -> None:
        """Copies a file, or what is in a folder, to a place that may be in another file system."""
        if self.entry().kind != "folder":
            self.copy_whole(target)
            return
        found = self.entries(recursive=True)
        # Of a store, also the objects that are markers of folders
        folders = {str(entry.place).rpartition("/")[0] for entry in found}
        for entry in found:
            if entry.kind == "file" and str(entry.place) not in folders:
                entry.place.copy_whole(StoragePath(f"{target}{str(entry.place).removeprefix(str(self))}"))

    def copy_whole(self, target: StoragePath) -> None:
        """Copies a file to a place that may be in another file system, where readers see all of it or nothing."""
        target._make_parent()
        with self.open() as source:
            target.write_whole(lambda file: shutil.copyfileobj(source, file, _SPOOLED_BYTES))

    @property
    def root(self) -> tuple[object_stores.Root, str]:
        """What is opened once a process, and the path in it."""
        scheme, authority, path = cast(re.Match[str], _URI.fullmatch(self.uri)).groups()
        return object_stores.root_of(scheme, authority), path.rstrip("/")

    def _make_parent(self) -> None:
        if self.local is not None:
            StoragePath(os.path.dirname(self.local) or ".").make_folder()


class FileInfo(NamedTuple):
    """What is at a place, of which kind; bytes of a file, and seconds since 1970, 0 where the file system says none."""

    place: StoragePath
    kind: Literal["file", "folder", "other"] | None
    size: int
    modified: float

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.place.name


def literal_pattern(path: str) -> str:
    """Return the glob of Hadoop that matches this path only. Spark's readers accept globs and not plain paths.

    >>> literal_pattern("/out/gpt-4 [v2]/samples"), literal_pattern("/out/a/samples")
    ('/out/gpt-4 \\\\[v2\\\\]/samples', '/out/a/samples')
    """
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def local_path(path: str) -> str:
    """A path without its `file:` scheme, percent signs decoded where there is no such file otherwise."""
    if not path.startswith("file:/"):
        return path
    bare = re.sub("^file:(//(localhost)?)?(?=/)", "", path)
    return bare if os.path.exists(bare) else unquote(bare)


def sync_folder(path: str) -> None:
    """Makes the names in a local folder last through a power cut, where its file system can.

    Raises OSError for a disk that fails; a file system that knows no such thing is passed over.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file of this machine; none where there is no such file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _entry(place: StoragePath, info: fs.FileInfo) -> FileInfo:
    return FileInfo(place, _KINDS.get(info.type, "other"), info.size or 0, (info.mtime_ns or 0) / 1e9)


def _write_aside(
    path: str, suffix: str, write: Callable[[IO[bytes]], Any], publish: Callable[[str, str], None]
) -> None:
    """Writes a local file under another name in its folder, then gives it its own by `publish`."""
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}{suffix}")
    try:
        with naming(path), open(aside, "wb") as file:
            write(file)
            file.flush()
            # The content before its name: after a power cut, a name could else stand over nothing.
            os.fsync(file.fileno())
        publish(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    sync_folder(folder or ".")


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Gives the path to an OSError that names no file, as that of a full disk does."""
    try:
        yield
    except OSError as error:
        # One without a number has words of its own, which a file name would replace
        if error.errno is not None:
            error.filename = error.filename or path
        raise


def _link(aside: str, path: str) -> None:
    """Gives a file a name that none has yet. Raises FileExistsError where one has."""
    try:
        os.link(aside, path)
        os.unlink(aside)
    except OSError as error:
        if os.path.lexists(path):
            raise FileExistsError(path) from error
        # Some network disks have no second names
        os.rename(aside, path)
