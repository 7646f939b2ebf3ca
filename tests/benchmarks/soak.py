"""A long run among faults: a hundredth of the requests meets each kind of fault once.

The run is killed three times, and its disk fills once. Nothing may be lost, wrong or paid twice beyond what a kill
leaves unwritten, and memory stays flat.

Every fault passes at the second attempt, so that at the end every request must have its answer.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import sleep, time
from typing import Any

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.watching import ACTOR, DRIVER, LIMITER, Look, Watch
from tests.fakes.answers import expected_e2e
from tests.fakes.arrivals import Arrival
from tests.fakes.model_server import ModelServer
from tests.fakes.rules import hash_of
from tests.runs.harness import PROMPTS, Run, read_table, write_samples

REQUESTS = 200_000
SHARE = 0.01
KILLS = 3
IN_FLIGHT = 64
FLUSH_SECONDS = 1.0
FULL_SECONDS = 5.0
TIMEOUT_SECONDS = 2
LONGEST_SECONDS = 4 * 3600.0
GOAL_FLAT = 1.1
FAULTS: Sequence[Any] = (
    {"status": 429, "headers": {"Retry-After": "0.5"}},
    {"status": 500},
    {"status": 503},
    {"status": 200, "error": {"code": 502}},
    {"finish": "abort"},
    "refuse",
    "hang",
    "html",
    "cut_json",
    "empty",
    "length",
    "garbage",
)
RULES = [{"when": {"share": SHARE, "attempt_below": 2}, "do": deed} for deed in FAULTS]
# The store's disk: what all completions take, and as much again for their merging
BYTES_A_REQUEST = 2_000


def measure(options: Options) -> list[Figure]:
    """One run of so many requests; what the server counted and the tables say, and memory by the last start's looks."""
    count = options.requests or REQUESTS
    with TemporaryDirectory(prefix="untold-soak-") as name, ModelServer(rules=RULES) as server:
        folder = Path(name)
        samples = [_sample(number) for number in range(count)]
        path = write_samples(folder / "samples.jsonl", samples)
        with _disk(folder / "disk", count * BYTES_A_REQUEST + 64 * 2**20) as disk:
            kills, looks = _run_through(server, path, folder / "out", disk, count)
            lost, wrong = _compare(folder / "out", samples)
            arrivals = server.arrivals()
    unwritten = sum(_arrived_before(arrivals, moment) for moment in kills) + KILLS * IN_FLIGHT
    return [
        Figure("requests", (float(count),)),
        Figure("calls that reached the server", (float(len(arrivals)),)),
        Figure("lost", (float(lost),), at_most=0),
        Figure("wrong", (float(wrong),), at_most=0),
        Figure("paid twice", (float(_paid_twice(arrivals)),), at_most=float(unwritten)),
        *(_flatness(role, looks) for role in (DRIVER, ACTOR, LIMITER)),
    ]


def _sample(number: int) -> dict[str, Any]:
    return {
        "sample_id": f"s{number:07d}",
        "query": f"What of {number}?",
        "response": f"Fact A{number}.",
        "contexts": [f"Fact A{number}. Fact B{number}."],
        "system": f"system{number % 2}",
    }


@contextmanager
def _disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of its own in memory, to be filled. Raises RuntimeError where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        raise RuntimeError("soak mounts a disk in memory, which this user may not: run it as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def _run_through(
    server: ModelServer, samples: Path, output: Path, disk: Path, count: int
) -> tuple[list[float], Sequence[Look]]:
    """Starts the run, kills it after each quarter of the requests, fills its disk in the last; moments of the kills."""
    settings = {
        "prompts_dir": PROMPTS,
        "summarise_contexts": "false",
        "store": disk / "store",
        "llm.timeout_seconds": TIMEOUT_SECONDS,
        "llm.max_in_flight": IN_FLIGHT,
        "llm.flush_seconds": FLUSH_SECONDS,
    }
    kills: list[float] = []
    for quarter in range(1, KILLS + 1):
        run = Run(server, samples, output, settings=settings)
        run.wait_for(server, count * quarter // (KILLS + 1), timeout=LONGEST_SECONDS)
        kills.append(time())
        run.kill()
    run = Run(server, samples, output, settings=settings)
    with Watch(run.pid) as watching:
        run.wait_for(server, count * (2 * KILLS + 1) // (2 * KILLS + 2), timeout=LONGEST_SECONDS)
        _fill(disk)
        ended = run.wait(LONGEST_SECONDS)
    if ended.code:
        raise RuntimeError(f"the run ended with code {ended.code}: {ended.err[-2000:]}")
    return kills, watching.looks


def _fill(disk: Path) -> None:
    """Leaves no room on the disk for a while."""
    filler = disk / "filler"
    try:
        with filler.open("wb") as file:
            while True:
                file.write(bytes(2**20))
    except OSError:
        sleep(FULL_SECONDS)
    filler.unlink()


def _compare(output: Path, samples: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """How many samples have no score, and how many have another than what their texts say."""
    scores = {row["sample_id"]: row for row in read_table(output, "scores")}
    lost = wrong = 0
    for sample in samples:
        row = scores.get(sample["sample_id"])
        if row is None or row["status"] != "ok":
            lost += 1
            continue
        covered, uncovered = expected_e2e(sample["query"], sample["contexts"], sample["response"])
        wrong += (row["covered"], row["uncovered"]) != (len(covered), len(uncovered))
    return lost, wrong


def _paid_twice(arrivals: Sequence[Arrival]) -> int:
    """Calls beyond one a request, and one more for each that met a fault."""
    keys = {int(arrival.key, 16) for arrival in arrivals}
    return len(arrivals) - sum(2 if _meets_fault(key) else 1 for key in keys)


def _meets_fault(key: int) -> bool:
    """Whether a share of the server's rules falls on a request, by the server's own hash."""
    content = key.to_bytes(8, "big")
    return any(hash_of(str(index).encode() + content) < SHARE * 2**64 for index in range(len(RULES)))


def _arrived_before(arrivals: Sequence[Arrival], moment: float) -> int:
    """How many calls came within two intervals of writing before a kill: answered, and perhaps not yet written."""
    return sum(moment - 2 * FLUSH_SECONDS <= arrival.at <= moment for arrival in arrivals)


def _flatness(role: str, looks: Sequence[Look]) -> Figure:
    """Memory of a role in the last tenth of its life in the last start, over that in the second tenth."""
    sizes = [look.bytes[role] for look in looks if look.bytes.get(role)]
    tenth = max(1, len(sizes) // 10)
    ratio = mean(sizes[-tenth:]) / mean(sizes[tenth : 2 * tenth] or sizes)
    return Figure(f"{role}: memory at the end, of that at the beginning", (ratio,), at_most=GOAL_FLAT)
