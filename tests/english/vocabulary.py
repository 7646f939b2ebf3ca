"""Find words in names that the vocabulary of the project rejects. Each thing has one word."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

# The rejected word and the word to use instead
REJECTED = {
    "answerer": "backend",
    "anew": "again",
    "asker": "actor",
    "asking": "call or stage",
    "bury": "remove",
    "culprit": "failed request",
    "likely": "expected",
    "looks": "polls",
    "mend": "fix",
    "mended": "fixed",
    "purse": "budget",
    "said": "message or output",
    "says": "states or shows",
    "sieve": "filter",
    "sift": "filter",
    "tell": "report or print",
    "tidy": "remove",
    "told": "reported or printed",
    "whoever": "the name of the person or thing",
}
# Names that users see must not have these words either
REJECTED_FOR_USERS = {
    **REJECTED,
    "asked": "sent or requested",
    "flips": "changes",
    "leaning": "preference",
    "missed": "miss rate",
    "most": "max",
    "place": "path or position",
    "sure": "certain",
}


def words_of(name: str) -> list[str]:
    """Return the words of a name in snake case or camel case, in lower case.

    >>> words_of("_BatchSubmitter.max_tokens")
    ['batch', 'submitter', 'max', 'tokens']
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_in(source: str) -> Iterator[str]:
    """Yield the names that Python source defines: classes, functions, parameters, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def count_rejected(files: Iterable[Path]) -> Counter[str]:
    """Return the number of distinct names per file that contain a rejected word, summed over the files, by word."""
    counts: Counter[str] = Counter()
    for file in files:
        for name in {*names_in(file.read_text(encoding="utf-8"))}:
            counts.update({*words_of(name)} & REJECTED.keys())
    return counts
