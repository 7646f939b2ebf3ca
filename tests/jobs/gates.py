"""Write outputs of `untold score` with failed, partial and missing scores, for tests of gates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from untold.jobs.tables import TABLES


@dataclass(frozen=True)
class Scored:
    """A sample with its score, None if it failed or is undefined. The status decides the default of the bounds."""

    question: int
    score: float | None
    system: str | None = "a"
    status: str = "ok"
    low: float | None = None
    high: float | None = None
    kind: str = "x"
    metric: str = "qa"

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        if self.low is not None:
            return self.low, self.high
        return (0.0, 1.0) if self.status in ("failed", "budget") else (self.score, self.score)

    @property
    def sample_id(self) -> str:
        return f"{self.question}:{self.system}:{self.kind}"


def failed(question: int, **more: str) -> Scored:
    return Scored(question, None, status="failed", **more)


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the rows of tables in the same form as a run."""
    for name, rows in tables.items():
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(list(rows), TABLES[name]), folder / name / "part-0.parquet")


def write_run(folder: Path, rows: Iterable[Scored], *, query: str = "query {}", contexts: bool = True) -> str:
    """Write the tables `samples` and `scores` and the manifest. `query` is the text of a query by question."""
    rows = list(rows)
    samples = {
        one.sample_id: {
            "sample_id": one.sample_id,
            "query": query.format(one.question),
            "response": one.sample_id,
            "contexts": [{"id": "1", "text": f"context of {one.question}"}] if contexts else None,
            "system": one.system,
        }
        for one in rows
    }
    scores = [
        {
            "sample_id": one.sample_id,
            "metric": one.metric,
            "system": one.system,
            "score": one.score,
            "score_low": one.bounds[0],
            "score_high": one.bounds[1],
            "status": one.status,
            # A response without statements, in contexts with statements
            **({"covered": 0, "uncovered": 3} if one.status == "no_statements" else {}),
        }
        for one in rows
    ]
    write_tables(folder, {"samples": list(samples.values()), "scores": scores})
    identity = {"input": "i", "results": {}, "stages": {}}
    manifest = {"status": "finished", "metrics": sorted({one.metric for one in rows}), "identity": identity}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return str(folder)
