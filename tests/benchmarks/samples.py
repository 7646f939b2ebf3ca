"""The input of the benchmarks, and the stage that they ask: one short request a sample, each of them distinct."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jobs.asking.prompts import bind_stage
from jobs.settings.loading import load_settings
from udfs.llm.keys import Stage

STAGE = "evaluate_coverage"
PROMPTS = Path(__file__).resolve().parents[1] / "fakes" / "prompts"
SETTINGS = ("llm.model=fake-model", "summarise_contexts=false", f"prompts_dir={PROMPTS}")


def write_samples(path: Path, count: int, first: int = 0) -> Path:
    """Writes so many samples as JSON Lines, numbered from `first`; equal numbers are equal samples."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(first, first + count):
            file.write(json.dumps(_sample(number)) + "\n")
    return path


def read_variables(path: Path) -> list[dict[str, Any]]:
    """The variables of the stage's request for each sample of a file of `write_samples`."""
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [{name: row[name] for name in ("query", "contexts", "response")} for row in rows]


def bound_stage(base_url: str, name: str = STAGE) -> Stage:
    """A stage as the whole job binds it by `SETTINGS`."""
    overrides = [*SETTINGS, f"llm.base_url={base_url}"]
    resolved = load_settings(None, overrides, None, {}, asks=False, local_installed=lambda: False)
    return bind_stage(name, resolved.settings)


def _sample(number: int) -> dict[str, Any]:
    return {
        "query": f"What of {number}?",
        "response": f"Fact A{number}.",
        "contexts": [f"Fact A{number}. Fact B{number}."],
        "system": f"system{number % 2}",
    }
