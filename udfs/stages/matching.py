"""Reading whether a candidate entails a fact, Match or No Match (Ardestani, Kamalloo, Rafiei; methods, section 9)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from untold.udfs.stages.comparison import BOXED
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.labels import STRUCK, behind_correction, first_answer
from untold.udfs.stages.reading import is_drawing, letters, split_marker, strip_thinking
from untold.udfs.stages.records import Cell, Record, field_name, read_records

VARIABLES = ("reference", "candidate")

_STRONG = r"exact|perfect|literal|verbatim|strict|direct|strong|clear|good|full|complete|true|real|valid|definite"
_WEAK = r"partial|near|close|approximate|possible|potential|likely|probable|weak|loose|rough|half|borderline"
_ADVERBS = r"really|actually|truly|quite|fully|exactly|clearly|directly|strictly|entirely|completely"
# What is neither: a partial match, and what is no exact one
_HEDGED = (
    rf"(?:(?:no|not|[a-z]{{2,6}}n['’]t)\s(?:be\s)?(?:an?\s)?(?:{_STRONG})|{_WEAK})[\s_-]match(?:es|ed|ing)?"
    r"|(?:partially|partly|nearly|almost|possibly|probably|maybe|perhaps|somewhat|loosely|only|in part)\s(?:an?\s)?"
    r"match(?:es|ed)?"
    r"|match(?:es|ed)?[\s:(,–—-]{1,4}(?:only|in part|partly|partially|partial|to some)\b"
)
_DENIED = (
    r"no(?:t|n)?(?:[\s_‐‑‒–—-]|[*`]{1,3}\s){0,2}match(?:es|ed|ing)?"
    r"|mis[\s-]?match(?:es|ed|ing)?|unmatched|without (?:a )?match"
    r"|(?:not|[a-z]{2,6}n['’]t|cannot)[\s_]"
    rf"(?:(?:{_ADVERBS}|be|considered|counted|count|as|constitute|seem|to)\s){{0,4}}"
    r"(?:an?[\s_])?match(?:es|ed|ing)?"
    r"|fails? to match|neither\s(?:an?\s)?match"
)
# `Match: ❌` is none
_AFFIRMED = rf"(?:(?:{_STRONG})[\s_-])?match(?:es|ed)?(?![\s:=*_-]{{0,6}}[❌✗✘✖🚫👎])"
# A word that goes on, a question, and a key of JSON are no answers
_ENDS_WORD = r"(?![^\W_]|[\W_]{0,3}\?|[\"'`]\s{0,3}[:：])"
_LABEL = rf"(?:(?P<hedged>{_HEDGED})|(?P<denied>{_DENIED})|(?P<affirmed>{_AFFIRMED})){_ENDS_WORD}"
_OTHER_LABEL = (
    r"(?!['\"*_`]{0,3}\s{0,2}(?:[/|,]\s?(?:or|and|vs)?|or|vs|and)\s{0,2}[*_\"'`]{0,3}(?:no(?:t|n)?[\s_-]|mis)?match)"
)
_MENTION = re.compile(rf"(?<![^\W_]){_LABEL}", re.IGNORECASE)
_STATED = re.compile(
    r"(?<![^\W_])(?:(?:answer|verdict|result|label|classification|category|conclusion|decision|judge?ment|output"
    r"|determination|assessment|evaluation|match(?:es|ed)?(?=[\W_]{0,4}[:=?：]))"
    r"[\W_]{0,6}(?:(?:is|would be)(?: that)?\b)?"
    r"|(?P<inferred>therefore|thus|hence|overall|in conclusion|so))[\W_]{0,8}"
    r"(?:(?:it|this|that|they|these|(?:the )?(?:candidate|reference|two|pair|facts|statements)(?: fact| statement)?)"
    r"\s(?:(?:is|are|do|does|would be|counts? as|constitutes?)\s?(?=n['’]t|\b))?)?(?:an?\s)?"
    rf"(?:{_LABEL}{_OTHER_LABEL}|(?P<word>yes|no|true|false)\b(?![\s_-]{{0,2}}match))",
    re.IGNORECASE,
)
_ALONE = re.compile(rf"[\W_]{{0,8}}(?:do(?:es)?\s(?=not))?{_LABEL}[\W_]{{0,8}}", re.IGNORECASE)
# `The candidate entails the reference. Match`: the last sentence of a line
_LAST_SENTENCE = re.compile(r"(?<=[.!”\"])\s{1,3}(?=[\W_]{0,4}(?:no|not|mis)?[\s_-]?match)", re.IGNORECASE)
_REFUSED = re.compile(r"\W{0,4}no\W", re.IGNORECASE)
# A label that leads a line and is followed by a sign, a reason or the end, but not by `: no`
_LEADING = re.compile(
    rf"[\W_]{{0,8}}(?:(?P<word>yes|no)[,.:;!–—-]{{1,2}}\s{{1,3}}[\W_]{{0,4}})?(?:an?\s)?{_LABEL}{_OTHER_LABEL}"
    r"(?![\W_]{1,5}(?:no|not|none|yes|true|false)\b)(?:\s{0,3}[^\w\s]|\s*\Z|\s(?:because|since|as|given)\b)",
    re.IGNORECASE,
)
# A plain completion repeats its pair, or goes on with an example of its own
_PAIR_LINE = re.compile(
    r"[\W_]{0,8}(?:reference|candidate)(?: fact| statement)?(?:[\s*_]{0,4}[:：]|>)",
    re.IGNORECASE,
)
# In prose only what a clause says of the two facts counts, not `the years match`
_OF_FACTS = re.compile(
    r"\W*(?:(?:so|therefore|thus|hence|and|then|overall|yes|no|clearly|that|which means|i (?:think|believe|find)"
    r"|i(?:['’]d| would)? (?:say|call|consider|judge))\W+){0,4}"
    r"(?:the\s)?(?:candidate|reference|it|they|this|that|these|both|two|pair|facts|statements|there)(?:'s|’s)?"
    r"(?: (?:facts?|statements?|texts|two|pair))?"
    r"(?:\s(?:is|are|was|does|do|would|be|counts?|as|an?|also|indeed|therefore|thus"
    rf"|clearly|not|can|considered|constitutes?|{_ADVERBS})){{0,6}}\s?\Z",
    re.IGNORECASE,
)
_AFTER_VERB = re.compile(
    r"\s*(?:[^\w\s]|\Z|the (?:reference|candidate|fact|statement|claim|other)|each other|one another|it\b|here\b"
    r"|between|because|since|as\b|for the (?:reference|candidate))",
    re.IGNORECASE,
)
_BREAK = re.compile(r"[:,]|\b(?:but|so)\b", re.IGNORECASE)
# What takes back an answer in prose, and what a match alone
_CONTRAST = re.compile(r"\b(?:but|however|although|though|yet|if|unless|whether)\b", re.IGNORECASE)
_LIMIT = re.compile(r"\b(?:except|only|partly|partially|apart from)\b", re.IGNORECASE)
_DOUBT = re.compile(r"\b(?:if|whether|unless|could|might|may|cannot tell|unclear)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.;!?\n]")
_SENTENCE = 200  # characters: of the sentence before a mention so much is read

_FIELDS = (
    *("match", "ismatch", "matched", "matches", "answer", "finalanswer", "verdict", "label", "result", "decision"),
    *(
        "classification",
        "conclusion",
        "judgement",
        "judgment",
        "output",
        "prediction",
        "entailed",
        "entails",
        "entailment",
    ),
)
_AFFIRMATIONS = {"match", "matches", "matched", "true", "yes", "is match", "a match"}
_DENIALS = {"no match", "nomatch", "mismatch", "false", "no", "not match", "not a match", "non match", "not matched"}


def parse_match(completion: str, variables: Mapping[str, Any]) -> dict[str, bool]:
    """`matched`: whether the answer is `Match`, not `No Match`.

    That is a field of an object, else what alone stands on the last line, else the last one stated as the answer, else
    the one that a line begins with or a `therefore`, else what is said of the two facts. Raises `Unparsable` where that
    is none or both, and for what is neither, such as a partial match.
    """
    recorded = _recorded(completion)
    if recorded is not None:
        return {"matched": recorded}
    text = BOXED.sub(r" \1 ", STRUCK.sub("", strip_thinking(completion)))
    lines = first_answer(text.split("\n"), _PAIR_LINE, _answers)
    inferred = _leading(lines) | _stated(lines, inferred=True)
    last = _last(lines)
    corrected = {_said_by_label(match) for match in _MENTION.finditer(behind_correction("\n".join(lines)))}
    for said in (last, _stated(lines), inferred, _spoken("\n".join(lines), variables)):
        if len(said) == 1 and None not in said:
            if corrected - said and said is not last:
                raise Unparsable("an answer that is taken back")
            return {"matched": said == {True}}
        if said:
            raise Unparsable("several answers, or one that is neither Match nor No Match")
    raise Unparsable("neither Match nor No Match is the answer")


def _recorded(completion: str) -> bool | None:
    """What a lone JSON object says in its fields. Raises `Unparsable` where that is neither, or both."""
    records = read_records(completion)
    record = records.values[0] if records and len(records.values) == 1 else None
    if records is None or not isinstance(record, Record):
        return None
    said = {_word(value.text) for key, value in record.pairs if field_name(key) in _FIELDS and isinstance(value, Cell)}
    if not said:
        return None
    beside = _stated(records.rest.split("\n"))
    if len(said | beside) > 1 or None in said:
        raise Unparsable("an object that says neither Match nor No Match")
    return said == {True}


def _word(text: str) -> bool | None:
    """What a field says that is an answer and nothing else."""
    word = letters(text) or text.strip()
    return True if word in _AFFIRMATIONS else False if word in _DENIALS else None


def _answers(line: str) -> bool:
    return bool(_stated([line]) or _leading([line]))


def _last(lines: Iterable[str]) -> set[bool | None]:
    """What stands alone on the last line, and on others that do not say the same."""
    rows = [row for line in lines if not is_drawing(row := split_marker(line))]
    alone = [_ALONE.fullmatch(_last_sentence(row.text)) for row in rows]
    return {_said_by_label(match) for match in alone if match} if alone and alone[-1] else set()


def _last_sentence(text: str) -> str:
    """What stands behind the sentences of a line; all of one that begins with a word alone, as in `No. Match`."""
    *before, last = _LAST_SENTENCE.split(text)
    return last if len(" ".join(before).split()) > 1 else text


def _stated(lines: Iterable[str], inferred: bool = False) -> set[bool | None]:
    """What is stated last as the answer, `Answer: Match` and `Match: no`, or `inferred`, `so they do not match`."""
    found = [match for line in lines for match in _STATED.finditer(line) if _is_whole(match)]
    return {_said(match) for match in [each for each in found if (each["inferred"] is not None) == inferred][-1:]}


def _leading(lines: Iterable[str]) -> set[bool | None]:
    """What lines begin with, `**No Match.** The candidate ...`; `Yes, ` before it has to agree."""
    found = [match for line in lines if (match := _LEADING.match(split_marker(line).text))]
    return {said for match in found for said in _with_word(match)}


def _with_word(match: re.Match[str]) -> Iterator[bool | None]:
    yield _said_by_label(match)
    if match["word"]:
        yield match["word"].lower() == "yes"


def _said(match: re.Match[str]) -> bool | None:
    """Whether an answer is `Match`; null where it is neither."""
    word = match["word"]
    return word.lower() in ("yes", "true") if word else _said_by_label(match)


def _said_by_label(match: re.Match[str]) -> bool | None:
    return None if match["hedged"] else match["affirmed"] is not None


def _is_whole(match: re.Match[str]) -> bool:
    """Whether a stated answer is of the facts: `so they match in the year` is of a part of them."""
    return not match["affirmed"] or _AFTER_VERB.match(match.string, match.end()) is not None


def _spoken(text: str, variables: Mapping[str, Any]) -> set[bool | None]:
    """What is said of the two facts in prose; nothing where they tell of matches themselves.

    What follows may take it back: then it is neither.
    """
    if any(_MENTION.search(str(variables.get(name) or "")) for name in VARIABLES):
        return set()
    mentions = [match for match in _MENTION.finditer(text) if _is_of_facts(text, match)]
    said = {None if _is_refused(text, match) else _said_by_label(match) for match in mentions}
    end = mentions[-1].end() if mentions else len(text)
    taken_back = _CONTRAST.search(text, end) or (said != {False} and _LIMIT.search(text, end))
    return {None} if taken_back else said


def _is_refused(text: str, mention: re.Match[str]) -> bool:
    """Whether a `no` leads to what is said to match: `No, they match` may be either."""
    sentence = _SENTENCE_END.split(text[max(0, mention.start() - _SENTENCE) : mention.start()])[-1]
    return mention["affirmed"] is not None and _REFUSED.match(sentence) is not None


def _is_of_facts(text: str, mention: re.Match[str]) -> bool:
    """Whether the clause of a mention is about both facts: `it is a match`, `the candidate does not match`."""
    sentence = _SENTENCE_END.split(text[max(0, mention.start() - _SENTENCE) : mention.start()])[-1]
    about = _OF_FACTS.match(_BREAK.split(sentence)[-1]) and _AFTER_VERB.match(text, mention.end())
    return about is not None and not _DOUBT.search(sentence)
