"""The subcommand of spools: what answers the requests that runs left in one."""

from __future__ import annotations

import os

import click

from untold.jobs.cli.arguments import Argument, Command, Option, Options, flag, tell_outcome


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
}
