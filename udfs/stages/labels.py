"""Reading which of a few labels a completion answers with, as a word, in a sentence or in JSON, for all stages.

Every function is total and linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.reading import split_marker, strip_thinking

# A word that goes on, a question, and a key of JSON (`{"entailment": 0.1, "neutral": 0.9}`) are no answers
_ENDS_WORD = r"(?![^\W_]|[\W_]{0,3}\?|\"\s{0,3}:\s{0,3}(?:[\d\"{\[]|true|false|null))"
# Words that explain a label are an answer where one is stated or leads; in prose they say nothing
_ENDS_EXPLAINING = r"(?=[*_\"'`)\]\s]{0,4}(?:[.,;:!?/|}–—(-]|\Z|(?:given|because|since|as|or|and)\b))"
_STATING = (
    r"answer|overall|relation(?:ship)?|label|classification|category|conclusion|verdict|judge?ment|therefore|thus|hence"
)
_FIELD = re.compile(r"[\"']\s{0,3}:\s{0,3}[\"']")  # `"label": "`, between a name and a text of JSON
STRUCK = re.compile(r"~~[^~\n]{1,200}~~")
_BREAK = re.compile(r"[.;:!?\n]|\bbut\b", re.IGNORECASE)
_WORD = re.compile(r"[\w'’]+")
_NEGATIONS = {
    *("not", "no", "never", "neither", "nor", "cannot", "without", "non", "than", "if", "would", "fails", "fail"),
    *("lacks", "lack", "far", "partially", "partly", "almost", "nearly", "might", "may"),
    *("mostly", "largely", "mainly", "somewhat", "broadly"),
}
# These reach over all of their clause
_DOUBTS = {"whether", "insufficient", "could", "nothing", "none", "nowhere"}
_DENIED_BEHIND = re.compile(
    r"\s(?:at first\b|(?:is|are|was|would|can|could|may|might|does|seems)(?:n['’]t|\s(?:be\s)?(?:not|possible|excluded"
    r"|ruled|unlikely|require|need|impossible|false|wrong))\b)"
    r"|[\s(,]{1,3}(?:only|in part|partially|partly|to some extent)\b",
    re.IGNORECASE,
)
# `Wait, the years differ.` at the beginning of a sentence
_CORRECTS = re.compile(
    r"(?:^|[.!?…\n])[ \t*_]{0,9}(?:no,? |but |oh,? |hmm,? )?"
    r"(?:wait|actually|hmm|on second thoughts?|correction|scratch that)\b",
    re.IGNORECASE,
)
_BEHIND_COLON = re.compile(r"[:：][\W_]{0,6}\Z")
_ENDS_LINE = re.compile(r"(?:[^\w\n]|_){0,6}(?:\n|\Z)")
_FEW_SIGNS = 7  # characters: a colon, and emphasis behind it
# So does `I don't think that ...`
_NOT_THOUGHT = re.compile(r"(?:n['’]t|\bnot)\s(?:think|believe|see|find|say|show|mean|agree)\b", re.IGNORECASE)
_NEGATION_REACH, _CHARACTERS_BEFORE = 3, 60  # words that a negation reaches over; of the clause so much is read


@dataclass(frozen=True)
class Labels:
    """The labels of a stage, and the patterns by which its completions are read; `labels_of` makes one.

    `starts`: the beginnings of the words that stand for labels. `neither`: what an answer comes to that denies both
    `opposites`.
    """

    starts: Mapping[str, str]
    opposites: frozenset[str]
    neither: str
    mention: re.Pattern[str]
    stated: re.Pattern[str]
    leading: re.Pattern[str]
    denied: re.Pattern[str]
    denied_both: re.Pattern[str]
    input_line: re.Pattern[str]

    def of(self, word: str) -> str:
        """The label that a word stands for."""
        return next(label for start, label in self.starts.items() if word.lower().startswith(start))

    @property
    def names(self) -> list[str]:
        """The labels, each once."""
        return list(dict.fromkeys(self.starts.values()))


def labels_of(
    starts: Mapping[str, str],
    words: str,
    *,
    opposites: tuple[str, str],
    neither: str,
    inputs: tuple[str, ...],
    explaining: str = r"(?!)",
    stating: str = r"(?!)",
    subject: str = "",
) -> Labels:
    """The labels by the patterns of their words.

    `words` and `explaining` are alternations: what names a label anywhere, and what does so only as a stated answer.
    `stating`: what else than `answer` or `verdict` introduces one; `subject`: what may stand between the two.
    `inputs`: the variables, which a plain completion repeats at the beginning of lines.
    """
    label = rf"(?:{words}|(?:{explaining}){_ENDS_EXPLAINING}){_ENDS_WORD}"
    other = rf"[*_\"'`]{{0,3}}\s{{0,2}}(?:[/|,]\s?(?:or|and)?|or|and)\s{{0,2}}[*_\"'`]{{0,3}}{label}"
    either = rf"{words}|{explaining}"
    patterns = {
        "mention": rf"(?<![^\W_])(?:{words}){_ENDS_WORD}",
        "stated": (
            rf"(?<![^\W_])(?:{_STATING}|{stating})(?: between [\w ,]{{1,60}}?)?[\W_]{{0,6}}{subject}"
            rf"(?:is|would be)?[\W_]{{0,8}}(?P<label>{label})(?!{other})"
        ),
        # Followed by a sign or the end, but not by `: no`
        "leading": (
            rf"[\W_]{{0,8}}(?P<label>{label})(?!{other})(?![\W_]{{1,5}}(?:no|not|false|partially|partly|in part)\b)"
            r"(?:\s{0,3}[^\w\s]|\s*\Z)"
        ),
        "denied": (rf"(?:\bnot|n['’]t)\s(?:\w{{1,20}}\s)?(?P<one>{words})\b(?:\s(?:or|nor)\s(?P<other>{words})\b)?"),
        "denied_both": (
            rf"(?<![^\W_])neither(?: \w+)?[\W_]{{1,4}}(?P<one>{either})\b[^.;:!?\n]{{0,80}}?\bnor"
            rf"(?: \w+)?[\W_]{{1,4}}(?P<other>{either})\b"
        ),
        "input_line": rf"[\W_]{{0,8}}(?:{'|'.join(inputs)})(?:[\s*_]{{0,4}}[:：]|>)",
    }
    compiled = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in patterns.items()}
    return Labels(starts, frozenset(opposites), neither, **compiled)


def read_label(completion: str, labels: Labels, own_text: str) -> str:
    """The label that is the answer; `own_text` is what the stage was asked about.

    That is the last one stated as the answer, else the one that a line begins with, else the only one that is spoken
    of without a negation and not in `own_text` too; what denies both opposites is `neither`. Raises `Unparsable` where
    that is none or several.
    """

    def answers(line: str) -> bool:
        return bool(_stated([line], labels) or _leading([line], labels))

    lines = first_answer(STRUCK.sub("", strip_thinking(completion)).split("\n"), labels.input_line, answers)
    behind = behind_correction("\n".join(lines))
    corrected = {labels.of(match[0]) for match in labels.mention.finditer(behind)}
    for found in (_stated(lines, labels), _leading(lines, labels), _spoken(lines, labels, own_text)):
        if len(found) == 1:
            if corrected - found and not _stated(behind.split("\n"), labels):
                raise Unparsable("a label that is taken back")
            return found.pop()
        if found:
            raise Unparsable("several labels and no clear answer")
    raise Unparsable(f"none of {', '.join(labels.names)} is the answer")


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


def _stated(lines: Iterable[str], labels: Labels) -> set[str]:
    """The label that is stated as the answer, `Answer: neutral` or `the relation is neutral`: the last one.

    Labels in JSON, `{"relation": "neutral", "reason": "..."}`, come before all others; there may be several of them.
    """
    found = [match for line in lines for match in labels.stated.finditer(line)]
    fields = [match for match in found if _FIELD.search(match[0])]
    return {labels.of(match["label"]) for match in fields or found[-1:]}


def _leading(lines: Iterable[str], labels: Labels) -> set[str]:
    """The labels with which lines begin, `**Neutral.** The premise ...`."""
    found = [labels.leading.match(split_marker(line).text) for line in lines]
    return {labels.of(match["label"]) for match in found if match}


def _spoken(lines: Iterable[str], labels: Labels, own_text: str) -> set[str]:
    """The labels spoken of without a negation, but for those that the own text speaks of itself."""
    own = {labels.of(match[0]) for match in labels.mention.finditer(own_text)}
    text = "\n".join(lines)
    mentions = [match for match in labels.mention.finditer(text) if not _is_negated(text, match)]
    own -= {labels.of(match[0]) for match in mentions if _is_said_of_something(text, match)}
    spoken = {labels.of(match[0]) for match in mentions}
    return (spoken - own) | ({labels.neither} if _denies_both(text, labels) else set())


def _is_said_of_something(text: str, mention: re.Match[str]) -> bool:
    """Whether a label ends its line behind a colon, `Evidence 2: not_supported`: nobody quotes a text so."""
    before = _BEHIND_COLON.search(text, max(0, mention.start() - _FEW_SIGNS), mention.start())
    return before is not None and _ENDS_LINE.match(text, mention.end()) is not None


def _denies_both(text: str, labels: Labels) -> bool:
    """Whether the text says that neither of the opposites holds, in either order, or denies each."""
    denied = {labels.of(word) for found in labels.denied.finditer(text) for word in found.groups() if word}
    if denied == labels.opposites:
        return True
    pairs = ({labels.of(found["one"]), labels.of(found["other"])} for found in labels.denied_both.finditer(text))
    return any(pair == labels.opposites for pair in pairs)


def _is_negated(text: str, mention: re.Match[str]) -> bool:
    """Whether the clause around a mention denies or doubts it: `not entailed`, `a contradiction is excluded`."""
    place = mention.start()
    if _DENIED_BEHIND.match(text, mention.end()):
        return True
    before = _BREAK.split(text[max(0, place - _CHARACTERS_BEFORE) : place])[-1]
    words = _WORD.findall(before.lower())
    if not _DOUBTS.isdisjoint(words) or _NOT_THOUGHT.search(before):
        return True
    return any(word in _NEGATIONS or word.endswith(("n't", "n’t")) for word in words[-_NEGATION_REACH:])
