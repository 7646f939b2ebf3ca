"""Test the names of metrics: the suggestions for misspelled names and for the names of other tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from untold.jobs.cli.main import main
from untold.jobs.metrics import ALIASES, METRICS, UnknownMetricError, check_metrics
from untold.udfs.facts.rag_measures import PUBLISHED

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "coming-from.md"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("faithfulness", "rag has the measure faithfulness"),
        ("Faithfullness", "faithfulness: rag has the measure faithfulness"),
        ("context-recall", "rag has the measure claim_recall"),
        ("context precision", "rag has the measure context_precision"),
        ("FactualCorrectness", "factual_correctness: the score of rag is F1 of claims"),
        ("response relevancy", "answer_relevancy measures it"),
        ("nil", "did you mean nli?"),
    ],
)
def test_a_name_of_another_tool_is_explained(name: str, told: str) -> None:
    with pytest.raises(UnknownMetricError, match=re.escape(told)):
        check_metrics(name)


def test_a_suggestion_is_one_line_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["score", "--input", "a", "--output", "b", "--metric", "faithfulness"])
    assert "faithfulness: rag has the measure faithfulness" in capsys.readouterr().err


def test_suggestions_name_metrics_and_measures() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for told in ALIASES.values():
        assert set(re.findall(r"\w+", told)) & set(METRICS)
        for measure in re.findall(r"the measure (\w+)$", told):
            assert measure in PUBLISHED
            assert f"`{measure}` of `rag`" in page
