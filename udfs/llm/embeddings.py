"""Requests for vectors, many texts at once: their body, and what an answer says of each text."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from untold.udfs.llm.calls import Answer
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.responses import read_status, read_usage, status_in, valid_utf8
from untold.udfs.llm.usage import Usage, estimate_tokens
from untold.udfs.retrieval.embedding import flaw


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
    parts = [_part(vector, dimension, name, tokens) for vector, tokens in zip(known, shares(usage, sizes), strict=True)]
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


def _part(vector: NDArray[np.float32], dimension: int | None, model: str | None, usage: Usage) -> Answer:
    wrong = flaw(vector, dimension)
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
