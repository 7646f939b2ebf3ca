"""One sample's fact graph as a networkx DiGraph, and as a picture. Dejl et al. 2025; methods, section 5.

Rows are mappings with the columns of the tables `atoms`, `relations` and `statements`, of one sample and one metric.
A node of a graph here has the attributes `label`, `text`, `sources` (tuple of context ids), `kind` (`covered`,
`uncovered`, `response` or `context`), `basis` and `response` (a statement that the response states itself); an edge has
one or both of `entailment` (premise to hypothesis) and `contradiction`, or `states` (context to statement).
"""

from __future__ import annotations

import io
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import networkx as nx
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

Row = Mapping[str, Any]
Graph: TypeAlias = "nx.DiGraph[Hashable]"
Positions = dict[Hashable, tuple[float, float]]

ENTAILMENTS = {  # whether it is an edge from the first to the second atom, and back
    "entailment": (True, False),
    "equivalent": (True, True),
    "first_implies_second": (True, False),
    "second_implies_first": (False, True),
}
CONTRADICTIONS = ("contradiction", "contradictory")
DRAWN_RELATIONS = (*ENTAILMENTS, *CONTRADICTIONS)
FORMATS = ("svg", "png")

MAX_NODES = 150  # more are not told apart on any screen
MAX_EDGES = 2_000  # of entailment, and of contradiction: those of a full graph take minutes
MAX_LAYERS = 6  # columns of one kind of node
ROWS = 24  # nodes of a column
LINES = 80  # lines of text in a column of the legend
WIDTH, TEXT_LENGTH, TITLE_LENGTH = 72, 300, 110  # characters of a line of the legend, of a text in it, of the title
SOURCES, SOURCE_LENGTH = 12, 24  # context ids beside a text, and characters of one

# Okabe and Ito's colours, which colour-blind people tell apart; shapes say the same once more
COLOURS = {"covered": "#009E73", "uncovered": "#D55E00", "response": "#0072B2", "context": "#999999"}
SHAPES = {"covered": "o", "uncovered": "D", "response": "s", "context": "^"}
NAMES = {
    "covered": "covered statement",
    "uncovered": "uncovered statement",
    "response": "response atom",
    "context": "context",
}
KINDS = ("context", "response", "covered", "uncovered")  # from left to right
EDGE_STYLES: dict[str, dict[str, Any]] = {
    "entailment": {"edge_color": "#444444", "arrowstyle": "-|>", "connectionstyle": "arc3,rad=0.12", "style": "solid"},
    "contradiction": {
        "edge_color": "#AA3377",
        "arrowstyle": "-",
        "connectionstyle": "arc3,rad=-0.2",
        "style": "dashed",
    },
    "states": {"edge_color": "#BBBBBB", "arrowstyle": "-", "connectionstyle": "arc3", "style": "solid"},
}
BLACK, BLUE = "#000000", COLOURS["response"]
NODE_SIZE, FONT_SIZE, BORDER = 340, 8, 2.5
COLUMN_INCHES, ROW_INCHES, LINE_INCHES, LOWEST_INCHES = 1.15, 0.5, 0.16, 2.0
LEGEND_INCHES, LABEL_INCHES, MARGIN, HEAD, FOOT = 5.2, 0.45, 0.4, 1.4, 0.4
STYLE: dict[str, Any] = {
    "svg.hashsalt": "untold",
    "svg.fonttype": "none",  # text that can be searched, in the viewer's own fonts
    "text.usetex": False,
    "text.parse_math": False,
}
_FRIENDLY_FORMATS = "\u200c\u200d\u200e\u200f\u00ad\u061c"  # joiners and marks that scripts need


def one_line(text: str) -> str:
    """The text on one line, without what a terminal, a picture or XML would not show as text.

    White space is collapsed. Control characters, lone surrogates, noncharacters and what turns the direction of
    writing around become U+FFFD.
    """
    return "".join(_visible(character) for character in " ".join(text.split()))


def _visible(character: str) -> str:
    category, point = unicodedata.category(character), ord(character)
    hidden = category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and character not in _FRIENDLY_FORMATS)
    return "\ufffd" if hidden or point & 0xFFFE == 0xFFFE or 0xFDD0 <= point <= 0xFDEF else character


def _cut(text: str, length: int) -> str:
    """The first characters of `one_line`; long texts are cut before they are looked through."""
    line = one_line(text.lstrip()[: 4 * length])
    return line if len(line) <= length else f"{line[:length].rstrip()}…"


def order_statements(statements: Iterable[Row]) -> list[Row]:
    """What is missing first, the basis at its head, then what is covered; each by statement_id, numbers as numbers."""
    return sorted(
        statements,
        key=lambda row: (bool(row["covered"]), not row.get("in_basis"), *_natural(row["statement_id"])),
    )


def _natural(name: str | None) -> tuple[str, int, str]:
    head, digits = re.fullmatch(r"(.*?)([0-9]{0,18})", name or "", re.DOTALL).groups()  # type: ignore[union-attr]
    return head, int(digits or 0), name or ""


def raw_graph(atoms: Iterable[Row], relations: Iterable[Row], statements: Iterable[Row]) -> Graph:
    """The graph of the atoms, one node an atom that was kept, named by its atom_id.

    Atoms of the response are of kind `response`, the others of the kind of their statement. Labels are `n` or `n.k` for
    the k-th atom of the n-th statement of `order_statements`, `R1`, `R2`, ... for atoms that are in no statement.
    """
    numbered = {row["statement_id"]: (number, row) for number, row in enumerate(order_statements(statements), 1)}
    graph: Graph = nx.DiGraph()
    alone = []
    for members in _group(atoms, numbered).values():
        if members[0].get("statement_id") not in numbered:
            alone += members
            continue
        number, statement = numbered[members[0]["statement_id"]]
        for place, atom in enumerate(members, 1):
            label = f"{number}.{place}" if len(members) > 1 else str(number)
            kind = "response" if atom["origin"] == "response" else _kind(statement)
            graph.add_node(atom["atom_id"], **_atom(atom, label, kind, basis=bool(statement.get("in_basis"))))
    _add_alone(graph, alone)
    _add_relations(graph, relations, {str(name): name for name in graph})
    return graph


def condensed_graph(atoms: Iterable[Row], relations: Iterable[Row], statements: Iterable[Row]) -> Graph:
    """The condensation: one node a statement, named by its statement_id, and one an atom that is in none, by atom_id.

    Labels are the numbers of `order_statements`, and `R1`, `R2`, ... for the atoms. Edges within a statement are gone.
    """
    graph: Graph = nx.DiGraph()
    ordered = order_statements(statements)
    kept = _group(atoms, {row["statement_id"]: (number, row) for number, row in enumerate(ordered, 1)})
    for number, row in enumerate(ordered, 1):
        stated = any(atom["origin"] != "context" for atom in kept.get(row["statement_id"], ()))
        graph.add_node(row["statement_id"], **_statement(row, number, response=stated))
    place = {atom["atom_id"]: name for name, members in kept.items() for atom in members if name in graph}
    alone = [atom for name, members in kept.items() if name not in graph for atom in members]
    _add_alone(graph, alone)
    _add_relations(graph, relations, place | {atom["atom_id"]: atom["atom_id"] for atom in alone})
    return graph


def sources_graph(statements: Iterable[Row], contexts: Iterable[Row]) -> Graph:
    """Statements and the contexts that state them, for a metric that has no fact graph (e2e).

    A statement is named by its statement_id, a context (a mapping with `id` and `text`) by `("context", id)`; contexts
    that state nothing are left out.
    """
    graph: Graph = nx.DiGraph()
    texts = {row["id"]: row["text"] for row in contexts}
    ordered = order_statements(statements)
    for number, row in enumerate(ordered, 1):
        graph.add_node(row["statement_id"], **_statement(row, number, response=False))
    for row in ordered:
        for source in row.get("sources") or ():
            label, text = f"C{one_line(source)[:4]}", texts.get(source) or ""
            graph.add_node(("context", source), **_node(label, text, "context", (source,)))
            graph.add_edge(("context", source), row["statement_id"], states=True)
    return graph


def _group(atoms: Iterable[Row], numbered: Mapping[str, tuple[int, Row]]) -> dict[str | None, list[Row]]:
    """The kept atoms by statement, in the order of the statements; those in none under None, last."""
    kept = [atom for atom in atoms if atom.get("kept") is not False]
    last = len(numbered) + 1
    ranked = [(numbered.get(atom.get("statement_id") or "", (last,))[0], atom) for atom in kept]
    groups: dict[str | None, list[Row]] = {}
    for rank, atom in sorted(ranked, key=lambda pair: (pair[0], *_natural(pair[1]["atom_id"]))):
        groups.setdefault(atom["statement_id"] if rank < last else None, []).append(atom)
    return groups


def _kind(statement: Row) -> str:
    return "covered" if statement["covered"] else "uncovered"


def _statement(row: Row, number: int, *, response: bool) -> dict[str, Any]:
    sources = tuple(row.get("sources") or ())
    basis = bool(row.get("in_basis"))
    return _node(str(number), row["text"], _kind(row), sources, basis=basis, response=response)


def _atom(row: Row, label: str, kind: str, *, basis: bool = False) -> dict[str, Any]:
    question = row.get("question")
    text = row["text"] if question is None else f"Q: {question} A: {row['text']}"
    return _node(label, text, kind, tuple(row.get("sources") or ()), basis=basis, response=row["origin"] == "both")


def _node(
    label: str, text: str, kind: str, sources: tuple[str, ...], *, basis: bool = False, response: bool = False
) -> dict[str, Any]:
    return {
        "label": label,
        "text": text or "",
        "kind": kind,
        "sources": sources,
        "basis": basis,
        "response": response,
    }


def _add_alone(graph: Graph, atoms: Sequence[Row]) -> None:
    """Atoms that are in no statement: of the response, or of contexts where the sample could not be scored."""
    for number, atom in enumerate(atoms, 1):
        kind = "context" if atom["origin"] == "context" else "response"
        letter = "A" if kind == "context" else "R"
        graph.add_node(atom["atom_id"], **_atom(atom, f"{letter}{number}", kind))


def _add_relations(graph: Graph, relations: Iterable[Row], place: Mapping[str, Hashable]) -> None:
    """Adds what the relations say between the nodes that hold their atoms; neutral and implied ones add nothing."""
    for row in sorted(relations, key=lambda row: (row["premise_id"], row["hypothesis_id"])):
        first, second = place.get(row["premise_id"]), place.get(row["hypothesis_id"])
        if first is None or second is None or first == second:
            continue
        forth, back = ENTAILMENTS.get(row["relation"], (False, False))
        if forth:
            graph.add_edge(first, second, entailment=True)
        if back:
            graph.add_edge(second, first, entailment=True)
        if row["relation"] in CONTRADICTIONS:
            graph.add_edge(first, second, contradiction=True)


def draw_graph(graph: Graph, *, form: str = "svg", title: str = "") -> bytes:
    """The picture of a graph of this module as the bytes of an SVG or a PNG (`form`), the same for the same graph.

    Green circles are covered statements, orange-red diamonds uncovered ones (black border: the basis), blue squares
    response atoms, a blue border says that the response states it itself; arrows are entailments, dashed lines
    contradictions. The texts stand beside, by label, cut after `TEXT_LENGTH` characters. Of graphs with more than
    `MAX_NODES` nodes the first are drawn, of more than `MAX_EDGES` edges likewise, and the picture says so. Raises
    ValueError for another form.
    """
    if form not in FORMATS:
        raise ValueError(f"no picture of form {form!r}; there are {', '.join(FORMATS)}")
    # No style of the caller's may change a byte
    with style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        return save_figure(_draw(graph, title), form)


def save_figure(figure: Figure, form: str) -> bytes:
    """The bytes of a figure in one of `FORMATS`, without a date, so that the same figure has the same bytes."""
    written = io.BytesIO()
    metadata = {"Date": None, "Creator": "Untold"} if form == "svg" else {"Software": None}
    figure.savefig(written, format=form, dpi=110, metadata=metadata, facecolor="white")
    return written.getvalue()


def _draw(graph: Graph, title: str) -> Figure:
    shown = graph.copy()
    shown.remove_nodes_from(list(graph)[MAX_NODES:])
    columns, legend = _columns(shown), _legend_columns(shown)
    across = max(len(columns), 2) * COLUMN_INCHES
    rows = max((len(column) for column in columns), default=1)
    lines = max((sum(map(len, column)) for column in legend), default=1)
    width = across + len(legend) * LEGEND_INCHES + 2 * MARGIN
    height = max(rows * ROW_INCHES, lines * LINE_INCHES, LOWEST_INCHES) + HEAD + FOOT
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    body = (height - HEAD - FOOT) / height
    axes = figure.add_axes((MARGIN / width, FOOT / height, across / width, body))
    notes = _draw_nodes_and_edges(axes, shown, _positions(columns))
    if len(shown) < len(graph):
        notes.insert(0, f"the first {len(shown):,} of {len(graph):,} nodes are drawn")
    beside = figure.add_axes(((across + 2 * MARGIN) / width, FOOT / height, 1 - (across + 2 * MARGIN) / width, body))
    _write_legend(beside, legend, lines=round((height - HEAD - FOOT) / LINE_INCHES))
    _write_frame(figure, shown, title, "; ".join(notes))
    return figure


def _columns(graph: Graph) -> list[list[Hashable]]:
    """The nodes of each column: kind by kind, premises before what follows from them."""
    columns = []
    for kind in KINDS:
        for layer in _layers(graph, [name for name, node in graph.nodes(data=True) if node["kind"] == kind]):
            columns += [layer[start : start + ROWS] for start in range(0, len(layer), ROWS)]
    return columns


def _layers(graph: Graph, names: Sequence[Hashable]) -> list[list[Hashable]]:
    """The names by how many classes of them come before theirs along entailments, at most `MAX_LAYERS` layers."""
    among = set(names)
    inner: Graph = nx.DiGraph()
    inner.add_nodes_from(names)
    inner.add_edges_from(edge for edge in _edges(graph, "entailment") if among.issuperset(edge))
    quotient: Any = nx.condensation(inner)
    layer_of: dict[int, int] = {}
    for number, generation in enumerate(nx.topological_generations(quotient)):
        layer_of |= {part: min(number, MAX_LAYERS - 1) for part in generation}
    mapping = quotient.graph["mapping"]
    layers: list[list[Hashable]] = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for name in names:
        layers[layer_of[mapping[name]]].append(name)
    return layers


def _positions(columns: Sequence[Sequence[Hashable]]) -> Positions:
    """Columns from left to right, each centred, every other one half a row lower so that edges miss nodes."""
    return {
        name: (float(x), (len(column) - 1) / 2 - y - (x % 2) / 2)
        for x, column in enumerate(columns)
        for y, name in enumerate(column)
    }


def _draw_nodes_and_edges(axes: Axes, graph: Graph, positions: Positions) -> list[str]:
    """Draws the graph; notes on what is left out."""
    for kind in KINDS:
        for border, given in ((BLACK, "basis"), (BLUE, "response"), ("white", None)):
            names = [name for name, node in graph.nodes(data=True) if node["kind"] == kind and _border(node) == given]
            if names:
                _draw_nodes(axes, graph, positions, names, border)
    labels = {name: node["label"] for name, node in graph.nodes(data=True)}
    nx.draw_networkx_labels(graph, positions, labels, font_size=FONT_SIZE, font_color="white", ax=axes)
    notes = [_draw_edges(axes, graph, positions, name) for name in EDGE_STYLES]
    axes.set_axis_off()
    return [note for note in notes if note]


def _border(node: Mapping[str, Any]) -> str | None:
    return next((name for name in ("basis", "response") if node[name]), None)


def _draw_nodes(axes: Axes, graph: Graph, positions: Positions, names: list[Hashable], border: str) -> None:
    kind = graph.nodes[names[0]]["kind"]
    nx.draw_networkx_nodes(
        graph,
        positions,
        nodelist=names,
        node_size=NODE_SIZE,
        node_color=COLOURS[kind],
        node_shape=SHAPES[kind],
        edgecolors=border,
        linewidths=BORDER,
        ax=axes,
    )


def _draw_edges(axes: Axes, graph: Graph, positions: Positions, name: str) -> str:
    """Draws the edges of one name; what there is to note.

    A contradiction goes both ways and is drawn once, from left to right, so that it bends away from an entailment.
    """
    edges = _edges(graph, name)
    if name == "contradiction":
        rightwards = [sorted(edge, key=lambda end: positions[end]) for edge in edges]
        edges = list(dict.fromkeys((left, right) for left, right in rightwards))
    drawn, look = edges[:MAX_EDGES], EDGE_STYLES[name]
    nx.draw_networkx_edges(graph, positions, drawn, node_size=NODE_SIZE, arrows=True, ax=axes, **look)
    return f"the first {MAX_EDGES:,} of {len(edges):,} edges ({name}) are drawn" if len(edges) > MAX_EDGES else ""


def _edges(graph: Graph, name: str) -> list[tuple[Hashable, Hashable]]:
    return [(first, second) for first, second, edge in graph.edges(data=True) if edge.get(name)]


def _legend_columns(graph: Graph) -> list[list[list[str]]]:
    """Columns of entries; an entry is its label and the lines of its text."""
    columns: list[list[list[str]]] = [[]]
    used = 0
    for _, node in graph.nodes(data=True):
        lines = _legend_lines(node)
        if used and used + len(lines) > LINES:
            columns.append([])
            used = 0
        columns[-1].append([node["label"], *lines])
        used += len(lines) + 1
    return columns


def _legend_lines(node: Mapping[str, Any]) -> list[str]:
    text = _cut(node["text"], TEXT_LENGTH)
    sources = ", ".join(_cut(source, SOURCE_LENGTH) for source in node["sources"][:SOURCES])
    more = ", …" if len(node["sources"]) > SOURCES else ""
    stated = f" [{sources}{more}]" if sources and node["kind"] != "context" else ""
    return textwrap.wrap(text + stated, WIDTH, break_on_hyphens=False) or ["(no text)"]


def _write_legend(axes: Axes, columns: Sequence[Sequence[Sequence[str]]], *, lines: int) -> None:
    """The texts beside their labels, a line of text one unit high."""
    axes.set_axis_off()
    axes.set_xlim(0, len(columns) * LEGEND_INCHES)
    axes.set_ylim(lines, 0)
    for x, column in enumerate(columns):
        y = 0
        for label, *text in column:
            axes.text(x * LEGEND_INCHES, y, label, fontsize=FONT_SIZE, fontweight="bold", va="top")
            for line in text:
                axes.text(x * LEGEND_INCHES + LABEL_INCHES, y, line, fontsize=FONT_SIZE, va="top")
                y += 1
            y += 1


def _write_frame(figure: Figure, graph: Graph, title: str, note: str) -> None:
    """Title and key above, notes below."""
    height = figure.get_figheight()
    left = MARGIN / figure.get_figwidth()
    figure.text(left, 1 - 0.15 / height, _cut(title, TITLE_LENGTH), fontsize=FONT_SIZE + 2, fontweight="bold", va="top")
    figure.text(left, 0.15 / height, note, fontsize=FONT_SIZE)
    handles = _key(graph)
    if handles:
        at = (left, 1 - 0.4 / height)
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=at,
            ncols=2,
            fontsize=FONT_SIZE,
            frameon=False,
            borderpad=0,
        )


def _key(graph: Graph) -> list[Line2D]:
    """What the shapes, borders and lines of this graph mean."""
    nodes = [node for _, node in graph.nodes(data=True)]
    kinds = {node["kind"] for node in nodes}
    keys = [_marker(COLOURS[kind], SHAPES[kind], "white", NAMES[kind]) for kind in KINDS if kind in kinds]
    if any(node["basis"] for node in nodes):
        keys.append(_marker(COLOURS["uncovered"], SHAPES["uncovered"], BLACK, "basis: what is to be added"))
    if any(node["response"] for node in nodes):
        keys.append(_marker(COLOURS["covered"], SHAPES["covered"], BLUE, "stated by the response itself"))
    for name, look in EDGE_STYLES.items():
        if _edges(graph, name):
            arrow = ">" if look["arrowstyle"] == "-|>" else ""
            keys.append(Line2D([], [], color=look["edge_color"], linestyle=look["style"], marker=arrow, label=name))
    return keys


def _marker(colour: str, shape: str, border: str, label: str) -> Line2D:
    return Line2D(
        [],
        [],
        color=colour,
        marker=shape,
        linestyle="",
        markersize=9,
        markeredgecolor=border,
        markeredgewidth=2,
        label=label,
    )
