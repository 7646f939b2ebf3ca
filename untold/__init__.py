"""Score the comprehensiveness of LLM responses: which facts of the source texts a response covers.

    >>> import untold
    >>> untold.__version__.count(".")
    2

The public names are imported on first use, so `import untold` loads neither Spark nor Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from untold import plots as plots
    from untold.jobs.api import Plan as Plan
    from untold.jobs.api import Session as Session
    from untold.jobs.run_analysis import Run as Run
    from untold.jobs.run_analysis import demo_output as demo_output
    from untold.jobs.run_analysis import open_run as open_run
    from untold.jobs.run_analysis import open_runs as open_runs
    from untold.udfs.errors import UserError as UntoldError
    from untold.udfs.judge.model import judge as judge

_WHERE = {
    "Plan": ("untold.jobs.api", "Plan"),
    "Session": ("untold.jobs.api", "Session"),
    "Run": ("untold.jobs.run_analysis", "Run"),
    "UntoldError": ("untold.udfs.errors", "UserError"),
    "demo_output": ("untold.jobs.run_analysis", "demo_output"),
    "judge": ("untold.udfs.judge.model", "judge"),
    "open_run": ("untold.jobs.run_analysis", "open_run"),
    "open_runs": ("untold.jobs.run_analysis", "open_runs"),
}
# The modules of the engine that a name needs, all modules without one
_NEEDS: dict[str, tuple[str, ...]] = {"Plan": (), "Session": (), "judge": ("onnxruntime", "tokenizers")}
__all__ = [
    "Plan",
    "Run",
    "Session",
    "UntoldError",
    "__version__",
    "demo_output",
    "judge",
    "open_run",
    "open_runs",
    "plots",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name == "__version__":
        return import_module("importlib.metadata").version("untold")
    if name == "plots":
        return import_module("untold.plots")
    if name not in _WHERE:
        raise AttributeError(f"module 'untold' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    if name in _NEEDS:
        errors = import_module("untold.udfs.errors")
        errors.require(f"untold.{name}", errors.ENGINE, *_NEEDS[name])
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
