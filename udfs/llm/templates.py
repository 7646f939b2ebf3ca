"""Compile and render prompt templates: sandboxed Jinja2, split into turns before variables are inserted."""

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
# A key contains only the source of its template, so included files could change without the key
_FOREIGN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


class PromptError(UserError):
    """An invalid template. The message names its file, or its stage, and the line, but never the text of a variable."""


@dataclass(frozen=True)
class Prompt:
    """A compiled template: a pair of role and template per turn. A plain completion has a single turn `text`.

    A turn without variables is a text.
    """

    turns: tuple[tuple[str, Template | str], ...]

    def messages(self, variables: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the chat messages with these variables."""
        return [{"role": role, "content": _render(turn, variables)} for role, turn in self.turns]

    def text(self, variables: Mapping[str, Any]) -> str:
        """Return the prompt of a plain completion with these variables."""
        return _render(self.turns[0][1], variables)

    def characters(self, variables: Mapping[str, Any]) -> int:
        """Return the length in UTF-8 bytes of all turns with these variables."""
        return sum(len(_render(turn, variables).encode("utf-8")) for _, turn in self.turns)


@lru_cache(maxsize=64)
def compile_prompt(source: str, *, api: str = "chat", name: str = "template") -> Prompt:
    """Compile the source of a template. Raises `PromptError` for bad syntax, includes, imports and blocks across turns.

    `name` is the name of the template in errors: its file or its stage.
    """
    return Prompt(tuple((role, _compile(text, line, name)) for role, text, line in split_turns(source, api)))


def try_prompt(prompt: Prompt, variables: Mapping[str, Any], name: str) -> None:
    """Render a prompt once. Raises `PromptError` with the line of an error."""
    for turn in (turn for _, turn in prompt.turns if not isinstance(turn, str)):
        try:
            turn.render(variables)
        # A template can raise any exception
        except Exception as error:
            lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == turn.filename]
            raise PromptError(f"{name} line {lines[-1] if lines else '?'}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return str(error.message) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"


def check_variables(source: str, allowed: tuple[str, ...], *, api: str = "chat", name: str) -> None:
    """Raise `PromptError` if a template has a variable that its stage lacks."""
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
    """Return the variables in their order in a prompt. Variables that the prompt lacks are at the end.

    >>> order_of_variables("{% for claim in claims %}{{ claim }}{% endfor %} {{ fact }}", ("fact", "claims"))
    ('claims', 'fact')
    """
    trees = (_environment().parse(turn) for _, turn, _ in split_turns(source, api))
    named = [node.name for tree in trees for node in tree.find_all(nodes.Name)]
    known = list(variables)
    return tuple(dict.fromkeys([*(name for name in named if name in known), *known]))


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    """Return the environment. It is sandboxed because users write templates, and strict for misspelled variables."""
    # Without autoescape, because prompts are not HTML, and models read `&amp;` literally
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
    """Return the text after `start` without blank lines at its beginning and end, and the number of its first line."""
    text = source[start:]
    kept = _strip_blank_lines(text)
    return kept, source[: start + max(text.find(kept), 0)].count("\n") + 1


def _parse(source: str, line: int, name: str) -> nodes.Template:
    """Return the tree of a turn with the line numbers of its file. `line` is its first line. Raises PromptError."""
    try:
        tree = _environment().parse(source)
    except TemplateSyntaxError as error:
        raise PromptError(f"{name} line {error.lineno + line - 1}: {error.message}") from error
    for node in tree.find_all(nodes.Node):
        # Jinja2 sets no line number after a comment at the beginning
        node.lineno = (node.lineno or 1) + line - 1
    return tree


def _compile(source: str, line: int, name: str) -> Template | str:
    """Return the template or the text of a turn. Raises PromptError for bad syntax and for other templates in it."""
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
    # The chain of maps takes half of the time of a rendering
    template.globals = dict(template.globals)
    return template


def _plain_text(tree: nodes.Template) -> str | None:
    """Return the text of a template without variables, such as a turn of an example. None for other templates."""
    parts = [part for node in tree.body for part in (node.nodes if isinstance(node, nodes.Output) else (node,))]
    texts = [part.data for part in parts if isinstance(part, nodes.TemplateData)]
    return "".join(texts) if len(texts) == len(parts) else None


def _render(turn: Template | str, variables: Mapping[str, Any]) -> str:
    """Return a turn with these variables. Raises the errors of Jinja2."""
    return turn if isinstance(turn, str) else turn.render(variables)


def _strip_blank_lines(text: str) -> str:
    """Return the text without blank lines at its beginning and end."""
    lines = text.split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)
