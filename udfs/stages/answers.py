"""Find the answer of a completion: after thinking and corrections, before a second turn, without repeated tags."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from untold.udfs.stages.definitions import Refused, Unparsable
from untold.udfs.stages.forms import field_key, find_records, undecorated
from untold.udfs.stages.non_answers import is_refusal
from untold.udfs.stages.reading import (
    first_turn,
    from_first_item,
    is_fence,
    is_rule,
    letters,
    moved,
    next_turn,
    split_marker,
    texts_of,
    unfenced,
    without_echoes,
    without_heading,
)

_GREETING = r"(?:sure|certainly|of course|okay|ok|absolutely)(?: thing)?"
_NAMES = (
    r"(?:(?:(?:restated|rewritten|rephrased|combined|final|declarative|atomic|relevant|condensed) )?"
    r"(?:summary|statement|sentence|text|sentences|information|parts|answer|output|result|context)(?: \d{1,2})?"
    r"(?: (?:is|would be|reads))?|restated|rewritten|rephrased)"
)
_LABEL = re.compile(
    rf"[#*_\s]{{0,9}}(?:the )?{_NAMES}(?:[*_]{{0,2}}\s?[:：][*_]{{0,2}}\s*+(?!(?-i:[a-z]))|[*_]{{0,2}}\s*\n\s*)",
    re.IGNORECASE,
)
_INTRODUCTION = re.compile(
    rf"(?:{_GREETING}(?:[,.!]+\s*|\s*\n))?(?:here(?:['’]s| is| are)|below (?:is|are)|this is|the following)\b"
    rf"(?:[^.:\n]{{0,100}}\b{_NAMES}\b[^.:\n]{{0,60}}[:：][*_]{{0,2}}\s+|[^.:\n]{{0,160}}[:：.][*_]{{0,2}}\s*\n\s*)"
    rf"|{_GREETING}[,.!]+\s*\n\s*",
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
    while lines and _is_blank(lines[-1]):
        lines.pop()
    start = next((place for place, line in enumerate(lines) if not _is_blank(line)), 0)
    return "\n".join(lines[start:]).strip()


def _is_blank(line: str) -> bool:
    return is_rule(line) or not any(sign.isascii() or sign.isalnum() for sign in "".join(line.split()))


def unbulleted(text: str) -> str:
    """Return the text without a quotation mark, a bullet and surrounding emphasis."""
    text = undecorated(text.removeprefix("> "))
    row = split_marker(text)
    return undecorated(row.text) if row.marked and "\n" not in text and text[:1] in "-*+•" else text


Row = TypeVar("Row", bound=Mapping[str, Any])
Read = Callable[[str, Mapping[str, Any]], Row]

# `Wait, ...` begins a line that takes back the answer above; `Final:` is a label, alone or before the answer
_CORRECTION = re.compile(
    r"^[ \t#*_>\"]{0,9}(?:(?P<sentence>(?:no,? |but |oh,? |hmm,? )?(?:wait|actually|hmm+|on second thoughts?"
    r"|scratch that|let me (?:correct|revise|reconsider|fix|redo)|i (?:need|have|want) to (?:correct|revise|fix)"
    r"|(?:up)?on (?:reflection|review)|correction|my mistake)\b[^\n]*)"
    r"|(?:corrected|revised|updated|final)(?: (?:version|answer|list|output|json|lists|label|verdict))?"
    r"[*_]{0,3}\s?(?:[:：][*_]{0,3}|(?=\n)))",
    re.IGNORECASE | re.MULTILINE,
)
_DRAFT = re.compile(
    r"\W{0,9}(?:(?:my|first|initial|rough) )?(?:draft|version|attempt)\b[^\n:]{0,20}[:：\n]", re.IGNORECASE
)
_ADDS = re.compile(
    r"\b(?:forgot|miss(?:ed|ing)|left out|add(?:ing|ed)?|also|another|more|additional(?:ly)?)\b", re.IGNORECASE
)
_STRUCK = re.compile(r"(?<!~)~~(?![~\s])[^~]{1,2000}~~(?!~)")
_CALL = re.compile(
    r"\s*(?:<(?:tool_call|function|tool)[ _=>]|\[TOOL_CALLS?\]"
    r"|\{\s*\"(?:name|function)\"\s*:[^{}]{0,200}\"arguments\"\s*:)"
)
_GOES_ON = re.compile(
    r"[\W_]*(?:(?:…|\.\.\.)\W*(?:(?:and|und|plus)\b[^\n]{0,40})?|etc\.?|and so (?:on|forth)"
    r"|(?:and |plus |und )?(?:\d{1,4}|many|several|some) (?:more|others?|weitere)\b[^\n]{0,20}"
    r"|[(\[](?:continued|truncated)\b[^\n]{0,20})\W*",
    re.IGNORECASE,
)
_NOT_A_BREAK = re.compile(r"[^\n]")
# An object of JSON, or a value that is assigned: `claims = [...]`
_MARKUP = re.compile(r"\{\s{0,9}\\{0,3}\"\w{1,40}\\{0,3}\"\s?:|\A\w{1,20} = [\"\[{]")


def reader(read: Read[Row], *, is_text: bool = False, may_be_code: bool = False) -> Read[Row]:
    """Return the parser of a stage. It calls `read` with the answer of a completion, and corrects digit positions.

    is_text: the answer is free text, which may contain `Actually, ...`. may_be_code: the answer may contain JSON.
    Raises `Refused` if the completion declines the task, and `Unparsable` if it is empty or withdraws its answer.
    """

    @wraps(read)
    def parse(completion: str, variables: Mapping[str, Any]) -> Row:
        own = list(texts_of(variables.values()))
        try:
            return read_answer(completion, variables, own)
        except Unparsable as error:
            bare = without_heading(completion)
            if is_text or bare == completion or isinstance(error, Refused):
                raise
        # A heading of thoughts without an end does not hide the form below it; a list has to have bullets there
        items = from_first_item(bare)
        row = read_answer(items or bare, variables, own)
        if not items and not set(_texts_in(row)).isdisjoint(line.strip() for line in bare.split("\n")):
            raise Unparsable("lines that may be thoughts")
        return row

    def read_answer(completion: str, variables: Mapping[str, Any], own: Sequence[str]) -> Row:
        text = first_turn(completion, own)
        text, place_of = without_echoes(text[: next_turn(text, variables)], own)
        if is_refusal(text, own):
            raise Refused("the model declined the task")
        if not text.strip():
            raise Unparsable("no answer after the thinking")
        if _CALL.match(text) and not any(map(_CALL.search, own)):
            raise Unparsable("a call of a tool in place of an answer")
        unquoted = _unquoted(text)
        row = _read_final(unquoted, variables, read, is_text=is_text)
        if not may_be_code and any(map(_MARKUP.search, _texts_in(dict(row)))) and not any(map(_MARKUP.search, own)):
            raise Unparsable("markup in place of a text")
        last = [line for line in text.split("\n") if line.strip() and not is_fence(line)][-1:]
        is_list = not is_text and any(isinstance(value, list) for value in row.values())
        if is_list and any(map(_GOES_ON.fullmatch, [*last, *_texts_in(row)])):
            raise Unparsable("an incomplete list")
        # The digits of a quoted JSON string have other positions in the completion
        position_of = place_of if unquoted == text else lambda _: -1
        return cast("Row", {name: moved(value, position_of) for name, value in row.items()})

    return parse


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts that a value holds, at any depth."""
    if isinstance(value, str):
        yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for each in inner:
        yield from _texts_in(each)


def _unquoted(text: str) -> str:
    """Return the value of a text that is one JSON string, or the text."""
    bare = unfenced(text)
    if not bare.startswith('"') or not bare.endswith('"') or "\\" not in bare:
        return text
    try:
        inner = json.loads(bare)
    except ValueError:
        return text
    return inner if isinstance(inner, str) else text


def _read_final(text: str, variables: Mapping[str, Any], read: Read[Row], *, is_text: bool) -> Row:
    if is_text and not _DRAFT.match(text):
        return read(text, variables)
    own = "\n".join(texts_of(variables.values())).casefold()
    if not is_text and "~~" not in own:
        text = _STRUCK.sub(lambda found: _NOT_A_BREAK.sub(" ", found[0]), text)
    begin = len(text) - len(text.lstrip())
    found = [
        each
        for each in _CORRECTION.finditer(text)
        if each.start() > begin and each[0].strip(' *_#>"').casefold() not in own
    ]
    # A repeated label belongs to items
    said = Counter(each[0].strip(' *_#>"').casefold() for each in found)
    found = [each for each in found if each["sentence"] or said[each[0].strip(' *_#>"').casefold()] == 1]
    if found:
        last = found[-1]
        try:
            row = read("\n" * last.end() + text[last.end() :], variables)
        except Unparsable:
            if last["sentence"]:
                raise
        else:
            is_list = any(isinstance(value, list) for value in row.values())
            if is_list and last["sentence"] and _ADDS.search(last["sentence"]):
                raise Unparsable("an answer and an addition to it")
            return row
    return read(text, variables)
