"""Run Ray and Spark on two hosts and a driver, and kill some of their processes. Each host is a network namespace.

`python -m tests.runs.hosts FOLDER` runs in the namespace of the driver and leaves the outputs in the folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pyspark

from tests.fakes.model_server import ModelServer
from tests.fakes.world import worlds
from tests.fakes.world_icat import icat_worlds
from tests.runs.harness import WAIT_SECONDS, Run, write_samples

DRIVER, HOSTS = "untold-driver", ("untold-host-1", "untold-host-2")
PREFIX = "10.199.77."
ADDRESSES = {DRIVER: f"{PREFIX}1", HOSTS[0]: f"{PREFIX}2", HOSTS[1]: f"{PREFIX}3"}
RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
SPARK_HOME = Path(pyspark.__file__).parent


def ip(*words: str) -> None:
    """Run `ip`. Raise PermissionError if it is not permitted or not installed."""
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PermissionError(f"cannot create a network namespace: ip {' '.join(words)}") from error


@contextmanager
def hosts() -> Iterator[None]:
    """Create the namespaces of the hosts and a bridge between them in the namespace of the driver."""
    with ExitStack() as stack:
        for name in ADDRESSES:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", DRIVER, "link", "add", "bridge", "type", "bridge")
        for number, host in enumerate(HOSTS):
            ip("-n", DRIVER, "link", "add", f"to{number}", "type", "veth", "peer", "name", "net", "netns", host)
            ip("-n", DRIVER, "link", "set", f"to{number}", "master", "bridge", "up")
            ip("-n", host, "address", "add", f"{ADDRESSES[host]}/24", "dev", "net")
            ip("-n", host, "link", "set", "net", "up")
        ip("-n", DRIVER, "address", "add", f"{ADDRESSES[DRIVER]}/24", "dev", "bridge")
        ip("-n", DRIVER, "link", "set", "bridge", "up")
        yield


class Machines:
    """Ray and Spark on both hosts, started from the namespace of the driver. `settings` are the settings of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._commands: dict[tuple[str, str], Sequence[str]] = {}
        head = ADDRESSES[DRIVER]
        self.settings = {
            "spark.master": f"spark://{head}:7077",
            "spark.conf.spark.driver.host": head,
            "spark.conf.spark.executor.memory": "512m",
            "ray.address": f"{head}:6399",
            "llm.actors": 4,
        }
        self.environment = {**RAY, "SPARK_LOCAL_IP": head}

    def start(self) -> None:
        """Start all processes and wait until they are ready. Raise RuntimeError if a process does not start."""
        head = ADDRESSES[DRIVER]
        ray = ["--object-store-memory", str(80 * 2**20), "--block"]
        self._ray(DRIVER, "--head", "--port", "6399", "--num-cpus", "0", "--include-dashboard", "false", *ray)
        self._spark(DRIVER, "master.Master", "-h", head, "-p", "7077")
        self._wait(DRIVER)
        for host in HOSTS:
            self._ray(host, "--address", f"{head}:6399", "--num-cpus", "1", *ray)
            words = ["-c", "1", "-m", "1g", "-d", f"{self._folder}/{host}", f"spark://{head}:7077"]
            self._spark(host, "worker.Worker", "-h", ADDRESSES[host], *words)
        for host in HOSTS:
            self._wait(host)

    def _ray(self, host: str, *words: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--node-ip-address", ADDRESSES[host], *words]
        self._start(host, "ray", command)

    def _spark(self, host: str, name: str, *words: str) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words]
        self._start(host, "spark", [*command, "--webui-port", "0"])

    def _start(self, host: str, name: str, command: Sequence[str]) -> None:
        self._commands[host, name] = command
        place = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": ADDRESSES[host]}
        inside = [] if host == DRIVER else ["ip", "netns", "exec", host]
        with open(self._folder / f"{host}-{name}.log", "wb") as log:
            process = subprocess.Popen(
                [*inside, *command], env={**os.environ, **RAY, **place}, stdout=log, stderr=log, start_new_session=True
            )
        self._processes[host, name] = process

    def _wait(self, host: str) -> None:
        """Wait until Ray and Spark are ready. Raise RuntimeError if one of them does not start."""
        for name, said in {"ray": "Ray runtime started", "spark": "uccessfully registered|New state: ALIVE"}.items():
            log, process = self._folder / f"{host}-{name}.log", self._processes[host, name]
            end = monotonic() + WAIT_SECONDS
            while not re.search(said, text := log.read_text(errors="replace")):
                if monotonic() > end:
                    raise RuntimeError(f"{name} on {host} did not start: {text[-1000:]}")
                if process.poll() is not None:
                    # A node of Ray stops after 30 seconds, which is too short for a busy machine
                    self._start(host, name, self._commands[host, name])
                    process = self._processes[host, name]
                sleep(0.5)

    def kill(self, word: str, host: str | None = None) -> None:
        """Kill one process with this word in its command line with SIGKILL, on the host or on any host."""
        found = [one for one in self._below(host) if word in _words(one)]
        if not found:
            raise LookupError(f"there is no process {word} on {host or 'any host'}")
        found[0].kill()

    def _below(self, host: str | None) -> list[psutil.Process]:
        tops = [process.pid for (at, _), process in self._processes.items() if host in (None, at)]
        return [one for pid in tops if psutil.pid_exists(pid) for one in psutil.Process(pid).children(recursive=True)]

    def close(self) -> None:
        """Ends everything."""
        below = self._below(None)
        for process in self._processes.values():
            process.terminate()
        for one in below:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def _words(process: psutil.Process) -> str:
    """Return the command line of a process, or an empty text if the process has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def main(folder: Path) -> None:
    """Run nli and icat on the hosts and on one machine. Print the end of each run and the number of its calls."""
    machines = Machines(folder)
    one, two = HOSTS
    kills: dict[str, list[Callable[[], None]]] = {
        "nli": [lambda: machines.kill("ray::AnsweringActor", one), lambda: machines.kill("raylet/raylet", two)],
        "icat": [lambda: machines.kill("ray::LimiterActor"), lambda: machines.kill("CoarseGrainedExecutor", one)],
    }
    known = {"nli": worlds(16, "noisy"), "icat": icat_worlds(16, "noisy", ids=True)}
    try:
        machines.start()
        for metric, found in known.items():
            path = write_samples(folder / f"{metric}.jsonl", [sample for world in found for sample in world.samples(2)])
            for place in ("local", "hosts"):
                away = place == "hosts"
                latency = 0.1 if away else 0.0
                with ModelServer(answer="world_noisy", latency=latency, address=ADDRESSES[DRIVER]) as server:
                    url = server.base_url
                    settings: dict[str, Any] = {"embeddings.base_url": url, "embeddings.model": "embedder"}
                    settings |= machines.settings if away else {"spark.master": "local[2]"}
                    environment = machines.environment if away else {}
                    output = folder / f"{metric}-{place}"
                    run = Run(url, path, output, "--metric", metric, settings=settings, environment=environment)
                    try:
                        for number, kill in enumerate(kills[metric] if away else (), start=1):
                            run.wait_for(server, 100 * number)
                            kill()
                        ended = run.wait()
                    finally:
                        run.kill()
                    print(metric, place, ended.code, server.count(), flush=True)
                    if ended.code:
                        print(ended.err, flush=True)
    finally:
        machines.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main(Path(sys.argv[1]))
