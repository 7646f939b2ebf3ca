"""Find the final answer of a completion, and read stages that return one text. Every function is linear."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast

from untold.udfs.stages.definitions import Refused, Unparsable
from untold.udfs.stages.lists import breaks_off
from untold.udfs.stages.non_answers import is_refusal
from untold.udfs.stages.reading import (
    first_turn,
    from_first_item,
    is_rule,
    letters,
    moved,
    next_turn,
    split_marker,
    texts_of,
    unfenced,
    without_heading,
)
from untold.udfs.stages.records import (
    Cell,
    Record,
    beside_json,
    content_of,
    field_name,
    is_call,
    is_markup,
    read_records,
    without_wrapping,
)

Row = TypeVar("Row", bound=Mapping[str, Any])
Parse: TypeAlias = Callable[[str, Mapping[str, Any]], Row]

_AROUND = r"[ \t#*_>\"]{0,9}"
# `Wait, ...` begins a line that takes back what stands above; `Final:` is a label, alone or before the answer
_TAKES_BACK = (
    r"(?:no,? |but |oh,? |hmm,? )?(?:wait|actually|hmm+|on second thoughts?|scratch that|let me (?:correct|revise"
    r"|reconsider|fix|redo)"
    r"|i (?:need|have|want) to (?:correct|revise|fix)|(?:up)?on (?:reflection|review)|correction|my mistake)\b"
)
_RELABELS = (
    r"(?:(?:corrected|revised|updated|correction)(?: (?:version|answer|list|output|json|lists|label))?"
    r"|final(?: (?:version|list|output|json|lists|label))?|final answer(?=[*_: ]{0,4}\s*\n))"
    r"[*_]{0,3}\s?(?:[:：][*_]{0,3}|(?=\n))"
)
CORRECTS = re.compile(
    rf"^{_AROUND}(?:(?P<sentence>{_TAKES_BACK})|(?P<label>{_RELABELS}))", re.IGNORECASE | re.MULTILINE
)
_SENTENCE_BEHIND = re.compile(r"[^\n]{0,1000}")
_DRAFT = re.compile(
    rf"\s{{0,9}}{_AROUND}(?:(?:my|first|initial|rough) )?(?:draft|version|attempt)\b[^\n:]{{0,20}}"
    r"(?:[:：]|[*_]{0,3}\n)",
    re.IGNORECASE,
)
# What adds to a list corrects none
_ADDS = re.compile(
    r"\b(?:forgot|miss(?:ed|ing)|left out|add(?:ing|ed)?|also|another|more|additional(?:ly)?)\b", re.IGNORECASE
)
_STRUCK = re.compile(r"(?<!~)~~(?![~\s])[^~]{1,2000}~~(?!~)")
_HAS_JSON = re.compile(r"[{\[]\s{0,9}[\"{\[]")  # which has escapes of its own
_MOST_CORRECTIONS = 3  # the last ones; each costs a reading


def final_answer(parse: Parse[Row]) -> Parse[Row]:
    """The parser, reading the last whole answer of a completion, behind its thinking; places in it stay.

    What stands above `Wait, ...` or `Final:` counts only where no answer stands below. Raises `Refused` where a
    completion declines the task.
    """
    return _reading(parse, is_text=False)


def final_text(parse: Parse[Row], *, may_be_json: bool = False) -> Parse[Row]:
    """The same for a stage of free text, which may say `Actually, ...` itself: `Draft:` has to begin it."""
    return _reading(parse, is_text=True, may_be_json=may_be_json)


def _reading(parse: Parse[Row], *, is_text: bool, may_be_json: bool = False) -> Parse[Row]:
    @wraps(parse)
    def parse_final(completion: str, variables: Mapping[str, Any]) -> Row:
        own = list(texts_of(variables.values()))
        try:
            return read_turn(completion, variables, own)
        except Unparsable as error:
            bare = without_heading(completion)
            if is_text or bare == completion or isinstance(error, Refused):
                raise
        # If thoughts were read as items, the list may begin below them
        with suppress(Unparsable):
            row = read_turn(bare, variables, own)
            is_list = any(isinstance(value, list) for value in row.values())
            if not is_list or split_marker(bare.strip().partition("\n")[0]).text not in _leaves(row):
                return row
        return read_turn(from_first_item(bare), variables, own)

    def read_turn(completion: str, variables: Mapping[str, Any], own: Sequence[str]) -> Row:
        text = _with_breaks(first_turn(completion, own), own)
        text = text if is_text else _unstruck(text, own)
        end, is_clear = next_turn(text, variables) or (len(text), True)
        try:
            return read_whole(text[:end], variables, own)
        except Unparsable as error:
            bare = without_wrapping(text[:end]) if is_clear else text
            if isinstance(error, Refused) or (is_clear and bare == text[:end]):
                raise
        row = read_whole(bare, variables, own)
        # Unwrapping moves the digits, so no offset is valid
        return cast("Row", {name: moved(value, lambda _: -1) for name, value in row.items()} if is_clear else row)

    def read_whole(text: str, variables: Mapping[str, Any], own: Sequence[str]) -> Row:
        if not is_text and is_call(text):
            raise Unparsable("a call of a tool in place of an answer")
        row = read(text, variables, own)
        said = _leaves(row)
        texts = [each for each in said if isinstance(each, str)]
        is_refused = is_call if may_be_json else is_markup
        is_wrapped = any(is_refused(each) and not any(each in every for every in own) for each in texts)
        # A unit of data may be JSON itself: `- {"a": 1}: Data Format`
        if is_wrapped and is_markup(unfenced(text)):
            raise Unparsable("JSON or a call of a tool in place of a text")
        if is_text:
            return row
        is_list = any(isinstance(value, list) for value in row.values())
        if is_list and any(map(breaks_off, [*texts, *text.strip().split("\n")[1:]])):
            raise Unparsable("a list that says that more follows")
        beside = beside_json(text) if _HAS_JSON.search(text) else ""
        with suppress(Unparsable):
            said = _leaves(read(beside, variables, own)) if beside else said
        if _leaves(row) != said:
            raise Unparsable("JSON and text that differ")
        return row

    def read(text: str, variables: Mapping[str, Any], own: Sequence[str]) -> Row:
        if is_refusal(text, own):
            raise Refused("the model declined the task")
        for found in _corrections(text, own) if not is_text or _DRAFT.match(text) else ():
            row = _behind(text, found, parse, variables)
            if row is not None:
                return row
        return parse(text, variables)

    return parse_final


def _corrections(text: str, own: Sequence[str]) -> Iterator[re.Match[str]]:
    """What takes back an answer above it, the last first; words that the own texts have are theirs."""
    begin = len(text) - len(text.lstrip())
    found = [each for each in CORRECTS.finditer(text) if each.start() > begin]
    for each in reversed(found[-_MOST_CORRECTIONS:]):
        word = (each["sentence"] or each["label"]).strip(" *_").casefold()
        if not any(word in text.casefold() for text in own):
            yield each


def _behind(text: str, found: re.Match[str], parse: Parse[Row], variables: Mapping[str, Any]) -> Row | None:
    """What the answer behind a correction says; None where there is none.

    Raises `Unparsable` where a sentence adds to the answer above, or takes it back and gives no other.
    """
    start = found.end()
    remark = _SENTENCE_BEHIND.match(text, start) if found["sentence"] else None
    start = remark.end() if remark else start
    try:
        row = parse("\n" * start + text[start:], variables)
    except Unparsable:
        return None
    if remark and _ADDS.search(remark[0]) and len(_leaves(row)) < _size_of(text[: found.start()], parse, variables):
        raise Unparsable("a list, and what is to be added to it")
    return row


def _size_of(text: str, parse: Parse[Row], variables: Mapping[str, Any]) -> int:
    try:
        return len(_leaves(parse(text, variables)))
    except Unparsable:
        return 0


def _leaves(value: Any) -> list[Any]:
    """The texts and numbers that a value holds."""
    if isinstance(value, (str, int)):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    return [leaf for each in inner for leaf in _leaves(each)] if isinstance(value, (list, dict)) else [value]


def _unstruck(text: str, own: Sequence[str]) -> str:
    """The text with white space in place of what is struck out, unless the own texts strike out too.

    What is struck out of a list in JSON is an element less, which its reader knows.
    """
    if any("~~" in each for each in own) or text.lstrip().startswith(('["', "[{")):
        return text
    return _STRUCK.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _with_breaks(text: str, own: Sequence[str]) -> str:
    """The text with breaks where a lone line writes them as `\\n`; places stay."""
    bare = text.strip()
    written_out = "\\n" in bare and "\n" not in bare and not _HAS_JSON.search(bare)
    return text.replace("\\n", " \n") if written_out and not any("\\n" in each for each in own) else text


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
