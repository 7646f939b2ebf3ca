"""The rules on K-QA (Manes et al. 2024): 399 statements that physicians found entailed by 50 answers, or not.

Answers are cut by sentences, and no coreference is resolved.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from untold.udfs.recall.candidates import MatchText, Thresholds, form_of, lexical_candidates
from untold.udfs.recall.concluding import share_common
from untold.udfs.recall.fact_texts import Fact, shown_form
from untold.udfs.recall.segmentation import cut, distinct_facts
from untold.udfs.retrieval.embedding import find_model, normalised, open_embedder

Sample = tuple[list[Fact], list[Fact], list[bool]]


@pytest.fixture(scope="module")
def samples(data: Path) -> list[Sample]:
    """Return the references, the generated facts, and the labels of the majority of the physicians."""
    return list(read(data / "k_qa" / "NLI_medical_annotator.csv"))


def read(path: Path) -> Iterator[Sample]:
    with path.open(encoding="utf-8", newline="") as file:
        for _, rows in groupby(csv.DictReader(file), key=lambda row: (row["Question"], row["llm_x"], row["answer"])):
            own = list(rows)
            references = [Fact(shown_form(row["claim"])) for row in own]
            generated = distinct_facts(cut(own[0]["answer"], "sentences", 10))
            yield references, generated, [row["majority_label"] == "Entailment" for row in own]


def forms(facts: list[Fact]) -> list[MatchText]:
    return [form_of(fact) for fact in facts]


def count(found: list[tuple[list[bool], list[bool]]]) -> tuple[int, int]:
    """Return the number of entailed references and the number of other references that a rule finds."""
    counts = Counter(label for flags, labels in found for flag, label in zip(flags, labels, strict=True) if flag)
    return counts[True], counts[False]


def test_the_data_is_as_published(samples: list[Sample]) -> None:
    labels = [label for _, _, labels in samples for label in labels]
    assert (len(samples), len(labels), sum(labels)) == (50, 399, 153)


def test_substrings_recall_eighteen(samples: list[Sample]) -> None:
    found = [
        (share_common([one.text for one in forms(references)], [one.text for one in forms(generated)]), labels)
        for references, generated, labels in samples
    ]
    right, wrong = count(found)
    assert (right, wrong) == (15, 3)
    precision, recall = right / 18, right / 153
    assert (round(precision, 4), round(recall, 4)) == (0.8333, 0.0980)
    assert round(2 * precision * recall / (precision + recall), 4) == 0.1754


def test_words_find_candidates_for_few(samples: list[Sample]) -> None:
    found = [
        ([bool(one) for one in lexical_candidates(forms(references), forms(generated), Thresholds())], labels)
        for references, generated, labels in samples
    ]
    assert count(found) == (24, 11)


@pytest.mark.slow
def test_vectors_find_candidates_for_most(samples: list[Sample]) -> None:
    embedder = open_embedder(find_model("minilm"), "mean", 256)
    found = []
    for references, generated, labels in samples:
        first, second = (normalised(embedder.embed([fact.text for fact in side])) for side in (references, generated))
        found.append(((np.max(first @ second.T, axis=1) >= 0.5).tolist(), labels))
    right, wrong = count(found)
    assert abs(right - 151) <= 2
    assert abs(wrong - 201) <= 2
