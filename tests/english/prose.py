"""Find the passages and sentences of prose in Python and Markdown files."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = ("module", "class", "function", "comment", "docs", "message", "help")
MESSAGE_CALLS = {"note", "notify", "notice", "warn", "print", "echo", "warning", "info", "error", "secho"}
HELP_CALLS = {"Option", "flag", "Argument", "add_argument", "option", "argument", "Command", "add_parser"}


@dataclass(frozen=True)
class Passage:
    """A docstring, comment, paragraph or message, with the place where it starts."""

    path: str
    line: int
    kind: str
    text: str


@dataclass(frozen=True)
class Sentence:
    """One sentence of a passage. Inline code is replaced with the word ``CODE``."""

    path: str
    line: int
    kind: str
    text: str
    is_first: bool

    @property
    def words(self) -> list[str]:
        return re.findall(r"[A-Za-z][A-Za-z'’-]*|\d[\d.,]*", self.text)


def passages_of(path: Path) -> Iterator[Passage]:
    """Yield the prose of a Python or Markdown file."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if path.suffix == ".py":
        yield from _python_passages(str(path), source)
    elif path.suffix in {".md", ".qmd"}:
        yield from _markdown_passages(str(path), source)


def _python_passages(path: str, source: str) -> Iterator[Passage]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                kind = {ast.Module: "module", ast.ClassDef: "class"}.get(type(node), "function")
                yield Passage(path, node.body[0].lineno, kind, docstring)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _strings(path, node.exc.args, "message")
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in MESSAGE_CALLS:
                yield from _strings(path, node.args, "message")
            elif name in HELP_CALLS:
                yield from _strings(path, [*node.args, *(word.value for word in node.keywords)], "help")
    yield from _comments(path, source)


def _strings(path: str, nodes: Iterable[ast.expr], kind: str) -> Iterator[Passage]:
    for node in nodes:
        text = literal(node)
        if text and len(text.split()) >= 4:
            yield Passage(path, node.lineno, kind, text)


def literal(node: ast.expr) -> str | None:
    """Return the text of a string, an f-string or a sum of both, with ``x`` in code marks for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "`x`" for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (literal(node.left) or "`x`") + (literal(node.right) or "`x`")
    return None


_PRAGMA = re.compile(r"^(type: ignore|noqa|pragma|fmt:|pylint|mypy|!|-\*-|ruff:|isort|nosec|%%|---|===)")


def _comments(path: str, source: str) -> Iterator[Passage]:
    """Yield comments; full-line comments on consecutive lines are one passage."""
    block: list[str] = []
    start = last = -2
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return
    lines = source.splitlines()
    for token in tokens:
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#:").strip()
        if not text or _PRAGMA.match(text):
            continue
        line = token.start[0]
        if lines[line - 1].lstrip().startswith("#"):
            if block and line == last + 1:
                block.append(text)
            else:
                if block:
                    yield Passage(path, start, "comment", " ".join(block))
                block, start = [text], line
            last = line
        elif len(text.split()) >= 3:
            yield Passage(path, line, "comment", text)
    if block:
        yield Passage(path, start, "comment", " ".join(block))


_INDENTED = re.compile(r"(    |\t)(?!\s*([-*+]|\d+\.)\s)")


def _markdown_passages(path: str, source: str) -> Iterator[Passage]:
    fenced = False
    block: list[str] = []
    start = 0
    if source.startswith("---\n"):
        end = source.find("\n---", 4)
        source = "\n" * source.count("\n", 0, max(end, 0)) + source[end + 4 :] if end > 0 else source
    for number, line in enumerate([*source.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            fenced = not fenced
            stripped = ""
        elif fenced or (not block and _INDENTED.match(line)):
            continue
        skip = not stripped or stripped.startswith(("#", "|", "<", "![", ":::", "!!!", "???", "{{", "{%", "---", "==="))
        item = re.match(r"^\s*([-*+]|\d+\.)\s+", line)
        if (skip or item) and block:
            yield Passage(path, start, "docs", " ".join(block))
            block = []
        if not skip:
            if not block:
                start = number
            block.append(stripped[item.end() - (len(line) - len(line.lstrip())) :] if item else stripped.lstrip("> "))


# --- Sentences ------------------------------------------------------------------------------------------------------

_FIELD = re.compile(r"^\s*(:param|:type|:return|:raise|@)\b.*$|^\s*\w[\w .*]*:\s*$|^\s*-{3,}\s*$", re.M)
_PARAM = re.compile(r"^[ \t]*`{0,2}\*{0,2}\w+`{0,2}([ \t]*\([^)]*\))?(,[ \t]*\w+)*:[ \t]+(?=\S)", re.M)
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|cf|vs|al|Eq|Fig|No|approx|incl|resp|Sec|St)\.", re.I)


def sentences_of(passage: Passage) -> list[Sentence]:
    """Return the sentences of a passage that have at least three words."""
    text = passage.text
    if passage.kind in {"module", "class", "function"}:
        text = _without_examples(text)
        text = _PARAM.sub("\n\n", text)
        text = _FIELD.sub("\n\n", text)
    text = re.sub(r"```.*?```", " ", text, flags=re.S)
    text = re.sub(r"``[^`\n]+``|`[^`\n]+`", " CODE ", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", text)
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)(\{[^}]*\})?", r"\1", text)
    text = re.sub(r"https?://\S+", "CODE", text)
    text = re.sub(r"<[^>\n]{1,80}>", " ", text)
    text = re.sub(r"\*\*|__|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)", "", text)
    text = _ABBREVIATION.sub(lambda match: match.group().replace(".", ""), text)
    found = []
    first = True
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=[-*•] |\d+[.)] )", text):
        paragraph = " ".join(paragraph.split())
        for part in re.split(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[]?[A-Z])", paragraph):
            part = part.strip(" -*•")
            sentence = Sentence(passage.path, passage.line, passage.kind, part, first)
            if len(sentence.words) >= 3:
                found.append(sentence)
                first = False
    return found


def _without_examples(text: str) -> str:
    """Drop doctests and their output, up to the next blank line."""
    kept, inside = [], False
    for line in text.splitlines():
        if line.strip().startswith(">>>"):
            inside = True
        elif not line.strip():
            inside = False
        if not inside:
            kept.append(line)
    return "\n".join(kept)
