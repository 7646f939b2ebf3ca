"""Define the types of values in the settings, and the base class of their sections."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from untold.udfs.redaction import is_secret_name
from untold.udfs.schemes import SCHEMES, STORES, complaint_of

# The settings and the templates define these fields. A second value in extra_body would not match the request's key
_OWN_REQUEST_FIELDS = frozenset(
    ("model", "messages", "prompt", "stream", "n", "temperature", "top_p", "max_tokens", "logprobs", "top_logprobs")
)
TOLERANCE = "share (from 0 to 1) and count (an integer >= 0) below it"
# The prefixes of API keys. A text of 32 letters and digits is a key without a prefix
_KEY_LIKE = re.compile(r"(?i)^(sk|gsk|hf|pk|rk|xai|ghp)[-_]|^[A-Za-z0-9]{32,}$")


def merge_patch(base: Mapping[str, Any], patch: Mapping[str, Any], *, keep_nulls: bool = False) -> dict[str, Any]:
    """Merge a patch into a mapping: a null removes its key, and a mapping merges by key (RFC 7396).

    With `keep_nulls` the result is a patch too, that removes the same keys.

    >>> merge_patch({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    """
    merged = dict(base)
    for key, value in patch.items():
        if value is None and not keep_nulls:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = merge_patch(below if isinstance(below, Mapping) else {}, value, keep_nulls=keep_nulls)
        else:
            merged[key] = value
    return merged


def without_nulls(value: object) -> object:
    """Remove the keys with a null value: a null removes the value of a lower layer."""
    return merge_patch({}, value) if isinstance(value, Mapping) else value


def _check_variable_name(value: str) -> str:
    """Raise ValueError for a text that looks like a key, because keys must not be stored or shown."""
    if _KEY_LIKE.search(value) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("the name of an environment variable, not the key itself")
    return value


def _check_address(value: str) -> str:
    """Return an address without its last slash. Raise ValueError for a user or a query: messages show addresses."""
    match = re.fullmatch(r"https?://([^\s/?#]+)(/[^\s?#]*)?", value)
    if match is None or "@" in match[1]:
        raise ValueError("an http:// or https:// address without user, password or query")
    return value.rstrip("/")


def _check_request_fields(value: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError for a field that Untold sends, and for a value that is not JSON.

    `logprobs: false` is allowed, because some models refuse a request for log-probabilities.
    """
    own = sorted(name for name in _OWN_REQUEST_FIELDS & value.keys() if (name, value[name]) != ("logprobs", False))
    if own:
        raise ValueError(f"a mapping without {', '.join(own)}, which Untold sends itself (llm.* and stages.*)")
    if not _is_json(value):
        raise ValueError("a mapping of JSON values with finite numbers")
    return value


def _check_storage_options(value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Raise ValueError for an unknown scheme, and for a secret in place of the name of its variable."""
    if not value.keys() <= set(STORES):
        raise ValueError(f"a mapping by {', '.join(STORES)}")
    for name, given in (option for options in value.values() for option in options.items()):
        if is_secret_name(name):
            raise ValueError(f"without {name}: give {name}_env, the name of an environment variable")
        if name.endswith("_env"):
            _check_variable_name(str(given))
    return value


def _check_path(value: str) -> str:
    """Raise ValueError for a URI with an unknown scheme."""
    if complaint_of(value):
        raise ValueError(f"a local path, or a URI of {', '.join(SCHEMES)}")
    return value


def _check_tolerance(value: dict[str, int | float]) -> dict[str, int | float]:
    """Raise ValueError for a share above 1, a count that is not an integer >= 0, and an unknown name."""
    share, count = value.get("share", 0), value.get("count", 0)
    is_known = bool(value) and value.keys() <= {"share", "count"}
    if not (is_known and 0 <= share <= 1 and isinstance(count, int) and count >= 0):
        raise ValueError(TOLERANCE)
    return value


def _is_json(value: object) -> bool:
    """Return True if JSON can represent the value: no dates, no NaN, and only text as keys."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False


def allows(words: str, kind: str = "string") -> WithJsonSchema:
    """Return the schema of a type whose check has no words in JSON Schema. Error messages show the words."""
    return WithJsonSchema({"type": kind, "allowed": words})


def setting(default: Any, description: str, **more: Any) -> Any:
    """Return the field of a setting. `more` are further arguments of `pydantic.Field`."""
    return Field(default, description=description, **more)


Text = Annotated[str, Field(min_length=1)]
PathText = Annotated[Text, AfterValidator(_check_path)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Rating = Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)]
ExtraBody = Annotated[dict[str, Any], AfterValidator(_check_request_fields)]
# A null field is not sent. In the settings of a stage, a null removes a field of `llm.extra_body`, so it must stay
BodyWithoutNulls = Annotated[ExtraBody, AfterValidator(without_nulls)]
StorageOptions = Annotated[dict[str, dict[str, bool | int | float | str]], AfterValidator(_check_storage_options)]
Tolerance = Annotated[dict[str, int | float], AfterValidator(_check_tolerance)]
Address = Annotated[str, AfterValidator(_check_address), allows("an http:// or https:// address")]
VariableName = Annotated[str, AfterValidator(_check_variable_name), allows("the name of an environment variable")]
# Fields that several sections have, with their descriptions
ApiKeyEnv = Annotated[
    VariableName | None,
    Field(description="Name of the environment variable with the API key; null means no key, or the key of the preset"),
]
RequestRate = Annotated[Positive | None, Field(description="Maximum HTTP requests per minute; null means no limit")]
TokenRate = Annotated[Positive | None, Field(description="Maximum tokens per minute; null means no limit")]
Concurrency = Annotated[Count, Field(description="Maximum concurrent HTTP requests")]
TokenPrice = Annotated[
    Amount | None, Field(description="Price per million tokens, in the currency of budget.max_cost; null for none")
]


class Section(BaseModel):
    """Base class of the sections of settings: frozen, strict and without unknown keys.

    Layers convert texts before validation. Validation therefore refuses the text "1" as a number. Errors never show
    a value.
    """

    # Fields that do not change results: they may differ between two starts of one run
    NO_RESULT: ClassVar[frozenset[str]] = frozenset()
    # Fields that few users set: the reference lists them last
    ADVANCED: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)
