"""The answering process beside a Spark driver: started when the first stage needs it, fed one job a stage."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from untold.jobs.inference.backends.job import Job, JobOutcome, job_to_json
from untold.jobs.run.error_messages import check_address, check_socket_folder, check_writable
from untold.jobs.run.outcome import Interrupts
from untold.jobs.settings.model import RaySettings
from untold.udfs.errors import UserError
from untold.udfs.llm.keys import Parameters, SchemaSupport
from untold.udfs.llm.usage import Usage
from untold.udfs.node_report import NodeReport
from untold.udfs.python_path import python_environment

LOOK_SECONDS = 0.2
# The grace of the last requests (3 s), the last write and the end of Ray take seconds; a disk that hangs, for ever.
END_SECONDS = 30.0
# It tells its progress twice a second; its longest silence is the start of an actor, or the waiting for a lost one.
SILENT_SECONDS = 900.0


class ActorProcessError(UserError):
    """The answering process ended or broke. The message says why."""


class ActorProcess:
    """Runs `untold.jobs.inference.backends.actor_driver` in a process group of its own, so that Ctrl-C reaches this
    process only.

    It is `ready` once its Ray is. Jobs go in and events come out as JSON, one a line; what the process and its Ray say
    otherwise goes to a log in a folder of its own, which is removed with it and in which nothing lies that could be
    imported.
    """

    def __init__(self, ray: RaySettings, interrupts: Interrupts) -> None:
        if ray.address:
            check_address(ray.address)
        else:
            temporary = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
            check_socket_folder(temporary)
            check_writable(temporary, "Ray's folder", "make room, or set RAY_TMPDIR to another")
        self.interrupts = interrupts
        self.ready = False
        # Whether another job can follow: the last one ended as it should
        self.usable = True
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(prefix="untold-")
        self._log = open(os.path.join(self._folder.name, "answer.log"), "w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "untold.jobs.inference.backends.actor_driver", ray.model_dump_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=self._folder.name,
            start_new_session=True,
            env=python_environment(),
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id, which is that of its process group too."""
        return self._process.pid

    def answer(
        self,
        job: Job,
        show: Callable[[Mapping[str, Any]], None],
        lost_lock: Callable[[], bool],
    ) -> JobOutcome:
        """Run a job and return its outcome; `show` receives progress. An interrupt ends the job early and in order.

        `lost_lock` returns True if another run took the folder over. Raises ActorProcessError if the process ends,
        breaks or falls silent, or if the lock was lost.
        """
        self.usable = False
        self._send(json.dumps(job_to_json(job)))
        told = False

        def look() -> None:
            nonlocal told
            if not told and (self.interrupts.requested or lost_lock()):
                told = True
                # A line, not a signal: the process ends this job in order and writes what was answered
                self._send("stop")

        while True:
            event = self._next_event(look)
            if event["event"] == "progress":
                show(event)
            elif event["event"] == "done":
                if lost_lock():
                    raise ActorProcessError(f"another run took over {job.directory} because this one lost its lock")
                self.usable = not told
                show(event)
                named, usage = tuple(event["models"]), Usage.of(event["usage"])
                finding = SchemaSupport(**event["finding"]) if event["finding"] else None
                parameters = Parameters.of(event["parameters"]) if event["parameters"] else None
                return JobOutcome(event["reason"], event["error"], usage, named, event["lost"], finding, parameters)

    def visit_nodes(self, folders: Mapping[str, str], nonce: str) -> list[NodeReport]:
        """What the nodes of its Ray say of the folders. Raises ActorProcessError where the process ends or breaks."""
        self.usable = False
        self._send(json.dumps({"folders": dict(folders), "nonce": nonce}))
        with self.interrupts.waiting():
            while (event := self._next_event())["event"] != "visited":
                continue
        self.usable = True
        reports: list[NodeReport] = event["reports"]
        return reports

    def _next_event(self, look: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """The next thing that the process tells; `look` is called while it says nothing, and before it is heard."""
        heard_at = monotonic()
        while True:
            look()
            try:
                event = self._events.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if monotonic() - heard_at >= SILENT_SECONDS:
                    raise ActorProcessError(self._give_up()) from None
                continue
            if event is None or event["event"] == "broken":
                raise ActorProcessError(self._explain(event))
            return event

    def leave(self) -> None:
        """Tells the process that nothing more comes; it ends by itself."""
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def close(self) -> None:
        """Ends the process and its Ray, and waits for that."""
        try:
            self.leave()
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def _give_up(self) -> str:
        """Ends a process that says nothing any more."""
        self._process.kill()
        minutes = f"{SILENT_SECONDS / 60:g} minutes"
        return f"the answering process {self.pid} said nothing for {minutes} and was ended; see how its machine is"

    def _send(self, line: str) -> None:
        """Writes a line to the process. A broken pipe is no error here: why it ended is told where its events end."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def _read(self) -> None:
        """Puts the events in the queue, and None when they end. Lines that are no JSON are Ray's, which prints here."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.ready = True
                self._events.put(json.loads(line))
        self._events.put(None)

    def _explain(self, event: Mapping[str, Any] | None) -> str:
        """Why the process broke: its own word, else its exit code and the last line of its log."""
        if event is not None:
            return f"the answering process failed: {event['error']}"
        self._process.wait()
        self._log.flush()
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if line.strip()]
        last = lines[-1] if lines else "no message"
        return f"the answering process ended with code {self._process.returncode}: {last}"


_begun: list[tuple[RaySettings, ActorProcess]] = []


def begin_process(ray: RaySettings) -> None:
    """Starts an answering process beside what comes next; the first start that needs one of these settings takes it.

    Its Ray takes some seconds, as Spark and the imports of a command do. One that nobody takes ends with this process.
    """
    _begun.append((ray, ActorProcess(ray, Interrupts())))


def _take_begun(ray: RaySettings, interrupts: Interrupts) -> ActorProcess | None:
    """The process that was begun with these settings, if there is one."""
    for begun in _begun:
        if begun[0] == ray:
            _begun.remove(begun)
            begun[1].interrupts = interrupts
            return begun[1]
    return None


class ProcessWhenNeeded:
    """The answering process of one start of a run, begun when it is first needed or before."""

    def __init__(self, ray: RaySettings, interrupts: Interrupts) -> None:
        self._ray, self.interrupts = ray, interrupts
        self._process: ActorProcess | None = None

    def open(self) -> ActorProcess:
        """The process, the same one every time."""
        if self._process is None:
            self._process = _take_begun(self._ray, self.interrupts) or ActorProcess(self._ray, self.interrupts)
        return self._process

    def leave(self) -> None:
        """Tells the process, if there is one, that nothing more comes."""
        if self._process is not None:
            self._process.leave()

    def close(self) -> None:
        """Ends the process, if there is one, and waits for that."""
        if self._process is not None:
            self._process.close()


class KeptProcess(ProcessWhenNeeded):
    """An answering process for one start after the other; `end` ends it. One that broke is replaced by the next."""

    def serve(self, interrupts: Interrupts) -> None:
        """Takes up the next start, whose interrupts these are."""
        self.interrupts = interrupts
        if self._process is not None:
            self._process.interrupts = interrupts

    def leave(self) -> None:
        """The next start has more for it."""

    def close(self) -> None:
        """Ends a process that no other start can use."""
        if self._process is not None and not self._process.usable:
            self.end()

    def end(self) -> None:
        """Ends the process, if there is one, and waits for that."""
        super().close()
        self._process = None
