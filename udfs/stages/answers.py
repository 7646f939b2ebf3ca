"""Find the answer of a completion: behind thinking and corrections, before a second turn, without repeated tags."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from untold.udfs.stages.definitions import Refused, Unparsable
from untold.udfs.stages.non_answers import is_refusal
from untold.udfs.stages.reading import (
    first_turn,
    from_first_item,
    is_fence,
    moved,
    next_turn,
    texts_of,
    unfenced,
    without_echoes,
    without_heading,
)

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
    r"|\(?(?:continued|truncated)\b[^\n]{0,20})\W*",
    re.IGNORECASE,
)
_NOT_A_BREAK = re.compile(r"[^\n]")
# An object of JSON, or a value that is assigned: `claims = [...]`
_MARKUP = re.compile(r"\{\s{0,9}\\{0,3}\"\w{1,40}\\{0,3}\"\s?:|\A\w{1,20} = [\"\[{]")


def reader(read: Read[Row], *, is_text: bool = False, may_be_code: bool = False) -> Read[Row]:
    """Return the parser of a stage: it calls `read` with the answer of a completion and keeps the positions of
    digits.

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
        end, _ = next_turn(text, variables) or (len(text), True)
        text, place_of = without_echoes(text[:end], own)
        if is_refusal(text, own):
            raise Refused("the model declined the task")
        if not text.strip():
            raise Unparsable("no answer after the thinking")
        if _CALL.match(text) and not any(map(_CALL.search, own)):
            raise Unparsable("a call of a tool in place of an answer")
        row = _read_final(_unquoted(text), variables, read, is_text=is_text)
        if not may_be_code and any(map(_MARKUP.search, _texts_in(dict(row)))) and not any(map(_MARKUP.search, own)):
            raise Unparsable("markup in place of a text")
        last = [line for line in text.split("\n") if line.strip() and not is_fence(line)][-1:]
        is_list = not is_text and any(isinstance(value, list) for value in row.values())
        if is_list and any(map(_GOES_ON.fullmatch, [*last, *_texts_in(row)])):
            raise Unparsable("an incomplete list")
        return cast("Row", {name: moved(value, place_of) for name, value in row.items()})

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
