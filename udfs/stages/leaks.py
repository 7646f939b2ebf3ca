"""Items that a model took from the examples of its prompt: they name what the examples made up and no input has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

# Of a template: what its examples name, all of it invented
_NAMES = re.compile(r"\{#-?\s*names:(?P<names>[^#]*?)-?#\}")


def example_names(template: str) -> tuple[str, ...]:
    """The names of a template's examples, as its comment lists them; none without one.

    >>> example_names("{# names: Ada Fenn, Osk #}\\n=== user\\n{{ text }}")
    ('Ada Fenn', 'Osk')
    """
    found = _NAMES.search(template)
    return tuple(name.strip() for name in found["names"].split(",") if name.strip()) if found else ()


def without_leaked(
    output: Mapping[str, Any], items: Sequence[str], variables: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[Mapping[str, Any], int]:
    """The output without the items that hold a name which is in none of the inputs, and how many these were.

    items: the lists of the output that belong together, item by item, the first of which holds texts, or mappings with
    a `text`. variables: the inputs, texts and lists of texts; other values are passed over.

    >>> without_leaked({"facts": ["Osk is old.", "Lyon is old."]}, ["facts"], {"text": "Lyon is old"}, ("Osk",))
    ({'facts': ['Lyon is old.']}, 1)
    """
    if not items or not names:
        return output, 0
    pattern, said = _pattern(names), ""
    kept = []
    for place, item in enumerate(output[items[0]]):
        found = {name.casefold() for name in pattern.findall(item if isinstance(item, str) else item["text"])}
        said = said or ("\n".join(_texts(variables)).casefold() if found else "")
        if all(name in said for name in found):
            kept.append(place)
    leaked = len(output[items[0]]) - len(kept)
    if not leaked:
        return output, 0
    return {**output, **{name: [output[name][place] for place in kept] for name in items}}, leaked


@lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)")


def _texts(variables: Mapping[str, Any]) -> Iterator[str]:
    for value in variables.values():
        yield from (text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))
