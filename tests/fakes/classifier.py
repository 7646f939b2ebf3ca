"""A server that classifies pairs with the APIs of vLLM (/classify, /score) and text-embeddings-inference (/predict).

Its probabilities equal the probabilities of `tests.udfs.retrieval.onnx_files.write_classifier` for the same words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

from tests.fakes.replies import Reply, error_reply, http_message
from tests.fakes.rules import Request

SEPARATOR = "</s></s>"
LABELS = ("entailment", "neutral", "contradiction")
# The limit of text-embeddings-inference
MOST_PAIRS = 32
_TOKEN = re.compile(r"\w+|[^\w\s]+")


@dataclass(frozen=True)
class FakeClassifier:
    """A pair has the first class if the premise contains every known word of the hypothesis, else the last."""

    words: Sequence[str] = ()
    doubted: Sequence[str] = ()
    labels: Sequence[str] = LABELS
    doubt: float = 0.3

    def probabilities(self, premise: str, hypothesis: str) -> list[float]:
        """Return the probability of each class, in order."""
        lacking = set(_TOKEN.findall(hypothesis)) - set(_TOKEN.findall(premise))
        known = (self.doubt if word in self.doubted else 1.0 for word in lacking if word in self.words)
        fails = max(known, default=0.0)
        powers = [exp(3 * (1 - fails)), *(1.0 for _ in self.labels[2:]), exp(3 * fails)]
        return [power / sum(powers) for power in powers]


def pairs_of(path: str, body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs in a body. Raises LookupError, TypeError or ValueError for a body without pairs."""
    if path == "/predict":
        return [(premise, hypothesis) for premise, hypothesis in body["inputs"]]
    if path == "/score":
        return list(zip(body["text_1"], body["text_2"], strict=True))
    return [(premise, hypothesis) for premise, hypothesis in (text.split(SEPARATOR) for text in body["input"])]


def classes_content(request: Request, tokens: int, deeds: Mapping[str, Any], classifier: FakeClassifier) -> Reply:
    """Return the response to pairs, if no rule for the call applies."""
    path, pairs = request.payload["path"], request.payload["pairs"]
    if path == "/predict" and len(pairs) > MOST_PAIRS:
        return error_reply(413, "batch size error")
    names = [f"LABEL_{number}" for number in range(len(classifier.labels))] if "unnamed" in deeds else classifier.labels
    data = []
    for index, pair in enumerate(pairs):
        found = classifier.probabilities(*pair)
        if deeds.get("nan") is True or (isinstance(deeds.get("nan"), str) and deeds["nan"] in "".join(pair)):
            found[0] = float("nan")
        data.append(_item(path, index, found, names))
    data = data[1:] if "drop" in deeds else data
    usage = {} if "no_usage" in deeds else {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    body: Any = data if path == "/predict" else {"model": request.body["model"], "data": data[::-1], **usage}
    content = json.dumps(body).encode()
    content = content[: len(content) // 2] if "cut_json" in deeds else content
    return Reply(200, http_message(200, content, {"x-compute-tokens": str(tokens)} if usage else {}))


def _item(path: str, index: int, found: Sequence[float], names: Sequence[str]) -> Any:
    if path == "/predict":
        ranked = sorted(zip(found, names, strict=True), reverse=True)
        return [{"score": probability, "label": name} for probability, name in ranked]
    if path == "/score":
        return {"index": index, "object": "score", "score": found[0]}
    return {"index": index, "label": names[found.index(max(found))], "probs": found, "num_classes": len(found)}
