"""Define the sections of the settings: endpoints, batches, budgets, storage, engines, nightly runs and retrieval."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from untold.jobs.settings.fields import (
    Address,
    Amount,
    ApiKeyEnv,
    Concurrency,
    Count,
    ExtraBody,
    Natural,
    PathText,
    Positive,
    Probability,
    RequestRate,
    Section,
    Share,
    StorageOptions,
    Text,
    TokenPrice,
    TokenRate,
    VariableName,
    allows,
    merge_patch,
    setting,
    without_nulls,
)
from untold.udfs.schemes import environment_of

# The HTTP client sets these headers
_OWN_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "content-type", "host"})
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = "text, or {env: NAME} for the value of an environment variable"


def _check_sent(value: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError for a name or a value that spans lines. The error never shows a value."""
    texts = [*value, *(one for one in value.values() if isinstance(one, str))]
    if not all(text.isprintable() and text for text in texts):
        raise ValueError(f"a mapping of names to {_VALUE}, each on one line")
    if any(isinstance(one, dict) and one.keys() != {"env"} for one in value.values()):
        raise ValueError(f"a mapping of names to {_VALUE}")
    return value


def _check_headers(value: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError for a header that the client sets, and for a name or a value that HTTP does not allow."""
    if own := sorted(name for name in value if name.lower() in _OWN_HEADERS):
        raise ValueError(f"a mapping without {', '.join(own)}, which Untold sends itself")
    if not all(_HEADER.fullmatch(name) and (not isinstance(one, str) or one.isascii()) for name, one in value.items()):
        raise ValueError("a mapping of names of HTTP headers to ASCII text")
    return value


Sent = Annotated[
    dict[str, str | int | dict[Literal["env"], VariableName]],
    BeforeValidator(without_nulls),
    AfterValidator(_check_sent),
    allows(f"a mapping of names to {_VALUE}", "object"),
]
Headers = Annotated[Sent, AfterValidator(_check_headers)]


class SetFieldsSection(Section):
    """Base class of the sections that override others. It serialises only the fields that the user set.

    Null and unset are therefore different after a round trip through JSON. `model_fields_set` has the set fields.
    """

    @model_serializer(mode="wrap")
    def _set_fields(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Serialise only the fields that were set."""
        return {name: value for name, value in serialise(self).items() if name in self.model_fields_set}


Protocol = Literal["chat", "messages"]


class SendingSettings(Section):
    """Headers and query parameters of every request. They are not part of a request's id."""

    extra_headers: Headers = setting({}, "Headers of every request; the values are not shown")
    extra_query: Sent = setting({}, "Query parameters of every request, such as api-version; the values are not shown")


class EndpointSettings(SetFieldsSection, SendingSettings):
    """One endpoint of `llm.endpoints`. An unset field follows `llm.*`. A null is no limit, no key or no price."""

    base_url: Address
    model: Text | None = None
    api_key_env: VariableName | None = None
    api_key_command: Text | None = None
    protocol: Protocol = "chat"
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    max_concurrency: Count | None = None
    price_per_million_prompt_tokens: Amount | None = None
    price_per_million_completion_tokens: Amount | None = None
    weight: Positive = 1.0

    def over(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that this endpoint sets or merges into `given`, the settings `llm.*`."""
        merged = {name: {**given[name], **getattr(self, name)} for name in ("extra_headers", "extra_query")}
        own = {name: getattr(self, name) for name in self.model_fields_set - {"weight", *merged}}
        return own | merged | {name: getattr(self, name) or given[name] for name in ("model", "max_concurrency")}


def _check_distinct(value: list[EndpointSettings]) -> list[EndpointSettings]:
    """Raise ValueError if two endpoints are the same. Two accounts or two routes of one address are two endpoints."""
    distinct = {
        (
            *(one.base_url, one.model, one.api_key_env, one.api_key_command),
            json.dumps([one.extra_headers, one.extra_query], sort_keys=True),
        )
        for one in value
    }
    if len(distinct) < len(value):
        raise ValueError("a list of endpoints that differ in base_url, model, api_key_env, headers or query parameters")
    return value


Endpoints = Annotated[
    list[EndpointSettings],
    AfterValidator(_check_distinct),
    allows("a list of endpoints, each a mapping with base_url", "array"),
]


def _check_panel(value: list[EndpointSettings]) -> list[EndpointSettings]:
    """Raise ValueError for one judge, and for two judges of one model, which would have the same requests."""
    models = {one.model for one in value} - {None}
    if len(value) == 1 or len(models) < len(value):
        raise ValueError("a list of two or more judges with different models")
    return value


Judges = Annotated[
    list[EndpointSettings],
    AfterValidator(_check_panel),
    allows("a list of judges, each a mapping with model, and endpoint or base_url", "array"),
]
# A backend carries out the requests of a run. A stage can choose only a StageBackend
Backend = Literal["process", "ray-job", "spool", "batch"]
StageBackend = Literal["process", "batch"]
BatchFormat = Literal["auto", "openai", "azure", "mistral", "together", "groq", "anthropic", "files"]


class BatchSettings(Section):
    """Batches of requests, for the backend batch. No field changes a result."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset(
        {"requests", "bytes", "longest_poll_seconds", "settle_seconds", "keep_files"}
    )

    format: BatchFormat = setting(
        "auto", "Format of the batches; auto depends on the host, files is for vLLM's run-batch"
    )
    folder: PathText | None = setting(None, "Folder of the requests and results of batch.format=files")
    requests: Count = setting(50_000, "Maximum requests of a batch")
    bytes: Count = setting(200_000_000, "Maximum bytes of a batch file")
    discount: Share = setting(0.5, "Price of a batch, as a share of the price of its calls")
    queue: Count | None = setting(None, "Maximum prompt tokens in unfinished batches; null is the endpoint's limit")
    poll_seconds: Positive = setting(30.0, "Seconds until the first poll of the batches")
    longest_poll_seconds: Positive = setting(600.0, "Maximum seconds between two polls; each wait grows by half")
    settle_seconds: Amount = setting(60.0, "Seconds until a batch without a response to its creation is created again")
    keep_files: bool = setting(False, "Keep the files of requests and results at the endpoint after reading")


class BudgetSettings(Section):
    """Limits of one start, retries included; null is no limit.

    At a limit no request is sent, and the run ends resumable (docs/contract.md, "Exit codes").
    """

    max_calls: Natural | None = setting(None, "Maximum HTTP requests of a start")
    max_tokens: Natural | None = setting(None, "Maximum prompt and completion tokens of a start")
    max_cost: Amount | None = setting(None, "Maximum cost of a start, in the currency of the prices")


class LakehouseSettings(Section):
    """Location of the lakehouse tables that `--output-format delta` and `iceberg` write."""

    path: PathText | None = setting(None, "Folder of Delta tables, path or URI: PATH/scores, ...")
    catalog: Text | None = setting(None, "Name of an Iceberg catalog in .pyiceberg.yaml or PYICEBERG_CATALOG__*")
    namespace: Text | None = setting(None, "Namespace of the Iceberg tables")


class StorageSettings(Section):
    """Options of file systems. No field changes a result."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"packages", "options"})

    endpoint: Address | None = setting(None, "Address of an S3-compatible store; null is AWS_ENDPOINT_URL or AWS")
    region: Text | None = setting(None, "Region of S3; null is AWS_REGION, or the bucket's region if that is not set")
    path_style: bool | None = setting(None, "Put the bucket into the path of S3 URLs; null is true with an endpoint")
    anonymous: bool = setting(False, "Read s3 and gs without credentials")
    packages: Literal["auto"] | list[Text] = setting("auto", "Maven packages for object stores in Spark; [] is none")
    options: StorageOptions = setting({}, "pyarrow's options of s3, gs and abfss; NAME_env names the variable of NAME")

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that pass these options to other processes."""
        return environment_of(self.model_dump(exclude_defaults=True, exclude={"packages"}))


class SparkSettings(Section):
    """The Spark session. No field changes a result."""

    master: Text | None = setting("local[*]", "Spark master; null leaves it to the launcher")
    conf: dict[str, str] = setting({}, "Spark configuration over conf/spark-defaults.conf, by Spark's own names")
    class_archive: bool = setting(True, "Keep Spark's classes in the user's cache (190 MB) for faster starts")


class RaySettings(Section):
    """The Ray cluster. A limit holds within one cluster (docs/contract.md, "Limits")."""

    address: Text | None = setting(None, "Address of a Ray cluster; null starts a local one")
    runtime_env: dict[str, Any] = setting({}, "Ray's runtime_env of the actors, such as the output of `untold package`")


class NightlySettings(Section):
    """Options of `untold nightly`."""

    budget_month: Amount | None = setting(None, "Maximum cost of all starts in a calendar month (UTC)")
    sentinel: PathText | None = setting(None, "File of samples to score each night, to detect a change of judge")


class TrendSettings(Section):
    """Options of `untold trend`."""

    fall: Share = setting(0.05, "Minimum fall of a mean or an answer rate for which `trend --alert` exits with 4")


class SourcesSettings(Section):
    """The reliability of sources: methods, section 20."""

    weights: dict[Text, Amount] = setting(
        {}, "Weight by id or kind of a context, such as {wiki: 1, forum: 0.3}; other sources have the weight 1"
    )


class RepeatsSettings(Section):
    """Options of the scorings of `llm.repeats`."""

    shuffle_contexts: bool = setting(
        False, "Show the contexts of each repeated scoring in another order, in place of another llm.salt"
    )


class NotifySettings(Section):
    """Notifications: `score`, `nightly` and `trend --alert` post JSON at their end, without any text of samples."""

    url: Address | None = setting(None, "Address for a JSON message at the end of a run, failed runs included")
    key_env: VariableName | None = setting(None, "Name of the environment variable with the key of the HMAC SHA-256")


# Address and limits of an endpoint, which do not change a result
_OF_ENDPOINTS = frozenset({"base_url", "api_key_env", "requests_per_minute", "max_concurrency"})
BRAVE_URL = "https://api.search.brave.com/res/v1/web/search"


class EmbeddingSettings(Section):
    """The embedding model: an endpoint if `base_url` is set, otherwise local files that Spark's tasks run.

    A vector's id contains model, extra_body and the prefixes, and for a local model also pooling and max_tokens.
    """

    NO_RESULT: ClassVar[frozenset[str]] = _OF_ENDPOINTS | {"batch", "tokens_per_minute", "price_per_million_tokens"}
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"batch", "pooling", "max_tokens"})

    base_url: Address | None = setting(None, "OpenAI-compatible API for embeddings, with /v1; null runs a local model")
    api_key_env: ApiKeyEnv = None
    model: Text = setting(
        "minilm", "Model name at the endpoint; for a local model, minilm or a folder with model.onnx and tokenizer.json"
    )
    extra_body: ExtraBody = setting({}, "Fields merged into every request for embeddings, such as dimensions")
    # Services accept at most 2,048. A failed request repeats its whole batch
    batch: Annotated[int, Field(ge=1, le=2048)] = setting(64, "Maximum texts of one HTTP request")
    query_prefix: str = setting("", "Prefix of a query's text")
    document_prefix: str = setting("", "Prefix of a document's text")
    pooling: Literal["mean", "cls"] = setting("mean", "Vector of a local model: of all tokens, or of the first token")
    max_tokens: Annotated[int, Field(ge=3)] = setting(256, "Maximum tokens of a text for a local model")
    requests_per_minute: RequestRate = None
    tokens_per_minute: TokenRate = None
    max_concurrency: Concurrency = 16
    price_per_million_tokens: TokenPrice = None

    @field_validator("extra_body")
    @classmethod
    def _check_extra_body(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Remove the fields with a null value. Raise ValueError for a field that only Untold sends."""
        own = sorted({"input", "encoding_format"} & value.keys())
        if own:
            raise ValueError(f"a mapping without {', '.join(own)}, which Untold sends itself")
        return merge_patch({}, value)


class SearchSettings(Section):
    """The web search. The id of a search contains `model` and `edition`."""

    NO_RESULT: ClassVar[frozenset[str]] = _OF_ENDPOINTS | {"price_per_thousand_requests"}
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"edition"})

    base_url: Address = setting(BRAVE_URL, "Address of the web search, with its path")
    api_key_env: ApiKeyEnv = "BRAVE_API_KEY"
    model: Literal["brave"] = setting("brave", "API of the web search; brave is the only one")
    edition: Text | None = setting(None, "Any text; a new text repeats the searches of an older one")
    requests_per_minute: RequestRate = 60.0
    max_concurrency: Concurrency = 8
    price_per_thousand_requests: Amount | None = setting(None, "Price of a thousand searches")


class ClassifierSettings(Section):
    """Requests to the server that classifies pairs, for nli.classifier_url and grounding.verifier.

    The id of a classification contains model, labels and separator.
    """

    NO_RESULT: ClassVar[frozenset[str]] = frozenset(
        {"api_key_env", "model", "labels", "separator", "batch", "requests_per_minute", "tokens_per_minute"}
        | {"max_concurrency", "price_per_million_tokens"}
    )
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"batch"})

    api_key_env: ApiKeyEnv = None
    model: Text | None = setting(None, "Model name at the server")
    # Not strict: YAML has lists, but no tuples
    labels: tuple[Text, ...] | None = setting(
        None,
        "Names of the model's classes in its order, such as contradiction, neutral, entailment; required "
        "for /classify, and for /predict if it names them LABEL_0, ...",
        strict=False,
        min_length=1,
    )
    separator: str | None = setting(
        None,
        "Text between premise and hypothesis for /classify, which accepts single texts: </s></s> for "
        "models like RoBERTa, [SEP] for models like BERT",
    )
    # The default limit of text-embeddings-inference
    batch: Annotated[int, Field(ge=1, le=2048)] = setting(32, "Maximum pairs of one HTTP request")
    requests_per_minute: RequestRate = None
    tokens_per_minute: TokenRate = None
    max_concurrency: Concurrency = 16
    price_per_million_tokens: TokenPrice = None


class GroundingSettings(Section):
    """The verifier that decides if a text entails a claim: methods, section 10."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"threshold"})

    verifier: Text = setting(
        "relation",
        "relation is the stage classify_relation; judge is the classifier of the package; otherwise a folder with "
        "model.onnx, tokenizer.json and config.json of a classifier, "
        "or the address of a server that classifies pairs (nli.classifier_url)",
    )
    threshold: Probability = setting(0.5, "Minimum probability of entailment at which a classifier grounds a claim")


class IndexSettings(Section):
    """Chunks and vectors of an index, and the effort of a search: methods, section 10.

    chunk_words, chunk_overlap, codec and nprobe change the hits. chunks_per_shard does not.
    """

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"chunks_per_shard"})
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"chunks_per_shard", "exact_chunks", "codec", "nprobe"})

    chunk_words: Count = setting(128, "Maximum words of a chunk")
    chunk_overlap: Natural = setting(
        32,
        "Words that a chunk shares with the next one",
        json_schema_extra={"allowed": "an integer >= 0 and less than index.chunk_words"},
    )
    chunks_per_shard: Count = setting(1_000_000, "Maximum chunks of a shard, which is one file of the index")
    exact_chunks: Count = setting(50_000, "Maximum chunks of an exact search; above it the search uses lists")
    codec: Literal["flat", "fp16", "sq8"] = setting("flat", "Encoding of vectors: full, half or quarter size")
    nprobe: Count = setting(256, "Inverted lists that a search visits")

    @field_validator("chunk_overlap")
    @classmethod
    def _less_than_words(cls, value: int, info: ValidationInfo) -> int:
        """Raise ValueError for an overlap that never ends a chunk."""
        if value >= info.data.get("chunk_words", value + 1):
            raise ValueError("an integer >= 0 and less than index.chunk_words")
        return value


class KnowledgeSettings(Section):
    """The source of facts for metrics: methods, section 10.

    An output's identity contains the digest of the index, and not its path.
    """

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"index"})

    source: Literal["index", "web", "contexts"] | None = setting(
        None, "Source of facts; null is index if knowledge.index is set, otherwise contexts"
    )
    index: PathText | None = setting(None, "Path or URI of the index, for knowledge.source=index")
    retriever: Literal["dense", "bm25", "hybrid"] = setting("dense", "Search by vectors, by words, or by both")
    top_k: Count = setting(10, "Chunks that a query retrieves")

    @model_validator(mode="before")
    @classmethod
    def _known_source(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Replace a null source with its default, because the source is part of an output's identity."""
        assumed = "contexts" if given.get("index") is None else "index"
        return given | {"source": assumed if given.get("source") is None else given["source"]}
