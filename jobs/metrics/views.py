"""How `untold show` presents a sample: the lines that all metrics share, and what a metric adds to them.

Among these are the sentences of contexts that state a statement.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from untold.graph.views import one_line
from untold.udfs.hints import shorten
from untold.udfs.recall.forms import match_form, shown_form
from untold.udfs.recall.segmentation import sentences
from untold.udfs.texts import words_of

# A line's text, what stands before it, and what stands before the lines that it is wrapped to
Line = tuple[str, str, str]
LONGEST_SENTENCE = 500
# Below the number of a statement
INDENT = "       "


def stating_lines(
    statement: str, sources: Sequence[str] | None, contexts: Mapping[str, str], *, quoted: bool
) -> Iterator[Line]:
    """Where a statement is stated, and if `quoted` the sentence of each of these contexts that states it.

    sources: ids of contexts, or of chunks.
    """
    for what, known in (("context", True), ("chunk", False)):
        names = [one_line(name) for name in sources or () if (name in contexts or not contexts) == known]
        if names:
            yield ", ".join(names), f"{INDENT}stated in {what}{'' if len(names) == 1 else 's'} ", f"{INDENT}  "
    for name in sources or () if quoted else ():
        found = stating_sentence(statement, contexts.get(name, ""))
        if found is not None:
            sentence, verbatim = found
            how = "" if verbatim else " (found by shared words)"
            yield one_line(shorten(sentence, LONGEST_SENTENCE)), f"{INDENT}  {one_line(name)}{how}: ", f"{INDENT}    "


def stating_sentence(statement: str, context: str) -> tuple[str, bool] | None:
    """The sentence of a context that has the most words of a statement, and whether it has the statement verbatim.

    None where no sentence has a word of it. Of equal sentences the shortest counts, then the first.

    >>> stating_sentence("The tower has 12 bells", "It rained. The tower has 12 bells. Bells ring.")
    ('The tower has 12 bells.', True)
    >>> stating_sentence("Osk is old", "Osk was founded in 1187. It has a market.")
    ('Osk was founded in 1187.', False)
    """
    wanted, form = _units(statement), match_form(shown_form(statement))
    if form and form in match_form(shown_form(context)):
        whole = next((one for one in sentences(context) if form in match_form(shown_form(one))), context)
        return whole, True
    found = [(one, len(wanted & _units(one))) for one in sentences(context)]
    best = max(found, key=lambda pair: (pair[1], -len(pair[0])), default=("", 0))
    return (best[0], False) if best[1] else None


def _units(text: str) -> frozenset[str]:
    """The words of a text, and the signs of scripts that put no spaces between words."""
    return words_of(text) | {sign for sign in text if unicodedata.east_asian_width(sign) == "W"}


Row = Mapping[str, Any]
BLANK: Line = ("", "", "")


@dataclass(frozen=True)
class SampleRows:
    """What a run holds of one sample under one metric: rows of its tables, by their names."""

    score: Row
    # Of `samples`; None where the run has no such sample
    sample: Row | None = None
    # Those that are missing first
    statements: Sequence[Row] = ()
    atoms: Sequence[Row] = ()
    # Only those that are drawn
    relations: Sequence[Row] = ()
    conflicts: Sequence[Row] = ()
    failures: Sequence[Row] = ()
    claims: Sequence[Row] = ()
    evidence: Sequence[Row] = ()
    # Only those that `View.chunk_ids` names
    chunks: Sequence[Row] = ()
    candidates: Sequence[Row] = ()

    @property
    def contexts(self) -> dict[str, str]:
        """By id the texts of the sample's contexts, in their order."""
        return {row["id"]: row["text"] or "" for row in (self.sample or {}).get("contexts") or ()}


@dataclass(frozen=True)
class View:
    """A sample under a metric, as `untold show` prints it. A metric with more to say has a subclass (`Metric.view`)."""

    rows: SampleRows

    # What a statement is called
    statement: ClassVar[str] = "statement"
    # What is counted where it is unjudged
    unjudged: ClassVar[str] = "pair"
    # What is said of the things that the column `dropped` of `scores` counts
    dropped: ClassVar[str] = "without a source dropped"

    def chunk_ids(self) -> list[str]:
        """The chunks whose texts the lines need."""
        return []

    def below(self, statement: Row) -> Iterator[Line]:
        """Further lines below a statement."""
        yield from ()

    def rest(self) -> Iterator[Line]:
        """Further lines below all statements."""
        yield from ()

    def lines(self) -> Iterator[Line]:
        """What is missing, then what is covered. `*` marks the basis, `?` what is not judged."""
        missing = [row for row in self.rows.statements if not row["covered"]]
        if self.rows.statements:
            basis = sum(bool(row["in_basis"]) for row in missing)
            completing = f"; adding the {count(basis, self.statement)} marked * would complete the answer"
            yield BLANK
            yield f"missing: {count(len(missing), self.statement)}{completing if basis else ''}", "", ""
            yield from self._listed(missing, 1)
            covered = self.rows.statements[len(missing) :]
            yield BLANK
            yield f"covered: {count(len(covered), self.statement)}", "", ""
            yield from self._listed(covered, len(missing) + 1)
        yield from self._conflicts()
        yield from self.rest()

    def _conflicts(self) -> Iterator[Line]:
        """What the response says of each two statements that contradict each other."""
        if self.rows.conflicts:
            yield BLANK
            yield f"conflicts: {count(len(self.rows.conflicts), 'pair')} of contradicting statements", "", ""
        for row in self.rows.conflicts:
            yield told_conflict(row), INDENT, f"{INDENT}  "

    def _listed(self, statements: Sequence[Row], first: int) -> Iterator[Line]:
        """A statement's text with its number in the picture, what states it, its other wordings, and what is below."""
        contexts = self.rows.contexts
        for number, row in enumerate(statements, first):
            mark = "*" if row["in_basis"] else "?" if row["covered"] is None else " "
            yield one_line(row["text"] or ""), f"{mark} {number:>3}  ", INDENT
            yield from stating_lines(row["text"] or "", row["sources"], contexts, quoted=not row["covered"])
            yield from wordings(row)
            yield from self.below(row)


def wordings(statement: Row) -> Iterator[Line]:
    """The texts of a statement's members that are worded otherwise."""
    for member in statement["members"] or ():
        if member != statement["text"]:
            yield one_line(member), f"{INDENT}also: ", f"{INDENT}  "


def told_conflict(row: Row) -> str:
    """What a response says and leaves out of two statements; the question that both answer is said once.

    >>> answers = {"first": "Q: How high? A: 8,848 m", "second": "Q: How high? A: 8,844 m", "coverage": "first"}
    >>> told_conflict({**answers, "first_sources": ["1"], "second_sources": ["2", "3"]})
    'Q: How high? says 8,848 m; leaves out 8,844 m, which contexts 2, 3 state'
    >>> told_conflict({**answers, "coverage": None})
    'Q: How high? unjudged: 8,848 m or 8,844 m'
    """
    question, mark, _ = row["first"].partition(" A: ")
    asked = f"{question}{mark}" if question.startswith("Q: ") and row["second"].startswith(question + mark) else ""
    if row["coverage"] is None:
        sides = " or ".join(one_line(row[side].removeprefix(asked)).removesuffix(".") for side in ("first", "second"))
        return f"{one_line(question)} unjudged: {sides}" if asked else f"unjudged: {sides}"
    said, missing = [], []
    for side in ("first", "second"):
        text = one_line(row[side].removeprefix(asked)).removesuffix(".")
        if row["coverage"] in (side, "both"):
            said.append(text)
        else:
            missing.append(f"{text}, which {_stating(row[f'{side}_sources'])}")
    told = [f"says {' and '.join(said)}"] if said else []
    told += [f"leaves out {', and '.join(missing)}"] if missing else []
    return f"{one_line(question)} {'; '.join(told)}" if asked else "; ".join(told)


def _stating(sources: Sequence[str]) -> str:
    names = ", ".join(map(one_line, sources))
    return f"context {names} states" if len(sources) == 1 else f"contexts {names} state"


def required(statements: Sequence[Row]) -> list[Row]:
    """The statements that an answer ought to give: of ranked facts those that are kept, else all."""
    return [row for row in statements if row.get("kept") is not False]


def count(number: int, word: str) -> str:
    """A number of things in words.

    >>> count(1, "aspect"), count(2_000, "aspect")
    ('1 aspect', '2,000 aspects')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"
