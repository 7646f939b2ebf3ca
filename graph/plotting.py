"""Draw the fact graph of a sample: its nodes, their relations, and a legend with their texts. Methods, section 5."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import product
from typing import Any
from unicodedata import east_asian_width

import networkx as nx
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.lines import Line2D
from matplotlib.text import Text

from untold.graph.views import FORMATS, Graph, one_line

Positions = dict[Hashable, tuple[float, float]]
Lines = dict[str, list[tuple[Hashable, Hashable]]]

MAX_NODES = 150  # more are not readable on any screen
MAX_EDGES = 2_000  # per kind of edge: drawing a full graph takes minutes
MAX_LAYERS = 6  # columns per kind of node
ROWS = 24  # nodes per column
LOWEST_LINES = 20  # minimum lines per column of the legend, so that small graphs have their texts next to them
TEXT_LENGTH, RESPONSE_LENGTH, TITLE_LENGTH = 300, 1_200, 110  # characters of texts and of the title
SOURCES, SOURCE_LENGTH = 12, 200  # maximum context ids after a text, and maximum characters of one id

# The colours of Okabe and Ito, which colour-blind people can distinguish. Shapes repeat the information
COLOURS = {"covered": "#009E73", "uncovered": "#D55E00", "response": "#0072B2", "context": "#666666"}
SHAPES = {"covered": "o", "uncovered": "D", "response": "s", "context": "h"}
NAMES = {
    "covered": "covered statement",
    "uncovered": "uncovered statement",
    "response": "claim of the response",
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
NODE_SIZE, FONT_SIZE, BORDER = 360, 9, 2.5
LABEL_POINTS = 15  # the width of a label within its node
POINTS = 72  # points per inch
DPI = 110  # of pictures and of measurements: with another resolution, hinting makes letters up to a sixth wider
COLUMN_INCHES, ROW_INCHES, LINE_INCHES, LOWEST_INCHES = 1.15, 0.5, 0.17, 2.0
# Half of a node with its border. The square root of its size is its side in points, and a diamond is wider by 2 ** 0.5
NODE_INCHES = (math.sqrt(2 * NODE_SIZE) / 2 + BORDER) / POINTS
LEGEND_INCHES, LABEL_INCHES, GAP, MARGIN = 5.6, 0.8, 0.15, 0.4
TITLE_SIZE, TITLE_INCHES = FONT_SIZE + 2, 0.22
KEY_COLUMNS, KEY_LINE_INCHES = 2, 0.2
# Fallback fonts, if they are installed, because Matplotlib's font has no East Asian scripts
MORE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "PingFang SC"),
    *("Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS"),
)


def _families() -> list[str]:
    there = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in MORE_FONTS if name in there)]


STYLE: dict[str, Any] = {
    "svg.hashsalt": "untold",
    "svg.fonttype": "none",  # searchable text, in the viewer's fonts
    "text.usetex": False,
    "text.parse_math": False,
    "font.family": _families(),
}


def _cut(text: str, length: int) -> str:
    """Return the first characters of `one_line`. Long texts are cut before the search for invisible characters."""
    line = one_line(text.lstrip()[: 4 * length])
    return line if len(line) <= length else f"{line[:length].rstrip()}…"


def draw_graph(graph: Graph, *, form: str = "svg", title: str = "", response: str | None = None) -> bytes:
    """Return a graph of this package as the bytes of an SVG or a PNG (`form`), the same for the same graph.

    Covered statements are green circles, uncovered statements orange-red diamonds (black border: the basis), response
    atoms blue squares and contexts grey hexagons. A blue border marks statements that the response states itself.
    Arrows are entailments, dashed lines contradictions. The response and the texts are in the legend, by label, cut
    after `RESPONSE_LENGTH` and `TEXT_LENGTH` characters. Only the first `MAX_NODES` nodes and `MAX_EDGES` edges are
    drawn, and a note states this. Raises ValueError for another form.
    """
    return draw_picture(form, lambda: make_figure(graph, title, response))


def draw_picture(form: str, draw: Callable[[], Figure]) -> bytes:
    """Return a figure as the bytes of one of `FORMATS`, the same for the same figure, in the style of the project.

    A PNG has a note in its corner if no font of this machine has a character; an SVG leaves fonts to its viewer. Raises
    ValueError for another format.
    """
    if form not in FORMATS:
        raise ValueError(f"no picture of form {form!r}; there are {', '.join(FORMATS)}")
    written = io.BytesIO()
    with style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = draw()
        if form == "png" and _lacks_glyphs(figure):
            note = "This machine has no font for some characters; an .svg shows them."
            figure.text(0.005, 0.995, note, fontsize=FONT_SIZE - 3, va="top")
        metadata = {"Date": None, "Creator": "Untold"} if form == "svg" else {"Software": None}
        figure.savefig(written, format=form, dpi=DPI, metadata=metadata, facecolor="white")
    return written.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches with a constrained layout and a canvas without a window."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _lacks_glyphs(figure: Figure) -> bool:
    """Return True if a text of the figure has a character that is in no font."""
    known: set[int] = set()
    for family in STYLE["font.family"]:
        known.update(get_font(findfont(family)).get_charmap())
    texts: Any = figure.findobj(Text)
    return any(ord(sign) not in known for text in texts for sign in text.get_text() if not sign.isspace())


class _Ruler:
    """Measures the width of text in inches and wraps it."""

    def __init__(self) -> None:
        canvas: Any = FigureCanvasAgg(Figure(dpi=DPI))
        self._renderer = canvas.get_renderer()

    def wrap(self, text: str, inches: float, *, size: int = FONT_SIZE, bold: bool = False) -> list[str]:
        """Return lines of at most this width. A single character is a line even if it is wider."""
        font = FontProperties(size=size, weight="bold" if bold else "normal")
        lines, rest = [], text.strip()
        while rest:
            lines.append(self._first_line(rest, inches, font))
            rest = rest[len(lines[-1]) :].lstrip()
        return lines

    def _first_line(self, text: str, inches: float, font: FontProperties) -> str:
        """Return the beginning of a text up to a width, cut between words if a whole word fits."""
        # Prose has about 14 characters per inch. The length is then reduced by the mean width until it fits
        line = text[: max(1, int(20 * inches))]
        while (width := self.width(line, font)) > inches and len(line) > 1:
            line = line[: max(1, min(len(line) - 1, int(len(line) * inches / width)))]
        whole = len(line) == len(text) or text[len(line)] == " "
        return line.rstrip() if whole or " " not in line else line[: line.rindex(" ")].rstrip()

    def width(self, text: str, font: FontProperties) -> float:
        """Return the width of a text. Full-width characters count as W, even if no font has them."""
        shown = "".join("W" if east_asian_width(sign) in "WF" else sign for sign in text)
        return float(self._renderer.get_text_width_height_descent(shown, font, ismath=False)[0]) / DPI


def make_figure(graph: Graph, title: str = "", response: str | None = None) -> Figure:
    """Return the figure of `draw_graph`. An inch of the graph is an inch of the figure, and all parts fit in it."""
    shown = graph.copy()
    shown.remove_nodes_from(list(graph)[MAX_NODES:])
    ruler, positions = _Ruler(), _positions(_columns(shown))
    edges = _lines(shown, positions)
    left, right, low, high = _extent(edges, positions)
    legend = _legend_columns(_entries(shown, response, ruler), (high - low) / LINE_INCHES)
    lines = max((sum(map(len, column)) for column in legend), default=1)
    width = (right - left) + len(legend) * LEGEND_INCHES + 3 * MARGIN
    body = max(high - low, lines * LINE_INCHES)
    heading = ruler.wrap(_cut(title, TITLE_LENGTH), width - 2 * MARGIN, size=TITLE_SIZE, bold=True)
    notes = [line for cut in _describe_cuts(graph, shown, edges) for line in ruler.wrap(cut, width - 2 * MARGIN)]
    keys = _key(shown)
    head = MARGIN + len(heading) * TITLE_INCHES + (math.ceil(len(keys) / KEY_COLUMNS) + 1) * KEY_LINE_INCHES
    foot = MARGIN + len(notes) * LINE_INCHES
    height = head + body + foot
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    places = (MARGIN / width, (height - head - (high - low)) / height, (right - left) / width, (high - low) / height)
    axes = figure.add_axes(places)
    _draw_nodes(axes, shown, positions, ruler)
    _draw_edges(axes, shown, positions, edges)
    axes.set(xlim=(left, right), ylim=(low, high))
    start = (right - left) + 2 * MARGIN
    beside = figure.add_axes((start / width, foot / height, 1 - (start + MARGIN) / width, body / height))
    _write_legend(beside, legend, inches=(len(legend) * LEGEND_INCHES, body))
    _write_frame(figure, keys, heading, notes)
    return figure


def _lines(graph: Graph, positions: Positions) -> Lines:
    """Return the edges by name. A contradiction is one line from left to right, so it bends away from entailments."""
    lines = {name: _edges(graph, name) for name in EDGE_STYLES}
    rightwards = (sorted(edge, key=lambda end: positions[end]) for edge in lines["contradiction"])
    lines["contradiction"] = list(dict.fromkeys((left, right) for left, right in rightwards))
    return lines


def _extent(lines: Lines, positions: Positions) -> tuple[float, float, float, float]:
    """Return the least and greatest x and y of nodes and edges in inches, at least `LOWEST_INCHES` apart."""
    points = [*positions.values()] or [(0.0, 0.0)]
    for name, look in EDGE_STYLES.items():
        points += [_bend(positions[first], positions[second], look) for first, second in lines[name][:MAX_EDGES]]
    sides = []
    for values in zip(*points, strict=True):
        low, high = min(values) - NODE_INCHES, max(values) + NODE_INCHES
        missing = max(0.0, LOWEST_INCHES - (high - low)) / 2
        sides += [low - missing, high + missing]
    return sides[0], sides[1], sides[2], sides[3]


def _bend(first: tuple[float, float], second: tuple[float, float], look: Mapping[str, Any]) -> tuple[float, float]:
    """Return the middle of an arc. The control point of `arc3` is at `rad` times the distance, at a right angle."""
    found = re.search(r"rad=([-0-9.]+)", look["connectionstyle"])
    half = float(found[1]) / 2 if found else 0.0
    (x, y), (to_x, to_y) = first, second
    return (x + to_x) / 2 + half * (to_y - y), (y + to_y) / 2 - half * (to_x - x)


def _describe_cuts(graph: Graph, shown: Graph, lines: Lines) -> list[str]:
    """Return a sentence for each part that the picture omits."""
    notes = [f"the first {len(shown):,} of {len(graph):,} nodes are drawn"] if len(shown) < len(graph) else []
    return notes + [
        f"the first {MAX_EDGES:,} of {len(edges):,} edges ({name}) are drawn"
        for name, edges in lines.items()
        if len(edges) > MAX_EDGES
    ]


def _columns(graph: Graph) -> list[list[Hashable]]:
    """Return the nodes of each column: kind by kind, premises before their conclusions."""
    columns = []
    for kind in KINDS:
        for layer in _layers(graph, [name for name, node in graph.nodes(data=True) if node["kind"] == kind]):
            columns += [layer[start : start + ROWS] for start in range(0, len(layer), ROWS)]
    return columns


def _layers(graph: Graph, names: Sequence[Hashable]) -> list[list[Hashable]]:
    """Return the names by the number of their classes before them along entailments, in at most `MAX_LAYERS` layers."""
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
    """Return positions in inches: columns from left to right, centred, every other one shifted by half a row."""
    return {
        name: (x * COLUMN_INCHES, ((len(column) - 1) / 2 - y - (x % 2) / 2) * ROW_INCHES)
        for x, column in enumerate(columns)
        for y, name in enumerate(column)
    }


def _draw_nodes(axes: Axes, graph: Graph, positions: Positions, ruler: _Ruler) -> None:
    """Draw the nodes, with one call per kind and border, because networkx draws one shape per call."""
    for kind, (border, given) in product(KINDS, ((BLACK, "basis"), (BLUE, "response"), ("white", None))):
        names = [name for name, node in graph.nodes(data=True) if node["kind"] == kind and _border(node) == given]
        look: dict[str, Any] = {
            "node_color": COLOURS[kind],
            "node_shape": SHAPES[kind],
            "edgecolors": border,
            "linewidths": BORDER,
        }
        if names:
            nx.draw_networkx_nodes(graph, positions, nodelist=names, node_size=NODE_SIZE, ax=axes, **look)
    font = FontProperties(size=FONT_SIZE)
    for name, node in graph.nodes(data=True):
        size = min(FONT_SIZE, FONT_SIZE * LABEL_POINTS / POINTS / max(ruler.width(node["label"], font), 0.01))
        look = {"fontsize": size, "color": "white", "ha": "center", "va": "center"}
        axes.text(*positions[name], node["label"], **look)


def _border(node: Mapping[str, Any]) -> str | None:
    """Return the border of a node, None for white. A node never has both borders."""
    return next((name for name in ("basis", "response") if node[name]), None)


def _draw_edges(axes: Axes, graph: Graph, positions: Positions, lines: Lines) -> None:
    """Draw the first `MAX_EDGES` lines of each name."""
    for name, look in EDGE_STYLES.items():
        drawn = lines[name][:MAX_EDGES]
        # With the size of nodes, arrows end at the border of a node instead of its centre
        nx.draw_networkx_edges(graph, positions, drawn, node_size=NODE_SIZE, arrows=True, ax=axes, **look)
    axes.set_axis_off()


def _edges(graph: Graph, name: str) -> list[tuple[Hashable, Hashable]]:
    """Return the edges that have the attribute `name`, in the graph's order."""
    return [(first, second) for first, second, edge in graph.edges(data=True) if edge.get(name)]


def _entries(graph: Graph, response: str | None, ruler: _Ruler) -> list[list[str]]:
    """Return the entries of the legend, each a label and the lines of its text: the response, then the nodes."""
    texts = [(node["label"], _legend_text(node)) for _, node in graph.nodes(data=True)]
    if response is not None:
        texts.insert(0, ("Response", _cut(response, RESPONSE_LENGTH)))
    return [[label, *(ruler.wrap(text, LEGEND_INCHES - LABEL_INCHES - GAP) or ["(no text)"])] for label, text in texts]


def _legend_columns(entries: Sequence[list[str]], lines: float) -> list[list[list[str]]]:
    """Return the entries in columns of about `lines` lines, of similar length."""
    total = sum(map(len, entries))
    most = total / max(1, round(total / max(lines, LOWEST_LINES)))
    columns: list[list[list[str]]] = [[]]
    used = 0
    for entry in entries:
        # An entry is never divided. It is in the column with the larger part of it
        if used and used + len(entry) / 2 > most * len(columns):
            columns.append([])
        columns[-1].append(entry)
        used += len(entry)
    return columns


def _legend_text(node: Mapping[str, Any]) -> str:
    """Return a text for the legend, followed by the ids of its contexts."""
    text = _cut(node["text"], TEXT_LENGTH)
    sources = ", ".join(_cut(source, SOURCE_LENGTH) for source in node["sources"][:SOURCES])
    more = ", …" if len(node["sources"]) > SOURCES else ""
    return text + (f" [{sources}{more}]" if sources and node["kind"] != "context" else "")


def _write_legend(axes: Axes, columns: Sequence[Sequence[Sequence[str]]], inches: tuple[float, float]) -> None:
    """Write the texts next to their labels, in axes of the size `inches`."""
    axes.set_axis_off()
    axes.set(xlim=(0, inches[0]), ylim=(inches[1], 0))
    for x, column in enumerate(columns):
        y = 0.0
        for label, *text in column:
            axes.text(x * LEGEND_INCHES, y, label, fontsize=FONT_SIZE, fontweight="bold", va="top")
            for line in text:
                axes.text(x * LEGEND_INCHES + LABEL_INCHES, y, line, fontsize=FONT_SIZE, va="top")
                y += LINE_INCHES
            y += LINE_INCHES


def _write_frame(figure: Figure, keys: Sequence[Line2D], title: Sequence[str], notes: Sequence[str]) -> None:
    """Write the title and key above the graph, and notes below."""
    height = figure.get_figheight()
    left, y = MARGIN / figure.get_figwidth(), 0.15
    for line in title:
        figure.text(left, 1 - y / height, line, fontsize=TITLE_SIZE, fontweight="bold", va="top")
        y += TITLE_INCHES
    for number, line in enumerate(reversed(notes)):
        figure.text(left, (0.2 + number * LINE_INCHES) / height, line, fontsize=FONT_SIZE)
    if keys:
        look: dict[str, Any] = {
            "loc": "upper left",
            "ncols": KEY_COLUMNS,
            "fontsize": FONT_SIZE,
            "frameon": False,
            "borderpad": 0,
        }
        figure.legend(handles=keys, bbox_to_anchor=(left, 1 - (y + 0.05) / height), **look)


def _key(graph: Graph) -> list[Line2D]:
    """Return the key of the shapes, borders and lines in this graph."""
    nodes = [node for _, node in graph.nodes(data=True)]
    kinds = {node["kind"] for node in nodes}
    keys = [_marker(COLOURS[kind], SHAPES[kind], "white", NAMES[kind]) for kind in KINDS if kind in kinds]
    if any(node["basis"] for node in nodes):
        keys.append(_marker(COLOURS["uncovered"], SHAPES["uncovered"], BLACK, "basis: statements to add"))
    if any(node["response"] for node in nodes):
        keys.append(_marker(COLOURS["covered"], SHAPES["covered"], BLUE, "stated by the response itself"))
    for name, look in EDGE_STYLES.items():
        if _edges(graph, name):
            arrow = ">" if look["arrowstyle"] == "-|>" else ""
            keys.append(Line2D([], [], color=look["edge_color"], linestyle=look["style"], marker=arrow, label=name))
    return keys


def _marker(colour: str, shape: str, border: str, label: str) -> Line2D:
    """Return an entry of the key: the shape of a node, without a line."""
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
