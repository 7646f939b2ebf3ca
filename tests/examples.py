"""The number of examples of a property, in the proportion of the profile that is loaded."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

# The default of Hypothesis, which the profile `untold` keeps
USUAL = 100


def examples(count: int, **more: Any) -> settings:
    """Return settings for `count` examples: a fifth of them in the quick tier, ten times as many in a search."""
    loaded = settings.default
    assert loaded is not None
    return settings(max_examples=max(1, count * loaded.max_examples // USUAL), **more)
