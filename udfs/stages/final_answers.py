"""What of a completion is its answer, for all stages: not thinking, not a draft that a later one replaces, no refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from itertools import islice
from typing import Any, TypeVar

from udfs.stages.definitions import Refused, Unparsable
from udfs.stages.non_answers import is_refusal
from udfs.stages.reading import answer_in_place

Row = TypeVar("Row", bound=Mapping[str, Any])

_AROUND = r"[ \t#*_>\"]{0,9}"
# `Wait, ...` begins a paragraph that takes back what stands above; `Final:` is a label, alone or before the answer
_TAKES_BACK = (
    r"(?:no,? |but |oh,? |hmm,? )?(?:wait|actually|hmm+|on second thoughts?|scratch that|let me (?:correct|revise|reconsider|fix|redo)"
    r"|i (?:need|have|want) to (?:correct|revise|fix)|upon (?:reflection|review)|correction|my mistake)\b"
)
_RELABELS = (
    r"(?:(?:corrected|revised|updated|correction)(?: (?:version|answer|list|output|json|lists|label))?"
    r"|final(?: (?:version|list|output|json|lists|label))?|final answer(?=[*_: ]{0,4}\s*\n))"
    r"[*_]{0,3}\s?(?:[:：][*_]{0,3}|(?=\n))"
)
_CORRECTS = re.compile(
    rf"(?:^|\n[ \t\r]*)\n{_AROUND}(?P<sentence>{_TAKES_BACK})|^{_AROUND}(?P<label>{_RELABELS})", re.IGNORECASE | re.MULTILINE
)
_SENTENCE_BEHIND = re.compile(r"[^\n]{0,1000}")
# What adds to a list corrects none
_ADDS = re.compile(r"\b(?:forgot|miss(?:ed|ing)|left out|add(?:ing|ed)?|also|another|more|additional(?:ly)?)\b", re.IGNORECASE)
_MOST_CORRECTIONS = 3  # the last ones; each costs a reading


def final_answer(parse: Callable[[str, Mapping[str, Any]], Row]) -> Callable[[str, Mapping[str, Any]], Row]:
    """The parser, reading the last whole answer of a completion, behind its thinking; places in it stay.

    An answer that is taken back (`Wait, ...`, `Final:`) counts only where what stands behind is none, and says nothing
    against it. Raises `Refused` where a completion declines the task.
    """

    @wraps(parse)
    def parse_final(completion: str, variables: Mapping[str, Any]) -> Row:
        text = answer_in_place(completion)
        if is_refusal(text, _texts(variables.values())):
            raise Refused("the model declined the task")
        for found in islice(_corrections(text), _MOST_CORRECTIONS):
            row = _behind(text, found, parse, variables)
            if row is not None:
                return row
        return parse(text, variables)

    return parse_final


def _corrections(text: str) -> Iterator[re.Match[str]]:
    """What takes back an answer above it, the last first."""
    found = [each for each in _CORRECTS.finditer(text) if text[: each.start()].strip()]
    return reversed(found)


def _behind(
    text: str, found: re.Match[str], parse: Callable[[str, Mapping[str, Any]], Row], variables: Mapping[str, Any]
) -> Row | None:
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
    if remark and _ADDS.search(remark[0]) and _parses(text[: found.start()], parse, variables):
        raise Unparsable("a list, and what is to be added to it")
    return row


def _parses(text: str, parse: Callable[[str, Mapping[str, Any]], Row], variables: Mapping[str, Any]) -> bool:
    try:
        parse(text, variables)
    except Unparsable:
        return False
    return True


def _texts(values: Any) -> Iterator[str]:
    for value in values:
        yield from (str(each) for each in (value if isinstance(value, (list, tuple)) else [value]) if each)
