"""Compare the verdicts of a panel with every completion of its missing votes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, Literal

import pytest
from pyspark.sql import DataFrame, SparkSession

from untold.jobs.metrics.panel import COVERED, RELATIONS, UNDECIDED, Scale, ask_judges, ordered
from untold.jobs.settings.model import Settings
from untold.jobs.settings.sections import EndpointSettings

SUPPORT = ordered("support", "partial_support", "not_support")
Votes = tuple[Any, ...]


class VotingTools:
    """Tools whose judges have known votes on items 0, 1, ... A missing vote is an error type in angle brackets."""

    def __init__(self, spark: SparkSession, votes: list[Votes], seat: int | None = None) -> None:
        self.spark, self.votes, self.seat = spark, votes, seat

    def judges(self) -> Mapping[str, VotingTools]:
        return {f"j{seat}": VotingTools(self.spark, self.votes, seat) for seat in range(len(self.votes[0]))}

    def keep(self, frame: DataFrame, name: str) -> DataFrame:
        return frame

    def ask(self, kind: str) -> DataFrame:
        """Return the votes of one judge."""
        said = [votes[self.seat] for votes in self.votes]  # type: ignore[index]
        errors = [one[1:-1] if str(one).startswith("<") else None for one in said]
        rows = [
            (number, None if error else one, f"says {one}", f"r{number}", error, error)
            for number, (one, error) in enumerate(zip(said, errors, strict=True))
        ]
        names = "item int, label {}, reason string, request_id string, error_type string, error string"
        return self.spark.createDataFrame(rows, names.format(kind))


def decide(spark: SparkSession, votes: list[Votes], rule: Literal["majority", "all"], scale: Scale) -> list[Any]:
    judges = [EndpointSettings(base_url="http://here", model=f"j{seat}") for seat in range(len(votes[0]))]
    settings = Settings(judges=judges, judges_rule=rule)
    kind = "boolean" if True in scale else "string"
    tools: Any = VotingTools(spark, votes)
    found = ask_judges(lambda own: own.ask(kind), tools, settings, ("item",), "label", scale)  # type: ignore[arg-type, call-arg]
    return sorted(found.collect(), key=lambda row: row["item"])


def of_known(labels: Votes, rule: str, scale: Scale) -> Any:
    """Return the verdict of votes without a missing one, from the definition of the rule."""
    if rule == "majority":
        return next((label for label in scale if 2 * labels.count(label) > len(labels)), None)
    return next(label for label in scale if all(label in scale[vote] for vote in labels))


@pytest.mark.parametrize("rule", ["majority", "all"])
@pytest.mark.parametrize(("scale", "judges"), [(SUPPORT, 3), (RELATIONS, 3), (COVERED, 3), (COVERED, 2)])
def test_a_verdict_is_decided_if_no_missing_vote_can_change_it(
    spark: SparkSession, rule: Literal["majority", "all"], scale: Scale, judges: int
) -> None:
    missing = "<http_500>" if True not in scale else None
    votes = list(product([*scale, missing], repeat=judges))
    for row in decide(spark, votes, rule, scale):
        said = votes[row["item"]]
        filled = product(*([*scale] if vote == missing else [vote] for vote in said))
        possible = {of_known(labels, rule, scale) for labels in filled}
        expected = possible.pop() if len(possible) == 1 else None
        assert row["label"] == expected, (said, row)
        assert row["error_type"] == (UNDECIDED if expected is None else None)
        assert [vote["judge"] for vote in row["votes"]] == [f"j{seat}" for seat in range(judges)]
        assert [vote["label"] for vote in row["votes"]] == [
            None if vote == missing else str(vote).lower() if True in scale else vote for vote in said
        ]


def test_other_columns_are_those_of_the_first_judge_with_the_verdict(spark: SparkSession) -> None:
    (row,) = decide(spark, [("support", "not_support", "not_support")], "majority", SUPPORT)
    assert (row["label"], row["reason"], row["request_id"], row["error"]) == (
        "not_support",
        "says not_support",
        "r0",
        None,
    )


def test_an_undecided_item_waits_for_unasked_votes_and_names_the_votes_otherwise(spark: SparkSession) -> None:
    votes = [("support", "<unasked>", "<http_500>"), ("support", "not_support", "<http_500>")]
    waiting, open_ = decide(spark, votes, "majority", SUPPORT)
    assert (waiting["error_type"], open_["error_type"]) == ("unasked", UNDECIDED)
    assert open_["error"] == "the votes do not decide (majority): j0 support, j1 not_support, j2 without a label"
