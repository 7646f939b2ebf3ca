from __future__ import annotations

from pathlib import Path

import pytest

from untold.jobs.inference.stage.call_settings import RunEndpoint, check_network, explain_refusal
from untold.jobs.run.error_messages import EnvironmentVariableError
from untold.jobs.settings.model import LlmSettings, Settings


@pytest.mark.parametrize(
    ("address", "said"), [("http://192.0.2.1/v1", 1), ("https://192.0.2.1/v1", 0), ("http://localhost:8000/v1", 0)]
)
def test_a_run_reports_calls_without_encryption_once(address: str, said: int) -> None:
    notes: list[str] = []
    settings = Settings(llm=LlmSettings(base_url=address))
    endpoint = RunEndpoint(settings, embedded=False, wait=False, notify=notes.append)
    assert notes == []
    assert [endpoint.base_url(), endpoint.base_url()] == [address, address]
    assert len(notes) == said
    assert all(address in note and "https://" in note for note in notes)


@pytest.mark.parametrize(
    ("error", "variable", "part"),
    [
        ("HTTP 401 (invalid_api_key)", None, "--set llm.api_key_env=NAME"),
        ("HTTP 401", "A_VARIABLE_THAT_IS_NOT_SET", "A_VARIABLE_THAT_IS_NOT_SET (llm.api_key_env) is not set"),
        ("HTTP 403", None, "--set llm.api_key_env=NAME"),
    ],
)
def test_an_error_about_the_key_names_the_setting(error: str, variable: str | None, part: str) -> None:
    said = explain_refusal(error, [LlmSettings(api_key_env=variable)])
    assert said.startswith(f"{error}: ")
    assert part in said


def test_another_refusal_is_not_changed() -> None:
    assert explain_refusal("HTTP 404 (model_not_found)", [LlmSettings()]) == "HTTP 404 (model_not_found)"


REMOTE, LOOPBACK = "https://judge.example/v1", "http://127.0.0.1:8000/v1"


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read (No such file or directory)"), ("no PEM", "has no certificates")]
)
@pytest.mark.parametrize("address", [REMOTE, LOOPBACK])
def test_certificates_that_cannot_be_used_are_named_with_their_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, content: str | None, reason: str
) -> None:
    path = tmp_path / "authority.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with pytest.raises(EnvironmentVariableError) as raised:
        check_network([address])
    assert str(raised.value) == f"SSL_CERT_FILE names {path}, which {reason}; correct the path, or unset SSL_CERT_FILE"


def test_a_missing_folder_of_certificates_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    with pytest.raises(EnvironmentVariableError, match=r"SSL_CERT_DIR names .*, which is not a folder"):
        check_network([REMOTE])


@pytest.mark.parametrize("variable", ["ALL_PROXY", "all_proxy", "HTTPS_PROXY"])
def test_a_proxy_of_an_unknown_kind_is_named_without_its_address(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "socks://user:secret@proxy.example:1080")
    with pytest.raises(EnvironmentVariableError) as raised:
        check_network([LOOPBACK, REMOTE])
    said = str(raised.value)
    assert said.startswith(f"{variable} names a proxy of the kind socks://")
    assert "secret" not in said
    # Calls within this machine do not use a proxy
    check_network([LOOPBACK])


@pytest.mark.parametrize("proxy", ["http://proxy.example:3128", "proxy.example:3128"])
def test_proxies_of_http_are_used(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    check_network([REMOTE])
