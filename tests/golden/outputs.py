"""The golden outputs by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tests.golden.metrics import CASES, freeze_run
from tests.golden.studies import STUDIES, freeze_compare, freeze_keys, freeze_plan, freeze_report, freeze_trend
from tests.golden.studies import meta_evaluate as evaluate
from tests.golden.tables import Tables
from tests.golden.workshop import Workshop

OUTPUTS: Mapping[str, Callable[[Workshop], Tables]] = {
    **{name: partial(freeze_run, name=name) for name in CASES},
    "keys": freeze_keys,
    "plan": freeze_plan,
    "compare": freeze_compare,
    **{name: partial(evaluate, name=name, study=study, flags=flags) for name, (study, flags) in STUDIES.items()},
    "trend": freeze_trend,
    "report": freeze_report,
}
