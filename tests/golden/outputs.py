"""The frozen outputs by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.golden import metrics
from tests.golden.tables import Tables
from tests.golden.workshop import Workshop

OUTPUTS: dict[str, Callable[[Workshop], Tables]] = {
    "e2e": metrics.freeze_e2e,
}
