"""What endpoints made of schemas, kept beside the store, so that other starts and runs on it ask alike."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from untold.jobs.settings.model import Settings, decoding_for
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.structure import BROKEN, IGNORED, REFUSED, TAKEN, UNTRIED, Finding
from untold.udfs.storage import Place

NAME = "structured.json"
_SAID = {
    TAKEN: "answers have the JSON schema of their stage",
    IGNORED: "a schema is ignored; answers are read as text",
    REFUSED: "a schema is refused; stages are asked without one",
    UNTRIED: "stages are asked without a schema, as nobody waits for what the endpoint makes of it",
    BROKEN: "no answer stands in its place under a schema; stages are asked without one",
}


@dataclass(frozen=True)
class Findings:
    """What the endpoint of these settings makes of schemas, by model, as a store knows it; None for no store."""

    settings: Settings
    store: str | None
    # What this start has found out, which counts where the store cannot be written
    learned: dict[str, dict[str, Any]] = field(default_factory=dict)

    def applied(self, stage: Stage) -> Stage:
        """The stage as it is asked by what is known; one that nothing is known of is asked with its schema."""
        known = self._known(stage)
        return known.applied(stage) if known else stage

    def may_drop(self, stage: Stage) -> bool:
        """Whether the stage's schema goes where the endpoint cannot take it."""
        return stage.structured is not None and decoding_for(self.settings, stage.name).structured == "auto"

    def tries(self, stage: Stage) -> bool:
        """Whether the first answer of a stage is to say what the endpoint makes of its schema."""
        known = self._known(stage)
        return self.may_drop(stage) and (known is None or not known.settles(stage))

    def learn(self, stage: Stage, found: Finding) -> str:
        """Keeps what an answer of this stage said; gives a line that says it.

        A model that took schemas and refuses that of a rated stage takes none beside log-probabilities.
        """
        known = self._known(stage)
        if known and known.outcome == TAKEN and stage.rated:
            found = replace(known, weighs=found.outcome == IGNORED or bool(found.weighs))
        self.learned[self._key(stage)] = asdict(found)
        if self.store is not None:
            content = json.dumps(self._read(), indent=2, sort_keys=True, ensure_ascii=False)
            # A disk that is full says so where answers are written
            with suppress(OSError):
                (Place(self.store) / NAME).write_bytes(content.encode("utf-8") + b"\n")
        return _describe(stage, found)

    def _known(self, stage: Stage) -> Finding | None:
        known = self._read().get(self._key(stage)) if self.may_drop(stage) else None
        return Finding(**known) if known else None

    def _read(self) -> dict[str, dict[str, Any]]:
        """All findings of the store and of this start; none where it has no file of them that can be read."""
        try:
            kept = {} if self.store is None else dict(json.loads((Place(self.store) / NAME).read_bytes()))
        except (OSError, ValueError, TypeError):
            kept = {}
        return kept | self.learned

    def _key(self, stage: Stage) -> str:
        """Endpoints and model; settings take no address with a password."""
        addresses = sorted(one.base_url or "embedded" for one in self.settings.llm.each)
        return " ".join((*addresses, stage.model_key or stage.model))


def _describe(stage: Stage, found: Finding) -> str:
    thinks = ", without reasoning as the model thinks" if found.thinks else ""
    weighs = ", but for ratings, which have no log-probabilities beside it" if found.weighs is False else ""
    return f"{stage.model}: {_SAID[found.outcome]}{thinks}{weighs} (llm.structured)"
