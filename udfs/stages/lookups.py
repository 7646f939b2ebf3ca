"""Stages that ask no language model: vectors of texts, hits of a web search, what a classifier says of two texts.

They are requests as all others: with a key, a row in the store, limits and usage. They have no template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from untold.udfs.retrieval.search import NoHitsError, hits_of
from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.relations import RELATIONS, VARIABLES

KINDS = ("query", "document")
# Vectors are brought to length 1 when they are read: inner products are cosines
VECTOR_SCHEMA = pa.schema([("vector", pa.list_(pa.float32()))])
HITS_SCHEMA = pa.schema([("hits", pa.list_(pa.struct([("id", pa.string()), ("text", pa.string())])))])
# `probability` is that of entailment, `certainty` that of the relation
ENTAILMENT_SCHEMA = pa.schema([("relation", pa.string()), ("probability", pa.float64()), ("certainty", pa.float64())])


def parse_hits(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """`hits`: {id, text} of each, in the service's order. Raises `Unparsable` for what no known service answers."""
    try:
        return {"hits": hits_of(completion)}
    except NoHitsError as error:
        raise Unparsable(str(error)) from None


def parse_entailment(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """`relation`, the most probable one of `RELATIONS`, how probable (`certainty`), and `probability`, of entailment.

    completion: the probabilities by relation, of a local classifier or a server's (JSON). Where that of entailment is
    all that is known, and less than a half, the relation is null.
    """
    probabilities: Mapping[str, float] = json.loads(completion)
    relation: str | None = max(RELATIONS, key=lambda name: probabilities.get(name, 0.0))
    certainty = probabilities.get(str(relation), 0.0)
    if len(probabilities) == 1 and certainty < 0.5:
        relation = None
    return {"relation": relation, "probability": probabilities["entailment"], "certainty": certainty}


def parse_nothing(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Raises `Unparsable`: a vector is no text."""
    raise Unparsable("a text where a vector belongs")


EMBED_TEXT = StageDefinition("embed_text", ("text", "kind"), parse_nothing, VECTOR_SCHEMA)
WEB_SEARCH = StageDefinition("web_search", ("query", "count"), parse_hits, HITS_SCHEMA)
CLASSIFY_ENTAILMENT = StageDefinition("classify_entailment", VARIABLES, parse_entailment, ENTAILMENT_SCHEMA)
