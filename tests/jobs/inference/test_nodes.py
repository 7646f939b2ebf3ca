"""Test actors on several Ray nodes with loopback addresses: the placement of actors and the death of a node."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster

from tests.fakes.model_server import ModelServer
from tests.jobs.inference.test_actor_driver import Event, job_of
from tests.runs.cluster import SHARED_RAY
from untold.jobs.inference.backends import actor_pool
from untold.jobs.inference.backends.actor_driver import ActorDriver
from untold.jobs.inference.backends.actor_pool import Actor, alive_nodes, new_actor, next_node
from untold.udfs.llm.store_files import read_ids

pytestmark = [pytest.mark.slow, pytest.mark.alone]
STORE_BYTES = 80 * 2**20


class Nodes:
    """A cluster with a head and two other nodes.

    They share one address, because other addresses are open to the network.
    """

    def __init__(self) -> None:
        self._cluster = Cluster()
        self._nodes = [self.add(include_dashboard=False), self.add(), self.add()]
        actor_pool.start_ray(self._cluster.address)

    def add(self, **options: Any) -> Any:
        return self._cluster.add_node(
            node_ip_address="127.0.0.1", num_cpus=1, object_store_memory=STORE_BYTES, **options
        )

    def kill_last(self) -> str:
        """Kill the raylet of the last node with SIGKILL and return the id of the node."""
        (raylet,) = self._nodes[-1].all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGKILL)
        return str(self._nodes[-1].node_id)

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with patch.dict(os.environ, SHARED_RAY):
        actor_pool._keep_to_loopback()
        nodes = Nodes()
        yield nodes
        nodes.close()


def node_of(actor: Any) -> str:
    found: str = ray.get(actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
    return found


def split_units(folder: Path, count: int) -> None:
    """Split the only unit into the given number of units."""
    (unit,) = folder.iterdir()
    rows = pq.read_table(unit)
    unit.unlink()
    size = -(-rows.num_rows // count)
    for number in range(count):
        pq.write_table(rows.slice(size * number, size), folder / f"{number}.parquet")


def test_a_node_that_joins_between_two_stages_gets_actors(nodes: Nodes, server: ModelServer, tmp_path: Path) -> None:
    idle: list[Actor] = []
    held = []
    for stage in ("first", "second"):
        (tmp_path / stage).mkdir()
        job = replace(job_of(server, tmp_path / stage, 60), actors=6)
        split_units(tmp_path / stage / "requests", 6)
        assert ActorDriver(job, lambda: None, lambda _: None, idle).run().reason is None
        held.append({actor.handle: actor.node for actor in idle})
        joined = nodes.add().node_id
    first, second = held
    assert sorted(Counter(first.values()).values()) == [2, 2, 2]
    assert sorted(Counter(second.values()).values()) == [1, 1, 2, 2]
    # The actors with enough room keep running with all of their loaded data
    assert len(first.keys() & second.keys()) == 5
    assert joined not in second.values()


def test_a_node_that_dies_is_replaced_by_one_that_joined(nodes: Nodes, server: ModelServer, tmp_path: Path) -> None:
    taken: list[str] = []
    for _ in range(6):
        taken.append(node_of(new_actor(next_node(alive_nodes(), taken))))
    assert Counter(taken) == dict.fromkeys(alive_nodes(), 2)

    server.configure(latency=0.2)
    job = replace(job_of(server, tmp_path, 600), actors=3)
    split_units(tmp_path / "requests", 6)
    dead: list[str] = []
    joined: list[str] = []

    def kill(event: Event) -> None:
        if not dead and event["usage"]["done"] >= 100:
            assert len({worker.actor.node for worker in driver.pool.workers}) == 3
            joined.append(nodes.add().node_id)
            dead.append(nodes.kill_last())

    driver = ActorDriver(job, lambda: None, kill)
    outcome = driver.run()
    assert (outcome.reason, outcome.lost, len(read_ids(str(tmp_path / "store"), job.run))) == (None, 0, 600)
    # The actor outlived its node and had enough time to write the requests in flight
    assert server.count() == 600
    held = {worker.actor.node for worker in driver.pool.workers}
    assert (len(held), held & {*dead}, held & {*joined}) == (3, set(), {*joined})
