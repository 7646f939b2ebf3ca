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
    """The JSON body of a call for the vectors of these texts."""
    body = {"model": stage.model, "input": list(texts), **stage.decoding}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def read_embeddings(
    content: bytes, sent: int, headers: Mapping[str, str], *, sizes: Sequence[int], dimension: int | None
) -> Answer:
    """Reads the body of a 200: a part for each text, by `data[i].index`; `sizes` are the bytes of the texts.

    A part that is not `dimension` long, not finite or zero is `bad_body`, as is the whole where it has not one vector
    for each text. A text's tokens are its share of the call's by bytes.
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
        # Before any vector is known, as long as most are
        dimension = Counter(map(len, known)).most_common(1)[0][0]
    name = valid_utf8(model) if isinstance(model, str) else None
    parts = [
        _text_body(vector, dimension, name, tokens) for vector, tokens in zip(known, shares(usage, sizes), strict=True)
    ]
    first = next((part for part in parts if part.error_type is None), parts[0])
    # What is known of the call stands on the whole: it is fine as long as one of its vectors is
    return replace(first, vector=None, usage=usage, parts=tuple(parts))


def shares(usage: Usage, sizes: Sequence[int]) -> list[Usage]:
    """A call's tokens divided among its texts by their bytes; the parts add up to the whole.

    >>> [part.prompt_tokens for part in shares(Usage(10), [1, 1, 1])]
    [3, 4, 3]
    """
    total, seen, given = sum(sizes) or 1, 0, 0
    parts = []
    for size in sizes:
        seen += size
        # Rounded once, from the beginning: so that no token is lost or told twice
        upto = round(usage.prompt_tokens * seen / total)
        parts.append(Usage(upto - given, 0, 0, estimated=usage.estimated))
        given = upto
    return parts


def place_of(index: Any, count: int) -> int:
    """A place in a list of so many. Raises ValueError or TypeError for what is none."""
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError
    if not 0 <= index < count:
        raise ValueError
    return index


def _vector(given: Any) -> NDArray[np.float32]:
    """A list of numbers, or base64 of little-endian floats, which some endpoints prefer, in single precision.

    Raises TypeError or ValueError for anything else. A number that single precision cannot hold is infinite in it.
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
    """The answer to a body that cannot be read: what was sent counts all the same."""
    return Answer(error_type="bad_body", error=error, usage=Usage(estimate_tokens(sent), estimated=True))


def usage_of_texts(usage: Any, sent: int) -> Usage:
    """The tokens of a call: services name the prompt's, and none of a completion."""
    if isinstance(usage, Mapping):
        usage = {"completion_tokens": 0, **usage}
    return replace(read_usage(usage, "", sent, 0), completion_tokens=0)


# Single precision, and servers that round: what is farther from 1 are no probabilities of classes
_SLACK = 0.01
_NUMBERED = re.compile(r"label_(\d{1,2})", re.IGNORECASE)
# In which text-embeddings-inference counts tokens; its bodies have no usage
_TOKENS_HEADER = "x-compute-tokens"


class _OtherClassesError(Exception):
    """The endpoint's classes are not those that the settings name, which is about the run and not about a row."""


def pair_texts(stage: Stage, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Each pair as one text, with the stage's template, the separator, between premise and hypothesis."""
    return [f"{row['premise']}{stage.template}{row['hypothesis']}" for row in rows]


def classifying_body(stage: Stage, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The JSON body of a call for the classes of these pairs (premise, hypothesis)."""
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
    """Reads the body of a 200: a part for each pair, whose text is its probabilities by relation as JSON.

    `sizes`: the bytes of the pairs; `relations`: the relation of each class, by number. A part with numbers that are no
    probabilities is `bad_body`, as is the whole where it has not one item for each pair. Classes that are none of
    `relations` are `refused`: they are about the run.
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
    # What is known of the call stands on the whole: it is fine as long as one of its pairs is
    return replace(first, text=None, usage=usage, parts=tuple(parts))


def _part(probabilities: Mapping[str, float] | None, model: str | None, usage: Any) -> Answer:
    if probabilities is None:
        error = "the endpoint's numbers are not probabilities of the classes"
        return Answer(model=model, usage=usage, error_type="bad_body", error=error)
    return Answer(text=json.dumps(probabilities), model=model, usage=usage)


def _by_index(items: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The items in the order of the pairs. Raises ValueError where two are of one pair."""
    placed = {place_of(item["index"], len(items)): item for item in items}
    if len(placed) != len(items):
        raise ValueError
    return [placed[place] for place in range(len(items))]


def _tokens_in(headers: Mapping[str, str]) -> Mapping[str, int] | None:
    counted = headers.get(_TOKENS_HEADER, "")
    return {"prompt_tokens": int(counted)} if counted.isdecimal() else None


def _probabilities(item: Any, api: str, relations: Sequence[str]) -> Mapping[str, float] | None:
    """The probabilities of a pair by relation; None for what are none. Raises _OtherClassesError."""
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
    # A name that is known and says otherwise: the settings have the classes in another order
    if api == "classify" and relation_of(item.get("label") or "") not in (None, likeliest):
        raise _OtherClassesError
    sums: dict[str, float] = {}
    for relation, probability in found:
        sums[relation] = sums.get(relation, 0.0) + float(probability)
    return sums if "entailment" in sums and abs(sum(sums.values()) - 1) <= _SLACK else None


def _numbered(given: Sequence[Any], relations: Sequence[str]) -> list[tuple[str, Any]]:
    """(relation, probability) of classes in their order, of which the answer names the likeliest alone."""
    if len(given) != len(relations):
        raise _OtherClassesError
    return list(zip(relations, given, strict=True))


def _relation(label: str, relations: Sequence[str]) -> str:
    """The relation of a class, by its name, or by its number where it is `LABEL_0` or the like."""
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
