"""Start a standalone Spark with a master and two workers on loopback. One of the workers can have a different disk."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyspark

HOME = Path(pyspark.__file__).parent
START_SECONDS = 120.0


class Standalone:
    """`master` is the value of `spark.master`. The driver needs `settings` and `environment`.

    One of the workers cannot see the files in `hidden`, because another disk is mounted there. Raise PermissionError if
    this process is not permitted to mount a disk.
    """

    environment: Mapping[str, str] = {"SPARK_LOCAL_IP": "127.0.0.1"}

    def __init__(self, folder: Path, hidden: Path, port: int) -> None:
        self.master = f"spark://127.0.0.1:{port}"
        self.settings: dict[str, Any] = {
            "spark.master": self.master,
            "spark.conf.spark.driver.host": "127.0.0.1",
            "spark.conf.spark.executor.memory": "512m",
        }
        self._folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        blind = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {shlex.quote(str(hidden))} && exec "$@"', "sh"]
        if subprocess.run([*blind, "true"], capture_output=True, check=False).returncode:
            raise PermissionError("cannot create a mount namespace on this machine")
        self._start("master.Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", "0")
        worker = ["worker.Worker", "-h", "127.0.0.1", "-c", "1", "-m", "1g", "--webui-port", "0"]
        for number, before in enumerate(([], blind)):
            self._start(*worker, "-d", f"{folder}/worker-{number}", self.master, before=before)
        self._wait()

    def _start(self, name: str, *words: str, before: list[str] | None = None) -> None:
        with open(self._folder / f"{name}.log", "ab") as log:
            command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words]
            given = {"SPARK_HOME": str(HOME), "SPARK_DAEMON_MEMORY": "256m", **self.environment}
            self._processes.append(
                subprocess.Popen([*(before or []), *command], env={**os.environ, **given}, stdout=log, stderr=log)
            )

    def _wait(self) -> None:
        until = monotonic() + START_SECONDS
        while (self._folder / "master.Master.log").read_text().count("Registering worker") < 2:
            if monotonic() > until:
                self.close()
                raise TimeoutError(f"the workers did not start; see the logs in {self._folder}")
            sleep(0.5)

    def close(self) -> None:
        """Stop the master and the workers."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
