"""Test `untold doctor`: each check finds the problem that it is made for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.classifier import LABELS, SEPARATOR
from tests.fakes.model_server import ModelServer
from untold.jobs import doctor
from untold.jobs.doctor import (
    CheckResult,
    check_disk,
    check_endpoint,
    check_lookups,
    check_packages,
    check_ray,
    check_spark,
    check_store,
    examine,
)
from untold.jobs.inference.stage.call_settings import clear_text_warning
from untold.jobs.settings.loading import NoEndpointError, Resolved, load_settings
from untold.jobs.settings.model import LlmSettings, RaySettings, Settings, SettingsError, SparkSettings
from untold.udfs.redaction import plain_url

KEY = "sk-not-to-be-shown"


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(answer="fixed") as running:
        yield running


@pytest.fixture
def calm(server: ModelServer) -> ModelServer:
    server.configure(rules=(), api_key=None, down=False)
    server.reset()
    return server


@pytest.fixture
def without_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the checks of Spark and Ray. They have their own tests, and each of them takes seconds."""
    for name in ("check_spark", "check_ray"):
        monkeypatch.setattr(doctor, name, lambda settings: CheckResult("ok", "engine", "not started"))


def this_address() -> str:
    """Return an address of this machine outside the loopback network, or an unused address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a datagram socket does not send data here
        except OSError:
            return "192.0.2.1"
        return str(probe.getsockname()[0])


def settings_for(server: ModelServer, **llm: Any) -> Settings:
    return Settings(llm=LlmSettings(base_url=server.base_url, model="m", **llm))


def states(server: ModelServer, **llm: Any) -> dict[str, str]:
    return {found.about: found.state for found in check_endpoint(settings_for(server, **llm), server.base_url)}


def resolved_for(server: ModelServer) -> Callable[[], Resolved]:
    return lambda: Resolved(settings_for(server), {}, embedded=False)


def refuse(error: Exception) -> Callable[[], Resolved]:
    def load() -> Resolved:
        raise error

    return load


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_endpoint_that_answers_with_log_probabilities_is_fine(calm: ModelServer, api: str) -> None:
    assert states(calm, api=api) == {"endpoint": "ok", "log-probabilities": "ok"}
    assert calm.count() == 2


def test_missing_log_probabilities_are_a_warning(calm: ModelServer) -> None:
    body = {"choices": [{"message": {"content": "4"}, "finish_reason": "stop", "logprobs": None}]}
    calm.configure(rules=[{"do": {"status": 200, "body": json.dumps(body)}}])
    assert states(calm) == {"endpoint": "ok", "log-probabilities": "warn"}


def test_endpoint_that_refuses_log_probabilities_is_a_warning(calm: ModelServer) -> None:
    calm.configure(rules=[{"when": {"after": 1}, "do": {"status": 400}}])
    assert states(calm) == {"endpoint": "ok", "log-probabilities": "warn"}


def test_completion_cut_at_the_tiny_limit_counts_as_an_answer(calm: ModelServer) -> None:
    calm.configure(rules=[{"do": {"length": True}}])
    assert states(calm)["endpoint"] == "ok"


@pytest.mark.parametrize(
    ("deed", "remedy"),
    [
        ({"status": 401}, "llm.api_key_env"),
        ({"status": 404}, "llm.model"),
        ({"status": 429}, "quota"),
        ({"status": 503}, "try again later"),
        ({"html": True}, "OpenAI-compatible"),
        ({"hang": True}, "llm.timeout_seconds"),
    ],
)
def test_a_failing_endpoint_is_named_with_a_remedy(calm: ModelServer, deed: dict[str, Any], remedy: str) -> None:
    calm.configure(rules=[{"do": deed}])
    found = next(check_endpoint(settings_for(calm, timeout_seconds=1.0), calm.base_url))
    assert (found.state, found.about) == ("FAIL", "endpoint")
    assert remedy in found.text


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        (
            None,
            "this address has none. Set the variable of the key with --set llm.api_key_env=NAME",
        ),
        ("KEY_OF_A_TEST", "KEY_OF_A_TEST (llm.api_key_env) is not set"),
        ("HOME", "HOME (llm.api_key_env) is set"),
    ],
)
def test_an_endpoint_that_requires_a_key_names_the_setting(
    calm: ModelServer, variable: str | None, remedy: str
) -> None:
    calm.configure(api_key="another")
    found = next(check_endpoint(settings_for(calm, api_key_env=variable), calm.base_url))
    assert (found.state, found.about) == ("FAIL", "endpoint")
    assert remedy in found.text


def test_each_of_several_endpoints_is_tried(
    calm: ModelServer, capsys: pytest.CaptureFixture[str], without_engines: None
) -> None:
    nobody = "http://127.0.0.1:9/v1"
    given = f"llm.endpoints=[{{base_url: '{calm.base_url}', model: ours}}, {{base_url: '{nobody}'}}]"
    assert examine(lambda: load_settings(None, [given, "llm.model=m"], None, {}, local_installed=bool)) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line[6:].startswith("endpoint")]
    assert f"ours at {calm.base_url}" in lines[0]
    assert lines[1].startswith("FAIL")
    assert f"m at {nobody}" in lines[1]


def test_the_key_of_a_variable_that_was_not_named_is_not_sent(
    calm: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    calm.configure(api_key=KEY)
    assert states(calm)["endpoint"] == "FAIL"
    assert states(calm, api_key_env="OPENAI_API_KEY")["endpoint"] == "ok"


def test_address_without_encryption_is_a_warning_beyond_loopback(calm: ModelServer) -> None:
    beyond = f"http://{this_address()}:9/v1"
    assert next(check_endpoint(settings_for(calm), beyond)).about == "encryption"
    assert clear_text_warning(beyond) is not None
    for plain in ("http://localhost:1/v1", "http://127.0.0.1/v1", "http://[::1]:1/v1", "https://example.org/v1", None):
        assert clear_text_warning(plain) is None


@pytest.mark.usefixtures("without_engines")
def test_endpoint_that_is_down_makes_doctor_fail(calm: ModelServer, capsys: pytest.CaptureFixture[str]) -> None:
    calm.configure(down=True)
    assert examine(resolved_for(calm)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("FAIL")] == ["endpoint"]


@pytest.mark.usefixtures("without_engines")
def test_key_is_never_shown(
    calm: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    calm.configure(api_key="another")
    settings = settings_for(calm, api_key_env="OPENAI_API_KEY")
    assert examine(lambda: Resolved(settings, {}, embedded=False)) == 1
    assert KEY not in capsys.readouterr().out


@pytest.mark.usefixtures("without_engines")
def test_a_template_that_cannot_be_filled_in_is_named_with_its_line(
    calm: ModelServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "match_one.jinja").write_text("=== user\n{{ reference }}\n{{ candidate.name }}")
    settings = settings_for(calm).model_copy(update={"prompts_dir": str(tmp_path)})
    assert examine(lambda: Resolved(settings, {}, embedded=False)) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 1
    assert failed[0].endswith(f"{tmp_path}/match_one.jinja line 3: 'str object' has no attribute 'name'")


@pytest.mark.usefixtures("without_engines")
def test_machine_without_an_endpoint_is_warned_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(lambda: load_settings(None, [], None, {}, local_installed=lambda: False)) == 0
    lines = capsys.readouterr().out.splitlines()
    warned = [line for line in lines if line.startswith("warn")]
    assert len(warned) == 1
    assert "llm.base_url" in warned[0]
    assert any(line.startswith("ok    store") for line in lines)


@pytest.mark.usefixtures("without_engines")
def test_wrong_settings_fail_and_the_other_checks_still_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(refuse(SettingsError("llm.modle: no such setting"))) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("FAIL  settings") and "llm.modle" in line for line in lines)
    assert any(line.startswith("ok    store") for line in lines)


@pytest.mark.usefixtures("without_engines")
def test_missing_java_is_a_failure_and_spark_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert examine(refuse(NoEndpointError("no endpoint"))) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("FAIL  Java") for line in lines)
    assert any(line.startswith("warn  Spark") for line in lines)


@pytest.mark.usefixtures("without_engines")
def test_embedded_model_that_was_never_used_is_not_put_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert examine(lambda: Resolved(Settings(), {}, embedded=True)) == 0
    assert "at the first run" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_engines")
def test_a_store_is_ok_only_if_all_engines_reached_it(
    calm: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(calm).model_copy(update={"completion_store": str(tmp_path)})
    assert examine(lambda: Resolved(settings, {}, embedded=False)) == 0
    assert f"ok    store              {tmp_path}\n" in capsys.readouterr().out
    monkeypatch.setattr(
        doctor, "check_ray", lambda settings: CheckResult("FAIL", "Ray", "at 10.0.0.1: it is not shared")
    )
    assert examine(lambda: Resolved(settings, {}, embedded=False)) == 1
    assert f"warn  store              {tmp_path}: reached from here, not by Ray\n" in capsys.readouterr().out


def test_packages_are_listed_with_the_commands_that_need_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    needs = {"open": {}, "score": {"engine": ()}, "meta-evaluate": {"engine": (), "study": ("nltk", "openpyxl")}}
    found = list(check_packages(needs))
    assert [(one.state, one.about, one.text) for one in found] == [
        ("ok", "packages", "complete for open"),
        ("warn", "packages", "missing openpyxl: pip install 'untold[study]', for meta-evaluate"),
        ("warn", "packages", "missing ray: pip install 'untold[platform]', for score, meta-evaluate"),
    ]
    # If the engine is missing, no other checks run
    assert examine(refuse(SettingsError("not read")), needs) == 0
    abouts = [line[6:].split()[0] for line in capsys.readouterr().out.splitlines()]
    assert list(dict.fromkeys(abouts)) == ["Python", "packages", "PySpark", "disk"]


@pytest.mark.slow
def test_a_job_server_is_asked_for_its_version_and_not_joined() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=say_version, args=(server,), daemon=True).start()
        found = check_ray(settings_by("ray-job", address), seconds=60)
    assert (found.state, found.about, found.text) == ("ok", "Ray jobs", f"version 4 of its API at {address}")


def say_version(server: socket.socket) -> None:
    """Respond to requests for the version in the same way as a job server."""
    body = json.dumps({"version": "4", "ray_version": "2.60.0"}).encode()
    head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    while True:
        taken, _ = server.accept()
        with taken:
            assert b"GET /api/version " in taken.recv(65536)
            taken.sendall(f"HTTP/1.1 200 OK\r\n{head}".encode() + body)


def settings_by(backend: str, address: str | None = None) -> Settings:
    return Settings(
        completion_store="/store",
        llm=LlmSettings(backend=backend, spool="/spool"),
        ray=RaySettings(address=address),
    )


@pytest.mark.slow
def test_a_job_server_that_is_not_there_is_a_failure() -> None:
    found = check_ray(settings_by("ray-job", "http://127.0.0.1:9"), seconds=60)
    assert (found.state, found.about) == ("FAIL", "Ray jobs")
    assert "at http://127.0.0.1:9: " in found.text
    assert "see that ray.address names the job server" in found.text


def test_with_a_spool_no_ray_is_started_here() -> None:
    found = check_ray(settings_by("spool"), seconds=0.0)
    assert (found.state, found.text.partition(":")[0]) == ("warn", "not checked")


def test_a_store_is_checked_and_not_changed(tmp_path: Path) -> None:
    assert check_store(str(tmp_path / "not" / "yet")).state == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_store_without_the_right_to_write_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert check_store(str(tmp_path)).state == "FAIL"


def test_store_of_an_unknown_kind_fails_without_its_secrets() -> None:
    found = check_store(f"nowhere://user:{KEY}@bucket/folder?token={KEY}")
    assert found.state == "FAIL"
    assert KEY not in found.text


def test_disk_is_named_with_its_free_space(tmp_path: Path) -> None:
    found = list(check_disk(str(tmp_path)))
    assert [finding.about for finding in found] == ["disk", "disk"]
    assert str(tmp_path) in found[1].text


def test_little_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LOW_DISK_BYTES", 10**18)
    assert {finding.state for finding in check_disk(str(tmp_path))} == {"warn"}


@pytest.mark.gate
def test_check_that_hangs_is_given_up() -> None:
    slow = "import time; from jobs import doctor; from threading import Event; "
    slow += "print(doctor._within('store', 0.2, Event().wait).state)"
    shown = subprocess.run([sys.executable, "-c", slow], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.strip() == "FAIL"


@pytest.mark.gate
def test_spark_runs_a_job() -> None:
    found = check_spark(Settings(spark=SparkSettings(master="local[1]")))
    assert (found.state, found.about) == ("ok", "Spark")


@pytest.mark.gate
def test_a_python_version_missing_on_workers_is_reported() -> None:
    conf = {"spark.pyspark.python": "/no/such/python"}
    found = check_spark(Settings(spark=SparkSettings(master="local[1]", conf=conf)))
    assert found.state == "FAIL"
    assert "a worker of Spark cannot start /no/such/python: No such file or directory. Install Python" in found.text


@pytest.mark.gate
def test_a_spark_that_does_not_start_fails_with_a_remedy() -> None:
    found = check_spark(Settings(spark=SparkSettings(master="nowhere://")))
    assert found.state == "FAIL"
    assert "spark.master" in found.text


@pytest.mark.gate
def test_ray_starts_and_reaches_the_store(tmp_path: Path) -> None:
    assert check_ray(Settings(completion_store=str(tmp_path))).state == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gate
def test_ray_cluster_that_does_not_answer_in_time_fails() -> None:
    found = check_ray(Settings(ray=RaySettings(address="127.0.0.1:9")), seconds=8.0)
    assert found.state == "FAIL"
    assert "ray.address" in found.text


def test_secrets_of_an_address_are_removed() -> None:
    assert plain_url(f"https://user:{KEY}@host:8000/v1?key={KEY}") == "https://host:8000/v1"


def lookup_states(**sections: Any) -> dict[str, tuple[str, str]]:
    return {one.about: (one.state, one.text) for one in check_lookups(Settings.model_validate(sections))}


def test_only_configured_lookups_are_checked(calm: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRAVE_API_KEY", raising=False)
    assert lookup_states() == {}
    search = {"base_url": calm.search_url, "api_key_env": None}
    found = lookup_states(embeddings={"base_url": calm.base_url, "model": "m"}, search=search)
    assert {about: state for about, (state, _) in found.items()} == {"embeddings": "ok", "search": "ok"}
    assert (calm.count("embed_text"), calm.count("web_search")) == (1, 1)
    judge = {"labels": list(LABELS), "separator": SEPARATOR, "model": "judge"}
    for api in ("classify", "predict", "score"):
        named = {"nli": {"classifier_url": f"{calm.root_url}/{api}", "classifier_threshold": 0.9}, "classifier": judge}
        assert lookup_states(**named) == {"classifier": ("ok", f"judge at {calm.root_url}/{api}")}
    assert calm.count("classify_entailment") == 3


def test_a_failing_lookup_names_the_remedy_for_its_own_settings(
    calm: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", KEY)
    calm.configure(api_key="another")
    found = lookup_states(
        embeddings={"base_url": calm.base_url, "model": "m"},
        search={"base_url": calm.search_url, "api_key_env": "SEARCH_KEY"},
        grounding={"verifier": f"{calm.root_url}/predict"},
        classifier={"model": "judge", "api_key_env": "JUDGE_KEY"},
    )
    assert {about: state for about, (state, _) in found.items()} == dict.fromkeys(
        ("embeddings", "search", "classifier"), "FAIL"
    )
    assert "JUDGE_KEY (classifier.api_key_env) is not set" in found["classifier"][1]
    assert "--set embeddings.api_key_env=NAME" in found["embeddings"][1]
    assert "SEARCH_KEY (search.api_key_env) is set" in found["search"][1]
    assert KEY not in str(found)


def test_a_search_without_a_price_under_a_budget_is_a_finding_and_the_rest_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRAVE_API_KEY", KEY)
    found = lookup_states(budget={"max_cost": 1.0}, grounding={"verifier": str(tmp_path)})
    assert {about: state for about, (state, _) in found.items()} == {"search": "FAIL", "classifier": "FAIL"}
    assert "search.price_per_thousand_requests" in found["search"][1]


def test_a_local_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    found = lookup_states(embeddings={"model": str(tmp_path)}, grounding={"verifier": str(tmp_path)})
    assert {about: state for about, (state, _) in found.items()} == {"embeddings": "FAIL", "classifier": "FAIL"}
    assert all("model.onnx" in text for _, text in found.values())
