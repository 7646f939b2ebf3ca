"""Remove secrets from messages and files, by their names and by the values of environment variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

HIDDEN = "(not shown)"
_WORDS = "key|secret|password|passwd|pwd|passphrase|token|credentials?|authorization|signature"
# The last word of a part of a dotted name: fs.azure.account.key.HOST, X-Api-Key, accessKey. max_tokens is an exception
_SECRET_PART = re.compile(rf"(?i)(?:.*(?:{_WORDS})|(?:.*[_-])?(?:auth|sas|sig|cookie|bearer))$")
_HARMLESS_PARTS = frozenset({"max_token"})
# All values in these sections are hidden, because the name of a header does not always show its purpose
_SECRET_SECTIONS = frozenset({"headers", "extra_headers", "default_headers", "custom_headers", "extra_query"})
_OF_ENVIRONMENT = re.compile(r"(?i)(KEY|TOKEN|SECRET|PASSWORD)$")
# Shorter values, such as `none` or `local`, also occur in other lines
_SHORTEST_VALUE = 8
_GONE = re.escape(HIDDEN)
_QUOTED = r"\\?\"(?:[^\"\\]|\\[^\"])*\\?\"|'[^']*'"
_PLAIN = rf"(?:{_GONE}|[^\s\"'&,;)\]}}])+"
_ASSIGNED = re.compile(rf"([A-Za-z_][\w.-]*)(=)({_GONE}|(?:Bearer |Basic )?(?:{_QUOTED}|{_PLAIN}))")
_NAMED = re.compile(rf"(\\?[\"'])([A-Za-z_][\w.-]*)(\1\s*:\s*)({_GONE}|{_QUOTED}|[^\s\"',{{}}\[\]]+)")
_HEADER = re.compile(
    rf"(?i)\b((?:proxy-)?authorization|x-api-key|api-key|cookie)(:\s*)({_GONE}|(?:Bearer |Basic )?[^\s\"',;}}]+)"
)
_SECTION = re.compile(rf"(\\?[\"'](?:{'|'.join(_SECRET_SECTIONS)})\\?[\"']\s*:\s*)\{{[^{{}}]*\}}")
# User and password of an address. A port or a path after a colon is not a password
_USER = re.compile(r"(?<=://)(?:[^/\s\"'@]*|[^/\s\"'@:]+:(?!\d+/)[^\s\"'@]*)@")
# Prefixes of the keys of well-known services
_KEY_LIKE = re.compile(r"\b(?:(?:sk|gsk|hf|pk|rk|xai|ghp)[-_](?=[\w-]*\d)[\w-]{16,}|AKIA[0-9A-Z]{16})")


def redact(text: str) -> str:
    """Return the text without secrets. Use it for every line that is shown, and for tracebacks.

    >>> redact("--set spark.conf.fs.s3a.secret.key=abc s3://user:word@bucket/path?sig=xyz&page=2")
    '--set spark.conf.fs.s3a.secret.key=(not shown) s3://(not shown)@bucket/path?sig=(not shown)&page=2'
    """
    # Values first: a key is hidden everywhere, also without a name next to it
    for value in _values_of_environment():
        text = text.replace(value, HIDDEN)
    text = _USER.sub(f"{HIDDEN}@", text)
    text = _SECTION.sub(rf"\1{HIDDEN}", text)
    text = _NAMED.sub(_hide_named, text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _ASSIGNED.sub(_hide_assigned, text)
    return _KEY_LIKE.sub(HIDDEN, text)


def redact_words(words: Iterable[str]) -> list[str]:
    """Return the words of a command line without secrets, in values of `name=value` and in fields of mappings.

    >>> redact_words(["--set", "llm.api_key=abc", "input.jsonl"])
    ['--set', 'llm.api_key=(not shown)', 'input.jsonl']
    """
    return [_redact_word(word) for word in words]


def _redact_word(word: str) -> str:
    """Return a word without secrets. If the value is a mapping in JSON, only its secret fields are hidden."""
    name, equals, value = word.removeprefix("--set=").partition("=")
    before = word[: len(word) - len(value)]
    if equals and is_secret_name(name):
        return before + HIDDEN
    if equals and value.startswith("{"):
        with suppress(ValueError):
            return before + json.dumps(without_secrets(json.loads(value), name.rpartition(".")[2]), ensure_ascii=False)
    return redact(word)


def without_secrets(values: Any, name: str = "") -> Any:
    """Return settings or a manifest without secrets, at any depth. `name` is the key of the values.

    >>> without_secrets({"model": "m", "extra_headers": {"X-Id": "7"}, "client": {"token": "t"}})
    {'model': 'm', 'extra_headers': {'X-Id': '(not shown)'}, 'client': {'token': '(not shown)'}}
    """
    if isinstance(values, Mapping):
        return {key: without_secrets(item, name if _hides(name) else str(key)) for key, item in values.items()}
    if isinstance(values, list | tuple):
        return [without_secrets(item, name) for item in values]
    if values is None or isinstance(values, bool):
        return values
    if _hides(name):
        return HIDDEN
    return redact(values) if isinstance(values, str) else values


def is_secret_name(name: str) -> bool:
    """Return True if the name of a setting, a header or a parameter denotes a secret.

    >>> is_secret_name("fs.azure.account.key.HOST"), is_secret_name("max_tokens")
    (True, False)
    """
    *sections, _ = parts = name.split(".")
    named = any(part not in _HARMLESS_PARTS and _SECRET_PART.match(part) for part in parts)
    return named or not _SECRET_SECTIONS.isdisjoint(sections)


def _hides(name: str) -> bool:
    """Return True if all values below this name are hidden."""
    return is_secret_name(name) or name.lower() in _SECRET_SECTIONS


def _hide_named(found: re.Match[str]) -> str:
    """Return a quoted name with its value hidden if the name denotes a secret."""
    quote_mark, name, between, _ = found.groups()
    return f"{quote_mark}{name}{between}{HIDDEN}" if is_secret_name(name) else found[0]


def _hide_assigned(found: re.Match[str]) -> str:
    """Return an assignment without secrets, including assignments in its value: URL parameters or quoted settings."""
    name, equals, value = found.groups()
    return name + equals + (HIDDEN if is_secret_name(name) else _ASSIGNED.sub(_hide_assigned, value))


def _values_of_environment() -> Iterator[str]:
    """Yield the secrets of the environment, plain, in JSON and in URLs, the longest first (it may contain others)."""
    values = {value for name, value in os.environ.items() if _OF_ENVIRONMENT.search(name)}
    known = sorted((value for value in values if len(value) >= _SHORTEST_VALUE), key=lambda value: (-len(value), value))
    for value in known:
        yield from dict.fromkeys((value, json.dumps(value)[1:-1], quote(value, safe="")))


def plain_url(url: str) -> str:
    """Return a URL without user, password and query, which can contain keys."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if "://" in url else url
