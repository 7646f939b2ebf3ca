"""Which template a stage uses. Imports no engine of templates: who shows one need not fill it in."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from untold.jobs.settings.model import SettingsError
from untold.udfs.stages.definitions import SUFFIXES


@dataclass(frozen=True)
class Template:
    """A template's source, the API whose form it has, and where it came from."""

    source: str
    api: str
    origin: str


def find_template(stage: str, api: str, prompts_dir: str | None) -> Template:
    """The template of a stage: a file of `prompts_dir` in either form, else the shipped one of the wanted form.

    A file of the user's in the other form changes the stage's API, since it says how it wants to be sent. Raises
    SettingsError where `prompts_dir` is no folder or no template has the wanted form. See docs/contract.md,
    "Templates".
    """
    other = "completions" if api == "chat" else "chat"
    if prompts_dir is not None:
        folder = Path(prompts_dir)
        if not folder.is_dir():
            raise SettingsError(f"prompts_dir: {prompts_dir} is not a folder")
        for form in (api, other):
            file = folder / f"{stage}{SUFFIXES[form]}"
            if file.is_file():
                return Template(_read(file), form, str(file))
    shipped = files("untold.conf").joinpath("prompts", f"{stage}{SUFFIXES[api]}")
    if not shipped.is_file():
        raise SettingsError(
            f"stages.{stage}.api: there is no template {stage}{SUFFIXES[api]} for {api}; "
            f"write one in prompts_dir, or use {other}"
        )
    return Template(shipped.read_text(encoding="utf-8"), api, f"conf/prompts/{shipped.name}")


def _read(file: Path) -> str:
    """The text of a template of the user's, whose byte-order mark some editors write and no model should read."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"prompts_dir: {file} cannot be read as UTF-8 text ({type(error).__name__})") from error
