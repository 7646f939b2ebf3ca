"""The manifest beside the tables: what an output belongs to, how its run stands, and what every start did."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

from untold.jobs.settings.model import STAGE_NAMES, Settings, result_settings, settings_model
from untold.udfs.errors import UserError
from untold.udfs.llm.keys import Stage, canonical_json
from untold.udfs.redaction import without_secrets
from untold.udfs.stages import LOOKUPS
from untold.udfs.storage import StoragePath

NAME = "manifest.json"
# Raised where readers of the one before would misread the manifest; keys are only ever added
FORMAT = 2
PACKAGES = ("untold", "pyspark", "ray", "openai", "pyarrow")
OTHER_FORMAT = "another version of Untold"
# What an identity is made of, and how a user is told that it differs
PARTS = {
    "dataset": "another data set or command",
    "input": "another input",
    "metrics": "other metrics",
    "statistics": "another statistics.seed or --cluster",
    "covered": "another --covered",
    "baselines": "another embeddings.model",
}

Identity = Mapping[str, Any]
"""What an output belongs to, as JSON: some of `PARTS`, `results` (settings) and `stages` (digests)."""


@dataclass(frozen=True)
class Added:
    """Metrics that an output is to have beside those that it has.

    `uses`: whether those that it has depend on a setting, by dotted key; `input`: the fingerprint of the input as they
    read it.
    """

    uses: Callable[[str], bool]
    input: str


class OutputError(UserError):
    """An output that this run may not touch. The message says what to do."""


def identify(
    fingerprint: str,
    metrics: tuple[str, ...],
    settings: Settings,
    stages: Mapping[str, Stage],
    digests: Mapping[str, str] | None = None,
) -> Identity:
    """The identity of the output of these metrics over this input.

    fingerprint: as `untold.jobs.inputs.samples.fingerprint` gives it; digests: by setting, of what it names, such as
    `knowledge.index`. What may differ from start to start is not in it: docs/contract.md, "Runs, outputs, stores".
    """
    results = result_settings(settings, [name for name in stages if name not in LOOKUPS])
    for key, digest in (digests or {}).items():
        section, name = key.split(".")
        # In the place of a path, which says nothing of what it holds
        results[section][name] = digest
    return {
        "input": fingerprint,
        "metrics": sorted(metrics),
        "results": json.loads(canonical_json(results)),
        "stages": {name: stage.digest for name, stage in sorted(stages.items())},
    }


def differences(own: Identity, theirs: Identity, added: Added | None = None) -> list[str]:
    """What differs between two identities, in words for a user.

    A setting that an older manifest does not have had its default then, since what it does was done without it. Where
    metrics are `added` to `theirs`, settings that these do not depend on may differ, and stages may be added.
    """
    if added is not None:
        stages = {name: digest for name, digest in own["stages"].items() if name in theirs.get("stages", {})}
        own = {**own, "input": added.input, "metrics": theirs.get("metrics"), "stages": stages}
    # A manifest is written without secrets, so that a setting which holds one would differ from itself
    own = without_secrets(own)
    if "dataset" in own and "dataset" not in theirs:
        return [PARTS["dataset"]]
    found = [text for key, text in PARTS.items() if own.get(key) != theirs.get(key)]
    changed = _changed_settings(own.get("results", {}), theirs.get("results", {}), added)
    if changed:
        found.append(f"other settings ({', '.join(changed)})")
    elif own.get("stages") != theirs.get("stages"):
        found.append("another model or template")
    return found


def refused(output: str, found: Collection[str]) -> OutputError:
    """The error about an output that belongs to something else, by what `differences` found."""
    return OutputError(
        f"{output} belongs to {' and '.join(found)}; "
        "give another --output, or --overwrite to replace its tables (completions stay)"
    )


def _changed_settings(own: Mapping[str, Any], theirs: Mapping[str, Any], added: Added | None) -> list[str]:
    """Dotted keys of settings that differ, sorted; of a key that one side does not have the default counts.

    The decoding of a stage that only one side asks is no difference.
    """
    asked = own.get("stages", {}).keys() & theirs.get("stages", {}).keys()
    defaults = _flat(result_settings(settings_model()(), asked & set(STAGE_NAMES)))
    ours, others = ({**defaults, **_flat(_of_stages(given, asked))} for given in (own, theirs))
    changed = {key for key in ours.keys() | others.keys() if ours.get(key) != others.get(key)}
    counts = {key for key in changed if added is None or key.startswith("stages.") or added.uses(key)}
    return _as_set(counts, len(asked))


def _of_stages(results: Mapping[str, Any], stages: Collection[str]) -> dict[str, Any]:
    """The settings with the decoding of these stages alone."""
    return {**results, "stages": {name: results["stages"][name] for name in stages}}


def _as_set(changed: Collection[str], stages: int) -> list[str]:
    """Keys as a user sets them, sorted: `llm.model` where `stages.<stage>.model` is among them for each of the stages.

    >>> _as_set({"stages.a.model", "stages.b.model", "stages.b.top_p", "qa.questions"}, 2)
    ['llm.model', 'qa.questions', 'stages.b.top_p']
    """
    names = {key: key.split(".", 2)[2] for key in changed if key.startswith("stages.")}
    shared = {name for name, count in Counter(names.values()).items() if count == stages}
    return sorted({f"llm.{names[key]}" if names.get(key) in shared else key for key in changed})


def template_digests(stages: Mapping[str, Stage]) -> dict[str, str]:
    """A hash of each stage's template."""
    return {name: blake2b(stage.template.encode(), digest_size=16).hexdigest() for name, stage in stages.items()}


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that do the work."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def read_manifest(output: str) -> dict[str, Any] | None:
    """The manifest of an output; None where there is none. Raises OutputError for one that cannot be read."""
    try:
        manifest = json.loads((StoragePath(output) / NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise OutputError(f"{output}/{NAME} cannot be read; give another --output, or --overwrite") from error
    return dict(manifest)


def write_manifest(output: str, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest without secrets, so that readers see the old one or the new one."""
    content = json.dumps(without_secrets(manifest), indent=2, ensure_ascii=False).encode("utf-8")
    (StoragePath(output) / NAME).write_bytes(content + b"\n")


def sum_starts(manifest: Mapping[str, Any], name: str) -> Any:
    """The sum of a column of the usage of all starts that a manifest has; None where no value is known.

    A cost that some stages have and others do not is the sum of those that have one; without any stage it is 0.
    """
    values = [row[name] for start in manifest["starts"] for row in start["usage"]]
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def by_stage(usage: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `usage`, one a stage and system: those of several endpoints added up.

    >>> by_stage([{"stage": "s", "calls": 0, "cost": None}, {"stage": "s", "calls": 2, "cost": 0.5}])
    [{'stage': 's', 'calls': 2, 'cost': 0.5}]
    """
    found: dict[tuple[str | None, str], dict[str, Any]] = {}
    for row in usage:
        whole = found.setdefault((row.get("system"), row["stage"]), dict.fromkeys(row))
        for name, value in row.items():
            known = whole[name]
            adds = isinstance(value, int | float) and known is not None
            whole[name] = known + value if adds else value if known is None else known
    return list(found.values())


def seconds_of(start: Mapping[str, Any]) -> float:
    """How long a start took."""
    began, ended = (datetime.fromisoformat(start[name]) for name in ("started_at", "ended_at"))
    return (ended - began).total_seconds()


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted keys: `{"a": {"b": 1}}` is `{"a.b": 1}`. An empty mapping has no keys."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{prefix}.{key}" if prefix else key)
    return found
