"""Define the settings of the metrics of this package, and find the settings of other packages (`Metric.sections`).

All settings load this module, so it imports neither Spark nor a metric of this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from untold.jobs.settings.fields import Address, Count, PathText, Positive, Probability, Section

GROUP = "untold.metrics"
"""The entry points by which other packages add metrics."""

UnitType = Literal["Fact", "Claim", "Instruction", "Data Format", "Meta Statement", "Question", "Other"]

Cosine = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Distance = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
# With a beta above a thousand, ICAT equals S_coverage to six digits
Beta = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]


class E2eSettings(Section):
    """Options of the metric e2e: methods, section 4."""

    conflicts: bool = Field(
        default=False, description="List the conflicts of the contexts, and which of their sides the response conveys"
    )


class NliSettings(Section):
    """Options of the metric nli: methods, section 2. The files of a classifier count, and its path does not."""

    NO_RESULT: ClassVar[frozenset[str]] = frozenset(
        {"max_miss_rate", "classifier", "classifier_url", "classifier_gpus"}
    )
    ADVANCED: ClassVar[frozenset[str]] = frozenset(
        {"unit_types", "list_size", "filter_cosine", "classifier_threshold", "audit_share", "classifier_gpus"}
    )

    # Not strict: YAML has lists and no tuples
    unit_types: tuple[UnitType, ...] = Field(
        default=("Fact", "Claim"), strict=False, min_length=1, description="Unit types of atoms that are kept"
    )
    judgement: Literal["pairs", "lists"] = Field(
        default="pairs", description="One pair a request, or a premise with a list of hypotheses"
    )
    list_size: Count = Field(default=20, description="Maximum number of hypotheses of a list")
    skip_implied: bool = Field(default=False, description="Skip pairs that earlier relations imply; not with lists")
    max_pairs_per_sample: Count | None = Field(
        default=None, description="Maximum number of judged pairs of a sample; null judges all"
    )

    filter: Literal["none", "words", "vectors", "either"] = Field(
        default="none",
        description="Pairs that count as neutral without a request: no shared content word (words), a cosine below "
        "nli.filter_cosine (vectors), or one of the two (either)",
    )
    filter_cosine: Cosine = Field(default=0.3, description="Minimum cosine of a pair that is judged")
    classifier: PathText | None = Field(
        default=None,
        description="judge, the classifier of the package, or a folder with model.onnx, tokenizer.json and config.json "
        "of a classifier. It judges pairs within tasks, before the model",
    )
    classifier_url: Address | None = Field(
        default=None,
        description="Address of a server that classifies pairs, instead of nli.classifier. Its path ends in /classify "
        "or /score (vLLM) or /predict (text-embeddings-inference). classifier.* are the settings of its requests",
    )
    classifier_gpus: Positive | None = Field(
        default=None,
        description="GPUs of a Ray actor that runs the classifier of a folder, such as 1 or 0.5. llm.actors is the "
        "number of actors. Null runs the classifier on processors in Spark tasks",
    )
    classifier_threshold: Probability | None = Field(
        default=None,
        description="Minimum probability at which the relation of the classifier counts. The model judges the other "
        "pairs. Null sends no pair to the model",
    )
    audit_share: Probability = Field(
        default=0.01,
        description="Share of the filtered or classified pairs, chosen by a hash, that the model judges too",
    )
    weighted: bool = Field(
        default=False,
        description="Weigh statements by the relevance of their atoms: weighted_recall, recall@5 to "
        "recall@50, and the most relevant missing statements first",
    )
    max_miss_rate: Probability | None = Field(
        default=None,
        description="Maximum miss rate of filter and classifier, by the upper end of its interval; null for any",
    )

    @field_validator("skip_implied")
    @classmethod
    def _no_waves_of_lists(cls, value: bool, info: ValidationInfo) -> bool:
        """Raise ValueError for waves of lists, which need more requests than all lists at once."""
        if value and info.data.get("judgement") == "lists":
            raise ValueError("false with nli.judgement=lists, since waves would split lists into more requests")
        return value

    @field_validator("classifier_url")
    @classmethod
    def _one_classifier(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Raise ValueError for a second classifier."""
        if value is not None and info.data.get("classifier") is not None:
            raise ValueError("null with nli.classifier, whose place it takes")
        return value

    @field_validator("classifier_gpus")
    @classmethod
    def _as_ray_shares_them(cls, value: float | None, info: ValidationInfo) -> float | None:
        """Raise ValueError for a number of GPUs that Ray cannot reserve, and for a model on a server."""
        if value is not None and value > 1 and not value.is_integer():
            raise ValueError("a number <= 1, or a whole one")
        if value is not None and info.data.get("classifier_url") is not None:
            raise ValueError("null with nli.classifier_url, because the GPUs belong to its server")
        return value

    @field_validator("classifier_threshold")
    @classmethod
    def _of_a_classifier(cls, value: float | None, info: ValidationInfo) -> float | None:
        """Raise ValueError for a threshold without a classifier."""
        if value is not None and info.data.get("classifier") is None and info.data.get("classifier_url") is None:
            raise ValueError(
                "null without nli.classifier or nli.classifier_url, whose probabilities it is held against"
            )
        return value

    @field_validator("max_miss_rate")
    @classmethod
    def _of_audits(cls, value: float | None, info: ValidationInfo) -> float | None:
        """Raise ValueError for a maximum miss rate without audits."""
        if value is not None and info.data.get("audit_share") == 0:
            raise ValueError("null with nli.audit_share=0, since no pair is audited")
        return value

    @property
    def classifies(self) -> bool:
        """Return True if a classifier judges pairs before the model."""
        return self.classifier is not None or self.classifier_url is not None


class QaSettings(Section):
    """Options of the metric qa: methods, section 3."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset({"list_size"})

    quantity_tool: Literal["tool", "resolve", "none"] = Field(
        default="tool",
        description="Quantities are compared by the model's tool (not in lists), resolved without the model, or left "
        "to it",
    )
    judgement: Literal["pairs", "lists"] = Field(
        default="pairs", description="Two answers per request, or an answer and a list of other answers to its question"
    )
    list_size: Count = Field(default=20, description="Maximum number of other answers of a list")
    questions: Literal["all", "contexts"] = Field(
        default="all", description="Questions come from response and contexts, or only from contexts"
    )
    weighted: bool = Field(
        default=False,
        description="Weigh statements by the relevance of their questions: weighted_recall, recall@5 to "
        "recall@50, and the most relevant missing statements first",
    )


class ClaimsSettings(Section):
    """Options of the claims of importance, rag and icat: methods, section 12."""

    k: Count | None = Field(
        default=None,
        description="K of the measures claims_recall@K and claims_f1@K; null leaves both to untold curve, which then "
        "takes the median number of claims of the run",
    )


class IcatSettings(Section):
    """Options of the metric icat: methods, section 11. The annotations of qrels count, and the path does not."""

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"qrels"})
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"early_stop", "list_size"})

    variant: Literal["auto", "m", "s", "a"] = Field(
        default="auto",
        description="Source of the aspects. m uses given aspects, covered by the documents that icat.qrels annotates. "
        "s uses given aspects. a generates them. auto is s if a sample has aspects, and otherwise a",
    )
    qrels: PathText | None = Field(
        default=None, description="File of annotated documents, for icat.variant m: topic subtopic document relevance"
    )
    aspects: Count = Field(default=10, description="Maximum number of generated aspects of a query")
    early_stop: bool = Field(
        default=True, description="Judge chunks in three waves, each for claims that no earlier chunk grounds"
    )
    judgement: Literal["pairs", "lists"] = Field(
        default="pairs", description="One claim and chunk a request, or a chunk with the claims that it was found for"
    )
    list_size: Count = Field(default=20, description="Maximum number of claims of a list")
    beta: Beta = Field(default=1.0, description="Weight of coverage relative to factuality")


class ImportanceSettings(Section):
    """Options of the metric importance."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset(
        {
            "passage_words",
            "max_facts",
            "duplicate_distance",
            "batch",
            "relevance_weight",
            "evidence_chunks",
            "list_size",
        }
    )

    documents: Count = Field(
        default=10,
        description="Number of index documents that facts come from: the documents with the best chunks for the query",
    )
    passage_words: Count = Field(default=512, description="Maximum words of the text in one request for facts")
    max_facts: Count = Field(default=5000, description="Maximum number of facts of a query; later facts are skipped")
    duplicates: Literal["words", "distance", "entailed", "none"] = Field(
        default="words",
        description="Rule that merges facts: near facts with the same words, near facts, facts that entail each other, "
        "or only equal facts",
    )
    duplicate_distance: Distance = Field(
        default=0.1, description="Maximum distance (1 - cosine) of facts that are merged by words or distance"
    )
    batch: Count = Field(default=50, description="Maximum number of facts rated in one request")
    relevance_weight: Probability = Field(
        default=0.5, description="Share of relevance in a fact's weight; salience has the rest"
    )
    min_weight: Probability | None = Field(
        default=None, description="Minimum weight of a fact that an answer should include; null includes all"
    )
    top_k: Count | None = Field(
        default=None, description="Number of top-ranked facts that an answer should include; null includes all"
    )
    judgement: Literal["pairs", "lists"] = Field(
        default="pairs",
        description="One request for a claim with all its chunks, or for a chunk with all its claims",
    )
    list_size: Count = Field(default=20, description="Maximum number of claims of a list")
    claims: Literal["text", "window"] = Field(
        default="text",
        description="Extract claims from the whole response, or the verifiable claims of each sentence, which is shown "
        "with the query, three sentences before and one after",
    )
    evidence_chunks: Count | None = Field(
        default=5,
        description="Number of nearest chunks that verify a claim; null uses all evidence of the query",
    )
    ks: Annotated[list[Count], Field(min_length=1)] = Field(
        default=[5, 10, 20, 50], description="The k of recall@k: the first k facts by rank"
    )


class LongrecallSettings(Section):
    """Options of the metric longrecall."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset(
        {"anchor_words", "max_facts", "duplicate_similarity", "token_similarity", "jaccard", "lcs", "cosine", "top_k"}
    )

    segmentation: Literal["auto", "list", "sentences", "atomic"] = Field(
        default="auto",
        description="Split texts into facts as lists, as sentences, or with the stage extract_claims. auto chooses by "
        "the form of response and references",
    )
    anchor_words: Count = Field(default=10, description="Maximum words of the anchor that begins a list item")
    resolve_coreference: bool = Field(default=True, description="Resolve references in facts from free text first")
    max_facts: Count = Field(default=2000, description="Maximum number of facts of a side; later facts are skipped")
    duplicate_similarity: Probability = Field(
        default=0.9, description="Minimum fuzzy Jaccard at which the second of two generated facts is left out"
    )
    token_similarity: Probability = Field(
        default=0.8, description="Minimum similarity (Indel) of two tokens that count as equal"
    )
    jaccard: Probability = Field(default=0.3, description="Minimum fuzzy Jaccard of a lexical candidate")
    lcs: Probability = Field(
        default=0.7, description="Minimum share of the longest common subsequence that makes a lexical candidate too"
    )
    cosine: Cosine | None = Field(
        default=None,
        description="Minimum cosine of a semantic candidate; null is 0.6, or 0.5 with the embedding model minilm",
    )
    top_k: Count = Field(default=3, description="Maximum number of candidates shown for a reference")
    baselines: list[Literal["arecall", "erecall", "holistic"]] = Field(
        default=["arecall", "erecall"], description="Published baselines next to the metric; holistic needs requests"
    )


class NuggetsSettings(Section):
    """Options of the metric nuggets. The nuggets of the file count, and its path does not."""

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"file"})

    file: PathText | None = Field(
        default=None, description="File of nuggets by topic (query_id), as nuggetizer writes it; null uses references"
    )
    window: Count = Field(default=10, description="Maximum number of texts per request that creates nuggets")
    max_generated: Count = Field(default=30, description="Maximum number of nuggets made for a query")
    top_k: Count = Field(default=20, description="Number of nuggets that count, vital nuggets first")
    vital_weight: float = Field(
        default=1.0, allow_inf_nan=False, description="Minimum weight of a given nugget that makes it vital"
    )
    score: Literal["strict_vital", "strict_all", "vital", "all", "weighted"] = Field(
        default="vital", description="The measure that is the score"
    )
    supported: bool = Field(
        default=False,
        description="Also measure the nuggets that sentences with a supporting citation state; citations.sources and "
        "citations.list_size apply",
    )


class RagSettings(Section):
    """Options of the metric rag."""

    claims_per_request: Count = Field(default=5, description="Maximum number of claims that are checked in one request")


class RubricSettings(Section):
    """Options of the metric rubric."""

    list_size: Count = Field(default=10, description="Maximum number of criteria per request; 1 judges each alone")
    score: Literal["strict", "lenient", "relative"] = Field(
        default="strict",
        description="Points over all positive points with no credit (strict) or half credit (lenient) for a partly met "
        "criterion, or the lenient score relative to the score of the ground truth (relative)",
    )


class CitationsSettings(Section):
    """Options of the metric citations. Of the sources the files count, and not the path."""

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"sources"})

    sources: PathText | None = Field(
        default=None,
        description="Texts of cited sources by id or URL: files with document_id or url and text, or an index; null "
        "uses only the contexts of the sample",
    )
    list_size: Count = Field(default=10, description="Maximum number of sentences of a source per request")
    score: Literal["f1", "weighted_precision", "weighted_recall", "citation_accuracy"] = Field(
        default="f1",
        description="The measure that is the score: support by citations, by sentences, or both (f1), or the share of "
        "citations with full or partial support (citation_accuracy)",
    )


class AnswerRelevancySettings(Section):
    """Options of the metric answer_relevancy."""

    list_size: Count = Field(default=20, description="Maximum number of sentences per request")


def package_sections() -> Iterator[tuple[str, str, type[Section]]]:
    """Yield the metric, the name and the class of each section of settings of other packages.

    This imports the packages. A package that cannot be imported has no settings here, and `METRICS` raises its error
    when a command names the metric.
    """
    for point in entry_points(group=GROUP):
        try:
            metric = point.load()
        except Exception:
            continue
        yield from ((point.name, name, section) for name, section in metric.sections.items())
