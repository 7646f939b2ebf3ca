"""The stages of ICAT: claims, aspects and their alignment. Source: Samarinas et al. 2025; methods, section 9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import (
    FACTSCORE,
    TEXT,
    WRITTEN,
    Figures,
    LinearSize,
    StageDefinition,
    lines_of,
    listed,
    number_of,
    record,
)
from untold.udfs.stages.lists import CLAIM_NAMES, TOPIC_NAMES, read_texts, things_of
from untold.udfs.stages.number_lists import read_number_lists

CLAIMS_SCHEMA = pa.schema([pa.field("claims", pa.list_(pa.string()))])
ASPECTS_SCHEMA = pa.schema([pa.field("aspects", pa.list_(pa.string()))])
# One list of claim numbers, from 1, for each aspect
ALIGNMENT_SCHEMA = pa.schema([pa.field("evidence", pa.list_(pa.list_(pa.int32())))])
_TOPIC_IDS = ("topicid", "topic", "topicnumber", "aspect", "aspectid")
_EVIDENCE_NAMES = ("evidence", "evidenceids", "evidenceclaimids", "claims", "claimids", "claim", "claimid")


@reader
def parse_claims(text: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the `claims` in order, an empty list for `None`. Raises `Unparsable` for an ambiguous line."""
    return {"claims": read_texts(text, CLAIM_NAMES, str(variables.get("text") or ""), may_be_plain=True)}


@reader
def parse_aspects(text: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the `aspects` in order, an empty list for `None`. Raises `Unparsable` for an ambiguous line."""
    return {"aspects": read_texts(text, TOPIC_NAMES, str(variables.get("query") or ""))}


@reader
def parse_alignment(text: str, variables: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """Return the `evidence`: for each of `aspects` the numbers of the known `claims` that cover it, ascending."""
    aspects, claims = variables["aspects"], variables["claims"]
    return {"evidence": read_number_lists(text, _TOPIC_IDS, _EVIDENCE_NAMES, aspects, claims)}


EXTRACT_CLAIMS = StageDefinition(
    "extract_claims",
    ("text",),
    parse_claims,
    CLAIMS_SCHEMA,
    schema=record(claims=listed(TEXT)),
    form=lines_of(r"(?![-*•] ).+", "claim"),
    # The facts of `extract_atoms` without a bullet and a type
    figures=Figures(FACTSCORE, completion=LinearSize(slope=1.73), things=LinearSize(slope=0.158)),
    things=things_of(parse_claims, "claims"),
    max_tokens=8_192,
    items=("claims",),
)
GENERATE_ASPECTS = StageDefinition(
    "generate_aspects",
    ("query",),
    parse_aspects,
    ASPECTS_SCHEMA,
    schema=record(topics=listed(TEXT)),
    form=lines_of(r'\{"topic": ".+"\}', '{"topic": "..."}'),
    # Long and short queries have equally many aspects
    figures=Figures(WRITTEN, completion=LinearSize(64.0), things=LinearSize(5.7)),
    things=things_of(parse_aspects, "aspects"),
    items=("aspects",),
)
ALIGN_CLAIMS = StageDefinition(
    "align_claims",
    ("query", "aspects", "claims"),
    parse_alignment,
    ALIGNMENT_SCHEMA,
    schema=record(covered=listed(record(topic_id=number_of("aspects"), evidence=listed(number_of("claims"))))),
    form=lines_of(r'\{"topic_id": \d+, "evidence": \[[\d, ]*\]\}', '{"topic_id": n, "evidence": [n, ...]}'),
    figures=Figures(WRITTEN, completion=LinearSize(slope=0.3)),
    max_tokens=8_192,
)
