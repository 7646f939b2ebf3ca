"""Score the sentences of a response by the support of their sources, and by their relevancy to the query.

Methods, section 19. Support assessment of TREC RAG (Thakur et al. 2025), and FACT of DeepResearch Bench (Du et al.
2025). Lost verdicts and sources without a text are unjudged: bounds cover all their possible results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from untold.udfs.arrow import FLAG, NUMBER, TEXT, Row, columns, over_rows, struct
from untold.udfs.facts.aspect_coverage import CONCLUSION, UNDEFINED, UNKNOWN, BoundedValue, conclusion, f_of, share_of
from untold.udfs.samples.citations import cited_sentences, source_key
from untold.udfs.stages import UNASKED

FULL, PARTIAL, NONE = "full", "partial", "none"
# The credit of TREC's support assessment
WEIGHTS: Mapping[str, float] = {FULL: 1.0, PARTIAL: 0.5, NONE: 0.0}
PRECISION, RECALL, F1, ACCURACY = SCORES = "weighted_precision", "weighted_recall", "f1", "citation_accuracy"
FIRST_PRECISION, FIRST_RECALL = "first_precision", "first_recall"
MEAN_PRECISION, MEAN_RECALL = "sentence_precision", "sentence_recall"
EFFECTIVE, JUDGED_CITATIONS = SUMS = "effective_citations", "judged_citations"
CITED, SOURCE_RECALL = "cited_sentences", "source_recall"
SENTENCES, CITATIONS, WITHOUT_TEXT = COUNTS = "sentences", "citations", "citations_without_text"
SHARES = (*SCORES, FIRST_PRECISION, FIRST_RECALL, MEAN_PRECISION, MEAN_RECALL, CITED, SOURCE_RECALL)
# The outcome of a citation
STATUSES = JUDGED, UNCITED, NO_SOURCE, FAILED, WAITING = "judged", "uncited", "no_source", "failed", "unasked"
NO_TEXT = "no context, document or page has this id"
# Separates the keys of several sources, because no id contains it
AND = "\x1f"

_SOURCE = struct(source=TEXT, key=TEXT, text=TEXT)
CITING = columns(sample_id=TEXT, sentences=[struct(number=NUMBER, text=TEXT, sources=[_SOURCE])])
_CITATION = struct(
    sentence_number=NUMBER, sentence=TEXT, citation=NUMBER, source=TEXT, support=TEXT, status=TEXT, reason=TEXT
)
CONCLUDED = columns(CONCLUSION, citations=[_CITATION], lost=NUMBER, known=FLAG)
# The sentences with support, joined. `whole`: each sentence is known to have it or not. `lost`: a request failed
SUPPORTED = columns(sample_id=TEXT, supported_text=TEXT, whole=FLAG, lost=FLAG)


@dataclass(frozen=True)
class JudgedSentence:
    """A sentence for measures: the support of each cited source, and of all its sources together, None if unjudged.

    `is_whole`: False if a source has no text, so that `together` is the support of the others.
    """

    citations: tuple[str | None, ...] = ()
    together: str | None = None
    is_whole: bool = True

    def mean(self) -> BoundedValue:
        """Return the mean credit of its citations, undefined without citations."""
        return mean_credit([_credit(support) for support in self.citations])

    def credit(self) -> BoundedValue:
        """Return the credit of all sources together. A missing source can add support, but not to full support."""
        if not self.citations:
            return BoundedValue.exact(0.0)
        known = _credit(self.together)
        if self.is_whole or known.low == 1:
            return known
        return BoundedValue(None, known.low, 1.0)


def _credit(support: str | None) -> BoundedValue:
    return UNKNOWN if support is None else BoundedValue.exact(WEIGHTS[support])


def mean_credit(credits: Sequence[BoundedValue], count: int | None = None) -> BoundedValue:
    """Return the sum of the credits divided by `count`, by default their number. It is undefined for a count of 0.

    The value leaves out unjudged credits, and counts only the others.

    >>> mean_credit([BoundedValue(1.0, 1.0, 1.0), UNKNOWN], 3)
    BoundedValue(value=0.5, low=0.3333333333333333, high=0.6666666666666666)
    """
    count = len(credits) if count is None else count
    if not count:
        return UNDEFINED
    low, high = (
        fsum(ends) / count for ends in (_filled(one.low for one in credits), _filled(one.high for one in credits))
    )
    known = [one.value for one in credits if one.value is not None]
    value = fsum(known) / (count - len(credits) + len(known)) if known else None if credits else 0.0
    return BoundedValue(None if value is None else min(high, max(low, value)), low, high)


def _filled(ends: Iterable[float | None]) -> list[float]:
    return [end or 0.0 for end in ends]


def harmonic_mean(precision: BoundedValue, recall: BoundedValue) -> BoundedValue:
    """Return F1, which is 0 without citations, and undefined without sentences.

    >>> harmonic_mean(BoundedValue(1.0, 0.5, 1.0), BoundedValue(0.5, 0.5, 0.5))
    BoundedValue(value=0.6666666666666666, low=0.5, high=0.6666666666666666)
    """
    if recall.high is None:
        return UNDEFINED
    if precision.high is None:
        return BoundedValue.exact(0.0)
    return f_of(precision, recall)


def measures_of(
    sentences: Sequence[JudgedSentence], cited: Iterable[str] = (), reference: Sequence[str] | None = None
) -> dict[str, BoundedValue]:
    """Return the measures of a response by name.

    Thakur et al. 2025 define weighted precision as the mean credit over citations, and weighted recall as the mean
    credit over sentences. `first_precision` and `first_recall` use only the first citation of each sentence.
    `sentence_precision` and `sentence_recall` use the mean over its citations, as in the code of TREC RAG. Du et al.
    2025 define citation accuracy as the share of citations with full or partial support. Effective citations are their
    number. `cited` and `reference` are the ids of the cited sources and of the reference sources.

    >>> found = measures_of([JudgedSentence(("full", "none"), "full"), JudgedSentence()])
    >>> found["weighted_precision"].value, found["weighted_recall"].value, found["effective_citations"].value
    (0.5, 0.5, 1.0)
    """
    credits = [_credit(support) for one in sentences for support in one.citations]
    first = [_credit(one.citations[0]) for one in sentences if one.citations]
    supported = [_is_positive(one) for one in credits]
    precision = mean_credit(credits)
    means = [one.mean() for one in sentences if one.citations]
    recall = mean_credit([one.credit() for one in sentences if one.citations], len(sentences))
    share = len(first) / len(sentences) if sentences else None
    judged = float(sum(one.value is not None for one in credits))
    return {
        PRECISION: precision,
        RECALL: recall,
        F1: harmonic_mean(precision, recall),
        FIRST_PRECISION: mean_credit(first),
        FIRST_RECALL: mean_credit(first, len(sentences)),
        MEAN_PRECISION: mean_credit(means),
        MEAN_RECALL: mean_credit(means, len(sentences)),
        ACCURACY: mean_credit(supported),
        EFFECTIVE: _sum(supported),
        JUDGED_CITATIONS: BoundedValue(judged, judged, float(len(credits))),
        CITED: BoundedValue.exact(share),
        SOURCE_RECALL: _recall_of(set(map(source_key, cited)), reference),
        SENTENCES: BoundedValue.exact(float(len(sentences))),
        CITATIONS: BoundedValue.exact(float(len(credits))),
    }


def _sum(supported: Sequence[BoundedValue]) -> BoundedValue:
    low, high = (fsum(_filled(ends)) for ends in ((one.low for one in supported), (one.high for one in supported)))
    is_known = not supported or any(one.value is not None for one in supported)
    return BoundedValue(low if is_known else None, low, high)


def _is_positive(credit: BoundedValue) -> BoundedValue:
    """Return 1 for each positive end of a credit, and 0 for each other end."""
    ends = (credit.value, credit.low, credit.high)
    return BoundedValue(*(None if end is None else float(end > 0) for end in ends))


def _recall_of(cited: set[str], reference: Sequence[str] | None) -> BoundedValue:
    wanted = set(map(source_key, reference or ()))
    return BoundedValue.exact(len(wanted & cited) / len(wanted)) if wanted else UNDEFINED


@over_rows(CITING)
def cite_batches(row: Row) -> Row:
    """Return columns of `CITING`: the sentences of a sample with the sources that they cite.

    The columns of `row` are sample_id, response, contexts list<struct<id, text>> and citations list<struct<start, end,
    sources>>. The text of a source is the text of the context with its id, and otherwise null.
    """
    contexts = row["contexts"] or ()
    texts = {source_key(one["id"]): one["text"] for one in contexts if one["text"].strip()}
    found = cited_sentences(row["response"] or "", row["citations"], [one["id"] for one in contexts])
    return {
        "sample_id": row["sample_id"],
        "sentences": [
            {
                "number": number,
                "text": one.text,
                "sources": [
                    {"source": source, "key": key, "text": texts.get(key)}
                    for key, source in {source_key(name): name for name in one.sources}.items()
                ],
            }
            for number, one in enumerate(found, start=1)
        ],
    }


PAGES = columns(key=TEXT, number=NUMBER, text=TEXT)


@over_rows(PAGES)
def key_pages(row: Row) -> Iterator[Row]:
    """Yield columns of `PAGES`, a row per id and URL of a text, from document_id, url, number and text."""
    names = {row["document_id"], row["url"]} - {None, ""} if row["text"] else ()
    return ({**row, "key": source_key(name)} for name in sorted(names))


@over_rows(CONCLUDED)
def conclude_batches(row: Row, score: str) -> Row:
    """Return columns of `CONCLUDED`.

    The columns of `row` are sample_id, sentences list<struct<number, text, sources list<struct<source, key,
    has_text>>>>, judged list<struct<group, number, verdict, reason, error_type>> and reference_sources list<string>. A
    group consists of the keys of its sources, joined by `AND`. `known` is true if the score has a value. `lost` counts
    verdicts of failed requests.
    """
    rows, sentences = [], []
    for one, (whole, *own) in _judged_sentences(row):
        rows += [whole, *own]
        is_whole = all(source["has_text"] for source in one["sources"])
        sentences.append(JudgedSentence(tuple(each["support"] for each in own), whole["support"], is_whole))
    cited = [source["source"] for one in row["sentences"] or () for source in one["sources"]]
    without = sum(each["status"] == NO_SOURCE for each in rows if each["citation"])
    measures = measures_of(sentences, cited, row["reference_sources"])
    measures[WITHOUT_TEXT] = BoundedValue.exact(float(without))
    credits = [one.credit().value for one in sentences]
    return {
        **conclusion(row, measures, [None if one is None else one == 1 for one in credits]),
        "unjudged": sum(each["support"] is None and each["status"] != UNCITED for each in rows),
        "citations": rows,
        "lost": sum(each["status"] == FAILED for each in rows),
        "known": measures[score].value is not None,
    }


def _judged_sentences(row: Row) -> Iterator[tuple[Row, list[dict[str, Any]]]]:
    """Yield each sentence with its rows of the table `citations`, the row of all its sources first."""
    judged = {(one["group"], one["number"]): one for one in row["judged"] or ()}
    for one in row["sentences"] or ():
        own = [_citation(one, place, [source], judged) for place, source in enumerate(one["sources"], start=1)]
        yield one, [_citation(one, 0, one["sources"], judged), *own]


@over_rows(SUPPORTED)
def support_batches(row: Row) -> Row:
    """Return columns of `SUPPORTED`. row: as for `conclude_batches`, without reference_sources.

    A sentence has support if one of its sources, or all of them together, fully support it. It is open if a missing
    verdict or a source without a text could give it support.
    """
    sentences = list(_judged_sentences(row))
    supported = [any(one["support"] == FULL for one in rows) for _, rows in sentences]
    missing = [any(one["support"] is None and one["status"] != UNCITED for one in rows) for _, rows in sentences]
    return {
        "sample_id": row["sample_id"],
        "supported_text": " ".join(
            one["text"] for (one, _), has_support in zip(sentences, supported, strict=True) if has_support
        ),
        "whole": all(known or not is_open for known, is_open in zip(supported, missing, strict=True)),
        "lost": any(one["status"] == FAILED for _, rows in sentences for one in rows),
    }


def _citation(
    sentence: Row, place: int, sources: Sequence[Row], judged: Mapping[tuple[str, int], Row]
) -> dict[str, Any]:
    """Return a row of the table `citations`: of one source, or with place 0 of all sources of a sentence together."""
    known = [source["key"] for source in sources if source["has_text"]]
    verdict = judged.get((AND.join(known), sentence["number"]), {})
    support = verdict.get("verdict")
    lost = WAITING if verdict.get("error_type") == UNASKED else FAILED
    status = (JUDGED if support else lost) if known else NO_SOURCE if sources else UNCITED
    return {
        "sentence_number": sentence["number"],
        "sentence": sentence["text"],
        "citation": place,
        "source": sources[0]["source"] if place else None,
        "support": support,
        "status": status,
        "reason": NO_TEXT if status == NO_SOURCE else verdict.get("reason"),
    }


# The labels of a sentence by its relevancy to the query (answer relevancy of DeepEval; methods, section 21)
LABELS = RELEVANT, BACKGROUND, IRRELEVANT = "relevant", "background", "irrelevant"
RELEVANCY, DIRECT = "answer_relevancy", "direct_relevancy"
# The labels that count, by measure
CREDITED = {RELEVANCY: (RELEVANT, BACKGROUND), DIRECT: (RELEVANT,)}
_LISTED = struct(number=NUMBER, text=TEXT)
CUT = columns(sample_id=TEXT, query=TEXT, listed=[_LISTED])
_LABELLED = struct(_LISTED, covered=FLAG, reference_id=TEXT, claims=[NUMBER], relation=TEXT, reason=TEXT)


@over_rows(CUT)
def cut_sentences(row: Row) -> Row:
    """Return columns of `CUT`: the sentences of a response without markers, headings, code and references."""
    found = cited_sentences(row["response"] or "", None, ())
    return {**row, "listed": [{"number": number, "text": one.text} for number, one in enumerate(found, start=1)]}


def relevancy_of(labels: Sequence[str | None]) -> dict[str, BoundedValue]:
    """Return the measures of relevancy of a response by name. Without sentences, the shares are undefined.

    A sentence without a label is unjudged: values cover the others, and bounds cover all its possible labels.

    >>> relevancy_of(["relevant", "background", "irrelevant", None])["answer_relevancy"]
    BoundedValue(value=0.6666666666666666, low=0.5, high=0.75)
    """
    shares = {
        name: share_of([None if one is None else one in credited for one in labels])
        for name, credited in CREDITED.items()
    }
    return {**shares, SENTENCES: BoundedValue.exact(float(len(labels)))}


@over_rows(columns(CONCLUSION, statements=[_LABELLED]))
def conclude_relevancy(row: Row) -> Row:
    """Return the columns of a conclusion, and statements. `empty` is True for a response without a sentence.

    row: the columns of `CUT`, and judged list<struct<number, label, reason>>.
    """
    judged = {one["number"]: one for one in row["judged"] or ()}
    statements = []
    for one in row["listed"]:
        label, reason = (judged.get(one["number"], {}).get(name) for name in ("label", "reason"))
        covered = None if label is None else label != IRRELEVANT
        statements.append({**one, "covered": covered, "relation": label, "reason": reason})
    measures, covered = relevancy_of([one["relation"] for one in statements]), [one["covered"] for one in statements]
    return {**conclusion(row, measures, covered, empty=not statements), "statements": statements}
