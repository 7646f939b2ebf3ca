"""Errors that a user can fix, suggestions for a misspelled name, and registries of named values."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Protocol, TypeVar


class UserError(Exception):
    """An error that the user can fix, such as a wrong setting, an unreadable input or a missing package.

    Users see the message without a traceback. It has one line per problem, with the problem, the place and the remedy.
    It never contains a key, a prompt or the text of an answer.
    """


# The extras that a command needs, each with the required modules
Needs = Mapping[str, Sequence[str]]
# The extra of everything that scores, and its modules. An install that only reads lacks these modules
ENGINE = "engine"
ENGINE_MODULES = (
    *("pyspark", "ray", "onnxruntime", "tokenizers", "lancedb", "graphframes"),
    *("openai", "aiohttp", "scipy", "pandas"),
)
# The same extra without PySpark, for a platform that has its own Spark
PLATFORM = "platform"
LISTED_MODULES = 6  # in a message


def require(what: str, extra: str, *modules: str) -> None:
    """Raise UserError if a module is not installed. The message has the packages that `what` needs and their extra.

    For the engine without `modules`, all its modules are required. The extra is `platform` if PySpark is there.

    >>> require("sweep", "study", "json")
    """
    if line := missing_packages(extra, *modules):
        raise UserError(f"{what} needs {line}")


def missing_modules(extra: str, *modules: str) -> list[str]:
    """Return the modules of an extra that are not installed, as `require`."""
    required = ENGINE_MODULES if extra == ENGINE and not modules else modules
    return [module for module in required if find_spec(module) is None]


def missing_packages(extra: str, *modules: str) -> str:
    """Return the missing packages of an extra and the command that installs the extra, or an empty text.

    >>> missing_packages("study", "json", "not_there")
    "not-there: pip install 'untold[study]'"
    """
    missing = missing_modules(extra, *modules)
    names = [module.replace("_", "-") for module in missing[:LISTED_MODULES]]
    more = [f"{len(missing) - LISTED_MODULES} more"] if len(missing) > LISTED_MODULES else []
    extra = PLATFORM if extra == ENGINE and find_spec("pyspark") else extra
    return f"{', '.join([*names, *more])}: pip install 'untold[{extra}]'" if missing else ""


def require_of(error: ModuleNotFoundError, what: str) -> None:
    """Raise UserError if the module that an import did not find is a part of the engine."""
    module = (error.name or "").partition(".")[0]
    if module in ENGINE_MODULES:
        require(what, ENGINE, module)


ALIKE = 0.6  # the default similarity of difflib: one or two typos in a word of usual length
LONGEST_SHOWN = 40
_PROJECTED = ("requests", "calls", "prompt_tokens", "completion_tokens", "cost", "seconds", "hours", "task_seconds")
# The new names of settings, options, tables, columns and values, by the old name without its section or dashes
RENAMED = {
    # Settings and options
    "prompts": "prompt_set",
    "certain": "classifier_threshold",
    "most_missed": "max_miss_rate",
    "audit": "audit_share",
    "joint": "claims_per_request",
    "most": "max_generated",
    "keep": "top_k",
    "answering": "backend",
    "delivery": "backend",
    "work": "work_dir",
    "store": "completion_store",
    # Values
    "ours": "untold",
    "calls": "process",
    # Tables and columns
    "leaning": "source_preference",
    "of": "population_size",
    **{f"whole_{name}": f"projected_{name}" for name in _PROJECTED},
    "agreement_low": "loa_low",
    "agreement_high": "loa_high",
    **{f"agreement_{limit}_{end}": f"loa_{limit}_ci_{end}" for limit in ("low", "high") for end in ("low", "high")},
    "new": "new_claims",
    "flips": "disagreement_rate",
    "effective": "effective_sample_size",
    "second": "compared_system",
    "left_out": "excluded",
    "schema": "parsed_schema",
    "form": "parsed_template",
    "lenient": "parsed_lenient",
    "asked_again": "retries_after_parse",
}
# The section of a setting (`nli.`), the prefix of a variable (`untold_nli__`) or the dashes of an option
_PREFIX = re.compile(r"--|.*\.|(untold_)?(.*__)?")


def new_name(word: str, known: Container[str]) -> str | None:
    """Return the new name of a renamed setting, variable, option, table, column or value if it is among the known ones.

    >>> new_name("nli.certain", ["nli.classifier_threshold"])
    'nli.classifier_threshold'
    >>> new_name("--store", ["--completion-store"])
    '--completion-store'
    """
    prefix = match[0] if (match := _PREFIX.match(word)) else ""
    new = RENAMED.get(word.removeprefix(prefix), "")
    found = prefix + (new.replace("_", "-") if prefix == "--" else new)
    return found if new and word not in known and found in known else None


def near_misses(word: str, known: Iterable[str], *, most: int = 1, cutoff: float = ALIKE) -> list[str]:
    """Return the known words that are most similar to `word`, nearest first. Case and outer spaces do not count.

    For a renamed word, only its new name is returned. `cutoff` is the least similarity, from 0 (any) to 1 (equal).

    >>> near_misses("Sampel_ID ", ["query", "sample_id"])
    ['sample_id']
    """
    by_folded: dict[str, str] = {}
    for name in known:
        # Names that only differ by case: suggest the first
        by_folded.setdefault(name.strip().lower(), name)
    folded = word.strip().lower()
    if new := new_name(folded, by_folded):
        return [by_folded[new]]
    return [by_folded[match] for match in get_close_matches(folded, by_folded, n=most, cutoff=cutoff)]


def did_you_mean(near: Sequence[str], quote: str = "`") -> str:
    """Return the question for these near misses, `did you mean a or b?`, or an empty text if there are none.

    >>> did_you_mean(["query", "response"])
    'did you mean `query` or `response`?'
    """
    return f"did you mean {' or '.join(f'{quote}{name}{quote}' for name in near)}?" if near else ""


def aside(near: Sequence[str]) -> str:
    """Return the question in brackets after a space, with long names cut, or an empty text if there are no near misses.

    >>> aside(["sample_id"])
    ' (did you mean `sample_id`?)'
    """
    return f" ({did_you_mean([shorten(name) for name in near])})" if near else ""


def shorten(name: str, most: int = LONGEST_SHOWN) -> str:
    """Return the name, cut to `most` characters. Ids may be whole texts.

    >>> shorten("a-long-name", 6)
    'a-long…'
    """
    return name if len(name) <= most else f"{name[:most]}…"


class Named(Protocol):
    """A value of a registry with a name."""

    @property
    def name(self) -> str: ...


Value = TypeVar("Value", bound=Named)


class Registry(Mapping[str, Value]):
    """Values by name: our own values, then the values of other packages, which are entry points of `group`.

    Values of other packages are loaded at lookup, because they may import modules that contain registries. A process
    that needs one stage also avoids loading a metric of the same package. `places` are our own values that are loaded
    at lookup: a name and its location, `module:NAME`. Other packages cannot replace our names.
    """

    def __init__(self, own: Iterable[Value], group: str, places: Mapping[str, str] | None = None) -> None:
        self._values = {value.name: value for value in own}
        ours = {name: EntryPoint(name, place, group) for name, place in (places or {}).items()}
        others: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=group)}
        self._unloaded = {name: point for name, point in {**others, **ours}.items() if name not in self._values}
        self._names = tuple(dict.fromkeys((*self._values, *ours, *self._unloaded)))

    def __getitem__(self, name: str) -> Value:
        if name not in self._values:
            self._values[name] = self._unloaded[name].load()
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        # Mapping would look up the value, which loads it
        return name in self._names


class Unparsable(ValueError):
    """A completion that does not have the form of its stage. The message names the missing part, and never the text."""

    error_type = "unparsable"


class Refused(Unparsable):
    """A completion that declines the task."""

    error_type = "refused"
