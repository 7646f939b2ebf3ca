"""Records declare the options of the command line and the keywords of the Python API."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields

import click
import pytest

from untold.jobs.api import SampleOptions, Session
from untold.jobs.cli.arguments import Command, Options, options_of, values_of
from untold.jobs.cli.main import UNTOLD, main
from untold.jobs.inputs.options import DrawOptions, ReadOptions, RunOptions, option


@dataclass(frozen=True, kw_only=True)
class Walk:
    path: str = option("PATH", "a path")
    steps: int = option("--steps N", "the number of steps", read="count")
    names: tuple[str, ...] = option("--name NAME", "a name; repeatable", ())
    pace: str = option("--pace HOW", "slow or fast", "slow", choices=("slow", "fast"))
    back: bool = option("--back", "go back", False)
    rest: bool = option("--no-rest", "do not rest", True)


def walked(monkeypatch: pytest.MonkeyPatch, *words: str) -> Walk:
    """Return the record of a command line."""
    found = []

    def walk(options: Options) -> int:
        found.append(Walk(**values_of(Walk, options)))
        return 0

    monkeypatch.setitem(UNTOLD.commands, "walk", Command("walk", walk, options_of(Walk)))
    assert main(["walk", *words]) == 0
    return found[0]


def test_a_command_line_becomes_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    assert walked(monkeypatch, "a", "--steps", "2") == Walk(path="a", steps=2)
    words = ("a", "--steps", "2", "--name", "x", "--name", "y", "--pace", "fast", "--back", "--no-rest")
    assert walked(monkeypatch, *words) == Walk(path="a", steps=2, names=("x", "y"), pace="fast", back=True, rest=False)


@pytest.mark.parametrize(
    "words", [["a"], ["--steps", "2"], ["a", "--steps", "0"], ["a", "--steps", "2", "--pace", "x"]]
)
def test_a_wrong_command_line_is_refused(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    command = Command("walk", lambda _: 0, options_of(Walk))
    with pytest.raises(click.UsageError):
        command.make_context("walk", words)


def test_the_keywords_of_the_python_api_are_options() -> None:
    declared = {one.name: one.default for record in (ReadOptions, DrawOptions, RunOptions) for one in fields(record)}
    assert SampleOptions.__annotations__.keys() - {"format"} <= declared.keys()
    keywords = inspect.signature(Session.score).parameters
    assert {name: keywords[name].default for name in ("overwrite", "retry_failed", "wait", "poll")} == {
        name: declared[name] for name in ("overwrite", "retry_failed", "wait", "poll")
    }


@pytest.mark.parametrize("name", sorted(UNTOLD.commands))
def test_a_command_declares_each_option_once(name: str) -> None:
    options = [flag for one in UNTOLD.commands[name].params for flag in (*one.opts, *one.secondary_opts)]
    assert len(options) == len(set(options))
