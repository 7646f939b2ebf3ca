"""Study verdicts on claims against people's labels, from the calls to the report; methods, section 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from untold.jobs.inference.backends.cluster_checks import ClusterChecks, reached_places
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
from untold.jobs.settings.model import Settings
from untold.jobs.study.agreement import read_rows as rows_of
from untold.jobs.study.report import Row, by_owner, interval, number, section
from untold.jobs.study.study_inputs import SHOWN, MetaEvaluationError, raise_all, read_columns
from untold.jobs.tables import META_EVALUATION
from untold.udfs.errors import aside, near_misses, shorten
from untold.udfs.facts.claim_verdicts import NOT_SUPPORTED
from untold.udfs.samples.adapters import Adapter
from untold.udfs.samples.labelled import CLAIM_FORMATS, NEEDS, PLAIN
from untold.udfs.statistics.item_agreement import (
    VERDICT_MEASURES,
    VERDICTS,
    constant_label,
    labels_of,
    supported_share,
    verdict_intervals,
)

RESTATE = "restate_answer"
# Hidden from readers of tables, which pass over names that begin with an underscore
WORK = "_asking"


@dataclass(frozen=True)
class StageRows:
    """What a stage gave: the columns asked for, how the asking ended, and the rows of the table `usage`."""

    rows: DataFrame
    ending: Ending
    usage: Sequence[Mapping[str, Any]] = field(default=())


@dataclass(frozen=True)
class StageAsker:
    """Asks by the endpoint of some settings. Completions are kept as those of any run, by `store` or in `output`.

    `command` is how to start the run again that asks.
    """

    settings: Settings
    embedded: bool
    output: str
    display: Display
    wait: bool = True
    retry_failed: bool = False
    command: str = ""

    def ask(self, stage: str, rows: DataFrame, carry: Sequence[str], columns: Sequence[str]) -> StageRows:
        """Answers a stage for rows: the columns of `carry`, then those of `columns` out of the stage's results.

        What `jobs.asking.runner.StageRunner.ask` says of rows holds; where the asking ended early, some are unasked,
        and what was answered is kept for the next start.
        """
        settings, note = self.settings, self.display.note
        workspace = Workspace(rows.sparkSession, f"{self.output}/{WORK}")
        workspace.remove()
        run, retry = uuid4().hex[:12], self.retry_failed
        with (
            RunEndpoint(settings, embedded=self.embedded, wait=self.wait, notify=note) as endpoint,
            open_engines(settings, self.display, run, wait=self.wait, retry_failed=retry) as engines,
        ):
            stages = {stage: bind_stage(stage, settings, embedded_model=endpoint.model_sha256)}
            store = store_of(settings, self.output)
            places = reached_places(self.output, workspace.folder, store)
            reach = ClusterChecks(rows.sparkSession, places, note=note)
            reach.check_executors()
            runner = StageRunner(engines, settings, stages, endpoint, workspace, store, reach=reach)
            try:
                asked = runner.ask(stage, rows, carry=tuple(carry))
                # The rows lie in the working folder, which goes before anybody reads them
                found = asked.select(*carry, *columns).localCheckpoint()
                return StageRows(found, runner.ending, runner.usage)
            finally:
                workspace.remove()

    def restate(self, pairs: DataFrame) -> DataFrame:
        """Columns question, answer, statement, error_type from question, answer: the stage `restate_answer`.

        A pair that failed has no statement and an error_type. Raises ActorProcessError where the asking ended early.
        Methods, section 6.
        """
        given = self.ask(RESTATE, pairs, ("question", "answer"), ("statement", "error_type"))
        if given.ending.reason is not None:
            raise ActorProcessError(given.ending.explain(self.command))
        return given.rows


DATASET = "claims"
STAGE = "verify_claim"

CONSTANT, PEOPLE = "constant", "people"
SHARE = "supported_share"
KEYS = ["model", "metric", "claim_id"]


@dataclass(frozen=True)
class LabelledClaims:
    """The labelled claims of an input: claim_id, unit, system, claim, evidence array<string>, label; a row a claim.

    The unit is the query_id, where there is one, and else the claim itself.
    """

    about: str
    rows: DataFrame


@dataclass(frozen=True)
class ClaimVerdicts:
    """What models say of claims: model, metric, claim_id, verdict, null if unknown. `metrics` are those of each."""

    rows: DataFrame
    metrics: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class VerifiedEndpoints:
    """How the asking of an endpoint ended: exit code, the line that says why early, how many had no evidence."""

    exit_code: int
    message: str | None
    without_evidence: int


def read_claims(
    spark: SparkSession,
    path: str,
    format: str | None,
    limit: int | None,
    draw: Draw | None,
    options: ReadOptions = AS_THEY_ARE,
) -> Samples:
    """The claims of a file as samples (`udfs.samples.labelled_claims`). Raises what `read_rows` raises."""
    return read_rows(spark, path, layout_of(format), limit, NEEDS, draw, ("query_id",), options)


def layout_of(format: str | None) -> Adapter:
    """The layout of claims of that name, the plain one for None. Raises SampleError for another name."""
    name = format or PLAIN
    if name not in CLAIM_FORMATS:
        raise SampleError(f"unknown format `{name}`{aside(near_misses(name, CLAIM_FORMATS))} of claims")
    return CLAIM_FORMATS[name]


def label_claims(about: str, samples: DataFrame) -> LabelledClaims:
    """The claims of samples that can be read. Raises MetaEvaluationError for labels that are none of `VERDICTS`.

    Labels are compared without case; `not supported` and `not-supported` are `not_supported`.
    """
    label = F.regexp_replace(F.lower(F.trim("label")), r"[\s_-]+", "_")
    unit = F.col("query_id").cast("string") if "query_id" in samples.columns else F.lit(None).cast("string")
    usable = samples.where("response IS NOT NULL AND contexts IS NOT NULL AND label IS NOT NULL")
    rows = usable.select(
        F.col("sample_id").alias("claim_id"),
        F.coalesce(unit, F.col("sample_id")).alias("unit"),
        "system",
        F.col("response").alias("claim"),
        F.transform("contexts", lambda context: context["text"]).alias("evidence"),
        label.alias("label"),
    )
    wrong = rows.where(~F.col("label").isin(*VERDICTS)).groupBy("label").count().orderBy(F.desc("count"), "label")
    found = wrong.collect()
    if found:
        parts = [f"`{shorten(row['label'])}`{aside(near_misses(row['label'], VERDICTS))}" for row in found[:SHOWN]]
        have = amount(sum(row["count"] for row in found), "claim has", "claims have")
        raise MetaEvaluationError(
            f"{about}: {have} a label that is none of "
            f"{', '.join(VERDICTS)}: {', '.join(parts)}{', ...' if len(found) > SHOWN else ''}; correct or remove them"
        )
    if rows.isEmpty():
        raise MetaEvaluationError(f"{about}: no claim with a label; give rows of claim, evidence and label")
    return LabelledClaims(about, rows)


def verify_claims(claims: LabelledClaims, asker: StageAsker, place: str) -> VerifiedEndpoints:
    """Asks `verify_claim` of all claims with evidence, and writes the tables `claims` and `failures` at a place.

    A claim without evidence is not supported, unasked, as in the metric `importance`. Where the asking ended early,
    nothing is written.
    """
    given = claims.rows.select("claim_id", "claim", "evidence")
    bare = given.where(F.size("evidence") == 0)
    told = asker.ask(
        STAGE, given.where(F.size("evidence") > 0), ("claim_id",), ("relation", "request_id", "error_type", "error")
    )
    if told.ending.reason is not None:
        return VerifiedEndpoints(told.ending.exit_code({}, "none"), told.ending.explain(asker.command), 0)
    said = told.rows.select("claim_id", F.col("relation").alias("verdict"))
    silent = bare.select("claim_id", F.lit(NOT_SUPPORTED).alias("verdict"))
    named = F.lit(STAGE).alias("metric")
    every = said.unionByName(silent).join(given, on="claim_id", how="inner")
    table = every.select(
        F.col("claim_id").alias("sample_id"), named, "claim_id", F.col("claim").alias("text"), "verdict"
    )
    lost = told.rows.where(has_failed())
    failures = lost.select(
        F.col("claim_id").alias("sample_id"), named, F.lit(STAGE).alias("stage"), "request_id", "error_type", "error"
    )
    write_parquet(table, f"{place}/claims")
    write_parquet(failures, f"{place}/failures")
    failed, silent_count, all_claims = lost.count(), bare.count(), given.count()
    statuses = {"ok": all_claims - failed, "failed": failed}
    return VerifiedEndpoints(told.ending.exit_code(statuses, asker.settings.fail_on_error), None, silent_count)


def read_verdicts(claims: LabelledClaims, places: Mapping[str, str], metrics: Sequence[str] | None) -> ClaimVerdicts:
    """The table `claims` of each model, from an output or a bare folder of Parquet: claim_id, verdict, perhaps metric.

    Raises MetaEvaluationError, a line a problem, for missing columns, other verdicts than `VERDICTS`, verdicts on no
    claim of the input, and two on one. A claim without a verdict is left out and counted.
    """
    spark = claims.rows.sparkSession
    frames, found, problems = [], {}, []
    for model, place in places.items():
        where = f"{model} ({place})"
        rows = read_columns(spark, where, place, "claims", ("claim_id", "verdict"))
        metric = F.col("metric").cast("string") if "metric" in rows.columns else F.lit(STAGE)
        named = rows.select(
            F.lit(model).alias("model"),
            F.coalesce(metric, F.lit(STAGE)).alias("metric"),
            F.col("claim_id").cast("string").alias("claim_id"),
            F.col("verdict").cast("string").alias("verdict"),
        )
        has = sorted(row["metric"] for row in named.select("metric").distinct().collect())
        found[model] = tuple(metrics or has)
        problems += [
            f"{where}: no verdicts of metric `{shorten(name)}`{aside(near_misses(name, has))}; it has {', '.join(has)}"
            for name in found[model] or ("any",)
            if name not in has
        ]
        frames.append(named.where(F.col("metric").isin(*found[model])))
    raise_all(problems)
    verdicts = reduce(DataFrame.unionByName, frames)
    _check(verdicts, claims)
    return ClaimVerdicts(verdicts, found)


def _check(verdicts: DataFrame, claims: LabelledClaims) -> None:
    known = claims.rows.select("claim_id", F.lit(True).alias("known"))
    given = verdicts.groupBy(*KEYS).agg(F.count("*").alias("given"), F.first("verdict").alias("verdict"))
    both = given.join(known, on="claim_id", how="left")
    fault = (
        F.when(F.isnull("known"), "unknown")
        .when(F.col("given") > 1, "double")
        .when(~F.col("verdict").isin(*VERDICTS), "other")
    )
    known_verdicts = ", ".join(VERDICTS)
    words = {
        "unknown": ("verdict is on no claim of the input", "verdicts are on no claim of the input"),
        "double": ("claim has several verdicts", "claims have several verdicts"),
        "other": (f"verdict is none of {known_verdicts}", f"verdicts are none of {known_verdicts}"),
    }
    faults = both.select(*KEYS, fault.alias("fault")).where("fault IS NOT NULL").groupBy("model", "metric", "fault")
    shown = faults.agg(F.count("*").alias("count"), F.min("claim_id").alias("first"))
    raise_all(
        [
            f"{row['model']}: {row['metric']}: {amount(row['count'], *words[row['fault']])} ({claims.about}): claim_id "
            f"`{shorten(row['first'])}`"
            for row in shown.orderBy("model", "metric", "fault").collect()
        ]
    )


def evaluation_rows(
    claims: LabelledClaims, verdicts: ClaimVerdicts, *, clustered: bool, seed: int
) -> list[dict[str, Any]]:
    """The rows of the table `meta_evaluation`: each metric of a model, the constant label, and shares by system.

    A claim without a verdict is left out and counted. With `clustered`, whole units are resampled.
    """
    unit = (F.col("unit") if clustered else F.lit(None).cast("string")).alias("unit")
    named = claims.rows.select("claim_id", unit, "system", "label")
    people = rows_of(named.groupBy("unit", "system", "label").agg(F.count("*").alias("count")))
    joined = verdicts.rows.join(named, on="claim_id", how="inner").groupBy(
        "model", "metric", "unit", "system", "label", "verdict"
    )
    said = rows_of(joined.agg(F.count("*").alias("count")))
    labels, size = labels_of(people), sum(row["count"] for row in people)
    found: list[dict[str, Any]] = []
    for model, metrics in verdicts.metrics.items():
        for metric in metrics:
            own = [row for row in said if (row["model"], row["metric"]) == (model, metric)]
            known = [row for row in own if row["verdict"] is not None]
            sizes = {"n": sum(row["count"] for row in known)}
            sizes["excluded"] = size - sizes["n"]
            for name, one in verdict_intervals(known, labels, seed=seed).items():
                found.append({"metric": metric, "model": model, "measure": name} | one.columns() | sizes)
            found += [{"metric": metric, "model": model} | row for row in _shares(known, people, "verdict", seed)]
    constant = constant_label(people)
    always = [{**row, "verdict": constant} for row in people]
    for name, one in verdict_intervals(always, labels, seed=seed).items():
        found.append({"metric": CONSTANT, "measure": name, "n": size, "excluded": 0} | one.columns())
    found += [{"metric": PEOPLE} | row for row in _shares(people, people, "label", seed)]
    ours = {"dataset": DATASET, "level": "item"}
    return [{name: (ours | row).get(name) for name in META_EVALUATION.names} for row in found]


def _shares(rows: Sequence[Any], people: Sequence[Any], column: str, seed: int) -> list[dict[str, Any]]:
    """The share of supported claims, of all and of each system: `supported_share` and `supported_share:<system>`."""
    systems = sorted({row["system"] for row in people if row["system"] is not None})
    found = []
    for system in (None, *systems):
        own = [row for row in rows if system is None or row["system"] == system]
        size = sum(row["count"] for row in people if system is None or row["system"] == system)
        one, n = supported_share(own, column, seed=seed)
        measure = SHARE if system is None else f"{SHARE}:{system}"
        found.append({"measure": measure, "n": n, "excluded": size - n} | one.columns())
    return found


# Min et al. 2023, of the human labels that are public; ours have to be the same where those are the input
PUBLISHED_SHARES = {"ChatGPT": 0.6537, "InstructGPT": 0.5158, "PerplexityAI": 0.8642}


def render(rows: Sequence[Row], *, clustered: bool, notes: Sequence[str]) -> str:
    """The report as Markdown. rows: of the table `meta_evaluation`, of one study. Names from outside are escaped."""
    units = "whole queries" if clustered else "single claims"
    parts = [
        "# Meta-evaluation on claims",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}. Where no label is `contradicted`, a verdict of it counts "
        "as `not_supported`. Claims without a verdict are left out.",
        *[f"Note: {note}." for note in notes],
        _measure_table(rows),
        _share_table(rows),
    ]
    return "\n\n".join(parts) + "\n"


def _measure_table(rows: Sequence[Row]) -> str:
    """A line a metric of a model, and one for the constant label."""
    lines = [
        [metric, model or "(baseline)", f"{own['accuracy']['n']:,}", f"{own['accuracy']['excluded']:,}"]
        + [interval(own[name], 4) for name in VERDICT_MEASURES]
        for (metric, model), own in by_owner(rows, VERDICT_MEASURES).items()
    ]
    return section("Verdicts", "", ["metric", "model", "n", "left out", *VERDICT_MEASURES], lines)


def _share_table(rows: Sequence[Row]) -> str:
    """A line a system: what share of its claims people, and each metric of a model, call supported."""
    owners = list(dict.fromkeys((row["metric"], row["model"]) for row in rows if row["metric"] != CONSTANT))
    owners.sort(key=lambda owner: owner[0] != PEOPLE)
    by_key = {(row["measure"], row["metric"], row["model"]): row for row in rows}
    measures = dict.fromkeys(row["measure"] for row in rows if row["measure"].startswith(SHARE))
    lines = []
    for measure in measures:
        system = measure.partition(":")[2]
        found = [by_key.get((measure, *owner)) for owner in owners]
        shown = ["-" if row is None else interval(row, 4) for row in found]
        lines.append([system or "all", *shown, number(PUBLISHED_SHARES.get(system), 4)])
    names = [PEOPLE if metric == PEOPLE else f"{metric} of {model}" for metric, model in owners]
    note = "Of all claims, pooled. Published: FActScore's human labels (Min et al. 2023), S / (S + NS)."
    return section("Supported", note, ["system", *names, "published"], lines)
