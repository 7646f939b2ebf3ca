"""The stages of ICAT: claims, aspects, and which claims cover which (Samarinas et al. 2025; methods, section 9)."""

from __future__ import annotations

import pyarrow as pa

from udfs.stages.alignment import parse_alignment
from udfs.stages.claims import parse_aspects, parse_claims
from udfs.stages.definitions import StageDefinition

CLAIMS_SCHEMA = pa.schema([pa.field("claims", pa.list_(pa.string()))])
ASPECTS_SCHEMA = pa.schema([pa.field("aspects", pa.list_(pa.string()))])
# One list an aspect, in the order of the variable: numbers of claims from 1, ascending; an empty one is not covered
ALIGNMENT_SCHEMA = pa.schema([pa.field("evidence", pa.list_(pa.list_(pa.int32())))])

EXTRACT_CLAIMS = StageDefinition("extract_claims", ("text",), parse_claims, CLAIMS_SCHEMA)
GENERATE_ASPECTS = StageDefinition("generate_aspects", ("query",), parse_aspects, ASPECTS_SCHEMA)
ALIGN_CLAIMS = StageDefinition("align_claims", ("query", "aspects", "claims"), parse_alignment, ALIGNMENT_SCHEMA)
