"""Untold scores the comprehensiveness of LLM answers: what an answer leaves untold, for ten answers or for millions.

    >>> import untold
    >>> untold.__version__.count(".")
    2

The names below load what they need when they are first used: `import untold` starts no engine.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from untold.jobs.results import Run as Run
    from untold.jobs.results import open_run as open_run
    from untold.udfs.errors import UserError as UntoldError

_WHERE = {
    "Run": ("untold.jobs.results", "Run"),
    "UntoldError": ("untold.udfs.errors", "UserError"),
    "open_run": ("untold.jobs.results", "open_run"),
}
__all__ = ["Run", "UntoldError", "__version__", "open_run"]


def __getattr__(name: str) -> Any:
    """The public names, each imported when it is first used (PEP 562)."""
    if name == "__version__":
        return version("untold")
    if name not in _WHERE:
        raise AttributeError(f"module 'untold' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
