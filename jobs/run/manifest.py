"""The manifest beside the tables: what an output belongs to, how its run stands, and what every start did."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

from pyarrow import fs

from jobs.settings.model import Settings, result_settings
from udfs.files import open_filesystem, write_bytes
from udfs.llm.keys import Stage, canonical_json

NAME = "manifest.json"
FORMAT = 1
PACKAGES = ("untold", "pyspark", "ray", "openai", "pyarrow")


class OutputError(RuntimeError):
    """An output that this run may not touch. The message says what to do."""


@dataclass(frozen=True)
class Identity:
    """What an output belongs to: its input, its metrics, and the settings and templates that change results."""

    fingerprint: str
    metrics: tuple[str, ...]
    results: Mapping[str, Any]
    stages: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "input": self.fingerprint,
            "metrics": list(self.metrics),
            "results": json.loads(canonical_json(self.results)),
            "stages": dict(self.stages),
        }

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """What differs from another output's identity, in words for a user."""
        own = self.to_json()
        named = {"input": "another input", "metrics": "other metrics"}
        found = [text for key, text in named.items() if own[key] != other.get(key)]
        results, theirs = _flat(own["results"]), _flat(other.get("results", {}))
        changed = sorted(key for key in results.keys() | theirs.keys() if results.get(key) != theirs.get(key))
        if changed:
            found.append(f"other settings ({', '.join(changed)})")
        elif own["stages"] != other.get("stages"):
            found.append("another model or template")
        return found


def identify(fingerprint: str, metrics: Sequence[str], settings: Settings, stages: Mapping[str, Stage]) -> Identity:
    """The identity of the output of these metrics over this input."""
    digests = {name: stage.digest for name, stage in sorted(stages.items())}
    return Identity(fingerprint, tuple(sorted(metrics)), result_settings(settings, stages), digests)


def template_digests(stages: Mapping[str, Stage]) -> dict[str, str]:
    """A hash of each stage's template."""
    return {name: blake2b(stage.template.encode(), digest_size=16).hexdigest() for name, stage in stages.items()}


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that do the work."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def read_manifest(output: str) -> dict[str, Any] | None:
    """The manifest of an output; None where there is none. Raises OutputError for one that cannot be read."""
    system, path = open_filesystem(f"{output}/{NAME}")
    if system.get_file_info(path).type == fs.FileType.NotFound:
        return None
    try:
        with system.open_input_stream(path) as stream:
            manifest = json.loads(stream.read())
    except (OSError, ValueError) as error:
        raise OutputError(f"{output}/{NAME} cannot be read; give another --output, or --overwrite") from error
    return dict(manifest)


def write_manifest(output: str, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest so that readers see the old one or the new one."""
    content = json.dumps(manifest, indent=2, ensure_ascii=False).encode("utf-8")
    write_bytes(f"{output}/{NAME}", content + b"\n")


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{prefix}.{key}" if prefix else key)
    return found
