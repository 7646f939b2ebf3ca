"""A run as notebooks and scripts open it: its tables in Arrow, pandas, SQL and Spark, and what they say.

run = untold.open_run("results")
run.differences().to_pandas()
run.left_out(by="source").to_pandas()
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from untold.jobs import analysis, run_tables
from untold.jobs.run.terminal import amount, page_of, table
from untold.jobs.summary.trends import date_of
from untold.udfs.errors import require
from untold.udfs.storage import StoragePath

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

    from untold.jobs.report.page import Report

# What an analyst asks first
PYTHON_LINES = (
    "run.summary().to_pandas()",
    "run.differences().to_pandas()",
    "run.left_out().to_pandas()",
    'run.sql("select system, avg(score) from scores group by system").df()',
)


class Run(run_tables.RunTables):
    """The output of one run: its manifest, its tables, and what they say. `open_run` and `Session.score` give one.

    Methods that take `others` are of this run and of these together.
    """

    def spark(self, name: str) -> DataFrame:
        """The table as a Spark frame, by the active session or one that this starts. Raises as `dataset`."""
        from untold.jobs.run.session import active_session, read_parquet

        # Says what is wrong with the name
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
        """Systems ranked and tested against each other, with the numbers of `untold compare`, and without Spark.

        Args:
            others: Further runs.
            metrics: Names of metrics; None is all.
            measures: Names of measures, whose values count in place of scores; None is scores.
            seed: Of the resampling.
            undefined: `mean`, or `zero`, which counts samples that state nothing as 0 where there was something to
                state.
            cluster: Resamples whole queries.

        Returns:
            `systems`, best first within a metric, and `comparisons`, a row two systems (docs/contract.md, "Tables").

        Raises:
            UntoldError: The runs cannot be compared.
        """
        runs = (self, *others)
        return analysis.compare_runs(
            runs, metrics=metrics, measures=measures, seed=seed, notify=_warn, cluster=cluster, undefined=undefined
        )

    def differences(self, *others: run_tables.RunTables, **how: Any) -> pa.Table:
        """How far two systems differ, with 95 % intervals and adjusted p: `comparisons` of `compare`."""
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
        """Means over all samples, from this run's scores of a part and a cheap proxy on all (`untold estimate`).

        Args:
            proxy: A run of all samples by a cheaper model or metric; a file of sample_id and score; `words` or
                `vectors`, which compare a response with its references or contexts.
            samples: The file or folder of all samples, of a proxy that is no run; None is what this run was drawn from.
            labels: A file of what people say (sample_id and score) in place of this run's scores; without `proxy`, this
                run is the proxy.
            metrics: Names of metrics; None is all.
            proxy_metric: The metric of `proxy` that is the proxy, where the names differ.
            undefined: As in `compare`.

        Returns:
            `estimates`, all samples and each system, and `differences` of systems; both have the columns of the table
            `estimates`.

        Raises:
            UntoldError: The runs or labels do not go together.
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
        rows = {"estimates": found.means, "differences": found.differences}
        return {name: pa.Table.from_pylist(own, ESTIMATES) for name, own in rows.items()}

    def differences_by_query(
        self, *others: run_tables.RunTables, n: int | None = 20, metrics: Sequence[str] | None = None
    ) -> pa.Table:
        """The n queries in which two systems differ most, or all, with both scores."""
        return analysis.differences_by_query((self, *others), n, metrics)

    def agreement(self, *others: run_tables.RunTables) -> pa.Table:
        """How alike two metrics judge the same samples: Spearman's and Pearson's coefficients."""
        return analysis.agreement((self, *others))

    def distribution(self, *others: run_tables.RunTables, bins: int = 10) -> pa.Table:
        """How many samples have which score, by metric and system."""
        return analysis.distribution((self, *others), bins)

    def statuses(self, *others: run_tables.RunTables) -> pa.Table:
        """What became of samples, by metric and system."""
        return analysis.statuses((self, *others))

    def costs(self, *others: run_tables.RunTables) -> pa.Table:
        """What the last start used, by stage and model, the dearest first."""
        return analysis.costs((self, *others))

    def left_out(
        self,
        *others: run_tables.RunTables,
        by: str = "statement",
        n: int | None = 20,
        metrics: Sequence[str] | None = None,
    ) -> pa.Table:
        """What answers leave out most, by `statement`, `query`, `source` or `system`: the n first rows, or all."""
        return analysis.left_out((self, *others), by, n, metrics)

    def topics(self, *others: run_tables.RunTables, n: int = 10, metrics: Sequence[str] | None = None) -> pa.Table:
        """What left out statements are about, in n groups by the vectors of the embedded model (`untold[local]`)."""
        return analysis.topics((self, *others), n, metrics)

    def changes(self, *others: run_tables.RunTables, metrics: Sequence[str] | None = None, seed: int = 0) -> pa.Table:
        """How each system changed from one run's date to the next, with 95 % intervals and adjusted p."""
        return analysis.changes((self, *others), metrics, seed)

    def trend(self, *others: run_tables.RunTables) -> pa.Table:
        """The summaries of runs by the dates in their folders' names."""
        return analysis.trend((self, *others))

    def export(self, to: str, output: str | os.PathLike[str]) -> None:
        """Writes one row a sample into a file: csv, xlsx, parquet or jsonl; or lines of measures, trec, in a file a
        system where several answer one topic; or trec_rag_nuggets, nuggets with their assignments, without responses
        that lack one.

        Raises:
            UntoldError: `to` is none of these, openpyxl is not installed, or a worksheet cannot hold all samples.
        """
        from untold.jobs.export import export

        export(self, to, os.fspath(output))

    def report(self, file: str | os.PathLike[str] | None = None, *others: run_tables.RunTables) -> Report:
        """This run, beside others, as one HTML page: shown in the notebook, or written to the file.

        Raises:
            UntoldError: A run has no scores, or the file cannot be written.
        """
        from untold.jobs.report.page import Report, make_report, write_report

        runs = (self, *others)
        return Report(make_report(runs)) if file is None else write_report(runs, file)

    def plot(self) -> Figure:
        """The mean of each system with its interval, a panel a metric, as a Matplotlib figure.

        Raises:
            UntoldError: Matplotlib is not installed.
        """
        require("Run.plot", "notebook", "matplotlib", "networkx")
        from untold.jobs.plots import means

        return means(self)


def open_run(directory: str | os.PathLike[str], *, allow_running: bool = False) -> Run:
    """The run whose output is `directory`: a local path or a URI that `pyarrow.fs` knows.

    Raises:
        UntoldError: There is no manifest.json that can be read, or the run has not ended and `allow_running` is False.
    """
    found = run_tables.open_run(directory, allow_running=allow_running)
    return Run(found.directory, found.manifest)


def open_runs(folder: str | os.PathLike[str]) -> list[Run]:
    """The runs whose outputs lie in a folder, by their dates: `nightly/2026-11-19`, `nightly/2026-11-20`.

    Folders without a manifest, and runs that have not ended, are left out. Raises UntoldError where none is left.
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
    """Where an output lies that ships with the package: `results`, `nightly` or `meta_evaluation`.

    They were made by `untold score` and `untold meta-evaluate` with a scripted judge in place of a model.
    """
    return str(files("untold.conf").joinpath("demo", name))


def lines_of(run: Run) -> Iterator[str]:
    """What a run is, its tables, and how to go on in Python, in SQL and on the command line."""
    counts = run.manifest.get("counts", {})
    metrics = ", ".join(run.manifest.get("metrics", ())) or "no metrics"
    models = f", judged by {', '.join(run.manifest['models'])}" if run.manifest.get("models") else ""
    samples = f", {amount(counts['samples'], 'sample')}" if "samples" in counts else ""
    yield f"{run.directory}: {run.status}; {metrics}{models}{samples}"
    if "made_by" in run.manifest:
        yield f"made by {run.manifest['made_by']}"
    rows = [[name, f"{run.dataset(name).count_rows():,}"] for name in run.tables]
    yield from ("", *table(["table", "rows"], rows, page_of(sys.stdout)), "", "in Python or a notebook:")
    yield f"  import untold; run = untold.open_run({run.directory!r})"
    if "scores" in run.tables:
        yield from (f"  {line}" for line in PYTHON_LINES)
        where = shlex.quote(run.directory)
        yield from ("", "on the command line:", f"  untold show {where} --sample ID", f"  untold compare {where}")
    else:
        yield '  run.pandas("NAME")'


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)
