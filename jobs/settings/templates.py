"""Which template a stage uses. Imports no engine of templates: who shows one need not fill it in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from untold.jobs.settings.layers import open_text
from untold.jobs.settings.model import Prompts, Settings, SettingsError, StageSettings, api_for
from untold.udfs.schemes import scheme_of
from untold.udfs.stages.definitions import SUFFIXES

# A value of `prompts`, and the folder of its templates
PUBLISHED: Prompts = "published"


@dataclass(frozen=True)
class Template:
    """A template's source, the API whose form it has, and where it came from."""

    source: str
    api: str
    origin: str


def template_of(stage: str, settings: Settings) -> Template:
    """The template of a stage under the settings, as `find_template`."""
    own = settings.stages.get(stage, StageSettings()).prompts
    return find_template(stage, api_for(settings, stage), settings.prompts_dir, own or settings.prompts)


def stages_that_differ() -> frozenset[str]:
    """The stages of which two templates are shipped: one of our duty, one of the paper's."""
    return frozenset(file.name.split(".")[0] for file in _shipped().joinpath(PUBLISHED).iterdir())


def find_template(stage: str, api: str, prompts_dir: str | None, prompts: Prompts = "ours") -> Template:
    """The template of a stage: a file of `prompts_dir` in either form, else the shipped one of the wanted form.

    Of the shipped ones that with the published duty where `prompts` wants that and the stage has one of its own.

    A file of the user's in the other form changes the stage's API, since it says how it wants to be sent. Raises
    SettingsError where `prompts_dir` is no folder or no template has the wanted form. See docs/contract.md,
    "Templates".
    """
    other = "completions" if api == "chat" else "chat"
    if prompts_dir is not None:
        if _kind_of(prompts_dir) != "folder":
            raise SettingsError(f"prompts_dir: {prompts_dir} is not a folder")
        for form in (api, other):
            file = f"{prompts_dir.rstrip('/')}/{stage}{SUFFIXES[form]}"
            if _kind_of(file) == "file":
                return Template(_read(file), form, file)
    name = f"{stage}{SUFFIXES[api]}"
    places = [f"{PUBLISHED}/{name}", name] if prompts == PUBLISHED else [name]
    place = next((place for place in places if _shipped().joinpath(*place.split("/")).is_file()), None)
    if place is None:
        raise SettingsError(
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
    from untold.udfs.storage import Place

    return Place(path).entry().kind


def _read(path: str) -> str:
    """The text of a template of the user's."""
    try:
        with open_text(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"prompts_dir: {path} cannot be read as UTF-8 text ({type(error).__name__})") from error
