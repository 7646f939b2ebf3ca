"""Bind stages to settings: model, template and decoding, checked before the first call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from untold.jobs.inference.stage.call_settings import classifiers_of, is_address
from untold.jobs.settings.model import Decoding, Settings, SettingsError, decoding_for
from untold.jobs.settings.templates import Template, template_of
from untold.udfs.llm.keys import CLASSIFYING, LOCAL, OWN_FIELDS, Stage
from untold.udfs.llm.templates import check_variables, compile_prompt, order_of_variables, try_prompt
from untold.udfs.retrieval.classifying import CLASSES, find_classifier, relations_of
from untold.udfs.retrieval.embedding import find_model, prefixes_template
from untold.udfs.retrieval.local_models import JUDGE, find_minilm
from untold.udfs.stages import LOOKUPS, MASKS, STAGES
from untold.udfs.stages.definitions import SUFFIXES as SUFFIXES
from untold.udfs.stages.definitions import StageDefinition

# With a lower probability of entailment, the other classes can be more probable. /score does not return them
EVEN = 0.5


def bind_lookup(name: str, settings: Settings) -> Stage:
    """Return a stage of `LOOKUPS` with all fields of its digest.

    Raises SettingsError for unusable settings, and LocalModelFileError for a missing local model.
    """
    return _BINDINGS[name](settings)


def bind_embedding(settings: Settings) -> Stage:
    """Return the stage `embed_text`. The key of a local model has the digests of its files and its settings."""
    given = settings.embeddings
    local: Mapping[str, Any] = {}
    sha256 = None
    if given.base_url is None:
        files = find_model(given.model)
        sha256 = files.sha256
        local = {"pooling": given.pooling, "max_tokens": given.max_tokens, "tokenizer": files.tokenizer_sha256}
    return Stage(
        name="embed_text",
        variables=LOOKUPS["embed_text"].variables,
        model=given.model,
        template=prefixes_template(given.query_prefix, given.document_prefix),
        api="embeddings",
        model_key=f"sha256:{sha256}" if sha256 else None,
        extra_body=local or given.extra_body,
    )


def bind_search(settings: Settings) -> Stage:
    """Return the stage `web_search`. The edition is part of the key, so a new edition repeats the searches."""
    given = settings.search
    if settings.budget.max_cost is not None and given.price_per_thousand_requests is None:
        raise SettingsError("budget.max_cost: a web search needs search.price_per_thousand_requests")
    edition = {} if given.edition is None else {"edition": given.edition}
    variables = LOOKUPS["web_search"].variables
    return Stage("web_search", variables, given.model, template="", api="search", extra_body=edition)


def bind_entailment(settings: Settings) -> Stage:
    """Return the stage `classify_entailment` for the classifier of `grounding.verifier` or `nli`."""
    named = classifiers_of(settings)
    if not named:
        raise SettingsError(
            "grounding.verifier: relation needs classify_relation. Set judge, or the folder of a classifier"
        )
    if len(named) > 1:
        raise SettingsError("nli.classifier and grounding.verifier must be equal. A run has one classifier")
    folder = named[0]
    if is_address(folder):
        return _bind_server(folder, settings)
    return _bind_classifier("classify_entailment", LOOKUPS["classify_entailment"].variables, folder)


def _bind_classifier(name: str, variables: tuple[str, ...], model: str, **more: Any) -> Stage:
    """Return a stage of a classifier, `judge` or a folder, with `more` next to its files and numbers in the key."""
    found = find_classifier(model)
    body = {"tokenizer": found.files.tokenizer_sha256, "relations": list(found.relations), **found.calibration, **more}
    return Stage(name, variables, model, "", api=LOCAL, model_key=f"sha256:{found.files.sha256}", extra_body=body)


def _bind_server(address: str, settings: Settings) -> Stage:
    """Return the stage `classify_entailment` of a server. Raises SettingsError with a line per missing setting."""
    given, api = settings.classifier, urlsplit(address).path.rstrip("/").rpartition("/")[2]
    lacking = list(_lacking(api, settings))
    if lacking:
        raise SettingsError("\n".join(lacking))
    try:
        relations = relations_of(given.labels) if given.labels and api != "score" else ()
    except ValueError as error:
        raise SettingsError(f"classifier.labels: {error}. Use the class names {CLASSES}") from None
    return Stage(
        name="classify_entailment",
        variables=LOOKUPS["classify_entailment"].variables,
        model=str(given.model),
        template=(given.separator or "") if api == "classify" else "",
        api=api,
        extra_body={"relations": list(relations)},
    )


def _lacking(api: str, settings: Settings) -> Iterator[str]:
    """Yield a line for each missing or wrong setting of an API."""
    given, threshold = settings.classifier, settings.nli.classifier_threshold
    if api not in CLASSIFYING:
        yield "nli.classifier_url: must end in /classify, /predict or /score"
    if given.model is None:
        yield "classifier.model is not set. Use --set classifier.model=NAME"
    if api == "classify" and not given.labels:
        yield "classifier.labels: /classify needs the names of the classes in order"
    if api == "classify" and given.separator is None:
        yield "classifier.separator: /classify accepts single texts. Set the text that joins a pair, such as </s></s>"
    if api == "score" and settings.nli.classifier_url and (threshold or 0.0) < EVEN:
        need = f"must be at least {EVEN} with /score, which returns only the probability of entailment"
        yield f"nli.classifier_threshold: {need}"
    if settings.budget.max_cost is not None and given.price_per_million_tokens is None:
        yield "budget.max_cost: a server that classifies needs classifier.price_per_million_tokens"


_BINDINGS: Mapping[str, Callable[[Settings], Stage]] = {
    "embed_text": bind_embedding,
    "web_search": bind_search,
    "classify_entailment": bind_entailment,
}


def bind_stage(name: str, settings: Settings, *, embedded_model: str | None = None) -> Stage:
    """Return the stage with its model, template, decoding and mask (docs/architecture.md, "Requests and their keys").

    `embedded_model` is the sha256 of the embedded model's file. It replaces the name of the model in the key. Raises
    SettingsError, PromptError or LocalModelFileError for unusable settings, templates or files.
    """
    stage = _bind(name, settings, embedded_model)
    # The texts of a local classifier do not leave Spark's tasks
    return stage if stage.api == LOCAL else replace(stage, mask=_find_mask(settings.llm.mask))


def _find_mask(name: str | None) -> tuple[str, str] | None:
    """Return the name and the version of a mask. Raises SettingsError for an unknown mask."""
    if name is None:
        return None
    if name not in MASKS:
        known = f"Installed masks: {', '.join(MASKS)}" if MASKS else "No installed package has a mask"
        raise SettingsError(f"llm.mask: no mask has the name {name}. {known}")
    return name, MASKS[name].version


def _bind(name: str, settings: Settings, embedded_model: str | None) -> Stage:
    if name in LOOKUPS:
        return bind_lookup(name, settings)
    if settings.llm.is_judge:
        return _bind_judge(name, settings)
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


def _bind_judge(name: str, settings: Settings) -> Stage:
    """Return the stage as the judge of the package answers it. Raises SettingsError if the judge cannot."""
    # Only runs with the judge need its imports
    from untold.udfs.judge.model import SHORT_TOKENS, WINDOW_TOKENS
    from untold.udfs.judge.stages import ANSWERS, RELEVANCE

    if name not in ANSWERS:
        raise SettingsError(f"llm.model: the judge cannot answer {name}. Set another endpoint (--endpoint)")
    embedding = find_minilm().sha256 if name == RELEVANCE else None
    windows = [WINDOW_TOKENS, SHORT_TOKENS]
    stage = _bind_classifier(name, STAGES[name].variables, JUDGE, windows=windows, embedding=embedding)
    return replace(stage, salt=decoding_for(settings, name).salt)


def _structured(definition: StageDefinition, decoding: Decoding) -> dict[str, Any] | None:
    """Return the form and the schema of structured output, or None for free text and plain completions.

    Also returns None if `extra_body` sets the form of the output. Stages with tools send no schema, because some
    endpoints refuse both together, and other endpoints then call no tool.
    """
    own = not OWN_FIELDS.isdisjoint(decoding.extra_body)
    if definition.schema is None or decoding.structured == "off" or decoding.api != "chat" or own:
        return None
    form = "json_schema" if decoding.structured == "auto" else decoding.structured
    return {"form": form, "schema": definition.schema}


def checked_template(name: str, settings: Settings) -> Template:
    """Return the template of a stage after a trial with its examples. Raises SettingsError or PromptError."""
    definition = STAGES[name]
    template = template_of(name, settings)
    prompt = compile_prompt(template.source, api=template.api, name=template.origin)
    check_variables(template.source, definition.variables, api=template.api, name=template.origin)
    if definition.examples is not None:
        try_prompt(prompt, definition.examples, template.origin)
    return template


def order_of_prompt(stage: Stage) -> tuple[str, ...]:
    """Return the variables of a stage in the order of its prompt, or in their own order without a prompt."""
    if not stage.has_prompt:
        return stage.variables
    return order_of_variables(stage.template, stage.variables, api=stage.api)
