"""Paths of files and folders on local disks, object stores and HDFS. Files are written as a whole or not at all."""

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

# A password before a host may contain slashes. After a port, the rest is a path
_URI = re.compile(r"([A-Za-z][\w+.-]*)://((?:[^/@:]+:(?!\d+/)[^@]*@|[^/@]*@)?[^/]*)/?(.*)", re.DOTALL)
_LOCAL = fs.LocalFileSystem()
_KINDS: Any = {fs.FileType.NotFound: None, fs.FileType.File: "file", fs.FileType.Directory: "folder"}
# Footers that are read in parallel. Each needs one or two small reads, which wait for the network
FOOTERS_AT_ONCE = 8
# Larger files for an object store are buffered on disk
_SPOOLED_BYTES = 8 * 2**20
# Errors of file systems that cannot sync a folder. They keep the names of a folder in order without it
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)


@dataclass(frozen=True)
class StoragePath:
    """A file or folder: a local path, or a URI of a file system that Arrow supports. It need not exist.

    A path in a URI is not decoded: it may contain spaces, brackets and percent signs. Methods that access the file
    system raise OSError if it fails, and PlaceError if it cannot be opened.

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
        """Return the path on a local disk, where a rename is atomic, or None. Raises PlaceError for `dbfs:/`."""
        path = local_path(self.uri)
        if _URI.match(path):
            return None
        if complaint := complaint_of(path):
            raise PlaceError(redact(complaint))
        return path

    @property
    def spark(self) -> str:
        """Return the path for all processes of Spark: an absolute path, or a URI. `~` is the user's home."""
        if self.local is not None:
            return os.path.abspath(os.path.expanduser(self.local))
        return re.sub("(?<=[^/:])/+$", "", re.sub("^s3n?://", "s3a://", self.uri))

    @property
    def arrow(self) -> tuple[fs.FileSystem, str]:
        """Return Arrow's file system, opened once per process, and the path in it."""
        if self.local is not None:
            return _LOCAL, self.local
        root, path = self.root
        try:
            system, above = object_stores.open_arrow(root)
        except (TypeError, ValueError) as error:
            if isinstance(error, PlaceError):
                raise
            # Arrow's messages about an address contain the address with its key
            reason = "" if isinstance(error, pa.ArrowInvalid) else f" ({error})"
            text = f"{self.uri} cannot be opened{reason}. Check the address and storage.options"
            raise PlaceError(redact(text)) from error
        return system, f"{above.rstrip('/')}/{path}".rstrip("/") or "/"

    @property
    def options(self) -> dict[str, str]:
        """Return the options of an object store for deltalake and LanceDB, from the settings `storage.*`."""
        if not self.has_conditions:
            return {}
        config = object_stores.store_config(self.root[0])
        return {name: str(value) for name, value in config.items()} | {"allow_http": "true"}

    @property
    def has_conditions(self) -> bool:
        """Return True for an object store: it has conditional writes and no folders."""
        return self.local is None and self.root[0].scheme in STORES

    def entry(self) -> FileInfo:
        """Return the current state of the path."""
        system, path = self.arrow
        found = _entry(self, system.get_file_info(path))
        return found._replace(kind="folder") if self._is_marker(found) else found

    def _is_marker(self, found: FileInfo) -> bool:
        """Return True if an object is the marker of a folder: empty, with other objects below its name."""
        return found.kind == "file" and not found.size and self.has_conditions and bool(self.entries())

    def entries(self, *, recursive: bool = False, missing_ok: bool = True) -> list[FileInfo]:
        """Return the entries of a folder, in no order. A missing folder is empty, or raises FileNotFoundError."""
        system, path = self.arrow
        found = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=missing_ok))
        return [_entry(self / info.path[len(path) :].lstrip("/"), info) for info in found]

    def open(self) -> Any:
        """Return a seekable file of bytes. Raises FileNotFoundError if it does not exist."""
        if self.has_conditions:
            return object_stores.open_object(*self.root)
        system, path = self.arrow
        return system.open_input_file(path)

    def read_bytes(self) -> bytes:
        """Return all bytes of a file. Raises FileNotFoundError if it does not exist."""
        if self.has_conditions:
            # One request, while Arrow would first request the size
            found = self.read_written()
            if found is None:
                raise FileNotFoundError(self.uri)
            return found.content
        with self.open() as file:
            return bytes(file.read())

    def write_bytes(self, content: bytes) -> None:
        """Write a whole file, and create its folder on a local disk. Other file systems create it automatically."""
        self._make_parent()
        self.write_whole(lambda file: file.write(content))

    def write_whole(self, write: Callable[[IO[bytes]], Any]) -> None:
        """Write a file atomically: readers see the old or the new content, and it survives a power cut after return.

        A local file is written under another name, synced and renamed, and its folder is synced. An object store
        receives one put. If a write fails, its partial file is removed, which frees its disk space. Pipes and devices
        are written directly.
        """
        if self.local is not None:
            if os.path.exists(self.local) and not os.path.isfile(self.local):
                # A rename must not replace it
                with open(self.local, "wb") as taking:
                    write(taking)
                return
            # In the same folder, because a rename is only atomic within one file system. Hidden, so that listings skip
            # it. The target of a link is written
            _write_aside(os.path.realpath(self.local), ".tmp", write, os.replace)
            return
        # Buffered first: if `write` failed during a put, the object would be incomplete
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
        """Write a whole file if it does not exist. Return True if it was written.

        If two processes write at once, only one succeeds on local disks and object stores. On HDFS the later write
        stays, because it has no such put here.
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
            # A unique name, so that two processes do not write to the same temporary file
            _write_aside(self.local, f".{uuid4().hex[:8]}.tmp", lambda file: file.write(content), _link)
        except FileExistsError:
            return False
        return True

    def put_if(self, content: bytes, tag: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Write an object if it does not exist (no tag) or is unchanged since `tag`. Return its new tag, or None."""
        return object_stores.put_if(*self.root, content, tag)

    def read_written(self) -> object_stores.WrittenObject | None:
        """Return an object with its tag, or None if it does not exist."""
        return object_stores.read(*self.root)

    def make_folder(self) -> None:
        """Create a folder and its parents. On a local disk their names survive a power cut.

        The parent of each new folder is synced. Otherwise a synced file could be lost together with the name of its
        folder.
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
        """Rename a file within its file system. Raises FileNotFoundError if it does not exist."""
        if self.has_conditions:
            # Object stores have no rename. Arrow emulates it differently for each, and not for Azure accounts without
            # folders
            self.copy(target)
            self.remove()
            return
        system, path = self.arrow
        system.move(path, target.arrow[1])

    def remove(self) -> None:
        """Remove a file, or a folder with its contents. A missing path was removed by another run."""
        system, path = self.arrow
        found = _entry(self, system.get_file_info(path))
        kind = found.kind
        if kind == "file" and self.has_conditions:
            # Arrow would create an empty object in place of the folder
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
                # Some stores refuse to remove the marker of a folder and its contents in one request
                if not self.has_conditions or isinstance(error, FileNotFoundError | PermissionError):
                    raise
                act(path)

    def copy(self, target: StoragePath) -> None:
        """Copy a file, or the contents of a folder, to a path that may be in another file system."""
        if self.entry().kind != "folder":
            self.copy_whole(target)
            return
        found = self.entries(recursive=True)
        # In a store, markers of folders are objects too
        folders = {str(entry.place).rpartition("/")[0] for entry in found}
        for entry in found:
            if entry.kind == "file" and str(entry.place) not in folders:
                entry.place.copy_whole(StoragePath(f"{target}{str(entry.place).removeprefix(str(self))}"))

    def copy_whole(self, target: StoragePath) -> None:
        """Copy a file to a path that may be in another file system. Readers see the whole file or nothing."""
        target._make_parent()
        with self.open() as source:
            target.write_whole(lambda file: shutil.copyfileobj(source, file, _SPOOLED_BYTES))

    @property
    def root(self) -> tuple[object_stores.Root, str]:
        """Return the root that a process opens once, and the path in it."""
        scheme, authority, path = cast(re.Match[str], _URI.fullmatch(self.uri)).groups()
        return object_stores.root_of(scheme, authority), path.rstrip("/")

    def _make_parent(self) -> None:
        if self.local is not None:
            StoragePath(os.path.dirname(self.local) or ".").make_folder()


class FileInfo(NamedTuple):
    """A path with its kind, its size in bytes, and its time in seconds since 1970, 0 if unknown."""

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
    """Return a path without its `file:` scheme. Percent signs are decoded if the plain path does not exist."""
    if not path.startswith("file:/"):
        return path
    bare = re.sub("^file:(//(localhost)?)?(?=/)", "", path)
    return bare if os.path.exists(bare) else unquote(bare)


def sync_folder(path: str) -> None:
    """Sync the names in a local folder, so that they survive a power cut. Some file systems do not support it.

    Raises OSError if the disk fails. A file system without this operation is ignored.
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
    """Return the rows of a local JSON Lines file, none if it does not exist."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _entry(place: StoragePath, info: fs.FileInfo) -> FileInfo:
    return FileInfo(place, _KINDS.get(info.type, "other"), info.size or 0, (info.mtime_ns or 0) / 1e9)


def _write_aside(
    path: str, suffix: str, write: Callable[[IO[bytes]], Any], publish: Callable[[str, str], None]
) -> None:
    """Write a local file under another name in its folder, then rename it with `publish`."""
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}{suffix}")
    try:
        with naming(path), open(aside, "wb") as file:
            write(file)
            file.flush()
            # Sync the content before the rename. After a power cut, the file could otherwise be empty
            os.fsync(file.fileno())
        publish(aside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    sync_folder(folder or ".")


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Add the path to an OSError without a file name, such as the error of a full disk."""
    try:
        yield
    except OSError as error:
        # An error without a number has a message, which a file name would replace
        if error.errno is not None:
            error.filename = error.filename or path
        raise


def _link(aside: str, path: str) -> None:
    """Rename a file to a name that does not exist. Raises FileExistsError if it does."""
    try:
        os.link(aside, path)
        os.unlink(aside)
    except OSError as error:
        if os.path.lexists(path):
            raise FileExistsError(path) from error
        # Some network disks have no hard links
        os.rename(aside, path)


def absolute(path: str) -> str:
    """Return an absolute path or URI that Spark, Arrow and all processes can use. `~` is the home of the user."""
    return StoragePath(path).spark
