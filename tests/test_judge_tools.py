"""Training, export and measures of the judge, on tiny models."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from untold.udfs.judge.model import Judge
from untold.udfs.retrieval.classifying import find_classifier

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "conf" / "minilm" / "tokenizer.json"
WORDS = ["bee", "honey", "river", "town", "music", "winter", "doctor", "engine", "garden", "letter"]


def run(tool: str, *options: object) -> str:
    """Run a tool and return its output."""
    command = [sys.executable, str(ROOT / "tools" / tool), *map(str, options)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def pairs(number: int, seed: int) -> list[dict[str, object]]:
    """Return pairs whose fact is a word: it is stated if the text contains it."""
    chooser = random.Random(seed)
    rows: list[dict[str, object]] = []
    for row in range(number):
        text, fact = chooser.sample(WORDS, 3), chooser.choice(WORDS)
        label = "supported" if fact in text else "not_supported"
        rows.append({"source": "made", "text": " ".join(text), "fact": fact, "label": label, "document": row // 4})
    return rows


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


@pytest.mark.gate
def test_a_tiny_judge_is_trained_exported_and_opened(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    base = tmp_path / "base"
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=30522
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(base)
    training, held_back = (
        write_rows(tmp_path / "pairs.gz", pairs(2000, 1)),
        write_rows(tmp_path / "held.gz", pairs(80, 2)),
    )
    given = ["--base", base, "--tokenizer", TOKENIZER]
    for name in ("first", "second"):
        options = ["--steps", 50, "--batch-tokens", 1024, "--rate", 1e-3, "--device", "cpu", "--out", tmp_path / name]
        printed = run("train_judge.py", "--pairs", training, *given, *options)
        assert "step 50 of 50: loss" in printed
    assert (tmp_path / "first" / "model.pt").read_bytes() == (tmp_path / "second" / "model.pt").read_bytes()

    out, weights = tmp_path / "judge", tmp_path / "first" / "model.pt"
    printed = run("export_judge.py", "--weights", weights, *given, "--held-back", held_back, "--out", out)
    assert re.search(
        r"temperature \d\.\d+, shift -?\d\.\d+, AUC 0\.\d+ \(0\.\d+ before rounding\), calibration error", printed
    )
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.onnx"]
    (out / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    (found,) = Judge(find_classifier(str(out))).assess(["bee honey river"], ["honey"])
    assert found.entailment is not None
    assert 0 < found.entailment < 1


@pytest.mark.gate
def test_the_exported_module_computes_the_trained_model(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from export_judge import Exported
    from train_judge import CrossEncoder

    torch.manual_seed(3)
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64)
    trained = CrossEncoder(transformers.BertModel(config, add_pooling_layer=False)).eval()
    for length in (4, 31):
        ids, types = torch.randint(0, 30000, (1, length)), torch.arange(length)[None] // (length // 2 + 1)
        with torch.no_grad():
            expected, found = trained(ids, torch.ones_like(ids), types), Exported(trained).eval()(ids, types)
        assert torch.allclose(found, expected, atol=1e-5)


def test_measures_of_pairs_are_printed_with_intervals(tmp_path: Path) -> None:
    made = write_rows(tmp_path / "held.gz", pairs(60, 3))
    line, estimates = run("measure_judge.py", "--realsumm", made, "--draws", 20).splitlines()
    number = r"(\d\.\d{3}) \[\d\.\d{3}, \d\.\d{3}\]"
    found = re.match(rf"REALSumm, held back: 60 pairs, AUC {number}; kappa ", line)
    assert found is not None
    # The judge was not trained on texts of three words
    assert float(found[1]) > 0.7
    assert re.search(rf"calibration error {number}; \d+ pairs a second$", line)
    found = re.search(r": (\d+) of (\d+) texts judged by people .*; (\d+\.\d)% of 20 intervals contain", estimates)
    assert found is not None
    assert int(found[1]) == round(0.4 * int(found[2]))
    # An interval of few texts contains the mean of all in most draws
    assert float(found[3]) >= 75


def test_measures_equal_their_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from judge_measures import area, calibration_error, cascade_threshold, interval

    random_numbers = np.random.default_rng(5)
    scores, holds = random_numbers.integers(0, 9, 80) / 8, random_numbers.random(80) < 0.4
    better = [(a > b) + (a == b) / 2 for a in scores[holds] for b in scores[~holds]]
    assert area(scores, holds) == pytest.approx(np.mean(better))
    assert np.isnan(area(scores, np.zeros(80, dtype=bool)))
    assert calibration_error(np.array([0.05, 0.05, 0.95, 1.0]), np.array([False, True, True, True])) == pytest.approx(
        (abs(0.1 - 1) + abs(1.95 - 2)) / 4
    )
    rows = np.array([[0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.3, 0.6, 0.1]])
    assert cascade_threshold(rows, np.array([True, True, False, True])) == (0.7, 0.75)
    assert cascade_threshold(rows, np.array([True, True, False, True]), most_wrong=0.25) == (0.6, 1.0)
    assert cascade_threshold(rows, np.array([False, True, False, True]))[1] == 0
    # The mean of rows, whose documents have one value each
    values = np.repeat(np.arange(10), 3)
    low, high = interval(lambda rows: float(values[rows].mean()), [str(one) for one in values])
    assert low < values.mean() < high
    assert (high - low) / 4 == pytest.approx(np.std(np.arange(10)) / np.sqrt(10), rel=0.15)
