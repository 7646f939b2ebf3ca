"""Start a small Ray cluster that the runs of a test session share. Its process ends with the parent process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

_ROOT = Path(__file__).resolve().parents[2]
END_SECONDS = 30.0
# The cluster only listens on loopback, like every local Ray of the project. A process that joins must use this address,
# because Ray would replace 127.0.0.1 with the public address of the machine. A Ray that a process starts for its own
# use makes the process and its children expect a token. The shared cluster has no token, and such drivers look dead.
SHARED_RAY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}


class SharedCluster:
    """The process that runs a cluster.

    `address` is the value of `ray.address`, or the address of the job server if there is one.
    """

    def __init__(self, *, jobs: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.runs.cluster", *(["jobs"] if jobs else [])],
            cwd=_ROOT,
            env={**os.environ, "RAY_AUTH_MODE": SHARED_RAY["RAY_AUTH_MODE"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.address = self._read()

    def forget(self) -> None:
        """Stop the limiters of finished runs. Each of them is a process that would run for ten more minutes."""
        assert self._process.stdin is not None
        self._process.stdin.write("forget\n")
        self._process.stdin.flush()
        self._read()

    def close(self) -> None:
        """Stop the cluster and all of its processes."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("the Ray cluster of the tests stopped; see the error above")
        return line


def main() -> None:
    """Start a cluster, print its address, and stop all named actors for each line of standard input."""
    # Ray is imported here, so that other tests do not wait for the import
    import ray
    from ray.cluster_utils import Cluster

    from untold.jobs.inference.backends.actor_pool import OBJECT_STORE_BYTES, _keep_to_loopback, start_ray
    from untold.udfs.llm.limiter_actor import NAMESPACE

    if sys.argv[1:]:
        _keep_to_loopback()
        # By default, all agents of a machine use one port, and only the first agent gets it
        dashboard = {"include_dashboard": True, "dashboard_port": 0, "dashboard_agent_listen_port": 0}
        node = Cluster().add_node(
            node_ip_address="127.0.0.1", num_cpus=1, object_store_memory=OBJECT_STORE_BYTES, **dashboard
        )
        print(f"http://{node.webui_url}", flush=True)
    else:
        start_ray(None)
        print(ray.get_runtime_context().gcs_address, flush=True)
    for _ in sys.stdin:
        for name in ray.util.list_named_actors():
            with suppress(ValueError):
                ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
        print("forgotten", flush=True)


if __name__ == "__main__":
    main()
