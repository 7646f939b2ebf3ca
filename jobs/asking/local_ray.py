"""The Ray that answers: the user's cluster, or a small one on this machine that listens on loopback alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import ray
from ray._private import parameter, ray_constants
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from untold.jobs.run.refusals import check_address
from untold.udfs.llm.lending import NAMESPACE
from untold.udfs.reach import Visit, silent, visit
from untold.udfs.schemes import variables

# Rows travel through files, not through Ray: the store holds small messages, and Ray's default is 30 % of the memory
OBJECT_STORE_BYTES = 100 * 2**20
# A node of a crowded cluster takes some seconds to start a process; the visit itself is bounded
VISIT_SECONDS = 60.0
STARTS = 3


def start_ray(address: str | None, runtime_env: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Connects to the Ray cluster at `address`, or starts a small one on this machine that ends with this process.

    runtime_env: of the actors on that cluster.
    All actors of ours are in one namespace either way, so that runs which share a cluster share its limiters too.
    Raises RuntimeError where the cluster cannot be reached, UserError where what `ray://` needs is not installed. Ray
    takes over SIGTERM here: who has handlers sets them again.
    """
    # Ray gives its workers a niceness of 15, and beside a busy Spark they would hardly get a turn
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Leaves the visible devices as they are for actors without a GPU, as later versions of Ray do; unset, it warns
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if address:
        check_address(address)
        try:
            # On other machines nothing is inherited; what our own Ray starts has this process's variables
            given = {**runtime_env, "env_vars": {**runtime_env.get("env_vars", {}), **variables()}}
            ray.init(address=address, runtime_env=given, **common)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"no connection to the Ray cluster at {address} ({_reason(error)}): see that it runs, that "
                "ray.address names it, and set RAY_AUTH_MODE=token where the cluster asks for a token"
            ) from error
        return
    _keep_to_loopback()
    local = {"address": "local", "num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    with _lean():
        _start(common | local)


def _start(given: Mapping[str, Any]) -> None:
    """Starts a Ray, again where it fails: Ray gives its node 30 seconds, which a busy machine may take."""
    for _ in range(STARTS - 1):
        try:
            ray.init(**given)
            return
        # Ray raises nothing narrower where its node does not come up
        except Exception:
            ray.shutdown()
    ray.init(**given)


@contextmanager
def _lean() -> Iterator[None]:
    """Has Ray start neither an autoscaler nor a reader of logs, for which `ray.init` has no option.

    On one machine both do nothing, for 2.5 s of processor time.
    """
    whole = parameter.RayParams
    parameter.RayParams = partial(whole, no_monitor=True, include_log_monitor=False)
    try:
        yield
    finally:
        parameter.RayParams = whole


def _keep_to_loopback() -> None:
    """Makes the Ray of this machine listen on 127.0.0.1 alone, with every one of its ports.

    Whoever reaches a Ray's ports can run code as its user. Ray 2.60 turns a loopback `_node_ip_address` into the
    address that others reach, and all of its servers then listen on every interface; only where it takes itself for a
    Ray without a cluster does its own address stay loopback (`ray._private.services.get_node_ip_address`). The variable
    tells the processes that it starts, the constant this one, which has read the variable when it imported ray.
    """
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _reason(error: Exception) -> str:
    """The kind of an error, as what it says may hold a token; where versions differ, which ones."""
    text = " ".join(str(error).split())
    return text if text.startswith("Version mismatch") else type(error).__name__


def visit_nodes(folders: Mapping[str, str], nonce: str) -> list[Visit]:
    """What every node that is alive says of the folders (`untold.udfs.reach`); any of them may get an actor."""
    visits = {}
    for node in ray.nodes():
        if node["Alive"]:
            machine, strategy = node["NodeManagerAddress"], NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(visit).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
            visits[task.remote(f"the Ray node {machine}", folders, {}, nonce)] = f"the Ray node {machine}"
    ray.wait(list(visits), num_returns=len(visits), timeout=VISIT_SECONDS)
    return [_report_of(reference, machine) for reference, machine in visits.items()]


def _report_of(reference: Any, machine: str) -> Visit:
    try:
        report: Visit = ray.get(reference, timeout=0)
        return report
    except GetTimeoutError:
        return silent(machine, f"no answer within {VISIT_SECONDS:g} s")
    except RayError as error:
        return silent(machine, str(error).strip().splitlines()[-1])
