"""The stages bound to settings: model, template and decoding, checked before anything is asked."""

from __future__ import annotations

from typing import Any

from untold.jobs.asking.lookups import bind_lookup
from untold.jobs.settings.model import Decoding, Settings, decoding_for
from untold.jobs.settings.templates import Template, template_of
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.structure import OWN_FIELDS
from untold.udfs.llm.templates import check_variables, compile_prompt, order_of_variables, try_prompt
from untold.udfs.stages import LOOKUPS, STAGES
from untold.udfs.stages.definitions import SUFFIXES as SUFFIXES
from untold.udfs.stages.definitions import StageDefinition


def bind_stage(name: str, settings: Settings, *, embedded_model: str | None = None) -> Stage:
    """The stage with its model, template and decoding: all that its digest is made of (docs/architecture.md,
    "Requests and their keys"). `embedded_model` is the sha256 of a local model's file, which stands for its name.

    Raises SettingsError, PromptError or LocalModelFileError for what cannot be used, before anything is asked.
    """
    if name in LOOKUPS:
        return bind_lookup(name, settings)
    definition = STAGES[name]
    decoding = decoding_for(settings, name)
    template = checked_template(name, settings)
    tools = definition.tools if settings.offers_tools and template.api == "chat" else ()
    return Stage(
        name=name,
        variables=definition.variables,
        model=decoding.model or "local",
        template=template.source,
        api=template.api,
        model_key=f"sha256:{embedded_model}" if embedded_model else None,
        temperature=decoding.temperature,
        top_p=decoding.top_p,
        max_tokens=decoding.max_tokens,
        extra_body=decoding.extra_body,
        # Plain completions have no way to call a tool
        tools=tools,
        rated=definition.rated,
        structured=None if tools else _structured(definition, decoding),
        salt=decoding.salt,
        reasoning_tokens=settings.llm.reasoning_tokens,
    )


def _structured(definition: StageDefinition, decoding: Decoding) -> dict[str, Any] | None:
    """How the stage's schema is sent; None for free text, for plain completions, and where the user sends a form.

    Nor does a stage with tools send one: some endpoints refuse both together, others then call no tool.
    """
    own = not OWN_FIELDS.isdisjoint(decoding.extra_body)
    if definition.schema is None or decoding.structured == "off" or decoding.api != "chat" or own:
        return None
    form = "json_schema" if decoding.structured == "auto" else decoding.structured
    return {"form": form, "schema": definition.schema}


def checked_template(name: str, settings: Settings) -> Template:
    """The template of a stage, compiled and filled in once. Raises SettingsError or PromptError where that fails."""
    definition = STAGES[name]
    template = template_of(name, settings)
    prompt = compile_prompt(template.source, api=template.api, name=template.origin)
    check_variables(template.source, definition.variables, api=template.api, name=template.origin)
    if definition.examples is not None:
        try_prompt(prompt, definition.examples, template.origin)
    return template


def order_of_prompt(stage: Stage) -> tuple[str, ...]:
    """The variables of a stage in the order in which its prompts have them; of a lookup, which has none, their own."""
    if stage.name in LOOKUPS:
        return stage.variables
    return order_of_variables(stage.template, stage.variables, api=stage.api)
