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
