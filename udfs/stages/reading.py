"""Read completions: remove thinking, fences, list markers and repeated tags. Every function is total and linear."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from untold.udfs.llm.escaping import TAGS, TOKEN, find_escaped
from untold.udfs.stages.non_answers import NONE_WORDS, texts_of

# Repetitions are bounded in the patterns that are tried at many places, so that hostile text takes linear time
_THOUGHT = (
    r"(?:[a-z]{1,9}[:_ -]?)?(?:think(?:ing)?|thoughts?(?:[_ -]process)?|reason(?:ing)?|reflect(?:ion|ing)?|analysis"
    r"|scratch[_-]?pad|contemplat(?:ion|or|e)|monologue|plan(?:ning)?|rationale|cot|notes)"
)
# `<think>`, `[THINK]`, `◁think▷`, `<|begin_of_thought|>`
_THINK_OPEN = re.compile(
    rf"[<\[◁]{_THOUGHT}(?:\s[^<>\[\]\n]{{0,80}})?[>\]▷]|<\|(?:(?:begin|start)_(?:of_)?)?{_THOUGHT}\|>", re.IGNORECASE
)
_THINK_CLOSE = re.compile(rf"[<\[◁]/{_THOUGHT}[>\]▷]|<\|(?:/|end_(?:of_)?){_THOUGHT}\|>", re.IGNORECASE)

# OpenAI's models write channels. Some servers leave only their names in the text: on a line, or before the answer
_FINAL = re.compile(
    r"<\|channel\|>\s{0,9}final\s{0,9}(?:<\|constrain\|>\s{0,9}\w{0,20}\s{0,9})?<\|message\|>"
    r"|^[ \t]{0,9}assistant\s?final[ \t\r]*$|assistantfinal(?=\S)",
    re.MULTILINE,
)
_CHANNEL = re.compile(r"\s*(?:<\|start\|>\s{0,9}assistant\s{0,9})?<\|channel\|>")
_TOKENS_BEFORE = re.compile(
    r"(?:\s*(?:\ufeff|(?:<[|｜][^<>|｜\s]{1,40}[|｜]>|</?s>|\[/?INST\])(?:assistant(?=\s*[<\n]))?))*"
)
_END_OF_TURN = re.compile(rf"{TOKEN.pattern}|<\|?(?:eot|end_of_text|turn)\|?>", re.IGNORECASE)
# Tokens that open a part of an answer and do not end it: thinking, calls, `<|begin_of_box|>`
_OPENS_PART = re.compile(
    rf"<\|(?:begin|start)_of_|<\|/?(?:end_of_)?{_THOUGHT}\|>|</?(?:think|tool)|\[/?(?:think|tool)", re.IGNORECASE
)
_BEGINS_CLOSING = ("</", "[/", "◁/", "<|")
_BLANK = re.compile(r"\s*")
_FENCE = re.compile(r"(?:`{3,}|~{3,})[ \t]{0,3}[\w+-]{0,20}")
# Three digits at most: a year and a full stop end a sentence
_NUMBER_MARKER = r"(?:\d{1,3}\\?[.)]|\(\d{1,3}\)|[a-z]\))"
_LABEL_MARKER = r"(?i:statement|unit|atom|item)\s\d{1,3}\s?[:：.)]"
_SYMBOL = "[\u2190-\u21ff\u2600-\u27bf\u2b00-\u2bff\U0001f300-\U0001faff]\ufe0f?|\\d\ufe0f?\u20e3"
# A hyphen needs a space or a letter behind it, since `-5 °C` has a sign. A `*` before a word is a bullet
# if no second one makes it emphasis
_MARKER = re.compile(
    r"(?:[•‣·⁃∙⋅・⦁]|[\u25a0-\u25ff]\ufe0f?|<li>)\s*|\\(?:[-*+•](?=\s)|item\b)\s*|[-*+–—−](?:\s+|\Z)|[-–—](?=[^\W\d_])"
    r"|\*(?=[^\s*])(?!(?i:notes?\b))(?=[^*]*\Z)"
    rf"|{_NUMBER_MARKER}(?:\s+|\Z)|\*\*{_NUMBER_MARKER}\*\*(?:\s+|\Z)|\d{{1,3}}[.)](?=[A-Z\"“])"
    rf"|(?P<symbol>{_SYMBOL})\s*|(?:\*\*)?{_LABEL_MARKER}(?:\*\*)?(?:\s+|\Z)",
)
_BOLD_NUMBER = re.compile(rf"\A\*\*({_NUMBER_MARKER})\s+")
_CHECKBOXES = ("[ ]", "[x]", "[X]", "[✓]", "[✔]")
_TICKS = "✅❌✔✓✗✘☑☒☐🔹🔸🔷🔶🟢🔴🟡🔵⚪⚫👉➤➡➔►▶⭐★⚠📌✨\ufe0f"
_WORD = re.compile(r"\w+")
_NOT_LETTERS = re.compile(r"[\W\d_]+")
_RULE_CHARACTERS = "-*_=~"
_AROUND_NONE = " \t\r\n\"'“”‘’«»`*_()[]-–—•.。"
_EMPHASES = ("**", "__", "*", "`")
_LONGEST_NONE = 80  # characters, fence and quotation marks included


@dataclass(frozen=True)
class ParsedLine:
    """A line of a list: its text without marker, whether it had one, and by how many characters it was indented.

    is_symbol: the marker is a picture or an arrow. Greetings and headings may have these too.
    """

    text: str
    marked: bool
    indent: int
    is_symbol: bool = False


def first_turn(completion: str, own: Sequence[str]) -> str:
    """Return the answer of a completion up to its first end-of-turn token, with line breaks in place of all before it.

    A closing tag without an opening one ends the thinking: the chat template may have written that. Tokens and tags
    that the `own` texts of the inputs contain are text, but tokens at the end.

    >>> first_turn("Hm.</think>neutral<|im_end|>\\n<|im_start|>user", []).strip()
    'neutral'
    """
    start, end = _start_of_answer(completion), len(completion)
    tokens = [found for found in _END_OF_TURN.finditer(completion, start) if not _OPENS_PART.match(found[0])]
    known = {found[0] for text in own for found in _END_OF_TURN.finditer(text)} if tokens else set()
    for found in reversed(tokens):
        blank = _BLANK.match(completion, found.end(), end)
        if found[0] not in known or (blank and blank.end() == end):
            end = found.start()
    may_close = any(map(completion.__contains__, _BEGINS_CLOSING))
    above, closings = start, list(_THINK_CLOSE.finditer(completion, start, end)) if may_close else []
    known = {found[0] for text in own for found in _THINK_CLOSE.finditer(text)} if closings else set()
    for found in closings:
        is_lone = found[0] not in known and not _THINK_OPEN.search(completion, above, found.start())
        start, above = (found.end() if is_lone else start), found.end()
    return "\n" * start + completion[start:end].rstrip()


def _start_of_answer(completion: str) -> int:
    """Return the place behind the leading tokens and thoughts, or the end of a completion that has no answer."""
    start = 0
    # To search a long completion takes longer than all other steps
    if "assistant" in completion or "<|" in completion:
        final = _FINAL.search(completion, 0, completion.find("<|start|>user") % (len(completion) + 1))
        if final is None and _CHANNEL.match(completion):
            return len(completion)
        start = final.end() if final else 0
    while True:
        tokens = _TOKENS_BEFORE.match(completion, start)
        start = tokens.end() if tokens else start
        blank = _BLANK.match(completion, start)
        opening = _THINK_OPEN.match(completion, blank.end() if blank else start)
        closing = _THINK_CLOSE.search(completion, opening.end()) if opening else None
        if closing is None:
            # `[Reasoning]` without an end is a heading
            is_open = opening is not None and (opening[0][0] != "[" or opening[0].lower().startswith("[think"))
            return len(completion) if is_open else start
        start = closing.end()


def is_fence(line: str) -> bool:
    """Return True for the first or last line of a code fence."""
    return _FENCE.fullmatch(line.strip()) is not None


def is_rule(line: str) -> bool:
    """Return True for a horizontal rule: three or more of one drawing character."""
    drawn = "".join(line.split())
    return len(drawn) >= 3 and drawn[0] in _RULE_CHARACTERS and drawn.strip(drawn[0]) == ""


def is_drawing(line: ParsedLine) -> bool:
    """Return True for a blank line, a fence, and a rule, which may have spaces between its dashes."""
    if line.marked:
        # A marker has one dash of the rule `- - -`, so its text is shorter than a rule
        return line.text == "" or is_rule(line.text * 3)
    return line.text == "" or is_fence(line.text) or is_rule(line.text)


def unfenced(text: str) -> str:
    """Return the text inside a code fence around the whole text, or the text without a fence, trimmed."""
    lines = text.strip().split("\n")
    fences = _fences(lines)
    return "\n".join(lines[1:-1] if fences == [0, len(lines) - 1] else lines).strip()


def within_fence(text: str) -> str:
    """Return the text inside the only code fence. Return the whole text without one, and with bullets outside of it."""
    lines = text.split("\n")
    ends = _fences(lines)
    if len(ends) != 2 or ends[1] - ends[0] < 2:
        return text
    below = [line for line in lines[ends[1] + 1 :] if line.strip()][:1]
    if any(split_marker(line).marked for line in (*lines[: ends[0]], *below)):
        return text
    return "\n".join(lines[ends[0] + 1 : ends[1]])


def _fences(lines: Sequence[str]) -> list[int]:
    return [number for number, line in enumerate(lines) if is_fence(line)]


def is_none(text: str) -> bool:
    """Return True for the word `None` in any language and case, also in quotation marks, bold type or a fence."""
    return len(text) <= _LONGEST_NONE and unfenced(text).strip(_AROUND_NONE).casefold() in NONE_WORDS


def letters(text: str) -> str:
    """Return the words of a text, case folded, without digits and punctuation."""
    return _NOT_LETTERS.sub(" ", text).strip().casefold()


# In Latin, Greek and Cyrillic script. Other scripts have no spaces between words, or parts of a word have a meaning
_LAST_WORD, _LONGEST_WORD = re.compile(r"(?<!\w)[A-Za-z\u00c0-\u052f]{2,}\Z"), 40
# A word without one of these endings is a whole word
_ENDINGS = frozenset(("es", "ed", "er", "ers", "ing", "ings", "en", "ly", "al", "ies", "ness", "ion", "ions"))


def breaks_off(text: str, own: str) -> bool:
    """Return True if a text ends within a word of one of the inputs.

    >>> breaks_off("It is the viney", "The vineyard is old."), breaks_off("It is a yard", "Yards are old.")
    (True, False)
    """
    found = _LAST_WORD.search(text[-_LONGEST_WORD:])
    if found is None:
        return False
    last, words = found[0].casefold(), set(_WORD.findall(own.casefold()))
    rests = [word[len(last) :] for word in words if word.startswith(last)]
    return last not in words and any(len(rest) > 1 and rest not in _ENDINGS for rest in rests)


def collapsed(text: str) -> str:
    """Return the text with single spaces and without white space at its ends."""
    return " ".join(text.split())


def split_marker(line: str) -> ParsedLine:
    """Split a line into its first marker, a bullet or a number, and its text: `- 1. FC Köln` keeps its number.

    Ticks behind the marker and the `>` of a quotation before it are removed.
    """
    text = line.strip().removeprefix("> ").lstrip(" \t\r\u00a0\u200b\u2060\ufeff")
    indent = len(line) - len(line.lstrip())
    text = _BOLD_NUMBER.sub(r"\1 **", text)
    if marker := _MARKER.match(text):
        inner = text[marker.end() :].strip().lstrip("\u200b\u2060")
        if inner[:3] in _CHECKBOXES and inner[3:4].isspace():
            inner = inner[3:].lstrip()
        return ParsedLine(without_ticks(inner), True, indent, marker["symbol"] is not None)
    return ParsedLine(text, False, indent)


def introduces(text: str) -> bool:
    """Return True if a text ends with a colon, also within emphasis."""
    return text.rstrip("*_ \t\r\n").endswith((":", "："))


def asks(text: str) -> bool:
    """Return True if a text ends with a question mark, also within emphasis."""
    return text.rstrip(" *_").endswith(("?", "？"))


def without_start(pattern: re.Pattern[str], text: str) -> str:
    """Return the text behind the match of a pattern at its start, or the text without a match."""
    found = pattern.match(text)
    return text[found.end() :] if found else text


def without_ticks(text: str) -> str:
    """Return the text without ticks, coloured dots and arrows at its ends."""
    return text.strip(_TICKS + " \t\r") if text[:1] in _TICKS or text[-1:] in _TICKS else text


def without_emphasis(text: str) -> str:
    """Return the text without emphasis or backticks around the whole text. Emphasis inside it stays."""
    for mark in _EMPHASES:
        inner = text[len(mark) : -len(mark)]
        # `__init__` is a name, so this mark needs several words
        named = mark == "__" and " " not in inner
        if inner and not named and text.startswith(mark) and text.endswith(mark) and mark not in inner:
            return inner.strip()
    return text


# Prompts have one of these per line, so a line with such a tag is an item
_ITEMS = ("statement", "question", "aspect", "claim", "fact")
_TAG = re.compile(
    rf"(?P<before>^[^\S\n]{{0,40}}|(?<=>))?</?(?P<name>{'|'.join(TAGS)})s?"
    rf"(?:\s{{1,3}}id\s?=\s?[\"']?\d{{1,6}}[\"']?)?\s{{0,3}}>",
    re.IGNORECASE | re.MULTILINE,
)
_ROLES = ("assistant", "human", "user", "usuario", "utilisateur", "benutzer", "utente", "пользователь", "用户")
_ROLE = rf"(?:{'|'.join(_ROLES)})"
# `Human: ...`, `=== user`, `Context 1: <context>`, and the names of roles that removed tokens leave
_TURN = re.compile(
    rf"^[ \t]{{0,9}}(?:(?:[*_]{{2}}|\#{{1,6}} )?(?:{_ROLE}|(?<=\# )instruction)[*_]{{0,2}}[ \t]?[:：]"
    rf"|(?:={{2,9}}|-{{2,9}}|[\[<])[ \t]?{_ROLE}[\]> \t=-]{{0,9}}\r?$"
    rf"|(?:\w{{1,20}} \d{{1,3}}: ?)?<(?P<tag>{'|'.join(TAGS)})(?: id=[^<>\n]{{1,9}})?>)"
    r"|(?:^|(?<=[^\s-])(?=\w{4,9}[ \t\r]{0,9}\n[ \t\r]{0,9}$))(?P<name>(?-i:user|assistant))[ \t\r]{0,9}$",
    re.IGNORECASE | re.MULTILINE,
)
_MOST_TURNS, _LONGEST_GAP = 32, 16  # candidates to check, characters between one and a colon above
_BULLET = "* "

Edit = tuple[int, int, str]  # start, end, replacement


def without_echoes(text: str, own: Sequence[str]) -> tuple[str, Callable[[int], int]]:
    """Return the text without repeated tags of the prompt, and a function from its positions to those in `text`.

    A tag stays if one of the `own` texts has a tag of that name. Escaped parts of own texts are unescaped.
    """
    # The longest search of a reading, which most completions do not need
    tags = list(_TAG.finditer(text)) if "<" in text else []
    escaped = list(find_escaped(text))
    if not tags and not escaped:
        return text, lambda place: place
    named = {found["name"].lower() for each in own for found in _TAG.finditer(each)}
    edits = [_without(found) for found in tags if found["name"].lower() not in named]
    edits += [edit for edit in escaped if any(edit[2] in each for each in own)]
    return _edited(text, sorted(edits))


def next_turn(text: str, variables: Mapping[str, Any]) -> int | None:
    """Return the start of a second turn, None if there is one turn.

    The turn begins with the name of a role, or with the tag of a variable around a text that is not an own text.
    Tags of items do not begin a turn.
    """
    folded, begin = text.casefold(), len(text) - len(text.lstrip())
    # The pattern is slow: most completions have no candidate
    if "<" not in text and "instruction:" not in folded and not any(map(folded.__contains__, _ROLES)):
        return None
    found = [each for each in islice(_TURN.finditer(text), _MOST_TURNS) if each.start() > begin]
    own = "\n".join(texts_of(variables.values())) if found else ""
    names = {name for name in variables if name in TAGS} | {name[:-1] for name in variables}.difference(_ITEMS)
    found = [each for each in found if each["tag"] is None or (each["tag"].lower() in names and not _is_own(each, own))]
    found = [each for each in found if each[0].strip() not in own]
    answered = {"assistant" in each[0].casefold() for each in found if each["tag"] is None}
    # A lone word `user` may be an item
    first = next((each for each in found if each["name"] != "user" or True in answered), None)
    if first is None or introduces(text[max(0, first.start() - _LONGEST_GAP) : first.start()]):
        return None
    return first.start()


def _is_own(tag: re.Match[str], own: str) -> bool:
    """Return True if a tag encloses an own text or the rest of the completion."""
    inside, _, behind = tag.string[tag.end() :].partition(f"</{tag['tag']}")
    return inside.strip() in own or not behind[1:].strip()


def _without(tag: re.Match[str]) -> Edit:
    """Return the edit that removes a tag, or replaces the opening tag of an item by a bullet.

    An item begins a line or is behind another tag. `</claim>` closes one, and `<claims>` is around a list.
    """
    starts_line = tag.start() == 0 or tag.string[tag.start() - 1] == "\n"
    bullet = ("" if starts_line else "\n") + _BULLET
    opens_one = "/" not in tag[0] and not tag[0].rstrip("> \t\r\n").lower().endswith("s")
    is_item = tag["before"] is not None and tag["name"].lower() in _ITEMS and opens_one
    return tag.start(), tag.end(), bullet if is_item else ""


def _edited(completion: str, edits: Sequence[Edit]) -> tuple[str, Callable[[int], int]]:
    """Return the completion after all edits, and a function from its positions to those before the edits."""
    kept, ends, lost, last = [], [0], [0], 0
    for start, end, instead in edits:
        kept += [completion[last:start], instead]
        last = end
        ends.append(sum(map(len, kept[-2:])))
        lost.append(end - start - len(instead))
    kept.append(completion[last:])
    places, shifts = list(accumulate(ends)), list(accumulate(lost))
    return "".join(kept), lambda place: place + shifts[bisect_right(places, place) - 1]
