"""The view of each metric in `untold show`: the parts of a sample, and the lines of each part."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, ClassVar

from untold.graph.views import one_line
from untold.udfs.errors import shorten
from untold.udfs.facts.citation_measures import UNCITED
from untold.udfs.facts.claim_verdicts import CONTRADICTED, SUPPORTED
from untold.udfs.facts.nugget_measures import NOT_SUPPORT, PARTIAL, SUPPORT
from untold.udfs.facts.rag_measures import FAULTS, HALLUCINATION, IN_IRRELEVANT, IN_RELEVANT, NOT_RETRIEVED, NOT_USED
from untold.udfs.facts.rubric_measures import GRADED
from untold.udfs.recall.fact_texts import match_form, shown_form
from untold.udfs.recall.segmentation import sentences
from untold.udfs.texts import words_of

# The text of a line, the text before it, and the indent of its continuation lines
Line = tuple[str, str, str]
# A heading and the lines below it. A part without a heading starts with a blank line too
Part = tuple[str, Iterable[Line]]
Row = Mapping[str, Any]
BLANK: Line = ("", "", "")
LONGEST_SENTENCE = 500
# The width of the number of a statement
INDENT = "       "


def detail(text: str | None, label: str = "", depth: int = 0) -> Line:
    """Return a line below a statement, with a label and a depth in steps of two spaces."""
    margin = INDENT + depth * "  "
    return one_line(text or ""), f"{margin}{label}", f"{margin}  "


def stating_lines(
    statement: str, sources: Sequence[str] | None, contexts: Mapping[str, str], *, quoted: bool
) -> Iterator[Line]:
    """Yield the sources of a statement, and with `quoted` the sentence of each context that states it.

    The sources are ids of contexts or of chunks.
    """
    for what, known in (("context", True), ("chunk", False)):
        names = [one_line(name) for name in sources or () if (name in contexts or not contexts) == known]
        if names:
            yield detail(", ".join(names), f"stated in {what}{'' if len(names) == 1 else 's'} ")
    for name in sources or () if quoted else ():
        found = stating_sentence(statement, contexts.get(name, ""))
        if found is not None:
            sentence, verbatim = found
            how = "" if verbatim else " (found by shared words)"
            yield detail(shorten(sentence, LONGEST_SENTENCE), f"{one_line(name)}{how}: ", 1)


def stating_sentence(statement: str, context: str) -> tuple[str, bool] | None:
    """Return the sentence of a context with the most words of a statement, and True if it has the statement verbatim.

    Return None if no sentence has one of the words. If several sentences are equal, return the first of the shortest.

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
    """Return the words of a text, and the characters of scripts without spaces between words."""
    return words_of(text) | {sign for sign in text if unicodedata.east_asian_width(sign) == "W"}


@dataclass(frozen=True)
class SampleRows:
    """The rows of the tables of a run for one sample and one metric, by table."""

    score: Row
    # The row of `samples`, None for a run without the sample
    sample: Row | None = None
    # Missing statements come first
    statements: Sequence[Row] = ()
    atoms: Sequence[Row] = ()
    # Only the relations of the picture
    relations: Sequence[Row] = ()
    conflicts: Sequence[Row] = ()
    failures: Sequence[Row] = ()
    claims: Sequence[Row] = ()
    evidence: Sequence[Row] = ()
    # Only the chunks of `View.chunk_ids`
    chunks: Sequence[Row] = ()
    candidates: Sequence[Row] = ()
    criteria: Sequence[Row] = ()
    citations: Sequence[Row] = ()

    @property
    def contexts(self) -> dict[str, str]:
        """Return the texts of the contexts of the sample by id, in their order."""
        return {row["id"]: row["text"] or "" for row in (self.sample or {}).get("contexts") or ()}

    @cached_property
    def claims_by_id(self) -> Mapping[str, Row]:
        """Return the claims by id, in the order of the response."""
        return {row["claim_id"]: row for row in sorted(self.claims, key=lambda row: row["position"] or 0)}

    @cached_property
    def used_claims(self) -> set[str]:
        """Return the ids of the claims that cover a statement."""
        return {name for row in self.statements for name in row.get("claims") or ()}


@dataclass(frozen=True)
class View:
    """The parts of a sample in `untold show`. A metric with other parts has a subclass (`Metric.view`)."""

    rows: SampleRows

    # The word for a statement
    statement: ClassVar[str] = "statement"
    # The headings of the missing and of the covered statements
    headings: ClassVar[tuple[str, str]] = ("missing", "covered")
    # The word for the things that the column `unjudged` of `scores` counts
    unjudged: ClassVar[str] = "pair"
    # The text after the number in the column `dropped` of `scores`
    dropped: ClassVar[str] = "without a source dropped"

    def chunk_ids(self) -> list[str]:
        """Return the ids of the chunks whose texts the lines need."""
        return []

    def lines(self) -> Iterator[Line]:
        """Yield the lines of all parts."""
        for heading, lines in chain(self.parts(), self.conflicts(), self.rest()):
            yield BLANK
            if heading:
                yield heading, "", ""
            yield from lines

    def parts(self) -> Iterator[Part]:
        """Yield the missing statements and then the covered statements."""
        statements = self.rows.statements
        if not statements:
            return
        missing = sum(not row["covered"] for row in statements)
        basis = sum(bool(row["in_basis"]) for row in statements[:missing])
        completing = f"; adding the {count(basis, self.statement)} marked * would complete the answer"
        numbered = list(enumerate(statements, start=1))
        lacking, covered = self.headings
        heading = f"{lacking}: {count(missing, self.statement)}{completing if basis else ''}"
        yield heading, self.listed(numbered[:missing])
        yield f"{covered}: {count(len(statements) - missing, self.statement)}", self.listed(numbered[missing:])

    def conflicts(self) -> Iterator[Part]:
        """Yield the conflicts of the contexts, with the side that the response takes."""
        if self.rows.conflicts:
            heading = f"conflicts: {count(len(self.rows.conflicts), 'pair')} of contradicting statements"
            yield heading, (detail(describe_conflict(row)) for row in self.rows.conflicts)

    def rest(self) -> Iterator[Part]:
        """Yield the parts after the statements and the conflicts."""
        yield from ()

    def listed(self, numbered: Iterable[tuple[int, Row]]) -> Iterator[Line]:
        """Yield each statement with its number in the picture, its sources, its other wordings, and the lines below."""
        for number, row in numbered:
            yield self.text_of(row), f"{self.mark(row)} {number:>3}  ", INDENT
            yield from stating_lines(row["text"] or "", row["sources"], self.rows.contexts, quoted=self.is_quoted(row))
            yield from (detail(one, "also: ") for one in row["members"] or () if one != row["text"])
            yield from self.below(row)

    def text_of(self, statement: Row) -> str:
        """Return the text of a statement, with its relevance and the weight of its sources if it has them."""
        known = {"relevance": statement.get("relevance"), "source weight": statement.get("source_weight")}
        notes = ", ".join(f"{name} {value:.3g}" for name, value in known.items() if value is not None)
        return one_line(statement["text"] or "") + (f" ({notes})" if notes else "")

    def mark(self, statement: Row) -> str:
        """Return `*` for a statement of the basis and `?` for an unjudged statement."""
        return "*" if statement["in_basis"] else "?" if statement["covered"] is None else " "

    def is_quoted(self, statement: Row) -> bool:
        """Return True if the sentences of the contexts are shown."""
        return not statement["covered"]

    def below(self, statement: Row) -> Iterator[Line]:
        """Yield further lines below a statement."""
        yield from ()


def describe_conflict(row: Row) -> str:
    """Return the stated and the missing side of two statements, after their common question.

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
    """Return the statements that count: the kept facts, or all statements of another metric."""
    return [row for row in statements if row.get("kept") is not False]


def count(number: int, word: str) -> str:
    """Return a number with its noun.

    >>> count(1, "aspect"), count(2_000, "aspect")
    ('1 aspect', '2,000 aspects')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def verdict_of(claim: Row) -> str:
    """Return the verdict of a claim as words."""
    return one_line(claim["verdict"] or "not judged").replace("_", " ")


class ClaimView(View):
    """A sample with verified claims that cover aspects."""

    statement = "aspect"
    unjudged = "claim"

    @cached_property
    def nearest(self) -> Mapping[str, Row]:
        """Return the judged pair with the first rank by claim."""
        ranked = sorted(self.rows.evidence, key=lambda row: (row["rank"], row["chunk_id"]), reverse=True)
        return {row["claim_id"]: row for row in ranked}

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """Return the texts of the chunks by id."""
        return {row["chunk_id"]: row["text"] or "" for row in self.rows.chunks}

    def chunk_ids(self) -> list[str]:
        """Return the chunks that ground a claim, and the nearest chunks of the other claims."""
        grounding = {chunk for row in self.rows.claims for chunk in row["evidence"] or ()}
        nearest = {row["chunk_id"] for name, row in self.nearest.items() if not self._is_grounded(name)}
        return sorted(grounding | nearest)

    def _is_grounded(self, name: str) -> bool:
        claims = self.rows.claims_by_id
        return name in claims and claims[name]["verdict"] == SUPPORTED

    def below(self, statement: Row) -> Iterator[Line]:
        """Yield the claims that cover an aspect with their chunks."""
        return self._covering(statement.get("claims") or ())

    def _covering(self, names: Iterable[str], label: str = "claim: ") -> Iterator[Line]:
        for row in (self.rows.claims_by_id[name] for name in names if name in self.rows.claims_by_id):
            yield detail(row["text"], label)
            for chunk in row["evidence"] or ():
                yield detail(self.texts.get(chunk), f"{one_line(chunk)}: ", 1)

    def rest(self) -> Iterator[Part]:
        """Yield the grounded claims that cover no aspect, and then the other claims with their nearest chunk."""
        claims = self.rows.claims_by_id
        grounded = [name for name in claims if self._is_grounded(name) and name not in self.rows.used_claims]
        rest = [name for name in claims if not self._is_grounded(name)]
        lines = chain.from_iterable(map(self._ungrounded, rest))
        heading = f"not grounded: {count(len(rest), 'claim')}"
        if grounded:
            more: Iterable[Line] = chain([(heading, "", "")], lines) if rest else ()
            yield (
                f"grounded, but without an aspect: {count(len(grounded), 'claim')}",
                chain(self._covering(grounded), more),
            )
        elif rest:
            yield heading, lines

    def _ungrounded(self, name: str) -> Iterator[Line]:
        claim, pair = self.rows.claims_by_id[name], self.nearest.get(name)
        yield detail(claim["text"], f"{verdict_of(claim)}: ")
        if pair is None:
            yield detail("no chunk was found for it", depth=1)
            return
        relation = one_line(pair["relation"] or "not judged")
        yield detail(self.texts.get(pair["chunk_id"]), f"nearest, {relation}, {one_line(pair['chunk_id'])}: ", 1)


class FactView(ClaimView):
    """A sample with ranked facts and verified claims."""

    statement = "fact"
    unjudged = "verdict"
    dropped = "beyond importance.max_facts left out"

    def parts(self) -> Iterator[Part]:
        """Yield the missing facts in the order of importance, the contradicted claims, and the covered facts."""
        if not self.rows.statements:
            return
        facts = list(enumerate(required(self.rows.statements), start=1))
        missing, unjudged, covered = (
            [(number, row) for number, row in facts if row["covered"] is state] for state in (False, None, True)
        )
        yield f"missing: {count(len(missing), 'fact')}, most important first", self.listed(missing)
        if unjudged:
            yield f"not judged: {count(len(unjudged), 'fact')}", self.listed(unjudged)
        wrong = [name for name, row in self.rows.claims_by_id.items() if row["verdict"] == CONTRADICTED]
        if wrong:
            yield f"contradicted: {count(len(wrong), 'claim')}", self._covering(wrong, "")
        left_out = len(self.rows.statements) - len(facts)
        note = f"{left_out:,} more that an answer need not give (importance.min_weight, importance.top_k)"
        more = [(note, "", "")] if left_out else []
        yield f"covered: {count(len(covered), 'fact')}", chain(self.listed(covered), more)

    def text_of(self, statement: Row) -> str:
        """Return the text of a fact with its weight, and with the ratings that the weight combines."""
        weight = f"weight {statement['weight']:.2f}"
        if statement["relevance"] is not None:
            weight += f": relevance {statement['relevance']:.1f}, salience {statement['salience']:.1f}"
        if statement.get("source_weight") is not None:
            weight += f", source weight {statement['source_weight']:.3g}"
        return f"{one_line(statement['text'] or '')} ({weight})"

    def mark(self, statement: Row) -> str:
        """Return no mark, because each state has a part."""
        return " "

    def is_quoted(self, statement: Row) -> bool:
        """Return True for missing facts."""
        return statement["covered"] is False

    def below(self, statement: Row) -> Iterator[Line]:
        """Yield the claims that cover a fact."""
        claims = self.rows.claims_by_id
        yield from (detail(claims[one]["text"], "claim: ") for one in statement.get("claims") or () if one in claims)

    def rest(self) -> Iterator[Part]:
        """Yield the claims that are not contradicted and cover no fact, with their verdicts."""
        claims = self.rows.claims_by_id
        others = [row for name, row in claims.items() if name not in self.rows.used_claims]
        others = [row for row in others if row["verdict"] != CONTRADICTED]
        if others:
            lines = (detail(row["text"], f"{verdict_of(row)}: ") for row in others)
            yield f"without a fact: {count(len(others), 'claim')}", lines


HEADINGS = {NOT_SUPPORT: "missing", PARTIAL: "supported in part", None: "not judged", SUPPORT: "supported"}


class NuggetView(View):
    """A sample with nuggets."""

    statement = "nugget"
    unjudged = "nugget"
    dropped = "beyond nuggets.top_k or with a weight below 0 left out"

    def parts(self) -> Iterator[Part]:
        """Yield the nuggets by support."""
        nuggets = sorted(required(self.rows.statements), key=lambda row: row["rank"])
        for support, heading in HEADINGS.items():
            own = [(number, row) for number, row in enumerate(nuggets, start=1) if row["support"] == support]
            if own:
                yield f"{heading}: {count(len(own), self.statement)}, vital nuggets first", self.listed(own)

    def listed(self, numbered: Iterable[tuple[int, Row]]) -> Iterator[Line]:
        """Yield the nuggets with their importance, and with their given weight."""
        for number, row in numbered:
            weight = "" if row["weight"] is None else f", weight {row['weight']:g}"
            yield f"{self.text_of(row)} ({row['importance']}{weight})", f"  {number:>3}  ", INDENT
            if row.get("reason"):
                yield detail(row["reason"], "reason: ")


class RubricView(View):
    """A sample with the criteria of a rubric."""

    statement = unjudged = "criterion"

    def parts(self) -> Iterator[Part]:
        """Yield the criteria of each dimension with its points, the criteria that cost the most points first."""
        if not any(row["points"] > 0 for row in self.rows.criteria):
            yield "undefined: no criterion has positive points", []
        by_dimension: dict[str | None, list[Row]] = {}
        for row in self.rows.criteria:
            by_dimension.setdefault(row["dimension"], []).append(row)
        for dimension, rows in by_dimension.items():
            earned = sum(row["earned"] or 0.0 for row in rows)
            whole = sum(max(row["points"], 0.0) for row in rows)
            name = one_line(dimension) if dimension else "criteria"
            yield f"{name}: {earned:g} of {whole:g} points", self._listed(sorted(rows, key=lost_points, reverse=True))

    def _listed(self, rows: Iterable[Row]) -> Iterator[Line]:
        for row in rows:
            verdict = row["grade"] if row["verdict"] == GRADED else (row["verdict"] or "not judged").replace("_", " ")
            start = f"  {row['number']:>3}  "
            yield f"{one_line(row['text'] or '')} ({row['points']:+g}: {one_line(verdict)})", start, INDENT
            if row["reason"]:
                yield detail(row["reason"], "reason: ")


def lost_points(row: Row) -> float:
    """Return the points that a criterion costs: the missing part of positive points, or the subtracted points.

    >>> lost_points({"points": 5.0, "earned": 2.0}), lost_points({"points": -8.0, "earned": -8.0})
    (3.0, 8.0)
    """
    return float(max(row["points"], 0.0) - (row["earned"] or 0.0))


class CitationView(View):
    """A sample with its sentences, their sources and the support."""

    statement = "sentence"
    unjudged = "verdict"

    def parts(self) -> Iterator[Part]:
        """Yield the sentences in the order of the response, each with its sources."""
        rows = sorted(self.rows.citations, key=lambda row: (row["sentence_number"], row["citation"]))
        whole = [row for row in rows if not row["citation"]]
        cited = [row for row in whole if row["status"] != UNCITED]
        if not whole:
            yield "undefined: the response has no sentence", []
            return
        lines = chain.from_iterable(
            self._sentence(number, list(own)) for number, own in groupby(rows, key=itemgetter("sentence_number"))
        )
        yield f"{len(cited):,} of {count(len(whole), 'sentence')} with a citation", lines

    def _sentence(self, number: int, rows: Sequence[Row]) -> Iterator[Line]:
        whole, *sources = rows
        yield f"{one_line(whole['sentence'])} ({support_of(whole)})", f"  {number:>3}  ", INDENT
        for row in sources:
            yield detail(row["source"], f"{support_of(row)}: ")
            if row["reason"]:
                yield detail(row["reason"], "reason: ", depth=1)


class RelevancyView(View):
    """A sample with the sentences that address the query, and those that do not."""

    statement = "sentence"
    unjudged = "label"
    headings = ("off the query", "on the query")

    def below(self, statement: Row) -> Iterator[Line]:
        """Yield the label and the reason of the judge."""
        if statement["relation"]:
            yield detail(statement["reason"], f"{statement['relation']}: ")


def support_of(row: Row) -> str:
    """Return the support of a citation, or the reason that there is none.

    >>> support_of({"support": None, "status": "no_source"}), support_of({"support": "full", "status": "judged"})
    ('no source', 'full support')
    """
    known = {"full": "full support", "partial": "partial support", "none": "no support"}
    return known.get(row["support"] or "", str(row["status"]).replace("_", " "))


def faults_of(statements: Sequence[Row], claims: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """Return the number of claims with each fault of `FAULTS` and the number of all claims, the largest share first."""
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


def _wrong(claims: Iterable[Row]) -> list[Row]:
    """Return the claims that the ground truth does not entail, in the order of the response."""
    found = [row for row in claims if row["verdict"] not in (None, SUPPORTED)]
    return sorted(found, key=lambda row: row["position"] or 0)


class RagView(View):
    """A sample with the claims of its ground truth and of its response."""

    statement = "ground-truth claim"
    unjudged = "relation"

    def parts(self) -> Iterator[Part]:
        """Yield the faults with the largest first, and then the claims of the ground truth."""
        faults = faults_of(self.rows.statements, self.rows.claims)
        if faults:
            yield "", [self._fault(name, *numbers) for name, numbers in faults.items()]
        yield from super().parts()

    def _fault(self, name: str, wrong: int, total: int) -> Line:
        half, measure, what = FAULTS[name]
        of = self.statement if name in (NOT_RETRIEVED, NOT_USED) else "claim"
        return f"{half}: {wrong:,} of {count(total, of)} {what} ({measure})", "", "  "

    def rest(self) -> Iterator[Part]:
        """Yield the claims of the response that the ground truth does not entail, with their contexts."""
        wrong = _wrong(self.rows.claims)
        if wrong:
            lines = chain.from_iterable(map(self._unsupported, wrong))
            yield f"not in the ground truth: {count(len(wrong), 'claim')}", lines

    def _unsupported(self, claim: Row) -> Iterator[Line]:
        yield detail(claim["text"], f"{verdict_of(claim)}: ")
        names = ", ".join(map(one_line, claim["evidence"] or ()))
        yield detail(f"stated in context {names}" if names else "stated in no context", depth=1)


FOUND_BY = {"lexical": "by words", "semantic": "by vectors"}


class ReferenceView(View):
    """A sample with references and the facts of its response."""

    statement = unjudged = "reference"
    dropped = "beyond longrecall.max_facts left out"

    @cached_property
    def by_statement(self) -> Mapping[str, Sequence[Row]]:
        """Return the candidates of each reference in their order: first by step and then by rank."""
        found: dict[str, list[Row]] = {}
        for row in sorted(self.rows.candidates, key=lambda row: (row["step"], row["rank"])):
            found.setdefault(row["statement_id"], []).append(row)
        return found

    def _fact(self, name: str, label: str = "fact: ") -> Line:
        return detail(self.rows.claims_by_id.get(name, {}).get("text"), label)

    def below(self, statement: Row) -> Iterator[Line]:
        """Yield the facts that cover a reference, or the candidates of an uncovered reference with their similarity."""
        yield from map(self._fact, statement.get("claims") or ())
        if statement["covered"]:
            return
        shown = self.by_statement.get(statement["statement_id"], ())
        if not shown:
            yield "no fact is near it", INDENT, INDENT
        for row in shown:
            state = "not judged" if row["chosen"] is None else "rejected"
            found = FOUND_BY.get(row["step"], one_line(row["step"]))
            yield self._fact(row["claim_id"], f"{state}, found {found} ({_similarity(row)}): ")

    def rest(self) -> Iterator[Part]:
        """Yield the facts of the response that cover no reference."""
        rest = [name for name in self.rows.claims_by_id if name not in self.rows.used_claims]
        if rest:
            yield f"without a reference: {count(len(rest), 'fact')}", map(self._fact, rest)


def _similarity(row: Row) -> str:
    """Return the known values of J, L and the cosine."""
    known = (("J", row["jaccard"]), ("L", row["lcs"]), ("cosine", row["cosine"]))
    return ", ".join(f"{name} {value:.2f}" for name, value in known if value is not None)


# The views of the metrics of this package, which themselves import Spark
VIEWS: Mapping[str, type[View]] = {
    **dict.fromkeys(("e2e", "nli", "qa"), View),
    "icat": ClaimView,
    "importance": FactView,
    "longrecall": ReferenceView,
    "nuggets": NuggetView,
    "rag": RagView,
    "rubric": RubricView,
    "citations": CitationView,
    "answer_relevancy": RelevancyView,
}
