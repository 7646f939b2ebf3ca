"""The subcommands of requests that runs left: in a spool, or in batches of an endpoint."""

from __future__ import annotations

import os

import click

from untold.jobs.cli.arguments import Argument, Command, Option, Options, flag, tell_outcome
from untold.jobs.cli.values import one_of

ACTS = ("list", "fetch", "cancel")


def _answer(options: Options) -> int:
    """The jobs of a spool to completions; starts Ray, and no Spark."""
    from untold.jobs.answer import AnswerRequest, answer, show_answered
    from untold.jobs.run.progress import Display
    from untold.jobs.settings.loading import load_given

    given = load_given(options.config, options.overrides, os.environ)
    os.environ.update(given.storage.environment)
    request = AnswerRequest(
        spool=options.spool,
        given=given,
        ray_address=options.ray_address,
        retry_failed=options.retry_failed,
        wait=not options.no_wait,
        command=options.command_line,
    )
    with Display() as display:
        outcome = answer(request, display)
    tell_outcome(lambda: show_answered(outcome), outcome.message)
    return outcome.exit_code


def _batches(options: Options) -> int:
    """The batches of a store: listed, fetched or cancelled; starts no engine."""
    from untold.jobs.batches import batches, show_batches
    from untold.jobs.run.progress import Display
    from untold.jobs.settings.loading import load_given

    act = options.act or ACTS[0]
    if options.id and act != "cancel":
        raise click.UsageError("--id goes with cancel")
    given = load_given(options.config, options.overrides, os.environ)
    os.environ.update(given.storage.environment)
    show_batches(batches(options.folder, act, Display().note, options.id, given.llm.api_key_env), act)
    return 0


COMMANDS: dict[str, click.Command] = {
    "answer": Command(
        "answer the requests that runs left in a spool",
        _answer,
        [
            Argument("spool", "SPOOL", "the folder that the run has printed"),
            Option("--ray-address", "A", "a Ray cluster; without it one starts on this machine"),
            Option("--config", "F", "a settings file (YAML) for keys, limits and budget; the jobs keep their own else"),
            Option("--set", "KEY=VALUE", "one setting; repeatable", to="overrides", multiple=True),
            flag("--retry-failed", "retry permanently failed requests"),
            flag("--no-wait", "refuse instead of waiting for another worker"),
        ],
    ),
    "batches": Command(
        "list the batches that runs left at endpoints, fetch their answers, or cancel them",
        _batches,
        [
            Argument("folder", "DIR", "the output of a run, or a store of completions"),
            Argument("act", "ACT", "list (the default), fetch or cancel", required=False, read=one_of(ACTS)),
            Option("--id", "ID", "one batch to cancel; repeatable; all by default", multiple=True),
            Option("--config", "F", "a settings file (YAML), for another key variable"),
            Option("--set", "KEY=VALUE", "one setting; repeatable", to="overrides", multiple=True),
        ],
    ),
}
