"""Which failures pass, and are asked again by the next run, and which last."""

from __future__ import annotations

# HTTP 408, 409, 425 and 429 say "not now", as 5xx do; every other 4xx would be the same the next time.
PASSING = ("timeout", "connection", "bad_body", "bad_finish", "http_408", "http_409", "http_425", "http_429")
PASSING_PREFIX = "http_5"


def is_passing(error_type: str) -> bool:
    """Whether a failure of this type has a passing reason."""
    return error_type in PASSING or error_type.startswith(PASSING_PREFIX)
