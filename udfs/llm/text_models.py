"""Request embeddings of texts and classes of text pairs, from a server or a model in a folder."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from untold.udfs.llm.calls import Answer
from untold.udfs.llm.keys import LOCAL, Stage
from untold.udfs.llm.responses import Reader, read_status, read_usage, status_in, valid_utf8
from untold.udfs.llm.usage import Usage, estimate_tokens
from untold.udfs.retrieval.classifying import TOO_LONG, Classifier, find_for, relation_of
from untold.udfs.retrieval.embedding import vector_error


def embedding_body(stage: Stage, texts: Sequence[str]) -> bytes:
    """Return the JSON body of a call for the vectors of these texts."""
    body = {"model": stage.model, "input": list(texts), **stage.decoding}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def read_embeddings(
    content: bytes, sent: int, headers: Mapping[str, str], *, sizes: Sequence[int], dimension: int | None
) -> Answer:
    """Read the body of a response with status 200 into one part per text, by `data[i].index`.

    `sizes` are the bytes of the texts. A vector with another length than `dimension`, or with infinite values or only
    zeros, is `bad_body`. The whole answer is `bad_body` without exactly one vector per text. The tokens of the call are
    divided by bytes.
    """
    body: Any = None
    try:
        body = json.loads(content)
        vectors: list[NDArray[np.float32] | None] = [None] * len(sizes)
        for item in body["data"]:
            vectors[place_of(item["index"], len(sizes))] = _vector(item["embedding"])
        count = len(body["data"])
        model = body.get("model")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        status = status_in(body)
        if status is not None:
            return read_status(status, content, headers)
        return bad_body("the endpoint's answer holds no vectors", sent)
    known = [vector for vector in vectors if vector is not None]
    if count != len(sizes) or len(known) != count:
        return bad_body(f"the endpoint's answer holds {count} vectors for {len(sizes)} texts", sent)
    usage = usage_of_texts(body.get("usage"), sent)
    if dimension is None:
        # The most frequent length, before the first vector is known
        dimension = Counter(map(len, known)).most_common(1)[0][0]
    name = valid_utf8(model) if isinstance(model, str) else None
    parts = [
        _text_body(vector, dimension, name, tokens) for vector, tokens in zip(known, shares(usage, sizes), strict=True)
    ]
    first = next((part for part in parts if part.error_type is None), parts[0])
    # The model and the usage belong to the whole answer, which is usable if one of its vectors is
    return replace(first, vector=None, usage=usage, parts=tuple(parts))


def shares(usage: Usage, sizes: Sequence[int]) -> list[Usage]:
    """Return the tokens of a call divided among its texts by their bytes. The parts add up to the whole.

    >>> [part.prompt_tokens for part in shares(Usage(10), [1, 1, 1])]
    [3, 4, 3]
    """
    total, seen, given = sum(sizes) or 1, 0, 0
    parts = []
    for size in sizes:
        seen += size
        # Rounded cumulatively, so that no token is lost or counted twice
        upto = round(usage.prompt_tokens * seen / total)
        parts.append(Usage(upto - given, 0, 0, estimated=usage.estimated))
        given = upto
    return parts


def place_of(index: Any, count: int) -> int:
    """Return a valid index of a list of `count` items. Raises ValueError or TypeError for other values."""
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError
    if not 0 <= index < count:
        raise ValueError
    return index


def _vector(given: Any) -> NDArray[np.float32]:
    """Return a list of numbers, or base64 of little-endian floats, as an array of single precision.

    Raises TypeError or ValueError for other values. A number beyond single precision becomes infinite.
    """
    if isinstance(given, str):
        return np.frombuffer(b64decode(given, validate=True), dtype="<f4").astype(np.float32)
    if not isinstance(given, list) or any(isinstance(one, bool) or not isinstance(one, int | float) for one in given):
        raise TypeError
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(given, dtype=np.float64).astype(np.float32)


def _text_body(vector: NDArray[np.float32], dimension: int | None, model: str | None, usage: Usage) -> Answer:
    wrong = vector_error(vector, dimension)
    if wrong is not None:
        return Answer(model=model, usage=usage, error_type="bad_body", error=wrong)
    return Answer(model=model, usage=usage, vector=vector)


def bad_body(error: str, sent: int) -> Answer:
    """Return the answer for an unreadable body. The tokens of the request count."""
    return Answer(error_type="bad_body", error=error, usage=Usage(estimate_tokens(sent), estimated=True))


def usage_of_texts(usage: Any, sent: int) -> Usage:
    """Return the tokens of a call. Services return the tokens of the prompt, and none for a completion."""
    if isinstance(usage, Mapping):
        usage = {"completion_tokens": 0, **usage}
    return replace(read_usage(usage, "", sent, 0), completion_tokens=0)


# The largest distance of a sum of probabilities from 1, for single precision and rounding
_SLACK = 0.01
_NUMBERED = re.compile(r"label_(\d{1,2})", re.IGNORECASE)
# The header with the tokens of text-embeddings-inference, whose bodies have no usage
_TOKENS_HEADER = "x-compute-tokens"


class _OtherClassesError(Exception):
    """The classes of the endpoint differ from the settings. This concerns the run and not only a row."""


def pair_texts(stage: Stage, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return each pair as one text: premise, separator (the template of the stage) and hypothesis."""
    return [f"{row['premise']}{stage.template}{row['hypothesis']}" for row in rows]


def classifying_body(stage: Stage, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the JSON body of a call for the classes of these pairs (premise, hypothesis)."""
    premises, hypotheses = ([row[name] for row in rows] for name in ("premise", "hypothesis"))
    body: dict[str, Any]
    if stage.api in (LOCAL, "predict"):
        body = {"inputs": list(zip(premises, hypotheses, strict=True))}
    elif stage.api == "score":
        body = {"model": stage.model, "text_1": premises, "text_2": hypotheses}
    else:
        body = {"model": stage.model, "input": pair_texts(stage, rows)}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def read_classes(
    content: bytes, sent: int, headers: Mapping[str, str], *, api: str, sizes: Sequence[int], relations: Sequence[str]
) -> Answer:
    """Read the body of a response with status 200 into one part per pair: its probabilities by relation as JSON.

    `sizes` are the bytes of the pairs, and `relations` the relation of each class by number. A part with invalid
    probabilities is `bad_body`. The whole answer is `bad_body` without exactly one item per pair. Classes that are not
    in `relations` are `refused`, because they concern the run.
    """
    body: Any = None
    try:
        body = json.loads(content)
        items = list(body if api == "predict" else body["data"])
        if len(items) != len(sizes):
            return bad_body(f"the endpoint's answer classifies {len(items)} pairs of {len(sizes)}", sent)
        ordered = items if api == "predict" else _by_index(items)
        found = [_probabilities(item, api, relations) for item in ordered]
        counted = _tokens_in(headers) if api == "predict" else body.get("usage")
    except _OtherClassesError:
        error = "the endpoint's classes are not known, set classifier.labels to their names in order"
        return Answer(error_type="bad_body", error=error, refused=True)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        status = status_in(body)
        if status is not None:
            return read_status(status, content, headers)
        return bad_body("the endpoint's answer classifies no pairs", sent)
    usage = usage_of_texts(counted, sent)
    model = body.get("model") if isinstance(body, Mapping) else None
    name = valid_utf8(model) if isinstance(model, str) else None
    parts = [_part(one, name, tokens) for one, tokens in zip(found, shares(usage, sizes), strict=True)]
    first = next((part for part in parts if part.error_type is None), parts[0])
    # The model and the usage belong to the whole answer, which is usable if one of its pairs is
    return replace(first, text=None, usage=usage, parts=tuple(parts))


def _part(probabilities: Mapping[str, float] | None, model: str | None, usage: Any) -> Answer:
    if probabilities is None:
        error = "the endpoint's numbers are not probabilities of the classes"
        return Answer(model=model, usage=usage, error_type="bad_body", error=error)
    return Answer(text=json.dumps(probabilities), model=model, usage=usage)


def _by_index(items: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the items in the order of the pairs. Raises ValueError for two items of one pair."""
    placed = {place_of(item["index"], len(items)): item for item in items}
    if len(placed) != len(items):
        raise ValueError
    return [placed[place] for place in range(len(items))]


def _tokens_in(headers: Mapping[str, str]) -> Mapping[str, int] | None:
    counted = headers.get(_TOKENS_HEADER, "")
    return {"prompt_tokens": int(counted)} if counted.isdecimal() else None


def _probabilities(item: Any, api: str, relations: Sequence[str]) -> Mapping[str, float] | None:
    """Return the probabilities of a pair by relation, None for invalid ones. Raises _OtherClassesError."""
    if api == "score":
        score = item["score"]
        return {"entailment": float(score)} if _is_probability(score) else None
    if api == "predict":
        found = [(_relation(one["label"], relations), one["score"]) for one in item]
    else:
        found = _numbered(item["probs"], relations)
    if not all(_is_probability(probability) for _, probability in found):
        return None
    likeliest, _ = max(found, key=lambda one: one[1])
    # A known name of another relation: the settings have another order of the classes
    if api == "classify" and relation_of(item.get("label") or "") not in (None, likeliest):
        raise _OtherClassesError
    sums: dict[str, float] = {}
    for relation, probability in found:
        sums[relation] = sums.get(relation, 0.0) + float(probability)
    return sums if "entailment" in sums and abs(sum(sums.values()) - 1) <= _SLACK else None


def _numbered(given: Sequence[Any], relations: Sequence[str]) -> list[tuple[str, Any]]:
    """Return pairs of relation and probability for classes in their order. The response names only the likeliest."""
    if len(given) != len(relations):
        raise _OtherClassesError
    return list(zip(relations, given, strict=True))


def _relation(label: str, relations: Sequence[str]) -> str:
    """Return the relation of a class by its name, or by its number in a name such as `LABEL_0`."""
    known, number = relation_of(label), _NUMBERED.fullmatch(label)
    if known is None and number and int(number[1]) < len(relations):
        return relations[int(number[1])]
    if known is None:
        raise _OtherClassesError
    return known


def _is_probability(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and isfinite(value) and 0 <= value <= 1


class LocalClassifier:
    """Run the model of a stage with a provider of onnxruntime, without calls and tokens.

    Raises LocalModelFileError if this machine lacks the model with the digest of the stage, or the provider.
    """

    def __init__(self, stage: Stage, provider: str) -> None:
        self._classifier, self._model = Classifier(find_for(stage), provider), stage.model

    async def call(self, api: str, body: bytes, timeout: float | None = None, read: Reader | None = None) -> Answer:
        """Return the classes of the pairs of a body, one part per pair. There is no deadline for this process."""
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
        """Do nothing, because there is no connection."""
