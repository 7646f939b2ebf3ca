"""Test the citations of all formats, hostile texts in linear time, and the texts of worlds."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.citations import citation_worlds
from tests.linear import assert_linear
from untold.udfs.samples.citations import (
    CitedSentence,
    citations_of_parts,
    cited_sentences,
    normalise_citations,
    normalise_sources,
    source_key,
)
from untold.udfs.samples.conversion import to_sample
from untold.udfs.samples.file_records import FileRecord

IDS = ("a", "b", "doc-3#1")
FACTS = ("Bees make honey", "Ice floats on water", "Rain is wet", "The moon is far away")
COLUMNS = ("query", "response"), ("citations", "reference_sources")


def read(response: str, *ids: str, citations: list[dict[str, object]] | None = None) -> list[tuple[str, ...]]:
    """Return each sentence with its sources."""
    return [(one.text, *one.sources) for one in cited_sentences(response, citations, ids or IDS)]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("One [1]. Two.", [("One.", "a"), ("Two.",)]),
        ("One.[1] Two.[2]", [("One.", "a"), ("Two.", "b")]),
        (
            "Ice sinks [1]. Rain falls. [2] In the U.S. [1] it is.",
            [("Ice sinks.", "a"), ("Rain falls.", "b"), ("In the U.S. it is.", "a")],
        ),
        ("One. [1, 2] Two [2][1].", [("One.", "a", "b"), ("Two.", "b", "a")]),
        ("One [1-3]; two [1–2].", [("One; two.", "a", "b", "doc-3#1")]),
        ("One [1][1] again [1].", [("One again.", "a")]),
        ("One [doc-3#1]. Two [a; b].", [("One.", "doc-3#1"), ("Two.", "a", "b")]),
        ("One【2†L3-L4】.", [("One.", "b")]),
        ("One [2†source].", [("One.", "b")]),
        ("[1] One is first. Two.", [("One is first.", "a"), ("Two.",)]),
        ("One.\n[1]\n\nTwo.", [("One.", "a"), ("Two.",)]),
        ("One ([1], [2]).", [("One.", "a", "b")]),
        ("One [see [1]].", [("One.", "a")]),
        ("One [[1]](https://x.org/p).", [("One.", "https://x.org/p")]),
        ("One ([x.org](https://x.org/a_(b))).", [("One.", "https://x.org/a_(b)")]),
        ('One [of them](https://x.org "Title") is.', [("One of them is.", "https://x.org")]),
        ("One (https://x.org) is.", [("One is.", "https://x.org")]),
        ("One ![image](https://x.org/i.png) [mail](mailto:a@b.c).", [("One mail.",)]),
        ("One[^1]. Two[^z].\n\n[^1]: https://x.org/1\n[^z]: A book.", [("One.", "https://x.org/1"), ("Two.", "[^z]")]),
        ("One [7].\n\n[7]: https://x.org", [("One.", "https://x.org")]),
        (
            "One [1].\n\n## References\n[1] B. Ee, https://x.org/p.\n\n## Notes\nTwo.",
            [("One.", "https://x.org/p"), ("Two.",)],
        ),
        ("One [2].\n\n**Sources:**\n- https://x.org\n- [Y](https://y.org)", [("One.", "https://y.org")]),
        ("One [1].\n\n参考文献：\n1. https://x.org", [("One.", "https://x.org")]),
        (
            "The sources: a spring.\n\nSources\n\nWater is here.",
            [("The sources: a spring.",), ("Sources",), ("Water is here.",)],
        ),
        ("你好。[1]世界很大[2]。", [("你好。", "a"), ("世界很大。", "b")]),
        # Numbers without a source, years, and brackets with other content
        ("One [9]. Two [0].", [("One.", "[9]"), ("Two.", "[0]")]),
        ("One [1999] and [123456789012345].", [("One [1999] and [123456789012345].",)]),
        ("One [1-99]. Two [3-1]. Three [x].", [("One [1-99].",), ("Two [3-1].",), ("Three [x].",)]),
        ("- [ ] One\n- [x] Two", [("[ ] One",), ("[x] Two",)]),
        ("Use `a[1]` here.\n```\nb[2]\n```\nThen stop [2].", [("Use `a[1]` here.",), ("Then stop.", "b")]),
        ("~~~\nopen [1]", []),
        ("# A title\n\n**Bold**\n\n---\n\n| a | b [1] |\n|---|---|", [("| a | b |", "a")]),
        ("", []),
        (" \n", []),
        ("[1]", []),
    ],
)
def test_markers_belong_to_their_sentences(response: str, expected: list[tuple[str, ...]]) -> None:
    assert read(response) == expected


ENDS = "\n\nReferences\n[1] https://a.org/1\n[2] https://a.org/2"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        # Citations between two sentences belong to the first one
        ("One is. ([x](https://x.org)) Two is.", [("One is.", "https://x.org"), ("Two is.",)]),
        ("One is. ([x](https://x.org)). Two is.", [("One is.", "https://x.org"), ("Two is.",)]),
        ("One is.([A report](https://x.org)) Two is.", [("One is.", "https://x.org"), ("Two is.",)]),
        (
            "One is. ([x](https://x.org), [y](https://y.org)) Two is.",
            [("One is.", "https://x.org", "https://y.org"), ("Two is.",)],
        ),
        (
            "One is. ([1]) Two is. https://x.org Three is.",
            [("One is.", "a"), ("Two is.", "https://x.org"), ("Three is.",)],
        ),
        ("One is.\n\nSource: [x](https://x.org).\n\nTwo is.", [("One is.", "https://x.org"), ("Two is.",)]),
        ("One is.\nhttps://x.org\nTwo is.", [("One is.", "https://x.org"), ("Two is.",)]),
        # Within a sentence, links keep their text
        ("One ([A report](https://x.org)) is.", [("One (A report) is.", "https://x.org")]),
        ("([A report](https://x.org)) One is.", [("One is.", "https://x.org")]),
        ("Read https://x.org today.", [("Read https://x.org today.", "https://x.org")]),
        (
            "One (see https://x.org/(a)). Two <https://y.org>.",
            [("One.", "https://x.org/(a)"), ("Two.", "https://y.org")],
        ),
        ("One (source: [x](https://x.org)).", [("One.", "https://x.org")]),
        ("One (https://x.org, https://y.org).", [("One.", "https://x.org", "https://y.org")]),
        # Ranges, lists and pages
        (
            "One [1]–[3]. Two [1]-[2]. Three [1—2].",
            [("One.", "a", "b", "doc-3#1"), ("Two.", "a", "b"), ("Three.", "a", "b")],
        ),
        (
            "One [1,2;3]. Two [1 and 2]. Three [1 & 2].",
            [("One.", "a", "b", "doc-3#1"), ("Two.", "a", "b"), ("Three.", "a", "b")],
        ),
        ("One [1, p. 4]. Two [2, pp. 3–4; 1].", [("One.", "a"), ("Two.", "b", "a")]),
        ("It is in [0, 1] and [0,1).", [("It is in [0, 1] and [0,1).",)]),
        # Labels of models
        ("One [^1^]. Two [citation:2]. Three [Source 1].", [("One.", "a"), ("Two.", "b"), ("Three.", "a")]),
        ("One【4:0†report.pdf】. Two ［2］.", [("One.", "report.pdf"), ("Two.", "b")]),
        ("One (Smith, 2020)[1].", [("One (Smith, 2020).", "a")]),
        # Brackets and emphasis of markers do not stay in the text
        ("One \\[1\\]. Two [\\[1\\]](https://x.org).", [("One.", "a"), ("Two.", "https://x.org")]),
        (
            "One [[1]]. Two [[1][2]]. Three **[1]**. Four <sup>[2]</sup>.",
            [("One.", "a"), ("Two.", "a", "b"), ("Three.", "a"), ("Four.", "b")],
        ),
        ("One [1](#ref1). Two [[2]](#note-2).", [("One.", "a"), ("Two.", "b")]),
        ("Note **well** [1] **this**.", [("Note **well** **this**.", "a")]),
        ("One is. [![x](https://x.org/i.png)](https://x.org) Two is.", [("One is.",), ("Two is.",)]),
        # Links with definitions keep their words
        ("It [rains][1] and [snows].\n\n[snows]: https://x.org", [("It [rains] and [snows].", "a", "https://x.org")]),
        # Tables, code and lists of references
        ("| City | Rain |\n|---|:-:|\n| Bergen | much [1] |", [("| Bergen | much |", "a")]),
        ("~~~\na ``` b\n```\ncode [1]\n~~~\nOne [2].", [("One.", "b")]),
        (
            "One [1]." + ENDS + "\n\nTwo [2]. Three.",
            [("One.", "https://a.org/1"), ("Two.", "https://a.org/2"), ("Three.",)],
        ),
        (
            "One [1].\r\nTwo [2].\r\n" + ENDS.replace("\n", "\r\n"),
            [("One.", "https://a.org/1"), ("Two.", "https://a.org/2")],
        ),
        (
            "One [1].\n\nSources\n[1] https://x.org/O'Brien's/page, 'A title'",
            [("One.", "https://x.org/O'Brien's/page")],
        ),
        ("One [1].\n\nSources\n[1] 'https://x.org/page'。", [("One.", "https://x.org/page")]),
        ("One[^1].\n\n[^1]: https://x.org\n[^1]: https://y.org", [("One.", "https://x.org")]),
        ("[1][2]\n\nOne is. Two is.", [("One is.", "a", "b"), ("Two is.",)]),
        ("[1] [2]\n\n([x](https://x.org))", []),
    ],
)
def test_hostile_markers_are_read_as_a_reader_does(response: str, expected: list[tuple[str, ...]]) -> None:
    assert read(response) == expected


def test_a_number_is_an_id_before_it_is_a_position() -> None:
    assert read("One [2]. Two [1].", "2", "x") == [("One.", "2"), ("Two.", "2")]
    assert read("One [1].", "x", citations=normalise_citations(["https://p.org"], [])) == [("One.", "https://p.org")]


def test_spans_replace_markers() -> None:
    text = "One is. Two is [1]. Three is."
    over = [{"start": 9, "end": 24, "source": "z"}, {"start_index": 0, "end_index": 3, "url": "https://u.org"}]
    spans = normalise_citations(over, IDS)
    assert read(text, citations=spans) == [("One is.", "https://u.org"), ("Two is.", "z"), ("Three is.", "z")]
    nested = normalise_citations(
        [{"type": "url_citation", "url_citation": {"start_index": 0, "end_index": 3, "url": "u"}}], []
    )
    assert nested == [{"start": 0, "end": 3, "sources": ["u"]}]
    assert read(text, citations=normalise_citations([{"start": 100, "end": 900, "source": "z"}], []))[0] == ("One is.",)


def test_parts_are_sentences_and_keep_their_sources() -> None:
    parts = [
        {"text": "One. And more", "citations": [0, 7]},
        {"text": " "},
        {"text": "Two [1].", "citations": {"x": 0.1, "y": 0.9}},
    ]
    response = " ".join(one["text"] for one in parts)
    cited = citations_of_parts(parts, IDS)
    assert read(response, citations=cited) == [("One. And more", "a", "[8]"), ("Two.", "y", "x")]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("x", "citations is not a list"),
        ([{"start": 1, "source": "a"}], "start and end of citation 1 are not two positions"),
        ([{"start": -1, "end": 2, "source": "a"}], "start and end of citation 1 are not two positions"),
        ([{"start": 0.5, "end": 2, "source": "a"}], "start and end of citation 1 are not two positions"),
        (["a", {}], "citation 2 has a source without an id"),
        ([{"start": -1, "end": -1, "source": "a"}], "start and end of citation 1 are not two positions"),
        ([[["a"]]], "citation 1 has a source without an id"),
        ([{"start": 0, "end": 1, "source": [""]}], "citation 1 has a source without an id"),
    ],
)
def test_unusable_citations_are_named_without_their_text(value: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        normalise_citations(value, IDS)


def test_written_citations_are_read_again() -> None:
    rows = normalise_citations(["u", {"start": 0.0, "end": 3, "source": "z"}, {"start": 4, "end": 7}], [])
    assert normalise_citations(rows, []) == rows


def test_columns_of_samples() -> None:
    def sample(**values: object) -> object:
        return to_sample(FileRecord({"query": "q", "response": "r", **values}), False, *COLUMNS)

    assert sample().rest == {"citations": None}
    assert sample(citations="x").error == "citations is not a list"
    assert sample(contexts=[{"id": "a", "text": "t"}] * 2).error == "contexts 1 and 2 have one id"
    found = sample(
        response=[{"text": "One.", "citations": [1]}], contexts=[{"id": "x", "text": "t"}, {"id": "y", "text": "u"}]
    )
    assert (found.known["response"], found.rest["citations"]) == ("One.", [{"start": 0, "end": 4, "sources": ["y"]}])
    segments = sample(response=[{"text": "One.", "citations": [1]}], segment_ids=["d1", "d2"])
    assert segments.rest["citations"][0]["sources"] == ["d2"]
    # The id of a sample does not depend on the metric
    assert to_sample(FileRecord({"query": "q", "response": "r"}), False).content == sample().content
    assert sample(reference_sources=["a", {"url": "u"}, "a"]).rest["reference_sources"] == ["a", "u"]
    assert normalise_sources(None) is None


@pytest.mark.parametrize("seed", range(5))
def test_texts_of_worlds_are_read_without_changes(seed: int) -> None:
    for world in islice(citation_worlds(60 * (seed + 1)), 60 * seed, None):
        for sample, sentences in world.responses(2):
            made = to_sample(FileRecord(sample), False, *COLUMNS)
            found = cited_sentences(
                made.known["response"], made.rest["citations"], [one["id"] for one in made.known["contexts"]]
            )
            assert [_form(one) for one in found] == [_form(one) for one in sentences]


def _form(one: CitedSentence) -> tuple[str, set[str]]:
    return one.text.rstrip("."), set(map(source_key, one.sources))


PIECES = st.sampled_from(
    [
        "[1]",
        "[2, 3]",
        "【1】",
        "[^1]",
        "](",
        "[",
        "]",
        "(",
        ")",
        "`",
        "```",
        "\n",
        " ",
        ". ",
        "https://x.org",
        "# References\n",
        "1. ",
        "[x](https://x.org)",
        "Bees fly",
        "。",
        "a",
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join), st.lists(st.sampled_from(["a", "b"]), unique=True))
def test_any_text_is_read(text: str, ids: list[str]) -> None:
    for one in cited_sentences(text, None, ids):
        assert one.text.strip() == one.text
        assert any(map(str.isalnum, one.text))
        assert len(set(one.sources)) == len(one.sources)


@given(
    st.lists(
        st.tuples(st.sampled_from(FACTS), st.lists(st.integers(1, 5), max_size=3, unique=True)), min_size=1, max_size=6
    ),
    st.booleans(),
    st.sampled_from([" ", "\n", "\n\n"]),
)
def test_written_markers_are_read_back(written: list[tuple[str, list[int]]], before: bool, gap: str) -> None:
    sentences = []
    for fact, numbers in written:
        marks = "".join(f"[{number}]" for number in numbers)
        sentences.append(f"{fact}{marks}." if before else f"{fact}. {marks}".rstrip())
    names = [f"c{number}" for number in range(1, 6)]
    found = cited_sentences(gap.join(sentences), None, names)
    assert found == [CitedSentence(f"{fact}.", tuple(f"c{n}" for n in numbers)) for fact, numbers in written]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6),
    st.lists(st.sampled_from(FACTS), max_size=3),
)
def test_any_spans_are_read(spans: list[tuple[int, int]], facts: list[str]) -> None:
    text = " ".join(f"{fact}." for fact in facts)
    given_spans = [{"start": min(one), "end": max(one), "sources": ["s"]} for one in spans]
    found = cited_sentences(text, given_spans, [])
    assert all(one.sources in ((), ("s",)) for one in found)


HOSTILE = {
    "brackets": "[",
    "links": "[a](",
    "markers": "[1]",
    "ticks": "`",
    "nested": "[[a]",
    "round": "(",
    "definitions": "[1]: ",
    "lines": "\n[1]",
    "marks before lines": "[1]\n",
    "numbers": "9",
    "spaces": " ",
    "titles": "# References\n",
    "entries": "1. https://x.org/()()\n",
    "sentences": "One [1]. ",
    "labels": "[1, ",
    "fences": "```\n",
    "groups": "([1], ",
    "links in groups": "([a](https://x.org/",
    "addresses": "(https://x.org",
    "emphasis": "**[1]",
    "escaped": "\\[",
    "sources": "Source: [1]",
    "tables": "|--|",
    "rows": "| a. |\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_long_hostile_texts_take_linear_time(name: str) -> None:
    piece = HOSTILE[name]

    def read(length: int) -> None:
        cited_sentences(f"Start. {piece * (length // len(piece))} End [1].", None, IDS)

    assert_linear(read, 64_000)
