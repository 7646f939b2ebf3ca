"""Test a classifier in a folder: the classes, the probabilities, and the part of a pair that it reads."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.udfs.retrieval.onnx_files import write_classifier
from untold.udfs.retrieval.classifying import MOST_TOKENS, Classifier, find_classifier
from untold.udfs.retrieval.local_models import LocalModelFileError
from untold.udfs.stages import definition_of

WORDS = ["bees", "make", "honey", "water", "boils"]
LABELS = ["entailment", "neutral", "contradiction"]
SURE = exp(3) / (exp(3) + 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("classifier")
    write_classifier(place, WORDS, LABELS)
    return place


@pytest.fixture(scope="module")
def classifier(folder: Path) -> Classifier:
    return Classifier(find_classifier(str(folder)))


def test_the_model_is_about_a_kilobyte(folder: Path) -> None:
    assert (folder / "model.onnx").stat().st_size < 2048


def test_probabilities_are_the_softmax_of_the_logits(classifier: Classifier) -> None:
    told, untold = classifier.classify([("bees make honey", "bees honey"), ("bees make honey", "bees boils")])
    assert told is not None
    assert untold is not None
    assert told["entailment"] == pytest.approx(SURE)
    assert untold["contradiction"] == pytest.approx(SURE)
    assert sum(told.values()) == pytest.approx(1)


texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=12))
def test_a_pair_does_not_depend_on_the_other_pairs_of_a_batch(
    classifier: Classifier, pairs: list[tuple[str, str]]
) -> None:
    found = classifier.classify(pairs)
    assert found == [classifier.classify([pair])[0] for pair in pairs]
    told = [one is not None and one["entailment"] > 0.5 for one in found]
    assert told == [set(hypothesis.split()) <= set(premise.split()) for premise, hypothesis in pairs]


def test_only_the_premise_of_a_long_pair_is_cut(classifier: Classifier) -> None:
    filler = " ".join(["water"] * MOST_TOKENS)
    kept, cut, claim = classifier.classify(
        [(f"bees {filler}", "bees"), (f"{filler} bees", "bees"), ("bees", " ".join(["bees"] * (MOST_TOKENS - 4)))]
    )
    assert [one and one["entailment"] > 0.5 for one in (kept, cut, claim)] == [True, False, True]


def test_a_hypothesis_that_is_too_long_by_itself_has_no_probabilities(classifier: Classifier) -> None:
    long = " ".join(["bees"] * MOST_TOKENS)
    assert classifier.classify([("bees", "bees"), ("bees", long)])[1] is None


def test_a_model_of_two_classes_has_entailment_and_the_rest(tmp_path: Path) -> None:
    write_classifier(tmp_path, WORDS, ["ENTAILMENT", "not_entailment"])
    (one,) = Classifier(find_classifier(str(tmp_path))).classify([("bees", "honey")])
    assert one is not None
    assert set(one) == {"entailment", "neutral"}
    read = definition_of("classify_entailment").parse(json.dumps(one), {})
    assert read == {"relation": "neutral", "probability": one["entailment"], "certainty": one["neutral"]}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "cannot be read"),
        ("{}", "no id2label"),
        ("<html>", "no id2label"),
        ('{"id2label": {"1": "entailment"}}', "no id2label"),
        ('{"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}', "calls a class LABEL_0"),
        ('{"id2label": {"0": "neutral", "1": "contradiction"}}', "must have exactly one class entailment"),
    ],
)
def test_classes_that_are_not_named_are_one_clear_line(tmp_path: Path, config: str | None, said: str) -> None:
    write_classifier(tmp_path, WORDS, LABELS)
    (tmp_path / "config.json").unlink()
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(LocalModelFileError, match=rf"^{tmp_path}/config.json[^\n]*{said}[^\n]*$"):
        find_classifier(str(tmp_path))


@pytest.mark.parametrize(
    ("calibration", "logit"), [({"temperature": 1.5}, 2), ({"shift": -1}, 2), ({"temperature": 1.5, "shift": 0.5}, 2.5)]
)
def test_logits_are_divided_by_the_temperature_and_entailment_is_shifted(
    tmp_path: Path, calibration: dict[str, float], logit: float
) -> None:
    write_classifier(tmp_path, WORDS, LABELS)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **calibration}))
    found = find_classifier(str(tmp_path))
    assert found.calibration == calibration
    (stated,) = Classifier(found).classify([("bees", "bees")])
    assert stated is not None
    assert stated["entailment"] == pytest.approx(exp(logit) / (exp(logit) + 2))


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        *(
            (f'"{name}": {value}', f"{name} must be a finite number")
            for name in ("temperature", "shift")
            for value in ('"1.5"', "true", "null", "Infinity", "NaN")
        ),
        ('"temperature": 0', "temperature must be a positive number, not 0"),
        ('"temperature": -1', "temperature must be a positive number, not -1"),
    ],
)
def test_a_wrong_calibration_is_one_clear_line(tmp_path: Path, calibration: str, message: str) -> None:
    write_classifier(tmp_path, WORDS, LABELS)
    (tmp_path / "config.json").write_text(f'{{"id2label": {{"0": "entailment"}}, {calibration}}}')
    with pytest.raises(LocalModelFileError, match=message):
        find_classifier(str(tmp_path))


def test_a_model_with_other_classes_than_its_config_is_one_clear_line(tmp_path: Path) -> None:
    write_classifier(tmp_path, WORDS, LABELS)
    (tmp_path / "config.json").write_text('{"id2label": {"0": "entailment", "1": "neutral"}}')
    with pytest.raises(LocalModelFileError, match="2 classes"):
        Classifier(find_classifier(str(tmp_path))).classify([("bees", "bees")])
