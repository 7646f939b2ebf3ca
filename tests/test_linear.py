"""Linear work passes on any machine, quadratic work does not."""

from __future__ import annotations

import pytest

from tests.linear import assert_linear


def test_linear_work_passes() -> None:
    assert_linear(lambda size: sum(range(size)), 1_000_000)


def test_quadratic_work_is_found_out() -> None:
    with pytest.raises(AssertionError, match="16 times the input took"):
        assert_linear(lambda size: sum(sum(range(size)) for _ in range(size)), 3_000)
