"""Start, watch, replace and stop actors, on the user's Ray cluster or on a local one."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import ray
from ray._private import parameter, ray_constants
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from untold.jobs.inference.backends.job import Job
from untold.jobs.run.error_messages import check_address
from untold.udfs.llm.actors import AnsweringActor, limiters_of
from untold.udfs.llm.calls import Progress, Work
from untold.udfs.llm.limiter_actor import NAMESPACE, open_limiters
from untold.udfs.llm.store_files import check_probe
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.node_report import NodeReport, silent, visit
from untold.udfs.schemes import variables

# An actor reports its progress in milliseconds, unless its node is gone or overloaded
ANSWER_SECONDS = 60.0
# An actor starts in seconds, or in minutes on a machine with little memory or few processors
START_SECONDS = 300.0
# Seconds between two checks for a shorter grace period
LOOK_SECONDS = 0.2
# The limiter frees places in milliseconds. A lost limiter must not delay the living actors
LEAVE_SECONDS = 5.0
# Seconds before an actor that could not write its first file tries again, doubled each time
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
# The characters that distinguish the few calls of one stage in one start
CALL_ID_CHARACTERS = 8
# Some actors die by chance. This number of deaths within an hour has a permanent reason. The deaths that one request
# caused do not count
DEATHS_IN_AN_HOUR = 50
HOUR_SECONDS = 3600.0
# The message of Ray about a death has many lines, and the reason is the last one
CAUSE_CHARACTERS = 600
# The errors of a call of an actor that is gone or does not respond in time
GONE = (RayActorError, ActorUnavailableError, ActorUnschedulableError, GetTimeoutError)


class ActorFailures:
    """The deaths of the last hour. A long run can have many in total."""

    def __init__(self) -> None:
        self._died_at: deque[float] = deque()

    def count(self, cause: Exception) -> None:
        """Count a death. Raises RuntimeError with the cause of the last one after too many deaths within an hour."""
        now = monotonic()
        self._died_at.append(now)
        while self._died_at[0] <= now - HOUR_SECONDS:
            self._died_at.popleft()
        if (deaths := len(self._died_at)) > DEATHS_IN_AN_HOUR:
            reason = " ".join(str(cause).split())[-CAUSE_CHARACTERS:]
            raise RuntimeError(f"{deaths} answering actors died within an hour, the last because: {reason}")

    def discount(self, count: int) -> None:
        """Remove the last deaths, which one request caused."""
        for _ in range(min(count, len(self._died_at))):
            self._died_at.pop()


@dataclass(frozen=True)
class Actor:
    """A living actor, and the id of its node."""

    handle: Any
    node: str


@dataclass
class RunningActor:
    """An actor with its work, its unfinished units and its last progress.

    `probe` is the path of the file that it wrote at its start. `feeds` are the unfinished calls that send it units.
    """

    work: Work
    actor: Actor
    probe: str = ""
    units: list[str] = field(default_factory=list)
    feeds: list[Any] = field(default_factory=list)
    progress: Progress | None = None

    @property
    def handle(self) -> Any:
        """Return the handle of the actor."""
        return self.actor.handle

    @property
    def name(self) -> str:
        """Return the name in leases and files. No two workers have the same name."""
        return self.work.name


def start_first_actor() -> Actor:
    """Start an actor for the first job. It loads its modules while the job is prepared."""
    node = next_node(alive_nodes(), [])
    actor = Actor(new_actor(node), node)
    actor.handle.load.remote()
    return actor


class ActorPool:
    """The workers of a job.

    `idle` are the actors of earlier stages. They are used before new actors start, and living actors return to them.
    `wait_on` returns True if the pool should wait for an actor that cannot write.
    """

    def __init__(self, job: Job, idle: list[Actor], wait_on: Callable[[], bool]) -> None:
        self.workers: list[RunningActor] = []
        self.models: set[str] = set()
        self.deaths = ActorFailures()
        self._job, self._idle, self._wait_on = job, idle, wait_on
        # A start can run a stage several times. With one name, later files would replace earlier files, and the limiter
        # would ignore later reports
        self._call_id = f"{job.run}-{job.stage.name}-{uuid4().hex[:CALL_ID_CHARACTERS]}"
        self._used_by_dead = NOTHING_USED
        self._spent_by_dead: dict[str, Usage] = {}
        self._started = 0

    @property
    def states(self) -> list[Progress]:
        """Return the last progress of the workers that have reported one."""
        return [worker.progress for worker in self.workers if worker.progress]

    @property
    def usage(self) -> Usage:
        """Return the usage of all workers, dead ones included, with its cost."""
        total = sum((state.usage for state in self.states), self._used_by_dead)
        return self._job.settings.priced(total)

    def start(self, count: int, node: str | None = None) -> list[RunningActor]:
        """Start workers in parallel and return them when they are ready. Idle actors are used first.

        `node` is the node for a new actor, if the node is alive.
        """
        workers = []
        check_gpus(self._job.settings.gpus * (len(self.workers) + count))
        for _ in range(count):
            workers.append(RunningActor(self._assign(), self._take_idle() or self._new_actor(node)))
            self.workers.append(workers[-1])
        starting = [worker.handle.start.remote(worker.work) for worker in workers]
        for worker, probe in zip(workers, starting, strict=True):
            self._await_start(worker, probe)
        return workers

    def _take_idle(self) -> Actor | None:
        """Return an actor of an earlier stage. An actor that shares its node ends if another node has none."""
        if not self._idle or self._job.settings.gpus:
            return None
        actor = self._idle.pop()
        taken = self._nodes_taken()
        if actor.node not in taken or set(alive_nodes()) <= {*taken}:
            return actor
        ray.kill(actor.handle, no_restart=True)
        return None

    def _nodes_taken(self) -> list[str]:
        """Return the node of each living actor."""
        return [actor.node for actor in (*self._idle, *(worker.actor for worker in self.workers))]

    def _new_actor(self, wanted: str | None = None, failed: Collection[str] = ()) -> Actor:
        """Start an actor on the wanted node, or else on the node with the fewest actors. Nodes can come and go."""
        if gpus := self._job.settings.gpus:
            return Actor(new_actor_with(gpus), "")  # on any node with a free GPU
        nodes = alive_nodes()
        if wanted not in nodes:
            wanted = next_node(nodes, self._nodes_taken(), failed)
        return Actor(new_actor(wanted), wanted)

    def _assign(self) -> Work:
        """Return the work of the next worker. Its new name separates it from the files of a dead one."""
        job = self._job
        self._started += 1
        name = f"{self._call_id}-{self._started}"
        return Work(name, self._call_id, job.run, job.call, job.settings, job.directory, dict(self._spent_by_dead))

    def _await_start(self, worker: RunningActor, probe: Any) -> None:
        """Wait until the worker is ready. An actor that dies or does not start is replaced.

        An actor that cannot write tries again for the permitted time of an outage.
        """
        began, wait = monotonic(), FIRST_WAIT
        failed: list[str] = []
        while True:
            try:
                worker.probe = ray.get(probe, timeout=START_SECONDS)
                return
            except GONE as error:
                self.deaths.count(error)
                ray.kill(worker.handle, no_restart=True)
                failed.append(worker.actor.node)
                worker.actor = self._new_actor(failed=failed)
            except OSError:
                if not self._wait_on() or monotonic() - began >= self._job.settings.outage:
                    raise
                sleep(wait)
                wait = min(LONGEST_WAIT, 2 * wait)
            probe = worker.handle.start.remote(worker.work)

    def check(self) -> list[RunningActor]:
        """Update the progress of every worker. Return the dead and the silent workers, which need a replacement.

        Raises the error of a failed call that sent a unit, and RuntimeError after too many deaths.
        """
        asked = {worker.handle.progress.remote(): worker for worker in self.workers}
        ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)
        dead = []
        for reference, worker in asked.items():
            try:
                worker.progress = ray.get(reference, timeout=0)
                worker.feeds = _unfinished(worker.feeds)
            except GONE as error:
                self._record_death(worker, error)
                dead.append(worker)
                continue
            worker.units = [unit for unit in worker.units if unit not in worker.progress.finished_units]
            self.models.update(worker.progress.models)
        return dead

    def _record_death(self, worker: RunningActor, cause: Exception) -> None:
        """Count a death, and kill the rest of the actor before its units go to another one."""
        self.deaths.count(cause)
        if worker.progress is not None:
            self._used_by_dead += worker.progress.usage
        ray.kill(worker.handle, no_restart=True)
        self._note_spending(worker)
        # The usage of the dead includes it from now on
        worker.progress = None

    def _note_spending(self, worker: RunningActor) -> None:
        """Record the usage of a dead actor here and in the living actors, because a restarted limiter forgets it."""
        spent = NOTHING_USED
        with suppress(RayError, GetTimeoutError):
            # By its leases, so it is never too small. The last one has the budget
            left = open_limiters().leave.remote(limiters_of(worker.work), worker.name)
            spent = ray.get(left, timeout=LEAVE_SECONDS)[-1]
        seen = self._job.settings.priced(worker.progress.usage if worker.progress else NOTHING_USED)
        self._spent_by_dead[worker.name] = max(spent, seen, key=lambda known: known.calls)
        for other in self.workers:
            if other is not worker:
                # Before a new actor starts. Until its first lease, only the others know this usage
                other.handle.remember.remote(self._spent_by_dead)

    def replace(self, worker: RunningActor) -> None:
        """Start another worker in the place of a dead worker, on its node if the node is alive."""
        place = self.workers.index(worker)
        self.workers.remove(worker)
        (new,) = self.start(1, worker.actor.node)
        check_probe(new.probe)
        self.workers.remove(new)
        self.workers.insert(place, new)

    def record_crash(self, deaths: int) -> None:
        """Remove the deaths that one request caused, and count the request as failed."""
        self.deaths.discount(deaths)
        self._used_by_dead += Usage(done=1, failed=1)

    def stop(self, grace: Callable[[], float]) -> None:
        """Stop every worker. Its actor stays for the next stage, or is killed if it does not respond.

        `grace` returns the seconds for requests in flight, which can become fewer during the wait.
        """
        given, began = grace(), monotonic()
        stopping = {worker.handle.stop.remote(given): worker for worker in self.workers}
        left = list(stopping)
        while left and monotonic() < began + given + ANSWER_SECONDS:
            _, left = ray.wait(left, num_returns=len(left), timeout=LOOK_SECONDS)
            if left and (less := grace()) < given:
                given, began = less, monotonic()
                for worker in self.workers:
                    worker.handle.shorten_deadline.remote(given)
        for reference, worker in stopping.items():
            try:
                worker.progress = ray.get(reference, timeout=0)
                self.models.update(worker.progress.models)
            except (RayError, RuntimeError, OSError, GetTimeoutError):
                ray.kill(worker.handle, no_restart=True)
            else:
                if self._job.settings.gpus:
                    # The GPU becomes free, and the next stage needs none
                    ray.kill(worker.handle, no_restart=True)
                else:
                    self._idle.append(worker.actor)


def alive_nodes() -> list[str]:
    """Return the ids of the living nodes with cores. A head without cores runs no actors."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [node["NodeID"] for node in alive if node["Resources"].get("CPU")] or [node["NodeID"] for node in alive]


def next_node(nodes: Sequence[str], taken: Sequence[str], failed: Collection[str] = ()) -> str:
    """Return the node with the fewest actors. Nodes that failed to start an actor are last, because they may be dead.

    `taken` has the node of each living actor.

    >>> next_node(["a", "b", "c"], ["a", "b", "a"]), next_node(["a", "b"], ["a"], failed=["b"])
    ('c', 'a')
    """
    counts, failures = Counter(taken), Counter(failed)
    return min(nodes, key=lambda node: (failures[node], counts[node], node))


def new_actor(node: str) -> Any:
    """Start an actor on a node, without a core of its own. Ray never restarts it, because it would repeat its unit."""
    # Ray 2.60 places an actor without resources anywhere by SPREAD and by a soft affinity (three of three on one node)
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"num_cpus": 0, "scheduling_strategy": place, "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(AnsweringActor).options(**options).remote()


def check_gpus(wanted: float) -> None:
    """Raise RuntimeError if Ray has fewer GPUs. Ray would wait for a machine with more."""
    if wanted and (known := ray.cluster_resources().get("GPU", 0.0)) < wanted:
        raise RuntimeError(
            f"the classifier wants {wanted:g} GPUs and Ray has {known:g}: lower nli.classifier_gpus or llm.actors, or "
            "set nli.classifier_gpus to null"
        )


def new_actor_with(gpus: float) -> Any:
    """Start an actor with this number of GPUs, on any node that has them."""
    return ray.remote(AnsweringActor).options(num_cpus=0, num_gpus=gpus, max_restarts=0, max_task_retries=0).remote()


def _unfinished(feeds: list[Any]) -> list[Any]:
    """Return the unfinished calls. Raises the error of a finished one."""
    if not feeds:
        return feeds
    ended, going_on = ray.wait(feeds, num_returns=len(feeds), timeout=0)
    ray.get(ended)
    return list(going_on)


# Rows are in files, so Ray's object store only has small messages. Its default size is 30 % of the memory
OBJECT_STORE_BYTES = 100 * 2**20
# A node of a busy cluster takes some seconds to start a process. The visit itself has a limit
VISIT_SECONDS = 60.0
STARTS = 3


def start_ray(address: str | None, runtime_env: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Connect to the Ray cluster at `address`, or start a local one that ends with this process.

    `runtime_env` is for the actors on that cluster. All actors are in one namespace, so all runs of a cluster share its
    limiters. Raises RuntimeError if the cluster cannot be reached, and UserError if a package for `ray://` is missing.
    Ray replaces the handlers of SIGTERM, so the caller sets them again.
    """
    # With Ray's niceness of 15, workers would get little time next to a busy Spark
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Keeps the visible devices for actors without a GPU, like later versions of Ray. Otherwise Ray prints a warning
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if address:
        check_address(address)
        try:
            # Other machines inherit no variables. A local Ray inherits the variables of this process
            given = {**runtime_env, "env_vars": {**runtime_env.get("env_vars", {}), **variables()}}
            ray.init(address=address, runtime_env=given, **common)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"cannot connect to the Ray cluster at {address} ({_reason(error)}). Check that it runs and that "
                "ray.address is its address. Set RAY_AUTH_MODE=token if the cluster requires a token"
            ) from error
        return
    _keep_to_loopback()
    local = {"address": "local", "num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    with _lean():
        _start(common | local)


def _start(given: Mapping[str, Any]) -> None:
    """Start a Ray, and repeat a failed start. Ray waits 30 seconds for its node, which can be too short."""
    for _ in range(STARTS - 1):
        try:
            ray.init(**given)
            return
        # Ray has no narrower error for a node that does not start
        except Exception:
            ray.shutdown()
    ray.init(**given)


@contextmanager
def _lean() -> Iterator[None]:
    """Start Ray without its autoscaler and its log reader, for which `ray.init` has no option.

    They are useless on one machine and take 2.5 s of processor time.
    """
    whole = parameter.RayParams
    parameter.RayParams = partial(whole, no_monitor=True, include_log_monitor=False)
    try:
        yield
    finally:
        parameter.RayParams = whole


def _keep_to_loopback() -> None:
    """Make the local Ray listen only on 127.0.0.1, with all its ports.

    Access to a port of Ray permits running code as its user. Ray 2.60 replaces a loopback `_node_ip_address` with an
    external address, and its servers then listen on every interface. Without clusters, Ray keeps the loopback address
    (`ray._private.services.get_node_ip_address`). The variable is for new processes. The constant is for this process,
    which read the variable when it imported ray.
    """
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _reason(error: Exception) -> str:
    """Return the type of an error, because its text can contain a token, or the text of a version mismatch."""
    text = " ".join(str(error).split())
    return text if text.startswith("Version mismatch") else type(error).__name__


def visit_nodes(folders: Mapping[str, str], nonce: str) -> list[NodeReport]:
    """Return the report of every living node about the folders (`untold.udfs.node_report`)."""
    visits = {}
    for node in ray.nodes():
        if node["Alive"]:
            machine, strategy = node["NodeManagerAddress"], NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(visit).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
            visits[task.remote(f"the Ray node {machine}", folders, {}, nonce)] = f"the Ray node {machine}"
    ray.wait(list(visits), num_returns=len(visits), timeout=VISIT_SECONDS)
    return [_report_of(reference, machine) for reference, machine in visits.items()]


def _report_of(reference: Any, machine: str) -> NodeReport:
    try:
        report: NodeReport = ray.get(reference, timeout=0)
        return report
    except GetTimeoutError:
        return silent(machine, f"no answer within {VISIT_SECONDS:g} s")
    except RayError as error:
        return silent(machine, str(error).strip().splitlines()[-1])
