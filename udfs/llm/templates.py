"""Prompt templates: sandboxed Jinja2, split into turns in their source, before any variable is filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from untold.udfs.errors import UserError

_TURN_LINE = re.compile(r"^=== (system|user|assistant)[ \t]*$", re.MULTILINE)
# A key holds the source of its template alone: what is included could change without the key.
_FOREIGN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


# The tags of the first shipped templates; others name in their source what else they have. What is escaped is no part
# of a request's key: whoever changes these has to change a byte of every template that uses the filter too.
_TAGS = (
    *("query", "text", "context", "response", "statement", "question", "answer", "premise", "hypothesis"),
    *("first", "second"),
)


class PromptError(UserError):
    """A template that cannot be used. The message names the stage and the line, never a variable's text."""


@dataclass(frozen=True)
class Prompt:
    """A compiled template: one (role, template) a turn; a plain-completion template has the single role `text`."""

    turns: tuple[tuple[str, Template], ...]

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
    """Compiles a template's source. Raises `PromptError` for bad syntax, includes, imports and blocks across turns."""
    return Prompt(tuple((role, _compile(text, name)) for role, text in _turns(source, api)))


def split_turns(source: str) -> list[tuple[str, str]]:
    r"""The (role, source) of each turn; a source without turn lines is one user turn.

    >>> split_turns("=== system\nBe brief.\n\n=== user\n{{ query }}\n")
    [('system', 'Be brief.'), ('user', '{{ query }}')]
    """
    source = source.replace("\r\n", "\n")
    lines = list(_TURN_LINE.finditer(source))
    if not lines:
        return [("user", _strip_blank_lines(source))]
    ends = [line.start() for line in lines[1:]] + [len(source)]
    return [
        (line.group(1), _strip_blank_lines(source[line.end() : end])) for line, end in zip(lines, ends, strict=True)
    ]


def check_variables(source: str, allowed: tuple[str, ...], *, api: str = "chat", name: str) -> None:
    """Raises `PromptError` where a template asks for a variable that its stage does not have."""
    asked: set[str] = set()
    for _, turn in _turns(source, api):
        asked |= find_undeclared_variables(_environment().parse(turn))
    unknown = sorted(asked - set(allowed))
    if unknown:
        raise PromptError(
            f"template of stage {name}: unknown variable {', '.join(unknown)}; the stage has {', '.join(allowed)}"
        )


def order_of_variables(source: str, variables: Iterable[str], *, api: str = "chat") -> tuple[str, ...]:
    """The variables in the order in which a prompt has them, those that it has not at the end.

    >>> order_of_variables("{% for claim in claims %}{{ claim }}{% endfor %} {{ fact }}", ("fact", "claims"))
    ('claims', 'fact')
    """
    trees = (_environment().parse(turn) for _, turn in _turns(source, api))
    named = [node.name for tree in trees for node in tree.find_all(nodes.Name)]
    known = list(variables)
    return tuple(dict.fromkeys([*(name for name in named if name in known), *known]))


def as_data(text: object, *more: str) -> str:
    """The text with the tags escaped that would close the one around it: `</context>` becomes `&lt;/context>`.

    `more` names the tags of the template beside `_TAGS`: `{{ claim | as_data("claim") }}`.

    >>> as_data("ends here </context> or < / Query >, a < b")
    'ends here &lt;/context> or &lt; / Query >, a < b'
    >>> as_data("</claim>"), as_data("</claim>", "claim")
    ('</claim>', '&lt;/claim>')
    """
    return _closing_tag(more).sub("&lt;", str(text))


@lru_cache(maxsize=64)
def _closing_tag(more: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<(?=\s*/\s*(?:{'|'.join(map(re.escape, (*_TAGS, *more)))})\b)", re.IGNORECASE)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    """The one environment: sandboxed, since templates come from users; strict, since a misspelt variable would be
    empty.
    """
    # No autoescape: prompts are no HTML, and `&amp;` in them would be read by models as it stands.
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    environment.filters["as_data"] = as_data
    return environment


def _turns(source: str, api: str) -> list[tuple[str, str]]:
    """The (role, source) of each turn; a plain completion has the one turn `text`, whatever lines it holds."""
    return split_turns(source) if api == "chat" else [("text", _strip_blank_lines(source))]


def _compile(source: str, name: str) -> Template:
    """A turn's template. Raises PromptError for bad syntax and for what would read another template."""
    try:
        tree = _environment().parse(source)
        foreign = next((node for kind in _FOREIGN for node in tree.find_all(kind)), None)
        if foreign is not None:
            raise PromptError(f"template of stage {name}: line {foreign.lineno} of a turn includes another template")
        return _environment().from_string(source)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise PromptError(f"template of stage {name}: {error.message} (line {line} of a turn)") from error


def _render(turn: Template, variables: Mapping[str, Any]) -> str:
    """A turn for these variables. Raises what Jinja2 raises for one that is missing or fails."""
    return turn.render(variables)


def _strip_blank_lines(text: str) -> str:
    """The text without the blank lines at its beginning and end, those of a file around its turns."""
    lines = text.split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)
