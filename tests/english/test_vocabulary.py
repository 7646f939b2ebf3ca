"""Names use the vocabulary of the project, and docstrings of files within the budget follow its rules."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from tests.english.vocabulary import REJECTED, REJECTED_FOR_USERS, count_rejected, names_in, words_of
from tests.test_house import ROOT, product_files
from untold.jobs.cli.commands import COMMANDS
from untold.jobs.settings.loading import describe
from untold.jobs.tables import TABLES

COUNTS = Path(__file__).with_name("vocabulary.json")
DOCSTRING_RULES = "D205,D401,D415"
# The share of public functions and classes of the product with a docstring
LEAST_DOCUMENTED = 0.99


def test_rejected_words_in_names_do_not_become_more() -> None:
    allowed = json.loads(COUNTS.read_text(encoding="utf-8"))
    counts = count_rejected(product_files())
    more = {word: (count, f"use {REJECTED[word]}") for word, count in counts.items() if count > allowed.get(word, 0)}
    assert more == {}
    assert {word: number for word, number in allowed.items() if counts[word] < number} == {}, "lower these numbers"


def test_a_rejected_word_is_found_in_each_kind_of_name() -> None:
    source = "class Asker:\n    def tell(self, told):\n        said = 1\n        self.purse = said\n"
    words = {word for name in names_in(source) for word in words_of(name)}
    assert words & REJECTED.keys() == {"asker", "tell", "told", "said", "purse"}


def user_names() -> dict[str, list[str]]:
    """Return the names that users write or read, by kind."""
    options = [
        name
        for command in COMMANDS.values()
        for option in command.params
        if isinstance(option, click.Option)
        for name in option.opts
    ]
    return {
        "command": [*COMMANDS],
        "option": options,
        "setting": [key for key, *_ in describe(advanced=False)] + [key for key, *_ in describe(advanced=True)],
        "table": [*TABLES],
        "column": [f"{table}.{name}" for table, schema in TABLES.items() for name in schema.names],
    }


@pytest.mark.parametrize("kind", ["command", "option", "setting", "table", "column"])
def test_names_for_users_have_no_rejected_word(kind: str) -> None:
    names = user_names()[kind]
    assert len(names) > 5
    assert [name for name in names if {*words_of(name)} & REJECTED_FOR_USERS.keys()] == []


def test_docstrings_of_files_within_the_budget_are_imperative_sentences() -> None:
    over = {*(ROOT / "tests" / "english" / "over_budget.txt").read_text(encoding="utf-8").splitlines()}
    files = [str(file) for file in product_files() if str(file.relative_to(ROOT)) not in over]
    assert len(files) > 20
    command = [sys.executable, "-m", "ruff", "check", "--select", DOCSTRING_RULES, "--output-format", "concise", *files]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def public_definitions(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public classes, functions and methods, without functions inside functions."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name[0] != "_":
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def test_public_functions_and_classes_have_docstrings() -> None:
    public = documented = 0
    for file in product_files():
        for node in public_definitions(ast.parse(file.read_text(encoding="utf-8")).body):
            public += 1
            documented += ast.get_docstring(node) is not None
    assert documented / public >= LEAST_DOCUMENTED, f"{documented:,} of {public:,}"
