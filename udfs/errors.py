"""The one base of errors that a user can mend."""

from __future__ import annotations

from importlib.util import find_spec


class UserError(Exception):
    """What its user can mend: an input, a setting, a folder, an endpoint, a missing part.

    The message is shown as it is, without a traceback: one line a problem that says what is wrong, where, and what to
    do next, and never holds a key, a prompt or an answer's text.
    """


def require(what: str, extra: str, *modules: str) -> None:
    """Raises UserError where a module is not installed: which package `what` needs, and the extra that brings it.

    >>> require("sweep", "study", "json")
    """
    missing = [module.replace("_", "-") for module in modules if find_spec(module) is None]
    if missing:
        raise UserError(f"{what} needs {', '.join(missing)}: pip install 'untold[{extra}]'")
