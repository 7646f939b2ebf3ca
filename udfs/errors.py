"""The one base of errors that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """What its user can mend: an input, a setting, a folder, an endpoint, a missing part.

    The message is shown as it is, without a traceback: one line a problem that says what is wrong, where, and what to
    do next, and never holds a key, a prompt or an answer's text.
    """
