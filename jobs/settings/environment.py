"""The settings of the environment: a layer for each variable that begins with `UNTOLD_`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from untold.jobs.settings.layers import (
    Layer,
    assign_text,
    known_sections,
    known_settings,
    locate,
    no_such,
    problem_line,
)
from untold.udfs.hints import near_misses

PREFIX = "UNTOLD_"
# Read elsewhere: a jar for machines without network, the folder of the tests' data, and the run that notebooks show
NOT_SETTINGS = frozenset({"UNTOLD_GRAPHFRAMES_JAR", "UNTOLD_DATA", "UNTOLD_RUN"})

# Names without their prefix: `MODEL` and `LLM__MODEL` have .67, `TOKEN` and `STORE` .60
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

    >>> unknown_variables({"UNTOLD_HOME": "/opt", "UNTOLD_STORE": "s", "UNTOLD_RUN": "out"})
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
