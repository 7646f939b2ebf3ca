"""Define the schemas of the tables of studies with human labels, as `jobs.tables` does."""

from __future__ import annotations

import pyarrow as pa

# A measure of agreement with people under one convention for undefined scores
META_EVALUATION = pa.schema(
    [
        ("dataset", pa.string()),
        ("metric", pa.string()),  # null for baselines, like model
        ("model", pa.string()),
        ("convention", pa.string()),  # for undefined scores: mismatch, zero or published
        ("measure", pa.string()),  # lmr, kappa, ...
        ("value", pa.float64()),  # null if the measure is undefined
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),  # compared units; for a spread, models
        ("excluded", pa.int64()),  # comparisons that the convention excludes
        ("published", pa.float64()),  # the figure of the paper
        ("level", pa.string()),  # the unit of a study of coverage: sample, query or item
        ("p_value", pa.float64()),  # of a correlation, two-sided
    ]
)
# A labelled sample under a metric of a model, or under a baseline (docs/methods.md, section 6)
COVERAGE = pa.schema(
    [
        ("sample_id", pa.string()),
        ("query_id", pa.string()),  # the given id, or the query, or the sample
        ("metric", pa.string()),  # a metric, or a baseline with the model null
        ("model", pa.string()),
        ("human", pa.float64()),  # share of the labelled items that people call covered; null without labels
        ("labelled", pa.int64()),  # items with a majority
        ("ties", pa.int64()),  # items with evenly split annotators, which are left out
        ("value", pa.float64()),  # share of its items that the metric calls covered, or the value of the baseline
        ("true_positives", pa.int64()),  # labelled items that both call covered; null if the metric judged none
        ("false_positives", pa.int64()),  # items that only the metric calls covered
        ("false_negatives", pa.int64()),  # items that only people call covered
        ("true_negatives", pa.int64()),  # items that both call uncovered
        ("judged", pa.int64()),  # the sum of these four
    ]
)
# The number of references in each tier of agreement of a coverage study (docs/methods.md, section 6)
TIERS = pa.schema(
    [
        ("dataset", pa.string()),
        ("tier", pa.string()),  # full, partial, singleton:<method> or none
        ("count", pa.int64()),
    ]
)
# The false negatives of a method
FALSE_NEGATIVES = pa.schema(
    [
        ("method", pa.string()),  # <metric>:<model>, or a baseline
        ("fn", pa.int64()),
        ("fn_candidate", pa.int64()),  # no covering candidate was judged; null without candidates
        ("fn_entailment", pa.int64()),  # the other false negatives
    ]
)
# A reference of a drawn subset
SUBSET = pa.schema(
    [
        ("sample_id", pa.string()),
        ("reference_id", pa.string()),
        ("tier", pa.string()),
    ]
)
# The number of questions, or single units, with equal points. Intervals over several data sets use these counts.
MATCH_COUNTS = pa.schema(
    [
        ("dataset", pa.string()),
        ("metric", pa.string()),
        ("model", pa.string()),
        ("convention", pa.string()),
        ("measure", pa.string()),
        ("scale", pa.int64()),  # points of a full match
        ("points", pa.int64()),  # an integer, so that equal points are one row
        ("size", pa.int64()),  # units of a question with points
        ("count", pa.int64()),  # questions with these points
        ("excluded", pa.int64()),  # comparisons that these questions exclude
    ]
)
# A paired permutation test of two metrics of one model, or of two prompts of one metric (docs/methods.md, section 7)
COMPARISONS = pa.schema(
    [
        ("dataset", pa.string()),
        ("model", pa.string()),
        ("first", pa.string()),  # a metric or a prompt set
        ("second", pa.string()),
        ("difference", pa.float64()),  # first minus second: accuracy over items for coverage, otherwise mean LMR
        ("p_value", pa.float64()),
        ("p_adjusted", pa.float64()),  # after Benjamini and Hochberg, separately for metrics and prompts
        ("n", pa.int64()),  # units or items that both judged
        ("convention", pa.string()),  # the convention of the points; null for coverage
        ("metric", pa.string()),  # for two prompt sets; null for two metrics
    ]
)
# A share from human labels, with its 95 % interval (docs/methods.md, section 6)
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

STUDY_TABLES = {
    "meta_evaluation": META_EVALUATION,
    "coverage": COVERAGE,
    "tiers": TIERS,
    "false_negatives": FALSE_NEGATIVES,
    "subset": SUBSET,
    "match_counts": MATCH_COUNTS,
    "comparisons": COMPARISONS,
    "human_study": HUMAN_STUDY,
}
