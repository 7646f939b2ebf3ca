"""Whether a text grounds a claim: by pairs or lists of a model, or by a classifier (methods, section 10)."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from untold.jobs.asking.calling import RELATION
from untold.jobs.metrics.base import Tools
from untold.jobs.metrics.judging import CLASSIFY, CLASSIFY_LISTS
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError

ENTAILMENT = "entailment"


def grounding_stage(settings: Settings, *, in_lists: bool = False) -> str:
    """The stage that `grounding.verifier` asks. Raises UserError for lists of a classifier, which judges pairs."""
    if in_lists and settings.grounding.verifier != RELATION:
        raise UserError("icat.judgement=lists asks a model, and grounding.verifier is a classifier; set one of the two")
    if in_lists:
        return CLASSIFY_LISTS
    return CLASSIFY if settings.grounding.verifier == RELATION else "classify_entailment"


def ground(pairs: DataFrame, tools: Tools, settings: Settings, carry: Iterable[str] = ()) -> DataFrame:
    """Judges pairs of columns premise and hypothesis: `carry`, request_id, relation, probability, grounded, errors.

    probability is that of entailment, null from `classify_relation`; there the relation `entailment` grounds, else a
    probability of at least `grounding.threshold`. All three are null where error_type is not.
    """
    stage, kept = grounding_stage(settings), tuple(carry)
    judged = tools.ask(stage, pairs, carry=kept)
    if stage == CLASSIFY:
        judged = judged.withColumn("probability", F.lit(None).cast("double"))
        grounds = F.col("relation") == ENTAILMENT
    else:
        grounds = F.col("probability") >= settings.grounding.threshold
    return judged.select(
        *kept, "request_id", "relation", "probability", grounds.alias("grounded"), "error_type", "error"
    )
