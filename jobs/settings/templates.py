"""Find the template of a stage, and the profiles of `conf/profiles`, which lie beneath the user's own settings.

Imports no engine of templates: who shows one need not fill it in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from untold.jobs.settings import model
from untold.jobs.settings.layers import Layer, open_text, read_yaml
from untold.udfs.schemes import scheme_of
from untold.udfs.stages.definitions import SUFFIXES

# A value of `prompt_set`, and the folder of its templates
PUBLISHED: model.PromptSet = "published"


@dataclass(frozen=True)
class Template:
    """A template's source, the API whose form it has, and where it came from."""

    source: str
    api: str
    origin: str


def template_of(stage: str, settings: model.Settings) -> Template:
    """The template of a stage under the settings, as `find_template`."""
    own = settings.stages.get(stage, model.StageSettings()).prompt_set
    return find_template(stage, model.api_for(settings, stage), settings.prompts_dir, own or settings.prompt_set)


def stages_that_differ() -> frozenset[str]:
    """The stages of which two templates are shipped: one of our duty, one of the paper's."""
    return frozenset(file.name.split(".")[0] for file in _shipped().joinpath(PUBLISHED).iterdir())


def find_template(stage: str, api: str, prompts_dir: str | None, prompt_set: model.PromptSet = "untold") -> Template:
    """The template of a stage: a file of `prompts_dir` in either form, else the shipped one of the wanted form.

    Of the shipped ones that with the published duty where `prompt_set` wants that and the stage has one of its own.

    A file of the user's in the other form changes the stage's API, since it says how it wants to be sent. Raises
    SettingsError where `prompts_dir` is no folder or no template has the wanted form. See docs/contract.md,
    "Templates".
    """
    other = "completions" if api == "chat" else "chat"
    if prompts_dir is not None:
        if _kind_of(prompts_dir) != "folder":
            raise model.SettingsError(f"prompts_dir: {prompts_dir} is not a folder")
        for form in (api, other):
            file = f"{prompts_dir.rstrip('/')}/{stage}{SUFFIXES[form]}"
            if _kind_of(file) == "file":
                return Template(_read(file), form, file)
    name = f"{stage}{SUFFIXES[api]}"
    places = [f"{PUBLISHED}/{name}", name] if prompt_set == PUBLISHED else [name]
    place = next((place for place in places if _shipped().joinpath(*place.split("/")).is_file()), None)
    if place is None:
        raise model.SettingsError(
            f"stages.{stage}.api: there is no template {name} for {api}; write one in prompts_dir, or use {other}"
        )
    source = _shipped().joinpath(*place.split("/")).read_text(encoding="utf-8")
    return Template(source, api, f"conf/prompts/{place}")


def _shipped() -> Traversable:
    """The folder of the shipped templates."""
    return files("untold.conf").joinpath("prompts")


def _kind_of(path: str) -> str | None:
    """Whether a path of a local disk or an object store is a file or a folder; None where there is nothing."""
    if scheme_of(path) is None:
        return "folder" if os.path.isdir(path) else "file" if os.path.isfile(path) else None
    from untold.udfs.storage import StoragePath

    return StoragePath(path).entry().kind


def _read(path: str) -> str:
    """The text of a template of the user's."""
    try:
        with open_text(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise model.SettingsError(
            f"prompts_dir: {path} cannot be read as UTF-8 text ({type(error).__name__})"
        ) from error


_BY_STAGE = ("temperature", "top_p")


def profile_names() -> list[str]:
    """The profiles that ship."""
    folder = files("untold.conf").joinpath("profiles")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def profile_layer(name: str) -> Layer:
    """The layer of a shipped profile."""
    text = files("untold.conf").joinpath("profiles", f"{name}.yaml").read_text(encoding="utf-8")
    return read_yaml(text, f"conf/profiles/{name}.yaml")


def explain_profile(settings: model.Settings, stages: Iterable[str], uses: Callable[[str], bool]) -> str | None:
    """A line that says what of a run is not as its profile has it; None without a profile.

    `stages` are those that the run asks, and `uses` says whether its results depend on a setting, by dotted key.
    """
    if settings.profile is None:
        return None
    wanted = {one.key: one.value for one in profile_layer(settings.profile).assignments}
    asked = [name for name in stages if name in model.STAGE_NAMES]
    of_all = {"prompt_set"} if stages_that_differ() & set(asked) else set()
    keys = [key for key in wanted if key.startswith("llm.") or key in of_all or uses(key)]
    changed = [_difference(key, value_of(settings, key), wanted[key]) for key in keys]
    changed += [line for stage in asked for line in _of_stage(settings, stage, wanted)]
    own = "; ".join(filter(None, changed)) or "nothing that it sets"
    return (
        f"profile {settings.profile}: you changed {own}; beyond settings, the models, the corpus and the wording of "
        "the prompts are not the papers' (docs/methods.md, section 15)"
    )


def value_of(settings: model.Settings, key: str) -> Any:
    """The value of a setting by its dotted key."""
    return reduce(getattr, key.split("."), settings)


def _difference(key: str, value: Any, wanted: Any) -> str | None:
    given = list(value) if isinstance(value, tuple) else value
    return None if given == wanted else f"{key}={json.dumps(given)} (was {json.dumps(wanted)})"


def _of_stage(settings: model.Settings, stage: str, wanted: Mapping[str, Any]) -> Iterator[str | None]:
    """What differs for one stage alone: decoding that overrides that of all, and its template."""
    own, decoding = settings.stages.get(stage), model.decoding_for(settings, stage)
    for name in _BY_STAGE:
        if own is not None and name in own.model_fields_set:
            yield _difference(f"stages.{stage}.{name}", getattr(decoding, name), wanted[f"llm.{name}"])
    template = template_of(stage, settings)
    # A change of `prompt_set` itself is told once, not by stage
    shipped = find_template(stage, template.api, None, settings.prompt_set)
    if template.origin != shipped.origin:
        yield f"the template of {stage} ({template.origin})"
