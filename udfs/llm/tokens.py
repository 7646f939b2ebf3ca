"""Estimates of tokens, for before an endpoint has counted them."""

from __future__ import annotations


def estimate_tokens(size: int) -> int:
    """A rough count of tokens for so many UTF-8 bytes."""
    return size // 4 + 1
