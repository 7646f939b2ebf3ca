"""Store the support of endpoints for schemas and parameters, so that all runs on a store send the same requests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from untold.jobs.inference.stage.call_settings import section_of
from untold.jobs.settings.model import Settings, decoding_for
from untold.udfs.llm.keys import BROKEN, IGNORED, REFUSED, TAKEN, UNTRIED, Parameters, SchemaSupport, Stage
from untold.udfs.storage import StoragePath

NAME, PARAMETERS_NAME = "structured.json", "parameters.json"
_SAID = {
    TAKEN: "completions follow the JSON schema of their stage",
    IGNORED: "the endpoint ignores a schema, so completions are read as text",
    REFUSED: "the endpoint refuses a schema, so requests have none",
    UNTRIED: "requests have no schema, because this backend cannot test one",
    BROKEN: "completions with a schema have no content, so requests have none",
}


@dataclass(frozen=True)
class Findings:
    """The support of an endpoint for schemas and parameters by model, kept next to the store. None is no store."""

    settings: Settings
    store: str | None
    # The findings of this start, in case the store is not writable
    learned: dict[str, dict[str, Any]] = field(default_factory=dict)
    adapted: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Models whose last response refused a parameter. Their next request is the only one in flight
    _unsettled: set[str] = field(default_factory=set)

    def applied(self, stage: Stage) -> Stage:
        """Return the stage without unsupported schemas and parameters. Unknown endpoints get the schema."""
        known, parameters = self._known(stage), self.parameters(stage)
        stage = known.applied(stage) if known else stage
        return parameters.applied(stage) if parameters else stage

    def parameters(self, stage: Stage) -> Parameters | None:
        """Return the parameters that the endpoint and the model of a stage refuse, as far as they are known."""
        known = self._read(PARAMETERS_NAME, self.adapted).get(self._key(stage))
        return Parameters.of(known) if known and section_of(stage.api) == "llm" else None

    def described(self, stages: Iterable[Stage]) -> dict[str, list[str]]:
        """Return the known lines about parameters of these stages, by model."""
        known = {stage.model: self.parameters(stage) for stage in stages}
        return {model: found.lines() for model, found in known.items() if found and found.lines()}

    def adapt(self, stage: Stage, found: Parameters) -> list[str]:
        """Store the parameters that an endpoint refuses. Return one line per new parameter."""
        key, before = self._key(stage), self.parameters(stage) or Parameters()
        if found.changes(stage):
            self._unsettled.add(key)
        merged = before.merged(found)
        self.adapted[key] = asdict(merged)
        self._write(PARAMETERS_NAME, self.adapted)
        known = set(before.lines())
        return [f"{stage.model}: {line}" for line in merged.lines() if line not in known]

    def settle(self, stage: Stage) -> None:
        """Record that the endpoint refused no parameter of the stage."""
        self._unsettled.discard(self._key(stage))

    def can_drop_schema(self, stage: Stage) -> bool:
        """Return True if the stage drops its schema for endpoints without support."""
        return stage.structured is not None and decoding_for(self.settings, stage.name).structured == "auto"

    def needs_probe(self, stage: Stage) -> bool:
        """Return True if the first response of a stage must show the support for its schema."""
        known = self._known(stage)
        return self.can_drop_schema(stage) and (known is None or not known.settles(stage))

    def goes_alone(self, stage: Stage) -> bool:
        """Return True if the first request of the stage waits for its response, which may change all others."""
        return self.needs_probe(stage) or self._key(stage) in self._unsettled

    def record(self, stage: Stage, found: SchemaSupport) -> str:
        """Store the finding of a response of this stage, and return it as a line.

        A model that accepts schemas but refuses the schema of a rated stage accepts none with log-probabilities.
        """
        known = self._known(stage)
        if known and known.outcome == TAKEN and stage.rated:
            found = replace(known, weighs=found.outcome == IGNORED or bool(found.weighs))
        self.learned[self._key(stage)] = asdict(found)
        self._write(NAME, self.learned)
        return _describe(stage, found)

    def _known(self, stage: Stage) -> SchemaSupport | None:
        known = self._read(NAME, self.learned).get(self._key(stage)) if self.can_drop_schema(stage) else None
        return SchemaSupport(**known) if known else None

    def _write(self, name: str, learned: dict[str, dict[str, Any]]) -> None:
        """Write a file of findings next to the store."""
        if self.store is not None:
            content = json.dumps(self._read(name, learned), indent=2, sort_keys=True, ensure_ascii=False)
            # The write of completions reports a full disk
            with suppress(OSError):
                (StoragePath(self.store) / name).write_bytes(content.encode("utf-8") + b"\n")

    def _read(self, name: str, learned: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the findings of this start and of a file next to the store. An unreadable file has none."""
        try:
            kept = {} if self.store is None else dict(json.loads((StoragePath(self.store) / name).read_bytes()))
        except (OSError, ValueError, TypeError):
            kept = {}
        return kept | learned

    def _key(self, stage: Stage) -> str:
        """Return the addresses of the endpoints and the model. Addresses in settings have no password."""
        addresses = sorted(one.base_url or "embedded" for one in self.settings.llm.each)
        return " ".join((*addresses, stage.model_key or stage.model))


def _describe(stage: Stage, found: SchemaSupport) -> str:
    thinks = ", without reasoning as the model thinks" if found.thinks else ""
    weighs = ", except for ratings, which have no log-probabilities with it" if found.weighs is False else ""
    return f"{stage.model}: {_SAID[found.outcome]}{thinks}{weighs} (llm.structured)"
