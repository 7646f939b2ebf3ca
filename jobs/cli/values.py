"""Read the values of options from text. A reader raises ValueError for an invalid text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta

from untold.udfs.errors import did_you_mean, near_misses
from untold.udfs.schemes import complaint_of

# A data set of questions with their contexts in a second file
CONTEXTS_APART = "eli5_category"


def with_hint(message: str, word: str, known: Iterable[str]) -> str:
    """Return the message with the known word that is nearest to the given word.

    >>> with_hint("no metric nil", "nil", ["nli", "e2e"])
    'no metric nil; did you mean nli?'
    """
    near = did_you_mean(near_misses(word, known), quote="")
    return f"{message}; {near}" if near else message


class OneOf:
    """Read one of some words, which a shell completes. A function returns words that are slow to import."""

    def __init__(self, words: Sequence[str] | Callable[[], Sequence[str]]) -> None:
        self._words = words

    @property
    def words(self) -> Sequence[str]:
        """Return the allowed words."""
        return self._words() if callable(self._words) else self._words

    def __call__(self, text: str) -> str:
        known = self.words
        if text not in known:
            raise ValueError(with_hint(f"invalid choice: {text!r} (choose from {', '.join(known)})", text, known))
        return text


def known_metrics() -> Sequence[str]:
    """Return the names of the metrics. Imports the metrics of other packages, and with them Spark's Python side."""
    from untold.jobs.metrics import METRICS

    return list(METRICS)


def known_formats(use: str | None = None) -> Sequence[str]:
    """Return the names of the data sets of samples, or only of the data sets with a use (`Adapter.uses`)."""
    from untold.udfs.samples.adapters import FORMATS

    return [name for name, adapter in FORMATS.items() if use is None or use in adapter.uses]


def preset_names() -> Sequence[str]:
    """Return the names of the shipped presets."""
    from untold.jobs.settings.layers import shipped_names

    return shipped_names("endpoints")


def setting_keys() -> Sequence[str]:
    """Return the keys of all settings as prefixes of a value of `--set`."""
    from untold.jobs.settings.layers import known_settings

    return [f"{key}=" for key in known_settings()]


def question_formats() -> Sequence[str]:
    """Return the names of the data sets of questions."""
    return [CONTEXTS_APART, *known_formats("questions")]


def claim_formats() -> Sequence[str]:
    """Return the names of the data sets of labelled claims."""
    from untold.udfs.samples.labelled import CLAIM_FORMATS, PLAIN

    return [name for name in CLAIM_FORMATS if name != PLAIN]


def study_formats() -> Sequence[str]:
    """Return the names of the data sets of labelled items, criteria or claims."""
    return list(dict.fromkeys([*known_formats("items"), *known_formats("criteria"), *claim_formats()]))


def studied() -> Sequence[str]:
    """Return the values of `untold meta-evaluate --dataset`."""
    return [*known_formats("labels"), "coverage", "claims", "nuggets", "rubrics"]


def names(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of names. A repeated name counts once.

    >>> names("nli, e2e,nli")
    ('nli', 'e2e')
    """
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def prompt_sets(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of prompt sets.

    >>> prompt_sets("published, untold")
    ('published', 'untold')
    """
    found = tuple(map(OneOf(("untold", "published")), names(text)))
    if not found:
        raise ValueError("names none; choose from untold, published")
    return found


def metric_names(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of metrics."""
    from untold.jobs.metrics import UnknownMetricError, check_metrics

    try:
        return check_metrics(names(text))
    except UnknownMetricError as error:
        raise ValueError(str(error)) from None


def count(text: str) -> int:
    """Read a positive integer."""
    # isdecimal refuses the signs, blanks and underscores that int accepts
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"must be a positive integer, got {text or 'nothing'}")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Read a comma-separated list of whole numbers of at least 1.

    >>> counts("16, 64")
    (16, 64)
    """
    return tuple(map(count, names(text)))


def whole_number(text: str) -> int:
    """Read an integer."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be an integer, got {text or 'nothing'}") from None


def _number(text: str) -> float:
    """Return NaN for a text that is not a number. NaN fails every comparison."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def weights(text: str) -> tuple[float, ...]:
    """Read a comma-separated list of values of beta.

    >>> weights(".5,1, 2")
    (0.5, 1.0, 2.0)
    """
    words = names(text)
    wrong = [word for word in words or ("",) if not 0 < _number(word) <= 1000]
    if wrong:
        raise ValueError(f"must be numbers above 0, up to 1000, got {wrong[0] or 'nothing'}")
    return tuple(map(float, words))


def bar(text: str) -> float:
    """Read a number from 0 to 1."""
    if not 0 <= _number(text) <= 1:
        raise ValueError(f"must be a number from 0 to 1, got {text or 'nothing'}")
    return float(text)


def width(text: str) -> float:
    """Read a number above 0.

    >>> width(".01")
    0.01
    """
    if not 0 < _number(text) < math.inf:
        raise ValueError(f"must be a number above 0, such as 0.01, got {text or 'nothing'}")
    return float(text)


def bars(text: str) -> dict[str, float]:
    """Read a comma-separated list of METRIC=NUMBER into the minimum mean of each metric.

    >>> bars("e2e=.7, qa=0.5")
    {'e2e': 0.7, 'qa': 0.5}
    """
    found = {}
    for word in names(text) or ("",):
        metric, _, number = (part.strip() for part in word.partition("="))
        if not (metric and 0 <= _number(number) <= 1):
            raise ValueError(f"{word!r} must be METRIC=BAR with a number from 0 to 1, such as e2e=0.7")
        found[metric] = float(number)
    return found


def column_pairs(text: str) -> dict[str, str]:
    """Read a comma-separated list of OURS=THEIRS into the column names of files, by our column names.

    >>> column_pairs("query=question, contexts=retrieved_contexts")
    {'query': 'question', 'contexts': 'retrieved_contexts'}
    """
    return _pairs(text, "OURS=THEIRS")


def families(text: str) -> dict[str, str]:
    """Read a comma-separated list of NAME=FAMILY into the families of models and systems, by name."""
    return _pairs(text, "NAME=FAMILY")


def _pairs(text: str, form: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in text.split(","):
        name, _, value = (half.strip() for half in pair.partition("="))
        if not name or not value:
            raise ValueError(f"{pair.strip()!r} is not of the form {form}")
        if name in pairs:
            raise ValueError(f"{name} is named twice")
        pairs[name] = value
    return pairs


def encoding(text: str) -> str:
    """Read the name of a text encoding that Python supports."""
    from untold.udfs.samples.files import check_encoding

    return check_encoding(text)


def delimiter(text: str) -> str:
    """Read the delimiter of CSV.

    >>> delimiter(";"), delimiter("tab")
    (';', '\\t')
    """
    found = "\t" if text in ("tab", "\\t") else text
    if len(found) != 1 or found in '"\r\n':
        raise ValueError(f"{text!r} is not a delimiter; give one character, or tab")
    return found


def age(text: str) -> timedelta:
    """Read a number of hours, days or weeks.

    >>> age("90d").days, age("2w").days
    (90, 14)
    """
    units = {"h": "hours", "d": "days", "w": "weeks"}
    number, unit = text[:-1], units.get(text[-1:])
    if unit is None or not number.isdecimal() or len(number) > 5:
        raise ValueError(f"must be a number of hours, days or weeks such as 36h, 90d or 12w, got {text or 'nothing'}")
    return timedelta(**{unit: int(number)})


def day(text: str) -> date:
    """Read a date in the form YYYY-MM-DD."""
    from untold.jobs.summary.nights import parse_date

    return parse_date(text)


def version(text: str) -> str:
    """Read a version of a Delta table, such as `v12`."""
    if not re.fullmatch(r"v\d+", text):
        raise ValueError(f"must be a version such as v12, got {text or 'nothing'}")
    return text


def path(text: str) -> str:
    """Read a local path or a URI with a known scheme."""
    if complaint := complaint_of(text.removeprefix("delta:")):
        raise ValueError(complaint)
    return text
