"""The stages of importance-aware precision and recall: facts, their importance, verdicts on claims, covered facts
("Beyond Precision: Importance-Aware Recall for Factuality Evaluation in Long-Form LLM Generation", 2026; methods,
section 9).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from untold.udfs.stages.claims import parse_claims
from untold.udfs.stages.covering import parse_covering
from untold.udfs.stages.definitions import StageDefinition
from untold.udfs.stages.fact_ratings import parse_importance
from untold.udfs.stages.figures import FACTSCORE, WRITTEN, Figures, Line, Thing
from untold.udfs.stages.icat import EXTRACT_CLAIMS
from untold.udfs.stages.schemas import RATING, TEXT, Form, label_of, lines_of, listed, number_of, one_of, record
from untold.udfs.stages.verdicts import VERDICTS, parse_verdict

FACTS_SCHEMA = pa.schema([pa.field("facts", pa.list_(pa.string()))])
# Each a list in the order of the variable `facts`
IMPORTANCE_SCHEMA = pa.schema(
    [pa.field("relevance", pa.list_(pa.float64())), pa.field("salience", pa.list_(pa.float64()))]
)
VERDICT_SCHEMA = pa.schema([pa.field("relation", pa.string())])
# Numbers of claims from 1, ascending; none of what is not covered
COVERING_SCHEMA = pa.schema([pa.field("covered", pa.bool_()), pa.field("claims", pa.list_(pa.int32()))])

_RATED = r'\{"id": \d+, "relevance": [1-5], "salience": [1-5]\}'


def parse_facts(completion: str, variables: Mapping[str, Any]) -> dict[str, list[str]]:
    """`facts`: the facts in order, one that stands twice twice; none for a lone `None`. Read as claims are.

    Raises `Unparsable` where a line may be a fact or not, and where nothing is one.
    """
    return {"facts": parse_claims(completion, variables)["claims"]}


def facts_in(completion: str) -> list[Thing]:
    """The facts. Raises `Unparsable`."""
    return list(map(Thing, parse_facts(completion, {})["facts"]))


EXTRACT_FACTS = StageDefinition(
    "extract_facts",
    ("text",),
    parse_facts,
    FACTS_SCHEMA,
    schema=record(facts=listed(TEXT)),
    form=lines_of("- .+", "- fact"),
    # The same facts as those of `extract_claims`, each behind a bullet
    figures=Figures(FACTSCORE, completion=Line(slope=1.81), things=Line(slope=0.158)),
    things=facts_in,
    max_tokens=8_192,
    items=("facts",),
)
# The sentence is a fifth of the variables: they have a query and four other sentences
EXTRACT_VERIFIABLE_CLAIMS = replace(
    EXTRACT_CLAIMS,
    name="extract_verifiable_claims",
    variables=("query", "before", "sentence", "after"),
    figures=Figures(FACTSCORE, completion=Line(slope=0.35), things=Line(slope=0.032)),
    example=dict.fromkeys(("before", "sentence", "after"), "Ada lives in Lyon."),
)
RATE_IMPORTANCE = StageDefinition(
    "rate_importance",
    ("query", "facts"),
    parse_importance,
    IMPORTANCE_SCHEMA,
    schema=record(ratings=listed(record(id=number_of("facts"), relevance=RATING, salience=RATING))),
    form=Form(
        'a JSON list of one {"id": n, "relevance": n, "salience": n} for each fact',
        re.compile(rf"\[\s*{_RATED}(?:,\s*{_RATED})*\s*\]"),
    ),
    rated=True,
    figures=Figures(WRITTEN, completion=Line(slope=1.09)),
    max_tokens=8_192,
)
VERIFY_CLAIM = StageDefinition(
    "verify_claim",
    ("claim", "evidence"),
    parse_verdict,
    VERDICT_SCHEMA,
    schema=record(verdict=one_of(VERDICTS)),
    form=label_of(VERDICTS),
    figures=Figures(WRITTEN, completion=Line(14.0)),
)
CHECK_COVERAGE = StageDefinition(
    "check_coverage",
    ("fact", "claims"),
    parse_covering,
    COVERING_SCHEMA,
    schema=record(label=one_of(("COVERED", "NOT_COVERED")), evidence_claim_ids=listed(number_of("claims"))),
    form=Form(
        '{"label": "COVERED" or "NOT_COVERED", "evidence_claim_ids": [n, ...]}',
        re.compile(r'\{"label": "(?:NOT_)?COVERED", "evidence_claim_ids": \[[\d, ]*\]\}'),
    ),
    figures=Figures(WRITTEN, completion=Line(16.0)),
)
