"""The actor process next to a Spark driver. It starts with the first stage and receives one job per stage."""

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
# The last requests (3 s), the last write and the end of Ray take seconds. A disk can hang forever.
END_SECONDS = 30.0
# Progress comes twice a second. The longest pauses are the start of an actor and the wait for a lost one.
SILENT_SECONDS = 900.0


class ActorProcessError(UserError):
    """The actor process ended or failed. The message has the reason."""


class ActorProcess:
    """A process of `untold.jobs.inference.backends.actor_driver` in its own process group, which Ctrl-C does not reach.

    It is `ready` after the start of its Ray. Jobs and events are JSON, one per line. Other output of the process and of
    its Ray is written to a log in a temporary folder. The folder is also the working directory of the process.
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
        # True if the last job ended normally, so that another can follow
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
        """Return its process id, which is also the id of its process group."""
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
                # A line instead of a signal, so that the process ends the job in order and writes its completions
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
        """Return the reports of the Ray nodes on the folders. Raises ActorProcessError if the process ends or fails."""
        self.usable = False
        self._send(json.dumps({"folders": dict(folders), "nonce": nonce}))
        with self.interrupts.waiting():
            while (event := self._next_event())["event"] != "visited":
                continue
        self.usable = True
        reports: list[NodeReport] = event["reports"]
        return reports

    def _next_event(self, look: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Return the next event of the process. `look` is called while it waits and before each event."""
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
        """Close the input of the process, so that the process ends."""
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def close(self) -> None:
        """End the process and its Ray, and wait for the end."""
        try:
            self.leave()
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def _give_up(self) -> str:
        """Kill a process that sends no events."""
        self._process.kill()
        minutes = f"{SILENT_SECONDS / 60:g} minutes"
        return f"the answering process {self.pid} reported nothing for {minutes} and was ended. Check its machine"

    def _send(self, line: str) -> None:
        """Write a line to the process. A broken pipe is ignored, because the end of the events reports it."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def _read(self) -> None:
        """Put the events into the queue, and None at their end. Other lines are output of Ray."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.ready = True
                self._events.put(json.loads(line))
        self._events.put(None)

    def _explain(self, event: Mapping[str, Any] | None) -> str:
        """Return the reason of a failed process: its own message, or its exit code and the last line of its log."""
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
    """Start an actor process in advance. The first start that needs one with these settings uses it.

    Its Ray needs some seconds, like Spark and the imports of a command. An unused process ends with this process.
    """
    _begun.append((ray, ActorProcess(ray, Interrupts())))


def _take_begun(ray: RaySettings, interrupts: Interrupts) -> ActorProcess | None:
    """Return the process that was started in advance with these settings, if there is one."""
    for begun in _begun:
        if begun[0] == ray:
            _begun.remove(begun)
            begun[1].interrupts = interrupts
            return begun[1]
    return None


class ProcessWhenNeeded:
    """The actor process of one start of a run, which is started when it is needed or in advance.

    Several starts can use a `kept` process, until `end` is called. The next start replaces a failed process.
    """

    def __init__(self, ray: RaySettings, interrupts: Interrupts, *, kept: bool = False) -> None:
        self._ray, self.interrupts, self._kept = ray, interrupts, kept
        self._process: ActorProcess | None = None

    def open(self) -> ActorProcess:
        """Return the process. It is always the same, and it is started if there is none."""
        if self._process is None:
            self._process = _take_begun(self._ray, self.interrupts) or ActorProcess(self._ray, self.interrupts)
        return self._process

    def serve(self, interrupts: Interrupts) -> None:
        """Use the interrupts of the next start."""
        self.interrupts = interrupts
        if self._process is not None:
            self._process.interrupts = interrupts

    def leave(self) -> None:
        """Close the input of the process, if there is one. The input of a kept process stays open."""
        if self._process is not None and not self._kept:
            self._process.leave()

    def close(self) -> None:
        """End the process, if there is one that no other start can use."""
        if self._process is not None and not (self._kept and self._process.usable):
            self.end()

    def end(self) -> None:
        """End the process, if there is one, and wait for the end."""
        if self._process is not None:
            self._process.close()
        self._process = None
