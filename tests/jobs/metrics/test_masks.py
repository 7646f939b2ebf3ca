"""Test a mask of another package: no request contains a masked text, and the request keys include the mask version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.fakes.model_server import ModelServer
from tests.jobs.metrics.test_toy_metric import ENTRY_POINTS, TEMPLATE, TOY, untold
from tests.runs.harness import SETTINGS
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.settings.model import Settings, SettingsError
from untold.udfs.llm.keys import Stage
from untold.udfs.stages import arrow
from untold.udfs.stages.arrow import MaskError, mask_columns
from untold.udfs.stages.definitions import Mask

MASK = """from untold.udfs.stages.definitions import Mask

NAMES = Mask("names", "{version}", lambda texts: [text.replace("Ada Field", "[NAME]") for text in texts])
"""
SAMPLES = [
    {"sample_id": "named", "response": "Ada Field built a tower", "contexts": ["Ada Field built a TOWER."]},
    {"sample_id": "plain", "response": "A high tower", "contexts": ["The tower is high."]},
]
RULES = [
    {"when": {"contains": "Ada Field"}, "do": {"status": 400}},
    {"when": {"contains": "[NAME]"}, "do": {"text": "- tower"}},
    {"when": {"contains": "high tower"}, "do": {"text": "- high\n- tower"}},
]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Create a folder with the toy metric and a mask in the same layout as pip."""
    folder = tmp_path / "site-packages"
    described = folder / "toy-1.0.dist-info"
    described.mkdir(parents=True)
    (folder / "toy.py").write_text(TOY.read_text(encoding="utf-8"))
    (folder / "masking.py").write_text(MASK.format(version="1"))
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"{ENTRY_POINTS}\n[untold.masks]\nnames = masking:NAMES\n")
    return folder


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(rules=RULES) as running:
        yield running


@pytest.mark.gate
def test_a_mask_changes_requests_and_their_keys(packages: Path, server: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "list_words.jinja").write_text(TEMPLATE)
    samples = tmp_path / "samples.jsonl"
    samples.write_text("\n".join(json.dumps({"query": "What is known?", **sample}) for sample in SAMPLES))
    chosen = {**SETTINGS, "llm.base_url": server.base_url, "prompts_dir": tmp_path / "prompts", "llm.mask": "names"}
    chosen |= {"completion_store": tmp_path / "store"}

    def score(output: str) -> None:
        given = ["--input", str(samples), "--output", str(tmp_path / output), "--metric", "words"]
        ended = untold(packages, "score", *given, *(w for k, v in chosen.items() for w in ("--set", f"{k}={v}")))
        assert ended.returncode == 0, ended.stderr

    score("first")
    assert server.count() == 2
    score("again")
    assert server.count() == 2
    (packages / "masking.py").write_text(MASK.format(version="2"))
    score("later")
    assert server.count() == 4


def test_an_unknown_mask_is_an_error_before_any_request() -> None:
    settings = Settings.model_validate({"llm": {"mask": "names", "model": "m"}})
    with pytest.raises(SettingsError, match=r"llm\.mask: no mask has the name names\. No installed package has a mask"):
        bind_stage("summarise_context", settings)


def masked(column: pa.Array, function: object, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    monkeypatch.setattr(arrow, "MASKS", {"names": Mask("names", "1", function)})  # type: ignore[arg-type]
    stage = Stage("rate", ("text",), "m", "{{ text }}", mask=("names", "1"))
    (batch,) = mask_columns(
        iter([pa.RecordBatch.from_arrays([column, pa.array(["Ada"])], ["text", "id"])]), stage, ("text",)
    )
    assert batch.schema.field("text").type == column.type
    assert batch.column("id").to_pylist() == ["Ada"]
    return batch.column("text").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Ada built", "# built"),
        (["Ada", None, "x"], ["#", None, "x"]),
        ([{"text": "Ada", "number": 3}], [{"text": "#", "number": 3}]),
        (None, None),
    ],
)
def test_texts_are_masked_at_any_depth(value: object, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array([value], pa.string()) if value is None else pa.array([value])
    assert masked(column, lambda texts: [text.replace("Ada", "#") for text in texts], monkeypatch) == [expected]


@pytest.mark.parametrize("function", [lambda texts: texts[1:], lambda texts: [None] * len(texts)])
def test_a_mask_that_loses_texts_is_an_error(function: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MaskError, match=r"llm\.mask: names does not return one text for each of 1 texts"):
        masked(pa.array(["Ada"]), function, monkeypatch)


def test_only_a_mask_changes_the_digest_of_a_stage() -> None:
    plain = Stage("rate", ("text",), "m", "{{ text }}")
    first = Stage("rate", ("text",), "m", "{{ text }}", mask=("names", "1"))
    second = Stage("rate", ("text",), "m", "{{ text }}", mask=("names", "2"))
    assert len({plain.digest, first.digest, second.digest}) == 3
