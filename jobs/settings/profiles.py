"""Profiles: settings of `conf/profiles` that lie beneath the user's own, and what of a run is not as they have it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from importlib.resources import files
from typing import Any

from untold.jobs.settings.layers import Layer, read_yaml
from untold.jobs.settings.model import STAGE_NAMES, Settings, decoding_for
from untold.jobs.settings.templates import find_template, stages_that_differ, template_of

_BY_STAGE = ("temperature", "top_p")


def profile_names() -> list[str]:
    """The profiles that ship."""
    folder = files("untold.conf").joinpath("profiles")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def profile_layer(name: str) -> Layer:
    """The layer of a shipped profile."""
    text = files("untold.conf").joinpath("profiles", f"{name}.yaml").read_text(encoding="utf-8")
    return read_yaml(text, f"conf/profiles/{name}.yaml")


def explain_profile(settings: Settings, stages: Iterable[str], uses: Callable[[str], bool]) -> str | None:
    """A line that says what of a run is not as its profile has it; None without a profile.

    `stages` are those that the run asks, and `uses` says whether its results depend on a setting, by dotted key.
    """
    if settings.profile is None:
        return None
    wanted = {one.key: one.value for one in profile_layer(settings.profile).assignments}
    asked = [name for name in stages if name in STAGE_NAMES]
    of_all = {"prompts"} if stages_that_differ() & set(asked) else set()
    keys = [key for key in wanted if key.startswith("llm.") or key in of_all or uses(key)]
    changed = [_difference(key, value_of(settings, key), wanted[key]) for key in keys]
    changed += [line for stage in asked for line in _of_stage(settings, stage, wanted)]
    own = "; ".join(filter(None, changed)) or "nothing that it sets"
    return (
        f"profile {settings.profile}: you changed {own}; beyond settings, the models, the corpus and the wording of "
        "the prompts are not the papers' (docs/methods.md, section 15)"
    )


def value_of(settings: Settings, key: str) -> Any:
    """The value of a setting by its dotted key."""
    return reduce(getattr, key.split("."), settings)


def _difference(key: str, value: Any, wanted: Any) -> str | None:
    given = list(value) if isinstance(value, tuple) else value
    return None if given == wanted else f"{key}={json.dumps(given)} (was {json.dumps(wanted)})"


def _of_stage(settings: Settings, stage: str, wanted: Mapping[str, Any]) -> Iterator[str | None]:
    """What differs for one stage alone: decoding that overrides that of all, and its template."""
    own, decoding = settings.stages.get(stage), decoding_for(settings, stage)
    for name in _BY_STAGE:
        if own is not None and name in own.model_fields_set:
            yield _difference(f"stages.{stage}.{name}", getattr(decoding, name), wanted[f"llm.{name}"])
    template = template_of(stage, settings)
    # A change of `prompts` itself is told once, not by stage
    shipped = find_template(stage, template.api, None, settings.prompts)
    if template.origin != shipped.origin:
        yield f"the template of {stage} ({template.origin})"
