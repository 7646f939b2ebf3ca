"""Which settings ask for batches where there can be none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from untold.jobs.settings.layers import Assignment, problem_line
from untold.jobs.settings.model import Settings


def undeliverable(settings: Settings, origins: Mapping[str, Assignment], *, embedded: bool) -> Iterator[str]:
    """A line for each setting that asks an endpoint for batches which cannot take them; `origins` of the settings."""
    llm = settings.llm
    reasons = {
        "the embedded model": embedded,
        "several llm.endpoints": bool(llm.endpoints),
        f"llm.answering={llm.answering}": llm.answering != "process",
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    asking = {f"stages.{name}.delivery": stage.delivery for name, stage in settings.stages.items()}
    for key, delivery in {"llm.delivery": llm.delivery, **asking}.items():
        if reason and delivery == "batch":
            where = origins[key if key in origins else "stages"].where
            yield problem_line(key, delivery, where, f"must be calls with {reason}")
