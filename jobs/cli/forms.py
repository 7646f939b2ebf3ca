"""The subcommand calibrate, and forms on the command line: sets of settings with names."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import click

from untold.jobs.cli.arguments import (
    RUN_FLAGS,
    Command,
    Option,
    Options,
    flag,
    input_options,
    load,
    score_request,
    settings_options,
)
from untold.jobs.cli.values import bar, one_of

if TYPE_CHECKING:
    from untold.jobs.metrics.request import ScoreRequest

METRICS = ("nli", "qa", "icat", "importance")
# What is drawn without --random
SAMPLES = 200
PUBLISHED = "published"
_LISTS = ("nli.judgement=lists", "nli.list_size=20")
# Forms that are tried without --forms, as far as this release has their settings
FORMS: Mapping[str, tuple[str, ...]] = {
    "skip implied": ("nli.skip_implied=true",),
    **{f"lists of {size}": ("nli.judgement=lists", f"nli.list_size={size}") for size in (5, 10, 20)},
    **{f"filter by {kind}": (f"nli.filter={kind}",) for kind in ("words", "vectors", "either")},
    "lists of 20, filter by words": (*_LISTS, "nli.filter=words"),
    "quantities resolved": ("qa.quantity_tool=resolve",),
    **{f"{metric} lists": (f"{metric}.judgement=lists",) for metric in METRICS[1:]},
}
# With a classifier, what is tried of it; all other forms are without
CASCADES: Mapping[str, tuple[str, ...]] = {
    **{f"classifier certain at {p}": (f"nli.classifier_threshold={p}",) for p in (0.8, 0.9, 0.95, 0.99)},
    "lists of 20, classifier certain at 0.9": (*_LISTS, "nli.classifier_threshold=0.9"),
    "lists of 20, filter by words, classifier certain at 0.9": (
        *_LISTS,
        "nli.filter=words",
        "nli.classifier_threshold=0.9",
    ),
}
CLASSIFIERS = ("classifier", "classifier_url")
WITHOUT_CLASSIFIER = tuple(f"nli.{name}=null" for name in (*CLASSIFIERS, "classifier_gpus", "classifier_threshold"))


def read_form(text: str) -> tuple[str, tuple[str, ...]]:
    """The name of a form, its settings where it has none, and its settings. Raises ValueError for what is no form.

    >>> read_form("lists of 5: nli.judgement=lists, nli.list_size=5")
    ('lists of 5', ('nli.judgement=lists', 'nli.list_size=5'))
    >>> read_form("nli.skip_implied=true")
    ('nli.skip_implied=true', ('nli.skip_implied=true',))
    """
    found = re.fullmatch(r"(?:([^=]+?):\s+)?([\w.]+=.*)", text.strip())
    if found is None:
        raise ValueError(
            f"must be settings such as nli.list_size=5, by comma, or NAME: settings; got {text or 'nothing'}"
        )
    settings = tuple(re.split(r",\s*(?=[\w.]+=)", found[2]))
    return found[1] or ", ".join(settings), settings


def requests_of(options: Options, metric: str, *, asks: bool = True) -> dict[str, tuple[tuple[str, ...], ScoreRequest]]:
    """By the name of each form its settings and what is asked under it, that of the settings as they are first.

    asks: whether a key is needed, as `load` takes it.
    """
    from untold.jobs.settings.layers import known_settings

    known = known_settings()
    forms = dict(options.forms)
    published: tuple[str, ...] = ()
    if not forms:
        forms = {
            name: settings
            for name, settings in FORMS.items()
            if settings[0].startswith(f"{metric}.") and all(one.partition("=")[0] in known for one in settings)
        }
        nli = load(options, asks=asks).settings.nli
        named = [f"nli.{name}={getattr(nli, name)}" for name in CLASSIFIERS if getattr(nli, name) is not None]
        if metric == "nli" and named:
            published = WITHOUT_CLASSIFIER
            forms = {name: (*settings, *published) for name, settings in forms.items()}
            forms |= {name: (*named, *settings) for name, settings in CASCADES.items()}
    if not forms:
        raise click.UsageError(f"{metric} has no cheaper forms of its own; give --forms, such as a smaller model")
    every = {PUBLISHED: published, **forms}
    return {name: (own, _request(options, metric, name, own, asks=asks)) for name, own in every.items()}


def _request(options: Options, metric: str, name: str, settings: tuple[str, ...], *, asks: bool) -> ScoreRequest:
    """What is asked under a form: its run lies in the output, and all share a store."""
    output = options.output and f"{options.output}/forms/{folder_of(name)}"
    given = {**vars(options), "overrides": (*options.overrides, *settings), "metric": (metric,), "output": output}
    own = Options(**given)
    resolved = load(own, asks=asks)
    request = score_request(own, resolved)
    if resolved.settings.completion_store or not options.output:
        return request
    from untold.jobs.run.output import absolute

    shared = {"completion_store": f"{absolute(options.output)}/completions"}
    return replace(request, settings=resolved.settings.model_copy(update=shared))


def unpriced_models(requests: Iterable[ScoreRequest]) -> list[str]:
    """A line for each model of one stage that has the prices of `llm.*`, as it would have with any other model."""
    from untold.jobs.settings.model import PRICES

    lines: dict[str, None] = {}
    for request in requests:
        llm = request.settings.llm
        for stage, own in request.settings.stages.items():
            if own.model not in (None, llm.model) and not own.model_fields_set & set(PRICES):
                keys = " and ".join(f"stages.{stage}.{name}" for name in PRICES)
                lines[f"stages.{stage}.model={own.model}: has the prices of {llm.model}; set {keys}"] = None
    return list(lines)


def folder_of(name: str) -> str:
    """The folder of a form: its name, and a hash that tells it apart where that has more than letters and digits.

    >>> folder_of("published"), folder_of("a b"), folder_of("a-b")
    ('published', 'a-b-fbd987', 'a-b-69dd64')
    """
    if re.fullmatch(r"[A-Za-z0-9]+", name):
        return name
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', name)}-{blake2b(name.encode(), digest_size=3).hexdigest()}"


def _calibrate(options: Options) -> int:
    """The same samples in several forms of a metric; says what each costs and errs, and recommends one."""
    options.random = options.random or SAMPLES
    found = requests_of(options, options.metric)
    from untold.jobs.calibrate import CalibrateRequest, Variant, calibrate, calibration_lines
    from untold.jobs.cli.arguments import tell_outcome
    from untold.jobs.run.output import absolute
    from untold.jobs.run.terminal import Display, page_of, print_lines

    forms = [Variant(name, settings, request) for name, (settings, request) in found.items()]
    forms[0].request.check()
    with Display() as display:
        for line in unpriced_models(form.request for form in forms):
            display.note(line)
        request = CalibrateRequest(forms, absolute(options.output), options.kappa, options.overwrite)
        ended = calibrate(request, display)

    def show() -> None:
        if options.json:
            print(json.dumps(ended.rows, indent=2))
        elif ended.rows:
            print_lines(calibration_lines(ended.rows, options.kappa, page_of(sys.stdout)))

    tell_outcome(show, ended.message)
    return ended.exit_code


def plan_forms(options: Options) -> int:
    """What a run would ask in each form: totals over the stages of the metric."""
    if len(options.metric) != 1:
        raise click.UsageError("--forms goes with one metric")
    found = requests_of(options, options.metric[0], asks=False)
    from untold.jobs.api import Plan
    from untold.jobs.plan import plan
    from untold.jobs.run.terminal import Display, page_of, print_lines, table

    rows: list[dict[str, Any]] = []
    with Display() as display:
        for line in unpriced_models(request for _, request in found.values()):
            display.note(line)
        for name, (settings, request) in found.items():
            request.check()
            totals = Plan(plan(request, display)).totals
            rows.append({"form": name, "settings": list(settings), **totals})
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    columns = ("requests", "expected_requests", "expected_cost", "cost", "hours")
    cells = [[row["form"], *("-" if row[name] is None else f"{row[name]:,.10g}" for name in columns)] for row in rows]
    print_lines(
        table(("form", "requests", "likely", "likely cost", "cost", "hours"), cells, page_of(sys.stdout), names=1)
    )
    return 0


FORMS_OPTION = Option(
    "--forms",
    "FORM",
    "settings of a cheaper form, KEY=VALUE,... or NAME: KEY=VALUE,...; repeatable",
    read=read_form,
    multiple=True,
)
COMMANDS: dict[str, click.Command] = {
    "calibrate": Command(
        "score a part in the published form and in cheaper ones, to see what these cost and err",
        _calibrate,
        [
            *(one for one in input_options(output=True) if one.name != "metric"),
            Option("--metric", "NAME", ", ".join(METRICS), read=one_of(METRICS), required=True),
            FORMS_OPTION,
            Option(
                "--kappa", "K", "least lower end of kappa of a form that is recommended (.95)", read=bar, default=0.95
            ),
            flag("--json", "print JSON"),
            *settings_options(),
            *RUN_FLAGS,
        ],
        needs=("matplotlib", "networkx"),
    ),
}
