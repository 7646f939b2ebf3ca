"""Read completions that are one text: without a label, tags, a fence or a note around it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.forms import field_key, find_records, undecorated
from untold.udfs.stages.reading import is_rule, letters, split_marker, unfenced

_GREETING = r"(?:sure|certainly|of course|okay|ok|absolutely)(?: thing)?"
_NAMES = (
    r"(?:(?:(?:restated|rewritten|rephrased|combined|final|declarative|atomic|relevant|condensed) )?"
    r"(?:summary|statement|sentence|text|sentences|information|parts|answer|output|result|context)(?: \d{1,2})?"
    r"(?: (?:is|would be|reads))?|restated|rewritten|rephrased)"
)
_LABEL = re.compile(
    rf"[#*_\s]{{0,9}}(?:the )?{_NAMES}(?:[*_]{{0,2}}\s?[:：][*_]{{0,2}}\s*|[*_]{{0,2}}\s*\n\s*)", re.IGNORECASE
)
_INTRODUCTION = re.compile(
    rf"(?:{_GREETING}(?:[,.!]+\s*|\s*\n))?(?:here(?:['’]s| is| are)|below (?:is|are)|this is|the following)\b"
    rf"[^.:\n]{{0,160}}(?:[:：][*_]{{0,2}}\s+|\.\s*\n\s*)|{_GREETING}[,.!]+\s*\n\s*",
    re.IGNORECASE,
)
_AFTERWORD = re.compile(
    r"[\s*_#>-]{0,9}(?:(?:I )?hope (?:this|that|it) (?:\w+ )?(?:helps|is)\b|(?:please )?let me know|feel free to"
    r"|would you like|is there anything else|notes?(?=\s{0,3}[*_]{0,2}\s?[:：]))",
    re.IGNORECASE,
)
_TAGS = re.compile(r"<(?P<name>[a-z_]{1,30})(?:\s[^<>\n]{0,60})?>(?P<inner>.*)</(?P=name)>", re.IGNORECASE | re.DOTALL)
_TAG_NAMES = ("answer", "summary", "statement", "text", "context", "output")
_FIRST_FIELD = re.compile(r'\s*\{\s*"(?P<name>[^"\n]{1,60})"\s*:')


def read_text(text: str, names: Sequence[str], own: str = "") -> Any:
    """Return the text of a completion, or the value of the field of one of `names` if the completion is a JSON object.

    own: the texts that the completion may repeat, notes and labels included. Raises `Unparsable` for an object that
    begins with such a field and cannot be read, and for several objects that differ.
    """
    text = unframed(unfenced(text), own)
    for opening in (_INTRODUCTION, _LABEL, _INTRODUCTION, _LABEL):
        found = opening.match(text)
        if found and not (own and found[0].strip(" :*").casefold() in own.casefold()):
            text = unframed(unfenced(text[found.end() :]), own)
    text = untagged(text)
    first = _FIRST_FIELD.match(text)
    if first is None:
        return text
    try:
        records = find_records(text, names)
    except Unparsable:
        if field_key(first["name"]) in names:
            raise
        return text
    if records is None or records[1].strip():
        return text
    if any(each != records[0][0] for each in records[0]):
        raise Unparsable("several objects")
    lone = records[0][0] if records[0] else None
    said = [lone[name] for name in names if name in lone] if isinstance(lone, dict) else []
    return said[0] if said else text


def untagged(text: str) -> str:
    """Return the text inside a pair of tags, such as `<answer>`, or the text if it has none."""
    found = _TAGS.fullmatch(text.strip())
    return found["inner"].strip() if found and found["name"].casefold() in _TAG_NAMES else text.strip()


def unframed(text: str, own: str = "") -> str:
    """Return the text without rules and emoji at its ends, and without an offer or a note in paragraphs below it."""
    lines = text.split("\n")
    for place in range(2, len(lines)):
        found = None if lines[place - 1].strip() else _AFTERWORD.match(lines[place])
        if found and letters(found[0]) not in letters(own):
            lines = lines[:place]
            break
    while lines and _says_nothing(lines[-1]):
        lines.pop()
    start = next((place for place, line in enumerate(lines) if not _says_nothing(line)), 0)
    return "\n".join(lines[start:]).strip()


def _says_nothing(line: str) -> bool:
    return is_rule(line) or not any(sign.isascii() or sign.isalnum() for sign in "".join(line.split()))


def unbulleted(text: str) -> str:
    """Return the text without a quotation mark, a bullet and surrounding emphasis."""
    text = undecorated(text.removeprefix("> "))
    row = split_marker(text)
    return undecorated(row.text) if row.marked and "\n" not in text and text[:1] in "-*+•" else text
