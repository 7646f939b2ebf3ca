"""Secrets out of what is shown and written: by the names that they go by, and by the values of the environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

HIDDEN = "(not shown)"
_WORDS = "key|secret|password|passwd|pwd|passphrase|token|credentials?|authorization|signature"
# The last word of a part of a dotted name: fs.azure.account.key.HOST, X-Api-Key, accessKey; max_tokens is no token
_SECRET_PART = re.compile(rf"(?i)(?:.*(?:{_WORDS})|(?:.*[_-])?(?:auth|sas|sig|cookie|bearer))$")
_HARMLESS_PARTS = frozenset({"max_token"})
# Below these everything is hidden: what a header is for, its name does not always say
_SECRET_SECTIONS = frozenset({"headers", "extra_headers", "default_headers", "custom_headers", "extra_query"})
_OF_ENVIRONMENT = re.compile(r"(?i)(KEY|TOKEN|SECRET|PASSWORD)$")
# Shorter values, such as `none` or `local`, are words that other lines have as well
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
# User and password of an address; after a colon, a port and a path are none
_USER = re.compile(r"(?<=://)(?:[^/\s\"'@]*|[^/\s\"'@:]+:(?!\d+/)[^\s\"'@]*)@")
# What keys of well-known services begin with, wherever one is typed or echoed
_KEY_LIKE = re.compile(r"\b(?:(?:sk|gsk|hf|pk|rk|xai|ghp)[-_](?=[\w-]*\d)[\w-]{16,}|AKIA[0-9A-Z]{16})")


def redact(text: str) -> str:
    """The text without secrets: for every line that is shown, and for tracebacks.

    >>> redact("--set spark.conf.fs.s3a.secret.key=abc s3://user:word@bucket/path?sig=xyz&page=2")
    '--set spark.conf.fs.s3a.secret.key=(not shown) s3://(not shown)@bucket/path?sig=(not shown)&page=2'
    """
    # Values first: a key is hidden wherever it stands, also where no name beside it tells what it is.
    for value in _values_of_environment():
        text = text.replace(value, HIDDEN)
    text = _USER.sub(f"{HIDDEN}@", text)
    text = _SECTION.sub(rf"\1{HIDDEN}", text)
    text = _NAMED.sub(_hide_named, text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _ASSIGNED.sub(_hide_assigned, text)
    return _KEY_LIKE.sub(HIDDEN, text)


def redact_words(words: Iterable[str]) -> list[str]:
    """The words of a command line without secrets: of `name=value` the whole value, of a mapping what is below.

    >>> redact_words(["--set", "llm.api_key=abc", "input.jsonl"])
    ['--set', 'llm.api_key=(not shown)', 'input.jsonl']
    """
    return [_redact_word(word) for word in words]


def _redact_word(word: str) -> str:
    """A word without secrets; of a mapping that is given as JSON its fields are looked at, not its text."""
    name, equals, value = word.removeprefix("--set=").partition("=")
    before = word[: len(word) - len(value)]
    if equals and is_secret_name(name):
        return before + HIDDEN
    if equals and value.startswith("{"):
        with suppress(ValueError):
            return before + json.dumps(without_secrets(json.loads(value), name.rpartition(".")[2]), ensure_ascii=False)
    return redact(word)


def without_secrets(values: Any, name: str = "") -> Any:
    """Settings or a manifest without secrets, at any depth. `name` is what the values go by.

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
    """Whether what goes by this name, of a setting, a header or a parameter, is taken for a secret.

    >>> is_secret_name("fs.azure.account.key.HOST"), is_secret_name("max_tokens")
    (True, False)
    """
    *sections, _ = parts = name.split(".")
    named = any(part not in _HARMLESS_PARTS and _SECRET_PART.match(part) for part in parts)
    return named or not _SECRET_SECTIONS.isdisjoint(sections)


def _hides(name: str) -> bool:
    """Whether what is below this name is hidden, whatever it is."""
    return is_secret_name(name) or name.lower() in _SECRET_SECTIONS


def _hide_named(found: re.Match[str]) -> str:
    """A quoted name with its value hidden, where the name says that it is a secret."""
    quote_mark, name, between, _ = found.groups()
    return f"{quote_mark}{name}{between}{HIDDEN}" if is_secret_name(name) else found[0]


def _hide_assigned(found: re.Match[str]) -> str:
    """What is assigned, or what is assigned within it: the parameters of an address, a setting within quotes."""
    name, equals, value = found.groups()
    return name + equals + (HIDDEN if is_secret_name(name) else _ASSIGNED.sub(_hide_assigned, value))


def _values_of_environment() -> Iterator[str]:
    """The secrets of the environment as they are, in JSON and in an address; the longest first, for one in another."""
    values = {value for name, value in os.environ.items() if _OF_ENVIRONMENT.search(name)}
    known = sorted((value for value in values if len(value) >= _SHORTEST_VALUE), key=lambda value: (-len(value), value))
    for value in known:
        yield from dict.fromkeys((value, json.dumps(value)[1:-1], quote(value, safe="")))
