"""Escape texts in prompts, so that a model does not read them as parts of the prompt, and find escaped texts again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

# The tags of the shipped templates (docs/contract.md, "Templates"). The keys of requests do not depend on escaping, so
# a change here also needs a changed byte in each template with the filter
TAGS: tuple[str, ...] = (
    *("query", "text", "context", "response", "statement", "question", "answer", "premise", "hypothesis"),
    *("first", "second", "aspect", "claim", "fact", "evidence", "reference", "candidate", "nugget", "other"),
    "sentence",
)
# White space and invisible characters
_GAP = r"[\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]{0,9}"
_ANGLED = (
    *("s", "bos", "eos", "pad", "unk", "mask", "cls", "sep", "BOS_TOKEN", "EOS_TOKEN", "EOD", "think", "thinking"),
    *("start_of_turn", "end_of_turn", "start_of_image", "end_of_image", "tool_call", "tool_calls", "tool_response"),
    *("end_of_utterance", "fim_prefix", "fim_middle", "fim_suffix", r"extra_id_\d{1,4}"),
)
_SQUARE = (
    *("INST", "SYSTEM_PROMPT", "AVAILABLE_TOOLS", "TOOL_CALLS", "TOOL_RESULTS", "TOOL_CONTENT", "ARGS", "THINK"),
    *("PREFIX", "MIDDLE", "SUFFIX", "IMG", "CLS", "SEP", "MASK", "PAD", "UNK", "BOS", "EOS"),
)
# The kinds of special tokens of chat models. `{0}` is after the opening and before the closing characters
_KINDS = (
    ("<[|｜]", r"[^\s|｜<>]{1,64}", "[|｜]>"),
    ("<<", "/?SYS", ">>"),
    ("<", f"/?(?:{'|'.join(_ANGLED)})", ">"),
    (r"\[", f"/?(?:{'|'.join(_SQUARE)})", r"\]"),
)


def _tokens(space: str) -> str:
    return "|".join(f"{opens}{space}{name}{space}{closes}" for opens, name, closes in _KINDS)


TOKEN = re.compile(_tokens(""))
_ESCAPED = re.compile(rf"&lt;{_GAP}/?{_GAP}(?:{'|'.join(TAGS)})\b|{_tokens(' ')}", re.IGNORECASE)


def as_data(text: object, *more: str) -> str:
    """Return the text without parts that a model could read as parts of the prompt.

    Tags of the templates and the tags in `more` are escaped (`</context>` is `&lt;/context>`). Special tokens of chat
    models get spaces (`<|im_end|>` is `<| im_end |>`), so that tokenizers do not recognize them.

    >>> as_data('ends here </context> <context id="2"> or < / Query >, a < b')
    'ends here &lt;/context> &lt;context id="2"> or &lt; / Query >, a < b'
    >>> as_data("</s><|im_start|>system [/INST] </note>", "note")
    '< /s ><| im_start |>system [ /INST ] &lt;/note>'
    """
    return TOKEN.sub(lambda found: _spaced(found[0]), _opening(more).sub("&lt;", str(text)))


@lru_cache(maxsize=64)
def _opening(more: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the opening character of a tag."""
    return re.compile(rf"<(?={_GAP}/?{_GAP}(?:{'|'.join(map(re.escape, (*TAGS, *more)))})\b)", re.IGNORECASE)


def _spaced(token: str) -> str:
    width = 2 if token[1] in "|｜<" else 1
    return f"{token[:width]} {token[width:-width]} {token[-width:]}"


def find_escaped(completion: str) -> Iterator[tuple[int, int, str]]:
    """Yield the start, the end and the original text of tags and tokens that `as_data` escapes.

    Escaped tags of reasoning are skipped, because a reader would remove the text after them.

    >>> list(find_escaped("a &lt;/context> and <| im_end |>"))
    [(2, 14, '</context'), (20, 32, '<|im_end|>')]
    """
    for found in _ESCAPED.finditer(completion):
        if "think" not in found[0].lower():
            is_tag = found[0].startswith("&lt;")
            yield found.start(), found.end(), f"<{found[0][4:]}" if is_tag else found[0].replace(" ", "")
