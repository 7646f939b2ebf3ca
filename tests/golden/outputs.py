"""The frozen outputs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tests.golden.metrics import CASES, freeze_run
from tests.golden.tables import Tables
from tests.golden.workshop import Workshop

OUTPUTS: Mapping[str, Callable[[Workshop], Tables]] = {name: partial(freeze_run, name=name) for name in CASES}
