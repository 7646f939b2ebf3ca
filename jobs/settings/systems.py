"""The systems of a study: from a file of names and settings to the settings of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from untold.jobs.settings.layers import Layer, read_systems
from untold.jobs.settings.loading import Resolved
from untold.jobs.settings.model import SettingsError

# A colon ends the question's id in a sample's id
_NAME = re.compile(r"[^\s:\x00-\x1f\x7f]([^:\x00-\x1f\x7f]*[^\s:\x00-\x1f\x7f])?")


class SystemsError(SettingsError):
    """A file of systems that cannot be used: one line a problem, naming the system, the key and what is allowed.

    Raised before any system is asked, with the problems of all of them.
    """


def load_systems(path: str, load: Callable[[Layer], Resolved]) -> dict[str, Resolved]:
    """By system, in the order of their names: the settings that the YAML file `path` gives over those of the run.

    The file maps a system's name to settings of `llm.*`, without the prefix; `endpoint` names a preset of its own:

        large: {model: gpt-5}
        local: {endpoint: local}

    `load` gives the settings of a run with a layer above all others. Raises SystemsError, all problems at once.
    """
    layers = read_systems(path)
    problems = [problem for name, layer in layers.items() for problem in _problems_of(path, name, layer)]
    if problems:
        raise SystemsError("\n".join(problems))
    loaded: dict[str, Resolved] = {}
    refused: dict[str, list[str]] = {}
    for name in sorted(layers):
        try:
            loaded[name] = load(layers[name])
        except SettingsError as error:
            refused[name] = str(error).splitlines()
    if refused:
        raise SystemsError("\n".join(_describe(refused, path)))
    return loaded


def _problems_of(path: str, name: str, layer: Layer) -> list[str]:
    """What is wrong with the file or a system's name; what is wrong with its settings shows when they are loaded."""
    if not name and layer.problems:
        return layer.problems
    if _NAME.fullmatch(name):
        return []
    shown = " ".join(name.split())
    return [f"{path}: `{shown}` cannot name a system: give text without a colon, line breaks or spaces around it"]


def _describe(refused: Mapping[str, list[str]], path: str) -> list[str]:
    """The problems of all systems, each with the system's name where it does not say itself whose it is."""
    lines = [
        line if f"{path} system {name}" in line else f"{path} system {name}: {line}"
        for name, problems in refused.items()
        for line in problems
    ]
    return list(dict.fromkeys(lines))
