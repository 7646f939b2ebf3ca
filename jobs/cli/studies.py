"""Define the subcommands that study systems: generate, compare, combine-studies, estimate, sweep and curve."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from untold.jobs.cli import arguments
from untold.jobs.cli.arguments import (
    CONFLICTBANK_OPTION,
    JSON,
    Argument,
    Command,
    Option,
    Options,
    flag,
    options_of,
    settings_options,
)
from untold.jobs.cli.meta_evaluation import print_study
from untold.jobs.cli.values import CONTEXTS_APART, OneOf, counts, known_formats, question_formats, weights, width
from untold.jobs.inputs.options import (
    CompareOptions,
    EstimateOptions,
    GateOptions,
    GenerateOptions,
    JudgeBudgetOptions,
    JudgeOptions,
    ReadOptions,
    RunOptions,
)
from untold.udfs.errors import ENGINE, require

if TYPE_CHECKING:
    from untold.jobs.run_tables import RunTables
    from untold.jobs.settings.model import Settings
    from untold.jobs.summary.estimating import EstimateRequest


def _generate(options: Options) -> int:
    """Generate the responses of several systems to questions, as samples to score."""
    if (options.format == CONTEXTS_APART) != (options.contexts is not None):
        raise click.UsageError(f"--format {CONTEXTS_APART} and --contexts go together: give both, or neither")
    from untold.jobs.settings.loading import load_systems

    systems = load_systems(options.systems, lambda layer: arguments.load(options, system=layer))
    read = _check_questions(options)
    from untold.jobs.generate import GenerateRequest, generate, show_systems

    request = GenerateRequest(
        **arguments.run_fields(options, next(iter(systems.values())).settings, read),
        **arguments.values_of(GenerateOptions, options),
        systems=systems,
        format=None if options.format == CONTEXTS_APART else options.format,
    )
    return arguments.run_job(generate, request, arguments.show_with(options, show_systems))


def _check_questions(options: Options) -> ReadOptions:
    """Return the format of the questions after a check of their first rows, and of their contexts' first rows."""
    from untold.jobs.inputs.checking import adapter_of, check_input
    from untold.jobs.inputs.questions import QUESTION
    from untold.udfs.samples.adapters import CONTEXTS, QUESTIONS

    if options.contexts is None:
        adapter = adapter_of(options.format)
        # The questions of a known data set may lack contexts
        return arguments.check_samples(options, QUESTION if adapter is None else QUESTION[:1], adapter)
    read = arguments.check_samples(options, (), QUESTIONS)
    check_input(options.contexts, replace(read, columns={}), (), CONTEXTS)
    return read


def _compare(options: Options) -> int:
    """Rank the systems of outputs of `untold score`, without an endpoint and without Spark."""
    if options.max_drop is None and (options.markdown or options.junit):
        raise click.UsageError("--markdown and --junit require --max-drop")
    if options.families and not options.judges:
        raise click.UsageError("--families requires --judges")
    settings = arguments.settings_without_endpoint(options)
    if options.judges:
        return _judges(options, settings)
    if options.max_drop is not None:
        return _gate(options, settings)
    from untold.jobs.compare import comparison_lines
    from untold.jobs.summary.ranking import compare_scores

    with arguments.display() as display:
        display.status("comparing systems")
        found = compare_scores(
            _open_runs(options),
            **arguments.values_of(CompareOptions, options),
            seed=settings.statistics.seed,
            notify=display.note,
        )
    how = {"every": options.all, "clustered": options.cluster, "undefined": options.undefined}
    arguments.print_result(options, found, lambda page: comparison_lines(found, page, **how))
    return 0


def _open_runs(options: Options) -> list[RunTables]:
    from untold.jobs.run_tables import open_run

    return [open_run(arguments.absolute(directory)) for directory in options.runs]


def _judges(options: Options, settings: Settings) -> int:
    """Print how judges rate families of systems, and if a judge favours its own family."""
    if options.max_drop is not None or options.measures or options.undefined != "mean":
        raise click.UsageError("--judges compares ratings; leave out --max-drop, --measure and --undefined")
    from untold.jobs.summary.judge_families import compare_judges, judge_lines

    with arguments.display() as display:
        display.status("comparing judges")
        found = compare_judges(
            _open_runs(options),
            metrics=options.metrics,
            families=options.families,
            seed=settings.statistics.seed,
            notify=display.note,
        )
    arguments.print_result(options, {"judges": found}, lambda page: judge_lines(found, page))
    return 0


def _gate(options: Options, settings: Settings) -> int:
    """Compare a candidate with its base. Return 0, 4 or 8 for PASS, FAIL or INCONCLUSIVE."""
    if len(options.runs) != 2:
        raise click.UsageError("--max-drop compares two outputs: untold compare BASE CANDIDATE --max-drop X")
    if options.measures:
        raise click.UsageError("--max-drop compares scores; leave out --measure")
    from untold.jobs.run.outcome import FAILED_TOO_MANY, UNDECIDED
    from untold.jobs.summary import gate
    from untold.udfs.storage import StoragePath

    with arguments.display() as display:
        found = gate.compare_with_base(
            *_open_runs(options),
            **arguments.values_of(CompareOptions, options),
            max_drop=options.max_drop,
            seed=settings.statistics.seed,
            notify=display.note,
        )
    if options.markdown:
        StoragePath(options.markdown).write_bytes(gate.gate_markdown(found).encode())
    if options.junit:
        StoragePath(options.junit).write_bytes(gate.gate_junit(found))
    arguments.print_result(options, found.content, lambda page: gate.gate_lines(found, page))
    return {gate.PASS: 0, gate.FAIL: FAILED_TOO_MANY, gate.INCONCLUSIVE: UNDECIDED}[found.verdict]


def _combine_studies(options: Options) -> int:
    """Average several outputs of `untold meta-evaluate`, and print the report."""
    from untold.jobs.meta_evaluate import combine_studies

    settings = arguments.settings_without_endpoint(options)
    with arguments.display() as display:
        report = combine_studies(
            [arguments.absolute(directory) for directory in options.studies],
            arguments.absolute(options.output),
            seed=settings.statistics.seed,
            overwrite=options.overwrite,
            notify=display.note,
        )
    print_study(options, report)
    return 0


def _estimate(options: Options) -> int:
    """Estimate the mean over all samples from judged samples and a cheap proxy. With RUN, no engine starts."""
    from untold.jobs.compare import estimate, estimate_lines, write_estimates
    from untold.jobs.run.outcome import FAILED_TOO_MANY

    code = 0
    if options.run is None:
        code = _score_part(options)
        if code not in (0, FAILED_TOO_MANY):
            return code
        folders = {name: f"{options.output}/{name}" for name in PARTS}
        options = Options(
            **{**vars(options), **folders, "run": folders["judged"], "input": None, "output": folders["estimates"]}
        )
    elif options.judge_budget or options.random:
        raise click.UsageError("RUN is scored: leave out RUN, or --judge-budget and --random")
    request = _estimated(options)
    found = estimate(request, _note)
    if options.output:
        write_estimates(request, found, arguments.absolute(options.output), overwrite=options.overwrite)
    arguments.print_result(options, found, lambda page: estimate_lines(found, page, every=options.all))
    return code


def _score_part(options: Options) -> int:
    """Score all samples with the judge of the package and a random part with a language model, under `--output`."""
    require("estimate without RUN", ENGINE)
    missing = [f"--{name}" for name in ("input", "metrics", "output") if not getattr(options, name)]
    if options.proxy != "judge" or missing or (options.judge_budget is None) == (options.random is None):
        raise click.UsageError(
            "give RUN, or --proxy judge with --input, --metric, --output and one of --judge-budget and --random"
        )
    if options.labels:
        raise click.UsageError("--labels needs RUN, the output of the judge: untold estimate RUN --labels FILE")
    from untold.jobs.compare import score_part
    from untold.jobs.metrics import JUDGED_METRICS, check_metrics
    from untold.jobs.settings.layers import read_overrides

    metrics = check_metrics(options.metrics)
    judge = read_overrides((), "judge")[0]
    scored = {
        "judged": (metrics, arguments.load(options)),
        "proxy": (
            tuple(one for one in metrics if one in JUDGED_METRICS) or ("nli",),
            arguments.load(options, system=judge),
        ),
    }
    if scored["judged"][1].settings.llm.is_judge:
        raise click.UsageError("the samples need a language model: set OPENAI_API_KEY, llm.base_url or --endpoint")
    requests = {}
    for name, (metric, resolved) in scored.items():
        given = {**vars(options), "output": f"{options.output}/{name}", "metric": metric}
        given |= {} if name == "judged" else {"random": None, "stratify": None}
        requests[name] = arguments.score_request(Options(**given), resolved)
        requests[name].check()
    job = partial(score_part, proxy=requests["proxy"], budget=options.judge_budget)
    return arguments.run_job(job, requests["judged"], lambda *_: None)


def _sample_size(options: Options) -> int:
    """Compute the number of judged samples for intervals of one width, from a pilot. No engine starts."""
    from untold.jobs.compare import needed, needed_lines

    rows = needed(_estimated(options), options.half_width, _note)
    arguments.print_result(options, rows, lambda page: needed_lines(rows, page))
    return 0


def _estimated(options: Options) -> EstimateRequest:
    from untold.jobs.run_tables import open_run
    from untold.jobs.summary.estimating import EstimateRequest, open_proxy

    run = open_run(options.run)
    given = arguments.values_of(EstimateOptions, options)
    path, samples = given.pop("proxy", None), given.pop("input", None)
    return EstimateRequest(run, open_proxy(path, run, samples) if path else None, **given)


def _note(line: str) -> None:
    print(f"untold: {line}", file=sys.stderr)


def _sweep(options: Options) -> int:
    """Compute ICAT of an output for several betas, as a table and a plot."""
    from untold.jobs.sweep import BETAS, show_sweep, sweep

    return _over_measures(options, partial(sweep, betas=options.betas or BETAS), show_sweep)


def _curve(options: Options) -> int:
    """Compute recall at k of an output, as a table and a plot."""
    from untold.jobs.sweep import curve, show_curve

    return _over_measures(options, partial(curve, ks=options.k or ()), show_curve)


def _over_measures(options: Options, run: Callable[..., Any], show: Callable[..., None]) -> int:
    """Make a table and a plot from the measures of a run."""
    output = arguments.absolute(options.run)
    rows = run(output, seed=arguments.settings_without_endpoint(options).statistics.seed)
    if options.json:
        arguments.print_json(rows)
    else:
        show(rows, output)
    return 0


ALL_PAIRS = flag("--all", "print all pairs, also pairs without a significant difference")
OVERWRITE = options_of(RunOptions, "overwrite")
# Folders of `untold estimate` without RUN
PARTS = ("proxy", "judged", "estimates")
_JUDGED = "an output of untold score, for samples drawn by --random"
_ESTIMATED = [
    *options_of(EstimateOptions, "proxy", "input", "labels", "metrics", "proxy_metric", "undefined"),
    JSON,
]
COMMANDS: dict[str, click.Command] = {
    "generate": Command(
        "generate responses with several systems and write them as samples to score",
        _generate,
        [
            Option("--input", "PATH", "questions: a file, a folder or a glob", required=True),
            Option("--output", "DIR", "folder of the tables", required=True),
            Option("--systems", "FILE", "systems and their settings of llm.* (YAML)", required=True),
            Option("--format", "NAME", "a known data set", names=question_formats, read=OneOf(question_formats)),
            *options_of(GenerateOptions),
            *arguments.READ_OPTIONS,
            *arguments.DRAW,
            *arguments.LIMIT,
            JSON,
            *settings_options(),
            *arguments.RUN_FLAGS,
        ],
        needs=arguments.SCORES,
    ),
    "compare": Command(
        "rank systems by their scores",
        _compare,
        [
            Argument("runs", "RUN...", "outputs of untold score", many=True),
            *options_of(CompareOptions),
            *options_of(GateOptions),
            *options_of(JudgeOptions),
            ALL_PAIRS,
            JSON,
            *settings_options(),
        ],
    ),
    "combine-studies": Command(
        "average meta-evaluations over data sets",
        _combine_studies,
        [
            Argument("studies", "STUDY...", "outputs of untold meta-evaluate", many=True),
            Option("--output", "DIR", "folder of the table and the report", required=True),
            *OVERWRITE,
            JSON,
            *settings_options(),
        ],
        needs={**arguments.SCORES, "study": arguments.PLOTS},
    ),
    "estimate": Command(
        "estimate the mean over all samples from judged samples and a cheap proxy",
        _estimate,
        [
            Argument(
                "run", "RUN", f"{_JUDGED}; without RUN, --proxy judge scores the samples of --input", required=False
            ),
            *_ESTIMATED,
            *options_of(JudgeBudgetOptions),
            Option("--output", "DIR", "also write the table estimates there; without RUN, the folder of both runs"),
            ALL_PAIRS,
            Option("--format", "NAME", "a known data set", names=known_formats),
            CONFLICTBANK_OPTION,
            *arguments.READ_OPTIONS,
            *arguments.DRAW,
            *settings_options(),
            *arguments.RUN_FLAGS,
        ],
    ),
    "sample-size": Command(
        "compute the number of judged samples for intervals of one width, from a pilot",
        _sample_size,
        [
            Argument("run", "RUN", _JUDGED),
            *_ESTIMATED,
            Option("--half-width", "X", "half the width of the 95 % interval", read=width, required=True),
        ],
    ),
    "sweep": Command(
        "weigh coverage against factuality over a range: ICAT by beta",
        _sweep,
        [
            Argument("run", "RUN", "an output of untold score with the metric icat"),
            Option("--betas", "LIST", "values of beta, by comma (.125,.25,.5,1,2,4,8)", read=weights),
            JSON,
            *settings_options(),
        ],
        needs={**arguments.SCORES, "study": arguments.PLOTS},
    ),
    "curve": Command(
        "draw the recall of facts, the claim recall of contexts, and F1@K of claims, by their number",
        _curve,
        [
            Argument("run", "RUN", "an output of untold score with the metric importance, rag or icat"),
            Option("--k", "LIST", "K of R@K and F1@K of claims, by comma (the median number of claims)", read=counts),
            JSON,
            *settings_options(),
        ],
        needs={**arguments.SCORES, "study": arguments.PLOTS},
    ),
}
