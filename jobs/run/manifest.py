"""The manifest of an output: its identity, the status of its run, and all its starts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any

from untold.jobs.settings.model import STAGE_NAMES, Settings, result_settings, settings_model
from untold.udfs import node_report
from untold.udfs.errors import UserError
from untold.udfs.llm.keys import Stage, canonical_json
from untold.udfs.redaction import without_secrets
from untold.udfs.stages import LOOKUPS
from untold.udfs.storage import StoragePath

NAME = "manifest.json"
# Increased if older readers would misread the manifest. Keys are only added
FORMAT = 2
PACKAGES = ("python", "untold", "pyspark", "ray", "openai", "pyarrow")
OTHER_FORMAT = "another version of Untold"
# The parts of an identity, with their names in messages about a difference
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
    """Additional metrics of an existing output.

    `uses` returns True if the existing metrics depend on a setting, by its dotted key. `input` is the fingerprint of
    the input with the columns of these metrics.
    """

    uses: Callable[[str], bool]
    input: str


class OutputError(UserError):
    """An output that this run must not change. The message has the remedy."""


def identify(
    fingerprint: str,
    metrics: tuple[str, ...],
    settings: Settings,
    stages: Mapping[str, Stage],
    digests: Mapping[str, str] | None = None,
) -> Identity:
    """Return the identity of the output of these metrics over this input.

    fingerprint: from `untold.jobs.inputs.samples.fingerprint`; digests: by setting, the digest of the file or folder
    that it names, such as `knowledge.index`. Settings that can differ between starts are not part of the identity
    (docs/contract.md, "Runs, outputs, stores").
    """
    results = result_settings(settings, [name for name in stages if name not in LOOKUPS])
    for key, digest in (digests or {}).items():
        section, name = key.split(".")
        # In place of a path, which does not identify the content
        results[section][name] = digest
    return {
        "input": fingerprint,
        "metrics": sorted(metrics),
        "results": json.loads(canonical_json(results)),
        "stages": {name: stage.digest for name, stage in sorted(stages.items())},
    }


def differences(own: Identity, theirs: Identity, added: Added | None = None) -> list[str]:
    """Return the differences between two identities as texts for users.

    A setting that an older manifest lacks had its default value. If metrics are `added` to `theirs`, settings of other
    metrics can differ, and stages can be added.
    """
    if added is not None:
        stages = {name: digest for name, digest in own["stages"].items() if name in theirs.get("stages", {})}
        own = {**own, "input": added.input, "metrics": theirs.get("metrics"), "stages": stages}
    # A manifest has no secrets, so a setting with a secret would differ from itself
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
    """Return the error for an output with another identity, with the result of `differences`."""
    return OutputError(
        f"{output} belongs to {' and '.join(found)}; "
        "give another --output, or --overwrite to replace its tables (completions stay)"
    )


def _changed_settings(own: Mapping[str, Any], theirs: Mapping[str, Any], added: Added | None) -> list[str]:
    """Return the sorted dotted keys of different settings. The default replaces a key that one side lacks.

    The decoding of a stage that only one side has is not a difference.
    """
    asked = own.get("stages", {}).keys() & theirs.get("stages", {}).keys()
    defaults = _flat(result_settings(settings_model()(), asked & set(STAGE_NAMES)))
    ours, others = ({**defaults, **_flat(_of_stages(given, asked))} for given in (own, theirs))
    changed = {key for key in ours.keys() | others.keys() if ours.get(key) != others.get(key)}
    counts = {key for key in changed if added is None or key.startswith("stages.") or added.uses(key)}
    return _as_set(counts, len(asked))


def _of_stages(results: Mapping[str, Any], stages: Collection[str]) -> dict[str, Any]:
    """Return the settings with the decoding of only these stages."""
    return {**results, "stages": {name: results["stages"][name] for name in stages}}


def _as_set(changed: Collection[str], stages: int) -> list[str]:
    """Return sorted keys for users: `llm.model` if `stages.<stage>.model` changed for each of the stages.

    >>> _as_set({"stages.a.model", "stages.b.model", "stages.b.top_p", "qa.questions"}, 2)
    ['llm.model', 'qa.questions', 'stages.b.top_p']
    """
    names = {key: key.split(".", 2)[2] for key in changed if key.startswith("stages.")}
    shared = {name for name, count in Counter(names.values()).items() if count == stages}
    return sorted({f"llm.{names[key]}" if names.get(key) in shared else key for key in changed})


def template_digests(stages: Mapping[str, Stage]) -> dict[str, str]:
    """Return a hash of the template of each stage."""
    return {name: blake2b(stage.template.encode(), digest_size=16).hexdigest() for name, stage in stages.items()}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the most important packages."""
    known = node_report.versions()
    return {name: known[name] for name in PACKAGES if name in known}


def read_manifest(output: str) -> dict[str, Any] | None:
    """Return the manifest of an output, None without one. Raises OutputError for an unreadable manifest."""
    try:
        manifest = json.loads((StoragePath(output) / NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise OutputError(f"{output}/{NAME} cannot be read; give another --output, or --overwrite") from error
    return dict(manifest)


def write_manifest(output: str, manifest: Mapping[str, Any]) -> None:
    """Write the manifest atomically and without secrets."""
    content = json.dumps(without_secrets(manifest), indent=2, ensure_ascii=False).encode("utf-8")
    (StoragePath(output) / NAME).write_bytes(content + b"\n")


def sum_starts(manifest: Mapping[str, Any], name: str) -> Any:
    """Return the sum of a column of the usage of all starts in a manifest, None if all values are unknown.

    Stages without a cost do not count. Without any stage, the sum is 0.
    """
    values = [row[name] for start in manifest["starts"] for row in start["usage"]]
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def by_stage(usage: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `usage` with one row per stage and system, the sum over several endpoints.

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
    """Return the duration of a start in seconds."""
    began, ended = (datetime.fromisoformat(start[name]) for name in ("started_at", "ended_at"))
    return (ended - began).total_seconds()


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted keys: `{"a": {"b": 1}}` becomes `{"a.b": 1}`."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{prefix}.{key}" if prefix else key)
    return found
