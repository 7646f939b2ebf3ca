"""Define the subcommand calibrate, and read variants: named sets of settings on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import click

from untold.jobs.cli import arguments
from untold.jobs.cli.arguments import JSON, Command, Option, Options, settings_options
from untold.jobs.cli.values import OneOf, bar

if TYPE_CHECKING:
    from untold.jobs.metrics.scoring import ScoreRequest

METRICS = ("nli", "qa", "icat", "importance")
# The size of the draw without --random
SAMPLES = 200
PUBLISHED = "published"
_LISTS = ("nli.judgement=lists", "nli.list_size=20")
# The variants without --forms
FORMS: Mapping[str, tuple[str, ...]] = {
    "skip implied": ("nli.skip_implied=true",),
    **{f"lists of {size}": ("nli.judgement=lists", f"nli.list_size={size}") for size in (5, 10, 20)},
    **{f"filter by {kind}": (f"nli.filter={kind}",) for kind in ("words", "vectors", "either")},
    "lists of 20, filter by words": (*_LISTS, "nli.filter=words"),
    "quantities resolved": ("qa.quantity_tool=resolve",),
    **{f"{metric} lists": (f"{metric}.judgement=lists",) for metric in METRICS[1:]},
}
# The variants with a classifier. All variants above run without it
_CERTAIN = "nli.classifier_threshold=0.9"
CASCADES: Mapping[str, tuple[str, ...]] = {
    **{f"classifier certain at {p}": (f"nli.classifier_threshold={p}",) for p in (0.8, 0.9, 0.95, 0.99)},
    "lists of 20, classifier certain at 0.9": (*_LISTS, _CERTAIN),
    "lists of 20, filter by words, classifier certain at 0.9": (*_LISTS, "nli.filter=words", _CERTAIN),
}
CLASSIFIERS = ("classifier", "classifier_url")
WITHOUT_CLASSIFIER = tuple(f"nli.{name}=null" for name in (*CLASSIFIERS, "classifier_gpus", "classifier_threshold"))


def read_form(text: str) -> tuple[str, tuple[str, ...]]:
    """Read the name and the settings of a variant. Its settings are its default name. Raise ValueError for other text.

    >>> read_form("lists of 5: nli.judgement=lists, nli.list_size=5")
    ('lists of 5', ('nli.judgement=lists', 'nli.list_size=5'))
    >>> read_form("nli.skip_implied=true")
    ('nli.skip_implied=true', ('nli.skip_implied=true',))
    """
    found = re.fullmatch(r"(?:([^=]+?):\s+)?([\w.]+=.*)", text.strip())
    if found is None:
        raise ValueError(
            f"must be settings by comma, such as nli.list_size=5, or NAME: settings. Got {text or 'nothing'}"
        )
    settings = tuple(re.split(r",\s*(?=[\w.]+=)", found[2]))
    return found[1] or ", ".join(settings), settings


def requests_of(options: Options, metric: str, *, asks: bool = True) -> dict[str, tuple[tuple[str, ...], ScoreRequest]]:
    """Return the settings and the request of each variant by its name, first of the published one.

    `asks=False` needs no key.
    """
    variants = dict(options.forms)
    published: tuple[str, ...] = ()
    if not variants:
        variants = {name: settings for name, settings in FORMS.items() if settings[0].startswith(f"{metric}.")}
        nli = arguments.load(options, asks=asks).settings.nli
        named = [f"nli.{name}={getattr(nli, name)}" for name in CLASSIFIERS if getattr(nli, name) is not None]
        if metric == "nli" and named:
            published = WITHOUT_CLASSIFIER
            variants = {name: (*settings, *published) for name, settings in variants.items()}
            variants |= {name: (*named, *settings) for name, settings in CASCADES.items()}
    if not variants:
        raise click.UsageError(f"{metric} has no cheaper variants. Add --forms, for example with a smaller model")
    every = {PUBLISHED: published, **variants}
    return {name: (own, _request(options, metric, name, own, asks=asks)) for name, own in every.items()}


def _request(options: Options, metric: str, name: str, settings: tuple[str, ...], *, asks: bool) -> ScoreRequest:
    """Return the request of a variant. Its run is in a folder of the output, and all variants share a store."""
    output = options.output and f"{options.output}/forms/{folder_of(name)}"
    given = {**vars(options), "overrides": (*options.overrides, *settings), "metric": (metric,), "output": output}
    own = Options(**given)
    resolved = arguments.load(own, asks=asks)
    request = arguments.score_request(own, resolved)
    if not options.output:
        return request
    return replace(request, settings=resolved.settings.with_store(arguments.absolute(options.output)))


def unpriced_models(requests: Iterable[ScoreRequest]) -> list[str]:
    """Return a line for each model of a stage that has the prices of another model, `llm.*`."""
    from untold.jobs.settings.model import PRICES

    lines: dict[str, None] = {}
    for request in requests:
        llm = request.settings.llm
        for stage, own in request.settings.stages.items():
            if own.model not in (None, llm.model) and not own.model_fields_set & set(PRICES):
                keys = " and ".join(f"stages.{stage}.{name}" for name in PRICES)
                lines[f"stages.{stage}.model={own.model} has the prices of {llm.model}. Set {keys}"] = None
    return list(lines)


def folder_of(name: str) -> str:
    """Return the folder of a variant: its name, with a hash if it has other characters than letters and digits.

    >>> folder_of("published"), folder_of("a b"), folder_of("a-b")
    ('published', 'a-b-fbd987', 'a-b-69dd64')
    """
    if re.fullmatch(r"[A-Za-z0-9]+", name):
        return name
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}-{blake2b(name.encode(), digest_size=3).hexdigest()}"


def _calibrate(options: Options) -> int:
    """Score the same samples with several variants of a metric, compare cost and error, and recommend one."""
    options.random = options.random or SAMPLES
    found = requests_of(options, options.metric)
    from untold.jobs.calibrate import Variant, calibrate, calibration_lines

    variants = [Variant(name, settings, request) for name, (settings, request) in found.items()]
    variants[0].request.check()
    with arguments.display() as display:
        for line in unpriced_models(one.request for one in variants):
            display.note(line)
        output = arguments.absolute(options.output)
        ended = calibrate(variants, output, display, least=options.kappa, overwrite=options.overwrite)

    def show() -> None:
        if options.json or ended.rows:
            arguments.print_result(options, ended.rows, lambda page: calibration_lines(ended.rows, options.kappa, page))

    arguments.report_outcome(show, ended.message)
    return ended.exit_code


def plan_forms(options: Options) -> int:
    """Plan the requests of each variant: totals over the stages of the metric."""
    if len(options.metric) != 1:
        raise click.UsageError("--forms requires exactly one metric")
    found = requests_of(options, options.metric[0], asks=False)
    from untold.jobs.api import Plan
    from untold.jobs.plan import plan
    from untold.jobs.run.terminal import table

    rows: list[dict[str, Any]] = []
    with arguments.display() as display:
        for line in unpriced_models(request for _, request in found.values()):
            display.note(line)
        for name, (settings, request) in found.items():
            request.check()
            totals = Plan(plan(request, display)).totals
            rows.append({"form": name, "settings": list(settings), **totals})
    heads = ("form", "requests", "expected", "expected cost", "cost", "hours")
    columns = ("requests", "expected_requests", "expected_cost", "cost", "hours")
    cells = [[row["form"], *("-" if row[name] is None else f"{row[name]:,.10g}" for name in columns)] for row in rows]
    arguments.print_result(options, rows, lambda page: table(heads, cells, page, names=1))
    return 0


FORMS_OPTION = Option(
    "--forms",
    "FORM",
    "settings of a cheaper variant, KEY=VALUE,... or NAME: KEY=VALUE,... (repeatable)",
    read=read_form,
    multiple=True,
)
COMMANDS: dict[str, click.Command] = {
    "calibrate": Command(
        "score samples with the published settings and with cheaper variants, to compare cost and error",
        _calibrate,
        [
            *(one for one in arguments.input_options(output=True) if one.name != "metric"),
            Option("--metric", "NAME", ", ".join(METRICS), read=OneOf(METRICS), required=True),
            FORMS_OPTION,
            Option(
                "--kappa",
                "K",
                "recommend a variant if the lower end of its kappa is at least K (.95)",
                read=bar,
                default=0.95,
            ),
            JSON,
            *settings_options(),
            *arguments.RUN_FLAGS,
        ],
        needs={**arguments.SCORES, "study": arguments.PLOTS},
    ),
}
