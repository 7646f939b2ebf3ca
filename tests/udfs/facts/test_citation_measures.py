"""Compare measures of citations with brute force, and their bounds with every result of the lost verdicts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.citations import Cited, expected_citations
from untold.udfs.facts.citation_measures import (
    CITING,
    UNDEFINED,
    WEIGHTS,
    BoundedValue,
    JudgedSentence,
    cite_batches,
    conclude_batches,
    key_pages,
    measures_of,
)

SUPPORTS = st.none() | st.sampled_from(list(WEIGHTS))
SHARES = ("weighted_precision", "weighted_recall", "f1", "first_precision", "first_recall", "citation_accuracy")
SHARES += ("sentence_precision", "sentence_recall")


@st.composite
def sentences(draw: Any, *, whole: bool = False) -> list[JudgedSentence]:
    """Sentences with the support of up to three sources."""
    found = []
    for _ in range(draw(st.integers(0, 4))):
        own = tuple(draw(SUPPORTS) for _ in range(draw(st.integers(0, 3))))
        is_whole = whole or draw(st.booleans()) or not own
        # A sentence with one source has its support
        together = own[0] if len(own) == 1 and is_whole else draw(SUPPORTS)
        found.append(JudgedSentence(own, together, is_whole))
    return found


def ends_of(found: dict[str, BoundedValue]) -> dict[str, Any]:
    return {name: (one.value, one.low, one.high) for name, one in found.items()}


@given(given=sentences())
def test_bounds_hold_for_every_result_of_the_lost_verdicts(given: list[JudgedSentence]) -> None:
    found = measures_of(given)
    for filled in completed(given):
        known = measures_of(filled)
        for name in (*SHARES, "effective_citations"):
            value, ends = known[name].value, found[name]
            assert value is None or ends.low - 1e-9 <= value <= ends.high + 1e-9, name
            assert known[name].low == pytest.approx(value), name
    for one in found.values():
        assert one.value is None or one.low <= one.value <= one.high


def completed(given: list[JudgedSentence]) -> list[list[JudgedSentence]]:
    """Return the sentences with several results in place of each lost verdict."""
    options = []
    for one in given:
        single = [tuple(support or end for support in one.citations) for end in ("full", "none")]
        least = WEIGHTS[one.together or "none"]
        whole = (
            [one.together] if one.together and one.is_whole else [name for name in WEIGHTS if WEIGHTS[name] >= least]
        )
        options.append([JudgedSentence(own, support) for own in single for support in whole])
    return [list(one) for one in product(*options)][:300]


@given(given=sentences(whole=True))
def test_measures_equal_brute_force(given: list[JudgedSentence]) -> None:
    names = [tuple(f"s{place}-{n}" for n, _ in enumerate(one.citations)) for place, one in enumerate(given)]
    cited = [Cited(f"t{place}", own, own) for place, own in enumerate(names)]
    verdicts: dict[Any, Any] = {}
    for number, (one, own) in enumerate(zip(given, names, strict=True), start=1):
        verdicts |= {((name,), number): support for name, support in zip(own, one.citations, strict=True)}
        verdicts |= {(own, number): one.together} if len(own) > 1 else {}
    wanted = expected_citations({}, cited, verdicts, "f1")
    measures = {**wanted.measures}
    if wanted.status == "failed":
        found = {name: (None, low, high) for name, (_, low, high) in ends_of(measures_of(given)).items()}
    else:
        found = ends_of(measures_of(given))
    assert found == {name: pytest.approx(measures[name]) for name in found}


def test_precision_counts_citations_and_recall_counts_sentences() -> None:
    """Two sentences: one cites twice, with full and no support, and one cites nothing."""
    found = measures_of([JudgedSentence(("full", "none"), "full"), JudgedSentence()])
    values = {name: one.value for name, one in found.items()}
    assert (values["weighted_precision"], values["weighted_recall"], values["f1"]) == (0.5, 0.5, 0.5)
    assert (values["first_precision"], values["first_recall"]) == (1.0, 0.5)
    assert (values["citation_accuracy"], values["effective_citations"], values["cited_sentences"]) == (0.5, 1.0, 0.5)


def test_sentences_without_a_verdict_are_left_out_of_precision_and_recall() -> None:
    """The example of the published metrics of TREC RAG: five sentences, one with an unjudged citation, one without."""
    labels = [("full",), ("partial",), ("none", "full"), (None,), ()]
    found = measures_of([JudgedSentence(own, own[-1] if own else None) for own in labels])
    values = {name: one.value for name, one in found.items()}
    assert (values["first_precision"], values["first_recall"]) == (0.5, 0.375)
    assert (values["sentence_precision"], values["sentence_recall"]) == (pytest.approx(2 / 3), 0.5)
    assert values["weighted_recall"] == 2.5 / 4


def test_partial_support_has_half_credit_and_counts_as_effective() -> None:
    found = measures_of([JudgedSentence(("partial",), "partial")])
    assert (found["weighted_precision"].value, found["citation_accuracy"].value) == (0.5, 1.0)


def test_a_source_without_a_text_is_not_unsupported() -> None:
    """FACT leaves out citations of unknown sources. Here they also give bounds."""
    found = measures_of([JudgedSentence(("full", None), "full", False), JudgedSentence((None,), None, False)])
    assert found["citation_accuracy"] == BoundedValue(1.0, 1 / 3, 1.0)
    # Full support by the known source is full support
    assert found["weighted_recall"] == BoundedValue(1.0, 0.5, 1.0)
    half = measures_of([JudgedSentence(("partial", None), "partial", False)])
    assert half["weighted_recall"] == BoundedValue(None, 0.5, 1.0)


def test_undefined_measures_are_not_0() -> None:
    nothing, uncited = measures_of([]), measures_of([JudgedSentence()])
    assert {name for name, one in nothing.items() if one == UNDEFINED} == {*SHARES, "cited_sentences", "source_recall"}
    assert {name for name, one in uncited.items() if one == UNDEFINED} == {
        *("weighted_precision", "first_precision", "sentence_precision", "citation_accuracy", "source_recall")
    }
    assert (uncited["f1"].value, uncited["weighted_recall"].value, uncited["effective_citations"].value) == (0, 0, 0)


def test_the_recall_of_reference_sources_compares_urls_without_fragments() -> None:
    found = measures_of([], ["https://a.org/#b", "c"], ["http://a.org", "d"])
    assert found["source_recall"].value == 0.5


ROW = pa.schema(
    [
        *((name, pa.string()) for name in ("sample_id", "response")),
        ("contexts", pa.list_(pa.struct([("id", pa.string()), ("text", pa.string())]))),
        (
            "citations",
            pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("sources", pa.list_(pa.string()))])),
        ),
    ]
)


def test_sources_have_the_texts_of_contexts() -> None:
    row = {
        "sample_id": "s",
        "response": "One [1]. Two [2][3]. [1]",
        "contexts": [{"id": "1", "text": "t"}, {"id": "2", "text": " "}],
    }
    (found,) = cite_batches([pa.RecordBatch.from_pylist([row, {"sample_id": "t", "response": None}], ROW)])
    first, second = found.to_pylist()
    assert [[(one["source"], one["text"]) for one in each["sources"]] for each in first["sentences"]] == [
        [("1", "t")],
        [("2", None), ("[3]", None), ("1", "t")],
    ]
    assert second["sentences"] == []
    assert found.schema == CITING


def test_pages_have_a_row_per_id_and_url() -> None:
    columns = {
        "document_id": ["d", None, ""],
        "url": ["https://a.org/", "u", None],
        "number": [0, 1, 0],
        "text": ["t", "v", "w"],
    }
    (found,) = key_pages([pa.RecordBatch.from_pydict(columns)])
    assert [(row["key"], row["number"], row["text"]) for row in found.to_pylist()] == [
        ("d", 0, "t"),
        ("a.org", 0, "t"),
        ("u", 1, "v"),
    ]


def test_rows_name_the_result_of_each_citation() -> None:
    source = {"source": "a", "key": "a", "has_text": True}
    gone = {"source": "b", "key": "b", "has_text": False}
    judged = [
        {"group": "a", "number": 1, "verdict": "full", "reason": "r", "error_type": None},
        {"group": "a", "number": 2, "verdict": None, "reason": None, "error_type": "http_400"},
        {"group": "a", "number": 3, "verdict": None, "reason": None, "error_type": "unasked"},
    ]
    texts = [(1, [source, gone]), (2, [source]), (3, [source]), (4, [gone]), (5, [])]
    row = {
        "sample_id": "s",
        "sentences": [{"number": number, "text": f"t{number}", "sources": own} for number, own in texts],
        "judged": judged,
        "reference_sources": None,
    }
    (found,) = conclude_batches([pa.RecordBatch.from_pylist([row])], "f1")
    (one,) = found.to_pylist()
    assert [
        (each["sentence_number"], each["citation"], each["status"], each["reason"]) for each in one["citations"]
    ] == [
        *(
            (1, 0, "judged", "r"),
            (1, 1, "judged", "r"),
            (1, 2, "no_source", "no context, document or page has this id"),
        ),
        *((2, 0, "failed", None), (2, 1, "failed", None), (3, 0, "unasked", None), (3, 1, "unasked", None)),
        *((4, 0, "no_source", "no context, document or page has this id"),),
        *((4, 1, "no_source", "no context, document or page has this id"), (5, 0, "uncited", None)),
    ]
    assert (one["covered"], one["uncovered"], one["unjudged"], one["lost"]) == (1, 1, 7, 2)
