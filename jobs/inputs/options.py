"""Declare the options of requests. A field of a record here is an option of the command line. Imports no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from datetime import timedelta
from typing import Any

RETRIEVERS = ("dense", "bm25", "hybrid")


@dataclass(frozen=True)
class OptionText:
    """The command-line form of a field.

    `words` are the name and the metavar: `--limit N`, `--overwrite`, or only `RUN` for an argument. `read` names the
    reader of the text in `jobs.cli.values`, and `completed_by` a function there that returns completions.
    """

    words: str
    help: str
    read: str | None = None
    choices: Sequence[str] = ()
    completed_by: str | None = None


def option(words: str, help: str, default: Any = MISSING, **more: Any) -> Any:
    """Return a field with its option: `more` are further fields of `OptionText`. Without a default it is required."""
    metadata = {"option": OptionText(words, help, **more)}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ReadOptions:
    """The format of input files. It is not part of an output's identity.

    `columns` maps our column names to the names in the files. `encoding` is for text files without a byte order mark,
    None for UTF-8. `delimiter` is for CSV, None if the header decides.
    """

    columns: Mapping[str, str] = field(
        default_factory=dict,
        metadata={
            "option": OptionText(
                "--columns OURS=THEIRS,...", "column names in the files: query=question,...", "column_pairs"
            )
        },
    )
    encoding: str | None = option(
        "--encoding NAME", "encoding of CSV and JSON, such as cp1252 (utf-8)", None, read="encoding"
    )
    delimiter: str | None = option(
        "--delimiter CHAR", "delimiter of CSV (comma, tab or semicolon, by the header)", None, read="delimiter"
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of every command that sends requests."""

    limit: int | None = option("--limit N", "read only the first N rows by id", None, read="count")
    overwrite: bool = option("--overwrite", "replace the tables of another run in --output", False)
    retry_failed: bool = option("--retry-failed", "retry permanently failed requests", False)
    wait: bool = option("--no-wait", "refuse instead of waiting for another run on the same store", True)
    lock: bool = option("--no-lock", "do not lock the store, for stores without locks (start one run at a time)", True)
    poll: bool = option("--no-poll", "poll batches once, and exit with code 7 while they are in progress", True)


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """Options of a random draw of rows."""

    random: int | None = option("--random N", "N random rows of the input (statistics.seed)", None, read="count")
    stratify: Sequence[str] | None = option(
        "--stratify LIST",
        "columns that define groups: --random draws a share of each group, at least one row",
        None,
        read="names",
    )


@dataclass(frozen=True, kw_only=True)
class SettingsOptions:
    """Options of every command with settings."""

    config: str | None = option("--config F", "a settings file (YAML)", None)
    overrides: Sequence[str] = option("--set KEY=VALUE", "one setting; repeatable", (), completed_by="setting_keys")
    endpoint: str | None = option(
        "--endpoint NAME", "a preset: openai, vllm, local, ...", None, completed_by="preset_names"
    )
    profile: str | None = option("--profile NAME", "settings below your own: published, as in the papers", None)


@dataclass(frozen=True, kw_only=True)
class ReportingOptions:
    """Options of the commands that score samples into tables: thresholds, figures and lakehouse tables."""

    fail_under: Sequence[Mapping[str, float]] = option(
        "--fail-under METRIC=BAR",
        "exit with code 4 if the mean of a metric is below the bar (e2e=0.7); by comma or repeated",
        (),
        read="bars",
    )
    metrics_file: str | None = option(
        "--metrics-file FILE", "write the figures of the run for Prometheus (text format, also OpenMetrics)", None
    )
    output_format: str = option(
        "--output-format NAME",
        "delta and iceberg also write the tables into a lakehouse, by date (parquet)",
        "parquet",
        choices=("parquet", "delta", "iceberg"),
    )
    since: str | None = option(
        "--since VERSION", "with --input delta:PATH: score the rows after a version (v12)", None, read="version"
    )


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `untold compare`."""

    metrics: Sequence[str] | None = option("--metric LIST", "metrics by comma, by default all", None, read="names")
    measures: Sequence[str] | None = option(
        "--measure LIST", "measures in place of scores, by comma: conflict_coverage,one_sided", None, read="names"
    )
    cluster: bool = option("--cluster", "intervals and tests resample all rows of a query together", False)
    undefined: str = option(
        "--undefined HOW",
        "mean of the scores (mean, the default), or with 0 for samples without statements (zero)",
        "mean",
        choices=("mean", "zero"),
    )


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """Options of `untold compare BASE CANDIDATE` as a gate."""

    max_drop: float | None = option(
        "--max-drop X",
        "compare two outputs, BASE and CANDIDATE: exit with code 0 if no mean fell by X or more (0.02), with 4 if one "
        "fell by more, and with 8 if the samples do not decide",
        None,
        read="bar",
    )
    markdown: str | None = option("--markdown FILE", "with --max-drop: write a comment for a pull request", None)
    junit: str | None = option("--junit FILE", "with --max-drop: write the verdicts as XML for CI", None)


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """Options of `untold compare` for the judges of a panel, or of several runs."""

    judges: bool = option(
        "--judges", "compare the judges of a panel, or of runs with one judge each: does one favour its family?", False
    )
    families: Mapping[str, str] | None = option(
        "--families NAME=FAMILY,...",
        "with --judges: families of models and systems, by default the first word of the name (gpt for openai/gpt-4o)",
        None,
        read="families",
    )


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(CompareOptions):
    """Options of `untold estimate` and `untold sample-size`."""

    proxy: str | None = option(
        "--proxy PROXY",
        "cheap scores of all samples: an output of untold score, a file of sample_id and score (csv, tsv, jsonl, "
        "parquet), or words or vectors, shared by responses and references or contexts; without RUN: judge",
        None,
    )
    input: str | None = option(
        "--input PATH", "all samples, for words, vectors or judge (for words and vectors: the input of RUN)", None
    )
    labels: str | None = option(
        "--labels FILE", "human scores in place of RUN's scores: sample_id and score (csv, tsv, jsonl, parquet)", None
    )
    proxy_metric: str | None = option("--proxy-metric NAME", "the metric of the proxy, if its name differs", None)


@dataclass(frozen=True, kw_only=True)
class JudgeBudgetOptions:
    """Options of `untold estimate` without RUN, which scores the samples itself."""

    judge_budget: float | None = option(
        "--judge-budget X",
        "score all samples with --proxy judge, and as many random ones with the language model as X pays for",
        None,
        read="width",
    )


@dataclass(frozen=True, kw_only=True)
class NightlyOptions:
    """Options of `untold nightly`."""

    refresh: bool = option("--refresh", "also score rows that were added after a date was scored", False)
    require_input: bool = option("--require-input", "make a date without input an error", False)


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """Options of `untold generate`."""

    contexts: str | None = option(
        "--contexts FILE", "the contexts of questions of eli5_category: rows of q_id and contexts", None
    )
    closed_book: bool = option(
        "--closed-book", "exclude the contexts, such as gold proofs, from the prompts, but not from the samples", False
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of `untold search`: one `query`, or a file of queries."""

    index: str = option("--index DIR", "an index")
    query: str | None = option("--query TEXT", "the text to search for", None)
    top: int = option("--top N", "hits per query (10)", 10, read="count")
    retriever: str = option(
        "--retriever HOW", "dense (vectors, default), bm25 (words) or hybrid (both)", "dense", choices=RETRIEVERS
    )
    exact: bool = option("--exact", "compare all vectors of the index", False)


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Options of `untold answer`."""

    spool: str = option("SPOOL", "the folder that the run has printed")
    ray_address: str | None = option("--ray-address A", "a Ray cluster; by default a local one starts", None)
    retry_failed: bool = option("--retry-failed", "retry permanently failed requests", False)
    wait: bool = option("--no-wait", "refuse instead of waiting for another worker", True)


@dataclass(frozen=True, kw_only=True)
class CondenseOptions:
    """Options of `untold condense`."""

    relations: str = option("--relations PATH", "premise_id, hypothesis_id, relation")
    nodes: str | None = option("--nodes PATH", "id, text, origin; without it every id is a context", None)
    output: str = option("--output DIR", "folder of the tables")
    overwrite: bool = option("--overwrite", "replace the tables of another run in --output", False)


@dataclass(frozen=True, kw_only=True)
class PruneRequest:
    """Options of `untold prune`: a store, the age of completions to remove, and the outputs to keep."""

    store: str = option("--completion-store DIR", "a store of completions")
    older_than: timedelta = option("--older-than AGE", "remove completions older than AGE: 90d, 12w, 36h", read="age")  # noqa: RUF009
    keep_outputs: Sequence[str] = option(
        "--keep-outputs PATH", "keep the completions of the outputs PATH, at any age (repeatable)", ()
    )
    apply: bool = option("--apply", "remove the files instead of only printing them", False)


@dataclass(frozen=True)
class ShowRequest:
    """Options of `untold show`: a sample of a run, one metric or all, and the path of a picture."""

    output: str = option("RUN", "the output of a run")
    sample: str | None = option("--sample ID", "a sample_id; without it, the first ids are printed", None)
    metric: str | None = option("--metric NAME", "one metric; by default all metrics of the sample", None)
    picture: str | None = option("--picture FILE", "draw the graph of the sample into this file: .svg or .png", None)
    raw: bool = option("--raw", "draw atoms instead of statements; with --picture", False)
