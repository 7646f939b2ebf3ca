"""Which settings ask for batches where there can be none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from untold.jobs.settings.layers import Assignment, problem_line
from untold.jobs.settings.model import STAGE_NAMES, Settings, api_for, delivery_for


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
    batched = [name for name in STAGE_NAMES if delivery_for(settings, name) == "batch"]
    form, where = settings.batch.format, origins["batch.format"].where
    if batched and form == "files" and settings.batch.folder is None:
        yield problem_line("batch.format", form, where, "needs batch.folder, a folder of the requests and results")
    if form not in ("auto", "openai") and any(api_for(settings, name) != "chat" for name in batched):
        yield problem_line("batch.format", form, where, "has batches of chat completions alone: set llm.api to chat")
