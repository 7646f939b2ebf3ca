"""Compare verdicts on claims with human labels, from the calls of the stage to the report; methods, section 6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inference.backends.backends import ClusterChecks, reached_places
from untold.jobs.inference.backends.process import ActorProcessError
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.call_settings import RunEndpoint
from untold.jobs.inference.stage.engines import open_engines
from untold.jobs.inference.stage.requests import has_failed
from untold.jobs.inference.stage.runner import StageRunner
from untold.jobs.inputs.files import AS_THEY_ARE, ReadOptions, SampleError
from untold.jobs.inputs.samples import Samples, read_rows
from untold.jobs.inputs.sampling import Draw
from untold.jobs.run.folders import Workspace, write_parquet
from untold.jobs.run.outcome import Ending
from untold.jobs.run.output import store_of
from untold.jobs.run.terminal import Display, amount
from untold.jobs.study.agreement import table_rows
from untold.jobs.study.judgements import (
    BY_ITEM,
    Judgements,
    LabelledUnits,
    MetaEvaluationError,
    Row,
    Source,
    check_labels,
    fold_label,
    whole_rows,
)
from untold.jobs.study.meta_evaluation import (
    CLAIMS,
    MetaEvaluationOutcome,
    MetaEvaluationRequest,
    Study,
    StudyEndpoint,
    StudyFindings,
)
from untold.jobs.study.rendering import (
    FACTSCORE,
    Columns,
    document,
    find_published,
    interval,
    intervals,
    pivot,
    section,
)
from untold.udfs.errors import aside, near_misses
from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.samples.adapters import Adapter
from untold.udfs.samples.labelled import CLAIM_FORMATS, NEEDS, PLAIN
from untold.udfs.statistics.confusion import accuracy, kappa, macro_f1
from untold.udfs.statistics.intervals import wilson_interval
from untold.udfs.statistics.question_resampling import count_tables, mean_interval

RESTATE = "restate_answer"
# Readers of tables ignore names with a leading underscore
WORK = "_asking"


@dataclass(frozen=True)
class StageCaller:
    """A runner of single stages at an endpoint. Keeps completions in the output of the request, or in its store."""

    request: MetaEvaluationRequest
    endpoint: StudyEndpoint
    display: Display

    def ask(
        self, stage: str, rows: DataFrame, carry: Sequence[str], columns: Sequence[str]
    ) -> tuple[DataFrame, Ending]:
        """Run a stage over rows. Return the columns `carry` of the rows and `columns` of the results, and the ending.

        If the run ends early, some rows have no completion; the next run uses the completions of the others.
        """
        request, settings, note = self.request, self.endpoint.settings, self.display.note
        workspace = Workspace(rows.sparkSession, f"{request.output}/{WORK}")
        workspace.remove()
        run, wait, retry_failed = uuid4().hex[:12], request.wait, request.retry_failed
        with (
            RunEndpoint(settings, embedded=self.endpoint.embedded, wait=wait, notify=note) as endpoint,
            open_engines(settings, self.display, run, wait=wait, retry_failed=retry_failed) as engines,
        ):
            stages = {stage: bind_stage(stage, settings, embedded_model=endpoint.model_sha256)}
            store = store_of(settings, request.output)
            reach = ClusterChecks(rows.sparkSession, reached_places(request.output, workspace.folder, store), note=note)
            reach.check_executors()
            runner = StageRunner(engines, settings, stages, endpoint, workspace, store, reach=reach)
            try:
                asked = runner.ask(stage, rows, carry=tuple(carry))
                # The working folder of the rows is removed before they are read
                return asked.select(*carry, *columns).localCheckpoint(), runner.ending
            finally:
                workspace.remove()

    def restate(self, spark: SparkSession, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Run `restate_answer` on pairs of question and answer. Return these with statement and error_type.

        A failed pair has an error_type and no statement. Raises ActorProcessError if the run ends early. Methods,
        section 6.
        """
        given = spark.createDataFrame(list(pairs), "question string, answer string")
        rows, ending = self.ask(RESTATE, given, ("question", "answer"), ("statement", "error_type"))
        if ending.reason is not None:
            raise ActorProcessError(ending.explain(self.request.command))
        found: list[dict[str, Any]] = rows.toArrow().to_pylist()
        return found


STAGE = "verify_claim"
# The labels and the verdicts
VERDICTS = (SUPPORTED, CONTRADICTED, NOT_SUPPORTED)
VERDICT_MEASURES = {"accuracy": accuracy, "kappa": kappa, "macro_f1": macro_f1}
CONSTANT, PEOPLE = "constant", "people"
SHARE = "supported_share"
KEY = ("claim_id",)


def _read(_: str, rows: pa.Table) -> pa.Table:
    metric = rows["metric"].cast(pa.string()) if "metric" in rows.column_names else pa.nulls(len(rows), pa.string())
    named = {name: rows[name].cast(pa.string()) for name in (*KEY, "verdict")}
    return pa.table(named | {"metric": pc.fill_null(metric, STAGE)})


VERDICTS_OF_CLAIMS = Source(
    table="claims",
    required=(*KEY, "verdict"),
    optional=("metric",),
    read=_read,
    unit=("claim", "claims"),
    value=("verdict", "verdicts"),
    rows="verdicts",
    example="claim_id `{}`",
    allowed=VERDICTS,
)


@dataclass(frozen=True)
class ClaimStudy(Study):
    """A study of verdicts on claims."""

    source = VERDICTS_OF_CLAIMS

    @cached_property
    def claims(self) -> DataFrame:
        """The usable claims: claim_id, unit, system, claim, evidence array<string>, label.

        The unit is the query_id, or else the claim itself.
        """
        samples = self.samples
        unit = F.col("query_id").cast("string") if "query_id" in samples.columns else F.lit(None).cast("string")
        rows = samples.where("response IS NOT NULL AND contexts IS NOT NULL AND label IS NOT NULL").select(
            F.col("sample_id").alias("claim_id"),
            F.coalesce(unit, F.col("sample_id")).alias("unit"),
            "system",
            F.col("response").alias("claim"),
            F.transform("contexts", lambda context: context["text"]).alias("evidence"),
            "label",
        )
        return self.steps.keep(rows, "claims")

    @cached_property
    def units(self) -> LabelledUnits:
        """The labelled claims."""
        return label_claims(self.request.input, self.claims.select(*KEY, "unit", "system", "label").toArrow())

    def verify(self, endpoint: StudyEndpoint, display: Display) -> MetaEvaluationOutcome:
        """Verify the claims at an endpoint."""
        return verify_claims(
            self.claims, StageCaller(self.request, endpoint, display), self.request.runs[endpoint.model]
        )

    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the verdicts of the models with the labels."""
        clustered, seed = self.request.cluster, self.request.settings.statistics.seed
        rows = evaluation_rows(self.units, found, clustered=clustered, seed=seed)
        report = render(rows, clustered=clustered)
        return StudyFindings({"meta_evaluation": rows}, report, {"metrics": list(found.all_metrics)})


def read_claims(
    spark: SparkSession,
    path: str,
    format: str | None,
    limit: int | None,
    draw: Draw | None,
    options: ReadOptions = AS_THEY_ARE,
) -> Samples:
    """Read the claims of a file as samples (`udfs.samples.labelled`). Raises the errors of `read_rows`."""
    return read_rows(spark, path, layout_of(format), limit, NEEDS, draw, ("query_id",), options)


def layout_of(format: str | None) -> Adapter:
    """Return the format of claims of that name, or the plain one. Raises SampleError for an unknown name."""
    name = format or PLAIN
    if name not in CLAIM_FORMATS:
        raise SampleError(f"unknown format `{name}`{aside(near_misses(name, CLAIM_FORMATS))} of claims")
    return CLAIM_FORMATS[name]


def label_claims(about: str, claims: pa.Table) -> LabelledUnits:
    """Return the claims with normalised labels: `Not supported` becomes `not_supported`.

    Raises MetaEvaluationError for labels that are not in `VERDICTS`, and for an input without labels.
    """
    labels = [fold_label(label) for label in claims["label"].to_pylist()]
    check_labels(about, labels, VERDICTS, VERDICTS_OF_CLAIMS.unit)
    if not labels:
        raise MetaEvaluationError(f"{about} has no claim with a label. Give rows of claim, evidence and label")
    return LabelledUnits(about, claims.drop_columns(["label"]).append_column("label", pa.array(labels)), KEY)


def verify_claims(claims: DataFrame, caller: StageCaller, place: str) -> MetaEvaluationOutcome:
    """Run `verify_claim` on all claims with evidence, and write the tables `claims` and `failures` to a folder.

    A claim without evidence is not supported, as in the metric `importance`. Writes nothing if the run ends early.
    """
    given = claims.select("claim_id", "claim", "evidence")
    bare = given.where(F.size("evidence") == 0)
    columns = ("relation", "request_id", "error_type", "error")
    rows, ending = caller.ask(STAGE, given.where(F.size("evidence") > 0), KEY, columns)
    if ending.reason is not None:
        message = ending.explain(caller.request.command)
        return MetaEvaluationOutcome(ending.exit_code({}, "none"), message=message)
    said = rows.select("claim_id", F.col("relation").alias("verdict"))
    silent = bare.select("claim_id", F.lit(NOT_SUPPORTED).alias("verdict"))
    names = [F.col("claim_id").alias("sample_id"), F.lit(STAGE).alias("metric")]
    every = said.unionByName(silent).join(given, on="claim_id", how="inner")
    write_parquet(every.select(*names, "claim_id", F.col("claim").alias("text"), "verdict"), f"{place}/claims")
    lost = rows.where(has_failed())
    failures = lost.select(*names, F.lit(STAGE).alias("stage"), "request_id", "error_type", "error")
    write_parquet(failures, f"{place}/failures")
    failed, without = lost.count(), bare.count()
    code = ending.exit_code({"ok": given.count() - failed, "failed": failed}, caller.endpoint.settings.fail_on_error)
    have = amount(without, "claim has", "claims have")
    return MetaEvaluationOutcome(code, message=f"{have} no evidence and count as not supported" if without else None)


def evaluation_rows(units: LabelledUnits, found: Judgements, *, clustered: bool, seed: int) -> list[dict[str, Any]]:
    """Return the rows of the table `meta_evaluation`: each metric of a model, the constant label, and shares by system.

    Claims without a verdict are left out and counted. With `clustered`, whole queries are resampled.
    """
    people = units.column("label")

    def agreement(verdicts: Sequence[str | None]) -> list[dict[str, Any]]:
        return agreement_rows(people, verdicts, units.column("unit"), clustered=clustered, seed=seed)

    def shares(verdicts: Sequence[str | None]) -> list[dict[str, Any]]:
        return share_rows(units, verdicts, clustered=clustered, seed=seed)

    # The first of equally frequent labels
    constant = max(VERDICTS, key=people.count)
    rows: list[dict[str, Any]] = []
    for model, metric in found.owners:
        verdicts = found.tables[model, metric]["verdict"].to_pylist()
        rows += [{"metric": metric, "model": model} | row for row in agreement(verdicts) + shares(verdicts)]
    rows += [{"metric": CONSTANT} | row for row in agreement([constant] * len(people))]
    rows += [{"metric": PEOPLE} | row for row in shares(people)]
    return whole_rows(rows, dataset=CLAIMS, level=BY_ITEM)


def agreement_rows(
    labels: Sequence[str], verdicts: Sequence[str | None], units: Sequence[str], *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """Return the agreement of labels and verdicts, by claim. A null verdict does not count.

    If no label is `contradicted`, people did not distinguish it from `not_supported`, and verdicts count so too. With
    `clustered`, the claims of a unit are resampled together. Otherwise accuracy has Wilson's interval.
    """
    names = [name for name in VERDICTS if name in labels]
    # A verdict that is no label has the last column
    columns = dict.fromkeys(VERDICTS, len(names)) | {name: place for place, name in enumerate(names)}
    if CONTRADICTED not in names:
        columns[CONTRADICTED] = columns[NOT_SUPPORTED]
    codes = [-1 if verdict is None else columns[verdict] for verdict in verdicts]
    tables = count_tables([names.index(label) for label in labels], codes, units, (len(names), len(names) + 1))
    tables = tables if clustered else tables.sum(axis=0)
    rows = table_rows(VERDICT_MEASURES, tables, excluded=codes.count(-1), seed=seed)
    if not clustered:
        accuracy_row = next(row for row in rows if row["measure"] == "accuracy")
        accuracy_row |= wilson_interval(int(np.trace(tables)), int(tables.sum())).columns()
    return rows


def share_rows(
    units: LabelledUnits, verdicts: Sequence[str | None], *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """Return the share of supported claims, of all and by system: `supported_share` and `supported_share:<system>`.

    For labels it is the published precision of human labels, S / (S + NS). Resamples as `agreement_rows`.
    """
    systems, owners, rows = units.column("system"), units.column("unit"), []
    known = np.array([verdict is not None for verdict in verdicts], dtype=bool)
    supported = np.array([verdict == SUPPORTED for verdict in verdicts], dtype=np.int64)
    for system in (None, *sorted(set(systems) - {None})):
        own = np.array([system in (None, name) for name in systems], dtype=bool)
        sums, sizes = supported * own, (own & known).astype(np.int64)
        n = int(sizes.sum())
        one = mean_interval(sums, sizes, owners, seed=seed) if clustered else wilson_interval(int(sums.sum()), n)
        measure = SHARE if system is None else f"{SHARE}:{system}"
        rows.append({"measure": measure, "n": n, "excluded": int(own.sum()) - n} | one.columns())
    return rows


def render(rows: Sequence[Row], *, clustered: bool) -> str:
    """Return the report as Markdown, from the rows of the table `meta_evaluation`."""
    units = "whole queries" if clustered else "single claims"
    measures = intervals(VERDICT_MEASURES, 4)
    columns: Columns = ["metric", ("model", "baseline"), "n", ("left out", "excluded"), *measures]
    return document(
        "Meta-evaluation on claims",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}. If no label is `contradicted`, this verdict counts "
        "as `not_supported`. Claims without a verdict are excluded.",
        section("Verdicts", "", columns, pivot(rows, VERDICT_MEASURES)),
        _share_table(rows),
    )


def _share_table(rows: Sequence[Row]) -> str:
    """Return by system the shares of claims that people and each metric of a model call supported."""
    shares = [row for row in rows if row["measure"].startswith(SHARE)]
    by_measure: dict[str, dict[str, Any]] = {}
    for row in sorted(shares, key=lambda row: row["metric"] != PEOPLE):
        system = row["measure"].partition(":")[2]
        figure = find_published("factscore", PEOPLE, system, SHARE, FACTSCORE)
        own = by_measure.setdefault(
            row["measure"], {"system": system or "all", "published": "-" if figure is None else figure["text"]}
        )
        own[PEOPLE if row["metric"] == PEOPLE else f"{row['metric']} of {row['model']}"] = interval(row, 4)
    names = dict.fromkeys(name for own in by_measure.values() for name in own)
    columns = sorted(names, key=lambda name: (name == "published") - (name == "system"))
    note = "All claims are pooled. The published values are FActScore's human labels (Min et al. 2023), S / (S + NS)."
    return section("Supported", note, columns, by_measure.values())
