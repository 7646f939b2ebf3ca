"""The input of the benchmarks, and their stage: one short, distinct request per sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.settings.loading import load_settings
from untold.udfs.llm.keys import Stage

STAGE = "evaluate_coverage"
PROMPTS = Path(__file__).resolve().parents[1] / "fakes" / "prompts"
SETTINGS = ("llm.model=fake-model", "summarise_contexts=false", f"prompts_dir={PROMPTS}")


def write_samples(path: Path, count: int, first: int = 0) -> Path:
    """Write `count` samples as JSON Lines, numbered from `first`. Equal numbers have equal samples."""
    return write_rows(path, map(_sample, range(first, first + count)))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows as JSON Lines."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def read_variables(path: Path, stage: Stage) -> list[dict[str, Any]]:
    """Return the variables of a stage's request for each row of a file of JSON Lines."""
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [{name: row[name] for name in stage.variables} for row in rows]


def bound_stage(base_url: str, name: str = STAGE) -> Stage:
    """Return a stage as the whole job binds it with `SETTINGS`."""
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
