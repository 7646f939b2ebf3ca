"""Test that each metric declares all of the settings that its code reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from untold.jobs.metrics import METRICS
from untold.jobs.settings.model import NO_RESULT, Settings

ROOT = Path(__file__).parents[3]
# The settings that the tools of a metric read (`untold.jobs.score`)
TOOLS = {"contexts": "summarise_contexts", "condense": "graph", "retrieve": "knowledge"}


def settings_read(module: str, name: str | None, seen: set[tuple[str, str | None]]) -> Iterator[str]:
    """Yield the settings that a function or module reads, including its calls of other metrics and lookups."""
    if (module, name) in seen:
        return
    seen.add((module, name))
    path = module.removeprefix("untold.").replace(".", "/")
    tree = ast.parse((ROOT / f"{path}.py").read_text(encoding="utf-8"))
    own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("untold.jobs.metrics.", "untold.jobs.retrieval."))
        if node.module != "untold.jobs.metrics.base"
        for alias in node.names
    }
    for node in ast.walk(tree if name is None else own.get(name, ast.Module([], []))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "settings" and node.attr in Settings.model_fields:
                yield node.attr
            elif node.value.id == "tools" and node.attr in TOOLS:
                yield TOOLS[node.attr]
        elif isinstance(node, ast.Name) and node.id in own:
            yield from settings_read(module, node.id, seen)
        elif isinstance(node, ast.Name) and node.id in imported:
            yield from settings_read(*imported[node.id], seen)


@pytest.mark.parametrize(
    "name",
    [
        *("e2e", "nli", "qa", "icat", "importance", "longrecall", "nuggets", "rag", "rubric", "citations"),
        "answer_relevancy",
    ],
)
def test_a_metric_depends_on_the_settings_that_its_code_reads(name: str) -> None:
    read = set(settings_read(f"untold.jobs.metrics.{name}", None, set())) - NO_RESULT
    assert read
    assert [key for key in sorted(read) if not METRICS[name].depends_on(key)] == []


def test_a_metric_of_another_package_may_depend_on_any_setting() -> None:
    from tests.jobs.metrics.toy import WORDS

    assert WORDS.depends_on("nli.skip_implied")
    assert not METRICS["e2e"].depends_on("nli.skip_implied")
    assert METRICS["e2e"].depends_on("statistics.seed")
    assert METRICS["icat"].depends_on("knowledge.top_k")
