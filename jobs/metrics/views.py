"""Print a sample as lines for `untold show`: the lines that all metrics share, and those of each metric."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from untold.graph.views import one_line
from untold.udfs.errors import shorten
from untold.udfs.facts.claim_verdicts import CONTRADICTED, SUPPORTED
from untold.udfs.facts.nugget_measures import NOT_SUPPORT, PARTIAL, SUPPORT
from untold.udfs.facts.rag_measures import FAULTS, HALLUCINATION, IN_IRRELEVANT, IN_RELEVANT, NOT_RETRIEVED, NOT_USED
from untold.udfs.recall.fact_texts import match_form, shown_form
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
            yield describe_conflict(row), INDENT, f"{INDENT}  "

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


def describe_conflict(row: Row) -> str:
    """What a response says and leaves out of two statements; the question that both answer is said once.

    >>> answers = {"first": "Q: How high? A: 8,848 m", "second": "Q: How high? A: 8,844 m", "coverage": "first"}
    >>> describe_conflict({**answers, "first_sources": ["1"], "second_sources": ["2", "3"]})
    'Q: How high? says 8,848 m; leaves out 8,844 m, which contexts 2, 3 state'
    >>> describe_conflict({**answers, "coverage": None})
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


class ClaimView(View):
    """A sample whose claims are verified: what it says of aspects is that of icat."""

    statement = "aspect"
    unjudged = "claim"

    @cached_property
    def by_id(self) -> Mapping[str, Row]:
        """The claims by their ids, in the order of the response."""
        return {row["claim_id"]: row for row in sorted(self.rows.claims, key=lambda row: row["position"] or 0)}

    @cached_property
    def nearest(self) -> Mapping[str, Row]:
        """By claim, its pair with the chunk of the first rank that was to be judged."""
        ranked = sorted(self.rows.evidence, key=lambda row: (row["rank"], row["chunk_id"]), reverse=True)
        return {row["claim_id"]: row for row in ranked}

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """What the chunks say, by their ids."""
        return {row["chunk_id"]: row["text"] or "" for row in self.rows.chunks}

    def chunk_ids(self) -> list[str]:
        """What grounds a claim, else what is nearest to it."""
        grounding = {chunk for row in self.rows.claims for chunk in row["evidence"] or ()}
        nearest = {row["chunk_id"] for name, row in self.nearest.items() if not self._is_grounded(name)}
        return sorted(grounding | nearest)

    def _is_grounded(self, name: str) -> bool:
        return name in self.by_id and self.by_id[name]["verdict"] == SUPPORTED

    def below(self, statement: Row) -> Iterator[Line]:
        """The claims that cover an aspect, each with the chunks that ground it."""
        return self._covering(statement.get("claims") or ())

    def _covering(self, names: Iterable[str]) -> Iterator[Line]:
        for name in names:
            if name in self.by_id:
                yield one_line(self.by_id[name]["text"] or ""), f"{INDENT}claim: ", f"{INDENT}  "
                yield from self._grounding(self.by_id[name])

    def _grounding(self, claim: Row) -> Iterator[Line]:
        for chunk in claim["evidence"] or ():
            yield one_line(self.texts.get(chunk, "")), f"         {one_line(chunk)}: ", "           "

    def rest(self) -> Iterator[Line]:
        """The grounded claims that cover nothing, then those that nothing grounds, each with its nearest chunk."""
        used = {name for row in self.rows.statements for name in row.get("claims") or ()}
        grounded = [name for name in self.by_id if self._is_grounded(name) and name not in used]
        if grounded:
            yield BLANK
            yield f"grounded, but without an aspect: {count(len(grounded), 'claim')}", "", ""
            yield from self._covering(grounded)
        rest = [name for name in self.by_id if not self._is_grounded(name)]
        if rest:
            if not grounded:
                yield BLANK
            yield f"not grounded: {count(len(rest), 'claim')}", "", ""
            for name in rest:
                yield from self._ungrounded(name)

    def _ungrounded(self, name: str) -> Iterator[Line]:
        verdict = one_line(self.by_id[name]["verdict"] or "not judged").replace("_", " ")
        yield one_line(self.by_id[name]["text"] or ""), f"       {verdict}: ", "         "
        pair = self.nearest.get(name)
        if pair is None:
            yield "no chunk was found for it", "         ", "           "
            return
        relation = one_line(pair["relation"] or "not judged")
        text = one_line(self.texts.get(pair["chunk_id"], ""))
        yield text, f"         nearest, {relation}, {one_line(pair['chunk_id'])}: ", "           "


class FactView(ClaimView):
    """A sample whose statements are ranked facts, beside its verified claims."""

    statement = "fact"
    unjudged = "verdict"
    dropped = "beyond importance.max_facts left out"

    def lines(self) -> Iterator[Line]:
        """Missing facts, the most important first, contradicted claims with their evidence, then what is covered."""
        facts = list(enumerate(required(self.rows.statements), start=1))
        if self.rows.statements:
            yield from self._facts(facts)
        yield from self._others()

    def _facts(self, facts: Sequence[tuple[int, Row]]) -> Iterator[Line]:
        missing = [(number, row) for number, row in facts if row["covered"] is False]
        unjudged = [(number, row) for number, row in facts if row["covered"] is None]
        covered = [(number, row) for number, row in facts if row["covered"]]
        yield from self._part(f"missing: {count(len(missing), 'fact')}, most important first", missing)
        if unjudged:
            yield from self._part(f"not judged: {count(len(unjudged), 'fact')}", unjudged)
        yield from self._contradicted()
        yield from self._part(f"covered: {count(len(covered), 'fact')}", covered)
        left_out = len(self.rows.statements) - len(facts)
        if left_out:
            yield f"{left_out:,} more that an answer need not give (importance.min_weight, importance.top_k)", "", ""

    def _part(self, heading: str, facts: Sequence[tuple[int, Row]]) -> Iterator[Line]:
        yield BLANK
        yield heading, "", ""
        for number, row in facts:
            yield from self._fact(number, row)

    def _fact(self, number: int, row: Row) -> Iterator[Line]:
        yield f"{one_line(row['text'] or '')} ({_weight_of(row)})", f"  {number:>3}  ", INDENT
        yield from stating_lines(row["text"] or "", row["sources"], self.rows.contexts, quoted=row["covered"] is False)
        yield from wordings(row)
        for name in row.get("claims") or ():
            if name in self.by_id:
                yield one_line(self.by_id[name]["text"] or ""), f"{INDENT}claim: ", f"{INDENT}  "

    def _contradicted(self) -> Iterator[Line]:
        found = [row for row in self.by_id.values() if row["verdict"] == CONTRADICTED]
        if not found:
            return
        yield BLANK
        yield f"contradicted: {count(len(found), 'claim')}", "", ""
        for row in found:
            yield one_line(row["text"] or ""), INDENT, f"{INDENT}  "
            for chunk in row["evidence"] or ():
                text = one_line(self.texts.get(chunk, ""))
                yield text, f"{INDENT}  {one_line(chunk)}: ", f"{INDENT}    "

    def _others(self) -> Iterator[Line]:
        """The claims that are not contradicted and cover no fact, each with its verdict."""
        covering = {name for row in self.rows.statements for name in row.get("claims") or ()}
        others = [row for name, row in self.by_id.items() if name not in covering and row["verdict"] != CONTRADICTED]
        if not others:
            return
        yield BLANK
        yield f"without a fact: {count(len(others), 'claim')}", "", ""
        for row in others:
            verdict = one_line(row["verdict"] or "not judged").replace("_", " ")
            yield one_line(row["text"] or ""), f"{INDENT}{verdict}: ", f"{INDENT}  "


def _weight_of(row: Row) -> str:
    """A fact's weight, with the ratings that it is made of, where it is."""
    weight = f"weight {row['weight']:.2f}"
    if row["relevance"] is None:
        return weight
    return f"{weight}: relevance {row['relevance']:.1f}, salience {row['salience']:.1f}"


HEADINGS = {NOT_SUPPORT: "missing", PARTIAL: "supported in part", None: "not judged", SUPPORT: "supported"}


class NuggetView(View):
    """A sample whose statements are nuggets."""

    statement = "nugget"
    unjudged = "nugget"
    dropped = "beyond nuggets.top_k left out"

    def lines(self) -> Iterator[Line]:
        """Nuggets by their support, each with its importance, and its weight where one was given."""
        nuggets = sorted(required(self.rows.statements), key=lambda row: row["rank"])
        for support, heading in HEADINGS.items():
            own = [(number, row) for number, row in enumerate(nuggets, start=1) if row["support"] == support]
            if own:
                yield BLANK
                yield f"{heading}: {count(len(own), self.statement)}, vital nuggets first", "", ""
            for number, row in own:
                weight = "" if row["weight"] is None else f", weight {row['weight']:g}"
                yield f"{one_line(row['text'] or '')} ({row['importance']}{weight})", f"  {number:>3}  ", INDENT


def faults_of(statements: Sequence[Row], claims: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Of each fault of `FAULTS` that a sample has, how many claims it is of, and out of how many; most shares first."""
    missing = [row for row in statements if row["covered"] is False]
    relevant = {name for row in statements for name in row["sources"] or ()}
    kinds = Counter(NOT_USED if row["sources"] else NOT_RETRIEVED for row in missing)
    for row in _wrong(claims):
        kinds[
            HALLUCINATION if not row["evidence"] else IN_RELEVANT if relevant & {*row["evidence"]} else IN_IRRELEVANT
        ] += 1
    totals = {name: len(statements if name in (NOT_RETRIEVED, NOT_USED) else claims) for name in kinds}
    order = sorted(kinds, key=lambda name: (-kinds[name] / totals[name], list(FAULTS).index(name)))
    return {name: (kinds[name], totals[name]) for name in order}


def _wrong(claims: Sequence[Row]) -> list[Row]:
    """The claims that the ground truth does not entail, in the order of the response."""
    found = [row for row in claims if row["verdict"] not in (None, SUPPORTED)]
    return sorted(found, key=lambda row: row["position"] or 0)


class RagView(View):
    """A sample whose statements are the claims of its ground truth, beside those of the response."""

    statement = "ground-truth claim"
    unjudged = "relation"

    def lines(self) -> Iterator[Line]:
        """The faults, the gravest first, then the claims that are missing and covered, then those that are wrong."""
        for number, (name, (wrong, total)) in enumerate(faults_of(self.rows.statements, self.rows.claims).items()):
            half, measure, what = FAULTS[name]
            of = self.statement if name in (NOT_RETRIEVED, NOT_USED) else "claim"
            if not number:
                yield BLANK
            yield f"{half}: {wrong:,} of {count(total, of)} {what} ({measure})", "", "  "
        yield from super().lines()

    def rest(self) -> Iterator[Line]:
        """The claims of the response that the ground truth does not entail, with the contexts that state each."""
        wrong = _wrong(self.rows.claims)
        if not wrong:
            return
        yield BLANK
        yield f"not in the ground truth: {count(len(wrong), 'claim')}", "", ""
        for row in wrong:
            verdict = row["verdict"].replace("_", " ")
            yield one_line(row["text"] or ""), f"{INDENT}{verdict}: ", f"{INDENT}  "
            names = ", ".join(map(one_line, row["evidence"] or ()))
            yield (f"stated in context {names}" if names else "stated in no context"), f"{INDENT}  ", f"{INDENT}    "


FOUND_BY = {"lexical": "by words", "semantic": "by vectors"}


class ReferenceView(View):
    """A sample whose statements are references, beside the facts of its response."""

    statement = unjudged = "reference"
    dropped = "beyond longrecall.max_facts left out"

    @cached_property
    def by_statement(self) -> Mapping[str, Sequence[Row]]:
        """The candidates of each reference as they were shown: by words first, by rank."""
        found: dict[str, list[Row]] = {}
        for row in sorted(self.rows.candidates, key=lambda row: (row["step"], row["rank"])):
            found.setdefault(row["statement_id"], []).append(row)
        return found

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """What the generated facts say, by their ids, in the order of the response."""
        ordered = sorted(self.rows.claims, key=lambda row: row["position"] or 0)
        return {row["claim_id"]: one_line(row["text"] or "") for row in ordered}

    def below(self, statement: Row) -> Iterator[Line]:
        """The facts that cover a reference; of one that nothing covers its candidates, with what spoke for each."""
        for name in statement.get("claims") or ():
            yield self.texts.get(name, ""), f"{INDENT}fact: ", f"{INDENT}  "
        if not statement["covered"]:
            yield from self._candidates(statement)

    def _candidates(self, statement: Row) -> Iterator[Line]:
        shown = self.by_statement.get(statement["statement_id"], ())
        if not shown:
            yield "no fact is near it", INDENT, INDENT
        for row in shown:
            state = "not judged" if row["chosen"] is None else "rejected"
            start = f"{INDENT}{state}, found {FOUND_BY.get(row['step'], one_line(row['step']))} ({_likeness(row)}): "
            yield self.texts.get(row["claim_id"], ""), start, f"{INDENT}  "

    def rest(self) -> Iterator[Line]:
        """The facts of the response that cover no reference."""
        used = {name for row in self.rows.statements for name in row.get("claims") or ()}
        rest = [text for name, text in self.texts.items() if name not in used]
        if rest:
            yield BLANK
            yield f"without a reference: {count(len(rest), 'fact')}", "", ""
        for text in rest:
            yield text, f"{INDENT}fact: ", f"{INDENT}  "


def _likeness(row: Row) -> str:
    """J, L and the cosine, as far as there are any."""
    known = (("J", row["jaccard"]), ("L", row["lcs"]), ("cosine", row["cosine"]))
    return ", ".join(f"{name} {value:.2f}" for name, value in known if value is not None)
