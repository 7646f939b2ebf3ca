"""Sections of the settings: endpoints, batches, budgets, storage, engines, nightly runs and retrieval."""

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

from untold.jobs.settings import fields
from untold.udfs.schemes import environment_of

# The client sends these itself: it could not read what comes of others
_OWN_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "content-type", "host"})
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = "text, or {env: NAME} for the value of an environment variable"


def _without_nulls(value: object) -> object:
    """A null removes what a layer below set."""
    return fields.merge_patch({}, value) if isinstance(value, Mapping) else value


def _sendable(value: dict[str, Any]) -> dict[str, Any]:
    """Names and values that fit into one line. Raises ValueError, which never names a value."""
    texts = [*value, *(one for one in value.values() if isinstance(one, str))]
    if not all(text.isprintable() and text for text in texts):
        raise ValueError(f"a mapping of names to {_VALUE}, each on one line")
    if any(isinstance(one, dict) and one.keys() != {"env"} for one in value.values()):
        raise ValueError(f"a mapping of names to {_VALUE}")
    return value


def _headers(value: dict[str, Any]) -> dict[str, Any]:
    """Headers that may be sent. Raises ValueError for others."""
    if own := sorted(name for name in value if name.lower() in _OWN_HEADERS):
        raise ValueError(f"a mapping without {', '.join(own)}, which Untold sends itself")
    if not all(_HEADER.fullmatch(name) and (not isinstance(one, str) or one.isascii()) for name, one in value.items()):
        raise ValueError("a mapping of names of HTTP headers to ASCII text")
    return value


Sent = Annotated[
    dict[str, str | int | dict[Literal["env"], fields.VariableName]],
    BeforeValidator(_without_nulls),
    AfterValidator(_sendable),
]
Headers = Annotated[Sent, AfterValidator(_headers)]
A_SENT: Any = {"allowed": f"a mapping of names to {_VALUE}"}


class SendingSettings(fields.Section):
    """What is sent with every request beside its body. It is no part of a request's id."""

    extra_headers: Headers = Field(
        default_factory=dict, description="Headers of every request; values are not shown", json_schema_extra=A_SENT
    )
    extra_query: Sent = Field(
        default_factory=dict,
        description="Parameters of every request's address, such as api-version; values are not shown",
        json_schema_extra=A_SENT,
    )


class EndpointSettings(SendingSettings):
    """One of several endpoints. What it leaves out is as in `llm.*`; an explicit null is no limit, key or price."""

    base_url: fields.Address
    model: fields.Text | None = None
    api_key_env: fields.VariableName | None = None
    requests_per_minute: fields.Positive | None = None
    tokens_per_minute: fields.Positive | None = None
    max_concurrency: fields.Count | None = None
    price_per_million_prompt_tokens: fields.Amount | None = None
    price_per_million_completion_tokens: fields.Amount | None = None
    weight: fields.Positive = 1.0

    @property
    def identity(self) -> tuple[str | None, ...]:
        """What tells it from another one: two accounts of an address, or two routes of a gateway, are two endpoints."""
        sent = json.dumps([self.extra_headers, self.extra_query], sort_keys=True)
        return self.base_url, self.model, self.api_key_env, sent

    def over(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What it sets, and what it changes of `given`, the settings `llm.*`."""
        merged = {name: {**given[name], **getattr(self, name)} for name in ("extra_headers", "extra_query")}
        own = {name: getattr(self, name) for name in self.model_fields_set - {"weight", *merged}}
        return own | merged | {name: getattr(self, name) or given[name] for name in ("model", "max_concurrency")}

    @model_serializer(mode="wrap")
    def _set_fields(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only what was set, so that unset and null stay apart through JSON."""
        return {name: value for name, value in serialise(self).items() if name in self.model_fields_set}


def _distinct(value: list[EndpointSettings]) -> list[EndpointSettings]:
    """Raises ValueError for one endpoint that is named twice."""
    if len({one.identity for one in value}) < len(value):
        raise ValueError("a list of endpoints that differ in base_url, model, api_key_env or what is sent beside")
    return value


Endpoints = Annotated[list[EndpointSettings], AfterValidator(_distinct)]
ENDPOINTS: Any = {"allowed": "a list of endpoints, each a mapping with base_url"}


# What carries out the requests of a run
Backend = Literal["process", "ray-job", "spool", "batch"]
# Those that a stage may choose for itself
StageBackend = Literal["process", "batch"]
BatchFormat = Literal["auto", "openai", "azure", "mistral", "together", "groq", "anthropic", "files"]


class BatchSettings(fields.Section):
    """Batches of requests, if `llm.backend` or a stage asks for them. None of it changes a result."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset(
        {"requests", "bytes", "longest_poll_seconds", "settle_seconds", "keep_files"}
    )

    format: BatchFormat = Field(
        default="auto",
        description="Form of the endpoint's batches; auto is by the host of its address, and openai for hosts that are "
        "not known; files are for vLLM's run-batch",
    )
    folder: fields.PathText | None = Field(
        default=None, description="Folder of the requests and results of batch.format=files"
    )
    requests: fields.Count = Field(default=50_000, description="Maximum requests of a batch")
    bytes: fields.Count = Field(default=200_000_000, description="Maximum bytes of a batch's file")
    discount: fields.Share = Field(default=0.5, description="What a batch costs, as a share of the price of its calls")
    queue: fields.Count | None = Field(
        default=None, description="Maximum prompt tokens in batches that are not done; null is what the endpoint says"
    )
    poll_seconds: fields.Positive = Field(
        default=30.0, description="Seconds before batches are looked at again, at first"
    )
    longest_poll_seconds: fields.Positive = Field(
        default=600.0, description="Longest wait between two looks, to which each wait grows by half"
    )
    settle_seconds: fields.Amount = Field(
        default=60.0,
        description="Seconds for which a batch whose creation was not answered is looked for before it is created anew",
    )
    keep_files: bool = Field(
        default=False, description="Whether files of requests and results stay at the endpoint once they are read"
    )


class BudgetSettings(fields.Section):
    """What one start may spend, retries included; None is without end.

    Once it is used up nothing more is asked, and the run ends resumable (docs/contract.md, "Exit codes").
    """

    max_calls: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Maximum HTTP requests of a start")
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Maximum prompt and completion tokens of a start"
    )
    max_cost: fields.Amount | None = Field(
        default=None, description="Maximum cost of a start, in the currency of the prices"
    )


class LakehouseSettings(fields.Section):
    """Where `--output-format delta` and `iceberg` have the tables of all dates."""

    path: fields.PathText | None = Field(
        default=None, description="Folder of Delta tables, path or URI: PATH/scores, ..."
    )
    catalog: fields.Text | None = Field(
        default=None, description="Name of an Iceberg catalog that .pyiceberg.yaml or PYICEBERG_CATALOG__* configures"
    )
    namespace: fields.Text | None = Field(default=None, description="Namespace of the Iceberg tables")


class StorageSettings(fields.Section):
    """How file systems are opened. None of it changes a result, so that it may differ from start to start."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"packages", "options"})

    endpoint: fields.Address | None = Field(
        default=None,
        description="Address of an S3-compatible store; null is AWS, or what AWS_ENDPOINT_URL says",
        json_schema_extra=fields.AN_ADDRESS,
    )
    region: fields.Text | None = Field(
        default=None, description="Region of S3; null is that of AWS_REGION, or of the bucket"
    )
    path_style: bool | None = Field(
        default=None, description="Whether S3 has the bucket in the path; null says yes where there is an endpoint"
    )
    anonymous: bool = Field(default=False, description="Whether s3 and gs are read without credentials")
    packages: Literal["auto"] | list[fields.Text] = Field(
        default="auto",
        description="Maven coordinates of what Spark needs for object stores; auto fits the Spark in use, [] is none",
    )
    options: fields.StorageOptions = Field(
        default_factory=dict,
        description="pyarrow's options of s3, gs and abfss; NAME_env names the variable that holds NAME",
    )

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which other processes open file systems so."""
        return environment_of(self.model_dump(exclude_defaults=True, exclude={"packages"}))


class SparkSettings(fields.Section):
    """The Spark session. None of it changes a result, so that it may differ from start to start."""

    master: fields.Text | None = Field(default="local[*]", description="Spark master; null leaves it to the launcher")
    conf: dict[str, str] = Field(
        default_factory=dict, description="Spark configuration over conf/spark-defaults.conf, by Spark's own names"
    )
    class_archive: bool = Field(
        default=True,
        description="Whether small jobs leave Spark's classes in the user's cache (190 MB), for all later starts",
    )


class RaySettings(fields.Section):
    """The Ray cluster. Limits hold within one: two local ones share nothing (docs/contract.md, "Limits")."""

    address: fields.Text | None = Field(default=None, description="Address of a Ray cluster; null starts a local one")
    runtime_env: dict[str, Any] = Field(
        default_factory=dict, description="Ray's runtime_env of the actors, such as `untold package` prints it"
    )


class NightlySettings(fields.Section):
    """What `untold nightly` does besides what `untold score` does."""

    budget_month: fields.Amount | None = Field(
        default=None,
        description="Maximum cost of all starts of a calendar month (UTC), in the currency of the prices",
    )
    sentinel: fields.PathText | None = Field(
        default=None,
        description="File of answers that each night scores anew, so that `untold trend` sees when the judge moves",
    )


class TrendSettings(fields.Section):
    """What `untold trend` takes for a fall."""

    fall: fields.Share = Field(
        default=0.05,
        description="By how much a system's mean or answer rate falls beyond chance, so that `untold trend --alert` "
        "ends with 4",
    )


class NotifySettings(fields.Section):
    """Who is told how a command ended: `score`, `nightly` and `trend --alert` post JSON without any text of samples."""

    url: fields.Address | None = Field(
        default=None,
        description="Address that gets a JSON message when a run ended or failed",
        json_schema_extra=fields.AN_ADDRESS,
    )
    key_env: fields.VariableName | None = Field(
        default=None,
        description="Name of the environment variable with the key that signs the message (HMAC SHA-256)",
        json_schema_extra=fields.A_VARIABLE,
    )


# Where and how fast an endpoint is asked; what is left out of an output's identity
_OF_THE_WAY = frozenset({"base_url", "api_key_env", "requests_per_minute", "max_concurrency"})
BRAVE_URL = "https://api.search.brave.com/res/v1/web/search"


class EmbeddingSettings(fields.Section):
    """The embedding model: of an endpoint where `base_url` is set, else of files, run within Spark's tasks.

    model, extra_body, the prefixes and, of a local model, pooling and max_tokens are part of a vector's id.
    """

    NO_RESULT: ClassVar[frozenset[str]] = _OF_THE_WAY | {"batch", "tokens_per_minute", "price_per_million_tokens"}
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"batch", "pooling", "max_tokens"})

    base_url: fields.Address | None = Field(
        default=None,
        description="Address of an OpenAI-compatible API for embeddings, /v1 included; null runs a local model",
        json_schema_extra=fields.AN_ADDRESS,
    )
    api_key_env: fields.VariableName | None = Field(
        default=None,
        description="Name of the environment variable that holds the key of embeddings.base_url; null sends none",
        json_schema_extra=fields.A_VARIABLE,
    )
    model: fields.Text = Field(
        default="minilm",
        description="Model name as the endpoint knows it; without one, minilm or a folder with model.onnx and "
        "tokenizer.json",
    )
    extra_body: fields.ExtraBody = Field(
        default_factory=dict, description="Fields merged into every request for embeddings, such as dimensions"
    )
    # The largest that services of the kind take is 2,048; a batch is also what one fault asks again
    batch: Annotated[int, Field(ge=1, le=2048)] = Field(default=64, description="Maximum texts of one HTTP request")
    query_prefix: str = Field(default="", description="Prefix of a query's text")
    document_prefix: str = Field(default="", description="Prefix of a document's text")
    pooling: Literal["mean", "cls"] = Field(
        default="mean", description="A local model's vector: the mean over its tokens, or that of the first"
    )
    max_tokens: Annotated[int, Field(ge=3)] = Field(
        default=256, description="Tokens of a text that a local model reads; the rest is cut off"
    )
    requests_per_minute: fields.Positive | None = Field(
        default=None, description="Maximum HTTP requests for embeddings a minute; null is no limit"
    )
    tokens_per_minute: fields.Positive | None = Field(
        default=None, description="Maximum tokens of embeddings a minute; null is no limit"
    )
    max_concurrency: fields.Count = Field(default=16, description="Maximum concurrent HTTP requests for embeddings")
    price_per_million_tokens: fields.Amount | None = Field(
        default=None, description="Price of a million tokens embedded, in the currency of budget.max_cost"
    )

    @field_validator("extra_body")
    @classmethod
    def _without_nulls(cls, value: dict[str, Any]) -> dict[str, Any]:
        """A null says that a field is not sent, which it is not. Raises ValueError for what only we may send."""
        own = sorted({"input", "encoding_format"} & value.keys())
        if own:
            raise ValueError(f"a mapping without {', '.join(own)}, which Untold sends itself")
        return fields.merge_patch({}, value)


class SearchSettings(fields.Section):
    """The web search. `model` and `edition` are part of a search's id; all else may differ from start to start."""

    NO_RESULT: ClassVar[frozenset[str]] = _OF_THE_WAY | {"price_per_thousand_requests"}
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"edition"})

    base_url: fields.Address = Field(
        default=BRAVE_URL,
        description="Address of the web search, path included",
        json_schema_extra={"allowed": "an http:// or https:// address"},
    )
    api_key_env: fields.VariableName | None = Field(
        default="BRAVE_API_KEY",
        description="Name of the environment variable that holds the key of search.base_url; null sends none",
        json_schema_extra=fields.A_VARIABLE,
    )
    model: Literal["brave"] = Field(default="brave", description="API of the web search; brave is the only one")
    edition: fields.Text | None = Field(
        default=None, description="Any text; another one searches anew what was searched under the last"
    )
    requests_per_minute: fields.Positive | None = Field(
        default=60.0, description="Maximum web searches a minute; null is no limit"
    )
    max_concurrency: fields.Count = Field(default=8, description="Maximum concurrent web searches")
    price_per_thousand_requests: fields.Amount | None = Field(
        default=None, description="Price of a thousand searches, in the currency of budget.max_cost"
    )


class ClassifierSettings(fields.Section):
    """How a server that classifies pairs is asked, where nli.classifier_url or grounding.verifier is its address.

    Its answers depend on model, labels and separator, which are part of their ids.
    """

    NO_RESULT: ClassVar[frozenset[str]] = frozenset(
        {"api_key_env", "model", "labels", "separator", "batch", "requests_per_minute", "tokens_per_minute"}
        | {"max_concurrency", "price_per_million_tokens"}
    )
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"batch"})

    api_key_env: fields.VariableName | None = Field(
        default=None,
        description="Name of the environment variable that holds the key of nli.classifier_url; null sends none",
        json_schema_extra=fields.A_VARIABLE,
    )
    model: fields.Text | None = Field(default=None, description="Model name as the endpoint knows it")
    labels: tuple[fields.Text, ...] | None = Field(
        default=None,
        # Not strict: YAML has lists and no tuples
        strict=False,
        min_length=1,
        description="Names of the model's classes in its order, such as contradiction, neutral, entailment; /classify "
        "needs them, /predict where it names them LABEL_0, ...",
    )
    separator: str | None = Field(
        default=None,
        description="Text between premise and hypothesis for /classify, which takes single texts: </s></s> for models "
        "like RoBERTa, [SEP] for those like BERT",
    )
    # What text-embeddings-inference takes unless it is told otherwise
    batch: Annotated[int, Field(ge=1, le=2048)] = Field(default=32, description="Maximum pairs of one HTTP request")
    requests_per_minute: fields.Positive | None = Field(
        default=None, description="Maximum HTTP requests for classes a minute; null is no limit"
    )
    tokens_per_minute: fields.Positive | None = Field(
        default=None, description="Maximum tokens of classified pairs a minute; null is no limit"
    )
    max_concurrency: fields.Count = Field(default=16, description="Maximum concurrent HTTP requests for classes")
    price_per_million_tokens: fields.Amount | None = Field(
        default=None, description="Price of a million tokens classified, in the currency of budget.max_cost"
    )


class GroundingSettings(fields.Section):
    """What says whether a text entails a claim: methods, section 10."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"threshold"})

    verifier: fields.Text = Field(
        default="relation",
        description="relation asks the stage classify_relation; else a folder with model.onnx, tokenizer.json and "
        "config.json of a classifier, run within tasks, or the address of a server that classifies pairs "
        "(nli.classifier_url)",
    )
    threshold: fields.Probability = Field(
        default=0.5, description="Minimum probability of entailment at which a classifier grounds a claim"
    )


class IndexSettings(fields.Section):
    """How a corpus is cut, embedded and spread over shards, and how far a search looks: methods, section 10.

    chunk_words, chunk_overlap, codec and nprobe change what is found. The number of shards
    does not.
    """

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"chunks_per_shard", "cache"})
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"chunks_per_shard", "exact_chunks", "codec", "nprobe", "cache"})

    chunk_words: fields.Count = Field(default=128, description="Maximum words of a chunk")
    chunk_overlap: Annotated[int, Field(ge=0)] = Field(
        default=32,
        description="Words that a chunk shares with the next one",
        json_schema_extra={"allowed": "an integer >= 0 and less than index.chunk_words"},
    )
    # 1.5 GB of vectors of 384 numbers: what one task builds in memory
    chunks_per_shard: fields.Count = Field(default=1_000_000, description="Maximum chunks of a shard")
    exact_chunks: fields.Count = Field(
        default=50_000, description="Maximum chunks of an exact search; more are searched by inverted lists"
    )
    codec: Literal["flat", "fp16", "sq8"] = Field(
        default="flat", description="How vectors in lists are kept: as they are, in half, or in a quarter of the bytes"
    )
    nprobe: fields.Count = Field(default=256, description="Inverted lists that a search visits")
    cache: fields.Text | None = Field(
        default=None,
        description="Folder on each machine for copies of shards that lie on no local disk; null is one of the "
        "system's temporary folder",
    )

    @field_validator("chunk_overlap")
    @classmethod
    def _less_than_words(cls, value: int, info: ValidationInfo) -> int:
        """Raises ValueError for chunks that would never come to an end."""
        if value >= info.data.get("chunk_words", value + 1):
            raise ValueError("an integer >= 0 and less than index.chunk_words")
        return value


class KnowledgeSettings(fields.Section):
    """Where metrics look facts up: methods, section 10.

    The path of an index is no part of an output's identity; its digest is.
    """

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"index"})

    source: Literal["index", "web", "contexts"] | None = Field(
        default=None,
        description="Where facts are looked up: an index, the web, or the sample's own contexts; null is an index "
        "where knowledge.index names one, else the contexts",
    )
    index: fields.PathText | None = Field(
        default=None, description="Path or URI of the index, for knowledge.source index"
    )
    retriever: Literal["dense", "bm25", "hybrid"] = Field(
        default="dense", description="By vectors, by words, or by both rankings fused"
    )
    top_k: fields.Count = Field(default=10, description="Chunks that are looked up for a query")

    @model_validator(mode="before")
    @classmethod
    def _known_source(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The source is never null in what is made of these: it belongs to what an output is of."""
        assumed = "contexts" if given.get("index") is None else "index"
        return given | {"source": assumed if given.get("source") is None else given["source"]}
