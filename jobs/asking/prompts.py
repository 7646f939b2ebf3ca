"""The stages bound to settings: model, template and decoding, checked before anything is asked."""

from __future__ import annotations

from untold.jobs.asking.lookups import bind_lookup
from untold.jobs.settings.model import Settings, decoding_for
from untold.jobs.settings.templates import Template, template_of
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.templates import check_variables, compile_prompt, order_of_variables, try_prompt
from untold.udfs.stages import LOOKUPS, STAGES
from untold.udfs.stages.definitions import SUFFIXES as SUFFIXES


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
        tools=definition.tools if settings.offers_tools and template.api == "chat" else (),
        rated=definition.rated,
    )


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
