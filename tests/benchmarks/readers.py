"""Test the readers with random recombinations of model completions: no reader fails, and all have linear time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from tests.benchmarks.figures import Figure, Options
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable

FOLDER = Path(__file__).parents[1] / "udfs" / "completions"
COMBINATIONS = 100_000
MOST_PIECES = 12
# The maximum growth of the time per character for a completion with 16 times the length. Caches explain a factor of 4,
# but a quadratic reader has a factor of 16
FACTOR, ALLOWED = 16, 4.0
TIMED = 20
BETWEEN = (
    "\n",
    "\n",
    "\n\n",
    " ",
    "",
    "\n\nWait, ",
    "\nFinal answer:\n",
    "\n- ",
    "\n1. ",
    "<think>",
    "</think>\n",
    "```\n",
)

Variables = Mapping[str, Any]
Pool = tuple[Sequence[str], Sequence[Variables]]


def measure(options: Options) -> list[Figure]:
    """Measure failures over all stages, and the growth of time per character in long completions by stage."""
    broken, ratios = 0, {}
    for path in sorted(FOLDER.glob("*.jsonl")):
        pool, draw = _pool(path), random.Random(path.stem)
        read = partial(_breaks, path.stem)
        for _ in range(options.requests or COMBINATIONS):
            broken += read(_combined(pool[0], draw, draw.randint(1, MOST_PIECES)), draw.choice(pool[1]))
        ratios[path.stem] = _growth(read, pool, draw)
    growth = (Figure(f"{stage}: cost of a character", (one,), at_most=ALLOWED) for stage, one in ratios.items())
    return [Figure("readers that broke", (float(broken),), at_most=0), *growth]


def _pool(path: Path) -> Pool:
    """Return the lines and sentences of a stage's completions, and the variables of its prompts."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    pieces = {piece for row in rows for line in row["completion"].split("\n") for piece in (line, *line.split(". "))}
    return sorted(pieces), [row["variables"] for row in rows]


def _combined(pieces: Sequence[str], draw: random.Random, count: int) -> str:
    return "".join(draw.choice(pieces) + draw.choice(BETWEEN) for _ in range(count))


def _breaks(stage: str, completion: str, variables: Variables) -> bool:
    """Return True if the reader fails with an error other than `Unparsable`."""
    try:
        STAGES[stage].parse(completion, variables)
    except Unparsable:
        return False
    except Exception as error:
        print(f"{stage}: {type(error).__name__} at {completion!r}")
        return True
    return False


def _growth(read: Callable[[str, Variables], bool], pool: Pool, draw: random.Random) -> float:
    """Return seconds per character for completions of `FACTOR` times the length, over short ones of the same pieces."""
    variables = draw.choice(pool[1])
    long = [_combined(pool[0], draw, 4 * FACTOR * MOST_PIECES) for _ in range(TIMED)]
    step = [max(len(text) // FACTOR, 1) for text in long]
    short = [text[at : at + size] for text, size in zip(long, step, strict=True) for at in range(0, len(text), size)]
    return _seconds(read, long, variables) / _seconds(read, short, variables)


def _seconds(read: Callable[[str, Variables], bool], completions: Sequence[str], variables: Variables) -> float:
    began = process_time()
    for completion in completions:
        read(completion, variables)
    return (process_time() - began) / sum(map(len, completions))
