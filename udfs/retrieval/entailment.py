"""What a classifier that runs within a task says of a premise and a hypothesis (natural language inference)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from untold.udfs.llm.keys import Stage
from untold.udfs.retrieval.local_models import (
    ON_PROCESSORS,
    LocalModelFileError,
    ModelFiles,
    OnnxModel,
    check_files,
    find_in_folder,
)

if TYPE_CHECKING:
    from tokenizers import Encoding

CONFIG = "config.json"
TOO_LONG = "the hypothesis alone is too long"
# Classifiers of the kind were trained on pairs of so many tokens
MOST_TOKENS = 512
CLASSES = "entailment, contradiction, neutral"
# What models call the classes, by the relations that they are; two-class models know entailment and all else
_RELATIONS = {
    "entailment": "entailment",
    "contradiction": "contradiction",
    "neutral": "neutral",
    "not_entailment": "neutral",
    "non_entailment": "neutral",
}


@dataclass(frozen=True)
class ClassifierFiles:
    """A classifier's model and tokenizer, and by the number of each class the relation that it is."""

    files: ModelFiles
    relations: tuple[str, ...]


def find_classifier(folder: str) -> ClassifierFiles:
    """The classifier of a folder. Raises LocalModelFileError where a file is missing or does not name the classes."""
    files = find_in_folder(folder)
    path = Path(files.model).with_name(CONFIG)
    try:
        named = json.loads(path.read_text(encoding="utf-8"))["id2label"]
        labels = [str(named[str(number)]) for number in range(len(named))]
    except OSError as error:
        raise LocalModelFileError(
            f"{path} cannot be read: {error.strerror}; it names the classes of the model"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise LocalModelFileError(f"{path} has no id2label that names the classes 0, 1, ... of the model") from error
    return ClassifierFiles(files, _relations_of(labels, path))


def _relations_of(labels: Sequence[str], path: Path) -> tuple[str, ...]:
    """The relation of each label. Raises LocalModelFileError for `LABEL_0` and its like."""
    try:
        return relations_of(labels)
    except ValueError as error:
        raise LocalModelFileError(f"{path}: id2label {error}; call the classes {CLASSES}") from None


def relations_of(labels: Sequence[str]) -> tuple[str, ...]:
    """The relation of each class by its label. Raises ValueError, which says what the labels do, for `LABEL_0`."""
    found = [relation_of(label) for label in labels]
    if None in found:
        raise ValueError(f"calls a class {labels[found.index(None)]}")
    if found.count("entailment") != 1:
        raise ValueError("names no class entailment, or several")
    return tuple(filter(None, found))


def relation_of(label: str) -> str | None:
    """The relation that models call so.

    >>> relation_of("NOT ENTAILMENT"), relation_of("LABEL_0")
    ('neutral', None)
    """
    return _RELATIONS.get(label.strip().casefold().replace("-", "_").replace(" ", "_"))


class Classifier:
    """Gives pairs of texts the probabilities of their relation, by one thread; batch and single give the same bits."""

    def __init__(self, found: ClassifierFiles, provider: str = ON_PROCESSORS) -> None:
        # Of the premise alone something is cut: a claim without its end is another claim
        self._model = OnnxModel(found.files, MOST_TOKENS, truncate="only_first", provider=provider)
        self._relations, self._path = found.relations, found.files.model

    def classify(self, pairs: Sequence[tuple[str, str]]) -> list[Mapping[str, float] | None]:
        """For each (premise, hypothesis) its probabilities by relation; None where the hypothesis alone is too long."""
        encodings = [self._encode(pair) for pair in pairs]
        places = [place for place, encoding in enumerate(encodings) if encoding is not None]
        found: list[Mapping[str, float] | None] = [None] * len(pairs)
        for group, logits in self._model.run([one for one in encodings if one is not None]):
            if logits.ndim != 2 or logits.shape[1] != len(self._relations):
                raise LocalModelFileError(f"{self._path} gives no numbers [pairs, {len(self._relations)} classes]")
            for place, row in zip(group, _softmax(logits), strict=True):
                found[places[place]] = self._by_relation(row)
        return found

    def _encode(self, pair: tuple[str, str]) -> Encoding | None:
        """The tokens of a pair, None where it cannot be cut to what the model takes."""
        try:
            return self._model.tokenizer.encode(*pair)
        except Exception as error:
            # The package's bare exception for a second text that leaves no room for the first
            if "truncat" in str(error).lower():
                return None
            raise

    def _by_relation(self, row: NDArray[np.float64]) -> Mapping[str, float]:
        sums: dict[str, float] = {}
        for relation, probability in zip(self._relations, row.tolist(), strict=True):
            sums[relation] = sums.get(relation, 0.0) + probability
        return sums


def _softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Rows that add up to 1, in double precision; less their largest, so that no exponential overflows."""
    exact = logits.astype(np.float64)
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def find_for(stage: Stage) -> ClassifierFiles:
    """The classifier of a stage, on a worker. Raises LocalModelFileError where it is not that of the stage's digest."""
    found = find_classifier(stage.model)
    check_files(found.files, stage)
    return found


@lru_cache(maxsize=1)
def open_classifier(found: ClassifierFiles) -> Classifier:
    """A classifier that a worker process keeps, so that its next task opens none."""
    return Classifier(found)
