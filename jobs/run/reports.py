"""What others hear of a command that ended or failed: a file of metrics, and a message to an address."""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.request import Request, urlopen

from untold.jobs.settings.sections import NotifySettings
from untold.udfs.redaction import without_secrets
from untold.udfs.storage import Place

SIGNATURE = "X-Untold-Signature"
SECONDS = 10.0


@dataclass
class Report:
    """What is told of a command: `facts` for the message, without any text of samples, and the file of metrics."""

    facts: dict[str, Any] = field(default_factory=dict)
    metrics: str | None = None


def facts_of(manifest: Mapping[str, Any], exit_code: int) -> dict[str, Any]:
    """What a message says of a run."""
    named = ("run", "counts", "summary", "totals")
    return {"status": manifest["status"], "exit_code": exit_code, **{name: manifest.get(name) for name in named}}


@contextmanager
def reporting(
    settings: NotifySettings, metrics_file: str | None, note: Callable[[str], None], **facts: Any
) -> Iterator[Report]:
    """Tells of the command within, however it ends; what it raises is told as `failed`, by its kind alone.

    Telling never fails the command: what could not be written or sent is a line.
    """
    report = Report({**facts, "status": "failed", "exit_code": 1})
    try:
        yield report
    except BaseException as error:
        interrupted = {"status": "interrupted", "exit_code": 130} if isinstance(error, KeyboardInterrupt) else {}
        report.facts |= {"error": type(error).__name__, **interrupted}
        raise
    finally:
        _tell(report, settings, metrics_file, note)


def _tell(report: Report, settings: NotifySettings, metrics_file: str | None, note: Callable[[str], None]) -> None:
    if metrics_file is not None and report.metrics is not None:
        try:
            Place(metrics_file).write_bytes(report.metrics.encode())
        except (OSError, ValueError) as error:
            note(f"--metrics-file {metrics_file} could not be written ({_reason(error)})")
    if settings.url is not None:
        try:
            _send(settings, report.facts)
        except (OSError, ValueError) as error:
            note(f"notify.url could not be told ({_reason(error)})")


def _send(settings: NotifySettings, facts: Mapping[str, Any]) -> None:
    """Posts the facts as JSON, signed where a key is named. Raises OSError, and ValueError for a missing key."""
    body = json.dumps(without_secrets(facts), ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "untold"}
    if settings.key_env is not None:
        key = os.environ.get(settings.key_env)
        if not key:
            raise ValueError(f"{settings.key_env} is not set")
        headers[SIGNATURE] = f"sha256={hmac.new(key.encode(), body, sha256).hexdigest()}"
    with urlopen(Request(str(settings.url), body, headers), timeout=SECONDS) as answer:
        answer.read()


def _reason(error: Exception) -> str:
    """Why, in a few words; an error of the network says it in its own."""
    return str(getattr(error, "strerror", None) or getattr(error, "reason", None) or error) or type(error).__name__
