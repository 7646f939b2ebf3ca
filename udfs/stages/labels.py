"""Reading which of a few labels a completion answers with, for all stages: one that stands alone, behind a name for it,
or in a sentence that says nothing else. Every function is total and linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Literal

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.reading import is_drawing, letters, split_marker, strip_thinking
from untold.udfs.stages.records import Cell, Record, Value, field_name, read_records

STRUCK = re.compile(r"~~[^~\n]{1,200}~~")
BOXED = re.compile(r"\$?\\boxed\s?\{\s?(?:\\text\w{0,2}\s?\{)?([^{}\[\]]{1,80})\}{1,2}\$?")
"""`\\boxed{\\text{neutral}}`: how models trained on mathematics end; the first group is what is boxed."""

# A word that goes on and a question are no answers
_ENDS_WORD = r"(?![^\W_]|[\W_]{0,3}[?？])"
_WORD = re.compile(r"[\w'’]+")


def _vocabulary(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Words for a label, in the languages in which models write `Answer:`
_NAMES = _vocabulary(
    "answer label labels verdict relation relationship classification category conclusion"
    " judgement judgment result decision output status assessment determination evaluation"
    " rating prediction response choice antwort urteil ergebnis fazit réponse étiquette"
    " résultat verdicto respuesta etiqueta resultado veredicto relación risposta etichetta"
    " risultato resposta antwoord odpowiedź ответ метка вывод 答案 回答 判定 结论 結論 标签 標籤 关系 結果 结果"
    " 답변 답 정답 판정"
)
_INFERRING = _vocabulary("so therefore thus hence overall finally conclude also daher folglich donc")
# A sentence of these, names and a label says nothing beside the label
_SAYS_NOTHING_ELSE = _vocabulary(
    "the this that it its it's they these them both two a an is are was were be would being does do must has"
    " have to as of by with in and then clearly correct final best my i i'd we me say said call called"
    " classify classified label labelled labeled judge judged choose rate considered between claim hypothesis"
    " premise statement statements evidence piece pieces text texts candidate reference fact facts pair each"
    " other another one which means given provided here directly fully completely entirely indeed following"
    " stands stand think believe find based alone according above on information evaluation die der das ist"
    " lautet daher la le est es el è o é de"
)
_SENTENCE_END = re.compile(r"(?<=[.!?？。！…])(?<!\bno[.!])(?<!\byes[.!])[*_\"')\]]{0,4}\s+|[;；]\s|\n", re.IGNORECASE)
_CLAUSE = re.compile(r"[,，;:：=—–→]|\s-\s|\b(?:but|instead)\b", re.IGNORECASE)
_CONDITION = re.compile(
    r"\b(?:if|unless|whether|might|may|wait|actually|except|avoid|in case|suppos\w+)\b", re.IGNORECASE
)
# What follows a label that is the answer: the end, a reason, or what it is not
_TAIL = re.compile(
    r"[*_\"'`”’»)\]}>\s✅✔️❌✗✓☑🟢🔴🟡]{0,9}(?:\Z|[.!。！](?!\w)|[,，:：(（–—→|#]|[-/]\s|\s-|because\b|since\b|as\b"
    r"|given\b"
    r"|for the reason|rather than\b|and not\b|not\b)",
    re.IGNORECASE,
)
_REASON = re.compile(r"[*_\"'`]{0,3}\s{0,3}(?:[,.(–—]|because\b|since\b|as\b|given\b)", re.IGNORECASE)
_DENIED_BEHIND = re.compile(
    r"[\W_]{0,8}(?:no|not|none|false|nein|non|nee|não|нет|nie|否|不是|いいえ|아니요?|unlikely|doubtful|unclear"
    r"|uncertain|unknown"
    r"|questionable|insufficient|partial\w*|partly|in part|mostly|largely|only|but|though|although|except|if|unless|yet"
    r"|perhaps|maybe|possibly|almost|nearly|leaning|towards?|at first|at least|as to|as far|to (?:some"
    r"|an?) (?:\w+ )?extent"
    r"|likely|probabl[ey]|low|for the (?:first|second|most)|with (?:\w+ )?(?:reservations?|caveats?|exceptions?))\b"
    r"(?!,? (?:a |an )?(?:entail|contradict|neutral|support))",
    re.IGNORECASE,
)
_SAID_BEHIND = re.compile(
    r"[\s*_\"'`]{0,4}[:：=?]\s?[*_\"'`]{0,3}(?:(?P<yes>yes|true|✅|✔️?)|no|false|❌)\W{0,4}\Z", re.IGNORECASE
)
# `supported: 10 %`, `neutral=0.7`, `Supported (0/2 pieces)`: a share, no answer
_SHARE = re.compile(
    r"[\W_]{0,6}(?:\d{1,3}(?:[.,]\d{1,4})?\s?%|[01]?[.,]\d{1,4}\b|\d{1,4}\s?/\s?\d)"
    r"|[\s\"']{0,3}[:=]\s?\d{1,4}(?: (?:out )?of \d{1,4})?\W{0,3}\Z"
)
_LIMITS = re.compile(
    r"\b(?:but|only|however|although|though|except|unless|if|yet|in part|partly|partially|kind of|sort of|more or less"
    r"|arguably|nothing|half|rest|leaving|leaves"
    r"|missing|not (?:all|fully|entirely|completely|quite|wholly|mentioned|stated|said))\b",
    re.IGNORECASE,
)
_CONTRASTS = re.compile(
    r"\W{0,6}(?:but|however|yet|only|although|though|except|still|nevertheless|that said)\b", re.IGNORECASE
)
_BEHIND_COLON = re.compile(r"[:：=→]|\s-\s")
# Between two labels either of which may be meant
_ALTERNATIVE = re.compile(
    r"[*_\"'`)\]]{0,3}\s{0,2}(?:[/|,]\s?(?:or|and|vs)?|or|vs|and)\s{0,2}[*_\"'`\[(]{0,3}", re.IGNORECASE
)
# `Wait, the years differ.` at the beginning of a sentence
_CORRECTS = re.compile(
    r"(?:^|[.!?…\n])[ \t*_]{0,9}(?:no,? |but |oh,? |hmm,? )?"
    r"(?:wait|actually|hmm|on second thoughts?|correction|scratch that)\b",
    re.IGNORECASE,
)
_FIELDS = (
    *(
        "label",
        "relation",
        "relationship",
        "answer",
        "finalanswer",
        "verdict",
        "classification",
        "conclusion",
        "result",
    ),
    *("decision", "judgement", "judgment", "output", "prediction", "status", "category", "response", "finallabel"),
)
# Tags that models set around an answer
_TAGS = re.compile(
    r"</?(?:final_?)?(?:answer|label|relation|verdict|classification|result|output|response|conclusion)>", re.IGNORECASE
)
_MOST_MENTIONS = 8  # of labels in a sentence are looked at
_TRUE, _FALSE = ("true", "yes"), ("false", "no")
_WORDS_ALONE = re.compile(r"[\w -]{1,40}\.?")


@dataclass(frozen=True)
class Labels:
    """The labels of a stage, and the patterns by which its completions are read; `labels_of` makes one."""

    mention: re.Pattern[str]
    alone: re.Pattern[str]
    denied_both: re.Pattern[str]
    input_line: re.Pattern[str]
    names: Sequence[str]
    positive: str
    neither: str | None
    denial: str | None
    fields: Sequence[str]

    def of(self, found: re.Match[str]) -> str | None:
        """The label that a match is a word for; None for what is none of them, such as a partial one."""
        group = found.lastgroup or ""
        return self.neither if group == "denying" else self.names[int(group[1:])] if group.startswith("l") else None


def labels_of(
    words: Mapping[str, str],
    *,
    inputs: tuple[str, ...],
    positive: str,
    neither: str | None = None,
    opposites: tuple[str, str] | None = None,
    denial: str | None = None,
    hedged: str = r"(?!)",
    denying: str = r"(?!)",
    fields: Sequence[str] = (),
) -> Labels:
    """The labels by alternations of the `words` for each, the first that matches; `hedged` are words for none of them.

    `positive` is the label that a limit takes back. What denies both `opposites` comes to `neither`, and what denies
    the positive label in a field or behind it, `Match: no`, to `denial`. `inputs`: the variables, which a plain
    completion repeats at the beginning of lines. `denying` are words that come to `neither` where there is no label.
    """
    names = list(words)
    either = "|".join(f"(?P<l{place}>{alternation})" for place, alternation in enumerate(words.values()))
    label = rf"(?:(?P<hedged>{hedged})|(?P<denying>{denying})|{either})"
    one, other = (words[name] for name in opposites) if opposites else (r"(?!)", r"(?!)")
    patterns = {
        "mention": rf"(?<![^\W_]){label}{_ENDS_WORD}",
        "alone": rf"[\W_]{{0,12}}(?:an?\s)?{label}{_ENDS_WORD}[\W_]{{0,12}}",
        "denied_both": (
            rf"(?<![^\W_])(?:neither\b[^.;\n]{{0,40}}?\b(?:(?:{one})\b[^.;\n]{{0,80}}?\bnor\b[^.;\n]{{0,40}}?\b(?:{other})"
            rf"|(?:{other})\b[^.;\n]{{0,80}}?\bnor\b[^.;\n]{{0,40}}?\b(?:{one}))|(?:not"
            rf"|n['’]t) (?:{one}) (?:n?or) (?:{other}))\b"
        ),
        "input_line": rf"[\W_]{{0,8}}(?:{'|'.join(inputs)})(?: fact| statement)?(?:[\s*_]{{0,4}}[:：]|>)",
    }
    compiled = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in patterns.items()}
    return Labels(
        **compiled, names=names, positive=positive, neither=neither, denial=denial, fields=(*_FIELDS, *fields)
    )


class _Kind(IntEnum):
    """How a label is given, the surest last: by denying others, in a sentence, behind a name, alone on a line."""

    DENYING = 0
    SPOKEN = 1
    NAMED = 2
    ALONE = 3


@dataclass(frozen=True)
class _ParsedLabel:
    """A label as one sentence gives it; null where the sentence gives none of them, as `partially supported` does."""

    label: str | None
    kind: _Kind
    is_final: bool = False


def read_label(completion: str, labels: Labels, own: Iterable[str]) -> str:
    """The label that is the answer: in a field of an object, else alone on a line, behind a name, or in a sentence that
    says nothing else. A sentence counts only where the `own` texts, which the stage was asked about, have no such word.
    What repeats an own text says nothing.

    Raises `Unparsable` where that is none or several.
    """
    answer = strip_thinking(completion)
    naming = [text for text in own if labels.mention.search(text)]
    for text in naming:
        answer = answer if labels.alone.fullmatch(text) else answer.replace(text.strip(), " ")
    alone = labels.alone.fullmatch(answer) if _WORDS_ALONE.fullmatch(answer) else None
    if alone and (label := labels.of(alone)) is not None:
        return label
    text = _TAGS.sub(" ", BOXED.sub(r" \1 ", STRUCK.sub("", answer)))
    recorded = _recorded(text, labels)
    if recorded is not None:
        return recorded
    lines = first_answer(text.split("\n"), labels.input_line, lambda line: any(_said_in(line, labels)))
    lines = [line for line in lines if line.strip()]
    said = [each for line, below in zip(lines, [*lines, ""][1:], strict=True) for each in _said_in(line, labels, below)]
    surest = max((each.kind for each in said), default=_Kind.DENYING)
    own_word = surest is _Kind.SPOKEN and len(naming) > 0
    said = [] if own_word else [each for each in said if each.kind is surest or each.kind is not _Kind.DENYING]
    places = [place for place, each in enumerate(said) if each.kind == surest]
    chosen = said[places[-1]] if places else None
    if chosen is None:
        return _denied(text, labels)
    rivals = [
        each
        for place, each in enumerate(said)
        if each.kind == surest or (place > places[-1] and each.label != labels.neither)
    ]
    if chosen.label is None or (not chosen.is_final and any(each.label != chosen.label for each in rivals)):
        raise Unparsable("several labels and no clear answer")
    behind = behind_correction("\n".join(lines))
    if behind and any(labels.of(found) != chosen.label for found in labels.mention.finditer(behind)):
        raise Unparsable("a label that is taken back")
    return chosen.label


def _denied(text: str, labels: Labels) -> str:
    """What a text says that names no label but denies both opposites."""
    if labels.neither and labels.denied_both.search(text):
        return labels.neither
    raise Unparsable(f"none of {', '.join(labels.names)} is the answer")


def _said_in(line: str, labels: Labels, below: str = "") -> Iterator[_ParsedLabel]:
    """The labels that the sentences of a line give; `below` is the next line, which may take the last one back."""
    row = split_marker(line)
    if is_drawing(row):
        return
    sentences = [each for each in _SENTENCE_END.split(row.text) if each and each.strip()]
    for sentence, following in zip(sentences, [*sentences[1:], below], strict=False):
        contrast = _CONTRASTS.match(following) is not None
        said = _said(sentence, labels, is_line=len(sentences) == 1)
        if said is not None:
            yield _ParsedLabel(None, said.kind) if contrast and said.label == labels.positive else said


def _said(sentence: str, labels: Labels, *, is_line: bool) -> _ParsedLabel | None:
    """The label that a sentence gives and says nothing else, but for a reason; None where it gives none."""
    if sentence.rstrip(" *_\"'`)").endswith(("?", "？")):
        return None
    alone = labels.alone.fullmatch(sentence)
    if alone:
        return _ParsedLabel(labels.of(alone), _Kind.ALONE if is_line else _Kind.NAMED)
    for found in islice(labels.mention.finditer(sentence), _MOST_MENTIONS):
        before = sentence[: found.start()]
        kind = _kind_of(before)
        if kind is None:
            continue
        label = _with_tail(sentence, found, labels)
        if label is False or not _agrees(before, found[0], label == labels.positive):
            return None
        kind = _Kind.DENYING if found.lastgroup == "denying" else kind
        return _ParsedLabel(label or None, kind, not {"final", "overall"}.isdisjoint(_words(before)))
    return None


def _agrees(before: str, label: str, positive: bool) -> bool:
    """Whether a `Yes` or `No` before a label says the same."""
    said = {"yes", "no"} & set(_words(before))
    denies = label.casefold().startswith(("no", "un", "mis", "is", "do"))
    return not said or said == ({"yes"} if positive else {"no"} if denies else set())


def _words(text: str) -> list[str]:
    return [word.replace("’", "'") for word in _WORD.findall(text.casefold())]


def _kind_of(before: str) -> _Kind | None:
    """How what stands before a label leads to it; None where it says more than that the label is the answer."""
    known = _NAMES | _SAYS_NOTHING_ELSE | _INFERRING
    clauses = _CLAUSE.split(before)
    words = _words(clauses[-1])
    colon = bool(_BEHIND_COLON.search(before[len(before.rstrip(" *_`\"'[({")) - 1 :])) if before.strip() else False
    if colon:
        named = _words(clauses[-2]) if len(clauses) > 1 and not words else words
        leads = not (_NAMES | _INFERRING).isdisjoint(named) or named[-1:] in (["as"], ["is"], ["say"])
        return _Kind.NAMED if set(named) <= known and leads else None
    if not set(words) <= known:
        return None
    above = _words(before[: len(before) - len(clauses[-1])])
    leads = not (_NAMES | _INFERRING).isdisjoint(words)
    if _CONDITION.search(before) or not (leads or set(above) <= known | {"yes", "no"}):
        return None
    return _Kind.NAMED if leads or not words + above or not _INFERRING.isdisjoint(above) else _Kind.SPOKEN


def _with_tail(sentence: str, found: re.Match[str], labels: Labels) -> str | Literal[False] | None:
    """The label, unless what follows takes it back: null where it is then none of them, False where it is no answer."""
    label, tail = labels.of(found), sentence[found.end() :]
    said = _SAID_BEHIND.match(tail) if label == labels.positive else None
    if said:
        return label if said["yes"] else (labels.denial or False)
    if _SHARE.match(tail) or _DENIED_BEHIND.match(tail):
        return False
    if _names_other(tail, label, labels):
        return None
    if set(_words(tail)) <= _SAYS_NOTHING_ELSE | set("123456789"):
        return label
    if not (_TAIL.match(tail) or _REASON.match(tail, _end_of_known(tail))):
        return False
    return None if label == labels.positive and _LIMITS.search(tail) else label


def _end_of_known(tail: str) -> int:
    """Behind the words at the beginning of a tail that say nothing else, `contradicts the premise, because ...`."""
    end = 0
    for word in _WORD.finditer(tail):
        if word[0].casefold() not in _SAYS_NOTHING_ELSE or tail[end : word.start()].strip(" *_`\"'"):
            break
        end = word.end()
    return end


def _names_other(tail: str, label: str | None, labels: Labels) -> bool:
    """Whether another label follows at once, `neutral or entailment`."""
    sign = _ALTERNATIVE.match(tail)
    found = labels.mention.match(tail, sign.end()) if sign else None
    return found is not None and labels.of(found) != label


def _recorded(text: str, labels: Labels) -> str | None:
    """The label that a lone object gives in a field, or as the only one of its fields that is true."""
    records = read_records(text)
    objects = [value for value in records.values if isinstance(value, Record)] if records else []
    if not records or not objects:
        return None
    if len(objects) != len(records.values):
        raise Unparsable("an object beside something else")
    said = {label for value in objects for label in _fields_of(value, labels)}
    beside = {each.label for line in records.rest.split("\n") for each in _said_in(line, labels) if each.kind > 0}
    if len(said | beside) > 1 or None in said:
        raise Unparsable("an object that gives no label, or several")
    return said.pop() if said else None


def _fields_of(record: Record, labels: Labels) -> Iterator[str | None]:
    """What the fields of an object say; null for a word that is no label."""
    yield from (_field(value, labels) for key, value in record.pairs if field_name(key) in labels.fields)
    said = [(key, value) for key, value in record.pairs if isinstance(value, Cell)]
    flags = {key: letters(value.text) for key, value in said if letters(value.text) in (*_TRUE, *_FALSE)}
    named = {
        found.lastgroup: flag for key, flag in flags.items() if (found := labels.alone.fullmatch(key.replace("_", " ")))
    }
    if len(named) > 1:
        held = [group for group, flag in named.items() if flag in _TRUE]
        yield labels.names[int(held[0][1:])] if len(held) == 1 and held[0] else None
    elif named and not any(field_name(key) in labels.fields for key, _ in said):
        yield None


def _field(value: Value, labels: Labels) -> str | None:
    text = value.text if isinstance(value, Cell) else ""
    if labels.denial and letters(text) in (*_TRUE, *_FALSE):
        return labels.positive if letters(text) in _TRUE else labels.denial
    found = labels.alone.fullmatch(text)
    return labels.of(found) if found else None


def first_answer(lines: Iterable[str], input_line: re.Pattern[str], answers: Callable[[str], bool]) -> list[str]:
    """The lines up to where a plain completion runs on into a further example, without inputs that are repeated.

    `answers` says whether a line has an answer.
    """
    kept: list[str] = []
    answered = False
    for line in lines:
        if not input_line.match(line):
            kept.append(line)
            answered = answered or answers(line)
        elif answered:
            break
    return kept


def behind_correction(text: str) -> str:
    """What stands behind the last `Wait, ...` with which a model takes back what it said before; "" without one."""
    found = list(_CORRECTS.finditer(text))
    return text[found[-1].end() :] if found else ""
