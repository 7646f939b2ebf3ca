"""Texts to vectors: the one place where an index, a search and metrics ask for them."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

STAGE = "embed_text"
# What asking gives beside the vector
OUTCOME = ("request_id", "error_type", "error")


# What asks a stage for rows, and which columns are carried: `untold.jobs.metrics.base.Tools.ask`, or that of a runner
Ask = Callable[[str, DataFrame, tuple[str, ...]], DataFrame]


def embed(ask: Ask, rows: DataFrame, kind: str, key: str) -> DataFrame:
    """Columns `key`, vector array<float> of length 1, request_id, error_type, error.

    rows: `key` and text; kind: `query` for what is looked for, `document` for what is looked in.
    """
    wanted = rows.select(key, "text", F.lit(kind).alias("kind"))
    return ask(STAGE, wanted, (key,)).select(key, "vector", *OUTCOME)
