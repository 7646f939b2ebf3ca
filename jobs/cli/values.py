"""The values of options: from a text of the command line to what a job takes. Another text raises ValueError."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from typing import Any

import click
from click.shell_completion import CompletionItem

from untold.udfs.errors import did_you_mean, near_misses
from untold.udfs.schemes import complaint_of

Names = Callable[[], Iterable[str]]
# What the help calls values that are paths
PATHS = frozenset({"PATH", "DIR", "FILE", "F", "RUN", "RUN...", "STUDY...", "SPOOL"})

# Questions whose contexts lie in a second file
CONTEXTS_APART = "eli5_category"


def with_hint(message: str, word: str, known: Iterable[str]) -> str:
    """The message, and which of the known words may have been meant.

    >>> with_hint("no metric nil", "nil", ["nli", "e2e"])
    'no metric nil; did you mean nli?'
    """
    near = did_you_mean(near_misses(word, known), quote="")
    return f"{message}; {near}" if near else message


def one_of(words: Sequence[str] | Callable[[], Sequence[str]]) -> OneOf:
    """Reads one of these words. What it gives raises ValueError for any other."""
    return OneOf(words)


class OneOf:
    """A reader of one of some words, which a shell completes."""

    def __init__(self, words: Sequence[str] | Callable[[], Sequence[str]]) -> None:
        self._words = words

    @property
    def words(self) -> Sequence[str]:
        """The words."""
        return self._words() if callable(self._words) else self._words

    def __call__(self, text: str) -> str:
        known = self.words
        if text not in known:
            raise ValueError(with_hint(f"invalid choice: {text!r} (choose from {', '.join(known)})", text, known))
        return text


def words_of(read: Callable[[str], Any]) -> Names | None:
    """The words that a reader takes; None where it takes others."""
    return (lambda: read.words) if isinstance(read, OneOf) else None


def completes(
    words: Names | None, metavar: str = ""
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]] | None:
    """What completes a value in a shell: paths, or words, of a LIST the last one. None where anything may stand."""
    if words is None:
        kind = "dir" if metavar == "DIR" else "file"
        return (lambda _, __, begun: [CompletionItem(begun, kind)]) if metavar in PATHS else None

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        before, comma, last = begun.rpartition(",") if metavar == "LIST" else ("", "", begun)
        return [CompletionItem(f"{before}{comma}{word}") for word in words() if word.startswith(last)]

    return complete


def names(text: str) -> tuple[str, ...]:
    """The names of a list by comma, each once.

    >>> names("nli, e2e,nli")
    ('nli', 'e2e')
    """
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def prompt_sets(text: str) -> tuple[str, ...]:
    """Return the sets of prompts, by comma, each once. Raises ValueError for others than untold and published.

    >>> prompt_sets("published, untold")
    ('published', 'untold')
    """
    read = one_of(("untold", "published"))
    found = tuple(map(read, names(text)))
    if not found:
        raise ValueError("names none; choose from untold, published")
    return found


def known_metrics() -> Sequence[str]:
    """The names of the metrics, those of other packages too; imports Spark's Python side with them."""
    from untold.jobs.metrics import METRICS

    return list(METRICS)


def known_formats(use: str | None = None) -> Sequence[str]:
    """The names of the data sets that samples may be read from, or of those of one use (`Adapter.uses`)."""
    from untold.udfs.samples.adapters import FORMATS

    return [name for name, adapter in FORMATS.items() if use is None or use in adapter.uses]


def preset_names() -> Sequence[str]:
    """The names of the shipped presets."""
    from untold.jobs.settings.layers import shipped_names

    return shipped_names("endpoints")


def setting_keys() -> Sequence[str]:
    """The keys of all settings, as a value of `--set` begins."""
    from untold.jobs.settings.layers import known_settings

    return [f"{key}=" for key in known_settings()]


def question_formats() -> Sequence[str]:
    """The names of the data sets of questions."""
    return [CONTEXTS_APART, *known_formats("questions")]


def claim_formats() -> Sequence[str]:
    """The names of the data sets of labelled claims."""
    from untold.udfs.samples.labelled import CLAIM_FORMATS, PLAIN

    return [name for name in CLAIM_FORMATS if name != PLAIN]


def study_formats() -> Sequence[str]:
    """The names of the data sets of labelled items, and of labelled claims."""
    return list(dict.fromkeys([*known_formats("items"), *claim_formats()]))


def studied() -> Sequence[str]:
    """What `untold meta-evaluate --dataset` may be: a data set of labelled responses, or of what else is labelled."""
    return [*known_formats("labels"), "coverage", "claims", "nuggets"]


def metric_names(text: str) -> tuple[str, ...]:
    """The metrics of a list by comma, each once. Raises ValueError for what is none, and for an empty list."""
    from untold.jobs.metrics import UnknownMetricError, check_metrics

    try:
        return check_metrics(names(text))
    except UnknownMetricError as error:
        raise ValueError(str(error)) from None


def count(text: str) -> int:
    """A positive integer. Raises ValueError for another text."""
    # isdigit refuses signs, blanks and the underscores that int would read
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"must be a positive integer, got {text or 'nothing'}")
    return int(text)


def weights(text: str) -> tuple[float, ...]:
    """The values of beta of a list by comma. Raises ValueError for one that is no number above 0, up to 1000.

    >>> weights(".5,1, 2")
    (0.5, 1.0, 2.0)
    """
    found = []
    for word in names(text):
        try:
            found.append(float(word))
        except ValueError:
            raise ValueError(f"must be numbers, got {word}") from None
    # Not `<= 0`, which NaN passes
    if not found or not all(0 < value <= 1000 for value in found):
        raise ValueError(f"must be numbers above 0, up to 1000, got {text or 'nothing'}")
    return tuple(found)


def bar(text: str) -> float:
    """A number from 0 to 1. Raises ValueError for another text."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise ValueError(f"must be a number from 0 to 1, got {text or 'nothing'}")
    return found


def width(text: str) -> float:
    """A number above 0. Raises ValueError for another text.

    >>> width(".01")
    0.01
    """
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise ValueError(f"must be a number above 0, such as 0.01, got {text or 'nothing'}")
    return found


def column_pairs(text: str) -> dict[str, str]:
    """What files call our columns, by ours. Raises ValueError for a pair without a half, and for a column twice.

    >>> column_pairs("query=question, contexts=retrieved_contexts")
    {'query': 'question', 'contexts': 'retrieved_contexts'}
    """
    pairs: dict[str, str] = {}
    for pair in text.split(","):
        ours, _, theirs = (half.strip() for half in pair.partition("="))
        if not ours or not theirs:
            raise ValueError(f"{pair.strip()!r} is not of the form OURS=THEIRS")
        if ours in pairs:
            raise ValueError(f"{ours} is named twice")
        pairs[ours] = theirs
    return pairs


def encoding(text: str) -> str:
    """An encoding of text that Python knows. Raises ValueError for another."""
    from untold.udfs.samples.files import check_encoding

    return check_encoding(text)


def delimiter(text: str) -> str:
    """The character between the cells of CSV. Raises ValueError for what cannot be one.

    >>> delimiter(";"), delimiter("tab")
    (';', '\\t')
    """
    found = "\t" if text in ("tab", "\\t") else text
    if len(found) != 1 or found in '"\r\n':
        raise ValueError(f"{text!r} is not a delimiter; give one character, or tab")
    return found


def bars(text: str) -> dict[str, float]:
    """The least mean by metric of a list by comma. Raises ValueError for one that is not METRIC=NUMBER, 0 to 1.

    >>> bars("e2e=.7, qa=0.5")
    {'e2e': 0.7, 'qa': 0.5}
    """
    found = {}
    for word in names(text) or ("",):
        metric, _, number = (part.strip() for part in word.partition("="))
        try:
            found[metric] = float(number)
        except ValueError:
            found[metric] = math.nan
        if not (metric and 0 <= found[metric] <= 1):
            raise ValueError(f"{word!r} must be METRIC=BAR with a number from 0 to 1, such as e2e=0.7")
    return found


def age(text: str) -> timedelta:
    """A number of hours, days or weeks. Raises ValueError for another text.

    >>> age("90d").days, age("2w").days
    (90, 14)
    """
    units = {"h": "hours", "d": "days", "w": "weeks"}
    number, unit = text[:-1], units.get(text[-1:])
    if unit is None or not number.isdecimal() or len(number) > 5:
        raise ValueError(f"must be a number of hours, days or weeks such as 36h, 90d or 12w, got {text or 'nothing'}")
    return timedelta(**{unit: int(number)})


def whole_number(text: str) -> int:
    """An integer. Raises ValueError for another text."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be an integer, got {text or 'nothing'}") from None


def day(text: str) -> date:
    """A date as YYYY-MM-DD. Raises ValueError for another text."""
    from untold.jobs.summary.nights import parse_date

    return parse_date(text)


def version(text: str) -> str:
    """A version of a Delta table, as `v12`. Raises ValueError for another text."""
    if not re.fullmatch(r"v\d+", text):
        raise ValueError(f"must be a version such as v12, got {text or 'nothing'}")
    return text


def path(text: str) -> str:
    """A local path or a URI of a scheme that is known."""
    if complaint := complaint_of(text.removeprefix("delta:")):
        raise ValueError(complaint)
    return text
