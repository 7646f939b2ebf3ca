"""Reading the stages that give one text, where a model wraps it as JSON or between tags. Every function is linear."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.reading import is_rule, letters
from untold.udfs.stages.records import Cell, Record, content_of, field_name, read_records

_OBJECT = re.compile(r'\{\s{0,40}"(?P<first>[^"\n]{1,60})"\s{0,9}:')
_AFTERWORD = re.compile(
    r"[\s*_#>-]{0,9}(?:(?:I )?hope (?:this|that|it) (?:\w+ )?(?:helps|is)\b|(?:please )?let me know|feel free to"
    r"|would you like|is there anything else|notes?(?=\s{0,3}[*_]{0,2}\s?[:：]))",
    re.IGNORECASE,
)
_TAG = re.compile(r"<(?P<name>[a-z_]{1,30})(?:\s[^<>\n]{0,60})?>", re.IGNORECASE)


def recorded_text(text: str, names: Sequence[str]) -> str | None:
    """The field of one of `names` in a lone JSON object, `null` as it is; None where the text is something else.

    Raises `Unparsable` for an object that begins with such a field and cannot be read: it broke off. Any other one
    stays a text, since sources quote JSON too.
    """
    opening = _OBJECT.match(text)
    if opening is None:
        return None
    try:
        records = read_records(text)
    except Unparsable:
        if field_name(opening["first"]) in names:
            raise
        return None
    same = records is not None and len({content_of(value) for value in records.values}) == 1
    value = records.values[0] if records and same else None
    if records and not same and field_name(opening["first"]) in names:
        raise Unparsable("several objects")
    found = value.field(names) if isinstance(value, Record) else None
    return found.text.strip() if isinstance(found, Cell) else None


def unframed(text: str, source: str = "") -> str:
    """The text without rules and lines of emoji at its ends, and without an offer or note in paragraphs below it.

    A note stays where `source`, the text that a completion repeats, has one too.
    """
    lines = text.split("\n")
    below = (place for place in range(2, len(lines)) if _is_afterword(lines, place, source))
    kept = lines[: next(below, len(lines))]
    while kept and _says_nothing(kept[-1]):
        kept.pop()
    start = next((place for place, line in enumerate(kept) if not _says_nothing(line)), 0)
    return "\n".join(kept[start:]).strip()


def _is_afterword(lines: Sequence[str], place: int, source: str) -> bool:
    """Whether a paragraph offers more help or adds a note, which the source does not itself."""
    found = None if lines[place - 1].strip() else _AFTERWORD.match(lines[place])
    return found is not None and letters(found[0]) not in letters(source)


def _says_nothing(line: str) -> bool:
    """A blank line, a rule, or emoji alone; signs of code and of mathematics in ASCII do say something."""
    return is_rule(line) or not any(sign.isascii() or sign.isalnum() for sign in "".join(line.split()))


def untagged(text: str, names: Collection[str]) -> str:
    """The text between the tags of one of `names` that surround all of it; any other text as it is."""
    opening = _TAG.match(text)
    if opening is None or letters(opening["name"]) not in names:
        return text
    closing = f"</{opening['name']}>"
    inner = text[opening.end() : -len(closing)]
    return inner.strip() if text.endswith(closing) and closing not in inner else text
