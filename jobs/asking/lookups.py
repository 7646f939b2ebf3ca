"""The stages that ask no language model, bound to settings: what their keys are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from untold.jobs.settings.model import Settings, SettingsError
from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.embedding import find_model, prefixes_template
from untold.udfs.retrieval.entailment import find_classifier
from untold.udfs.stages import LOOKUPS

RELATION = "relation"


def bind_lookup(name: str, settings: Settings) -> Stage:
    """A stage of `LOOKUPS` with all that its digest is made of.

    Raises SettingsError, or LocalModelFileError where a local model is not there, before anything is asked.
    """
    return _BINDINGS[name](settings)


def bind_embedding(settings: Settings) -> Stage:
    """`embed_text`: of a local model, its files stand for its name, and how they are used is part of the key."""
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
    """`web_search`: with the edition, so that another one searches anew."""
    given = settings.search
    if settings.budget.max_cost is not None and given.price_per_thousand_requests is None:
        raise SettingsError("budget.max_cost: a web search needs search.price_per_thousand_requests")
    edition = {} if given.edition is None else {"edition": given.edition}
    variables = LOOKUPS["web_search"].variables
    return Stage("web_search", variables, given.model, template="", api="search", extra_body=edition)


def classifiers_of(settings: Settings) -> list[str]:
    """The folders of classifiers that the settings name, each once."""
    named = [folder for folder in (settings.grounding.verifier, settings.nli.classifier) if folder]
    return [folder for folder in dict.fromkeys(named) if folder != RELATION]


def _bind_entailment(settings: Settings) -> Stage:
    """`classify_entailment`: the classifier of the folder that `grounding.verifier` or `nli.classifier` names."""
    folders = classifiers_of(settings)
    if not folders:
        raise SettingsError("grounding.verifier: relation asks the stage classify_relation; name a classifier's folder")
    if len(folders) > 1:
        raise SettingsError("nli.classifier and grounding.verifier: one run has one classifier; name the same folder")
    folder = folders[0]
    found = find_classifier(folder)
    return Stage(
        name="classify_entailment",
        variables=LOOKUPS["classify_entailment"].variables,
        model=folder,
        template="",
        api="local",
        model_key=f"sha256:{found.files.sha256}",
        extra_body={"tokenizer": found.files.tokenizer_sha256, "relations": list(found.relations)},
    )


_BINDINGS: Mapping[str, Callable[[Settings], Stage]] = {
    "embed_text": bind_embedding,
    "web_search": bind_search,
    "classify_entailment": _bind_entailment,
}
