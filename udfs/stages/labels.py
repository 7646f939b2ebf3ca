"""Read labels of a closed vocabulary: one for a completion, or one for each of numbered texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from untold.udfs.stages.answers import reader
from untold.udfs.stages.definitions import Figures, StageDefinition, Unparsable
from untold.udfs.stages.forms import find_records, get_field, lines_with_places, place_of_record
from untold.udfs.stages.non_answers import texts_of
from untold.udfs.stages.reading import split_marker, unfenced
from untold.udfs.stages.schemas import TEXT, Schema, label_of, lines_of, listed, number_of, one_of, record

LABEL_NAMES = (
    *("label", "relation", "relationship", "answer", "finalanswer", "verdict", "classification", "conclusion"),
    *("result", "decision", "judgement", "judgment", "output", "prediction", "status", "category", "response"),
    *("finallabel", "value"),
)
_EDGE = " \t\r\n*_`\"'“”‘’«»„()[]{}<>#|-–—•.。!！:：,✅✔️❌✗✓☑🟢🔴🟡\u200b"
_GAPS = str.maketrans(dict.fromkeys("_-‐‑*`\"“”’'", " "))
_WORDS = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)?")
# Words that do not change the label of a sentence: names for the completion and the inputs, and verbs
_FILLER_WORDS = (
    "answer label verdict relation relationship classification category conclusion judgement judgment result"
    " decision output status assessment determination evaluation rating prediction response choice final correct"
    " overall finally so therefore thus hence also the this that it its it's they these two a an is are was be would"
    " must has have to as of by with in and then clearly best my i i'd we say classify classified labeled labelled"
    " judge judged rate considered between claim hypothesis premise statement statements evidence pieces text texts"
    " candidate reference fact facts pair each other another one which means given provided directly fully"
    " completely entirely indeed following answers says both based on above all antwort urteil ergebnis fazit"
    " réponse résultat verdicto respuesta etiqueta resultado veredicto relación risposta risultato resposta antwoord"
    " odpowiedź ответ die der das ist lautet daher la le est es el è é de du s m d stands stand think believe any"
    " claims find 答案 回答 判定 结论 結論 标签 標籤 关系 結果 结果 답변 답 정답 판정"
)
_FILLERS = frozenset(_FILLER_WORDS.split())
BOXED = re.compile(r"\$?\\boxed\s?\{\s?(?:\\text\w{0,2}\s?\{)?([^{}]{1,80})\}{1,2}\$?")
_SENTENCE_END = re.compile(r"(?<=[.!?？。！])[*_\"')\]]{0,4}\s+|\n")
_REASON = re.compile(r"[*_`\"')\]]{0,4}(?:\s{0,3}[:：(（\[–—;；,，]|\.\s|\s-\s|\s{1,3}(?:because|since|as|given)\b)\s*")
_REASON_NAMES = ("reason", "explanation", "justification", "rationale", "why", "comment")
# A reason below its label: with a name, as a bullet below a number, or in italics
_REASON_LINE = re.compile(
    rf"(?:[\s>*_+•\-–]{{0,9}}(?:{'|'.join(_REASON_NAMES)})[*_]{{0,2}}\s?[:：][*_]{{0,2}}|\s{{2,9}}[-*+•]\s|\s{{0,9}}[*_])"
    r"\s*(?P<reason>\S.*)",
    re.IGNORECASE,
)
_CHANGES_MIND = re.compile(
    r"\b(?:wait\b|on (?:reflection|second thought)|correction\b|final(?: label| answer)?\s?[:：])", re.IGNORECASE
)
# Words that limit or withdraw the label before them
_DOUBT = re.compile(
    r"\b(?:but|only|however|although|though|except|unless|if|yet|in part|partly|partial\w*|mostly|largely|almost|nearly"
    r"|arguably|not (?:all|fully|entirely|completely|quite|wholly)|no|yes|true|false|likely|unlikely|probabl[ey]|maybe"
    r"|perhaps|possibly|would be|unclear|uncertain|none|nothing|wait|actually|nein|non|нет)\b"
    r"|\d\s?%|\d\s?/\s?\d|^\W*\d+\W*\Z",
    re.IGNORECASE,
)
_TAKES_BACK = re.compile(r"\b(?:wait|actually)\b|^\W*(?:yes|no|true|false|nein|non|нет|\d+)\W*\Z|\d\s?%", re.IGNORECASE)
_QUOTED = re.compile(r"\"[^\"\n]{1,300}\"|“[^“”\n]{1,300}”")
# The last clause of a sentence that infers: `The day is missing, so the answer is ...`
_INFERS = re.compile(r"[,;:–—]?\s{1,20}(?:so|hence|therefore|thus)\b\s?[:,]?\s*", re.IGNORECASE)
_REJECTED = r"(?:not|rather than|instead of|and not) (?:an? )?"
_OFFERS_BOTH = re.compile(r"\b(?:but|however|or|rather|instead|could|might|may)\b")
_SHORT_REASON = 6  # words
_LONGEST_ANSWER, _MOST_CLAUSES = 300, 8  # characters before a reason, and places in them where one may begin
# A `No.` at the beginning, a negation on the line above, a correction in the same line, or the other side
_TAKEN_BACK = re.compile(
    r"\A\W*(?:no|nein|non)[.!;]\s|(?:\b(?:not|no|never|nor|neither)|n['’]t)[\s*_]*\n\s*[\w*]"
    r"|[.!?…]\W{1,4}(?:no,? |but |oh,? |hmm,? )?(?:wait|actually|correction)\b"
    r"|[.!?;]\s+on the other hand\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Vocabulary:
    """The labels of a stage.

    Attributes:
        words: the phrases of each label, without regard to case, spaces, hyphens and underscores.
        positive: the label that a limit (`only in part`) withdraws.
        flags: the labels for a field `true` and a field `false`.
        names: other names of the field with the label.
        inputs: the variables, because a completion can repeat them at the beginning of lines.
    """

    words: Mapping[str, Sequence[str]]
    positive: str | None = None
    flags: tuple[str, str] | None = None
    names: Sequence[str] = ()
    inputs: Sequence[str] = ()
    label_of: Mapping[str, str] = field(init=False, repr=False, compare=False)
    phrase: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        label_of = {_key(word): label for label, words in self.words.items() for word in (label, *words)}
        longest_first = sorted(label_of, key=len, reverse=True)
        phrase = re.compile(rf"(?<![^\W_])(?:{'|'.join(map(re.escape, longest_first))})(?![^\W_])")
        object.__setattr__(self, "label_of", label_of)
        object.__setattr__(self, "phrase", phrase)

    def read(self, text: str) -> str | None:
        """Return the label of a sentence with no other content. None without a label, and for several labels."""
        if text.endswith("_") and not text.lstrip(" *`").startswith("_"):
            return None  # `full_` breaks off
        key = _key(text)
        if key in self.label_of:
            return self.label_of[key]
        if text.rstrip(" *_\"'`)").endswith(("?", "？")):
            return None
        said = {self.label_of[found] for found in self.phrase.findall(key)}
        rest = _WORDS.findall(self.phrase.sub(" ", key))
        return said.pop() if len(said) == 1 and _FILLERS.issuperset(rest) else None

    def read_with_reason(self, text: str) -> str | None:
        """Return the label of a text that consists of the label, or has it before a reason or as a conclusion."""
        return self.split(text)[0]

    def split(self, text: str) -> tuple[str | None, str]:
        """Return the label of a text, as `read_with_reason`, and the reason behind the label or behind a bar.

        A reason of a few words that names another label makes the answer unclear.
        """
        head, bar, reason = text.replace("｜", "|").partition("|")
        label = self.split(head)[0] if bar else None
        if label is not None:
            return (None, "") if self._withdraws(reason, label) else (label, reason)
        for found in islice(_REASON.finditer(text, 0, _LONGEST_ANSWER), _MOST_CLAUSES):
            label = self.read(text[: found.start()])
            if label is not None:
                reason = text[found.end() :]
                return (label, reason) if self._is_reason(reason, label) else (None, "")
        label, inferred = self.read(text), list(_INFERS.finditer(text))
        return (label or (self.read(text[inferred[-1].end() :]) if inferred else None)), ""

    def _withdraws(self, text: str, label: str) -> bool:
        """Return True if a text behind a label and a bar is another label, or replaces the label by another one."""
        said = {self.label_of.get(_key(part), label) for part in text.split("|")}
        if _CHANGES_MIND.search(text):
            said |= {self.label_of[each] for each in self.phrase.findall(_key(text))}
        return said != {label}

    def _is_reason(self, text: str, label: str) -> bool:
        """Return True if a text after a label is a reason for it."""
        text = _QUOTED.sub(" ", text)
        key = re.sub(rf"\b{_REJECTED}(?:{self.phrase.pattern})", " ", _key(text))
        others = {self.label_of[each] for each in self.phrase.findall(key)} - {label}
        is_short = len(key.split()) < _SHORT_REASON or _OFFERS_BOTH.search(key)
        doubt = _DOUBT if label == self.positive else _TAKES_BACK
        return not (others and is_short) and not doubt.search(text)


def _key(text: str) -> str:
    return " ".join(text.strip(_EDGE).translate(_GAPS).split()).casefold()


def read_label(text: str, vocabulary: Vocabulary, own: Iterable[str]) -> str:
    """Return the label of a completion: in a field of JSON or a table, otherwise in a line or sentence.

    A line or sentence counts if it has only the label, a name for it and a reason. Lines that repeat one of the `own`
    texts do not count. Raises `Unparsable` for no label and for several.
    """
    names = (*vocabulary.names, *LABEL_NAMES)
    found = find_records(text, names)
    if found is not None:
        records, rest = found
        said = {_field_label(each, vocabulary, names) for each in records}
        beside = set(labels_in_lines(rest, vocabulary, own))
        if None in said or len(said | beside) != 1:
            raise Unparsable("no clear label in a field")
        return str(said.pop())
    text = BOXED.sub(r" \1 ", text)
    if _TAKEN_BACK.search(text):
        raise Unparsable("a label that is taken back")
    labels = set(labels_in_lines(text, vocabulary, own))
    if len(labels) != 1:
        raise Unparsable("several labels" if labels else f"none of {', '.join(vocabulary.words)} is the answer")
    return labels.pop()


def _field_label(value: Any, vocabulary: Vocabulary, names: Sequence[str]) -> str | None:
    said = get_field(value, names) if isinstance(value, dict) else value
    if vocabulary.flags and str(said).casefold() in ("true", "false", "yes", "no"):
        return vocabulary.flags[str(said).casefold() in ("false", "no")]
    return vocabulary.label_of.get(_key(said)) if isinstance(said, str) else None


def labels_in_lines(text: str, vocabulary: Vocabulary, own: Iterable[str]) -> list[str]:
    """Return the labels that lines and sentences give. Skip lines that repeat one of the `own` texts."""
    repeated = {_key(each) for each in own}.difference(vocabulary.label_of)
    labels: list[str] = []
    for _, line in lines_with_places(unfenced(text)):
        bare = split_marker(line).text
        before, colon, behind = bare.partition(":")
        is_input = colon and _key(before) in vocabulary.inputs and _key(behind) not in vocabulary.label_of
        if is_input and labels:
            break  # the completion goes on with another request
        if _key(bare) in repeated or is_input:
            continue
        whole = vocabulary.read_with_reason(bare)
        sentences = [bare] if whole else filter(str.strip, _SENTENCE_END.split(bare))
        labels.extend(label for each in sentences if (label := vocabulary.read_with_reason(each)))
    return labels


def label_stage(
    name: str, variables: tuple[str, ...], labels: Sequence[str], vocabulary: Vocabulary, field: str, **more: Any
) -> StageDefinition:
    """Return a stage with one label, which is the column `relation` of the output and a field of the schema."""

    @reader
    def parse(text: str, variables: Mapping[str, Any]) -> dict[str, str]:
        return {"relation": read_label(text, vocabulary, texts_of(variables.values()))}

    output, schema = pa.schema({"relation": pa.string()}), record(**{field: one_of(labels)})
    return StageDefinition(name, variables, parse, output, schema=schema, form=label_of(labels), **more)


def numbered_labels(
    variable: str,
    labels: Sequence[str],
    names: tuple[str, str, str] = ("labels", "number", "label"),
    *,
    one: str = "",
    pattern: str = "",
    has_reason: bool = False,
) -> dict[str, Any]:
    """Return the `schema` and the `form` of a label for each text of a variable, with a reason if `has_reason`.

    names: the fields of the list, of the number of a text, and of its label. one: the name of a text, by default the
    variable without its last letter. pattern: the pattern of a written label, by default one of `labels`.
    """
    many, number, label = names
    reason: dict[str, Schema] = {"reason": TEXT} if has_reason else {}
    item = record(**{number: number_of(variable), **reason, label: one_of(labels)})
    line = rf"\d{{1,9}}: (?:{pattern or '|'.join(labels)})" + (r"(?: \| .+)?" if has_reason else "")
    shown = f"n: {label} | reason" if has_reason else f"n: {label}"
    form = lines_of(line, shown, f"one line for each {one or variable[:-1]}:")
    return {"schema": record(**{many: listed(item)}), "form": form}


def labels_stage(
    name: str,
    variables: tuple[str, ...],
    labels: Sequence[str],
    vocabulary: Vocabulary,
    names: tuple[str, str, str],
    figures: Figures,
    **more: Any,
) -> StageDefinition:
    """Return a stage with a label for each text of its last variable, null for a text without a clear label.

    names, more: as `numbered_labels`. The first name is also the column of the output.
    """

    @reader
    def parse(text: str, given: Mapping[str, Any]) -> dict[str, list[str | None]]:
        return {names[0]: read_numbered_labels(text, given[variables[-1]], vocabulary)}

    output = pa.schema({names[0]: pa.list_(pa.string())})
    form = numbered_labels(variables[-1], labels, names, **more)
    return StageDefinition(name, variables, parse, output, figures=figures, **form)


# `1: label`, `Hypothesis 2 - text - label`, `[3] label`
_NUMBERED = re.compile(
    r"[\s>*_#•\-–+(（\[]{0,9}(?:[^\W\d_]{1,12}[ _.#]{0,2})?(\d{1,4})[)\]）.:：、*_]*"
    r"(?:\s*(?:[:：)\-–—=]|→|->|=>))?[\s*_]*"
)
# A sentence about a text: `For 2 I assume that ...`
_SPEAKS_OF_NUMBER = re.compile(r"\W{0,3}[^\W\d_]{1,12} \d{1,4}[*_]*,? [^\W\d_]")
_NEXT_NUMBER = re.compile(r"(?<=\w)(?:[,;|]\s{1,3}|[；，])(?=\(?\d{1,4}[)\].:=])")
_SPACED_NUMBER = re.compile(r"\s{1,3}(?=\d{1,4}[).:：])")
_GROUP = re.compile(
    r"[\s*_#>-]{0,9}(?P<label>[^\d\n:：]{1,40})[:：][\s*_]{0,5}(?P<numbers>\d{1,4}(?:, ?\d{1,4})*)\W{0,4}"
)
_ANSWER_NAME = re.compile(r"\A[\W_]{0,4}(?:final )?answer[*_]{0,2}\s?[:：][\s*_]*(?=\d)", re.IGNORECASE)
# `<label id="1">word</label>`
_TAGGED = re.compile(r"<\w{1,20} \w{1,20}=[\"']?(?P<number>\d{1,4})[\"']?>(?P<label>[^<>\n]{1,60})</\w{1,20}>")

Labelled = tuple[int | None, str | None, str]
"""The number of a text, its label and the reason for the label."""


def read_numbered_labels(text: str, texts: Sequence[str], vocabulary: Vocabulary) -> list[str | None]:
    """Return a label for each of the numbered `texts`, as `read_reasoned_labels` without the reasons."""
    return read_reasoned_labels(text, texts, vocabulary)["labels"]


def read_reasoned_labels(text: str, texts: Sequence[str], vocabulary: Vocabulary) -> dict[str, list[str | None]]:
    """Return `labels` and `reasons` for each of the numbered `texts`.

    A label is None if its number is missing or repeated, or has no label. A reason is None without a label, and without
    a text behind or below the label. The labels are lines `1: label | reason`, JSON or a table; of a list of labels
    alone, as many as texts, by position. Raises `Unparsable` if all are None, for a label without a number, and for the
    number 0.
    """
    names = (*vocabulary.names, *LABEL_NAMES)
    found = find_records(text, names)
    said = _numbered_lines(unfenced(text) if found is None else found[1], texts, vocabulary)
    if found is not None:
        if said:
            raise Unparsable("labels beside a list of labels")
        are_records = all(isinstance(each, dict) for each in found[0])
        if not are_records and len(found[0]) != len(texts):
            raise Unparsable(f"{len(found[0])} labels of {len(texts)} texts")
        id_names = (*vocabulary.inputs, *(f"{name}id" for name in vocabulary.inputs))
        for place, each in enumerate(found[0], 1):
            number = place_of_record(each, id_names, texts) if are_records else place
            reason = get_field(each, _REASON_NAMES) if are_records else None
            label = _field_label(each, vocabulary, names)
            said.append((number, label, reason if isinstance(reason, str) else ""))
    if not said and len(texts) == 1:
        said = [(1, read_label(text, vocabulary, texts), vocabulary.split(text.strip())[1])]
    labels: dict[int, str | None] = {}
    reasons: dict[int, str] = {}
    for number, label, reason in said:
        if number is None or number < 1:
            raise Unparsable("a label without a number, or the number 0")
        labels[number] = None if number in labels else label
        reasons[number] = reason
    places = range(1, len(texts) + 1)
    chosen = [labels.get(place) for place in places]
    if not any(chosen):
        raise Unparsable("no clear label beside a number")
    return {"labels": chosen, "reasons": [_reason(reasons[place]) if labels.get(place) else None for place in places]}


def _reason(text: str) -> str | None:
    """Return a reason without the signs around it, None for an empty one."""
    text = text.strip(" \t\r*_;/")
    for opening, closing in ("()", "（）", "[]"):
        if text.count(closing) > text.count(opening):
            text = text.removesuffix(closing).strip()
    return text or None


def _numbered_lines(text: str, texts: Sequence[str], vocabulary: Vocabulary) -> list[Labelled]:
    """Return the labels of the lines that begin with a number. Label and reason may be on the lines below."""
    said: list[Labelled] = []
    known = set(map(_key, texts))
    waiting: int | None = None
    text = _TAGGED.sub(r"\g<number>: \g<label>", text)
    lines = [_ANSWER_NAME.sub("", whole) for _, whole in lines_with_places(text)]
    for line in chain.from_iterable(_parts(whole, vocabulary) for whole in lines):
        found = _NUMBERED.match(line)
        if found and said and int(found[1]) > len(texts) and _REASON_LINE.fullmatch(line):
            found = None  # the reason begins with a number
        rest = line[found.end() :] if found else split_marker(line).text
        number = int(found[1]) if found else waiting
        below = None if found or waiting or not said or said[-1][2] else _REASON_LINE.fullmatch(line)
        if found and (not rest.strip(_EDGE) or _key(rest) in known):
            waiting = number
        elif number is not None:
            own = texts[number - 1].strip() if 0 < number <= len(texts) else ""
            bare = rest.strip(" \t*`").removeprefix('"').removeprefix(own).lstrip(_EDGE + "→=>")
            last_part = bare.replace(" - ", "[").rpartition("[")[2]
            label, reason = vocabulary.split(bare)
            label = label or vocabulary.label_of.get(_key(last_part))
            if label is not None or not _SPEAKS_OF_NUMBER.match(line):
                said.append((number, label, reason))
            waiting = None
        elif below:
            said[-1] = (*said[-1][:2], below["reason"])
        elif said and _key(line.rpartition(":")[2]) in vocabulary.label_of:
            said.append((None, None, ""))
    return said or _groups(lines, len(texts), vocabulary)


def _parts(line: str, vocabulary: Vocabulary) -> list[str]:
    """Return the parts of a line with several numbers: `1: label, 2: label`, or `1: label 2: label`."""
    if not _NUMBERED.match(line):
        return [line]
    spaced = _SPACED_NUMBER.split(line)
    labels = [vocabulary.read_with_reason(each[found.end() :]) for each in spaced if (found := _NUMBERED.match(each))]
    return spaced if len(labels) == len(spaced) and all(labels) else _NEXT_NUMBER.split(line)


def _groups(lines: Sequence[str], count: int, vocabulary: Vocabulary) -> list[Labelled]:
    """Return the labels of the lines `label: 1, 3`, if they name each number once. Other numbers are counts."""
    found = [(group, vocabulary.read(group["label"])) for line in lines if (group := _GROUP.fullmatch(line))]
    numbered = [(int(number), label) for group, label in found if label for number in group["numbers"].split(",")]
    if sorted(number for number, _ in numbered) != list(range(1, count + 1)):
        return []
    return [(number, label, "") for number, label in numbered]
