"""Test that messages and files contain no secrets, and that all other text remains the same."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.redaction import HIDDEN, is_secret_name, redact, redact_words, without_secrets

SECRET = "s3cr3t/Value+9="


@pytest.mark.parametrize(
    "text",
    [
        f"--set spark.conf.spark.hadoop.fs.s3a.secret.key={SECRET}",
        f"fs.azure.account.key.account.dfs.core.windows.net={SECRET}",
        f"s3://AKIAKEY:{SECRET}@bucket/path is not there",
        f"https://{SECRET.replace('/', '')}@host/v1",
        f"https://account.blob.core.windows.net/c?sv=2024-11-04&sig={SECRET}&page=2",
        f"completion_store=s3://bucket/p?token={SECRET}",
        f"sv=2024&sig={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f'the body {{"api_key": "{SECRET}"}} was refused',
        f"{{'token': '{SECRET}', 'n': 2}}",
        json.dumps(json.dumps({"password": SECRET})),
        f'llm.extra_body={{"headers": {{"X-Whatever": "{SECRET}"}}}}',
        f"UNTOLD_X=\"a.password='{SECRET} {SECRET}'\"",
    ],
)
def test_a_secret_is_removed_by_its_name(text: str) -> None:
    shown = redact(text)
    assert SECRET not in shown
    assert SECRET.replace("/", "") not in shown
    assert HIDDEN in shown


def test_a_key_of_a_known_kind_is_removed_without_a_name() -> None:
    assert redact("tried sk-proj-abcdefghijklmnop0123456789 and AKIAABCDEFGHIJKLMNOP") == f"tried {HIDDEN} and {HIDDEN}"


@pytest.mark.parametrize(
    "text",
    [
        "check the key: OPENAI_API_KEY (llm.api_key_env) is not set",
        "OPENAI_API_KEY: not set in the environment, and the endpoint openai needs its key (llm.api_key_env)",
        "untold score --input a.jsonl --output out --set llm.api_key_env=MINE --set llm.max_tokens=9",
        "Set RAY_AUTH_MODE=token if the cluster requires a token",
        "http://127.0.0.1:8000/v1/a@b: HTTP 401 (invalid_api_key)",
        "extract_atoms: 5 / 60, 3.0 calls/s, 4,000 tokens, cost 0.0100, 0:05 left",
        '{"prompt_tokens": 12, "metric": "e2e", "tokens_estimated": false}',
    ],
)
def test_other_text_is_not_redacted(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("name", ["OTHER_KEY", "HF_TOKEN", "AWS_SECRET", "db_password", "SPARKSECRET"])
def test_a_value_of_the_environment_is_hidden_wherever_it_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = 'plain "words" of its own'
    monkeypatch.setenv(name, value)
    lines = [f"he said {value}.", json.dumps({"query": value}), "http://h/plain%20%22words%22%20of%20its%20own/x"]
    assert [redact(line) for line in lines] == [
        f"he said {HIDDEN}.",
        f'{{"query": "{HIDDEN}"}}',
        f"http://h/{HIDDEN}/x",
    ]


def test_a_short_value_of_the_environment_is_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", "local")
    assert redact("a local file") == "a local file"


def test_a_longer_value_is_removed_before_a_value_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "abcdefgh")
    monkeypatch.setenv("B_KEY", "abcdefgh-ijk")
    assert redact("abcdefgh-ijk") == HIDDEN


def test_the_words_of_a_command_keep_their_form() -> None:
    words = [
        "--set",
        f"spark.conf.a.password={SECRET} and more",
        f"--set=spark.conf.b.token={SECRET}",
        "--set",
        json.dumps({"headers": {"a": {"b": SECRET}}}).join(("llm.extra_body=", "")),
        "--limit",
        "5",
    ]
    shown = shlex.join(redact_words(words))
    assert SECRET not in shown
    assert shlex.split(shown) == [
        "--set",
        f"spark.conf.a.password={HIDDEN}",
        f"--set=spark.conf.b.token={HIDDEN}",
        "--set",
        f'llm.extra_body={{"headers": {{"a": {{"b": "{HIDDEN}"}}}}}}',
        "--limit",
        "5",
    ]


def test_settings_are_without_secrets_at_any_depth() -> None:
    settings: dict[str, Any] = {
        "spark": {"conf": {"spark.hadoop.fs.azure.sas.c.a.blob.core.windows.net": f"sv=1&sig={SECRET}"}},
        "completion_store": f"s3://AKIAKEY:{SECRET}@bucket/p",
        "llm": {
            "api_key_env": "OPENAI_API_KEY",
            "max_tokens": 5,
            "extra_body": {
                "headers": {"X-Whatever": SECRET, "more": [SECRET]},
                "provider": {"credentials": {"id": SECRET, "number": 7}, "order": ["a"]},
            },
        },
    }
    assert without_secrets(settings) == {
        "spark": {"conf": {"spark.hadoop.fs.azure.sas.c.a.blob.core.windows.net": HIDDEN}},
        "completion_store": f"s3://{HIDDEN}@bucket/p",
        "llm": {
            "api_key_env": "OPENAI_API_KEY",
            "max_tokens": 5,
            "extra_body": {
                "headers": {"X-Whatever": HIDDEN, "more": [HIDDEN]},
                "provider": {"credentials": {"id": HIDDEN, "number": HIDDEN}, "order": ["a"]},
            },
        },
    }


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("secret.key", True),
        ("X-Api-Key", True),
        ("accessKey", True),
        ("X-Auth", True),
        ("fs.s3a.session.token", True),
        ("spark.ssl.keyPassword", True),
        ("api_key_env", False),
        ("max_tokens", False),
        ("llm.max_token", False),
        ("RAY_AUTH_MODE", False),
        ("spark.authenticate", False),
        ("spark.sql.mapKeyDedupPolicy", False),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


PIECES = [
    "a.key",
    "token",
    "=",
    ":",
    ": ",
    '"',
    "'",
    "\\",
    " ",
    "://",
    "@",
    "?sig=",
    "headers",
    "{",
    "}",
    "Bearer ",
    HIDDEN,
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3))).map("".join))
def test_any_text_can_be_shown_and_twice_is_as_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once
