from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from untold.jobs.cli.main import main
from untold.jobs.run.notifications import SIGNATURE, RunNotification, reporting
from untold.jobs.settings.sections import NotifySettings


class Hook:
    """A server that keeps the bodies and headers of all requests."""

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.headers.append(dict(self.headers))
                hook.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]


@pytest.fixture
def hook() -> Iterator[Hook]:
    started = Hook()
    yield started
    started.close()


def finish(report: RunNotification) -> None:
    report.facts |= {"status": "finished", "exit_code": 0}
    report.metrics = "untold_exit_code 0\n"


def test_an_end_is_reported_once_with_a_signature(hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", "a key of the hook")
    notes: list[str] = []
    settings = NotifySettings(url=hook.url, key_env="HOOK_KEY")
    with reporting(settings, str(tmp_path / "run.prom"), notes.append, command="score") as report:
        finish(report)
    assert hook.facts == [{"command": "score", "status": "finished", "exit_code": 0}]
    digest = hmac.new(b"a key of the hook", hook.bodies[0], sha256).hexdigest()
    assert hook.headers[0][SIGNATURE] == f"sha256={digest}"
    assert (tmp_path / "run.prom").read_text(encoding="utf-8") == "untold_exit_code 0\n"
    assert notes == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("a text that nobody may read"), {"status": "failed", "exit_code": 1, "error": "ValueError"}),
        (KeyboardInterrupt(), {"status": "interrupted", "exit_code": 130, "error": "KeyboardInterrupt"}),
    ],
)
def test_a_failure_is_reported_by_its_kind_only(hook: Hook, error: BaseException, told: dict[str, Any]) -> None:
    with pytest.raises(type(error)), reporting(NotifySettings(url=hook.url), None, print):
        raise error
    assert hook.facts == [told]
    assert SIGNATURE not in hook.headers[0]


def test_telling_fails_no_command(tmp_path: Path) -> None:
    refusing, notes = Hook(500), list[str]()
    for url in (refusing.url, "http://127.0.0.1:9/nobody"):
        with reporting(NotifySettings(url=url), f"{tmp_path}/file/below", notes.append) as report:
            (tmp_path / "file").write_text("no folder", encoding="utf-8")
            finish(report)
    with reporting(NotifySettings(url=refusing.url, key_env="NOT_SET"), None, notes.append):
        pass
    refusing.close()
    assert [line.split(" (")[0] for line in notes] == [
        f"--metrics-file {tmp_path}/file/below could not be written",
        "notify.url could not be reached",
        f"--metrics-file {tmp_path}/file/below could not be written",
        "notify.url could not be reached",
        "notify.url could not be reached",
    ]
    assert "NOT_SET is not set" in notes[-1]
    assert len(refusing.bodies) == 1


def test_no_report_is_sent_by_default() -> None:
    with reporting(NotifySettings(), None, pytest.fail) as report:
        finish(report)


@pytest.mark.parametrize("command", ["score", "nightly"])
def test_unreadable_input_is_reported(hook: Hook, tmp_path: Path, command: str) -> None:
    (tmp_path / "2026-11-20.jsonl").write_text('{"question": "of no column that is read"}\n', encoding="utf-8")
    place = "2026-11-20" if command == "score" else "{date}"
    words = [command, "--input", f"{tmp_path}/{place}.jsonl", "--output", f"{tmp_path}/out/{place}", "--metric", "e2e"]
    words += ["--date", "2026-11-20"] if command == "nightly" else []
    given = {"llm.base_url": "http://127.0.0.1:9/v1", "llm.model": "m", "notify.url": hook.url}
    for key, value in given.items():
        words += ["--set", f"{key}={value}"]
    assert main(words) == 1
    (facts,) = hook.facts
    assert (facts["command"], facts["exit_code"]) == (command, 1)
    assert "of no column" not in hook.bodies[0].decode()
