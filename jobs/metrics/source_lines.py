"""The sentences of contexts that state a statement, as lines."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from untold.graph.views import one_line
from untold.udfs.facts.words import words_of
from untold.udfs.hints import shorten
from untold.udfs.recall.forms import match_form, shown_form
from untold.udfs.recall.segmentation import sentences

# A line's text, what stands before it, and what stands before the lines that it is wrapped to
Line = tuple[str, str, str]
LONGEST_SENTENCE = 500
# Below the number of a statement
INDENT = "       "


def stating_lines(
    statement: str, sources: Sequence[str] | None, contexts: Mapping[str, str], *, quoted: bool
) -> Iterator[Line]:
    """Where a statement is stated, and if `quoted` the sentence of each of these contexts that states it.

    sources: ids of contexts, or of chunks.
    """
    for what, known in (("context", True), ("chunk", False)):
        names = [one_line(name) for name in sources or () if (name in contexts or not contexts) == known]
        if names:
            yield ", ".join(names), f"{INDENT}stated in {what}{'' if len(names) == 1 else 's'} ", f"{INDENT}  "
    for name in sources or () if quoted else ():
        found = stating_sentence(statement, contexts.get(name, ""))
        if found is not None:
            sentence, verbatim = found
            how = "" if verbatim else " (found by shared words)"
            yield one_line(shorten(sentence, LONGEST_SENTENCE)), f"{INDENT}  {one_line(name)}{how}: ", f"{INDENT}    "


def stating_sentence(statement: str, context: str) -> tuple[str, bool] | None:
    """The sentence of a context that has the most words of a statement, and whether it has the statement verbatim.

    None where no sentence has a word of it. Of equal sentences the shortest counts, then the first.

    >>> stating_sentence("The tower has 12 bells", "It rained. The tower has 12 bells. Bells ring.")
    ('The tower has 12 bells.', True)
    >>> stating_sentence("Osk is old", "Osk was founded in 1187. It has a market.")
    ('Osk was founded in 1187.', False)
    """
    wanted, form = _units(statement), match_form(shown_form(statement))
    if form and form in match_form(shown_form(context)):
        whole = next((one for one in sentences(context) if form in match_form(shown_form(one))), context)
        return whole, True
    found = [(one, len(wanted & _units(one))) for one in sentences(context)]
    best = max(found, key=lambda pair: (pair[1], -len(pair[0])), default=("", 0))
    return (best[0], False) if best[1] else None


def _units(text: str) -> frozenset[str]:
    """The words of a text, and the signs of scripts that put no spaces between words."""
    return words_of(text) | {sign for sign in text if unicodedata.east_asian_width(sign) == "W"}
