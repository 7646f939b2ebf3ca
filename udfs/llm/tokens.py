"""Estimates of tokens, for before an endpoint has counted them."""

from __future__ import annotations

# Usual for English text. Where scripts take fewer, estimates are low until calls are booked with the endpoint's counts
BYTES_OF_A_TOKEN = 4


def estimate_tokens(size: int) -> int:
    """A rough count of tokens for so many UTF-8 bytes.

    >>> estimate_tokens(400)
    101
    """
    return size // BYTES_OF_A_TOKEN + 1


def shown_tokens(tokens: float, *, estimated: bool) -> str:
    """A count of tokens for a person; `~` marks one that no endpoint counted.

    >>> shown_tokens(1200, estimated=True)
    '~1,200'
    """
    return f"{'~' if estimated else ''}{tokens:,.0f}"
