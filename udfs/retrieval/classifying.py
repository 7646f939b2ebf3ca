"""Classify pairs of texts by a local model: entailment, contradiction or neutral."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.local_models import (
    JUDGE,
    MINILM,
    MODEL,
    ON_PROCESSORS,
    TOKENIZER,
    LocalModelFileError,
    ModelFiles,
    OnnxModel,
    check_files,
    find_in_folder,
    hashed_files,
)

if TYPE_CHECKING:
    from tokenizers import Encoding

CONFIG = "config.json"
TOO_LONG = "the hypothesis alone is too long"
# The limit of the training pairs of common classifiers
MOST_TOKENS = 512
CLASSES = "entailment, contradiction, neutral"
# Relations by the class names of models. A model with two classes separates entailment from the rest
_RELATIONS = {
    "entailment": "entailment",
    "contradiction": "contradiction",
    "neutral": "neutral",
    "not_entailment": "neutral",
    "non_entailment": "neutral",
}


@dataclass(frozen=True)
class ClassifierFiles:
    """Files of a classifier, the relation of each class by its number, and the calibration of its logits.

    The logits are divided by `temperature`. Then `shift` is added to the logit of entailment.
    """

    files: ModelFiles
    relations: tuple[str, ...]
    temperature: float = 1.0
    shift: float = 0.0

    @property
    def calibration(self) -> dict[str, float]:
        """Return the numbers that change the logits, by name."""
        numbers = {"temperature": (self.temperature, 1.0), "shift": (self.shift, 0.0)}
        return {name: number for name, (number, unchanged) in numbers.items() if number != unchanged}


def find_classifier(name: str) -> ClassifierFiles:
    """Return the classifier of a folder, or the package's own for the name `judge`.

    Raises LocalModelFileError if a file is missing, or if config.json does not name the classes.
    """
    files = _find_judge() if name == JUDGE else find_in_folder(name)
    path = Path(files.model).with_name(CONFIG)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        named = config["id2label"]
        labels = [str(named[str(number)]) for number in range(len(named))]
    except OSError as error:
        raise LocalModelFileError(
            f"{path}, which lists the classes of the model, cannot be read ({error.strerror})"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise LocalModelFileError(f"{path} has no id2label that names the classes 0, 1, ... of the model") from error
    temperature, shift = _number(config, path, "temperature", 1.0), _number(config, path, "shift", 0.0)
    if temperature <= 0:
        raise LocalModelFileError(f"{path}: temperature must be a positive number, not {temperature:g}")
    try:
        relations = relations_of(labels)
    except ValueError as error:
        raise LocalModelFileError(f"{path}: id2label {error}. Use the class names {CLASSES}") from None
    return ClassifierFiles(files, relations, temperature, shift)


def _find_judge() -> ModelFiles:
    """Return the files of the judge. It has the tokenizer of the embedding model that it was trained from."""
    folder = resources.files("untold.conf")
    model, tokenizer = (Path(str(folder.joinpath(*names))) for names in ((JUDGE, MODEL), (MINILM, TOKENIZER)))
    if not model.is_file():
        raise LocalModelFileError(f"the model of the judge is missing: no file {model}. Install untold again")
    return hashed_files(model, tokenizer)


def _number(config: Mapping[str, Any], path: Path, name: str, default: float) -> float:
    """Return an optional number of a config.json. Raises LocalModelFileError unless it is finite."""
    number = config.get(name, default)
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise LocalModelFileError(f"{path}: {name} must be a finite number, not {number!r}")
    return float(number)


def relations_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the relation of each label. Raises ValueError for unknown labels such as `LABEL_0`."""
    found = [relation_of(label) for label in labels]
    if None in found:
        raise ValueError(f"calls a class {labels[found.index(None)]}")
    if found.count("entailment") != 1:
        raise ValueError("must have exactly one class entailment")
    return tuple(filter(None, found))


def relation_of(label: str) -> str | None:
    """Return the relation of a label, None if the label is unknown.

    >>> relation_of("NOT ENTAILMENT"), relation_of("LABEL_0")
    ('neutral', None)
    """
    return _RELATIONS.get(label.strip().casefold().replace("-", "_").replace(" ", "_"))


class Classifier:
    """Compute the probabilities of each relation for pairs of texts, on one thread.

    The probabilities of a pair have the same bits in every batch.
    """

    def __init__(self, found: ClassifierFiles, provider: str = ON_PROCESSORS) -> None:
        # Truncation shortens only the premise: a claim without its end is another claim
        self._model = OnnxModel(found.files, MOST_TOKENS, truncate="only_first", provider=provider)
        self._found = found

    def classify(self, pairs: Sequence[tuple[str, str]]) -> list[Mapping[str, float] | None]:
        """Return the probabilities by relation of each (premise, hypothesis), None if the hypothesis is too long."""
        encodings = [self._encode(pair) for pair in pairs]
        places = [place for place, encoding in enumerate(encodings) if encoding is not None]
        found: list[Mapping[str, float] | None] = [None] * len(pairs)
        for group, logits in self._model.run([one for one in encodings if one is not None]):
            if logits.ndim != 2 or logits.shape[1] != len(self._found.relations):
                raise LocalModelFileError(
                    f"{self._found.files.model} must return numbers [pairs, {len(self._found.relations)} classes]"
                )
            for place, row in zip(group, self._probabilities(logits), strict=True):
                found[places[place]] = self._by_relation(row)
        return found

    def _encode(self, pair: tuple[str, str]) -> Encoding | None:
        """Return the tokens of a pair, None if no truncation makes it fit."""
        try:
            return self._model.tokenizer.encode(*pair)
        except Exception as error:
            # The package raises bare `Exception` if the second text leaves no room for the first
            if "truncat" in str(error).lower():
                return None
            raise

    def _probabilities(self, logits: NDArray[Any]) -> NDArray[np.float64]:
        """Return the calibrated probabilities [pairs, classes] in double precision."""
        exact = logits.astype(np.float64) / self._found.temperature
        exact[:, self._found.relations.index("entailment")] += self._found.shift
        # The largest logit is subtracted to avoid an overflow
        powers = np.exp(exact - exact.max(axis=1, keepdims=True))
        shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
        return shares

    def _by_relation(self, row: NDArray[np.float64]) -> Mapping[str, float]:
        sums: dict[str, float] = {}
        for relation, probability in zip(self._found.relations, row.tolist(), strict=True):
            sums[relation] = sums.get(relation, 0.0) + probability
        return sums


def find_for(stage: Stage) -> ClassifierFiles:
    """Return the classifier of a stage on a worker. Raises LocalModelFileError if its digest is not the stage's."""
    found = find_classifier(stage.model)
    check_files(found.files, stage)
    return found


@lru_cache(maxsize=1)
def open_classifier(found: ClassifierFiles) -> Classifier:
    """Return a classifier that the worker process keeps for its next task."""
    return Classifier(found)
