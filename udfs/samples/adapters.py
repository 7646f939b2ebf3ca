"""Adapt the rows of other file formats to samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from untold.udfs.samples import data_sets, rubrics, tool_files
from untold.udfs.samples.file_records import READERS, FileRecord, Unit
from untold.udfs.samples.tool_files import Values
from untold.udfs.samples.values import canonical, text_of

LINES = "*.jsonl"
WIKICONTRADICT_CONTEXTS = ("context1_self_contained", "context2_self_contained")
CONFLICTBANK_CONTEXTS = {
    "D": "default_evidence",
    "C1": "misinformation_conflict_evidence",
    "C2": "temporal_conflict_evidence",
    "C3": "semantic_conflict_evidence",
}
# All three counterfactual contexts state the same claim
CONFLICTBANK_CLAIMS = {"default": "default_claim", "counterfactual": "misinformation_conflict_claim"}
CONFLICTBANK_SETS = ("all", *CONFLICTBANK_CONTEXTS)
# Questions without responses; responses with labelled items, labelled criteria, or one label
Use = Literal["questions", "items", "criteria", "labels"]
Expand = Callable[[Values, int], Iterable[Values | FileRecord]]


@dataclass(frozen=True)
class Adapter:
    """An adapter for another format of files."""

    # The required columns. None if the records have the columns of samples, which are then required as in any file
    required: tuple[str, ...] | None
    # Convert the values of a row and its 0-based number to samples. None if the rows are samples
    expand: Expand | None
    # The names of the files for `read`. Formats with their own reader need not have a known extension
    files: str = "*"
    read: Callable[[Unit], Iterator[FileRecord]] | None = None
    # Ids begin with the name of their row and a hyphen, so that a draw selects whole rows
    by_row: bool = False
    # Columns that are also read if they exist
    optional: tuple[str, ...] = ()
    # The uses of the rows, besides samples
    uses: tuple[Use, ...] = ()
    # Sets of columns that identify the format: its first row has all columns of one set. If empty, `required` is the
    # set
    marks: tuple[tuple[str, ...], ...] = ()
    # The names of our columns in its files
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Columns in the path of a file, for rows that lack them
    of_path: Callable[[str], Mapping[str, Any]] | None = None

    @property
    def whole_files(self) -> bool:
        """Return True if a file must be read from its start, because its rows are numbered or belong together."""
        return self.by_row or self.read is not None

    def knows(self, columns: Iterable[str]) -> bool:
        """Return True if a row with these columns belongs to the format."""
        there = set(columns)
        marks = self.marks or ((self.required,) if self.required else ())
        return any(there.issuperset(mark) for mark in marks)


def needed(adapter: Adapter | None, columns: Sequence[str]) -> Sequence[str]:
    """Return the columns that files need for samples with `columns`: the adapter's own columns, if it has any."""
    return columns if adapter is None or adapter.required is None else adapter.required


def _wikicontradict(row: Values, number: int) -> Iterator[Values]:
    """Yield the five answers of a row of the human evaluation, labelled as published (methods, section 6).

    A correct answer that was written from one passage is `Partially correct`.
    """
    contexts = [{"id": name, "text": row.get(name), "kind": name.partition("_")[0]} for name in WIKICONTRADICT_CONTEXTS]
    for answer in range(5):
        # The prompts of the evaluation: 0 without a passage, 1 and 2 with one passage each, 3 and 4 with both
        saw_one_context, label = answer in (1, 2), row.get(f"label{answer}")
        yield {
            "query": row.get("question"),
            "contexts": contexts,
            "system": row.get("model"),
            "row": number,
            "sample_id": f"{number}-answer{answer}",
            "response": row.get(f"answer{answer}"),
            "label": "Partially correct" if saw_one_context and label == "Correct" else label,
            "prompt_index": answer,
        }


def _conflictbank(sets: tuple[str, ...], row: Values, number: int) -> Iterator[Values]:
    """Yield the two claims of an instance as responses, to all four contexts or to each one (methods, section 6)."""
    contexts = {
        name: {"id": name, "text": row.get(column), "kind": column.partition("_")[0]}
        for name, column in CONFLICTBANK_CONTEXTS.items()
    }
    for claim, column in CONFLICTBANK_CLAIMS.items():
        for context_set in sets:
            yield {
                "sample_id": f"{number}-{claim}-{context_set}",
                "query": row.get("question"),
                "response": row.get(column),
                "contexts": [contexts[context_set]] if context_set in contexts else list(contexts.values()),
                "row": number,
                "claim": claim,
                "context_set": context_set,
            }


def _longfact(row: Values, _: int) -> Iterator[Values]:
    """Yield a prompt of LongFact (Wei et al. 2024) and its topic as a question, without the canary of every row."""
    topic = {"topic": row["topic"]} if row.get("topic") else {}
    yield {"query": row.get("prompt"), "contexts": [], **topic}


def _longfact_topic(path: str) -> dict[str, str]:
    """Return the topic in the name of a file of LongFact; the rows do not state it.

    >>> _longfact_topic("longfact/longfact-objects_20th-century-events.jsonl.gz")
    {'topic': '20th-century-events'}
    """
    found = re.search(r"longfact-(?:concepts|objects)_([^/\\.]+)[^/\\]*$", path)
    return {"topic": found.group(1)} if found else {}


def read_lines(unit: Unit) -> Iterator[FileRecord]:
    """Yield the rows of a file of JSON Lines, for any file name."""
    return READERS["lines"](replace(unit, kind="lines"))


def _traces_of(spans: Callable[[tool_files.Values], Iterable[tool_files.Span]], *marks: tuple[str, ...]) -> Adapter:
    """Return an adapter for files of traces, which become samples or questions."""
    return Adapter(None, None, "*.*json*", partial(tool_files.read_traces, spans), uses=("questions",), marks=marks)


_CONFLICTBANK_COLUMNS = ("question", *CONFLICTBANK_CONTEXTS.values(), *CONFLICTBANK_CLAIMS.values())
FORMATS: dict[str, Adapter] = {
    "wikicontradict": Adapter(
        required=(
            *("question", *WIKICONTRADICT_CONTEXTS, "model"),
            *(f"{name}{answer}" for name in ("answer", "label") for answer in range(5)),
        ),
        expand=_wikicontradict,
        by_row=True,
        uses=("labels",),
    ),
    # Two evaluations per instance with all contexts, or ten, which also use each single context
    "conflictbank": Adapter(_CONFLICTBANK_COLUMNS, partial(_conflictbank, ("all",)), by_row=True, uses=("labels",)),
    "conflictbank_alone": Adapter(_CONFLICTBANK_COLUMNS, partial(_conflictbank, CONFLICTBANK_SETS), by_row=True),
    "realsumm": Adapter((), None, "*/labels/*.label", data_sets.read_system, by_row=True, uses=("items",)),
    "k_qa": Adapter(
        (), None, "*.csv", data_sets.read_answers, by_row=True, uses=("items",), marks=(data_sets.COLUMNS,)
    ),
    # The folders contain a licence and other files too
    "k_qa_questions": Adapter(
        data_sets.QUESTIONS, data_sets.questions, LINES, read_lines, by_row=True, uses=("items",)
    ),
    "expertqa": Adapter(
        data_sets.REQUIRED, data_sets.answers, LINES, read_lines, by_row=True, uses=("questions", "items")
    ),
    # Queries with their aspects or references. The responses come from any system
    "trec_web": Adapter((), None, "*topics.web.*", data_sets.read_topics, uses=("questions",)),
    "qampari": Adapter(data_sets.QAMPARI, data_sets.qampari, uses=("questions",)),
    "romqa": Adapter(data_sets.ROMQA, data_sets.romqa, uses=("questions",)),
    # Before longfact, because rows of HealthBench have a canary too
    "rubrics": Adapter(("rubrics",), rubrics.rubrics, uses=("questions", "criteria"), names=rubrics.NAMES),
    "healthbench_meta": Adapter(
        ("prompt", "completion", "rubric", "binary_labels"),
        rubrics.healthbench_meta,
        optional=("category",),
        uses=("criteria",),
        names=rubrics.NAMES,
    ),
    "deepresearch_bench": Adapter(
        ("criterions", "dimension_weight"), rubrics.deepresearch_bench, uses=("questions",), names=rubrics.DEEPRESEARCH
    ),
    "deepresearch_bench_2": Adapter(
        ("prompt", "content"),
        rubrics.deepresearch_bench_2,
        uses=("questions",),
        marks=(("prompt", "content", "theme"),),
        names=rubrics.DEEPRESEARCH,
    ),
    "deepresearch_articles": Adapter(("prompt", "article"), rubrics.deepresearch_articles, names=rubrics.DEEPRESEARCH),
    "scholarqa_cs": Adapter(
        ("initial_prompt", "metric_config"), rubrics.scholarqa_cs, uses=("questions",), names=rubrics.SCHOLARQA
    ),
    "longfact": Adapter(
        ("prompt",),
        _longfact,
        optional=("topic",),
        uses=("questions",),
        marks=(("prompt", "canary"),),
        of_path=_longfact_topic,
    ),
    "ragas": Adapter(
        None,
        tool_files.ragas,
        uses=("questions",),
        marks=(("user_input",), ("question", "answer", "contexts"), ("question", "contexts", "ground_truth")),
        names=tool_files.RAGAS,
    ),
    "deepeval": Adapter(
        None,
        tool_files.deepeval,
        uses=("questions",),
        marks=(("input", "actual_output"), ("input", "actualOutput"), ("input", "retrieval_context")),
        names=tool_files.DEEPEVAL,
    ),
    "trec_rag": Adapter(
        None,
        tool_files.trec_rag,
        uses=("questions",),
        marks=(("topic", "references"), ("metadata", "references", "answer"), ("query", "candidates")),
        names=tool_files.TREC_RAG,
    ),
    "ragtime": Adapter(("metadata", "responses"), tool_files.trec_rag_answers, names=tool_files.TREC_RAG),
    "open_rag_eval": Adapter(
        (),
        None,
        "*.csv",
        tool_files.read_open_rag_eval,
        marks=(("query", "passage_id", "passage", "generated_answer"),),
    ),
    "trec_rag_answers": Adapter(("topic_id", "answer"), tool_files.trec_rag_answers),
    "trec_rag_nuggets": Adapter(("qid", "nuggets"), tool_files.trec_rag_nuggets, uses=("questions", "items")),
    "huggingface": Adapter(None, None, "*.arrow", tool_files.read_arrow, uses=("questions",)),
    "langsmith": _traces_of(tool_files.langsmith, ("run_type", "inputs"), ("inputs", "outputs")),
    "langfuse": _traces_of(
        tool_files.langfuse,
        ("observations",),
        ("traceId", "input"),
        ("trace_id", "parent_observation_id"),
        ("id", "input", "output", "timestamp"),
    ),
    "phoenix": _traces_of(tool_files.phoenix, ("context.trace_id",), ("context", "span_kind", "attributes")),
    "mlflow": _traces_of(tool_files.mlflow, ("info", "data"), ("trace_id", "request", "response")),
    "openai_evals": _traces_of(
        tool_files.openai_evals,
        ("spec",),
        ("sample_id", "type", "data"),
        ("item", "sample"),
        ("datasource_item",),
        ("input", "ideal"),
    ),
    # Last, because other formats have a column with this name too
    "ragchecker": Adapter((), None, "*.json*", data_sets.read_results, marks=((data_sets.RESULTS,),)),
}


def _named(columns: Mapping[str, str], row: Values, _: int) -> Iterator[Values | FileRecord]:
    """Yield the columns, by their names in the row, as a sample that is named by the q_id of its source.

    Missing values stay missing and do not become null.
    """
    name = text_of(row.get("q_id"))
    values = {ours: row[theirs] for ours, theirs in columns.items() if theirs in row}
    yield {**values, "sample_id": name} if name else FileRecord(problem="q_id is null or empty", raw=canonical(row))


# The explanation of a question (selftext) is kept as a separate column
_OF_QUESTION = {"query": "title", "category": "category", "selftext": "selftext"}
QUESTIONS = Adapter(required=("q_id", "title"), expand=partial(_named, _OF_QUESTION), by_row=True)
CONTEXTS = Adapter(required=("q_id", "contexts"), expand=partial(_named, {"contexts": "contexts"}), by_row=True)
