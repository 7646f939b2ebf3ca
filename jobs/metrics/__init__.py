"""One file a metric: DataFrame in, DataFrames out."""

from __future__ import annotations

from jobs.metrics import e2e as e2e
from jobs.metrics import nli as nli
from jobs.metrics import qa as qa

METRICS = {e2e.METRIC: e2e, nli.METRIC: nli, qa.METRIC: qa}
GRAPH_METRICS = frozenset({nli.METRIC, qa.METRIC})
