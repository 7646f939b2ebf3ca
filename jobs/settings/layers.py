"""Read one layer of settings: a YAML file, an environment variable, or `--set`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import IO, Any

import yaml

from untold.jobs.settings.fields import Section
from untold.jobs.settings.model import STAGE_NAMES, StageSettings, settings_model
from untold.udfs.errors import near_misses
from untold.udfs.redaction import is_secret_name
from untold.udfs.schemes import scheme_of

# Far above any file of settings, and fast to read
MOST_CHARACTERS, MOST_VALUES, MOST_LEVELS = 2**18, 10_000, 40


class RefusedYamlError(yaml.MarkedYAMLError):
    """A valid YAML text that cannot be settings: it is too large, or repeats a key."""


class CoreLoader(yaml.SafeLoader):
    """Load YAML 1.2's core schema: 1e-3 is a number; yes, 12:30 and 2026-01-01 are texts. A key occurs once."""

    # A separate table, because the table of SafeLoader has the types of YAML 1.1
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node, with its keys as text. The key `<<` merges nothing in YAML 1.2."""
        mapping: dict[Any, Any] = {}
        for key, value in node.value:
            name = self.construct_scalar(key)
            if name in mapping:
                problem = f"the key {name} is given twice in its mapping"
                raise RefusedYamlError(problem=problem, problem_mark=key.start_mark)
            mapping[name] = self.construct_object(value, deep=deep)
        return mapping


_INTEGER, _EXPONENT = r"[-+]?(0|[1-9][0-9_]*)", r"([eE][-+]?[0-9]+)?"
_FLOAT = rf"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE])){_EXPONENT}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
for _type, _pattern, _first in (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", _INTEGER, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", re.compile(f"^({_pattern})$"), _first)


def _measure(node: yaml.Node, sizes: dict[yaml.Node, tuple[int, float]]) -> tuple[int, float]:
    """Return the number of values and levels of a node. Each alias counts as the node that it repeats."""
    if node not in sizes:
        # An alias of its own parent has no end
        sizes[node] = 0, math.inf
        entries = node.value if isinstance(node, yaml.CollectionNode) else []
        below = [_measure(one, sizes) for each in entries for one in (each if isinstance(each, tuple) else (each,))]
        sizes[node] = 1 + sum(values for values, _ in below), 1 + max((levels for _, levels in below), default=0)
    return sizes[node]


def _compose(loader: CoreLoader) -> yaml.Node | None:
    """Return the tree of a text. Raise RefusedYamlError for a tree that is too large."""
    try:
        node = loader.get_single_node()
        values, levels = (0, 0) if node is None else _measure(node, {})
    except RecursionError:
        values, levels = 0, math.inf
    if levels > MOST_LEVELS:
        raise RefusedYamlError(problem=f"nested more than {MOST_LEVELS} levels deep")
    if values > MOST_VALUES:
        raise RefusedYamlError(problem=f"more than {MOST_VALUES:,} values, too many for settings")
    return node


def parse(text: str) -> tuple[Any, Any]:
    """Return the values of a YAML text, and the same values with each scalar as it is written.

    Only YAML's own tags are constructed. Raise ValueError for a text that cannot be read: its message continues the
    name of the file. `RefusedYamlError` is its cause if the text is valid YAML.
    """
    try:
        if len(text) > MOST_CHARACTERS:
            raise RefusedYamlError(problem=f"it has more than {MOST_CHARACTERS:,} characters, too many for settings")
        loader = CoreLoader(text)
        node = _compose(loader)
        if node is None:
            return None, None
        return loader.construct_document(node), yaml.BaseLoader("").construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = "a syntax error" if _SECRET_VALUE.search(error.problem or "") else error.problem
        kind = "cannot be read" if isinstance(error, RefusedYamlError) else "not valid YAML"
        raise ValueError(f"{line}: {kind}: {problem}") from error
    except yaml.YAMLError:
        raise ValueError(" is not valid YAML. It has characters that YAML does not allow") from None
    except (ValueError, LookupError, AttributeError):
        raise ValueError(" is not valid YAML. A value cannot be read") from None


# A possible key: a provider's prefix, 20 letters and digits in a row, or a URL with a password
_SECRET_VALUE = re.compile(
    r"(?i:\b(sk|gsk|hf|pk|rk|xai|ghp|bearer)[-_ ])|(?=\S*\d)(?=\S*[A-Za-z])[A-Za-z0-9_+=-]{20,}|://\S*[@?]"
)
# Long enough to recognise a value, short enough for a message of one line
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Known:
    """A setting as its field declares it. `names` is None, or splits the keys of a mapping: `whole` or `split`."""

    key: str
    allowed: str
    default: Any
    description: str
    is_text: bool
    names: str | None
    advanced: bool

    def takes_text(self, path: tuple[str, ...]) -> bool:
        """Return True if the value at this path of the setting is a text. All values of Spark's settings are."""
        return self.is_text or (self.names == "whole" and bool(path))

    def value(self, path: tuple[str, ...], value: Any, written: Any) -> Any:
        """Return the value of this setting. A text stays as it is written, so that 4.10 stays 4.10."""
        if self.names == "whole" and not path and isinstance(value, dict):
            return {key: self.value((key,), one, written[key]) for key, one in value.items()}
        return written if self.takes_text(path) and value is not None and isinstance(written, str) else value


@dataclass(frozen=True)
class SettingAssignment:
    """A value for the setting `key`, or for the entry at `path` of a setting that is a mapping.

    `origin` is a file, a variable or an option.
    """

    key: str
    path: tuple[str, ...]
    value: Any
    origin: str


@dataclass
class Layer:
    """The assignments of one layer, and its problems as lines."""

    origin: str
    assignments: list[SettingAssignment] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def complain(self, name: str, value: object, problem: str) -> None:
        """Add a problem with the value of a name. Values that may be secrets are not shown."""
        self.problems.append(problem_line(name, value, self.origin, problem))

    def assign(self, name: str, value: Any, written: Any) -> None:
        """Add the assignments below a dotted name: of one setting, or of each setting in a section.

        `value` and `written` are two forms of one value, as `parse` returns them.
        """
        located = locate(name)
        if located is not None:
            known, path = located
            if any((known.key, path) == (one.key, one.path) for one in self.assignments):
                self.complain(name, {}, "set twice")
            taken = known.value(path, value, written)
            self.assignments.append(SettingAssignment(known.key, path, taken, self.origin))
        elif name and name not in known_sections():
            self.complain(name, value, _no_such_key(name))
        elif isinstance(value, dict):
            for key, below in value.items():
                self.assign(f"{name}.{key}" if name else key, below, written[key])
        elif value is not None and name:
            self.complain(name, value, "must be a mapping of settings")
        elif value is not None:
            self.problems.append(f"{self.origin}: the settings file must be a mapping")


def _allowed(schema: Mapping[str, Any]) -> str:
    """Return the allowed values of a field in words, from its JSON schema.

    >>> _allowed({"type": "number", "minimum": 0, "exclusiveMaximum": 1})
    'a number >= 0 and < 1'
    """
    if "allowed" in schema:
        return str(schema["allowed"])
    if "anyOf" in schema:
        return " or ".join(map(_allowed, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " | ".join(map(str, schema.get("enum") or [schema["const"]]))
    if schema["type"] == "array":
        return f"a list of {_allowed(schema['items'])}"
    words = {"object": "a mapping", "boolean": "true or false", "null": "null", "string": "a string"}
    words |= {"integer": "an integer", "number": "a number"}
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    bounds = " and ".join(f"{sign} {schema[name]:g}" for name, sign in signs.items() if name in schema)
    return f"{words[schema['type']]} {bounds}".rstrip()


def _known(model: type[Section], prefix: str) -> Iterator[Known]:
    """Yield every setting of a model, the settings of a stage once for each stage."""
    properties = model.model_json_schema()["properties"]
    for name, info in model.model_fields.items():
        key = prefix + name
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from _known(info.annotation, f"{key}.")
        elif key == "stages":
            own = list(_known(StageSettings, ""))
            yield from (replace(one, key=f"stages.{stage}.{one.key}") for stage in STAGE_NAMES for one in own)
        else:
            schema = properties[name]
            types = {one.get("type") for one in schema.get("anyOf", [schema])}
            # Names of Spark's settings contain dots
            names = ("whole" if key == "spark.conf" else "split") if "object" in types else None
            is_text = "string" in types and not types & {"object", "integer", "number", "array"}
            default = info.get_default(call_default_factory=True)
            description, advanced = info.description or "", name in model.ADVANCED
            yield Known(key, _allowed(schema), default, description, is_text, names, advanced)


@cache
def known_settings() -> Mapping[str, Known]:
    """Return every setting by its dotted key. The settings of other packages' metrics come last."""
    return {known.key: known for known in _known(settings_model(), "")}


@cache
def known_sections() -> frozenset[str]:
    """Return the dotted names of the sections."""
    keys = (key.split(".") for key in known_settings())
    return frozenset(".".join(parts[:length]) for parts in keys for length in range(1, len(parts)))


def _shown(name: str, value: object) -> str:
    """Return `=value` for a message, and nothing for a structure or a possible secret."""
    nested = isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value)
    # A user may set a key in place of the name of its variable
    if nested or isinstance(value, Mapping) or is_secret_name(name) or name.endswith("_key_env"):
        return ""
    text = " ".join((value if isinstance(value, str) else json.dumps(value, default=str)).split())
    if _SECRET_VALUE.search(text):
        return ""
    return f"={text[:_LONGEST_SHOWN]}…" if len(text) > _LONGEST_SHOWN else f"={text}"


def problem_line(name: str, value: object, origin: str, problem: str) -> str:
    """Return a line with the key, its value unless it may be a secret, the layer, and the problem."""
    named = "(a name not shown)" if _SECRET_VALUE.search(name) else " ".join(name.split()) + _shown(name, value)
    return f"{named} ({origin}): {problem}"


def no_such(name: str, names: Mapping[str, str]) -> str:
    """Return the message for an unknown name, with the nearest of `names` and its allowed values."""
    near = near_misses(name, names, cutoff=0)[0]
    return f"no such setting; the nearest is {near} ({names[near]})"


def _no_such_key(name: str) -> str:
    """Return the message for an unknown setting, with the nearest setting of its section or of all sections."""
    section = name.rpartition(".")[0]
    allowed = {key: known.allowed for key, known in known_settings().items()}
    within = {key: words for key, words in allowed.items() if section and key.rpartition(".")[0] == section}
    return no_such(name.lower(), within or allowed | dict.fromkeys(known_sections(), "a mapping of settings"))


def locate(name: str) -> tuple[Known, tuple[str, ...]] | None:
    """Return the setting of a dotted name, and the path within a setting that is a mapping.

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


def _parse_into(layer: Layer, text: str | None) -> tuple[Any, Any]:
    """Return the values of a layer's text as `parse` does, and nothing if the layer has a problem."""
    try:
        return parse(text or "")
    except ValueError as error:
        layer.problems.append(f"{layer.origin}{error}")
        return None, None


def read_yaml(text: str, origin: str) -> Layer:
    """Return the layer of a YAML text. Its `problems` have the errors, and nothing is raised."""
    layer = Layer(origin)
    layer.assign("", *_parse_into(layer, text))
    return layer


def shipped_names(folder: str) -> list[str]:
    """Return the names of the files in a folder of `conf`: `endpoints` has presets, `profiles` has profiles."""
    entries = files("untold.conf").joinpath(folder).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


@cache
def shipped_layer(path: str) -> Layer:
    """Return the layer of a file in `conf`. It must not be changed."""
    text = files("untold.conf").joinpath(*path.split("/")).read_text(encoding="utf-8")
    return read_yaml(text, f"conf/{path}")


def open_text(path: str) -> IO[str]:
    """Open a text file of a local disk or an object store. A byte-order mark is skipped."""
    if scheme_of(path) is None:
        return open(path, encoding="utf-8-sig")
    # The import of Arrow takes longer than most commands
    from untold.udfs.samples import files as sample_files

    return sample_files.open_text(path)


def _read_text(layer: Layer) -> str | None:
    """Return the text of a layer's file, at most one character more than settings may have."""
    try:
        with open_text(layer.origin) as file:
            return file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        layer.problems.append(f"{layer.origin} cannot be read ({error.strerror or type(error).__name__})")
    except UnicodeDecodeError:
        layer.problems.append(f"{layer.origin} cannot be read, because it is not UTF-8")
    return None


def read_file(path: str) -> Layer:
    """Return the layer of a YAML file. A file that cannot be read is a problem of the layer."""
    layer = Layer(path)
    layer.assign("", *_parse_into(layer, _read_text(layer)))
    return layer


def read_systems(path: str) -> dict[str, Layer]:
    """Return the layer of each system in a file that maps names to settings of `llm.*`.

    A problem of the file itself is in a single layer without a name.
    """
    whole = Layer(path)
    systems, written = _parse_into(whole, _read_text(whole))
    if not whole.problems and not (isinstance(systems, dict) and systems):
        whole.complain("the file", {}, "must be a mapping: the name of each system, and under it settings of llm.*")
    if whole.problems:
        return {"": whole}
    layers = {name: Layer(f"{path} system {name}") for name in systems}
    for name, layer in layers.items():
        layer.assign("llm", systems[name], written[name])
    return layers


def assign_text(layer: Layer, name: str, text: str) -> None:
    """Add the assignment `name=text`: a text as it is written if the setting is a text, otherwise YAML."""
    known, path = locate(name) or (None, ())
    takes_text = known is not None and known.takes_text(path)
    try:
        value, written = parse(text)
    except ValueError as error:
        if not takes_text:
            allowed = known.allowed if known else "readable as YAML or JSON"
            refused = error.__cause__ if isinstance(error.__cause__, RefusedYamlError) else None
            layer.complain(name, text, f"cannot be read: {refused.problem}" if refused else f"must be {allowed}")
            return
        value = written = text.strip()
    # A file has no quotes around a text either. Null stays null, so that a command line can unset a setting
    if takes_text and value is not None and not (isinstance(written, str) and text.strip()[:1] in ("'", '"')):
        value = written = text.strip()
    layer.assign(name, value, written)


def read_overrides(overrides: Sequence[str], endpoint: str | None = None, profile: str | None = None) -> list[Layer]:
    """Return a layer for each `--set key=value` in their order, then for `--endpoint` and `--profile`."""
    layers = []
    for override in overrides:
        layers.append(layer := Layer("--set"))
        name, equals, text = override.partition("=")
        if equals and name.strip():
            assign_text(layer, name.strip(), text)
        else:
            layer.complain(name.strip() or "''", {}, "--set needs KEY=VALUE")
    short = (("--endpoint", "llm.endpoint", endpoint), ("--profile", "profile", profile))
    given = [SettingAssignment(key, (), value, option) for option, key, value in short if value is not None]
    return [*layers, *(Layer(one.origin, [one]) for one in given)]


PREFIX = "UNTOLD_"
# Other modules read these: a jar for machines without network, the data of the tests, and the run of the notebooks
NOT_SETTINGS = frozenset({"UNTOLD_GRAPHFRAMES_JAR", "UNTOLD_DATA", "UNTOLD_RUN"})
# Without the prefix, `MODEL` and `LLM__MODEL` have the similarity .67, `TOKEN` and `TREND` .60
NEAR = 0.65


def _variable_of(key: str) -> str:
    """Return the variable of a setting.

    >>> _variable_of("llm.base_url")
    'UNTOLD_LLM__BASE_URL'
    """
    return PREFIX + key.upper().replace(".", "__")


def read_environment(environ: Mapping[str, str]) -> list[Layer]:
    """Return a layer for each variable of a setting, by name: `UNTOLD_LLM__MAX_TOKENS=100` is `llm.max_tokens: 100`.

    A variable with a name similar to a setting is a problem. `unknown_variables` returns the other variables.
    """
    layers = []
    for variable in _variables(environ):
        if _is_unrelated(variable):
            continue
        layers.append(layer := Layer("environment"))
        text, name = environ[variable], variable.removeprefix(PREFIX).lower().replace("__", ".")
        if name.startswith("spark.conf."):
            example = '{"spark.ui.enabled": "true"}'
            layer.complain(
                variable, {}, f"Spark's names are case-sensitive: give UNTOLD_SPARK__CONF a mapping, as {example}"
            )
        elif variable != variable.upper() or not (locate(name) or name in known_sections()):
            allowed = {_variable_of(key): known.allowed for key, known in known_settings().items()}
            layer.complain(variable, text, no_such(variable.upper(), allowed))
        else:
            layer.origin = variable
            assign_text(layer, name, text)
    return layers


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each ignored variable, with a name that is not similar to any setting.

    >>> unknown_variables({"UNTOLD_HOME": "/opt", "UNTOLD_COMPLETION_STORE": "s", "UNTOLD_RUN": "out"})
    ['UNTOLD_HOME (environment): no setting has a name like this; the variable is ignored']
    """
    ignored = "no setting has a name like this; the variable is ignored"
    return [problem_line(name, {}, "environment", ignored) for name in _variables(environ) if _is_unrelated(name)]


def _variables(environ: Mapping[str, str]) -> list[str]:
    return [name for name in sorted(environ.keys() - NOT_SETTINGS) if name.startswith(PREFIX)]


def _is_unrelated(variable: str) -> bool:
    """Return True if no section or setting has a name similar to the variable. The common prefix does not count."""
    name = variable.removeprefix(PREFIX).upper()
    names = [_variable_of(key).removeprefix(PREFIX) for key in (*known_settings(), *known_sections())]
    return name.split("__")[0].lower() not in known_sections() and not near_misses(name, names, cutoff=NEAR)
