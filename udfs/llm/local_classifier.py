"""A classifier of a folder in an answering actor, asked as an endpoint is: bodies of pairs in, answers out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from untold.udfs.llm.calls import Answer
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.responses import Reader
from untold.udfs.retrieval.embedding import TOO_LONG, Classifier, find_for


class LocalClassifier:
    """Runs the model of a stage by a provider of onnxruntime. Nothing is called, and no token is counted.

    Raises LocalModelFileError where this machine has not the model that the stage's digest is of, or not the provider.
    """

    def __init__(self, stage: Stage, provider: str) -> None:
        self._classifier, self._model = Classifier(find_for(stage), provider), stage.model

    async def call(self, api: str, body: bytes, timeout: float | None = None, read: Reader | None = None) -> Answer:
        """The classes of the pairs of a body, a part for each, without a deadline: it is this process that works."""
        return await asyncio.to_thread(self._classify, json.loads(body)["inputs"])

    def _classify(self, pairs: Sequence[tuple[str, str]]) -> Answer:
        found = self._classifier.classify([(premise, hypothesis) for premise, hypothesis in pairs])
        parts = [
            Answer(text=json.dumps(one), model=self._model)
            if one is not None
            else Answer(model=self._model, error_type="truncated", error=TOO_LONG)
            for one in found
        ]
        first = next((part for part in parts if part.error_type is None), parts[0])
        return Answer(model=self._model, error_type=first.error_type, error=first.error, parts=tuple(parts))

    async def close(self) -> None:
        """There is no connection to close."""
