"""The stages of ICAT: claims, aspects, and which claims cover which (Samarinas et al. 2025; methods, section 9)."""

from __future__ import annotations

import pyarrow as pa

from untold.udfs.stages.alignment import parse_alignment
from untold.udfs.stages.claims import parse_aspects, parse_claims
from untold.udfs.stages.definitions import StageDefinition
from untold.udfs.stages.figures import FACTSCORE, WRITTEN, Figures, Line, Thing
from untold.udfs.stages.schemas import TEXT, lines_of, listed, number_of, record

CLAIMS_SCHEMA = pa.schema([pa.field("claims", pa.list_(pa.string()))])
ASPECTS_SCHEMA = pa.schema([pa.field("aspects", pa.list_(pa.string()))])
# One list an aspect, in the order of the variable: numbers of claims from 1, ascending; an empty one is not covered
ALIGNMENT_SCHEMA = pa.schema([pa.field("evidence", pa.list_(pa.list_(pa.int32())))])


def claims_in(completion: str) -> list[Thing]:
    """The claims. Raises `Unparsable`."""
    return list(map(Thing, parse_claims(completion, {})["claims"]))


def aspects_in(completion: str) -> list[Thing]:
    """The aspects. Raises `Unparsable`."""
    return list(map(Thing, parse_aspects(completion, {})["aspects"]))


EXTRACT_CLAIMS = StageDefinition(
    "extract_claims",
    ("text",),
    parse_claims,
    CLAIMS_SCHEMA,
    schema=record(claims=listed(TEXT)),
    form=lines_of(r"(?![-*•] ).+", "claim"),
    # The same facts as those of `extract_atoms`, without a bullet and a type
    figures=Figures(FACTSCORE, completion=Line(slope=1.73), things=Line(slope=0.158)),
    things=claims_in,
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
    # A long query has no more aspects than a short one
    figures=Figures(WRITTEN, completion=Line(64.0), things=Line(5.7)),
    things=aspects_in,
    items=("aspects",),
)
ALIGN_CLAIMS = StageDefinition(
    "align_claims",
    ("query", "aspects", "claims"),
    parse_alignment,
    ALIGNMENT_SCHEMA,
    schema=record(covered=listed(record(topic_id=number_of("aspects"), evidence=listed(number_of("claims"))))),
    form=lines_of(r'\{"topic_id": \d+, "evidence": \[[\d, ]*\]\}', '{"topic_id": n, "evidence": [n, ...]}'),
    figures=Figures(WRITTEN, completion=Line(slope=0.3)),
    max_tokens=8_192,
)
