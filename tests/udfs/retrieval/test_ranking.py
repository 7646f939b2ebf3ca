"""The order of hits does not depend on how chunks were spread over shards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.retrieval.terms import Hit, decimals_of, fuse_rankings, rank_hits

HITS = st.dictionaries(st.text("a\u00e9\U0001f600#0", min_size=1, max_size=3), st.sampled_from([0.0, 0.5, 1.0]))


@given(HITS, st.lists(st.integers(0, 6), min_size=30, max_size=30), st.integers(1, 5))
def test_the_best_of_all_shards_best_are_the_best_of_all(
    similarities: dict[str, float], shards: list[int], k: int
) -> None:
    hits = [Hit(*item) for item in similarities.items()]
    by_shard: dict[int, list[Hit]] = {}
    for hit, shard in zip(hits, shards, strict=False):
        by_shard.setdefault(shard, []).append(hit)
    rest = hits[len(shards) :]
    merged = rank_hits([*rest, *(hit for found in by_shard.values() for hit in rank_hits(found, k))], k)
    assert merged == rank_hits(hits, k)


def test_equal_hits_are_in_the_order_of_their_ids_by_code_point() -> None:
    ids = ["b#0", "\U0001f600#0", "\ufb01#0", "a#10", "a#2"]
    assert [hit.chunk_id for hit in rank_hits([Hit(name, 1.0) for name in ids], 9)] == [
        "a#10",
        "a#2",
        "b#0",
        "\ufb01#0",
        "\U0001f600#0",
    ]


def test_cosines_are_compared_by_six_decimals() -> None:
    hits = [Hit("b", 0.7071068286895752), Hit("a", 0.7071067690849304), Hit("c", 0.7071079)]
    assert [hit.chunk_id for hit in rank_hits(hits, 9, decimals_of("dense"))] == ["c", "a", "b"]
    assert [hit.chunk_id for hit in rank_hits(hits, 9, decimals_of("bm25"))] == ["c", "b", "a"]


def test_fusion_sums_the_reciprocals_of_ranks() -> None:
    dense = [Hit("a", 0.9), Hit("b", 0.8), Hit("c", 0.7)]
    words = [Hit("c", 5.0), Hit("d", 4.0)]
    assert fuse_rankings([dense, words], 3) == [Hit("c", 1 / 63 + 1 / 61), Hit("a", 1 / 61), Hit("b", 1 / 62)]


def test_fusion_prefers_the_lower_id_of_two_equal_sums() -> None:
    assert [hit.chunk_id for hit in fuse_rankings([[Hit("b", 1.0)], [Hit("a", 1.0)]], 2)] == ["a", "b"]
