"""Functions that load and compare settings for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from untold.jobs.settings.loading import Resolved, load_settings
from untold.jobs.settings.model import (
    Settings,
    SettingsError,
)

SERVER = ("llm.base_url=http://h/v1", "llm.model=m")
KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


def load(
    *overrides: str,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
    endpoint: str | None = None,
    demo: bool = False,
    judged: bool = False,
    installed: bool = True,
) -> Resolved:
    path = None if config is None else str(config)
    return load_settings(
        path, overrides, endpoint, environ or {}, demo=demo, judged=judged, local_installed=lambda: installed
    )


def problems(*overrides: str, **options: Any) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load(*overrides, **options)
    return str(raised.value).splitlines()


def value_of(settings: Settings, key: str) -> Any:
    found: Any = settings
    for name in key.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
