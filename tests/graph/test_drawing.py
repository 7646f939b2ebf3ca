from __future__ import annotations

import random
import struct
from typing import Any
from xml.etree import ElementTree

import matplotlib
import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PathCollection
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tests.examples import examples
from untold.graph import plotting
from untold.graph.plotting import draw_graph, make_figure
from untold.graph.views import condensed_graph, one_line, order_statements, raw_graph, sources_graph

HOSTILE = {
    "mathtext": r"costs $5 and $\frac{1}{$ under_score ^ \ %",
    "lines": "one\ntwo\r\nthree\ttabbed\u2028four",
    "right to left": "\u202eevil\u202c שלום עולם مرحبا",
    "NUL and escapes": "a\x00b\x1b[31mred\x07\x9b2J",
    "markup": "<script>alert('x')</script> & ]]> <!-- -->",
    "not XML": "\ufffe\uffff\ud800",
    "other scripts": "日本語 한국어 ไทย 😀👩‍👩‍👧",
    "long": "word " * 2_000,
    "long without spaces": "x" * 10_000,
    "empty": "",
}


def atom(name: str, origin: str, statement: str | None = None, **others: Any) -> dict[str, Any]:
    row = {"atom_id": name, "text": f"text of {name}", "question": None, "origin": origin, "statement_id": statement}
    return {**row, "sources": [] if origin == "response" else ["1"], "kept": True, **others}


def statement(name: str, *, covered: bool, in_basis: bool = False, text: str | None = None) -> dict[str, Any]:
    text = f"text of {name}" if text is None else text
    return {"statement_id": name, "text": text, "covered": covered, "in_basis": in_basis, "sources": ["1"]}


def relation(premise: str, hypothesis: str, name: str) -> dict[str, Any]:
    return {"premise_id": premise, "hypothesis_id": hypothesis, "relation": name}


# The published example (methods, section 5). The response states that Office "works on" the server. The edges are our
# own.
ATOMS = [
    atom("a0", "response", text="works on"),
    atom("c0", "context", "s0", text="confirmed that it does not work"),
    atom("c1", "context", "s1", text="Microsoft claimed that it would no longer be supported"),
    atom("c2", "context", "s0", text="does not work"),
    atom("c3", "context", "s3", text="would no longer be supported"),
    atom("c4", "context", "s4", text="is available for"),
    atom("c5", "context", "s5", text="runs on"),
]
STATEMENTS = [
    statement("s5", covered=True),
    statement("s4", covered=True),
    statement("s3", covered=False),
    statement("s0", covered=False, in_basis=True),
    statement("s1", covered=False, in_basis=True),
]
RELATIONS = [
    relation("c0", "c2", "entailment"),
    relation("c2", "c0", "entailment"),
    relation("c1", "c3", "entailment"),
    relation("c3", "c1", "neutral"),
    relation("a0", "c4", "entailment"),
    relation("a0", "c5", "entailment"),
    relation("a0", "c2", "contradiction"),
    relation("c2", "a0", "contradiction"),
]


def edges(graph: Any, name: str) -> set[tuple[str, str]]:
    return {(first, second) for first, second, edge in graph.edges(data=True) if edge.get(name)}


def test_missing_statements_come_first_and_the_basis_leads() -> None:
    assert [row["statement_id"] for row in order_statements(STATEMENTS)] == ["s0", "s1", "s3", "s4", "s5"]


def test_numbers_at_the_end_of_an_id_count_as_numbers() -> None:
    rows = [statement(f"x:e2e:{number}", covered=True) for number in (10, 2, 1)]
    assert [row["statement_id"] for row in order_statements(rows)] == ["x:e2e:1", "x:e2e:2", "x:e2e:10"]


def test_the_raw_graph_has_a_node_an_atom() -> None:
    graph = raw_graph(ATOMS, RELATIONS, STATEMENTS)
    assert isinstance(graph, nx.DiGraph)
    assert {name: (node["label"], node["kind"], node["basis"]) for name, node in graph.nodes(data=True)} == {
        "c0": ("1.1", "uncovered", True),
        "c2": ("1.2", "uncovered", True),
        "c1": ("2", "uncovered", True),
        "c3": ("3", "uncovered", False),
        "c4": ("4", "covered", False),
        "c5": ("5", "covered", False),
        "a0": ("R1", "response", False),
    }
    assert edges(graph, "entailment") == {("c0", "c2"), ("c2", "c0"), ("c1", "c3"), ("a0", "c4"), ("a0", "c5")}
    assert edges(graph, "contradiction") == {("a0", "c2"), ("c2", "a0")}


def test_the_condensed_graph_has_a_node_a_statement() -> None:
    graph = condensed_graph(ATOMS, RELATIONS, STATEMENTS)
    assert [(name, node["label"]) for name, node in graph.nodes(data=True)] == [
        ("s0", "1"),
        ("s1", "2"),
        ("s3", "3"),
        ("s4", "4"),
        ("s5", "5"),
        ("a0", "R1"),
    ]
    assert edges(graph, "entailment") == {("s1", "s3"), ("a0", "s4"), ("a0", "s5")}
    assert edges(graph, "contradiction") == {("a0", "s0"), ("s0", "a0")}
    assert nx.is_directed_acyclic_graph(graph.edge_subgraph(edges(graph, "entailment")))


def test_an_atom_of_both_is_a_statement_that_the_response_states() -> None:
    atoms = [atom("c", "both", "s"), atom("r", "response", "s"), atom("d", "context", "t")]
    statements = [statement("s", covered=True), statement("t", covered=True)]
    assert dict(condensed_graph(atoms, [], statements).nodes(data="response")) == {"s": True, "t": False}
    raw = raw_graph(atoms, [], statements)
    assert {name: (node["kind"], node["response"]) for name, node in raw.nodes(data=True)} == {
        "c": ("covered", True),
        "r": ("response", False),
        "d": ("covered", False),
    }


def test_atoms_that_were_dropped_are_in_no_graph() -> None:
    atoms = [atom("kept", "context", "s"), atom("dropped", "context", None, kept=False)]
    relations = [relation("kept", "dropped", "entailment")]
    for make in (raw_graph, condensed_graph):
        graph = make(atoms, relations, [statement("s", covered=False)])
        assert len(graph) == 1
        assert not graph.edges


def test_atoms_of_a_sample_without_statements_are_drawn_as_they_are() -> None:
    graph = condensed_graph([atom("c", "context"), atom("r", "response")], [], [])
    assert dict(graph.nodes(data="kind")) == {"c": "context", "r": "response"}


@pytest.mark.parametrize(
    ("name", "entailed"),
    [
        ("equivalent", {("s", "t"), ("t", "s")}),
        ("first_implies_second", {("s", "t")}),
        ("second_implies_first", {("t", "s")}),
        ("neutral", set()),
        ("implied", set()),
        (None, set()),
    ],
)
def test_the_relations_of_answers_are_edges(name: str, entailed: set[tuple[str, str]]) -> None:
    atoms = [atom("a", "context", "s", question="Where?"), atom("b", "context", "t", question="Where?")]
    statements = [statement("s", covered=False), statement("t", covered=False)]
    assert edges(condensed_graph(atoms, [relation("a", "b", name)], statements), "entailment") == entailed
    graph = raw_graph(atoms, [relation("a", "b", "contradictory")], statements)
    assert edges(graph, "contradiction") == {("a", "b")}
    assert graph.nodes["a"]["text"] == "Q: Where? A: text of a"


def test_an_entailment_and_a_contradiction_between_two_statements_both_stay() -> None:
    atoms = [atom("a", "context", "s"), atom("b", "context", "s"), atom("c", "context", "t")]
    relations = [relation("a", "c", "entailment"), relation("b", "c", "contradiction")]
    graph = condensed_graph(atoms, relations, [statement("s", covered=False), statement("t", covered=False)])
    assert dict(graph.edges["s", "t"]) == {"entailment": True, "contradiction": True}


def test_without_atoms_contexts_are_next_to_their_statements() -> None:
    statements = [{**statement("x:1", covered=True), "sources": ["1", "2"], "in_basis": None}]
    graph = sources_graph(statements, [{"id": "1", "text": "one"}, {"id": "2", "text": "two"}, {"id": "3", "text": ""}])
    assert set(graph.edges) == {(("context", "1"), "x:1"), (("context", "2"), "x:1")}
    assert graph.nodes["context", "2"]["text"] == "two"
    assert draw_graph(graph)


def test_contexts_are_numbered_in_input_order_next_to_their_full_ids() -> None:
    ids = ["survey-of-the-height-of-mount-everest-1955", "survey-of-the-height-of-mount-everest-2020", "unused", "gone"]
    contexts = [{"id": name, "text": f"text {number}"} for number, name in enumerate(ids[:3])]
    statements = [{**statement("x:1", covered=False), "sources": [ids[3], ids[1]]}]
    statements.append({**statement("x:2", covered=True), "sources": [ids[0]]})
    graph = sources_graph(statements, contexts)
    drawn = {name[1]: node["label"] for name, node in graph.nodes(data=True) if node["kind"] == "context"}
    assert drawn == {ids[0]: "C1", ids[1]: "C2", ids[3]: "C4"}
    assert list(drawn.values()) == ["C1", "C2", "C4"]
    shown = texts_of(draw_graph(graph))
    assert f"{ids[1]}: text 1" in shown
    assert "[C4, C2]" in shown


def test_the_response_is_next_to_the_graph() -> None:
    graph = condensed_graph(ATOMS, RELATIONS, STATEMENTS)
    assert "It works on the server." in texts_of(draw_graph(graph, response="It works\non the server."))
    assert "Response" not in texts_of(draw_graph(graph))


@pytest.mark.parametrize("words", [2, 90])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_no_half_of_a_picture_is_empty(count: int, words: int) -> None:
    rows = [statement(f"s{n}", covered=n % 2 == 0, text="word " * words) for n in range(count)]
    figure = make_figure(condensed_graph([], [], rows), response="word " * 50)
    graph, beside = (axes.get_window_extent() for axes in figure.axes)
    written = [text.get_window_extent() for text in figure.axes[1].texts]
    lowest, rightmost = min(box.y0 for box in written), max(box.x1 for box in written)
    least = plotting.LOWEST_LINES * plotting.LINE_INCHES * figure.dpi
    assert max(graph.height, beside.y1 - lowest) < 2 * max(least, min(graph.height, beside.y1 - lowest))
    assert rightmost - beside.x0 > beside.width / 2


def test_a_label_fits_its_node() -> None:
    atoms = [atom(f"a{n}", "context", f"s{n // 12}") for n in range(132)]
    figure = make_figure(raw_graph(atoms, [], [statement(f"s{n}", covered=False) for n in range(11)]))
    labels = [text for text in figure.axes[0].texts if text.get_text()]
    assert "10.12" in {text.get_text() for text in labels}
    widest = max(text.get_window_extent().width for text in labels)
    assert widest / figure.dpi * 72 < plotting.NODE_SIZE**0.5


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_a_picture_reports_a_missing_font() -> None:
    def lacks(text: str) -> bool:
        return plotting._lacks_glyphs(make_figure(condensed_graph([], [], [statement("s", covered=True, text=text)])))

    assert lacks("of no script: \U0010fff0")
    assert not lacks("Ångström, Москва, Αθήνα")


@examples(50)
@given(st.randoms(use_true_random=False))
def test_a_graph_and_its_picture_do_not_depend_on_the_order_of_rows(chance: random.Random) -> None:
    def shuffled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return chance.sample(rows, len(rows))

    for make in (raw_graph, condensed_graph):
        expected, got = make(ATOMS, RELATIONS, STATEMENTS), make(*map(shuffled, (ATOMS, RELATIONS, STATEMENTS)))
        assert list(got.nodes(data=True)) == list(expected.nodes(data=True))
        assert list(got.edges(data=True)) == list(expected.edges(data=True))


@pytest.mark.parametrize("form", ["svg", "png"])
def test_a_picture_does_not_depend_on_the_style_of_the_caller(form: str) -> None:
    graph = condensed_graph(ATOMS, RELATIONS, STATEMENTS)
    first = draw_graph(graph, form=form, title="a title")
    with matplotlib.rc_context({"svg.hashsalt": "other", "font.size": 30, "text.color": "red", "lines.linewidth": 9}):
        assert draw_graph(graph, form=form, title="a title") == first


def texts_of(picture: bytes) -> str:
    tree = ElementTree.fromstring(picture)
    return "\n".join("".join(element.itertext()) for element in tree.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("make", [raw_graph, condensed_graph])
def test_a_picture_shows_colours_labels_texts_and_a_key(make: Any) -> None:
    picture = draw_graph(make(ATOMS, RELATIONS, STATEMENTS), title="a title")
    shown = texts_of(picture)
    assert all(colour.lower() in picture.decode().lower() for colour in ("#009E73", "#D55E00", "#0072B2"))
    assert all(line in shown for line in ("a title", "R1", "works on", "covered statement", "contradiction", "basis"))
    assert "context\n" not in shown


def test_a_png_is_a_png() -> None:
    picture = draw_graph(condensed_graph(ATOMS, RELATIONS, STATEMENTS), form="png")
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 300
    assert height > 200


def test_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="'gif'; there are svg, png"):
        draw_graph(nx.DiGraph(), form="gif")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["svg", "png"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_text_breaks_a_picture(text: str, form: str) -> None:
    atoms = [atom(text, "context", "s", text=text, sources=[text, "2"]), atom("r", "response", text=text)]
    statements = [{**statement("s", covered=False, text=text), "sources": [text]}]
    for graph in (raw_graph(atoms, [], statements), sources_graph(statements, [{"id": text, "text": text}])):
        picture = draw_graph(graph, form=form, title=text)
        assert len(picture) < 1_000_000
        if form == "svg":
            assert texts_of(picture)


def test_signs_of_mathematics_are_shown_as_written() -> None:
    shown = texts_of(draw_graph(condensed_graph([], [], [statement("s", covered=True, text=r"$x_1$ and \alpha")])))
    assert r"$x_1$ and \alpha" in shown


def test_long_texts_are_wrapped_and_cut() -> None:
    graph = condensed_graph([], [], [statement("s", covered=True, text="word " * 2_000)])
    lines = texts_of(draw_graph(graph)).splitlines()
    assert sum(line.count("word") for line in lines) <= plotting.TEXT_LENGTH / 5
    assert any("…" in line for line in lines)


def random_graph(chance: random.Random, statements: int, words: int) -> Any:
    """Return statements with long texts, atoms of the response, and both entailments and contradictions."""
    rows = [
        statement(f"s{n}", covered=n % 3 == 0, in_basis=n % 3 == 1, text=" ".join(chance.choices(WORDS, k=words)))
        for n in range(statements)
    ]
    atoms = [atom(f"a{n}", "context", f"s{n}") for n in range(statements)]
    atoms += [atom(f"r{n}", "response", text="W" * chance.randint(1, 300)) for n in range(statements // 4)]
    names = [row["atom_id"] for row in atoms]
    kinds = ("entailment", "entailment", "contradiction")
    drawn = [(*chance.sample(names, 2), chance.choice(kinds)) for _ in range(2 * statements)]
    return condensed_graph(atoms, [relation(*each) for each in drawn], rows)


WORDS = ("reservoir", "WWWWWWWWWW", "illicit", "日本語のテキスト", "of", "4 May 1932", "x" * 90)


def is_within(inner: Any, outer: Any) -> bool:
    slack = 0.5  # half of a pixel
    return bool(
        outer.x0 - slack <= inner.x0
        and inner.x1 <= outer.x1 + slack
        and outer.y0 - slack <= inner.y0
        and inner.y1 <= outer.y1 + slack
    )


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.parametrize(
    ("statements", "words"),
    [(2, 3), (5, 60), *(pytest.param(*size, marks=pytest.mark.gate) for size in ((60, 12), (60, 60), (150, 4)))],
)
def test_every_text_node_and_edge_is_inside_the_figure(statements: int, words: int) -> None:
    graph = random_graph(random.Random(statements), statements, words)
    figure = make_figure(graph, title="W" * 200)
    canvas: Any = figure.canvas
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert sum(len(text.get_text()) for text in texts) > 10 * len(graph)
    assert all(is_within(text.get_window_extent(renderer), figure.bbox) for text in texts)
    axes = figure.axes[0]  # the axes clip all artists outside
    nodes = [node for group in axes.findobj(PathCollection) for node in node_boxes(group)]
    assert len(nodes) == min(len(graph), plotting.MAX_NODES)
    assert all(is_within(node, axes.bbox) for node in nodes)
    arrows = axes.findobj(FancyArrowPatch)
    assert arrows
    assert all(is_within(arrow.get_window_extent(renderer), axes.bbox) for arrow in arrows)
    assert is_within(axes.bbox, figure.bbox)


def node_boxes(group: Any) -> list[Bbox]:
    """Return the boxes of the markers of one kind of node, in pixels."""
    scale = group.figure.dpi / 72
    (path,), (size,) = group.get_paths(), group.get_sizes()
    half = path.get_extents().max * size**0.5 * scale + group.get_linewidths()[0] * scale / 2
    at = group.get_offset_transform().transform(group.get_offsets())
    return [Bbox([place - half, place + half]) for place in at]


@given(st.text(max_size=40))
def test_a_line_has_only_characters_that_a_terminal_and_xml_can_show(text: str) -> None:
    shown = one_line(text)
    assert len(shown.splitlines()) <= 1
    assert not {character for character in shown if ord(character) < 32 or 0x7F <= ord(character) < 0xA0}
    assert ElementTree.fromstring(f"<a>{shown.replace('&', '&amp;').replace('<', '&lt;')}</a>").text == (shown or None)


def test_a_picture_reports_its_omissions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotting, "MAX_NODES", 30)
    monkeypatch.setattr(plotting, "MAX_EDGES", 50)
    names = [f"s{number}" for number in range(40)]
    atoms = [atom(name, "context", name) for name in names]
    pairs = [relation(first, second, "entailment") for first in names for second in names if first != second]
    shown = texts_of(draw_graph(condensed_graph(atoms, pairs, [statement(name, covered=False) for name in names])))
    assert "the first 30 of 40 nodes are drawn" in shown
    assert "the first 50 of 870 edges (entailment) are drawn" in shown
    assert "text of s29" in shown
    assert "text of s30" not in shown
