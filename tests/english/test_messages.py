"""The messages of the product are plain English: errors, hints, progress lines and help texts, measured per folder."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.english.prose import HELP_CALLS, MESSAGE_CALLS, Passage, Sentence, literal, sentences_of
from tests.english.rules import findings
from tests.english.vocabulary import REJECTED
from tests.test_docs import words_to_avoid
from tests.test_house import ROOT, product_files

# The share of the messages of a folder that may have an odd construction
MOST_MARKED = 0.15
# A folder with fewer sentences is measured with the folder above it
LEAST = 20
CALLS = MESSAGE_CALLS | HELP_CALLS | {"Field", "setting", "append", "complain", "CheckResult", "amount"}
# Queries, schemas and patterns are not prose. Texts of `Unparsable` are stored in the tables of frozen outputs.
NOT_PROSE = re.compile(r"\b(select|group by|create view)\b|struct<|\(\?|\\[wds]|default-src")
FROZEN = {"Unparsable"}


def called(node: ast.expr | None) -> str:
    """Return the name of the called function or class, without its module."""
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", "")))


def is_message(node: ast.AST) -> bool:
    """Return True if the node raises an error, returns or yields a value, or passes it to a function for messages."""
    if isinstance(node, ast.Raise):
        return called(node.exc) not in FROZEN
    name = called(node) if isinstance(node, ast.expr) else ""
    return isinstance(node, (ast.Return, ast.Yield)) or name in CALLS or name.endswith("Error")


def texts_in(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each literal below the node. An f-string is one literal."""
    text = literal(node) if isinstance(node, ast.expr) else None
    if text is not None:
        yield getattr(node, "lineno", 0), text
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Call) and called(child) in FROZEN):
            yield from texts_in(child)


def messages_of(source: str) -> set[tuple[int, str]]:
    """Return the line and the text of each message of at least four words.

    >>> sorted(messages_of("def f(path):\\n    raise ValueError(f'{path} has no rows in it')"))
    [(2, '`x` has no rows in it')]
    """
    found = {text for node in ast.walk(ast.parse(source)) if is_message(node) for text in texts_in(node)}
    return {(line, text) for line, text in found if len(text.split()) >= 4 and not NOT_PROSE.search(text)}


def sentences_by_folder(files: list[Path]) -> dict[str, list[Sentence]]:
    """Return the sentences of the messages by folder, with small folders added to the folder above."""
    found: dict[str, list[Sentence]] = defaultdict(list)
    for file in files:
        name = str(file.relative_to(ROOT))
        for line, text in sorted(messages_of(file.read_text(encoding="utf-8"))):
            found[str(Path(name).parent)] += sentences_of(Passage(name, line, "message", text))
    for folder in sorted(found, key=len, reverse=True):
        if len(found[folder]) < LEAST and "/" in folder:
            found[str(Path(folder).parent)] += found.pop(folder)
    return dict(found)


def test_messages_of_each_folder_are_plain_sentences() -> None:
    folders = sentences_by_folder(product_files())
    assert sum(map(len, folders.values())) > 1_000
    for folder, sentences in folders.items():
        odd = [f"{one.path}:{one.line}: {', '.join(findings(one))}: {one.text}" for one in sentences if findings(one)]
        assert len(odd) <= MOST_MARKED * len(sentences), f"{folder}: {len(odd)} of {len(sentences)}\n" + "\n".join(odd)


def words_in(text: str, avoided: Collection[str]) -> list[str]:
    """Return the words and phrases of `avoided` that occur in a text outside of code."""
    prose = re.sub(r"`[^`]*`", "", text)
    return [word for word in avoided if re.search(rf"\b{word}\b", prose, re.IGNORECASE)]


def test_messages_use_the_words_of_the_glossary() -> None:
    avoided = {*words_to_avoid(), *REJECTED}
    assert sorted(words_in("The asker said `told`.", avoided)) == ["asker", "said"]
    found = {
        f"{file.relative_to(ROOT)}:{line}": words
        for file in product_files()
        for line, text in messages_of(file.read_text(encoding="utf-8"))
        if (words := words_in(text, avoided))
    }
    assert found == {}


def test_an_odd_message_is_found_and_a_frozen_one_is_not() -> None:
    source = """
def check(rows, path):
    if not rows:
        raise SampleError(f"{path}: no rows in it; whoever made it: give what it lacks")
    if path is None:
        raise Unparsable("what came is none of the labels")
    return "The file has no column `query`. Rename a column."
"""
    found = {text: list(findings(one)) for _, text in messages_of(source) for one in sentences_of_text(text)}
    assert found == {
        "`x`: no rows in it; whoever made it: give what it lacks": ["what-phrase", "joined"],
        "The file has no column `query`. Rename a column.": [],
    }


def sentences_of_text(text: str) -> list[Sentence]:
    return sentences_of(Passage("a.py", 1, "message", text))
