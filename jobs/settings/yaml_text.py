"""The text of settings as YAML 1.2 reads it, within bounds: no small text stands for more than settings could be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

NULL, TEXT = "tag:yaml.org,2002:null", "tag:yaml.org,2002:str"
# Far above any file of settings, and read in seconds
MOST_CHARACTERS, MOST_VALUES, MOST_LEVELS = 2**18, 10_000, 40


class BoundError(yaml.MarkedYAMLError):
    """A text that is too large to be settings. `problem` says what is too large, and what the most is."""


class CoreLoader(yaml.SafeLoader):
    """YAML 1.2's core schema: 1e-3 is a number; yes, 12:30 and 2026-01-01 are text.

    Raises BoundError for a text with too many characters, values or levels, each alias counted as what it stands for.
    """

    # Its own and empty: SafeLoader's hold YAML 1.1, and adding to them would change every other user of the package
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARACTERS:
            raise BoundError(problem=f"it has more than {MOST_CHARACTERS:,} characters, too many for settings")
        super().__init__(text)
        self._composed = self._level = 0
        self._sizes: dict[yaml.Node, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node. A few aliases of aliases stand for billions of values."""
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._composed += 1
        self._level += 1
        _check(self._composed, self._level, mark)
        node = super().compose_node(parent, index)
        self._level -= 1
        if is_alias and node not in self._sizes:
            raise yaml.MarkedYAMLError(problem="an alias stands for what it is part of", problem_mark=mark)
        if node is not None and not is_alias:
            self._sizes[node] = self._measure(node, mark)
        return node

    def _measure(self, node: yaml.Node, mark: yaml.Mark) -> tuple[int, int]:
        """How many values and levels a node stands for."""
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        below = [one for entry in inner for one in (entry if isinstance(entry, tuple) else (entry,))]
        values = 1 + sum(self._sizes[one][0] for one in below)
        levels = 1 + max((self._sizes[one][1] for one in below), default=0)
        _check(values, levels, mark)
        return values, levels


def _check(values: int, levels: int, mark: yaml.Mark) -> None:
    """Raises BoundError for more values or levels than settings have."""
    if values > MOST_VALUES:
        raise BoundError(problem=f"more than {MOST_VALUES:,} values, too many for settings", problem_mark=mark)
    if levels > MOST_LEVELS:
        raise BoundError(problem=f"nested more than {MOST_LEVELS} levels deep", problem_mark=mark)


CoreLoader.add_implicit_resolver(NULL, re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
CoreLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
CoreLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
CoreLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^([-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    """Python's number of YAML's: `.inf` and `.nan` are without the dot in Python."""
    text = node.value.lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


CoreLoader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def _repeated(node: yaml.Node) -> Iterator[yaml.Node]:
    """Keys that stand twice in one mapping."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if str(key.value) in seen:
                yield key
            seen.add(str(key.value))
            yield from _repeated(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated(value)


def compose(text: str) -> tuple[yaml.Node, yaml.SafeLoader, list[yaml.Node]]:
    """The tree of a YAML text, its loader and the keys that stand twice.

    Nothing in the text but YAML's own tags is made into anything: the loader is a SafeLoader. Raises YAMLError or
    ValueError for what cannot be read.
    """
    loader = CoreLoader(text)
    node = loader.get_single_node()
    if node is None:
        return scalar("", NULL), loader, []
    repeated = list(_repeated(node))
    loader.construct_document(node)  # refuses unknown tags and keys that are no scalars
    return node, loader, repeated


def scalar(text: str, tag: str = TEXT) -> yaml.ScalarNode:
    """A node for a value that stands in no file."""
    mark = yaml.Mark("", 0, 0, 0, None, 0)
    return yaml.ScalarNode(tag, text, mark, mark)
