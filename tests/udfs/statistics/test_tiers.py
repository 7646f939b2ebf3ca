"""Test the tiers of agreement and the samples of references that are drawn by tier."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.statistics.item_agreement import (
    Subset,
    all_tiers,
    largest_remainder,
    quotas_of,
    read_subset,
    shortages,
    tier_of,
)

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), min_size=1).filter(
    lambda one: sum(one.values())
)


@given(st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_tier_is_how_many_methods_agree(says: list[bool]) -> None:
    methods = [f"m{place}" for place in range(len(says))]
    found, calling = tier_of(dict(zip(methods, says, strict=True))), sum(says)
    assert found in all_tiers(methods)
    assert (found == "none") == (calling == 0)
    assert (found == "full") == (calling == len(says))
    if calling == 1 < len(says):
        assert found == f"singleton:{methods[says.index(True)]}"


@given(COUNTS, st.integers(0, 400))
def test_shares_are_within_one_of_their_proportion_and_sum_up(counts: dict[str, int], size: int) -> None:
    found, total = largest_remainder(counts, size), sum(counts.values())
    assert list(found) == list(counts)
    assert sum(found.values()) == min(size, total)
    assert all(found[name] <= counts[name] for name in counts)
    if size < total:
        shares = {name: Fraction(count * size, total) for name, count in counts.items()}
        assert all(abs(found[name] - share) < 1 for name, share in shares.items())
        more = [shares[name] % 1 for name in counts if found[name] > shares[name]]
        less = [shares[name] % 1 for name in counts if found[name] < shares[name]]
        assert not more or not less or min(more) >= max(less)


@given(st.integers(1, 400), st.integers(1, 5))
def test_half_of_the_challenging_references_are_partial(size: int, number: int) -> None:
    methods = [f"m{place}" for place in range(number)]
    quotas = quotas_of(Subset("challenging", size), {}, methods)
    singles = [quotas[f"singleton:{name}"] for name in methods]
    assert sum(quotas.values()) == size
    assert quotas["partial"] - sum(singles) in (0, 1)
    assert max(singles) - min(singles) <= 1


def test_what_is_missing_is_named() -> None:
    quotas = quotas_of(Subset("challenging", 300), {}, ["a", "b"])
    assert quotas == {"partial": 150, "singleton:a": 75, "singleton:b": 75}
    short = shortages(Subset("challenging", 300), quotas, {"partial": 150, "singleton:a": 9, "full": 1})
    assert short == {"singleton:a": (9, 75), "singleton:b": (0, 75)}
    assert shortages(Subset("standard", 5), {}, {"full": 5}) == {}


@pytest.mark.parametrize("text", ["standard", "standard:", "standard:0", "standard:-1", "hard:3", "challenging:x"])
def test_other_texts_name_no_subset(text: str) -> None:
    with pytest.raises(ValueError, match="is neither standard:N nor challenging:N"):
        read_subset(text)
