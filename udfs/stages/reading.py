"""Reading what models write: thinking, fences, markers of list items, `None`. Every function is total and linear."""

from __future__ import annotations

import re
from dataclasses import dataclass

_THINK_OPEN = re.compile(r"\s*<think>", re.IGNORECASE)
_THINK_CLOSE = re.compile(r"</think>", re.IGNORECASE)
_ORPHAN_CLOSE = re.compile(r"</think>[ \t\r]*(?:\n|\Z)", re.IGNORECASE)
_FENCE = re.compile(r"(?:`{3,}|~{3,})[ \t]{0,3}[\w+-]{0,20}")
_NUMBER_MARKER = r"(?:\d{1,3}[.)]|\(\d{1,3}\))"
_MARKER = re.compile(
    rf"[•●○◦▪■‣·]\s*|[-*+–—−](?:\s+|\Z)|[-–—](?=[^\W\d_])|{_NUMBER_MARKER}(?:\s+|\Z)|\*\*{_NUMBER_MARKER}\*\*(?:\s+|\Z)"
)
_BOLD_FROM_NUMBER = re.compile(rf"\*\*{_NUMBER_MARKER}\s+")
_NOT_LETTERS = re.compile(r"[\W\d_]+")
_RULE_CHARACTERS = "-*_=~"
_AROUND_NONE = " \t\r\n\"'“”‘’«»`*_()[]-–—•.。"
_EMPHASES = ("**", "*", "`")


@dataclass(frozen=True)
class Line:
    """A line of a list: its text without marker, whether it had one, and by how many characters it was indented."""

    text: str
    marked: bool
    indent: int


def strip_thinking(completion: str) -> str:
    """The completion after its leading `<think>…</think>`, trimmed; "" where that never closes.

    A chat template may have written the opening tag itself: a closing tag that ends a line, with no opening one
    before it, ends the thinking too.
    """
    return completion[end_of_thinking(completion) :].strip()


def end_of_thinking(completion: str) -> int:
    """The offset behind what `strip_thinking` removes at the front, for readers that speak of places."""
    start, thought = 0, False
    while opening := _THINK_OPEN.match(completion, start):
        closing = _THINK_CLOSE.search(completion, opening.end())
        if closing is None:
            return len(completion)
        start, thought = closing.end(), True
    if not thought:
        orphan = _ORPHAN_CLOSE.search(completion)
        if orphan and "<think>" not in completion[: orphan.start()].lower():
            start = orphan.end()
    return start


def is_fence(line: str) -> bool:
    """Whether the line is nothing but the opening or the end of a code fence."""
    return _FENCE.fullmatch(line.strip()) is not None


def is_rule(line: str) -> bool:
    """Whether the line is a horizontal rule: three or more of one drawing character."""
    drawn = "".join(line.split())
    return len(drawn) >= 3 and drawn[0] in _RULE_CHARACTERS and drawn.strip(drawn[0]) == ""


def is_drawing(line: Line) -> bool:
    """Whether a line says nothing: blank, a fence or a rule, one of spaced dashes included."""
    if line.marked:
        return line.text == "" or is_rule(line.text * 3)
    return line.text == "" or is_fence(line.text) or is_rule(line.text)


def unfenced(text: str) -> str:
    """The text inside a code fence that surrounds all of it; any other text as it is, trimmed."""
    lines = text.strip().split("\n")
    fences = [number for number, line in enumerate(lines) if is_fence(line)]
    if fences == [0, len(lines) - 1] and len(lines) > 1:
        lines = lines[1:-1]
    return "\n".join(lines).strip()


def is_none(text: str) -> bool:
    """Whether the text is a lone `None`: any case, full stop or not, quoted, bold, bulleted, bracketed or fenced."""
    return unfenced(text).strip(_AROUND_NONE).casefold() == "none"


def letters(text: str) -> str:
    """The words of a text, case folded, without digits and punctuation: what a heading or label is known by."""
    return _NOT_LETTERS.sub(" ", text).strip().casefold()


def collapsed(text: str) -> str:
    """The text trimmed and with every run of white space made one space."""
    return " ".join(text.split())


def split_marker(line: str) -> Line:
    """A line and its marker, a bullet or a number; one marker only, so that `- 1. FC Köln` keeps its number."""
    text = line.strip()
    indent = len(line) - len(line.lstrip())
    if marker := _MARKER.match(text):
        return Line(text[marker.end() :].strip(), True, indent)
    if bold := _BOLD_FROM_NUMBER.match(text):
        return Line("**" + text[bold.end() :], True, indent)
    return Line(text, False, indent)


def without_emphasis(text: str) -> str:
    """The text without bold, italics or backticks that surround all of it; emphasis inside it stays."""
    for mark in _EMPHASES:
        inner = text[len(mark) : -len(mark)]
        if inner and text.startswith(mark) and text.endswith(mark) and mark not in inner:
            return inner.strip()
    return text
