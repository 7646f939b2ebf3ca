"""Open a run and analyse its tables in Arrow, pandas, SQL and Spark.

run = untold.open_run("results")
run.differences().to_pandas()
run.left_out(by="source").to_pandas()
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from untold.jobs import analysis, run_tables
from untold.jobs.run.terminal import Page, amount, table
from untold.jobs.summary.trends import date_of
from untold.udfs.errors import ENGINE, require
from untold.udfs.storage import StoragePath

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

    from untold.jobs.report.page import Report

# The first lines of an analysis
PYTHON_LINES = (
    "run.summary().to_pandas()",
    "run.differences().to_pandas()",
    "run.left_out().to_pandas()",
    'run.sql("select system, avg(score) from scores group by system").df()',
)


class Run(run_tables.RunTables):
    """The output of one run: its manifest, its tables and their analysis. `open_run` and `Session.score` return it.

    Methods with `others` analyse this run together with other runs.
    """

    def spark(self, name: str) -> DataFrame:
        """Return the table as a Spark frame of the active session or a new one. Raises like `dataset`."""
        require("Run.spark", ENGINE, "pyspark")
        from untold.jobs.run.session import active_session, read_parquet

        # Raises an error for an unknown name
        self.dataset(name)
        return read_parquet(active_session(), self.path_of(name).spark, mergeSchema=True)

    def compare(
        self,
        *others: run_tables.RunTables,
        metrics: Sequence[str] | None = None,
        measures: Sequence[str] | None = None,
        seed: int = 0,
        undefined: str = "mean",
        cluster: bool = False,
    ) -> dict[str, pa.Table]:
        """Rank the systems and test their differences like `untold compare`, without Spark.

        Args:
            others: Further runs.
            metrics: Names of metrics; None is all.
            measures: Names of measures to compare instead of scores; None is scores.
            seed: Seed of the resampling.
            undefined: `mean` leaves out responses without statements, and `zero` counts them as 0.
            cluster: Resample whole queries.

        Returns:
            `systems`, the best first for each metric, and `comparisons`, one row per pair of systems
            (docs/contract.md, "Tables").

        Raises:
            UntoldError: The runs cannot be compared.
        """
        runs = (self, *others)
        return analysis.compare_runs(
            runs, metrics=metrics, measures=measures, seed=seed, notify=_warn, cluster=cluster, undefined=undefined
        )

    def compare_judges(
        self,
        *others: run_tables.RunTables,
        metrics: Sequence[str] | None = None,
        families: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> pa.Table:
        """Return how judges rate families of systems, and if a judge favours its own family.

        The table is that of `untold compare --judges`. The judges are those of this run's panel, or this run and
        `others` have one judge each and the same samples.

        Args:
            others: Further runs, each with another judge.
            metrics: Names of metrics; None is all.
            families: Families of models and systems by name; by default the first word of a name.
            seed: Seed of the resampling.

        Raises:
            UntoldError: The runs have no two judges of one metric.
        """
        from untold.jobs.summary.judge_families import compare_judges

        rows = compare_judges((self, *others), metrics=metrics, families=families, seed=seed, notify=_warn)
        return pa.Table.from_pylist(rows)

    def differences(self, *others: run_tables.RunTables, **how: Any) -> pa.Table:
        """Return the differences of systems with 95 % intervals and adjusted p: `comparisons` of `compare`."""
        return self.compare(*others, **how)["comparisons"]

    def estimate(
        self,
        proxy: run_tables.RunTables | str | None = None,
        *,
        samples: str | os.PathLike[str] | None = None,
        labels: str | os.PathLike[str] | None = None,
        metrics: Sequence[str] | None = None,
        proxy_metric: str | None = None,
        undefined: str = "mean",
    ) -> dict[str, pa.Table]:
        """Estimate means over all samples from this run's scores and a cheap proxy (`untold estimate`).

        Args:
            proxy: A run of all samples with a cheaper model or metric, a file of sample_id and score, or `words` or
                `vectors`, which compare a response with its references or contexts.
            samples: The file or folder of all samples if the proxy is not a run; None is the input of this run.
            labels: A file of human labels (sample_id and score) instead of this run's scores. Without `proxy`, this run
                is the proxy.
            metrics: Names of metrics; None is all.
            proxy_metric: The metric of `proxy` if its name differs.
            undefined: See `compare`.

        Returns:
            `estimates` of all samples and of each system, and `differences` of systems, with the columns of the table
            `estimates`.

        Raises:
            UntoldError: The runs or labels do not match.
        """
        from untold.jobs.compare import estimate
        from untold.jobs.summary.estimating import EstimateRequest, open_proxy
        from untold.jobs.tables import ESTIMATES

        path, notes = None if labels is None else os.fspath(labels), list[str]()
        if isinstance(proxy, str):
            proxy = open_proxy(proxy, self, None if samples is None else os.fspath(samples))
        found = estimate(EstimateRequest(self, proxy, path, metrics, proxy_metric, undefined), notes.append)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return {name: pa.Table.from_pylist(rows, ESTIMATES) for name, rows in found.items()}

    differences_by_query = analysis.differences_by_query
    agreement = analysis.agreement
    distribution = analysis.distribution
    statuses = analysis.statuses
    costs = analysis.costs
    left_out = analysis.left_out
    topics = analysis.topics
    changes = analysis.changes
    trend = analysis.trend

    def export(self, to: str, output: str | os.PathLike[str]) -> None:
        """Write the run to a file for other tools.

        csv, xlsx, parquet and jsonl have one row per sample. trec has lines of measures, in one file per system if
        several systems answer a topic. trec_rag_nuggets has the assignments of nuggets, without incomplete responses.
        langfuse, phoenix, mlflow-traces, otlp and wandb have one record per sample and metric.

        Raises:
            UntoldError: `to` is unknown, openpyxl is not installed, or a worksheet cannot contain all samples.
        """
        from untold.jobs.export import export

        export(self, to, os.fspath(output))

    def report(self, file: str | os.PathLike[str] | None = None, *others: run_tables.RunTables) -> Report:
        """Return the report of this run and other runs as an HTML page, or write it to a file.

        Raises:
            UntoldError: A run has no scores, or the file cannot be written.
        """
        from untold.jobs.report.page import Report, make_report, write_report

        runs = (self, *others)
        return Report(make_report(runs)) if file is None else write_report(runs, file)

    def plot(self) -> Figure:
        """Plot the mean of each system with its interval, one panel per metric, as a Matplotlib figure.

        Raises:
            UntoldError: Matplotlib is not installed.
        """
        require("Run.plot", "notebook", "matplotlib", "networkx")
        from untold.jobs.plots import means

        return means(self)


def open_run(directory: str | os.PathLike[str], *, allow_running: bool = False) -> Run:
    """Return the run whose output is `directory`, a local path or a URI.

    Raises:
        UntoldError: manifest.json is missing or not readable, or the run has not ended and `allow_running` is False.
    """
    found = run_tables.open_run(directory, allow_running=allow_running)
    return Run(found.directory, found.manifest)


def open_runs(folder: str | os.PathLike[str]) -> list[Run]:
    """Return the runs of a folder in the order of their dates: `nightly/2026-11-19`, `nightly/2026-11-20`.

    Folders without a manifest and running runs are skipped. Raises UntoldError if no run remains.
    """
    folders = [entry.place for entry in StoragePath(os.fspath(folder)).entries() if entry.kind == "folder"]
    found = []
    for place in folders:
        with suppress(run_tables.UnreadableRunError):
            found.append(open_run(str(place)))
    if not found:
        raise run_tables.UnreadableRunError(f"{folder}: no folder in it is the output of a run that has ended")
    return sorted(found, key=lambda run: (date_of(run), run.directory))


def demo_output(name: str = "results") -> str:
    """Return the folder of a shipped output: `results`, `nightly` or `meta_evaluation`.

    `untold score` and `untold meta-evaluate` wrote these outputs with a script instead of a model.
    """
    return str(files("untold.conf").joinpath("demo", name))


def content_of(run: Run) -> dict[str, Any]:
    """Return the content of `untold open --json`. `tables` has the number of rows of each table."""
    named = {name: run.manifest.get(name) for name in ("metrics", "models", "counts", "made_by")}
    rows = {name: run.dataset(name).count_rows() for name in run.tables}
    return {"output": run.directory, "status": run.status, **named, "tables": rows}


def lines_of(run: Run, page: Page) -> Iterator[str]:
    """Return the lines of `untold open`: the run, its tables, and the next steps in Python, SQL and the shell."""
    counts = run.manifest.get("counts", {})
    metrics = ", ".join(run.manifest.get("metrics", ())) or "no metrics"
    models = f", judged by {', '.join(run.manifest['models'])}" if run.manifest.get("models") else ""
    samples = f", {amount(counts['samples'], 'sample')}" if "samples" in counts else ""
    yield f"{run.directory}: {run.status}; {metrics}{models}{samples}"
    if "made_by" in run.manifest:
        yield f"made by {run.manifest['made_by']}"
    rows = [[name, f"{count:,}"] for name, count in content_of(run)["tables"].items()]
    yield from ("", *table(["table", "rows"], rows, page), "", "in Python or a notebook:")
    yield f"  import untold; run = untold.open_run({run.directory!r})"
    if "scores" in run.tables:
        # An install that only reads has no pandas
        plain = (line.removesuffix(".to_pandas()").removesuffix(".df()") for line in PYTHON_LINES)
        yield from (f"  {line}" for line in (PYTHON_LINES if find_spec("pandas") else plain))
        where = shlex.quote(run.directory)
        ids = run.dataset("scores").head(1, columns=["sample_id"])["sample_id"].to_pylist()
        one = shlex.quote(str(ids[0])) if ids else "ID"
        yield from ("", "on the command line:", f"  untold show {where} --sample {one}", f"  untold compare {where}")
    else:
        yield '  run.table("NAME")'


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)
