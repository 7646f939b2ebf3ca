"""The schema of every table, in one place. Columns are only ever added, and are nullable."""

from __future__ import annotations

import pyarrow as pa

from udfs.llm.records import ALTERNATIVE as ALTERNATIVE
from udfs.llm.records import COMPLETIONS as COMPLETIONS

CONTEXT = pa.struct([("id", pa.string()), ("text", pa.string())])
SAMPLES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("query", pa.string()),
        ("response", pa.string()),
        ("contexts", pa.list_(CONTEXT)),
        ("system", pa.string()),
        ("label", pa.string()),
    ]
)
ATOMS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("atom_id", pa.string()),
        ("text", pa.string()),
        ("question", pa.string()),
        ("origin", pa.string()),
        ("sources", pa.list_(pa.string())),
        ("unit_type", pa.string()),
        ("rating", pa.float64()),
        ("kept", pa.bool_()),
        ("statement_id", pa.string()),
    ]
)
RELATIONS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("premise_id", pa.string()),
        ("hypothesis_id", pa.string()),
        ("relation", pa.string()),
    ]
)
STATEMENTS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("statement_id", pa.string()),
        ("text", pa.string()),
        ("covered", pa.bool_()),
        ("in_basis", pa.bool_()),
        ("sources", pa.list_(pa.string())),
        ("members", pa.list_(pa.string())),
    ]
)
SCORES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("system", pa.string()),
        ("score", pa.float64()),
        ("score_low", pa.float64()),
        ("score_high", pa.float64()),
        ("covered", pa.int64()),
        ("uncovered", pa.int64()),
        ("unjudged", pa.int64()),
        ("dropped", pa.int64()),
        ("status", pa.string()),
    ]
)
FAILURES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("stage", pa.string()),
        ("request_id", pa.string()),
        ("error_type", pa.string()),
        ("error", pa.string()),
    ]
)
USAGE = pa.schema(
    [
        ("stage", pa.string()),
        ("model", pa.string()),
        ("requests", pa.int64()),
        ("reused", pa.int64()),
        ("answered", pa.int64()),
        ("failed", pa.int64()),
        ("unasked", pa.int64()),
        ("calls", pa.int64()),
        ("retries", pa.int64()),
        ("rate_limited", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("tokens_estimated", pa.bool_()),
        ("cost", pa.float64()),
        ("seconds", pa.float64()),
    ]
)
SUMMARY = pa.schema(
    [
        ("metric", pa.string()),
        ("level", pa.string()),
        ("system", pa.string()),
        ("n", pa.int64()),
        ("scored", pa.int64()),
        ("undefined", pa.int64()),
        ("failed", pa.int64()),
        ("mean", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("mean_low", pa.float64()),
        ("mean_high", pa.float64()),
    ]
)
META_EVALUATION = pa.schema(
    [
        ("dataset", pa.string()),
        ("metric", pa.string()),
        ("model", pa.string()),
        ("undefined", pa.string()),
        ("measure", pa.string()),
        ("value", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),
        ("left_out", pa.int64()),
        ("published", pa.float64()),
    ]
)
MATCH_COUNTS = pa.schema(
    [
        ("dataset", pa.string()),
        ("metric", pa.string()),
        ("model", pa.string()),
        ("undefined", pa.string()),
        ("measure", pa.string()),
        ("scale", pa.int64()),
        ("points", pa.int64()),
        ("size", pa.int64()),
        ("count", pa.int64()),
        ("left_out", pa.int64()),
    ]
)
COMPARISONS = pa.schema(
    [
        ("dataset", pa.string()),
        ("model", pa.string()),
        ("first", pa.string()),
        ("second", pa.string()),
        ("difference", pa.float64()),
        ("p_value", pa.float64()),
        ("p_adjusted", pa.float64()),
        ("n", pa.int64()),
        ("undefined", pa.string()),
    ]
)
HUMAN_STUDY = pa.schema(
    [
        ("metric", pa.string()),
        ("measure", pa.string()),
        ("value", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),
    ]
)

RESULT_TABLES = {
    "samples": SAMPLES,
    "atoms": ATOMS,
    "relations": RELATIONS,
    "statements": STATEMENTS,
    "scores": SCORES,
    "failures": FAILURES,
    "usage": USAGE,
    "summary": SUMMARY,
}
# What the rows of a table are sorted by, so that one result has one order of rows
ORDER = {
    "samples": ("sample_id",),
    "atoms": ("sample_id", "metric", "atom_id"),
    "relations": ("sample_id", "metric", "premise_id", "hypothesis_id"),
    "statements": ("sample_id", "metric", "statement_id"),
    "scores": ("sample_id", "metric"),
    "failures": ("sample_id", "metric", "stage", "request_id"),
}
TABLES = {
    **RESULT_TABLES,
    "completions": COMPLETIONS,
    "meta_evaluation": META_EVALUATION,
    "match_counts": MATCH_COUNTS,
    "comparisons": COMPARISONS,
    "human_study": HUMAN_STUDY,
}
