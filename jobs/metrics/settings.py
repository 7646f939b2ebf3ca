"""Define the settings of the metrics of this package, and find the settings of other packages (`Metric.sections`).

All settings load this module, so it imports neither Spark nor a metric of this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from untold.jobs.settings.fields import Address, Count, PathText, Positive, Probability, Section, setting

GROUP = "untold.metrics"
"""The entry points by which other packages add metrics."""

UnitType = Literal["Fact", "Claim", "Instruction", "Data Format", "Meta Statement", "Question", "Other"]

Cosine = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Distance = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
# With a beta above a thousand, ICAT equals S_coverage to six digits
Beta = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]


class E2eSettings(Section):
    """Options of the metric e2e: methods, section 4."""

    conflicts: bool = setting(
        False, "List the conflicts of the contexts, and which of their sides the response conveys"
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
    unit_types: tuple[UnitType, ...] = setting(
        ("Fact", "Claim"), "Unit types of atoms that are kept", strict=False, min_length=1
    )
    judgement: Literal["pairs", "lists"] = setting(
        "pairs", "One pair a request, or a premise with a list of hypotheses"
    )
    list_size: Count = setting(20, "Maximum number of hypotheses of a list")
    skip_implied: bool = setting(False, "Skip pairs that earlier relations imply; not with lists")
    max_pairs_per_sample: Count | None = setting(None, "Maximum number of judged pairs of a sample; null judges all")

    filter: Literal["none", "words", "vectors", "either"] = setting(
        "none",
        "Pairs that count as neutral without a request: no shared content word (words), a cosine below "
        "nli.filter_cosine (vectors), or one of the two (either)",
    )
    filter_cosine: Cosine = setting(0.3, "Minimum cosine of a pair that is judged")
    classifier: PathText | None = setting(
        None,
        "judge, the classifier of the package, or a folder with model.onnx, tokenizer.json and config.json "
        "of a classifier. It judges pairs within tasks, before the model",
    )
    classifier_url: Address | None = setting(
        None,
        "Address of a server that classifies pairs, instead of nli.classifier. Its path ends in /classify "
        "or /score (vLLM) or /predict (text-embeddings-inference). classifier.* are the settings of its requests",
    )
    classifier_gpus: Positive | None = setting(
        None,
        "GPUs of a Ray actor that runs the classifier of a folder, such as 1 or 0.5. llm.actors is the "
        "number of actors. Null runs the classifier on processors in Spark tasks",
    )
    classifier_threshold: Probability | None = setting(
        None,
        "Minimum probability at which the relation of the classifier counts. The model judges the other "
        "pairs. Null sends no pair to the model",
    )
    audit_share: Probability = setting(
        0.01, "Share of the filtered or classified pairs, chosen by a hash, that the model judges too"
    )
    weighted: bool = setting(
        False,
        "Weigh statements by the relevance of their atoms: weighted_recall, recall@5 to "
        "recall@50, and the most relevant missing statements first",
    )
    max_miss_rate: Probability | None = setting(
        None, "Maximum miss rate of filter and classifier, by the upper end of its interval; null for any"
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

    quantity_tool: Literal["tool", "resolve", "none"] = setting(
        "tool", "Quantities are compared by the model's tool (not in lists), resolved without the model, or left to it"
    )
    judgement: Literal["pairs", "lists"] = setting(
        "pairs", "Two answers per request, or an answer and a list of other answers to its question"
    )
    list_size: Count = setting(20, "Maximum number of other answers of a list")
    questions: Literal["all", "contexts"] = setting(
        "all", "Questions come from response and contexts, or only from contexts"
    )
    weighted: bool = setting(
        False,
        "Weigh statements by the relevance of their questions: weighted_recall, recall@5 to "
        "recall@50, and the most relevant missing statements first",
    )


class ClaimsSettings(Section):
    """Options of the claims of importance, rag and icat: methods, section 12."""

    k: Count | None = setting(
        None,
        "K of the measures claims_recall@K and claims_f1@K; null leaves both to untold curve, which then "
        "takes the median number of claims of the run",
    )


class IcatSettings(Section):
    """Options of the metric icat: methods, section 11. The annotations of qrels count, and the path does not."""

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"qrels"})
    ADVANCED: ClassVar[frozenset[str]] = frozenset({"early_stop", "list_size"})

    variant: Literal["auto", "m", "s", "a"] = setting(
        "auto",
        "Source of the aspects. m uses given aspects, covered by the documents that icat.qrels annotates. "
        "s uses given aspects. a generates them. auto is s if a sample has aspects, and otherwise a",
    )
    qrels: PathText | None = setting(
        None, "File of annotated documents, for icat.variant m: topic subtopic document relevance"
    )
    aspects: Count = setting(10, "Maximum number of generated aspects of a query")
    early_stop: bool = setting(True, "Judge chunks in three waves, each for claims that no earlier chunk grounds")
    judgement: Literal["pairs", "lists"] = setting(
        "pairs", "One claim and chunk a request, or a chunk with the claims that it was found for"
    )
    list_size: Count = setting(20, "Maximum number of claims of a list")
    beta: Beta = setting(1.0, "Weight of coverage relative to factuality")


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

    documents: Count = setting(
        10, "Number of index documents that facts come from: the documents with the best chunks for the query"
    )
    passage_words: Count = setting(512, "Maximum words of the text in one request for facts")
    max_facts: Count = setting(5000, "Maximum number of facts of a query; later facts are skipped")
    duplicates: Literal["words", "distance", "entailed", "none"] = setting(
        "words",
        "Rule that merges facts: near facts with the same words, near facts, facts that entail each other, "
        "or only equal facts",
    )
    duplicate_distance: Distance = setting(
        0.1, "Maximum distance (1 - cosine) of facts that are merged by words or distance"
    )
    batch: Count = setting(50, "Maximum number of facts rated in one request")
    relevance_weight: Probability = setting(0.5, "Share of relevance in a fact's weight; salience has the rest")
    min_weight: Probability | None = setting(
        None, "Minimum weight of a fact that an answer should include; null includes all"
    )
    top_k: Count | None = setting(None, "Number of top-ranked facts that an answer should include; null includes all")
    judgement: Literal["pairs", "lists"] = setting(
        "pairs", "One request for a claim with all its chunks, or for a chunk with all its claims"
    )
    list_size: Count = setting(20, "Maximum number of claims of a list")
    claims: Literal["text", "window"] = setting(
        "text",
        "Extract claims from the whole response, or the verifiable claims of each sentence, which is shown "
        "with the query, three sentences before and one after",
    )
    evidence_chunks: Count | None = setting(
        5, "Number of nearest chunks that verify a claim; null uses all evidence of the query"
    )
    ks: Annotated[list[Count], Field(min_length=1)] = setting(
        [5, 10, 20, 50], "The k of recall@k: the first k facts by rank"
    )


class LongrecallSettings(Section):
    """Options of the metric longrecall."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset(
        {"anchor_words", "max_facts", "duplicate_similarity", "token_similarity", "jaccard", "lcs", "cosine", "top_k"}
    )

    segmentation: Literal["auto", "list", "sentences", "atomic"] = setting(
        "auto",
        "Split texts into facts as lists, as sentences, or with the stage extract_claims. auto chooses by "
        "the form of response and references",
    )
    anchor_words: Count = setting(10, "Maximum words of the anchor that begins a list item")
    resolve_coreference: bool = setting(True, "Resolve references in facts from free text first")
    max_facts: Count = setting(2000, "Maximum number of facts of a side; later facts are skipped")
    duplicate_similarity: Probability = setting(
        0.9, "Minimum fuzzy Jaccard at which the second of two generated facts is left out"
    )
    token_similarity: Probability = setting(0.8, "Minimum similarity (Indel) of two tokens that count as equal")
    jaccard: Probability = setting(0.3, "Minimum fuzzy Jaccard of a lexical candidate")
    lcs: Probability = setting(
        0.7, "Minimum share of the longest common subsequence that makes a lexical candidate too"
    )
    cosine: Cosine | None = setting(
        None, "Minimum cosine of a semantic candidate; null is 0.6, or 0.5 with the embedding model minilm"
    )
    top_k: Count = setting(3, "Maximum number of candidates shown for a reference")
    baselines: list[Literal["arecall", "erecall", "holistic"]] = setting(
        ["arecall", "erecall"], "Published baselines next to the metric; holistic needs requests"
    )


class NuggetsSettings(Section):
    """Options of the metric nuggets. The nuggets of the file count, and its path does not."""

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"file"})

    file: PathText | None = setting(
        None, "File of nuggets by topic (query_id), as nuggetizer writes it; null uses references"
    )
    window: Count = setting(10, "Maximum number of texts per request that creates nuggets")
    max_generated: Count = setting(30, "Maximum number of nuggets made for a query")
    top_k: Count = setting(20, "Number of nuggets that count, vital nuggets first")
    vital_weight: float = setting(1.0, "Minimum weight of a given nugget that makes it vital", allow_inf_nan=False)
    score: Literal["strict_vital", "strict_all", "vital", "all", "weighted"] = setting(
        "vital", "The measure that is the score"
    )
    supported: bool = setting(
        False,
        "Also measure the nuggets that sentences with a supporting citation state; citations.sources and "
        "citations.list_size apply",
    )


class RagSettings(Section):
    """Options of the metric rag."""

    claims_per_request: Count = setting(5, "Maximum number of claims that are checked in one request")


class RubricSettings(Section):
    """Options of the metric rubric."""

    list_size: Count = setting(10, "Maximum number of criteria per request; 1 judges each alone")
    score: Literal["strict", "lenient", "relative"] = setting(
        "strict",
        "Points over all positive points with no credit (strict) or half credit (lenient) for a partly met "
        "criterion, or the lenient score relative to the score of the ground truth (relative)",
    )


class CitationsSettings(Section):
    """Options of the metric citations. Of the sources the files count, and not the path."""

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"sources"})

    sources: PathText | None = setting(
        None,
        "Texts of cited sources by id or URL: files with document_id or url and text, or an index; null "
        "uses only the contexts of the sample",
    )
    list_size: Count = setting(10, "Maximum number of sentences of a source per request")
    score: Literal["f1", "weighted_precision", "weighted_recall", "citation_accuracy"] = setting(
        "f1",
        "The measure that is the score: support by citations, by sentences, or both (f1), or the share of "
        "citations with full or partial support (citation_accuracy)",
    )


class AnswerRelevancySettings(Section):
    """Options of the metric answer_relevancy."""

    list_size: Count = setting(20, "Maximum number of sentences per request")


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
