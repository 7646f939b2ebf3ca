"""Estimates of tokens, for before an endpoint has counted them."""

from __future__ import annotations


def estimate_tokens(size: int) -> int:
    """A rough count of tokens for so many UTF-8 bytes.

    Four bytes a token is usual for English text. Where scripts take fewer, the estimate is low until calls are booked
    with the endpoint's own counts.

    >>> estimate_tokens(400)
    101
    """
    return size // 4 + 1
