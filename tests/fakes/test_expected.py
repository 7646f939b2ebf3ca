"""Test that the oracles of nli and qa agree on samples without a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.fakes import expected, expected_qa

ORACLES = {
    "nli": (
        expected.expected_nli,
        expected.count_requests,
        expected.Options(),
        ("extract_atoms", "revise_atoms", "rate_relevance"),
    ),
    "qa": (
        expected_qa.expected_qa,
        expected_qa.count_requests,
        expected_qa.Options(confidence=0.0),
        ("mine_questions", "refine_questions", "answer_questions"),
    ),
}


def _sample(response: str, *contexts: Any) -> dict[str, Any]:
    query = "What is known of the home of Ada Mill?"
    return {"sample_id": "s", "query": query, "response": response, "contexts": list(contexts), "system": "x"}


@pytest.mark.parametrize("metric", ORACLES)
@pytest.mark.parametrize("contexts", [(), ("IRRELEVANT weather.", "IRRELEVANT remark.")])
def test_without_a_usable_context_no_other_request_is_sent(metric: str, contexts: Sequence[str]) -> None:
    conclude, count, options, _ = ORACLES[metric]
    sample = _sample("Ada Mill lives in Lyon.", *contexts)
    found = conclude(sample, options)
    assert (found.status, found.score, found.atoms, found.bounds) == ("no_statements", None, (), None)
    assert count([sample], options) == Counter(summarise_context=len(contexts)) - Counter()


@pytest.mark.parametrize("metric", ORACLES)
def test_a_blank_response_needs_no_request_and_covers_nothing(metric: str) -> None:
    conclude, count, options, stages = ORACLES[metric]
    sample = _sample(" ", "Ada Mill lives in Lyon.")
    assert conclude(sample, options).score == 0.0
    assert count([sample], options) == dict.fromkeys(("summarise_context", *stages), 1)
