"""Find the answer of a completion: after thinking and corrections, before a second turn, without repeated tags."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from untold.udfs.ratings import Digit, with_leaves
from untold.udfs.stages import reading
from untold.udfs.stages.definitions import Parser, Refused, Unparsable
from untold.udfs.stages.forms import field_key, find_records, get_field, undecorated
from untold.udfs.stages.non_answers import is_refusal, texts_of

_GREETING = r"(?:sure|certainly|of course|okay|ok|absolutely|great question)(?: thing)?"
_NAMES = (
    r"(?:(?:(?:restated|rewritten|rephrased|combined|final|declarative|atomic|relevant|condensed) )?"
    r"(?:summary|statement|sentence|text|sentences|information|parts|answer|output|result|context)(?: \d{1,2})?"
    r"(?: (?:is|would be|reads))?|restated|rewritten|rephrased)"
)
_LABEL = re.compile(
    rf"[#*_\s]{{0,9}}(?:the )?{_NAMES}(?:[*_]{{0,2}}\s?[:：][*_]{{0,2}}\s*+(?!(?-i:[a-z]))|[*_]{{0,2}}\s*\n\s*)"
    r"|A:\s+|[\u4e00-\u9fff]{1,4}：\s*|\#{1,6} (?:relevant|condensed) [^\n]{1,30}\n\s*",
    re.IGNORECASE,
)
_INTRODUCTION = re.compile(
    rf"(?:{_GREETING}(?:[,.!]+\s*|\s*\n)|based on [^.:,\n]{{1,60}}, )?"
    r"(?:here(?:['’]s| is| are)|below (?:is|are)|this is|the following)\b"
    rf"(?:[^.:\n]{{0,100}}\b{_NAMES}\b[^.:\n]{{0,60}}[:：][*_]{{0,2}}\s+|[^.:\n]{{0,160}}[:：.][*_]{{0,2}}\s*\n\s*)"
    rf"|{_GREETING}[,.!]+\s*\n\s*|(?:sure|certainly)!\s+|here it is:\s",
    re.IGNORECASE,
)
_AFTERWORD = re.compile(
    r"[\s*_#>-]{0,9}(?:(?:I )?hope (?:this|that|it) (?:\w+ )?(?:helps|is|answers)\b|(?:please )?let me know"
    r"|feel free to|would you like|is there anything else|notes?(?=\s{0,3}[*_]{0,2}\s?[:：]))|\([^()\n]+\)\s*\Z",
    re.IGNORECASE,
)
_FIRST_FIELD = re.compile(r'\s*\{\s*"(?P<name>[^"\n]{1,60})"\s*:')


def read_text(text: str, names: Sequence[str], own: str = "") -> Any:
    """Return the text of a completion, or the value of the field of one of `names` if the completion is a JSON object.

    own: the texts that the completion may repeat, notes and labels included. Raises `Unparsable` for an object that
    begins with such a field and cannot be read, and for several objects that differ.
    """
    text = unframed(reading.unfenced(text), own)
    for opening in (_INTRODUCTION, _INTRODUCTION, _LABEL, _INTRODUCTION, _LABEL):
        found = opening.match(text)
        if found and not (own and found[0].strip(" :*").casefold() in own.casefold()):
            text = unframed(reading.unfenced(text[found.end() :]), own)
    first = _FIRST_FIELD.match(text)
    if first is None or field_key(first["name"]) not in names:
        return text
    records = find_records(text, names)
    if records is None or records[1].strip() or any(each != records[0][0] for each in records[0]):
        raise Unparsable("an object and more beside it")
    return get_field(records[0][0], names)


def unframed(text: str, own: str = "") -> str:
    """Return the text without rules and emoji at its ends, and without an offer or a note in paragraphs below it."""
    lines = text.split("\n")
    for place in range(2, len(lines)):
        found = None if lines[place - 1].strip() else _AFTERWORD.match(lines[place])
        if found and reading.letters(found[0]) not in reading.letters(own):
            lines = lines[:place]
            break
    while lines and _is_blank(lines[-1]):
        lines.pop()
    start = next((place for place, line in enumerate(lines) if not _is_blank(line)), 0)
    return "\n".join(lines[start:]).strip()


def _is_blank(line: str) -> bool:
    return reading.is_rule(line) or not any(sign.isascii() or sign.isalnum() for sign in "".join(line.split()))


def unbulleted(text: str) -> str:
    """Return the text without a quotation mark, a bullet and surrounding emphasis."""
    text = undecorated(text.removeprefix("> "))
    row = reading.split_marker(text)
    return undecorated(row.text) if row.marked and "\n" not in text and text[:1] in "-*+•" else text


# `Wait, ...` begins a line that takes back the answer above; `Final:` is a label, alone or before the answer
_CORRECTION = re.compile(
    r"^[ \t#*_>\"]{0,9}(?:(?P<sentence>(?:no,? |but |oh,? |hmm,? )?(?:wait|actually|hmm+|on second thoughts?"
    r"|scratch that|let me (?:correct|revise|reconsider|fix|redo)|i (?:need|have|want) to (?:correct|revise|fix)"
    r"|(?:up)?on (?:reflection|review)|correction|my mistake)\b[^\n]*)"
    r"|(?:corrected|revised|updated|final)(?: (?:version|answer|list|output|json|lists|label|verdict))?"
    r"[*_]{0,3}\s?(?:[:：][*_]{0,3}|(?=\n)))",
    re.IGNORECASE | re.MULTILINE,
)
_ADDS = re.compile(
    r"\b(?:forgot|miss(?:ed|ing)|left out|add(?:ing|ed)?|also|another|more|additional(?:ly)?)\b", re.IGNORECASE
)
_STRUCK = re.compile(r"(?<!~)~~(?![~\s])[^~]{1,2000}~~(?!~)")
_CALL = re.compile(
    r"\s*(?:<(?:tool_call|function|tool)[ _=>]|\[TOOL_CALLS?\]"
    r"|\{\s*\"(?:name|function)\"\s*:[^{}]{0,200}\"arguments\"\s*:)"
)
_ALOUD = re.compile(
    r"[\s#*_]{0,9}(?:here(?:['’]s| is) )?(?:my |the )?(?:thought process|thinking(?: process)?|thoughts"
    r"|chain of thought|(?:first |rough )?draft|gedanken|réflexion|pensamientos?|思考过程)[*_]{0,2}\s{0,3}[:：]",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"[\W_]*(?:(?:…|\.\.\.)\W*(?:(?:and|und|plus)\b[^\n]{0,40})?|etc\.?|and so (?:on|forth)"
    r"|(?:and |plus |und )?(?:\d{1,4}|many|several|some) (?:more|others?|weitere)\b[^\n]{0,20}"
    r"|[(\[](?:continued|truncated)\b[^\n]{0,20})\W*",
    re.IGNORECASE,
)
_WRAPPER = re.compile(
    r"</?(?:final_?)?(?P<name>answer|output|response|result|label|relation|verdict|classification|conclusion|summary"
    r"|statement|text|context|list|rating|claim|fact|question|nugget|topic)s?>",
    re.IGNORECASE,
)
# An object of JSON, or a value that is assigned: `claims = [...]`
_MARKUP = re.compile(r"\{\s{0,9}\\{0,3}\"\w{1,40}\\{0,3}\"\s?:|\A\w{1,20} = [\"\[{]")


def reader(read: Parser, *, is_text: bool = False, may_be_code: bool = False, reasons: bool = False) -> Parser:
    """Return the parser of a stage. It calls `read` with the answer of a completion, and corrects digit positions.

    is_text: the answer is free text, which may contain `Actually, ...`. may_be_code: the answer may contain JSON.
    reasons: the answer may begin with reasons.
    Raises `Refused` if the completion declines the task, and `Unparsable` if it is empty or withdraws its answer.
    """

    @wraps(read)
    def parse(completion: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        own = list(texts_of(variables.values()))
        text = reading.first_turn(completion, own)
        text, place_of = reading.without_echoes(text[: reading.next_turn(text, variables)], own)
        if is_refusal(text, own):
            raise Refused("the model declined the task")
        if not text.strip():
            raise Unparsable("no answer after the thinking")
        tags = list(_WRAPPER.finditer(text))
        if len(tags) == 2 and tags[0]["name"] == tags[1]["name"] and not any(map(_WRAPPER.search, own)):
            text = _WRAPPER.sub(lambda tag: " " * len(tag[0]), text)
        if _CALL.match(text) and not any(map(_CALL.search, own)):
            raise Unparsable("a call of a tool in place of an answer")
        unquoted = _unquoted(text)
        row = _read_final(unquoted, variables, read_without_thoughts, is_text=is_text)
        texts = list(texts_of([row]))
        if not may_be_code and any(map(_MARKUP.search, texts)) and not any(map(_MARKUP.search, own)):
            raise Unparsable("markup in place of a text")
        last = [line for line in text.split("\n") if line.strip() and not reading.is_fence(line)][-1:]
        is_list = not is_text and any(isinstance(value, list) for value in row.values())
        if is_list and any(map(_GOES_ON.fullmatch, [*last, *texts])):
            raise Unparsable("an incomplete list")

        def moved(leaf: Any) -> Any:
            """Return a digit with its position in the whole completion. An unknown position stays -1."""
            if not isinstance(leaf, Digit) or leaf.offset < 0:
                return leaf
            # The digits of a quoted JSON string have other positions in the completion
            return replace(leaf, offset=place_of(leaf.offset) if unquoted == text else -1)

        moved_row: Mapping[str, Any] = with_leaves(row, moved)
        return moved_row

    def read_without_thoughts(text: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        if not reasons and _ALOUD.match(text.lstrip()):
            raise Unparsable("thoughts in place of an answer")
        return read(text, variables)

    return parse


def _unquoted(text: str) -> str:
    """Return the value of a text that is one JSON string, or the text."""
    bare = reading.unfenced(text)
    if not bare.startswith('"') or not bare.endswith('"') or "\\" not in bare:
        return text
    try:
        inner = json.loads(bare)
    except ValueError:
        return text
    return inner if isinstance(inner, str) else text


def _read_final(text: str, variables: Mapping[str, Any], read: Parser, *, is_text: bool) -> Mapping[str, Any]:
    """Read the part behind the last correction. Raises `Unparsable` if the correction adds to a list."""
    if is_text:
        return read(text, variables)
    own = "\n".join(texts_of(variables.values())).casefold()
    if "~~" not in own:
        text = _STRUCK.sub(lambda found: " " * len(found[0]), text)
    begin = len(text) - len(text.lstrip())
    said = [(each, each[0].strip(' *_#>"').casefold()) for each in _CORRECTION.finditer(text) if each.start() > begin]
    # A repeated label belongs to items
    counts = Counter(label for _, label in said)
    found = [each for each, label in said if label not in own and (each["sentence"] or counts[label] == 1)]
    if not found:
        return read(text, variables)
    end = found[-1].end()
    row = read("\n" * end + text[end:], variables)
    if found[-1]["sentence"] and _ADDS.search(found[-1]["sentence"]) and any(isinstance(v, list) for v in row.values()):
        raise Unparsable("an answer and an addition to it")
    labels = next(iter(row.values()))
    if isinstance(labels, list) and None in labels:
        raise Unparsable("an answer and a correction of a part of it")
    return row
