"""BERTScore by the token states of a local embedding model: how well the tokens of two texts find each other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from untold.udfs.retrieval.local_models import ModelFiles, OnnxModel

BERTSCORE = ("bertscore_precision", "bertscore_recall", "bertscore_f1")
MAX_TOKENS = 512  # what BERT's positions end at; longer texts are cut
# Texts whose states are kept: the reference of one query is that of all its responses
KEPT_TEXTS = 32
States = tuple[NDArray[np.float64], NDArray[np.bool_]]


class TokenScorer:
    """BERTScore of pairs of texts, by one thread. Raises LocalModelFileError for files that are no such model.

    Zhang et al. 2020 with equal weights, without rescaling: precision is the mean over the response's tokens of the
    largest cosine with any of the reference's, recall the same the other way around, F1 their harmonic mean. [CLS] and
    [SEP] are matched to and have no weight, as in the authors' code.
    """

    def __init__(self, files: ModelFiles) -> None:
        self._model = OnnxModel(files, MAX_TOKENS, truncate="longest_first")
        self._kept: OrderedDict[str, States] = OrderedDict()

    def score(self, response: str, reference: str) -> Mapping[str, float]:
        """By name of `BERTSCORE`, from -1 to 1; 0 where a text has no token of its own."""
        return dict(zip(BERTSCORE, match_states(self._states(response), self._states(reference)), strict=True))

    def _states(self, text: str) -> States:
        """The tokens' states as rows of length 1, and which of them are tokens of the text."""
        if text in self._kept:
            self._kept.move_to_end(text)
            return self._kept[text]
        encoding = self._model.tokenizer.encode(text)
        (_, states), *_ = self._model.run([encoding])
        rows = states[0].astype(np.float64)
        # A state of zeros has no direction, and a cosine of 0 with everything
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        own = np.array(encoding.special_tokens_mask) == 0
        self._kept[text] = rows, own
        if len(self._kept) > KEPT_TEXTS:
            self._kept.popitem(last=False)
        return rows, own


def match_states(response: States, reference: States) -> tuple[float, float, float]:
    """Precision, recall and F1 of two texts, given their states float64[tokens, dimension] and which have weight."""
    (states, own), (others, theirs) = response, reference
    if not (own.any() and theirs.any()):
        return 0.0, 0.0, 0.0
    cosines = states @ others.T
    precision, recall = float(cosines.max(axis=1)[own].mean()), float(cosines.max(axis=0)[theirs].mean())
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both else 0.0
