"""The stages of LongRecall: self-contained facts, and which candidates entail a reference (methods, section 9).

After Ardestani, Kamalloo and Rafiei, LongRecall.
"""

from __future__ import annotations

import re

import pyarrow as pa

from untold.udfs.stages.coreference import parse_resolved
from untold.udfs.stages.definitions import StageDefinition
from untold.udfs.stages.figures import WRITTEN, Figures, Line
from untold.udfs.stages.holistic import parse_holistic
from untold.udfs.stages.matching import VARIABLES as MATCH_VARIABLES
from untold.udfs.stages.matching import parse_match
from untold.udfs.stages.schemas import TEXT, Form, label_of, lines_of, listed, number_of, one_of, record
from untold.udfs.stages.subsets import parse_subset

# One text a fact, in the order of the variable
RESOLVED_SCHEMA = pa.schema([pa.field("facts", pa.list_(pa.string()))])
MATCH_SCHEMA = pa.schema([pa.field("matched", pa.bool_())])
# Numbers of candidates from 1, ascending; an empty list is no match
SUBSET_SCHEMA = pa.schema([pa.field("candidates", pa.list_(pa.int32()))])
# One such list a reference, in the order of the variable
HOLISTIC_SCHEMA = pa.schema([pa.field("candidates", pa.list_(pa.list_(pa.int32())))])
_CANDIDATES = listed(number_of("candidates"))

RESOLVE_COREFERENCE = StageDefinition(
    "resolve_coreference",
    ("text", "facts"),
    parse_resolved,
    RESOLVED_SCHEMA,
    schema=record(facts=listed(record(id=number_of("facts"), fact=TEXT))),
    form=lines_of(r"\* .+", "* fact", "one line for each fact, in their order:"),
    figures=Figures(WRITTEN, completion=Line(slope=0.82)),
    max_tokens=8_192,
)
MATCH_ONE = StageDefinition(
    "match_one",
    MATCH_VARIABLES,
    parse_match,
    MATCH_SCHEMA,
    schema=record(label=one_of(("Match", "No Match"))),
    form=label_of(("Match", "No Match")),
    figures=Figures(WRITTEN, completion=Line(12.0)),
)
MATCH_MANY = StageDefinition(
    "match_many",
    ("reference", "candidates"),
    parse_subset,
    SUBSET_SCHEMA,
    schema=record(candidates=_CANDIDATES),
    form=Form("a JSON list of the candidates' numbers, such as [1, 3], or []", re.compile(r"\[[\d, ]*\]")),
    figures=Figures(WRITTEN, completion=Line(9.0)),
)
MATCH_HOLISTIC = StageDefinition(
    "match_holistic",
    ("query", "references", "candidates"),
    parse_holistic,
    HOLISTIC_SCHEMA,
    schema=record(entailed=listed(record(reference=number_of("references"), candidates=_CANDIDATES))),
    form=lines_of(r'\{"reference": \d+, "candidates": \[[\d, ]*\]\}', '{"reference": n, "candidates": [n, ...]}'),
    figures=Figures(WRITTEN, completion=Line(slope=0.29)),
    max_tokens=8_192,
)
