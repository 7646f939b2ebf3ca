"""Write the scores of a run for other tools: one row per sample, lines of measures, or the format of the tool.

Tables are sorted by sample_id, so several tables are read in parallel in batches, for any size.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from untold.jobs.run.terminal import amount
from untold.jobs.run_tables import RunTables, UnreadableRunError, batches_of
from untold.jobs.summary.trackers import TRACKERS, TrackedScore, TrackerClient, json_bytes, score_id, send_scores
from untold.udfs.errors import UserError, aside, near_misses, require
from untold.udfs.facts.rag_measures import CLAIMS, GROUPS, PUBLISHED, TRUTH_CLAIMS, VERDICTS
from untold.udfs.redaction import plain_url
from untold.udfs.samples.items import FIELDS, RESPONSE, SIDES, TRUTH
from untold.udfs.samples.values import text_of
from untold.udfs.storage import StoragePath
from untold.udfs.texts import escape_formula

BATCH_ROWS = 1000
GROUP_ROWS = 10_000
# The maximum number of rows of a worksheet, with the header
XLSX_ROWS = 1_048_576
# Long columns of the table `samples`, which are not exported
LEFT_OUT = ("contexts", "aspects", "references", "ground_truth", "claim_checks")
SCORE_COLUMNS = ("score", "score_low", "score_high", "status", "covered", "uncovered")
STATEMENT_COLUMNS = ("sample_id", "metric", "text", "covered")
MISSING = "missing"
MEASURE = ("metric", "measure")
NUGGETS = "nuggets"
SUMMARY_FIGURES = ("mean", "ci_low", "ci_high", "n", "scored", "undefined", "failed")
# The maximum length of a parameter for older MLflow servers
PARAMETER_CHARACTERS = 500
REPORT = "report.html"
RAG, TREC, WANDB = "rag", "trec", "wandb"
WANDB_COLUMNS = ["trace", "metric", "score", "score_low", "score_high", "status", "comment"]
COMMENT_STATEMENTS, COMMENT_CHARACTERS = 5, 2000
WANDB_ID = 16
CALLS_PER_SECOND = 5.0
# The time of scores if the manifest has no start
EPOCH = "1970-01-01T00:00:00+00:00"
RELATION_OF = {verdict: relation for relation, verdict in VERDICTS.items()}
Row = dict[str, Any]


def wide_schema(run: RunTables) -> pa.Schema:
    """Return the columns of a wide row: the short columns of samples, then `<metric>_<column>` by metric.

    Lists and objects become JSON. `<metric>_missing` has one statement per line.
    """
    kept = [field for field in run.dataset("samples").schema if field.name not in LEFT_OUT]
    of_samples = [(field.name, pa.string() if pa.types.is_nested(field.type) else field.type) for field in kept]
    types = {field.name: field.type for field in run.dataset("scores").schema}
    of_metrics = [
        (f"{metric}_{name}", types.get(name, pa.string()))
        for metric in metrics_of(run)
        for name in (*SCORE_COLUMNS, MISSING)
    ]
    return pa.schema([*of_samples, *of_metrics])


def metrics_of(run: RunTables) -> list[str]:
    """Return the metrics of a run, in the order of its summary."""
    return list(dict.fromkeys(run.summary()["metric"].to_pylist()))


def wide_rows(run: RunTables) -> Iterator[Row]:
    """Yield the samples in order, each with the scores of its metrics and its missing statements.

    Raises UnreadableRunError for tables that are not sorted by sample_id.
    """
    schema = run.dataset("samples").schema
    nested = [field.name for field in schema if pa.types.is_nested(field.type) and field.name not in LEFT_OUT]
    samples = _rows(run, "samples", [name for name in schema.names if name not in LEFT_OUT])
    scores = _Beside(_rows(run, "scores", ["sample_id", "metric", *SCORE_COLUMNS]))
    uncovered = (row for row in _rows(run, "statements", STATEMENT_COLUMNS) if row["covered"] is False)
    statements = _Beside(uncovered)
    for sample in samples:
        name = sample["sample_id"]
        row = sample | {column: text_of(sample[column]) for column in nested}
        missing: dict[str, list[str]] = {}
        for one in statements.of(name):
            missing.setdefault(one["metric"], []).append(one["text"] or "")
        for one in scores.of(name):
            metric = one["metric"]
            row |= {f"{metric}_{column}": one[column] for column in SCORE_COLUMNS}
            row[f"{metric}_{MISSING}"] = "\n".join(missing.get(metric, [])) or None
        yield row


def _rows(run: RunTables, table: str, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a table in order, with missing columns null. Raises UnreadableRunError for unsorted ids."""
    last, rows = "", run.dataset(table)
    there = [name for name in columns if name in rows.schema.names]
    for batch in batches_of(rows, there, most=BATCH_ROWS):
        for row in batch.to_pylist():
            if row["sample_id"] < last:
                where = f"{run.directory}: the table {table}"
                raise UnreadableRunError(f"{where} is not sorted by sample_id; write it as `untold score` does")
            last = row["sample_id"]
            yield {name: row.get(name) for name in columns}


class _Beside:
    """The rows of a sorted table by sample."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._groups = groupby(rows, key=itemgetter("sample_id"))
        self._name: str | None = ""
        self._found: Iterator[Row] = iter(())

    def of(self, name: str) -> list[Row]:
        """Return the rows of a sample. Calls must have the order of the samples."""
        while self._name is not None and self._name < name:
            self._name, self._found = next(self._groups, (None, iter(())))
        return list(self._found) if self._name == name else []


def write_csv(run: RunTables, file: IO[bytes], *, mark: bool = True) -> None:
    """Write CSV in UTF-8, with the byte order mark that Excel needs. An apostrophe precedes a text like a formula."""
    schema = wide_schema(run)
    text = io.TextIOWrapper(file, encoding="utf-8-sig" if mark else "utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(map(escape_formula, schema.names))
    for row in wide_rows(run):
        cells = (row.get(name) for name in schema.names)
        writer.writerow([escape_formula(cell) if isinstance(cell, str) else cell for cell in cells])
    text.detach()


def write_lines(run: RunTables, file: IO[bytes]) -> None:
    """Write JSON Lines with all columns in every row."""
    names = wide_schema(run).names
    for row in wide_rows(run):
        line = json.dumps({name: row.get(name) for name in names}, ensure_ascii=False, default=str)
        file.write(f"{line}\n".encode("utf-8", "replace"))


def write_parquet(run: RunTables, file: IO[bytes]) -> None:
    """Write Parquet in row groups of `GROUP_ROWS` samples."""
    schema, rows = wide_schema(run), wide_rows(run)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while chunk := list(islice(rows, GROUP_ROWS)):
            writer.write_batch(pa.RecordBatch.from_pylist(chunk, schema))


def write_xlsx(run: RunTables, file: IO[bytes]) -> None:
    """Write a worksheet. Raises UserError for more samples than a worksheet can have."""
    require("export --to xlsx", "study", "openpyxl")
    samples = run.dataset("samples").count_rows()
    if samples >= XLSX_ROWS:
        raise UserError(
            f"{run.directory} has {samples:,} samples. A worksheet has {XLSX_ROWS:,} rows. Use --to csv or parquet"
        )
    from untold.udfs.sheets import stream_xlsx

    names = wide_schema(run).names
    rows = ([row.get(name) for name in names] for row in wide_rows(run))
    stream_xlsx(file, "scores", chain([names], rows))


def write_measures(run: RunTables, file: IO[bytes]) -> None:
    """Write lines of TREC, `qid measure value`: the scores and measures of each sample, then `all` with their means.

    The qid is the query_id if it is unique among the samples of a system, otherwise the sample_id. White space becomes
    `_`. Undefined values have no line. If several systems respond to a topic, the lines of each system are together:
    they begin with `all runid <system>` and end with its means.
    """
    for system in (*pooled_systems(run),) or (None,):
        _write_measures(run, file, system)


def pooled_systems(run: RunTables) -> list[str]:
    """Return the systems of a run if several respond to a topic, each at most once, otherwise an empty list."""
    if not {"query_id", "system"} <= set(run.dataset("samples").schema.names):
        return []
    counts = "count(*), count(distinct query_id), count(distinct (query_id, system)), count(system)"
    ((rows, topics, pairs, named),) = run.sql(f"select {counts} from samples where query_id is not null").fetchall()
    total = run.dataset("samples").count_rows()
    if not topics < pairs == rows == named == total:
        return []
    return [system for (system,) in run.sql("select distinct system from samples order by system").fetchall()]


def _write_measures(run: RunTables, file: IO[bytes], system: str | None) -> None:
    """Write the lines of one of the pooled systems, or of all samples for None."""
    qid, names = _qid_column(run) if system is None else "query_id", _names_of_lines(run)
    if system is not None:
        file.write(f"all\trunid\t{_without_spaces(system)}\n".encode("utf-8", "replace"))
    scores = _Beside(_rows(run, "scores", ["sample_id", "metric", "score"]))
    measures = _Beside(
        _rows(run, "measures", ["sample_id", *MEASURE, "value"]) if "measures" in run.tables else iter(())
    )
    for sample in _rows(run, "samples", list(dict.fromkeys(("sample_id", qid, "system")))):
        if system not in (None, sample["system"]):
            continue
        own = [(names[row["metric"], None], row["score"]) for row in scores.of(sample["sample_id"])]
        own += [(names[row["metric"], row["measure"]], row["value"]) for row in measures.of(sample["sample_id"])]
        for name, value in own:
            if value is not None:
                file.write(_measure(str(sample[qid]), name, value))
    for row in _means(run, system):
        if row["mean"] is not None:
            file.write(_measure("all", names[row["metric"], row.get("measure")], row["mean"]))


def _qid_column(run: RunTables) -> str:
    """Return the column with the ids of samples: query_id if it is unique, otherwise sample_id."""
    if "query_id" not in run.dataset("samples").schema.names:
        return "sample_id"
    ((rows, topics),) = run.sql("select count(*), count(distinct query_id) from samples").fetchall()
    return "query_id" if rows == topics else "sample_id"


def _means(run: RunTables, system: str | None = None) -> list[Row]:
    """Return the rows of `summary` and `measures_summary` of a system, or over all samples for None."""
    tables = [run.summary(), *([run.table("measures_summary")] if "measures_summary" in run.tables else [])]
    level = "overall" if system is None else "system"
    return [row for table in tables for row in table.to_pylist() if (row["level"], row["system"]) == (level, system)]


def _names_of_lines(run: RunTables) -> dict[tuple[str, str | None], str]:
    """Return the name of each metric and measure in lines. The metric precedes a name that occurs twice."""
    lines = [(row["metric"], row.get("measure")) for row in _means(run)]
    counts = Counter(measure or metric for metric, measure in lines)
    return {
        (metric, measure): f"{metric}.{measure}" if measure and counts[measure] > 1 else measure or metric
        for metric, measure in lines
    }


def _measure(name: str, measure: str, value: float) -> bytes:
    return f"{_without_spaces(name)}\t{measure}\t{value:.4f}\n".encode("utf-8", "replace")


def _without_spaces(name: str) -> str:
    return re.sub(r"\s", "_", name)


def write_ragchecker(run: RunTables, file: IO[bytes]) -> None:
    """Write RAGChecker's JSON: samples with claims, relations and measures, then means in per cent.

    Undefined measures are 0.

    Raises UserError for a run without the metric rag.
    """
    if "contexts_used" not in run.tables or RAG not in metrics_of(run):
        raise UserError(f"{run.directory} has no metric {RAG}. Score it with --metric {RAG} first")
    file.write(b'{"results": [')
    for number, result in enumerate(_ragchecker_results(run)):
        text = json.dumps(result, ensure_ascii=False, indent=1)
        file.write((",\n" if number else "\n").encode() + text.encode("utf-8", "replace"))
    rows = run.table("measures_summary").to_pylist()
    zeros = {row["measure"]: row["mean_zero"] for row in rows if row["metric"] == RAG and row["level"] == "overall"}
    means = {
        f"{group}_metrics": {name: round(100 * zeros[name], 1) for name in names if zeros.get(name) is not None}
        for group, names in GROUPS.items()
    }
    file.write(f'\n],\n"metrics": {json.dumps(means)}}}\n'.encode())


def _ragchecker_results(run: RunTables) -> Iterator[Row]:
    """Yield the samples in order in RAGChecker's format. A list with a missing relation is null."""
    columns = {
        "claims": ("position", "text", "verdict"),
        "statements": ("statement_id", "text", "relation"),
        "contexts_used": ("rank", *SIDES),
        "measures": ("measure", "value"),
    }
    beside = {
        name: _Beside(row for row in _rows(run, name, ["sample_id", "metric", *own]) if row["metric"] == RAG)
        for name, own in columns.items()
    }
    for sample in _rows(run, "samples", ["sample_id", "query", "response", "contexts", "ground_truth"]):
        found = {name: rows.of(sample["sample_id"]) for name, rows in beside.items()}
        claims = sorted(found["claims"], key=itemgetter("position"))
        truth = sorted(found["statements"], key=lambda row: int(row["statement_id"].rpartition(":")[2]))
        contexts = sorted(found["contexts_used"], key=itemgetter("rank"))
        measures = {row["measure"]: row["value"] for row in found["measures"]}
        # The number of claims is null for a text with failed claims, and 0 for a text without claims
        known = {RESPONSE: measures.get(CLAIMS) is not None, TRUTH: measures.get(TRUTH_CLAIMS) is not None}
        relations = {
            RESPONSE: [RELATION_OF.get(row["verdict"]) for row in claims],
            TRUTH: [row["relation"] for row in truth],
        }
        result = {
            "query_id": sample["sample_id"],
            "query": sample["query"],
            "gt_answer": (sample["ground_truth"] or {}).get("text"),
            "response": sample["response"],
            "retrieved_context": [{"doc_id": one["id"], "text": one["text"]} for one in sample["contexts"] or ()],
        }
        for side, rows in ((RESPONSE, claims), (TRUTH, truth)):
            cells = [_labels(one[side][place] for one in contexts) for place in range(len(rows))]
            retrieved = None if None in cells else cells
            given = ([row["text"] for row in rows], _labels(relations[side]), retrieved)
            result |= dict(zip(FIELDS[side], given if known[side] else (None, None, None), strict=True))
        # A sample without a ground truth omits undefined measures, which are otherwise 0
        shown = [name for name in PUBLISHED if known[RESPONSE] and (known[TRUTH] or measures[name] is not None)]
        yield {**result, "metrics": {name: measures[name] or 0.0 for name in shown}}


def _labels(relations: Iterable[str | None]) -> list[str] | None:
    known = list(relations)
    return None if None in known else [relation.capitalize() for relation in known if relation]


def write_nuggets(run: RunTables, file: IO[bytes]) -> None:
    """Write JSON Lines as nuggetizer does: the kept nuggets of each response with their assignments.

    A response with a missing assignment is omitted, because readers expect complete lists (`note_of`).
    Raises UserError for a run without the metric nuggets.
    """
    if NUGGETS not in metrics_of(run):
        raise UserError(f"{run.directory} has no nuggets; run untold score --metric {NUGGETS}")
    wanted = ["sample_id", "query", "query_id", "response", "system"]
    columns = ["sample_id", "metric", "rank", "text", "importance", "support", "kept"]
    kept = (row for row in _rows(run, "statements", columns) if row["metric"] == NUGGETS and row["kept"])
    statements = _Beside(kept)
    for sample in _rows(run, "samples", wanted):
        own = sorted(statements.of(sample["sample_id"]), key=itemgetter("rank"))
        if not own or any(one["support"] is None for one in own):
            continue
        line = {
            "query": sample["query"],
            "qid": sample["query_id"] or sample["sample_id"],
            "answer_text": sample["response"],
            "response_length": len(sample["response"].split()),
            "run_id": sample["system"],
            "nuggets": [
                {"text": one["text"], "importance": one["importance"], "assignment": one["support"]} for one in own
            ],
        }
        file.write(json_bytes(line) + b"\n")


def tracked_scores(run: RunTables) -> Iterator[TrackedScore]:
    """Yield the scores of all samples and metrics with the traces of their responses.

    The trace of a sample is its column `trace_id`, otherwise its sample_id. Its span is its column `span_id`, if any.
    """
    metrics, manifest = metrics_of(run), run.manifest
    first = (manifest.get("starts") or [{}])[0]
    name, started_at = first.get("run") or manifest.get("run") or run.place.name, first.get("started_at") or EPOCH
    for row in wide_rows(run):
        for metric in metrics:
            if f"{metric}_status" not in row:
                continue
            score, low, high, status = (row[f"{metric}_{column}"] for column in SCORE_COLUMNS[:4])
            span = row.get("span_id")
            yield TrackedScore(
                id=score_id(name, row["sample_id"], metric),
                trace=str(row.get("trace_id") or row["sample_id"]),
                span=None if span is None else str(span),
                metric=metric,
                score=score,
                low=low,
                high=high,
                status=status,
                comment=_comment(status, row[f"{metric}_{MISSING}"]),
                started_at=started_at,
            )


def _comment(status: str, missing: str | None) -> str:
    """Return the status and the first missing statements, one per line."""
    texts = (missing or "").splitlines()
    shown = [f"- {text}" for text in texts[:COMMENT_STATEMENTS]]
    rest = len(texts) - len(shown)
    lines = [f"status: {status}", *(["missing:"] if texts else []), *shown, *([f"and {rest} more"] if rest else [])]
    return "\n".join(lines)[:COMMENT_CHARACTERS]


def write_calls(run: RunTables, file: IO[bytes], tracker: str) -> None:
    """Write the body of each call to a tool as a line of JSON."""
    for call in TRACKERS[tracker].calls_of(tracked_scores(run)):
        file.write(json_bytes(call.body) + b"\n")


def write_wandb(run: RunTables, file: IO[bytes]) -> None:
    """Write a table of Weights & Biases: JSON with `columns` and `data`, one row per sample and metric."""
    file.write(f'{{"columns": {json.dumps(WANDB_COLUMNS)}, "data": ['.encode())
    for number, row in enumerate(_wandb_rows(run)):
        file.write((b",\n" if number else b"\n") + json_bytes(row))
    file.write(b"\n]}\n")


def _wandb_rows(run: RunTables) -> Iterator[list[Any]]:
    for one in tracked_scores(run):
        yield [one.trace, one.metric, one.score, one.low, one.high, one.status, one.comment]


WRITERS: Mapping[str, Callable[[RunTables, IO[bytes]], None]] = {
    "csv": write_csv,
    "xlsx": write_xlsx,
    "parquet": write_parquet,
    "jsonl": write_lines,
    TREC: write_measures,
    "ragchecker": write_ragchecker,
    "trec_rag_nuggets": write_nuggets,
    **{name: partial(write_calls, tracker=name) for name in TRACKERS},
    WANDB: write_wandb,
}
MLFLOW = "mlflow"
# The formats for a terminal or a pipe. The others need a file
TEXTS = ("csv", "jsonl", TREC, "ragchecker", "trec_rag_nuggets", *TRACKERS, WANDB)


def export(run: RunTables, to: str, output: str) -> list[str]:
    """Write a run with one of `WRITERS` to a complete file, and return its path.

    `trec` writes a file for each of `pooled_systems`, such as `run.<system>.txt` for run.txt, because tools read one
    file per system. Raises UserError for an unknown format.
    """
    if to not in WRITERS:
        raise UserError(f"no form {to!r}{aside(near_misses(to, WRITERS))}; there are {', '.join(WRITERS)}")
    systems = pooled_systems(run) if to == TREC else []
    if not systems:
        StoragePath(output).write_whole(lambda file: WRITERS[to](run, file))
        return [output]
    folder, slash, name = output.rpartition("/")
    stem, ending = os.path.splitext(name)
    paths: dict[str, str] = {}
    for system in systems:
        plain = re.sub(r"[^\w.-]", "_", system)
        path = _distinct(f"{stem}.{plain}", paths)
        paths[path] = f"{folder}{slash}{path}{ending}"
        StoragePath(paths[path]).write_whole(partial(_write_measures, run, system=system))
    return list(paths.values())


def note_of(run: RunTables, to: str) -> str | None:
    """Return a note for readers of a format, or None."""
    if to == TREC:
        return "each line is qid, measure, value. Undefined values have no line"
    if to != "trec_rag_nuggets":
        return None
    query = f"select count(distinct sample_id) from statements where metric = '{NUGGETS}' and kept and support is null"
    ((lost,),) = run.sql(query).fetchall()
    have = amount(lost, "response is", "responses are")
    return f"{have} left out, because a nugget has no assignment. Try --retry-failed" if lost else None


def log_to_mlflow(run: RunTables) -> tuple[str, str]:
    """Log a run to MLflow: parameters, figures of its summary, and its report if the output has one.

    MLflow's environment variables name the server (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME). Return the ids of the
    experiment and of the run. Raises UserError if mlflow is not installed.
    """
    if find_spec(MLFLOW) is None:
        raise UserError("export --to mlflow needs mlflow: pip install mlflow")
    import mlflow  # type: ignore[import-not-found, unused-ignore]

    with mlflow.start_run(run_name=run.place.name) as started:
        mlflow.log_params(parameters(run))
        mlflow.log_metrics(figures(run))
        with suppress(FileNotFoundError):
            mlflow.log_text((run.place / REPORT).read_bytes().decode("utf-8"), REPORT)
    return started.info.experiment_id, started.info.run_id


def send(run: RunTables, to: str, url: str | None = None, rate: float = CALLS_PER_SECOND) -> str:
    """Send the scores of a run to a tool, and return a line about it. A second call changes nothing there.

    `url` is the address of the tool. By default, it comes from the tool's environment variables, as the keys do.
    `rate` is the largest number of calls per second.

    Raises:
        UserError: The tool refuses the scores or does not respond, a key is missing, or `to` is wandb and its package
            is missing.
    """
    if to == WANDB:
        return f"logged to Weights & Biases as run {_log_to_wandb(run)}"
    tracker = TRACKERS[to]
    address = (url or tracker.address(os.environ)).rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise UserError(f"{plain_url(address)} is not an address of HTTP. Set --url or {tracker.addresses[0]}")
    headers = tracker.headers(os.environ)
    if tracker.needs_key and not headers:
        raise UserError(f"{to} needs its keys. Set {' and '.join(tracker.keys)}")
    client = TrackerClient(address, headers, rate, tracker.keys)
    calls = send_scores(to, tracked_scores(run), client)
    return f"sent to {to} at {plain_url(address)} with {amount(calls, 'call', 'calls')}"


def _log_to_wandb(run: RunTables) -> str:
    """Log the scores and the summary as a run of Weights & Biases. Return its id, which a second call reuses."""
    if find_spec(WANDB) is None:
        raise UserError("export --to wandb --send needs wandb: pip install wandb")
    import wandb  # type: ignore[import-not-found, unused-ignore]

    name = score_id(run.manifest.get("run") or run.place.name, "", "")[:WANDB_ID]
    logged = wandb.init(project=os.environ.get("WANDB_PROJECT", "untold"), id=name, name=run.place.name, resume="allow")
    artifact = wandb.Artifact(f"scores-{name}", type="evaluation")
    artifact.add(wandb.Table(columns=WANDB_COLUMNS, data=list(_wandb_rows(run))), "scores")
    logged.log_artifact(artifact)
    logged.summary.update(figures(run))
    logged.finish()
    return name


def parameters(run: RunTables) -> dict[str, str]:
    """Return the parameters of a run: metrics, models, samples, input and status."""
    manifest = run.manifest
    given = manifest.get("input") or {}
    found = {
        "metrics": ",".join(metrics_of(run)),
        "models": ",".join(manifest.get("models") or []),
        "samples": str((manifest.get("counts") or {}).get("samples", "")),
        "input": str(given.get("path", "")),
        "fingerprint": str(given.get("fingerprint", "")),
        "status": run.status,
        "untold": str((manifest.get("versions") or {}).get("untold", "")),
    }
    return {name: value[:PARAMETER_CHARACTERS] for name, value in found.items() if value}


def figures(run: RunTables) -> dict[str, float]:
    """Return the figures of the summary of a run, and the calls, tokens and cost of all attempts.

    The names are `<metric>.<figure>` over all samples, and `<metric>.<figure>.<system>` by system. They only have
    characters that MLflow accepts.
    """
    found: dict[str, float] = {}
    for row in run.summary().to_pylist():
        behind = "" if row["level"] == "overall" else f".{_plain(row['system'])}"
        for name in SUMMARY_FIGURES:
            if row[name] is not None:
                found[_distinct(f"{_plain(row['metric'])}.{name}{behind}", found)] = float(row[name])
    totals = run.manifest.get("totals") or {}
    names = ("calls", "prompt_tokens", "completion_tokens", "cost")
    return found | {name: float(totals[name]) for name in names if totals.get(name) is not None}


def _plain(name: str | None) -> str:
    return re.sub(r"[^\w\-. /]", "_", name or "none", flags=re.ASCII)


def _distinct(name: str, taken: Container[str]) -> str:
    """Return the name, with a number if it is already taken."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found
