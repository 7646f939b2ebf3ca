"""Prompt templates: sandboxed Jinja2, split into turns in their source, before any variable is filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from traceback import extract_tb
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from untold.udfs.errors import UserError
from untold.udfs.llm.escaping import as_data

_TURN_LINE = re.compile(r"^=== (system|user|assistant)[ \t]*$", re.MULTILINE)
# A key holds the source of its template alone: what is included could change without the key.
_FOREIGN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class PromptError(UserError):
    """A template that cannot be used. The message names its file, or stage, and the line, never a variable's text."""


@dataclass(frozen=True)
class Prompt:
    """A compiled template: one (role, template) a turn; a plain-completion template has the single role `text`.

    A turn in which nothing is filled in is its text.
    """

    turns: tuple[tuple[str, Template | str], ...]

    def messages(self, variables: Mapping[str, Any]) -> list[dict[str, str]]:
        """The chat messages for these variables."""
        return [{"role": role, "content": _render(turn, variables)} for role, turn in self.turns]

    def text(self, variables: Mapping[str, Any]) -> str:
        """The prompt of a plain completion for these variables."""
        return _render(self.turns[0][1], variables)

    def characters(self, variables: Mapping[str, Any]) -> int:
        """Length in UTF-8 bytes of everything that is sent for these variables."""
        return sum(len(_render(turn, variables).encode("utf-8")) for _, turn in self.turns)


@lru_cache(maxsize=64)
def compile_prompt(source: str, *, api: str = "chat", name: str = "template") -> Prompt:
    """Compiles a template's source. Raises `PromptError` for bad syntax, includes, imports and blocks across turns.

    `name` is what errors call the template: its file, or its stage.
    """
    return Prompt(tuple((role, _compile(text, line, name)) for role, text, line in split_turns(source, api)))


def try_prompt(prompt: Prompt, variables: Mapping[str, Any], name: str) -> None:
    """Fills in a prompt once. Raises `PromptError` with the line where these variables cannot be filled in."""
    for turn in (turn for _, turn in prompt.turns if not isinstance(turn, str)):
        try:
            turn.render(variables)
        # A template may fail in any way that Python can
        except Exception as error:
            lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == turn.filename]
            raise PromptError(f"{name} line {lines[-1] if lines else '?'}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return str(error.message) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"


def check_variables(source: str, allowed: tuple[str, ...], *, api: str = "chat", name: str) -> None:
    """Raises `PromptError` where a template asks for a variable that its stage does not have."""
    unknown: dict[str, int] = {}
    for _, turn, line in split_turns(source, api):
        tree = _parse(turn, line, name)
        wrong = find_undeclared_variables(tree) - set(allowed)
        unknown |= {one.name: one.lineno for one in tree.find_all(nodes.Name) if one.name in wrong - unknown.keys()}
    if unknown:
        raise PromptError(
            f"{name} line {min(unknown.values())}: unknown variable {', '.join(sorted(unknown))}. "
            f"The stage has {', '.join(allowed)}"
        )


def order_of_variables(source: str, variables: Iterable[str], *, api: str = "chat") -> tuple[str, ...]:
    """The variables in the order in which a prompt has them, those that it has not at the end.

    >>> order_of_variables("{% for claim in claims %}{{ claim }}{% endfor %} {{ fact }}", ("fact", "claims"))
    ('claims', 'fact')
    """
    trees = (_environment().parse(turn) for _, turn, _ in split_turns(source, api))
    named = [node.name for tree in trees for node in tree.find_all(nodes.Name)]
    known = list(variables)
    return tuple(dict.fromkeys([*(name for name in named if name in known), *known]))


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    """The one environment: sandboxed, since templates come from users; strict, since a misspelt variable would be
    empty.
    """
    # No autoescape: prompts are no HTML, and `&amp;` in them would be read by models as it stands.
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    environment.filters["as_data"] = as_data
    return environment


def split_turns(source: str, api: str = "chat") -> list[tuple[str, str, int]]:
    r"""Return the role, source and first line of each turn.

    A source without turn lines is one user turn. A source for the completions API is the one turn `text`.

    >>> split_turns("=== system\nBe brief.\n\n=== user\n{{ query }}\n")
    [('system', 'Be brief.', 2), ('user', '{{ query }}', 5)]
    """
    source = source.replace("\r\n", "\n") if api == "chat" else source
    lines = list(_TURN_LINE.finditer(source)) if api == "chat" else []
    if not lines:
        return [("user" if api == "chat" else "text", *_without_blank_lines(source, 0))]
    ends = [line.start() for line in lines[1:]] + [len(source)]
    return [
        (line.group(1), *_without_blank_lines(source[:end], line.end())) for line, end in zip(lines, ends, strict=True)
    ]


def _without_blank_lines(source: str, start: int) -> tuple[str, int]:
    """What follows `start`, without the blank lines at its beginning and end, and the number of its first line."""
    text = source[start:]
    kept = _strip_blank_lines(text)
    return kept, source[: start + max(text.find(kept), 0)].count("\n") + 1


def _parse(source: str, line: int, name: str) -> nodes.Template:
    """The tree of a turn that begins in a line of its file, with the lines of the file. Raises PromptError."""
    try:
        tree = _environment().parse(source)
    except TemplateSyntaxError as error:
        raise PromptError(f"{name} line {error.lineno + line - 1}: {error.message}") from error
    for node in tree.find_all(nodes.Node):
        # Jinja2 gives none to what follows a comment at the beginning
        node.lineno = (node.lineno or 1) + line - 1
    return tree


def _compile(source: str, line: int, name: str) -> Template | str:
    """A turn's template, or its text. Raises PromptError for bad syntax and for what would read another template."""
    tree = _parse(source, line, name)
    foreign = next((node for kind in _FOREIGN for node in tree.find_all(kind)), None)
    if foreign is not None:
        raise PromptError(f"{name} line {foreign.lineno}: a template cannot include another")
    if (text := _plain_text(tree)) is not None:
        return text
    try:
        template = _environment().from_string(tree)
    except TemplateSyntaxError as error:
        raise PromptError(f"{name} line {error.lineno}: {error.message}") from error
    # A chain of maps, which each rendering would go through name by name: half of its time
    template.globals = dict(template.globals)
    return template


def _plain_text(tree: nodes.Template) -> str | None:
    """The text of a template that is nothing else, as all turns of examples are."""
    parts = [part for node in tree.body for part in (node.nodes if isinstance(node, nodes.Output) else (node,))]
    texts = [part.data for part in parts if isinstance(part, nodes.TemplateData)]
    return "".join(texts) if len(texts) == len(parts) else None


def _render(turn: Template | str, variables: Mapping[str, Any]) -> str:
    """A turn for these variables. Raises what Jinja2 raises for one that is missing or fails."""
    return turn if isinstance(turn, str) else turn.render(variables)


def _strip_blank_lines(text: str) -> str:
    """The text without the blank lines at its beginning and end, those of a file around its turns."""
    lines = text.split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)
