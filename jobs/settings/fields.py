"""Kinds of values that settings take, and what every section of them has in common."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from untold.udfs.redaction import is_secret_name
from untold.udfs.schemes import SCHEMES, STORES, complaint_of

# Sent from settings and templates: a second value in extra_body would change completions behind a request's key
_OWN_REQUEST_FIELDS = frozenset(
    ("model", "messages", "prompt", "stream", "n", "temperature", "top_p", "max_tokens", "logprobs", "top_logprobs")
)

TOLERANCE = "share (from 0 to 1) and count (an integer >= 0) below it"

# The prefixes of providers' keys; 32 letters and digits are a key without one, and no name anybody gives a variable
_KEY_LIKE = re.compile(r"(?i)^(sk|gsk|hf|pk|rk|xai|ghp)[-_]|^[A-Za-z0-9]{32,}$")


def merge_patch(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `patch` over it: mappings merge by key, a null removes its key, all else replaces (RFC 7396).

    >>> merge_patch({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    """
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = merge_patch(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _variable_name(value: str) -> str:
    """The name of a variable. Raises ValueError for what looks like a key, which must not be stored or shown."""
    if _KEY_LIKE.search(value) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("the name of an environment variable, not the key itself")
    return value


def _http_url(value: str) -> str:
    """An address without its last slash. Raises ValueError for one with a user or query: messages show it."""
    match = re.fullmatch(r"https?://([^\s/?#]+)(/[^\s?#]*)?", value)
    if match is None or "@" in match[1]:
        raise ValueError("an http:// or https:// address without user, password or query")
    return value.rstrip("/")


def _request_fields(value: dict[str, Any]) -> dict[str, Any]:
    """Fields of a request that are the user's to set. Raises ValueError for ours and for what JSON cannot hold."""
    own = sorted(name for name in _OWN_REQUEST_FIELDS & value.keys() if not _asks_for_none(name, value[name]))
    if own:
        raise ValueError(f"a mapping without {', '.join(own)}, which Untold sends itself (llm.* and stages.*)")
    if not _is_json(value):
        raise ValueError("a mapping of JSON values with finite numbers")
    return value


def _storage_options(value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Options by scheme. Raises ValueError for a scheme that has none, and for a secret itself."""
    if not value.keys() <= set(STORES):
        raise ValueError(f"a mapping by {', '.join(STORES)}")
    for name, given in (option for options in value.values() for option in options.items()):
        if is_secret_name(name):
            raise ValueError(f"without {name}: give {name}_env, the name of an environment variable")
        if name.endswith("_env"):
            _variable_name(str(given))
    return value


def _known_path(value: str) -> str:
    """A path. Raises ValueError for the URI of a scheme that is not known."""
    if complaint_of(value):
        raise ValueError(f"a local path, or a URI of {', '.join(SCHEMES)}")
    return value


def _tolerance(value: dict[str, int | float]) -> dict[str, int | float]:
    """Bounds of failed samples. Raises ValueError for a share above 1, a count that is none, and another name."""
    share, count = value.get("share", 0), value.get("count", 0)
    is_known = bool(value) and value.keys() <= {"share", "count"}
    if not (is_known and 0 <= share <= 1 and isinstance(count, int) and count >= 0):
        raise ValueError(TOLERANCE)
    return value


def _asks_for_none(name: str, value: object) -> bool:
    """Whether a field only says that no log-probabilities are wanted, which some models refuse to give."""
    return name == "logprobs" and value is False


def _is_json(value: object) -> bool:
    """Whether a value is the same after a way through JSON: no dates, no NaN, no keys that are numbers."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(below) for key, below in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


Text = Annotated[str, Field(min_length=1)]
PathText = Annotated[Text, AfterValidator(_known_path)]
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Rating = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]
ExtraBody = Annotated[dict[str, Any], AfterValidator(_request_fields)]
StorageOptions = Annotated[dict[str, dict[str, bool | int | float | str]], AfterValidator(_storage_options)]
Tolerance = Annotated[dict[str, int | float], AfterValidator(_tolerance)]
Address = Annotated[str, AfterValidator(_http_url)]
VariableName = Annotated[str, AfterValidator(_variable_name)]
# What a message says of these, whose own check has no words in a JSON schema
AN_ADDRESS: Any = {"allowed": "an http:// or https:// address, or null"}
A_VARIABLE: Any = {"allowed": "the name of an environment variable, or null"}


class Section(BaseModel):
    """Settings under one name: frozen, without unknown keys, and never showing a value in an error.

    Strict: "1" is no number and 1 no text, for layers have typed the values already.
    """

    # Fields that change no result: they may differ between two starts of one run
    NO_RESULT: ClassVar[frozenset[str]] = frozenset()
    # Fields that hardly anybody sets: the reference lists them last
    ADVANCED: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)
