"""Define the settings, and derive the decoding of a stage and the identity of an output from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import create_model, field_validator

from untold.jobs.metrics import settings as metrics
from untold.jobs.metrics.settings import package_sections
from untold.jobs.settings import sections
from untold.jobs.settings.fields import (
    TOLERANCE,
    Address,
    Amount,
    ApiKeyEnv,
    BodyWithoutNulls,
    Count,
    ExtraBody,
    Natural,
    PathText,
    Positive,
    Rating,
    Section,
    Share,
    Text,
    TokenRate,
    Tolerance,
    merge_patch,
    setting,
)
from untold.jobs.settings.sections import RaySettings as RaySettings
from untold.jobs.settings.sections import SparkSettings as SparkSettings
from untold.udfs.errors import UserError
from untold.udfs.llm.usage import Prices, dearest
from untold.udfs.retrieval.local_models import JUDGE
from untold.udfs.stages import LOOKUPS, STAGES

STAGE_NAMES: tuple[str, ...] = tuple(STAGES)
# These settings may differ between two starts of one run. Every other setting is part of an output's identity, so that
# a new setting is part of it too. `decoding_for` selects from `llm` and `stages`. The digests of templates replace
# `prompt_set`, and the settings of a profile replace `profile`
NO_RESULT = frozenset(
    {
        *("llm", "stages", "budget", "nightly", "trend", "notify", "lakehouse", "spark", "ray", "storage"),
        *("completion_store", "work_dir", "fail_on_error", "prompt_set", "profile", "batch"),
        *("judges", "judges_rule"),
    }
)
Api = Literal["chat", "completions"]
PromptSet = Literal["untold", "published"]
Structured = Literal["auto", "off", "json_schema", "guided_json"]
# The limit that a stage declares (`StageDefinition.max_tokens`)
AUTO: Literal["auto"] = "auto"
Own = TypeVar("Own", bound=Section)
PRICES = ("price_per_million_prompt_tokens", "price_per_million_completion_tokens")


class SettingsError(UserError):
    """Invalid settings: one line per problem, with the key, the allowed values and the layer of the value.

    The message never shows a value that may be a key.
    """


class LlmSettings(sections.SendingSettings):
    """The endpoint of the language model, its limits and its prices, and the decoding of requests.

    model, api, structured, temperature, top_p, max_tokens and extra_body may differ by stage. A request's id contains
    them and the salt, which is never sent. The other fields may differ between two starts of a run
    (docs/architecture.md, "Requests and their keys").
    """

    ADVANCED: ClassVar[frozenset[str]] = frozenset(
        {"salt", "repeated_share", "deadline_seconds", "outage_minutes", "actors", "flush_seconds", "api_key_minutes"}
    )

    endpoint: Text | None = setting(None, "Preset: a name in conf/endpoints, or a path to a .yaml file")
    base_url: Address | None = setting(None, "Address of an OpenAI-compatible API, with /v1")
    model: Text | None = setting(None, "Model name at the endpoint")
    api_key_env: ApiKeyEnv = None
    api_key_command: Text | None = setting(
        None, "Shell command that prints the key, in place of llm.api_key_env. It runs where the requests are sent"
    )
    api_key_minutes: Positive = setting(30.0, "Minutes until llm.api_key_command runs again; it also runs after a 401")
    endpoints: sections.Endpoints = setting(
        [],
        "Several endpoints instead of llm.base_url. Each has a base_url, and optionally a model, api_key_env, limits, "
        "prices, extra_headers, extra_query and a weight, its share of the requests",
    )
    api: Api = setting("chat", "Chat completions or plain completions")
    protocol: sections.Protocol = setting(
        "chat", "chat is the OpenAI-compatible API, messages is Anthropic's Messages API. It does not change the prompt"
    )
    structured: Structured = setting(
        "auto",
        "JSON schema of the stage in chat requests: auto tries it once, off sends none, json_schema "
        "(response_format) and guided_json send it without a try",
    )
    extra_body: BodyWithoutNulls = setting({}, "Fields merged into every request, such as reasoning_effort")
    salt: Text | None = setting(None, "Text in the id of every request; a new salt repeats all requests")
    mask: Text | None = setting(
        None, "Mask of the texts of requests: the name of an entry point of untold.masks; the judge needs no mask"
    )
    repeats: Count = setting(1, "Scorings of llm.repeated_share of the samples, for repeatability")
    repeated_share: Share = setting(0.05, "Share of samples that are scored llm.repeats times")
    timeout_seconds: Positive = setting(120.0, "Timeout of one attempt, in seconds")
    deadline_seconds: Positive = setting(600.0, "Timeout of a request with all its attempts, in seconds")
    outage_minutes: Positive = setting(10.0, "Minutes of an outage until the run ends (1 before the first success)")
    max_attempts: Count = setting(4, "Maximum attempts of a request; rate limiting does not count")
    temperature: Amount | None = setting(0.0, "Sampling temperature; null is not sent")
    top_p: Share | None = setting(1.0, "Nucleus sampling share; null is not sent")
    max_tokens: Count | Literal["auto"] | None = setting(
        AUTO, "Maximum tokens; auto is the stage's limit, null is not sent"
    )
    reasoning_tokens: Natural = setting(0, "Tokens added to max_tokens for a model that reasons; 0 measures them")
    requests_per_minute: Positive | None = setting(None, "Maximum requests per minute; null means no limit")
    tokens_per_minute: TokenRate = None
    max_concurrency: Count = setting(64, "Maximum concurrent requests of all actors")
    backend: sections.Backend = setting(
        "process",
        "Executor of requests. process is a local process. ray-job is a job on the Ray cluster with its job server "
        "at ray.address (http://HEAD:8265). spool is `untold answer`. batch is the batch API of the endpoint, at a "
        "lower price and within a day",
    )
    spool: PathText | None = setting(None, "Folder of the spool, path or URI; null is spool/ in the store")
    actors: Count | None = setting(None, "Number of Ray actors that send requests; null derives it from the limits")
    flush_seconds: Positive | None = setting(
        None, "Maximum seconds between writes, which a killed actor loses; null is 1, or 5 on object stores"
    )
    price_per_million_prompt_tokens: Amount | None = setting(None, "Price per million prompt tokens")
    price_per_million_completion_tokens: Amount | None = setting(None, "Price per million completion tokens")
    local_model: Text | None = setting(None, "Path of a GGUF file for the embedded model")

    @property
    def uses_spool(self) -> bool:
        """Return True if `untold answer` carries out the requests, as a command or as a job of a Ray cluster."""
        return self.backend in ("spool", "ray-job")

    @property
    def is_judge(self) -> bool:
        """Return True if the judge of the package takes the place of a language model."""
        return self.model == JUDGE and self.base_url is None and not self.endpoints

    @property
    def each(self) -> list[LlmSettings]:
        """Return the settings of each endpoint, as if it were the only endpoint."""
        if not self.endpoints:
            return [self]
        return [self.model_copy(update={**one.over(vars(self)), "endpoints": []}) for one in self.endpoints]


class StageSettings(sections.SetFieldsSection):
    """Settings of one stage over `llm.*`. An unset field follows `llm.*`. A null is not sent, or is no price."""

    model: Text | None = setting(None, "Model of this stage")
    api: Api | None = setting(None, "Chat completions or plain completions, for this stage")
    structured: Structured | None = setting(None, "JSON schema in requests of this stage")
    temperature: Amount | None = setting(None, "Sampling temperature of this stage; null is not sent")
    top_p: Share | None = setting(None, "Nucleus sampling share of this stage; null is not sent")
    max_tokens: Count | None = setting(None, "Maximum tokens of a completion; null is not sent")
    extra_body: ExtraBody | None = setting(None, "Fields merged over llm.extra_body; a null removes its key, or all")
    backend: sections.StageBackend | None = setting(None, "Executor of requests, if llm.backend is process or batch")
    prompt_set: PromptSet | None = setting(None, "Shipped template: Untold's own, or as in the metric's paper")
    price_per_million_prompt_tokens: Amount | None = setting(None, "Price per million prompt tokens, null for none")
    price_per_million_completion_tokens: Amount | None = setting(None, "Price per million completion tokens")

    @field_validator("model", "api", "prompt_set", "structured", "backend")
    @classmethod
    def _not_null(cls, value: str | None) -> str:
        """Raise ValueError for null: every request needs a model, an API and a template."""
        if value is None:
            raise ValueError("a value; leave the key out to follow llm.*")
        return value


class ThresholdSettings(Section):
    """Minimum ratings: methods, section 1.

    A rating is an expected value if the model returns the probabilities of digits. It can be a fraction.
    """

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"relevance", "confidence"})

    relevance: Rating = setting(3.5, "Minimum expected relevance to the query, 1 to 5")
    confidence: Rating = setting(2.0, "Minimum expected confidence of an answer, 1 to 5")


class StatisticsSettings(Section):
    """Resampling of intervals and tests: methods, section 7. The order of the rows does not change the limits."""

    seed: Natural = setting(0, "Seed of every resampling")
    widen: bool = setting(False, "Widen the summary's intervals by the variation of llm.repeats")


class GraphSettings(Section):
    """Condensation of fact graphs: methods, section 5, and docs/architecture.md, "Statements from graphs"."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"method", "max_edges_in_task", "jar"})

    method: Literal["auto", "local", "graphframes"] = setting("auto", "SciPy in tasks, GraphFrames, or by size")
    # Four million edges with ids of 32 characters in one row exceeded a heap of 1 GB
    max_edges_in_task: Count = setting(1_000_000, "Maximum edges of a graph that one task condenses")
    jar: Text | None = setting(None, "GraphFrames jar; null uses UNTOLD_GRAPHFRAMES_JAR or Maven")


class Settings(Section):
    """The validated settings of a run."""

    llm: LlmSettings = LlmSettings()
    stages: dict[str, StageSettings] = setting({}, "Overrides of llm.* by stage")
    profile: Literal["published"] | None = setting(None, "Settings of the papers, below your own settings")
    prompt_set: PromptSet = setting("untold", "Shipped templates: Untold's own, or as in a metric's paper")
    prompts_dir: PathText | None = setting(None, "Folder of templates that replace the shipped templates")
    completion_store: PathText | None = setting(None, "Store of completions; null is completions/ in the output")
    work_dir: PathText | None = setting(
        None,
        "Folder for the steps of a run, shared by Spark and the driver; null is _work in the output, or a "
        "temporary folder if Spark and Ray run on this machine and the output is remote",
    )
    judges: sections.Judges = setting(
        [],
        "A panel: several models that judge the same items. Each has a model and the settings of llm.endpoints; "
        "endpoint, a preset, replaces base_url. Without both it has the endpoint of llm.*. It has the prices of llm.* "
        "only if it has its model. [] judges with llm.model",
    )
    judges_rule: Literal["majority", "all"] = setting(
        "majority",
        "Verdict of a panel: the label of more than half of the judges, or the strongest label that all judges accept",
    )
    summarise_contexts: bool = setting(True, "Summarise each context for the query first")
    fail_on_error: Literal["any", "none"] | Tolerance = setting(
        "any",
        "Failed or partial samples that make the exit code 4: any, none, or more than .share or .count",
        json_schema_extra={"allowed": f"any | none | {TOLERANCE}"},
    )
    batch: sections.BatchSettings = sections.BatchSettings()
    budget: sections.BudgetSettings = sections.BudgetSettings()
    nightly: sections.NightlySettings = sections.NightlySettings()
    trend: sections.TrendSettings = sections.TrendSettings()
    repeats: sections.RepeatsSettings = sections.RepeatsSettings()
    notify: sections.NotifySettings = sections.NotifySettings()
    lakehouse: sections.LakehouseSettings = sections.LakehouseSettings()
    spark: SparkSettings = SparkSettings()
    ray: RaySettings = RaySettings()
    storage: sections.StorageSettings = sections.StorageSettings()
    thresholds: ThresholdSettings = ThresholdSettings()
    statistics: StatisticsSettings = StatisticsSettings()
    sources: sections.SourcesSettings = sections.SourcesSettings()
    e2e: metrics.E2eSettings = metrics.E2eSettings()
    nli: metrics.NliSettings = metrics.NliSettings()
    qa: metrics.QaSettings = metrics.QaSettings()
    graph: GraphSettings = GraphSettings()
    embeddings: sections.EmbeddingSettings = sections.EmbeddingSettings()
    search: sections.SearchSettings = sections.SearchSettings()
    classifier: sections.ClassifierSettings = sections.ClassifierSettings()
    grounding: sections.GroundingSettings = sections.GroundingSettings()
    index: sections.IndexSettings = sections.IndexSettings()
    knowledge: sections.KnowledgeSettings = sections.KnowledgeSettings()
    claims: metrics.ClaimsSettings = metrics.ClaimsSettings()
    icat: metrics.IcatSettings = metrics.IcatSettings()
    importance: metrics.ImportanceSettings = metrics.ImportanceSettings()
    longrecall: metrics.LongrecallSettings = metrics.LongrecallSettings()
    nuggets: metrics.NuggetsSettings = metrics.NuggetsSettings()
    rag: metrics.RagSettings = metrics.RagSettings()
    rubric: metrics.RubricSettings = metrics.RubricSettings()
    citations: metrics.CitationsSettings = metrics.CitationsSettings()
    answer_relevancy: metrics.AnswerRelevancySettings = metrics.AnswerRelevancySettings()

    def of(self, section: type[Own]) -> Own:
        """Return the section of this class, for a metric of another package.

        Return the section's defaults if these settings were created without that package.
        """
        return next((value for _, value in self if isinstance(value, section)), section())

    def with_store(self, folder: str) -> Settings:
        """Return the settings with a store in this folder, for runs that share it, unless the user has set a store."""
        return self if self.completion_store else self.model_copy(update={"completion_store": f"{folder}/completions"})

    @property
    def offers_tools(self) -> bool:
        """Return True if stages may offer their tools to the model."""
        return self.qa.quantity_tool == "tool"

    @field_validator("stages")
    @classmethod
    def _known_stages(cls, value: dict[str, StageSettings]) -> dict[str, StageSettings]:
        """Raise ValueError for an unknown stage, because its overrides would have no effect."""
        if not value.keys() <= set(STAGE_NAMES):
            raise ValueError(f"stages among {', '.join(STAGE_NAMES)}")
        return value


@cache
def settings_model() -> type[Settings]:
    """Return `Settings` with the sections of metrics from other packages, and import these packages.

    Raise SettingsError for a section with a name that is taken.
    """
    found: dict[str, tuple[str, type[Section]]] = {}
    for metric, name, section in package_sections():
        taken = "Untold" if name in Settings.model_fields else found.get(name, (metric, section))[0]
        if name in Settings.model_fields or found.get(name, (metric, section))[1] is not section:
            raise SettingsError(f"metric {metric}: {taken} already has settings {name}.*. Rename its section")
        found[name] = (metric, section)
    added: dict[str, Any] = {name: (section, section()) for name, (_, section) in found.items()}
    return create_model("Settings", __base__=Settings, **added) if added else Settings


@dataclass(frozen=True)
class Decoding:
    """The fields that a stage sends with every request, and its salt. A field with the value None is not sent.

    `model` is None for an embedded model without a name.
    """

    model: str | None
    api: Api
    structured: Structured
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    extra_body: dict[str, Any]
    salt: str | None


def decoding_for(settings: Settings, stage: str) -> Decoding:
    """Return the decoding of a stage: `stages.<stage>.*` over `llm.*`. Raise `SettingsError` for an unknown stage.

    A null of the stage counts as a value: the field is not sent, also if `llm.*` sets it.
    """
    own, llm = _of_stage(settings, stage), settings.llm
    names = ("model", "api", "structured", "temperature", "top_p", "max_tokens")
    values = {name: getattr(own if name in own.model_fields_set else llm, name) for name in names}
    if values["max_tokens"] == AUTO:
        values["max_tokens"] = STAGES[stage].max_tokens
    body = dict(llm.extra_body)
    if "extra_body" in own.model_fields_set:
        body = {} if own.extra_body is None else merge_patch(body, own.extra_body)
    return Decoding(**values, extra_body=body, salt=llm.salt)


def api_for(settings: Settings, stage: str) -> Api:
    """Return the API of a stage without loading the stage. Raise `SettingsError` for an unknown stage."""
    return _of_stage(settings, stage).api or settings.llm.api


def backend_for(settings: Settings, stage: str) -> sections.Backend:
    """Return the backend that carries out the requests of a stage. Lookups have no batches."""
    if stage in LOOKUPS:
        return settings.llm.backend if settings.llm.uses_spool else "process"
    return _of_stage(settings, stage).backend or settings.llm.backend


def _of_stage(settings: Settings, stage: str) -> StageSettings:
    if stage not in STAGE_NAMES:
        raise SettingsError(f"stages.{stage}: this stage does not exist. Stages are {', '.join(STAGE_NAMES)}")
    return settings.stages.get(stage, StageSettings())


def prices_for(settings: Settings, stage: str, backend: sections.Backend | None = None) -> Prices:
    """Return the maximum prices of a stage, for plans, calls and accounts: `stages.<stage>.*` over `llm.*`.

    The most expensive of several endpoints counts. Lookups have separate prices.
    """
    if stage == "embed_text":
        return Prices(prompt=settings.embeddings.price_per_million_tokens)
    if stage == "web_search":
        return Prices(thousand_calls=settings.search.price_per_thousand_requests)
    # A lookup within tasks counts no tokens and is free
    if stage in LOOKUPS:
        return Prices(prompt=settings.classifier.price_per_million_tokens)
    share = settings.batch.discount if (backend or backend_for(settings, stage)) == "batch" else 1.0
    return dearest([prices_at(one, settings, stage) for one in settings.llm.each]).times(share)


def prices_at(llm: LlmSettings, settings: Settings, stage: str) -> Prices:
    """Return the prices of a stage at one endpoint. The stage's own prices apply to every endpoint."""
    own = _of_stage(settings, stage)
    return Prices(*(getattr(own if name in own.model_fields_set else llm, name) for name in PRICES))


def settings_of_judges(settings: Settings) -> dict[str, Settings]:
    """Return the settings of each judge of a panel by its model: `llm.*` has the judge's endpoint, model and prices.

    The overrides of stages apply to all judges, except models and prices. A judge does not have the prices of `llm.*`.
    """
    kept = {name: own.model_dump(exclude={"model", *PRICES}) for name, own in settings.stages.items()}
    stages = {name: StageSettings.model_validate(own) for name, own in kept.items()}
    # The headers of `llm.*` belong to its own endpoint
    base = vars(settings.llm) | {"extra_headers": {}, "extra_query": {}}
    llm = settings.llm.model_copy(update=dict.fromkeys(PRICES))
    judges = {str(one.model): llm.model_copy(update=one.over(base)) for one in settings.judges}
    return {model: settings.model_copy(update={"llm": llm, "stages": stages}) for model, llm in judges.items()}


def judges_without_price(settings: Settings) -> list[str]:
    """Return the models of the judges whose calls have an unknown cost."""
    return [str(one.model) for one in settings.judges if None in (getattr(one, name) for name in PRICES)]


def result_settings(settings: Settings, stages: Iterable[str] = STAGE_NAMES) -> dict[str, Any]:
    """Return the settings that change results, as JSON values. They are part of an output's identity.

    `stages` selects the stages with a decoding. `NO_RESULT` and the `NO_RESULT` of sections list the excluded
    settings: limits, prices, budgets, retries, addresses, keys, stores, Spark and Ray.
    """
    decoding = {stage: vars(decoding_for(settings, stage)) for stage in sorted(stages)}
    within = {name: set(section.NO_RESULT) for name, section in settings if isinstance(section, Section)}
    left_out = {name: keys for name, keys in within.items() if keys} | dict.fromkeys(NO_RESULT, True)
    found = {"stages": decoding, **settings.model_dump(mode="json", exclude=left_out)}
    if settings.judges:
        found |= {"judges": [one.model for one in settings.judges], "judges_rule": settings.judges_rule}
    if settings.llm.repeats > 1:
        found["llm"] = settings.llm.model_dump(include={"repeats", "repeated_share"})
    return found
