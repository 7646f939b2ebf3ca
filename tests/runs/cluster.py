"""A small Ray cluster that many runs of a test session share: a process that starts it and ends with its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

_ROOT = Path(__file__).resolve().parents[2]
END_SECONDS = 30.0
# The cluster listens on loopback alone, as every local Ray of ours does; whoever joins it must look for it there, where
# Ray would turn 127.0.0.1 into the address that other machines reach. A Ray that a process starts for itself makes it
# and its children ask others for a token: the shared one has none, and takes drivers that ask for one for dead.
SHARED_RAY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}


class SharedCluster:
    """Holds the process behind a cluster; `address` is what `ray.address` names, of its job server where it has one."""

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
        """Ends the limiters of runs that are over: each is a process that would stay for ten minutes."""
        assert self._process.stdin is not None
        self._process.stdin.write("forget\n")
        self._process.stdin.flush()
        self._read()

    def close(self) -> None:
        """Ends the cluster and everything in it."""
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
            raise RuntimeError("the Ray cluster of the tests ended; its error stands above")
        return line


def main() -> None:
    """Starts a cluster, prints its address, and ends all named actors for each line of standard input."""
    # Here, so that tests which ask nothing do not wait for Ray to be imported
    import ray
    from ray.cluster_utils import Cluster

    from untold.jobs.inference.backends.actor_pool import OBJECT_STORE_BYTES, _keep_to_loopback, start_ray
    from untold.udfs.llm.limiter_actor import NAMESPACE

    if sys.argv[1:]:
        _keep_to_loopback()
        # By default all agents of a machine have one port, and the first of them gets it
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
