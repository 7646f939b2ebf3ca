"""Test the stages of icat, the settings that it requires, and the files of its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from untold.jobs.metrics import METRICS, digests_of, needs_of, optional_of, stages_of
from untold.jobs.run.manifest import differences, identify
from untold.jobs.settings.model import Settings
from untold.udfs.facts.aspect_coverage import QrelsError


def settings_for(**given: Any) -> Settings:
    return Settings.model_validate(given)


@pytest.mark.parametrize(
    ("given", "stages"),
    [
        ({}, ["extract_claims", "generate_aspects", "classify_relation", "align_claims", "embed_text"]),
        (
            {"icat": {"variant": "s"}, "knowledge": {"source": "web"}},
            ["extract_claims", "classify_relation", "align_claims", "web_search"],
        ),
        (
            {"icat": {"variant": "m"}, "knowledge": {"retriever": "bm25"}, "grounding": {"verifier": "folder"}},
            ["extract_claims", "classify_entailment"],
        ),
    ],
)
def test_stages_follow_from_the_settings(given: dict[str, Any], stages: list[str]) -> None:
    assert stages_of(["icat"], settings_for(**given)) == stages


@pytest.mark.parametrize(
    ("variant", "source", "columns"),
    [
        ("auto", "contexts", ("query", "response", "contexts")),
        ("a", "index", ("query", "response")),
        ("s", "web", ("query", "response", "aspects")),
        ("m", "index", ("query", "response", "query_id", "aspects")),
    ],
)
def test_contexts_are_required_by_settings_that_read_them(variant: str, source: str, columns: tuple[str, ...]) -> None:
    settings = settings_for(icat={"variant": variant}, knowledge={"source": source})
    assert needs_of(["icat"], settings) == columns
    assert "contexts" in needs_of(["icat", "e2e"], settings)
    assert optional_of(["icat", "e2e"], Settings()) == ("query_id", "aspects")


def test_the_annotations_belong_to_the_identity_of_an_output(tmp_path: Path) -> None:
    found = []
    for name, text in (("a", "1 1 d 1\n1 2 d 0\n"), ("b", "1 1 d 3\n"), ("c", "1 2 d 1\n")):
        (tmp_path / name).write_text(text)
        settings = settings_for(icat={"variant": "m", "qrels": str(tmp_path / name)})
        found.append(identify("input", ("icat",), settings, {}, digests_of(["icat"], settings)))
    assert differences(found[0], found[1]) == []
    assert differences(found[0], found[2]) == ["other settings (icat.qrels)"]
    assert digests_of(["icat"], settings_for(icat={"qrels": "not read"})) == {}


def test_missing_annotations_are_one_line() -> None:
    with pytest.raises(QrelsError, match=r"^icat\.qrels is not set"):
        digests_of(["icat"], settings_for(icat={"variant": "m"}))


def test_every_measure_has_bounds_without_any_result() -> None:
    metric = METRICS["icat"]
    assert metric.unknown == {"s_fact": (0, 1), "s_coverage": (0, 1), "icat": (0, 1), "claims": (None, None)}
    assert not metric.has_graph
