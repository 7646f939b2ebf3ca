"""The object stores of a process: Arrow reads, and obstore writes whole objects, optionally with a condition."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, partial
from threading import Thread
from time import monotonic, sleep
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from untold.udfs.redaction import redact
from untold.udfs.schemes import ALIASES, PREFIX, STORES, PlaceError, complaint_of, variables

# A store that does not respond within this time counts as unreachable
ANSWER_SECONDS = 30.0
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
ATTEMPTS = 5
_PAUSE = 0.2
PROBE = "_untold-probe"
# Codes of 403 responses that reject the key itself and not its permissions
_UNKNOWN_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed")
# obstore's error for an interrupted response body. It retries other requests than listings
_BROKEN_OFF = "response body error"
_METADATA = "http://169.254.169.254/"
# The names of Arrow's options in obstore
_NAMES: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "access_key": "access_key_id",
        "secret_key": "secret_access_key",
        "session_token": "session_token",
        "role_arn": "role_arn",
        "session_name": "role_session_name",
        "region": "region",
        "anonymous": "skip_signature",
        "force_virtual_addressing": "virtual_hosted_style_request",
    },
    "gs": {"access_token": "bearer_token", "anonymous": "skip_signature"},
    "abfss": {
        "account_key": "account_key",
        "sas_token": "sas_key",
        "client_id": "client_id",
        "client_secret": "client_secret",
        "tenant_id": "tenant_id",
    },
}

Given = TypeVar("Given")


class OverdueError(Exception):
    """An action that takes longer than its time."""


class Root(NamedTuple):
    """A key for cached file systems: a scheme, its bucket, container or host, and the variables with its options."""

    scheme: str
    authority: str
    variables: tuple[tuple[str, str], ...]


class WrittenObject(NamedTuple):
    """The content of an object, and a tag of this version."""

    content: bytes
    tag: Mapping[str, Any]


def root_of(scheme: str, authority: str) -> Root:
    """Return the root of a URI. Raises PlaceError for an unknown scheme."""
    complaint = complaint_of(f"{scheme}://{authority}")
    if complaint is not None:
        raise PlaceError(redact(complaint))
    return Root(ALIASES.get(scheme, scheme), authority, tuple(variables().items()))


@lru_cache
def open_arrow(root: Root) -> tuple[fs.FileSystem, str]:
    """Return Arrow's file system of a root, and the root's path in it. Raises PlaceError if it does not respond."""
    if root.scheme not in STORES:
        return _open_in_time(f"{root.scheme}://{root.authority or '/'}")
    # Report an option that Arrow does not know before the store is called
    _make_arrow(root, _arrow_options(root))
    _check_answers(root)
    return _make_arrow(root, _located(root))


def _open_in_time(uri: str) -> tuple[fs.FileSystem, str]:
    """Return Arrow's file system of HDFS after its first response.

    Without a response, Arrow retries for minutes and ignores signals.
    """

    def open_uri() -> tuple[fs.FileSystem, str]:
        system, path = fs.FileSystem.from_uri(uri)
        system.get_file_info(path)
        return system, str(path)

    try:
        return run_within(ANSWER_SECONDS, open_uri)
    except OverdueError:
        raise _late(uri, "the network, the address and Hadoop's configuration") from None


@lru_cache
def open_store(root: Root) -> Any:
    """Return obstore's store of a root. Raises PlaceError if it does not respond or is not an object store."""
    if root.scheme not in STORES:
        raise PlaceError(f"{root.scheme}://{root.authority}: no object store")
    _check_answers(root)
    return _make_store(root, 2 * ATTEMPTS)


def open_object(root: Root, path: str) -> Any:
    """Return a file object with the bytes of an object. Raises FileNotFoundError if the object does not exist.

    Arrow is not used, because it fails if a busy store answers a read with an error that is longer than the requested
    range.
    """
    return pa.PythonFile(_ObjectFile(open_store(root), path), mode="r")


class _ObjectFile(io.RawIOBase):
    """An object as a file. Each read is one request."""

    def __init__(self, store: Any, path: str) -> None:
        self._store, self._path = store, path
        self._size = int(_asked(lambda: store.head(path))["size"])
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if self._at >= end:
            return b""
        found = _asked(lambda: bytes(self._store.get_range(self._path, start=self._at, end=end)))
        self._at += len(found)
        return found


def put(root: Root, path: str, content: bytes | IO[bytes]) -> None:
    """Write a whole object: in one request, or in parts that are removed if one part fails. Raises OSError."""
    with _os_errors():
        open_store(root).put(path, content)


def read(root: Root, path: str) -> WrittenObject | None:
    """Return an object with its tag, or None if it does not exist. Raises OSError."""

    def get() -> WrittenObject:
        found = open_store(root).get(path)
        return WrittenObject(bytes(found.bytes()), _tag(found.meta))

    try:
        return _asked(get)
    except FileNotFoundError:
        return None


def put_if(root: Root, path: str, content: bytes, tag: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Write an object if it does not exist (no tag) or is unchanged since `tag`. Return its new tag, or None.

    Raises OSError if the store is not writable.
    """
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    mode: Any = "create" if tag is None else dict(tag)
    try:
        with _os_errors(AlreadyExistsError, PreconditionError):
            return _tag(open_store(root).put(path, content, mode=mode))
    except (AlreadyExistsError, PreconditionError):
        # The response to a first attempt may be lost. A retry then finds the object of that attempt
        found = read(root, path)
        return found.tag if found is not None and found.content == content else None


def remove(root: Root, path: str) -> None:
    """Remove an object if it exists. Raises OSError."""
    with suppress(FileNotFoundError), _os_errors():
        open_store(root).delete(path)


def _asked(act: Callable[[], Given]) -> Given:
    """Return the result of a request, and retry it: obstore does not retry if a response body breaks off twice."""
    end = monotonic() + ANSWER_SECONDS
    while True:
        try:
            with _os_errors():
                return act()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if monotonic() > end:
                raise
            sleep(_PAUSE)


@contextmanager
def _os_errors(*kept: type[BaseException]) -> Iterator[None]:
    """Convert the exceptions of obstore to OSError, as for other files. Do not convert exceptions in `kept`."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except kept:
        raise
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(_first_line(error)) from error
    except BaseError as error:
        raise OSError(_first_line(error)) from error


def _tag(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: meta[name] for name in ("e_tag", "version") if meta[name]}


def _make_arrow(root: Root, options: Mapping[str, Any]) -> tuple[fs.FileSystem, str]:
    """Return Arrow's file system of an object store, which retries for half a minute, and the root's path in it."""
    user, _, host = root.authority.rpartition("@")
    if root.scheme == "abfss":
        return fs.AzureFileSystem(host.partition(".")[0], **options), user
    if root.scheme == "gs":
        return fs.GcsFileSystem(retry_time_limit=timedelta(seconds=ANSWER_SECONDS), **options), host
    limits = {"connect_timeout": CONNECT_SECONDS, "request_timeout": READ_SECONDS}
    retries = fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS)
    return fs.S3FileSystem(retry_strategy=retries, **{**limits, **options}), host


def _located(root: Root) -> dict[str, Any]:
    """Return the options of Arrow's file system, with the region of an AWS bucket if none is set."""
    options = _arrow_options(root)
    if root.scheme == "s3" and not options.keys() & {"region", "endpoint_override"}:
        options["region"] = _region_of(root.authority.rpartition("@")[2])
    return options


_region_of = lru_cache(fs.resolve_s3_region)


def _arrow_options(root: Root) -> dict[str, Any]:
    """Return the options of Arrow's file system: `storage.options` overrides the other settings."""
    # Imported here because commands that read no remote file do not need it
    import yaml

    given = {name.removeprefix(PREFIX).lower(): yaml.safe_load(text) for name, text in root.variables}
    plain = (given.get("options") or {}).get(root.scheme) or {}
    options: dict[str, Any] = {"anonymous": True} if given.get("anonymous") and root.scheme != "abfss" else {}
    if root.scheme == "s3":
        options |= _s3_options(root.authority, given)
    for name, value in plain.items():
        options[name.removesuffix("_env")] = _secret(value) if name.endswith("_env") else value
    return options


def _s3_options(authority: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return Arrow's options of S3 from the settings and from the environment variables of AWS's tools."""
    user = authority.rpartition("@")[0]
    options: dict[str, Any] = {}
    endpoint = given.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        options |= {"endpoint_override": urlsplit(endpoint).netloc, "scheme": urlsplit(endpoint).scheme}
    region = given.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region or endpoint:
        options["region"] = region or "us-east-1"
    if given.get("path_style") is False:
        options["force_virtual_addressing"] = True
    if user:
        options["access_key"], _, options["secret_key"] = map(unquote, user.partition(":"))
    return options


def store_config(root: Root) -> dict[str, Any]:
    """Return the options of a store, with the names of obstore and other users of its library."""
    options = _located(root)
    config = {_NAMES[root.scheme][name]: value for name, value in options.items() if name in _NAMES[root.scheme]}
    if "endpoint_override" in options:
        name = "base_url" if root.scheme == "gs" else "endpoint"
        config[name] = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
    if authority := options.get("blob_storage_authority"):
        account = root.authority.rpartition("@")[2].partition(".")[0]
        host = f"{account}{authority}" if authority.startswith(".") else f"{authority}/{account}"
        config["endpoint"] = f"{options.get('blob_storage_scheme', 'https')}://{host}"
    return config


def _make_store(root: Root, retries: int) -> Any:
    """Return obstore's store of a root, with Arrow's options."""
    from obstore.store import AzureStore, GCSStore, S3Store

    config = store_config(root)
    limits = {"timeout": f"{READ_SECONDS:.0f}s", "connect_timeout": f"{CONNECT_SECONDS:.0f}s", "allow_http": True}
    patience = {"max_retries": retries, "retry_timeout": timedelta(seconds=ANSWER_SECONDS)}
    both: dict[str, Any] = {"client_options": limits, "retry_config": patience}
    user, _, host = root.authority.rpartition("@")
    if root.scheme == "abfss":
        return AzureStore(user, account_name=host.partition(".")[0], **both, **config)
    if root.scheme == "gs":
        return GCSStore(host, **both, **config)
    return S3Store(host, **both, **config)


def _check_answers(root: Root) -> None:
    """Raise PlaceError if a store does not respond in time or has no such bucket. Lists an empty folder.

    The listing runs in a separate thread, so that signals are handled: Arrow retries for minutes without handling them.
    """
    where = f"{root.scheme}://{root.authority.rpartition('@')[2]}"
    try:
        run_within(ANSWER_SECONDS, partial(_list_nothing, root))
    except PlaceError:
        raise
    except OverdueError:
        raise _late(where, "the network, the credentials, and storage.endpoint") from None
    except Exception as problem:
        if "<Code>NoSuchBucket</Code>" in str(problem):
            text = f"{where}: the bucket does not exist. Check the address and storage.endpoint"
            raise PlaceError(redact(text)) from problem
        if not _may_not_list(problem):
            advice = "check the address, the credentials, and the settings storage.*"
            raise PlaceError(redact(f"{where} cannot be opened ({_first_line(problem)}); {advice}")) from problem


def _list_nothing(root: Root) -> None:
    """List an empty folder, and retry if the response breaks off."""
    from obstore.exceptions import BaseError

    for attempt in range(ATTEMPTS):
        try:
            _make_store(root, 2).list_with_delimiter(PROBE)
            return
        except BaseError as error:
            if _BROKEN_OFF not in str(error) or attempt == ATTEMPTS - 1:
                raise


def _may_not_list(problem: BaseException) -> bool:
    """Return True if the credentials are valid but may not list the whole store. They may still list a folder."""
    # obstore has a separate exception for 403, but not for listings
    text = str(problem)
    return "403 Forbidden" in text and not any(sign in text for sign in (*_UNKNOWN_KEYS, _METADATA))


def _late(where: str, what: str) -> PlaceError:
    return PlaceError(redact(f"{where} did not answer within {ANSWER_SECONDS:.0f} seconds. Check {what}"))


def run_within(seconds: float, act: Callable[[], Given]) -> Given:
    """Return the result of an action. Raises its exception, or OverdueError after this time.

    It runs in a thread that neither blocks signals nor keeps the process alive.
    """
    done: Future[Given] = Future()

    def run() -> None:
        try:
            done.set_result(act())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    if not wait([done], seconds).done:
        raise OverdueError
    return done.result()


def _first_line(error: BaseException) -> str:
    """Return the first line of an error. Messages of Arrow are hidden, because they contain addresses with keys."""
    if isinstance(error, pa.ArrowInvalid):
        return type(error).__name__
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # The address at which clouds provide credentials to their machines. obstore tries it last
    return "no credentials were found" if _METADATA in line else line


def _secret(variable: str) -> str:
    if variable not in os.environ:
        raise PlaceError(f"storage.options: the variable {variable} is not set in the environment of this process")
    return os.environ[variable]
