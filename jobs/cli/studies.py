"""The subcommands that study systems: generate, compare, combine-studies, sweep and curve."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from untold.jobs.cli.arguments import (
    RANDOM_OPTION,
    READ_OPTIONS,
    RUN_FLAGS,
    STRATIFY_OPTION,
    Argument,
    Command,
    Option,
    Options,
    check_samples,
    flag,
    load,
    run_fields,
    run_job,
    settings_options,
    settings_without_endpoint,
)
from untold.jobs.cli.meta_evaluation import print_report
from untold.jobs.cli.values import (
    CONTEXTS_APART,
    count,
    names,
    one_of,
    question_formats,
    weights,
    width,
)

if TYPE_CHECKING:
    from untold.jobs.inputs.files import ReadOptions
    from untold.jobs.summary.estimating import EstimateRequest


def _generate(options: Options) -> int:
    """Questions to the answers of several systems, laid out as samples to be scored."""
    if (options.format == CONTEXTS_APART) != (options.contexts is not None):
        raise click.UsageError(f"--format {CONTEXTS_APART} and --contexts go together: give both, or neither")
    # Only here: wrong use is told before the engines are imported
    from untold.jobs.settings.loading import load_systems

    systems = load_systems(options.systems, lambda layer: load(options, system=layer))
    read = _check_questions(options)
    from untold.jobs.generate import GenerateRequest, generate, show_systems

    request = GenerateRequest(
        **run_fields(options, next(iter(systems.values())).settings, read),
        systems=systems,
        contexts=options.contexts,
        closed_book=options.closed_book,
        format=None if options.format == CONTEXTS_APART else options.format,
    )
    return run_job(generate, request, show_systems)


def _check_questions(options: Options) -> ReadOptions:
    """How the questions are read. Raises what `check_samples` raises, for the file of their contexts too."""
    from untold.jobs.inputs.checking import adapter_of, check_input
    from untold.jobs.inputs.questions import QUESTION
    from untold.udfs.samples.adapters import CONTEXTS, QUESTIONS

    if options.contexts is None:
        adapter = adapter_of(options.format)
        # A known data set may have questions without contexts
        return check_samples(options, QUESTION if adapter is None else QUESTION[:1], adapter)
    read = check_samples(options, (), QUESTIONS)
    check_input(options.contexts, replace(read, columns={}), (), CONTEXTS)
    return read


def _compare(options: Options) -> int:
    """Rank the systems of outputs of `untold score`. It needs neither an endpoint nor Spark."""
    from untold.jobs.compare import comparison_lines
    from untold.jobs.run.output import absolute
    from untold.jobs.run.terminal import Display, page_of, print_lines
    from untold.jobs.run_tables import open_run
    from untold.jobs.summary.ranking import compare_scores

    settings = settings_without_endpoint(options)
    with Display() as display:
        display.status("comparing systems")
        found = compare_scores(
            [open_run(absolute(directory)) for directory in options.runs],
            metrics=options.metric,
            measures=options.measure,
            seed=settings.statistics.seed,
            notify=display.note,
            cluster=options.cluster,
            undefined=options.undefined,
        )
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print_lines(
            comparison_lines(
                found,
                page_of(sys.stdout),
                every=options.all,
                clustered=options.cluster,
                undefined=options.undefined,
            )
        )
    return 0


def _combine_studies(options: Options) -> int:
    """Averages of several outputs of `untold meta-evaluate`; prints the report. Asks nothing."""
    from untold.jobs.meta_evaluate import combine_studies
    from untold.jobs.run.output import absolute
    from untold.jobs.run.terminal import Display

    settings = settings_without_endpoint(options)
    with Display() as display:
        report = combine_studies(
            [absolute(directory) for directory in options.studies],
            absolute(options.output),
            seed=settings.statistics.seed,
            overwrite=options.overwrite,
            notify=display.note,
        )
    print_report(report)
    return 0


def _estimate(options: Options) -> int:
    """The mean over all samples, from dear scores of a part and cheap ones of all. Starts no engine."""
    from untold.jobs.compare import estimate, estimate_lines, write_estimates

    request = _estimated(options)
    found = estimate(request, _note)
    if options.output:
        from untold.jobs.run.output import absolute

        write_estimates(request, found, absolute(options.output), overwrite=options.overwrite)
    _print(
        options, {"estimates": found.means, "differences": found.differences}, estimate_lines, found, every=options.all
    )
    return 0


def _sample_size(options: Options) -> int:
    """How many samples have to be judged for intervals of one width, by a pilot. Starts no engine."""
    from untold.jobs.compare import needed, needed_lines

    rows = needed(_estimated(options), options.half_width, _note)
    _print(options, rows, needed_lines, rows)
    return 0


def _estimated(options: Options) -> EstimateRequest:
    from untold.jobs.run_tables import open_run
    from untold.jobs.summary.estimating import EstimateRequest, open_proxy

    run = open_run(options.run)
    return EstimateRequest(
        run,
        open_proxy(options.proxy, run, options.input) if options.proxy else None,
        options.labels,
        options.metric,
        options.proxy_metric,
        options.undefined,
    )


def _note(line: str) -> None:
    print(f"untold: {line}", file=sys.stderr)


def _print(options: Options, value: Any, lines: Callable[..., Iterator[str]], found: Any, **how: Any) -> None:
    """JSON, or lines for people."""
    from untold.jobs.run.terminal import page_of, print_lines

    if options.json:
        print(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        print_lines(lines(found, page_of(sys.stdout), **how))


def _sweep(options: Options) -> int:
    """ICAT of an output under several betas, as a table and a plot."""
    from untold.jobs.sweep import BETAS, SweepRequest, show_sweep, sweep

    return _over_measures(options, partial(SweepRequest, betas=options.betas or BETAS), sweep, show_sweep)


def _curve(options: Options) -> int:
    """Recall at k of an output against k, as a table and a plot."""
    from untold.jobs.sweep import CurveRequest, curve, show_curve

    return _over_measures(options, CurveRequest, curve, show_curve)


def _over_measures(
    options: Options, request: Callable[..., Any], run: Callable[..., Any], show: Callable[..., None]
) -> int:
    """A table and a plot of what a run has measured. Asks nothing, so it needs no endpoint."""
    from untold.jobs.run.output import absolute
    from untold.jobs.run.session import open_session
    from untold.jobs.run.terminal import Display

    settings = settings_without_endpoint(options)
    output = absolute(options.run)
    with Display() as display:
        display.status("starting Java")
        rows = run(open_session(settings), request(output, seed=settings.statistics.seed))
    show(rows, output)
    return 0


_QUESTIONS = [
    Option("--input", "PATH", "questions: a file, a folder or a glob", required=True),
    Option("--output", "DIR", "where the tables go", required=True),
    Option("--systems", "FILE", "systems and their settings of llm.* (YAML)", required=True),
    Option("--format", "NAME", "a known data set", names=question_formats, read=one_of(question_formats)),
    Option("--contexts", "FILE", "the contexts of questions of eli5_category: rows of q_id and contexts"),
    flag("--closed-book", "leave the contexts, such as gold proofs, out of the prompts; the samples keep them"),
    *READ_OPTIONS,
    RANDOM_OPTION,
    STRATIFY_OPTION,
    Option("--limit", "N", "only the first N questions by id", read=count),
]
UNDEFINED_OPTION = Option(
    "--undefined",
    "HOW",
    "the mean is of the scores (mean, the default), or with 0 for samples that state nothing (zero)",
    read=one_of(("mean", "zero")),
    default="mean",
)
_COMPARED = [
    Argument("runs", "RUN...", "outputs of untold score", many=True),
    Option("--metric", "LIST", "metrics, by comma; all of them by default", read=names),
    Option("--measure", "LIST", "measures in place of scores, by comma: conflict_coverage,one_sided", read=names),
    flag("--cluster", "intervals and tests take all rows of a query together"),
    UNDEFINED_OPTION,
    flag("--all", "print all pairs, and not only those that differ by more than chance"),
    flag("--json", "print JSON"),
]
_ESTIMATED = [
    Argument("run", "RUN", "an output of untold score, of samples drawn by --random"),
    Option(
        "--proxy",
        "PROXY",
        "cheap scores of all samples: an output of untold score, a file of sample_id and score (csv, tsv, jsonl, "
        "parquet), or words or vectors, which responses share with references or contexts",
    ),
    Option(
        "--input",
        "PATH",
        "all samples, of a proxy that is no output: file or folder of Parquet (what RUN was drawn from)",
    ),
    Option(
        "--labels", "FILE", "what people say in place of RUN's scores: sample_id and score (csv, tsv, jsonl, parquet)"
    ),
    Option("--metric", "LIST", "metrics of RUN, by comma; all of them by default", read=names),
    Option("--proxy-metric", "NAME", "the metric of RUN2 that is the proxy, where the names differ"),
    UNDEFINED_OPTION,
    flag("--json", "print JSON"),
]
_COMBINED = [
    Argument("studies", "STUDY...", "outputs of untold meta-evaluate", many=True),
    Option("--output", "DIR", "where the table and the report go", required=True),
    flag("--overwrite", "replace the tables of another run in --output"),
]
COMMANDS: dict[str, click.Command] = {
    "generate": Command(
        "answer a file of questions by several systems, to be scored",
        _generate,
        [*_QUESTIONS, *settings_options(), *RUN_FLAGS],
    ),
    "compare": Command("rank systems by their scores", _compare, [*_COMPARED, *settings_options()]),
    "combine-studies": Command(
        "average meta-evaluations over data sets",
        _combine_studies,
        [*_COMBINED, *settings_options()],
        needs=("matplotlib", "networkx"),
    ),
    "estimate": Command(
        "estimate the mean over all samples from judgements of a part and a cheap proxy on all",
        _estimate,
        [
            *_ESTIMATED,
            Option("--output", "DIR", "also write the table estimates there"),
            flag("--overwrite", "replace the tables of another run in --output"),
            flag("--all", "print all pairs, and not only those that differ by more than chance"),
        ],
    ),
    "sample-size": Command(
        "say how many samples have to be judged for intervals of a width, from a pilot",
        _sample_size,
        [*_ESTIMATED, Option("--half-width", "X", "half the width of the 95 % interval", read=width, required=True)],
    ),
    "sweep": Command(
        "weigh coverage against factuality over a range: ICAT by beta",
        _sweep,
        [
            Argument("run", "RUN", "an output of untold score with the metric icat"),
            Option("--betas", "LIST", "values of beta, by comma (.125,.25,.5,1,2,4,8)", read=weights),
            *settings_options(),
        ],
        needs=("matplotlib", "networkx"),
    ),
    "curve": Command(
        "draw recall of the most important facts, or claim recall of contexts, against their number",
        _curve,
        [
            Argument("run", "RUN", "an output of untold score with the metric importance or rag"),
            *settings_options(),
        ],
        needs=("matplotlib", "networkx"),
    ),
}
