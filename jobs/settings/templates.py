"""Find the template of a stage, and compare settings with their profile. Imports no template engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from untold.jobs.settings import model
from untold.jobs.settings.layers import open_text, shipped_layer
from untold.udfs.schemes import scheme_of
from untold.udfs.stages.definitions import SUFFIXES

# A value of `prompt_set`, and the folder of its templates
PUBLISHED: model.PromptSet = "published"


@dataclass(frozen=True)
class Template:
    """The source of a template, its API, and its path."""

    source: str
    api: str
    origin: str


def template_of(stage: str, settings: model.Settings) -> Template:
    """Return the template of a stage under the settings, as `find_template`."""
    own = settings.stages.get(stage, model.StageSettings()).prompt_set
    return find_template(stage, model.api_for(settings, stage), settings.prompts_dir, own or settings.prompt_set)


def stages_that_differ() -> frozenset[str]:
    """Return the stages with two shipped templates: Untold's own and the paper's."""
    return frozenset(file.name.split(".")[0] for file in _shipped(PUBLISHED).iterdir())


def find_template(stage: str, api: str, prompts_dir: str | None, prompt_set: model.PromptSet = "untold") -> Template:
    """Return the template of a stage: a file of `prompts_dir` for either API, otherwise the shipped template.

    A file for the other API changes the API of the stage. `prompt_set=published` selects the published template of the
    stages that have one. See docs/contract.md, "Templates".

    Raise SettingsError if `prompts_dir` is not a folder, or if the API has no template.
    """
    other = "completions" if api == "chat" else "chat"
    if prompts_dir is not None:
        if _kind_of(prompts_dir) != "folder":
            raise model.SettingsError(f"prompts_dir: {prompts_dir} is not a folder")
        for found in (api, other):
            file = f"{prompts_dir.rstrip('/')}/{stage}{SUFFIXES[found]}"
            if _kind_of(file) == "file":
                return Template(_read(file), found, file)
    name = f"{stage}{SUFFIXES[api]}"
    for path in [f"{PUBLISHED}/{name}", name] if prompt_set == PUBLISHED else [name]:
        if _shipped(path).is_file():
            return Template(_shipped(path).read_text(encoding="utf-8"), api, f"conf/prompts/{path}")
    raise model.SettingsError(
        f"stages.{stage}.api: the template {name} for {api} does not exist. Write one in prompts_dir, or use {other}"
    )


def _shipped(path: str) -> Traversable:
    """Return a path in the folder of the shipped templates."""
    return files("untold.conf").joinpath("prompts", *path.split("/"))


def _kind_of(path: str) -> str | None:
    """Return `file` or `folder` for a path of a local disk or an object store, and None if it does not exist."""
    if scheme_of(path) is None:
        return "folder" if os.path.isdir(path) else "file" if os.path.isfile(path) else None
    from untold.udfs.storage import StoragePath

    return StoragePath(path).entry().kind


def _read(path: str) -> str:
    """Return the text of a user's template."""
    try:
        with open_text(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"prompts_dir: {path} cannot be read as UTF-8 text ({type(error).__name__})"
        raise model.SettingsError(problem) from error


def explain_profile(settings: model.Settings, stages: Iterable[str], uses: Callable[[str], bool]) -> str | None:
    """Return a line with the settings of a run that differ from its profile, and None without a profile.

    `stages` are the stages of the run. `uses` returns True if the results depend on a setting, by dotted key.
    """
    if settings.profile is None:
        return None
    wanted = {one.key: one.value for one in shipped_layer(f"profiles/{settings.profile}.yaml").assignments}
    names = [name for name in stages if name in model.STAGE_NAMES]
    given = {
        key: value_of(settings, key)
        for key in wanted
        if key.startswith("llm.") or uses(key) or (key == "prompt_set" and stages_that_differ() & set(names))
    }
    replaced = []
    for name in names:
        own = settings.stages.get(name, model.StageSettings())
        for key in ("temperature", "top_p"):
            if key in own.model_fields_set:
                given[f"stages.{name}.{key}"] = getattr(own, key)
                wanted[f"stages.{name}.{key}"] = wanted[f"llm.{key}"]
        template = template_of(name, settings)
        # The line has a change of `prompt_set` itself only once
        if template.origin != find_template(name, template.api, None, settings.prompt_set).origin:
            replaced.append(f"the template of {name} ({template.origin})")
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
    changed = [
        f"{key}={json.dumps(value)} (was {json.dumps(wanted[key])})"
        for key, value in values.items()
        if value != wanted[key]
    ]
    return (
        f"profile {settings.profile}: you changed {'; '.join(changed + replaced) or 'none of its settings'}. The "
        "models, the corpus and the wording of the prompts also differ from the papers (docs/methods.md, section 15)"
    )


def value_of(settings: model.Settings, key: str) -> Any:
    """Return the value of a setting by its dotted key."""
    return reduce(getattr, key.split("."), settings)
