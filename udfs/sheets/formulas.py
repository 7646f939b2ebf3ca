"""Texts that a spreadsheet would take for a formula."""

from __future__ import annotations

import re

# Full-width forms included; the apostrophes make guarding reversible
FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def guard(text: str) -> str:
    """The text with an apostrophe before it where a spreadsheet would take it for a formula.

    >>> guard("=1+1"), guard("'=1+1"), guard("plain")
    ("'=1+1", "''=1+1", 'plain')
    """
    return f"'{text}" if FORMULA.match(text) else text


def unguard(text: str) -> str:
    """The text that `guard` was given.

    >>> unguard(guard("=1+1")), unguard("'quoted'")
    ('=1+1', "'quoted'")
    """
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text
