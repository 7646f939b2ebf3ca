"""Test the claims of a sample: equal claims, the waves of their chunks, and the verdict of a claim."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.facts.claim_verdicts import (
    ChunkJudgement,
    ClaimVerdict,
    distinct_texts,
    judge_claim,
    judge_claims,
    number_claims,
    waves_of,
)
from untold.udfs.facts.nodes import normalise

RELATIONS = st.sampled_from(["entailment", "contradiction", "neutral", None])
TEXTS = st.lists(
    st.sampled_from(["Bees make honey.", "bees make  HONEY", "“Bees make honey”", "Ice floats", "ß", "SS"])
)


@st.composite
def judgements(draw: st.DrawFn) -> list[ChunkJudgement]:
    found = []
    for rank, relation in enumerate(draw(st.lists(RELATIONS, max_size=10)), start=1):
        waiting = relation is None and draw(st.booleans())
        found.append(ChunkJudgement(rank, f"c{rank}", f"d{rank % 3}", relation, relation == "entailment", waiting))
    return draw(st.permutations(found))


@given(TEXTS)
def test_equal_claims_are_the_first_of_them(texts: list[str]) -> None:
    expected = [text for at, text in enumerate(texts) if normalise(text) not in map(normalise, texts[:at])]
    assert distinct_texts(texts) == expected
    batch = pa.RecordBatch.from_pylist(
        [{"sample_id": "s", "claims": texts}],
        pa.schema([("sample_id", pa.string()), ("claims", pa.list_(pa.string()))]),
    )
    rows = [row for found in number_claims([batch]) for row in found.to_pylist()]
    assert [(row["position"], row["text"]) for row in rows] == list(enumerate(expected, start=1))


@given(st.integers(1, 40), st.booleans())
def test_waves_are_all_ranks_in_order(top: int, early_stop: bool) -> None:
    waves = waves_of(top, early_stop=early_stop)
    assert [rank for first, last in waves for rank in range(first, last + 1)] == list(range(1, top + 1))
    assert len(waves) == (sum(end < top for end in (1, 4)) if early_stop else 0) + 1


@given(judgements(), st.booleans(), st.booleans())
def test_a_verdict_is_that_of_brute_force(judged: list[ChunkJudgement], lost: bool, waiting: bool) -> None:
    found = judge_claim(judged, lost=lost, waiting=waiting)
    relations = [one.relation for one in judged]
    if "entailment" in relations:
        ranks = sorted(one.rank for one in judged if one.relation == "entailment")
        assert found == ClaimVerdict("supported", tuple(f"c{rank}" for rank in ranks), f"d{ranks[0] % 3}")
        return
    asked_for_all = not waiting and not any(one.waiting for one in judged)
    whole = asked_for_all and not lost and None not in relations
    wanted = ("contradicted" if "contradiction" in relations else "not_supported") if whole else None
    assert found == ClaimVerdict(wanted, unjudged=asked_for_all and not whole, waiting=not asked_for_all)


@given(judgements(), st.integers(1, 12))
def test_early_stop_changes_no_verdict_if_no_result_is_missing(judged: list[ChunkJudgement], top: int) -> None:
    known = [one for one in judged if one.rank <= top and one.relation is not None]
    asked: list[ChunkJudgement] = []
    for first, last in waves_of(top, early_stop=True):
        if not any(one.grounded for one in asked):
            asked += [one for one in known if first <= one.rank <= last]
    whole, stopped = judge_claim(known), judge_claim(asked)
    assert (stopped.verdict, stopped.document_id) == (whole.verdict, whole.document_id)
    assert stopped.evidence == whole.evidence[: len(stopped.evidence)]


@pytest.mark.parametrize(("probability", "verdict"), [(True, "supported"), (False, "contradicted")])
def test_the_verifier_and_not_the_relation_grounds_a_claim(probability: bool, verdict: str) -> None:
    """The verdict depends on the probability of entailment, not on the class with the highest probability."""
    assert judge_claim([ChunkJudgement(1, "c", "d", "contradiction", probability)]).verdict == verdict


def test_a_claim_without_chunks_is_not_supported() -> None:
    judged = {"judged": [], "lost": False, "waiting": False, "owner": "", "claim_key": "k"}
    lost = {**judged, "claim_key": "l", "lost": True}
    kind = pa.list_(pa.struct([("rank", pa.int64())]))
    batch = pa.RecordBatch.from_pylist(
        [judged, lost],
        pa.schema(
            [
                ("owner", pa.string()),
                ("claim_key", pa.string()),
                ("lost", pa.bool_()),
                ("waiting", pa.bool_()),
                ("judged", kind),
            ]
        ),
    )
    (found,) = judge_claims([batch])
    assert found.select(["verdict", "unjudged"]).to_pylist() == [
        {"verdict": "not_supported", "unjudged": False},
        {"verdict": None, "unjudged": True},
    ]
