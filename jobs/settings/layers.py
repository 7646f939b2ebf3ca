"""Read one layer of settings: a YAML file, the environment, or `--set`, with the origin of each key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import IO, Any

import yaml

from untold.jobs.settings.fields import Section
from untold.jobs.settings.model import STAGE_NAMES, StageSettings, settings_model
from untold.udfs.errors import near_misses
from untold.udfs.redaction import is_secret_name
from untold.udfs.schemes import scheme_of

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


# A key where a value belongs: the prefixes that providers use, 20 letters and digits in a row, or a URL with a password
_SECRET_VALUE = re.compile(
    r"(?i:\b(sk|gsk|hf|pk|rk|xai|ghp|bearer)[-_ ])|(?=\S*\d)(?=\S*[A-Za-z])[A-Za-z0-9_+=-]{20,}|://\S*[@?]"
)
# Enough to find the value by, little enough for a message to stay one line
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Known:
    """A setting as its field declares it."""

    key: str
    allowed: str
    default: Any
    description: str
    is_text: bool
    # How keys below a mapping are taken: `whole`, or `split` at dots
    names: str | None
    advanced: bool


@dataclass(frozen=True)
class SettingAssignment:
    """One value that a layer gives: of the setting `key`, or of what is at `path` within it where it is a mapping.

    `origin` is the file, variable or option, `line` the 1-based line of a file.
    """

    key: str
    path: tuple[str, ...]
    value: Any
    origin: str
    line: int | None = None

    @property
    def where(self) -> str:
        """Where the value is from, as messages name it."""
        return self.origin if self.line is None else f"{self.origin} line {self.line}"


@dataclass
class Layer:
    """What one layer assigns, and what is wrong with it."""

    origin: str
    with_lines: bool = False
    assignments: list[SettingAssignment] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def where(self, node: yaml.Node) -> tuple[str, int | None]:
        """Origin and line of a node; no line where the layer is no file."""
        return self.origin, node.start_mark.line + 1 if self.with_lines else None

    def complain(self, name: str, value: object, problem: str, node: yaml.Node | None = None) -> None:
        """Adds a problem with what is set under a name. Values that may be secrets are not shown."""
        line = f" line {node.start_mark.line + 1}" if self.with_lines and node is not None else ""
        self.problems.append(problem_line(name, value, f"{self.origin}{line}", problem))


def _allowed(schema: Mapping[str, Any]) -> str:
    """What a field takes, in words, from its JSON schema."""
    if "allowed" in schema:
        return str(schema["allowed"])
    if "anyOf" in schema:
        return " or ".join(map(_allowed, schema["anyOf"]))
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    match schema.get("type"):
        case "array":
            return f"a list of {_allowed(schema['items'])}"
        case "object":
            return "a mapping"
        case "boolean":
            return "true or false"
        case "null":
            return "null"
        case "string":
            return "a string"
    return ("an integer" if schema.get("type") == "integer" else "a number") + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    """The limits of a number, as the end of what is allowed.

    >>> _bounds({"minimum": 0, "exclusiveMaximum": 1})
    ' >= 0 and < 1'
    """
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    stated = [f"{sign} {schema[name]:g}" for name, sign in signs.items() if name in schema]
    return " " + " and ".join(stated) if stated else ""


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a field takes: `None` for one that says nothing of its type."""
    return {str(one.get("type")) for one in schema.get("anyOf", [schema])}


def _known(model: type[Section], prefix: str) -> Iterator[Known]:
    """Every setting below a model, by its fields; those of a stage once for each stage.

    Keys below `spark.conf` are taken whole, for Spark's names have dots of their own.
    """
    properties = model.model_json_schema()["properties"]
    for name, info in model.model_fields.items():
        key = prefix + name
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from _known(info.annotation, f"{key}.")
        elif key == "stages":
            for stage in STAGE_NAMES:
                yield from _known(StageSettings, f"stages.{stage}.")
        else:
            types = _types(properties[name])
            names = ("whole" if key == "spark.conf" else "split") if "object" in types else None
            default = info.get_default(call_default_factory=True)
            is_text = "string" in types and names is None and not types & {"integer", "number", "array"}
            yield Known(
                key, _allowed(properties[name]), default, info.description or "", is_text, names, name in model.ADVANCED
            )


@cache
def known_settings() -> Mapping[str, Known]:
    """Every setting by its dotted key, those of other packages' metrics last."""
    return {known.key: known for known in _known(settings_model(), "")}


@cache
def known_sections() -> frozenset[str]:
    """The dotted names above settings."""
    keys = (key.split(".") for key in known_settings())
    return frozenset(".".join(parts[:length]) for parts in keys for length in range(1, len(parts)))


def _names_a_secret(name: str) -> bool:
    """Whether the value of a setting may be a key; one may stand where the name of its variable belongs, too."""
    return is_secret_name(name) or name.endswith("_key_env")


def _shown(name: str, value: object) -> str:
    """`=value` for a message; nothing for structures, and for what may be a secret."""
    nested = isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value)
    if nested or isinstance(value, Mapping) or _names_a_secret(name):
        return ""
    text = " ".join((value if isinstance(value, str) else json.dumps(value, default=str)).split())
    if _SECRET_VALUE.search(text):
        return ""
    return f"={text[:_LONGEST_SHOWN]}…" if len(text) > _LONGEST_SHOWN else f"={text}"


def problem_line(name: str, value: object, where: str, problem: str) -> str:
    """One line: the key, its value unless it may be a secret, the layer it is from, and what is wrong."""
    named = "(a name not shown)" if _SECRET_VALUE.search(name) else " ".join(name.split()) + _shown(name, value)
    return f"{named} ({where}): {problem}"


def no_such(name: str, names: Mapping[str, str]) -> str:
    """What an unknown name gets to read. `names` gives what each known one allows."""
    # A nearest there always is, so that a message never ends with what is wrong
    near = near_misses(name, names, cutoff=0)[0]
    return f"no such setting; the nearest is {near} ({names[near]})"


def _no_such_key(name: str) -> str:
    """What an unknown setting gets to read: the nearest of its own section, else of all settings and sections."""
    section = name.rpartition(".")[0]
    sections = dict.fromkeys(known_sections(), "a mapping of settings")
    allowed = {key: known.allowed for key, known in known_settings().items()}
    within = {key: words for key, words in allowed.items() if section and key.rpartition(".")[0] == section}
    return no_such(name.lower(), within or allowed | sections)


def locate(name: str) -> tuple[Known, tuple[str, ...]] | None:
    """The setting that a dotted name belongs to and the path within it, where it is a mapping; None for no setting.

    >>> known, path = locate("llm.extra_body.provider.order")
    >>> known.key, path
    ('llm.extra_body', ('provider', 'order'))
    """
    if name in known_settings():
        return known_settings()[name], ()
    for known in known_settings().values():
        if known.names and name.startswith(f"{known.key}."):
            rest = name.removeprefix(f"{known.key}.")
            return known, (rest,) if known.names == "whole" else tuple(rest.split("."))
    return None


def _assign(layer: Layer, name: str, node: yaml.Node, loader: yaml.SafeLoader) -> None:
    """Adds what a YAML node sets under a dotted name, sections expanded, to the layer."""
    located = locate(name)
    if located is not None:
        known, path = located
        if any((known.key, path) == (one.key, one.path) for one in layer.assignments):
            layer.complain(name, {}, "set twice", node)
        layer.assignments.append(
            SettingAssignment(known.key, path, _value(known, path, node, loader), *layer.where(node))
        )
    elif name in known_sections() or not name:
        _assign_section(layer, name, node, loader)
    else:
        layer.complain(name, loader.construct_object(node, deep=True), _no_such_key(name), node)


def _assign_section(layer: Layer, name: str, node: yaml.Node, loader: yaml.SafeLoader) -> None:
    """Adds what a mapping of settings sets. An empty section sets nothing; anything else is a problem."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _assign(layer, f"{name}.{key.value}" if name else str(key.value), value, loader)
    elif not name and node.tag != NULL:
        layer.problems.append(f"{layer.origin}: the settings file must be a mapping")
    elif node.tag != NULL:
        layer.complain(name, loader.construct_object(node, deep=True), "must be a mapping of settings", node)


def _value(known: Known, path: tuple[str, ...], node: yaml.Node, loader: yaml.SafeLoader) -> Any:
    """The value that a node has as this setting takes it; Spark's own settings are text, whatever they look like."""
    if known.names == "whole" and not path and isinstance(node, yaml.MappingNode):
        return {str(key.value): _text_or_value(value, loader) for key, value in node.value}
    if known.is_text or (known.names == "whole" and path):
        return _text_or_value(node, loader)
    return loader.construct_object(node, deep=True)


def _text_or_value(node: yaml.Node, loader: yaml.SafeLoader) -> Any:
    """A scalar as it was written, so that 4.10 stays 4.10 where text is wanted; all else as YAML reads it."""
    if isinstance(node, yaml.ScalarNode) and node.tag != NULL:
        return node.value
    return loader.construct_object(node, deep=True)


def read_yaml(text: str, origin: str) -> Layer:
    """The layer of a YAML text. What is wrong with it is in its `problems`; nothing raises."""
    layer = Layer(origin, with_lines=True)
    node, loader = _read_tree(layer, text)
    if node is not None:
        _assign(layer, "", node, loader)
    return layer


def _read_tree(layer: Layer, text: str) -> tuple[yaml.Node | None, yaml.SafeLoader]:
    """The tree of a layer's text and its loader; None where it has problems."""
    origin = layer.origin
    try:
        node, loader, repeated = compose(text)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = "a syntax error" if _SECRET_VALUE.search(error.problem or "") else error.problem
        kind = "cannot be read" if isinstance(error, BoundError) else "not valid YAML"
        layer.problems.append(f"{origin}{line}: {kind}: {problem}")
    except yaml.YAMLError:
        layer.problems.append(f"{origin}: not valid YAML: it has characters that YAML does not allow")
    except ValueError:
        layer.problems.append(f"{origin}: not valid YAML: a value cannot be read")
    else:
        for key in repeated:
            layer.complain(str(key.value), {}, "the key is given twice in its mapping", key)
        if not repeated:
            return node, loader
    return None, CoreLoader("")


def open_text(path: str) -> IO[str]:
    """A text file of a local disk or an object store, without the byte-order mark that some editors write."""
    if scheme_of(path) is None:
        return open(path, encoding="utf-8-sig")
    # Arrow takes longer to import than most commands take to answer
    from untold.udfs.samples import files

    return files.open_text(path)


def _read_text(path: str) -> str | Layer:
    """The text of a YAML file, which a byte-order mark may begin; a layer with the problem where it cannot be read.

    Of a text that is too long for settings only so much is read that this shows.
    """
    try:
        with open_text(path) as file:
            return file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        return Layer(path, problems=[f"{path}: cannot be read: {error.strerror or type(error).__name__}"])
    except UnicodeDecodeError:
        return Layer(path, problems=[f"{path}: cannot be read: it is not UTF-8"])


def read_file(path: str) -> Layer:
    """The layer of a YAML file. One that cannot be read is a problem of it."""
    text = _read_text(path)
    return text if isinstance(text, Layer) else read_yaml(text, path)


def read_systems(path: str) -> dict[str, Layer]:
    """By system: what a file of systems, each a name and its settings of `llm.*`, assigns, and what is wrong with it.

    What is wrong with the file itself is the problem of a layer without a name.
    """
    whole, text = Layer(path, with_lines=True), _read_text(path)
    if isinstance(text, Layer):
        return {"": text}
    node, loader = _read_tree(whole, text)
    if node is not None and not (isinstance(node, yaml.MappingNode) and node.value):
        whole.complain("the file", {}, "must be a mapping: the name of each system, and under it settings of llm.*")
    if whole.problems or node is None:
        return {"": whole}
    return {str(key.value): _read_system(f"{path} system {key.value}", value, loader) for key, value in node.value}


def _read_system(origin: str, node: yaml.Node, loader: yaml.SafeLoader) -> Layer:
    """What one system of such a file sets, as settings below `llm.`."""
    layer = Layer(origin, with_lines=True)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _assign(layer, f"llm.{key.value}", value, loader)
    elif node.tag != NULL:
        layer.complain("the system", {}, "must be a mapping of settings of llm.*, without the prefix", node)
    return layer


def assign_text(layer: Layer, name: str, text: str) -> None:
    """Adds what `name=text` sets: text as it stands where the setting takes text, else read as YAML."""
    located = locate(name)
    takes_text = located is not None and (located[0].is_text or (located[0].names == "whole" and bool(located[1])))
    try:
        node, loader, repeated = compose(text)
    except (yaml.YAMLError, ValueError) as error:
        if not takes_text:
            allowed = located[0].allowed if located else "readable as YAML or JSON"
            problem = f"cannot be read: {error.problem}" if isinstance(error, BoundError) else f"must be {allowed}"
            layer.complain(name, text, problem)
            return
        node, loader, repeated = scalar(text), CoreLoader(""), []
    # Quotes are taken off as in a file; null stays null, or nothing could be unset on a command line
    if takes_text and node.tag != NULL and not (isinstance(node, yaml.ScalarNode) and node.style in ("'", '"')):
        node = scalar(text.strip())
    if repeated:
        layer.complain(name, {}, "a key is given twice in the mapping")
    else:
        _assign(layer, name, node, loader)


def read_overrides(overrides: Sequence[str], endpoint: str | None = None, profile: str | None = None) -> list[Layer]:
    """A layer for each `--set key=value` in the order given, then those of `--endpoint` and `--profile`."""
    layers = []
    for override in overrides:
        layer = Layer("--set")
        name, equals, text = override.partition("=")
        if equals and name.strip():
            assign_text(layer, name.strip(), text)
        else:
            layer.problems.append(problem_line(name.strip() or "''", {}, "--set", "--set needs KEY=VALUE"))
        layers.append(layer)
    short = (("--endpoint", "llm.endpoint", endpoint), ("--profile", "profile", profile))
    given = [SettingAssignment(key, (), value, option) for option, key, value in short if value is not None]
    return [*layers, *(Layer(one.origin, assignments=[one]) for one in given)]


PREFIX = "UNTOLD_"
# Read elsewhere: a jar for machines without network, the folder of the tests' data, and the run that notebooks show
NOT_SETTINGS = frozenset({"UNTOLD_GRAPHFRAMES_JAR", "UNTOLD_DATA", "UNTOLD_RUN"})

# Names without their prefix: `MODEL` and `LLM__MODEL` have .67, `TOKEN` and `TREND` .60
NEAR = 0.65


def _variable(key: str) -> str:
    """The variable of a setting.

    >>> _variable("llm.base_url")
    'UNTOLD_LLM__BASE_URL'
    """
    return PREFIX + _name_of(key)


def _name_of(key: str) -> str:
    return key.upper().replace(".", "__")


def read_environment(environ: Mapping[str, str]) -> list[Layer]:
    """A layer for each variable that sets something, by name, so that problems come in one order.

    `UNTOLD_LLM__MAX_TOKENS=100` is `llm.max_tokens: 100`. A variable that looks like a setting and is none is a
    problem; `unknown_variables` names the others.
    """
    layers = []
    for variable in _variables(environ):
        if not _is_strange(variable):
            layer = Layer(variable)
            _assign_variable(layer, variable, environ[variable])
            layers.append(layer)
    return layers


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A line for each variable that no setting is like: it is ignored.

    >>> unknown_variables({"UNTOLD_HOME": "/opt", "UNTOLD_COMPLETION_STORE": "s", "UNTOLD_RUN": "out"})
    ['UNTOLD_HOME (environment): no setting has a name like this; the variable is ignored']
    """
    ignored = "no setting has a name like this; the variable is ignored"
    return [problem_line(name, {}, "environment", ignored) for name in _variables(environ) if _is_strange(name)]


def _variables(environ: Mapping[str, str]) -> Iterator[str]:
    return (name for name in sorted(environ.keys() - NOT_SETTINGS) if name.startswith(PREFIX))


def _is_strange(variable: str) -> bool:
    """Whether a variable is of no section and near no setting. The prefix, which all share, does not count."""
    name = variable.removeprefix(PREFIX).upper()
    names = map(_name_of, [*known_settings(), *known_sections()])
    return name.split("__")[0].lower() not in known_sections() and not near_misses(name, tuple(names), cutoff=NEAR)


def _assign_variable(layer: Layer, variable: str, text: str) -> None:
    """Adds what a variable sets. Two underscores stand for a dot, since names have single ones of their own."""
    name = variable.removeprefix(PREFIX).lower().replace("__", ".")
    if name.startswith("spark.conf."):
        hint = 'Spark\'s names are case-sensitive: give UNTOLD_SPARK__CONF a mapping, as {"spark.ui.enabled": "true"}'
        layer.problems.append(problem_line(variable, {}, "environment", hint))
    elif variable != variable.upper() or not (locate(name) or name in known_sections()):
        nearest = no_such(variable.upper(), {_variable(key): known.allowed for key, known in known_settings().items()})
        layer.problems.append(problem_line(variable, text, "environment", nearest))
    else:
        assign_text(layer, name, text)
