"""One file a metric: DataFrame in, DataFrames out."""

from __future__ import annotations

from jobs.metrics import e2e as e2e
from jobs.metrics import nli as nli

METRICS = {e2e.METRIC: e2e, nli.METRIC: nli}
GRAPH_METRICS = frozenset({nli.METRIC})
