"""The tables of a trend. Columns are only ever added, and are nullable."""

from __future__ import annotations

import pyarrow as pa

# A date of a trend: all systems, one, or the sentinel; intervals resample queries
TREND = pa.schema(
    [
        ("date", pa.string()),  # of a week its Monday, or the date within it from which figures are of another kind
        ("metric", pa.string()),
        ("level", pa.string()),  # overall, system or sentinel
        ("system", pa.string()),  # null unless the level is system; `all` where samples name none
        ("stretch", pa.int64()),  # from 1; dates of one stretch are comparable
        *((name, pa.int64()) for name in ("n", "scored", "undefined", "failed")),
        *((name, pa.float64()) for name in ("mean", "ci_low", "ci_high")),
        *((name, pa.float64()) for name in ("answer_rate", "answer_ci_low", "answer_ci_high", "mean_zero")),
        ("cost", pa.float64()),  # of the outputs of the date, over all metrics and systems; null for a system
        ("failed_share", pa.float64()),
    ]
)
# A system, or the sentinel, on a date less itself before
CHANGES = pa.schema(
    [
        ("metric", pa.string()),
        ("level", pa.string()),  # system or sentinel
        ("system", pa.string()),
        ("kind", pa.string()),  # step: a date less the one before; shift: a level that begins with a date
        ("date", pa.string()),
        ("before", pa.string()),  # the last date before it
        ("paired_by", pa.string()),  # sample or query; null where both dates share too few
        ("n", pa.int64()),  # samples or queries that both have; unpaired, the samples of both
        *((name, pa.float64()) for name in ("difference", "ci_low", "ci_high", "p_value")),
        ("p_adjusted", pa.float64()),  # after Benjamini and Hochberg, over the changes of a metric, measure and kind
        ("judge_difference", pa.float64()),  # of the sentinel between the same dates
        ("judge_p_value", pa.float64()),
        *((name, pa.float64()) for name in ("net_difference", "net_ci_low", "net_ci_high", "net_p_value")),  # less it
        ("cause", pa.string()),  # judge, system or both, where it is beyond chance; null without a sentinel
        ("measure", pa.string()),  # mean, answer_rate or failed_share: a share only where it differs on some dates
    ]
)
# A sample that moved most in a change beyond chance
MOVED = pa.schema(
    [
        *((name, pa.string()) for name in ("metric", "system", "kind", "date", "before")),
        ("sample_id", pa.string()),
        ("query", pa.string()),
        *((name, pa.float64()) for name in ("before_score", "score", "difference")),
    ]
)
