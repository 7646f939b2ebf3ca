from __future__ import annotations

import json

from untold.jobs.report.sources import CONTEXT, DETAILED, STATEMENT, ReportTexts, columns_of, pack


def test_equal_texts_are_stored_once() -> None:
    texts = ReportTexts()
    assert [texts.add(text) for text in ("one", "two", "one", None)] == [0, 1, 0, None]
    assert texts.texts == ["one", "two"]


def test_long_texts_with_the_same_beginning_remain_two_and_show_their_lengths() -> None:
    texts = ReportTexts()
    assert [texts.add("x" * 300_000 + end) for end in "ab"] == [0, 1]
    assert texts.lengths == {0: 300_001, 1: 300_001}


def test_a_small_report_has_uncompressed_data() -> None:
    texts = ReportTexts()
    texts.add("</script><!-- & \u2028")
    packed = pack({"samples": []}, texts)
    assert (packed.packed, packed.limit) == (False, None)
    assert not set("<>&\u2028") & set(packed.text)
    assert json.loads(packed.text)["texts"] == ["</script><!-- & \u2028"]


def test_contexts_are_cut_before_statements_and_the_worst_answers_last() -> None:
    texts = ReportTexts()
    # Texts that hardly pack, and each of a kind
    words = [str(hash((number, place)) ** 3) for place in range(3) for number in range(30_000)]
    context, detailed, statement = ("".join(words[place::3]) for place in range(3))
    for text, weight in ((context, CONTEXT), (detailed, CONTEXT * DETAILED), (statement, STATEMENT)):
        texts.add(text, weight)
    packed = pack({}, texts, budget=100_000)
    assert packed.packed
    assert len(packed.text) <= 100_000
    assert packed.limit is not None
    found = texts.cut(packed.limit)
    assert [len(text) for text in found["texts"]] == [packed.limit, packed.limit * DETAILED, packed.limit * STATEMENT]
    assert found["lengths"] == dict.fromkeys(range(3), 200000) or set(found["lengths"]) == {0, 1, 2}


def test_of_the_limits_that_fit_the_largest_is_taken() -> None:
    texts = ReportTexts()
    for number in range(30_000):
        texts.add(f"{hash((number, 1)) ** 3} is a text", CONTEXT)
    full = pack({}, texts)
    assert full.limit is None
    less = pack({}, texts, budget=len(full.text) - 1)
    assert less.limit is not None
    assert len(less.text) < len(full.text)


def test_single_points_and_unknown_values_use_no_space() -> None:
    first = {"text": 3, "point": 1, "covered": False, "in_basis": True, "sources": [0], "number": 5}
    rows = [first, {"text": 4, "point": 4, "covered": None, "number": 2}]
    assert columns_of(rows) == {
        "text": [3, 1],
        "number": [5, -3],
        "is": "b?",
        "point": [1, 3],
        "more": [{"sources": [0]}, {}],
    }
