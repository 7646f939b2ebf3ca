"""The settings: validated, frozen models, and what a stage's decoding and a run's identity are under them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, create_model, field_validator, model_serializer

from untold.jobs.metrics.settings import (
    E2eSettings,
    IcatSettings,
    ImportanceSettings,
    LongrecallSettings,
    NliSettings,
    NuggetsSettings,
    QaSettings,
    RagSettings,
    package_sections,
)
from untold.jobs.settings.fields import (
    A_VARIABLE,
    AN_ADDRESS,
    TOLERANCE,
    Address,
    Amount,
    Count,
    ExtraBody,
    PathText,
    Positive,
    Rating,
    Section,
    Share,
    Text,
    Tolerance,
    VariableName,
)
from untold.jobs.settings.fields import merge_patch as merge_patch
from untold.jobs.settings.sections import (
    ENDPOINTS,
    Backend,
    BatchSettings,
    BudgetSettings,
    ClassifierSettings,
    EmbeddingSettings,
    Endpoints,
    GroundingSettings,
    IndexSettings,
    KnowledgeSettings,
    LakehouseSettings,
    NightlySettings,
    NotifySettings,
    SearchSettings,
    SendingSettings,
    StageBackend,
    StorageSettings,
    TrendSettings,
)
from untold.jobs.settings.sections import RaySettings as RaySettings
from untold.jobs.settings.sections import SparkSettings as SparkSettings
from untold.udfs.errors import UserError
from untold.udfs.llm.usage import Prices, dearest
from untold.udfs.stages import LOOKUPS, STAGES

STAGE_NAMES: tuple[str, ...] = tuple(STAGES)
# What may differ between two starts of one run; every other setting belongs to what an output is of. A list of what is
# left in would forget the next setting that changes results. Of `llm` and `stages`, `decoding_for` says what counts.
# `prompts` chooses templates, whose digests say more, and `profile` stands for what it sets
NO_RESULT = frozenset(
    {
        *("llm", "stages", "budget", "nightly", "trend", "notify", "lakehouse", "spark", "ray", "storage"),
        *("completion_store", "work_dir", "fail_on_error", "prompt_set", "profile", "batch"),
    }
)
Api = Literal["chat", "completions"]
PromptSet = Literal["untold", "published"]
Structured = Literal["auto", "off", "json_schema", "guided_json"]
# What a stage declares (`StageDefinition.max_tokens`)
AUTO: Literal["auto"] = "auto"
Own = TypeVar("Own", bound=Section)
PRICES = ("price_per_million_prompt_tokens", "price_per_million_completion_tokens")


class SettingsError(UserError):
    """Settings that cannot be used: one line a problem, naming the key, what is allowed and where the value is from.

    A value that may be a key is not shown.
    """


class LlmSettings(SendingSettings):
    """The endpoint, how it is asked, and its limits and prices.

    What is sent with a request (model, api, structured, temperature, top_p, max_tokens, extra_body) is part of its id
    and may differ by stage. The salt is part of it and not sent. All else may differ from start to start
    (docs/architecture.md, "Requests and their keys").
    """

    ADVANCED: ClassVar[frozenset[str]] = frozenset(
        {"salt", "repeated_share", "deadline_seconds", "outage_minutes", "actors", "flush_seconds", "journal"}
    )

    endpoint: Text | None = Field(
        default=None, description="Endpoint preset: a name in conf/endpoints, or a path to a .yaml file"
    )
    base_url: Address | None = Field(
        default=None,
        description="Address of an OpenAI-compatible API, /v1 included; its key is named by llm.api_key_env",
        json_schema_extra=AN_ADDRESS,
    )
    model: Text | None = Field(default=None, description="Model name as the endpoint knows it")
    api_key_env: VariableName | None = Field(
        default=None,
        description="Name of the environment variable that holds the API key; null is the preset's own, or no key",
        json_schema_extra=A_VARIABLE,
    )
    endpoints: Endpoints = Field(
        default_factory=list,
        description="Several endpoints in the place of llm.base_url: each with base_url, and with what it has of its "
        "own of model, api_key_env, limits, prices, extra_headers and extra_query; weight is its share of the requests",
        json_schema_extra=ENDPOINTS,
    )
    api: Api = Field(default="chat", description="Chat completions or plain completions")
    structured: Structured = Field(
        default="auto",
        description="Whether chat requests have their stage's JSON schema: auto tries it once, off sends none, "
        "json_schema (response_format) and guided_json send it untried",
    )
    extra_body: ExtraBody = Field(
        default_factory=dict, description="Fields merged into every request, such as reasoning_effort"
    )
    salt: Text | None = Field(
        default=None, description="Text in the id of every request: under another one the model is asked anew"
    )
    repeats: Count = Field(
        default=1, description="Scorings of llm.repeated_share of the samples, to see how far the judge repeats itself"
    )
    repeated_share: Share = Field(default=0.05, description="Share of samples that are scored llm.repeats times")
    timeout_seconds: Positive = Field(default=120.0, description="Timeout of one attempt, in seconds")
    deadline_seconds: Positive = Field(
        default=600.0, description="Timeout of a request over all attempts and waits, in seconds"
    )
    outage_minutes: Positive = Field(
        default=10.0,
        description="Minutes of an outage after which the run ends, resumable (1 while nothing has succeeded)",
    )
    max_attempts: Count = Field(default=4, description="Maximum attempts of a request; rate limiting uses none")
    temperature: Amount | None = Field(default=0.0, description="Sampling temperature; null is not sent")
    top_p: Share | None = Field(default=1.0, description="Nucleus sampling share; null is not sent")
    max_tokens: Count | Literal["auto"] | None = Field(
        default=AUTO, description="Maximum tokens of a completion; auto is each stage's own limit, null is not sent"
    )
    reasoning_tokens: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Tokens added to max_tokens of each stage, for a model that reasons; 0 is learnt from completions",
    )
    requests_per_minute: Positive | None = Field(
        default=None, description="Maximum requests a minute; null is no limit"
    )
    tokens_per_minute: Positive | None = Field(default=None, description="Maximum tokens a minute; null is no limit")
    max_concurrency: Count = Field(default=64, description="Maximum concurrent requests over all actors")
    backend: Backend = Field(
        default="process",
        description="What carries out requests: a process beside this start; a job that this start submits to the Ray "
        "cluster whose job server ray.address names (http://HEAD:8265); `untold answer` from a spool; or the batch API "
        "of the endpoint, at a lower price, within a day",
    )
    spool: PathText | None = Field(
        default=None, description="Folder of the spool, path or URI; null is spool/ in the store of completions"
    )
    actors: Count | None = Field(
        default=None,
        description="Number of Ray actors that make calls; null derives it from the request limit, or without one from "
        "max_concurrency",
    )
    flush_seconds: Positive | None = Field(
        default=None, description="Seconds between writes of completions; null is 1 on local disks, 30 on object stores"
    )
    journal: Text | None = Field(
        default=None,
        description="Folder on each node's disk for answers that are not in the store yet; off keeps none; null is "
        "the node's temporary folder for object stores, and off for local disks",
    )
    price_per_million_prompt_tokens: Amount | None = Field(
        default=None, description="Price of a million prompt tokens, in the currency of budget.max_cost"
    )
    price_per_million_completion_tokens: Amount | None = Field(
        default=None, description="Price of a million completion tokens, in the currency of budget.max_cost"
    )
    local_model: Text | None = Field(default=None, description="Path of a GGUF file for the embedded model's server")

    @property
    def uses_spool(self) -> bool:
        """Return True if `untold answer` carries out the requests, as a command or as a job of a Ray cluster."""
        return self.backend in ("spool", "ray-job")

    @property
    def each(self) -> list[LlmSettings]:
        """The settings of each endpoint, as if it were the only one."""
        if not self.endpoints:
            return [self]
        return [self.model_copy(update={**one.over(vars(self)), "endpoints": []}) for one in self.endpoints]

    @field_validator("extra_body")
    @classmethod
    def _without_nulls(cls, value: dict[str, Any]) -> dict[str, Any]:
        """A null says that a field is not sent, which it is not."""
        return merge_patch({}, value)


class StageSettings(Section):
    """What one stage overrides of `llm.*`. Unset follows `llm.*`; an explicit null is not sent, or no price.

    So `model_fields_set` says more than the values: null and unset are both None.
    """

    model: Text | None = Field(default=None, description="Model of this stage")
    api: Api | None = Field(default=None, description="Chat completions or plain completions, for this stage")
    structured: Structured | None = Field(
        default=None, description="Whether requests of this stage have its JSON schema"
    )
    temperature: Amount | None = Field(default=None, description="Sampling temperature of this stage; null is not sent")
    top_p: Share | None = Field(default=None, description="Nucleus sampling share of this stage; null is not sent")
    max_tokens: Count | None = Field(
        default=None, description="Maximum tokens of a completion of this stage; null is not sent"
    )
    extra_body: ExtraBody | None = Field(
        default=None, description="Fields merged over llm.extra_body; a null value removes its key, null removes all"
    )
    backend: StageBackend | None = Field(
        default=None, description="What carries out requests of this stage, if llm.backend is process or batch"
    )
    prompt_set: PromptSet | None = Field(
        default=None, description="Shipped template of this stage: Untold's own, or with the duty of the metric's paper"
    )
    price_per_million_prompt_tokens: Amount | None = Field(
        default=None, description="Price of a million prompt tokens of this stage's model; null is no price"
    )
    price_per_million_completion_tokens: Amount | None = Field(
        default=None, description="Price of a million completion tokens of this stage's model; null is no price"
    )

    @field_validator("model", "api", "prompt_set", "structured", "backend")
    @classmethod
    def _not_null(cls, value: str | None) -> str:
        """Raises ValueError for null where nothing could be left out: every request has a model, API and template."""
        if value is None:
            raise ValueError("a value; leave the key out to follow llm.*")
        return value

    @model_serializer(mode="wrap")
    def _set_fields(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only what was set, so that unset and null stay apart through JSON."""
        return {name: value for name, value in serialise(self).items() if name in self.model_fields_set}


class ThresholdSettings(Section):
    """What is kept is rated at or above these.

    Ratings are expected values, from the probabilities of the model's digits where it gives them, so that they lie
    between whole numbers. Methods, section 1.
    """

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"relevance", "confidence"})

    relevance: Rating = Field(default=3.5, description="Minimum expected relevance to the query, 1 to 5")
    confidence: Rating = Field(default=2.0, description="Minimum expected confidence of an answer, 1 to 5")


class StatisticsSettings(Section):
    """Resampling of intervals and tests: methods, section 7. One seed gives the same limits in any order of rows."""

    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="Seed of every resampling")
    widen: bool = Field(
        default=False, description="Widen the summary's intervals by what the judge's own scorings differ (llm.repeats)"
    )


class GraphSettings(Section):
    """Where fact graphs are condensed: methods, section 5, and docs/architecture.md, "Statements out of graphs"."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"method", "max_edges_in_task", "jar"})

    method: Literal["auto", "local", "graphframes"] = Field(
        default="auto", description="SciPy within tasks, GraphFrames, or whichever fits"
    )
    # Four million edges with ids of 32 characters in one row broke a heap of 1 GB
    max_edges_in_task: Count = Field(default=1_000_000, description="Maximum edges of a graph that one task condenses")
    jar: Text | None = Field(
        default=None, description="Path of the GraphFrames jar; null uses UNTOLD_GRAPHFRAMES_JAR or Maven"
    )


class Settings(Section):
    """Every setting of a run, validated."""

    llm: LlmSettings = LlmSettings()
    stages: dict[str, StageSettings] = Field(default_factory=dict, description="Overrides of llm.* by stage")
    profile: Literal["published"] | None = Field(
        default=None, description="Settings beneath all that you set: published are those of the papers"
    )
    prompt_set: PromptSet = Field(
        default="untold",
        description="Shipped templates: Untold's own, or with the duty of a metric's paper where they differ",
    )
    prompts_dir: PathText | None = Field(default=None, description="Folder whose templates replace the shipped ones")
    completion_store: PathText | None = Field(
        default=None, description="Store of completions, path or URI; null is completions/ in the output"
    )
    work_dir: PathText | None = Field(
        default=None,
        description="Folder for the steps of a run, shared by Spark and the driver; null is _work in the output, or a "
        "temporary folder where Spark and Ray run on this machine and the output is remote",
    )
    summarise_contexts: bool = Field(default=True, description="Summarise each context for the query first")
    fail_on_error: Literal["any", "none"] | Tolerance = Field(
        default="any",
        description="Failed or partial samples that make the exit code 4: any, none, or more than .share or .count",
        json_schema_extra={"allowed": f"any | none | {TOLERANCE}"},
    )
    batch: BatchSettings = BatchSettings()
    budget: BudgetSettings = BudgetSettings()
    nightly: NightlySettings = NightlySettings()
    trend: TrendSettings = TrendSettings()
    notify: NotifySettings = NotifySettings()
    lakehouse: LakehouseSettings = LakehouseSettings()
    spark: SparkSettings = SparkSettings()
    ray: RaySettings = RaySettings()
    storage: StorageSettings = StorageSettings()
    thresholds: ThresholdSettings = ThresholdSettings()
    statistics: StatisticsSettings = StatisticsSettings()
    e2e: E2eSettings = E2eSettings()
    nli: NliSettings = NliSettings()
    qa: QaSettings = QaSettings()
    graph: GraphSettings = GraphSettings()
    embeddings: EmbeddingSettings = EmbeddingSettings()
    search: SearchSettings = SearchSettings()
    classifier: ClassifierSettings = ClassifierSettings()
    grounding: GroundingSettings = GroundingSettings()
    index: IndexSettings = IndexSettings()
    knowledge: KnowledgeSettings = KnowledgeSettings()
    icat: IcatSettings = IcatSettings()
    importance: ImportanceSettings = ImportanceSettings()
    longrecall: LongrecallSettings = LongrecallSettings()
    nuggets: NuggetsSettings = NuggetsSettings()
    rag: RagSettings = RagSettings()

    def of(self, section: type[Own]) -> Own:
        """The section of this class: how a metric of another package reads settings of its own.

        The section's defaults in settings that were made without that package.
        """
        return next((value for _, value in self if isinstance(value, section)), section())

    @property
    def offers_tools(self) -> bool:
        """Whether stages may offer their tools to the model."""
        return self.qa.quantity_tool == "tool"

    @field_validator("stages")
    @classmethod
    def _known_stages(cls, value: dict[str, StageSettings]) -> dict[str, StageSettings]:
        """Raises ValueError for overrides of a stage that is not there: misspelt, they would do nothing."""
        unknown = sorted(value.keys() - set(STAGE_NAMES))
        if unknown:
            raise ValueError(f"stages among {', '.join(STAGE_NAMES)}")
        return value


@cache
def settings_model() -> type[Settings]:
    """`Settings` with the sections that metrics of other packages bring. Imports these packages.

    Raises SettingsError for a section whose name is taken.
    """
    found: dict[str, tuple[str, type[Section]]] = {}
    for metric, name, section in package_sections():
        taken = "Untold" if name in Settings.model_fields else found.get(name, (metric, section))[0]
        if name in Settings.model_fields or found.get(name, (metric, section))[1] is not section:
            raise SettingsError(f"metric {metric}: {taken} has settings {name}.* already; rename its section")
        found[name] = (metric, section)
    fields: dict[str, Any] = {name: (section, section()) for name, (_, section) in found.items()}
    return create_model("Settings", __base__=Settings, **fields) if fields else Settings


@dataclass(frozen=True)
class Decoding:
    """What a stage sends with every request, None is not sent, and its salt, which never is.

    `model` None is an embedded one not yet named.
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
    """The decoding of a stage: `stages.<stage>.*` over `llm.*`. Raises `SettingsError` for an unknown stage.

    A stage's null is a value: with `llm.temperature` 0 and null for one stage, that stage sends none.
    """
    own = _of_stage(settings, stage)
    names = ("model", "api", "structured", "temperature", "top_p", "max_tokens")
    values = {name: getattr(own if name in own.model_fields_set else settings.llm, name) for name in names}
    if values["max_tokens"] == AUTO:
        values["max_tokens"] = STAGES[stage].max_tokens
    return Decoding(**values, extra_body=_extra_body(settings.llm, own), salt=settings.llm.salt)


def api_for(settings: Settings, stage: str) -> Api:
    """The API that a stage is asked by; raises as `decoding_for`, and loads no stage."""
    own = _of_stage(settings, stage)
    return own.api if own.api is not None else settings.llm.api


def backend_for(settings: Settings, stage: str) -> Backend:
    """Return what carries out the requests of a stage. Lookups have endpoints of their own, and none of batches."""
    if stage in LOOKUPS:
        return settings.llm.backend if settings.llm.uses_spool else "process"
    return _of_stage(settings, stage).backend or settings.llm.backend


def _of_stage(settings: Settings, stage: str) -> StageSettings:
    if stage not in STAGE_NAMES:
        raise SettingsError(f"stages.{stage}: no such stage; known are {', '.join(STAGE_NAMES)}")
    return settings.stages.get(stage, StageSettings())


def prices_for(settings: Settings, stage: str, backend: Backend | None = None) -> Prices:
    """What the calls of a stage cost at most: `stages.<stage>.price_per_million_*` over `llm.price_per_million_*`, by
    the dearest of several endpoints; lookups have prices of their own.

    The one place where a stage gets its prices, for whoever plans, asks, shows and books.
    """
    if stage == "embed_text":
        return Prices(prompt=settings.embeddings.price_per_million_tokens)
    if stage == "web_search":
        return Prices(thousand_calls=settings.search.price_per_thousand_requests)
    # What runs within tasks has no tokens, and costs nothing
    if stage in LOOKUPS:
        return Prices(prompt=settings.classifier.price_per_million_tokens)
    share = settings.batch.discount if (backend or backend_for(settings, stage)) == "batch" else 1.0
    return dearest([prices_at(one, settings, stage) for one in settings.llm.each]).times(share)


def prices_at(llm: LlmSettings, settings: Settings, stage: str) -> Prices:
    """What the calls of a stage cost at one endpoint of the language model; the stage's own prices hold at each."""
    own = _of_stage(settings, stage)
    return Prices(*(getattr(own if name in own.model_fields_set else llm, name) for name in PRICES))


def _extra_body(llm: LlmSettings, stage: StageSettings) -> dict[str, Any]:
    """The fields that a stage adds to its requests, its own over those of all."""
    if "extra_body" not in stage.model_fields_set:
        return dict(llm.extra_body)
    return {} if stage.extra_body is None else merge_patch(llm.extra_body, stage.extra_body)


def result_settings(settings: Settings, stages: Iterable[str] = STAGE_NAMES) -> dict[str, Any]:
    """The settings that change results, as JSON values: what an output belongs to, beside its input and templates.

    `stages` narrows the decoding to the stages that a run asks. Limits, prices, budgets, retries, addresses, keys,
    stores, Spark and Ray are left out (`NO_RESULT`, and `NO_RESULT` of sections).
    """
    decoding = {stage: vars(decoding_for(settings, stage)) for stage in sorted(stages)}
    within = {name: set(section.NO_RESULT) for name, section in settings if isinstance(section, Section)}
    left_out = {name: keys for name, keys in within.items() if keys} | dict.fromkeys(NO_RESULT, True)
    found = {"stages": decoding, **settings.model_dump(mode="json", exclude=left_out)}
    if settings.llm.repeats > 1:
        found["llm"] = settings.llm.model_dump(include={"repeats", "repeated_share"})
    return found
