"""Keep beside the store how endpoints take schemas and parameters, so that every run on it sends the same requests."""

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
    """What the endpoint of these settings makes of schemas, by model, as a store knows it; None for no store."""

    settings: Settings
    store: str | None
    # What this start has found out, which counts where the store cannot be written
    learned: dict[str, dict[str, Any]] = field(default_factory=dict)
    adapted: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Models whose last answer was a refusal of a parameter: their next request goes alone
    _unsettled: set[str] = field(default_factory=set)

    def applied(self, stage: Stage) -> Stage:
        """The stage as it is asked by what is known; one that nothing is known of is asked with its schema."""
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
        """Keep the parameters that an endpoint refuses; return one line for each that is new."""
        key, before = self._key(stage), self.parameters(stage) or Parameters()
        if found.changes(stage):
            self._unsettled.add(key)
        merged = before.merged(found)
        self.adapted[key] = asdict(merged)
        self._write(PARAMETERS_NAME, self.adapted)
        known = set(before.lines())
        return [f"{stage.model}: {line}" for line in merged.lines() if line not in known]

    def settle(self, stage: Stage) -> None:
        """Note that requests of the stage were sent without a refusal of a parameter."""
        self._unsettled.discard(self._key(stage))

    def can_drop_schema(self, stage: Stage) -> bool:
        """Whether the stage's schema goes where the endpoint cannot take it."""
        return stage.structured is not None and decoding_for(self.settings, stage.name).structured == "auto"

    def needs_probe(self, stage: Stage) -> bool:
        """Whether the first answer of a stage is to say what the endpoint makes of its schema."""
        known = self._known(stage)
        return self.can_drop_schema(stage) and (known is None or not known.settles(stage))

    def goes_alone(self, stage: Stage) -> bool:
        """Return True if the first request of the stage is sent alone, as its answer may change all others."""
        return self.needs_probe(stage) or self._key(stage) in self._unsettled

    def record(self, stage: Stage, found: SchemaSupport) -> str:
        """Keeps what an answer of this stage said; gives a line that says it.

        A model that took schemas and refuses that of a rated stage takes none beside log-probabilities.
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
        """Write a file of findings beside the store."""
        if self.store is not None:
            content = json.dumps(self._read(name, learned), indent=2, sort_keys=True, ensure_ascii=False)
            # A disk that is full says so where answers are written
            with suppress(OSError):
                (StoragePath(self.store) / name).write_bytes(content.encode("utf-8") + b"\n")

    def _read(self, name: str, learned: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the findings of a file beside the store and of this start; a file that cannot be read has none."""
        try:
            kept = {} if self.store is None else dict(json.loads((StoragePath(self.store) / name).read_bytes()))
        except (OSError, ValueError, TypeError):
            kept = {}
        return kept | learned

    def _key(self, stage: Stage) -> str:
        """Endpoints and model; settings take no address with a password."""
        addresses = sorted(one.base_url or "embedded" for one in self.settings.llm.each)
        return " ".join((*addresses, stage.model_key or stage.model))


def _describe(stage: Stage, found: SchemaSupport) -> str:
    thinks = ", without reasoning as the model thinks" if found.thinks else ""
    weighs = ", except for ratings, which have no log-probabilities with it" if found.weighs is False else ""
    return f"{stage.model}: {_SAID[found.outcome]}{thinks}{weighs} (llm.structured)"
