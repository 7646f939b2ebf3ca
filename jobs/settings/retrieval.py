"""Settings of what facts are looked up with: embeddings, web search, and how claims are held against what is found.

Each endpoint has an address, a key, limits and prices of its own; times, attempts and writing are those of `llm.*`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from untold.jobs.settings import fields

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
