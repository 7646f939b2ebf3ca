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
from untold.udfs.llm.actors import AnsweringActor, Assignment, limiters_of
from untold.udfs.llm.calls import Progress, Work
from untold.udfs.llm.limiter_actor import NAMESPACE, open_limiters
from untold.udfs.llm.store_files import check_probe
from untold.udfs.llm.usage import NOTHING_USED, Usage
from untold.udfs.node_report import NodeReport, silent, visit
from untold.udfs.schemes import variables

# An actor says how far it is in milliseconds, unless its node is gone or starved
ANSWER_SECONDS = 60.0
# An actor starts in seconds; on a machine that is short of memory or processors in minutes.
START_SECONDS = 300.0
# How often to look whether somebody ends the waiting for the last answers
LOOK_SECONDS = 0.2
# The limiter frees places in milliseconds; one that is lost too must not hold up what the living ask
LEAVE_SECONDS = 5.0
# Waits before an actor that could not write its first file tries again, doubled each time
FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0
# Of what tells askings of one stage of one start apart: there are a few of them
CALL_ID_CHARACTERS = 8
# Memory and nodes fail by chance; so many deaths within an hour, but for those that one request caused, have a reason
# that stays
DEATHS_IN_AN_HOUR = 50
HOUR_SECONDS = 3600.0
# Ray tells of a death over many lines, the reason last
CAUSE_CHARACTERS = 600
# What a call of an actor raises whose process or node is gone, or which does not answer in time
GONE = (RayActorError, ActorUnavailableError, ActorUnschedulableError, GetTimeoutError)


class ActorFailures:
    """The deaths of the last hour; a long run may see many in all."""

    def __init__(self) -> None:
        self._died_at: deque[float] = deque()

    def count(self, cause: Exception) -> None:
        """Counts a death. Raises RuntimeError, with the cause of the last, where too many came within an hour."""
        now = monotonic()
        self._died_at.append(now)
        while self._died_at[0] <= now - HOUR_SECONDS:
            self._died_at.popleft()
        if (deaths := len(self._died_at)) > DEATHS_IN_AN_HOUR:
            reason = " ".join(str(cause).split())[-CAUSE_CHARACTERS:]
            raise RuntimeError(f"{deaths} answering actors died within an hour, the last because: {reason}")

    def discount(self, count: int) -> None:
        """Takes back the last few, which one request caused."""
        for _ in range(min(count, len(self._died_at))):
            self._died_at.pop()


@dataclass(frozen=True)
class Actor:
    """A living answering actor, and the id of its node."""

    handle: Any
    node: str


@dataclass
class RunningActor:
    """An actor at work: what it was told, the units that it has not finished, and what it said last of itself.

    `probe` is the file that it wrote at its start; `feeds` are calls that hand it units and go on.
    """

    assignment: Assignment
    actor: Actor
    probe: str = ""
    units: list[str] = field(default_factory=list)
    feeds: list[Any] = field(default_factory=list)
    progress: Progress | None = None

    @property
    def handle(self) -> Any:
        """What calls its actor."""
        return self.actor.handle

    @property
    def name(self) -> str:
        """The name under which it asks and writes; no two workers ever have one."""
        return self.assignment.work.name


def start_first_actor() -> Actor:
    """An actor for the first job, which loads what it needs while the job is made."""
    node = next_node(alive_nodes(), [])
    actor = Actor(new_actor(node), node)
    actor.handle.load.remote()
    return actor


class ActorPool:
    """The workers of a job.

    `idle` are actors of earlier stages, which are taken before new ones are made, and to which living ones go back.
    `wait_on` says, while one cannot write, whether to wait on.
    """

    def __init__(self, job: Job, idle: list[Actor], wait_on: Callable[[], bool]) -> None:
        self.workers: list[RunningActor] = []
        self.models: set[str] = set()
        self.deaths = ActorFailures()
        self._job, self._idle, self._wait_on = job, idle, wait_on
        # A stage may be asked several times in a start: files of one asking would replace another's, and the limiter
        # would take its reports for old ones
        self._call_id = f"{job.run}-{job.stage.name}-{uuid4().hex[:CALL_ID_CHARACTERS]}"
        self._used_by_dead = NOTHING_USED
        self._spent_by_dead: dict[str, Usage] = {}
        self._started = 0

    @property
    def states(self) -> list[Progress]:
        """What the workers said last of themselves; one that has not spoken yet has none."""
        return [worker.progress for worker in self.workers if worker.progress]

    @property
    def usage(self) -> Usage:
        """What all of them used so far, the dead included, with its cost."""
        total = sum((state.usage for state in self.states), self._used_by_dead)
        return self._job.settings.priced(total)

    def start(self, count: int, node: str | None = None) -> list[RunningActor]:
        """Actors that are ready to ask: idle ones of an earlier stage, else new ones, started side by side.

        node: where a new one is to be, if that lives.
        """
        workers = []
        check_gpus(self._job.settings.gpus * (len(self.workers) + count))
        for _ in range(count):
            workers.append(RunningActor(self._assign(), self._take_idle() or self._new_actor(node)))
            self.workers.append(workers[-1])
        starting = [worker.handle.start.remote(worker.assignment) for worker in workers]
        for worker, probe in zip(workers, starting, strict=True):
            self._await_start(worker, probe)
        return workers

    def _take_idle(self) -> Actor | None:
        """An actor of an earlier stage; one that shares its node makes way for one on a node that joined meanwhile."""
        if not self._idle or self._job.settings.gpus:
            return None
        actor = self._idle.pop()
        taken = self._nodes_taken()
        if actor.node not in taken or set(alive_nodes()) <= {*taken}:
            return actor
        ray.kill(actor.handle, no_restart=True)
        return None

    def _nodes_taken(self) -> list[str]:
        """The nodes of all living actors, one each."""
        return [actor.node for actor in (*self._idle, *(worker.actor for worker in self.workers))]

    def _new_actor(self, wanted: str | None = None, failed: Collection[str] = ()) -> Actor:
        """An actor on the node, else where the fewest are. Nodes are looked up anew: some died, others were added."""
        if gpus := self._job.settings.gpus:
            return Actor(new_actor_with(gpus), "")  # wherever one is
        nodes = alive_nodes()
        if wanted not in nodes:
            wanted = next_node(nodes, self._nodes_taken(), failed)
        return Actor(new_actor(wanted), wanted)

    def _assign(self) -> Assignment:
        """What the next worker is told. Its name is new: files and leases of one that died are not its own."""
        job = self._job
        self._started += 1
        name = f"{self._call_id}-{self._started}"
        work = Work(name, self._call_id, job.run, job.call, job.settings, dict(self._spent_by_dead))
        return Assignment(work, limiters_of(job.settings, job.stage.model), job.directory)

    def _await_start(self, worker: RunningActor, probe: Any) -> None:
        """Waits until the worker is ready: with another actor where its own dies or does not start.

        Where it cannot write, it tries again for as long as an endpoint may be away.
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
            probe = worker.handle.start.remote(worker.assignment)

    def check(self) -> list[RunningActor]:
        """Asks every worker how far it is. Returns those that died or do not answer, to be replaced.

        Raises what went wrong in a call that handed out a unit, and RuntimeError where too many died.
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
        """Counts a death, and ends what may be left of the actor before anything that it had is handed out anew."""
        self.deaths.count(cause)
        if worker.progress is not None:
            self._used_by_dead += worker.progress.usage
        ray.kill(worker.handle, no_restart=True)
        self._note_spending(worker)
        # From here on it counts among the dead alone
        worker.progress = None

    def _note_spending(self, worker: RunningActor) -> None:
        """Remembers what a dead actor spent, and has the living remember it: a limiter that dies too forgets it."""
        spent = NOTHING_USED
        with suppress(RayError, GetTimeoutError):
            # By its leases, so never too little; the last one holds the budget
            left = open_limiters().leave.remote(worker.assignment.limiters, worker.name)
            spent = ray.get(left, timeout=LEAVE_SECONDS)[-1]
        seen = self._job.settings.priced(worker.progress.usage if worker.progress else NOTHING_USED)
        self._spent_by_dead[worker.name] = max(spent, seen, key=lambda known: known.calls)
        for other in self.workers:
            if other is not worker:
                # Before a new actor is started: until that takes its first lease, only these can tell
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
        """Takes back the deaths that one request caused; it is recorded as one that failed."""
        self.deaths.discount(deaths)
        self._used_by_dead += Usage(done=1, failed=1)

    def stop(self, grace: Callable[[], float]) -> None:
        """Stops every worker; its actor is kept for the next stage, or ended where it does not answer.

        grace: seconds that what is in flight gets to arrive; it may become less meanwhile.
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
                    # Its GPU is for others, and the next stage needs none
                    ray.kill(worker.handle, no_restart=True)
                else:
                    self._idle.append(worker.actor)


def alive_nodes() -> list[str]:
    """The ids of the nodes that take actors: the living ones with cores, which a head that is to run nothing lacks."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [node["NodeID"] for node in alive if node["Resources"].get("CPU")] or [node["NodeID"] for node in alive]


def next_node(nodes: Sequence[str], taken: Sequence[str], failed: Collection[str] = ()) -> str:
    """The node with the fewest actors. One that failed to start an actor comes last: Ray may not know that it died.

    taken: the nodes of the living actors, one each.

    >>> next_node(["a", "b", "c"], ["a", "b", "a"]), next_node(["a", "b"], ["a"], failed=["b"])
    ('c', 'a')
    """
    counts, failures = Counter(taken), Counter(failed)
    return min(nodes, key=lambda node: (failures[node], counts[node], node))


def new_actor(node: str) -> Any:
    """An actor on a node that takes no core from anybody. Ray never restarts it: it would ask its unit again unseen."""
    # Ray 2.60 places an actor without resources anywhere by SPREAD and by a soft affinity (three of three on one node)
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"num_cpus": 0, "scheduling_strategy": place, "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(AnsweringActor).options(**options).remote()


def check_gpus(wanted: float) -> None:
    """Raises RuntimeError where Ray has fewer GPUs: it would wait for a machine that brings them."""
    if wanted and (known := ray.cluster_resources().get("GPU", 0.0)) < wanted:
        raise RuntimeError(
            f"the classifier wants {wanted:g} GPUs and Ray has {known:g}: lower nli.classifier_gpus or llm.actors, or "
            "set nli.classifier_gpus to null"
        )


def new_actor_with(gpus: float) -> Any:
    """An actor that holds so many GPUs, on whichever node has them."""
    return ray.remote(AnsweringActor).options(num_cpus=0, num_gpus=gpus, max_restarts=0, max_task_retries=0).remote()


def _unfinished(feeds: list[Any]) -> list[Any]:
    """The calls that go on; raises what went wrong in one that ended."""
    if not feeds:
        return feeds
    ended, going_on = ray.wait(feeds, num_returns=len(feeds), timeout=0)
    ray.get(ended)
    return list(going_on)


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
                f"cannot connect to the Ray cluster at {address} ({_reason(error)}). Check that it runs and that "
                "ray.address is its address. Set RAY_AUTH_MODE=token if the cluster requires a token"
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


def visit_nodes(folders: Mapping[str, str], nonce: str) -> list[NodeReport]:
    """What every node that is alive says of the folders (`untold.udfs.node_report`); any of them may get an actor."""
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
