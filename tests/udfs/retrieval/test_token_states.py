"""Compare BERTScore from token states with the cosines of all pairs of tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.udfs.retrieval.onnx_files import SPECIAL, write_lookup, write_tokenizer
from untold.udfs.retrieval.embedding import BERTSCORE, TokenScorer, find_model

WORDS = ["bees", "make", "honey", "water", "boils"]
STATES = np.random.default_rng(8).normal(size=(len(SPECIAL) + len(WORDS), 3)).astype(np.float32)
CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> TokenScorer:
    """Return a model in which the state of a word does not depend on its position."""
    folder = tmp_path_factory.mktemp("lookup")
    write_tokenizer(folder, WORDS)
    write_lookup(folder, STATES)
    return TokenScorer(find_model(str(folder)))


def ids(words: list[str]) -> list[int]:
    return [len(SPECIAL) + WORDS.index(word) for word in words]


def cosine(first: int, second: int) -> float:
    a, b = STATES[first].astype(float), STATES[second].astype(float)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@examples(60)
@given(st.lists(st.sampled_from(WORDS), max_size=6), st.lists(st.sampled_from(WORDS), max_size=6))
def test_each_word_finds_its_nearest_token_and_the_marks_have_no_weight(
    scorer: TokenScorer, response: list[str], reference: list[str]
) -> None:
    found = scorer.score(" ".join(response), " ".join(reference))
    if not (response and reference):
        assert dict(found) == dict.fromkeys(BERTSCORE, 0.0)
        return
    said, wanted = ids(response), ids(reference)
    precision = np.mean([max(cosine(one, other) for other in [CLS, *wanted, SEP]) for one in said])
    recall = np.mean([max(cosine(one, other) for other in [CLS, *said, SEP]) for one in wanted])
    f1 = 2 * precision * recall / (precision + recall)
    assert [found[name] for name in BERTSCORE] == pytest.approx([precision, recall, f1], abs=1e-6)


def test_no_more_than_512_tokens_are_read(scorer: TokenScorer) -> None:
    long = "bees " * 510
    assert scorer.score(long + "water", "honey") == scorer.score(long, "honey")


def test_the_embedded_model_prefers_a_paraphrase() -> None:
    minilm = TokenScorer(find_model("minilm"))
    told = "Honey is made by bees."
    near, far = (minilm.score(text, told)["bertscore_f1"] for text in ("Bees make honey.", "The lock was closed."))
    assert 1 > near > far
    assert dict(minilm.score(told, told)) == pytest.approx(dict.fromkeys(BERTSCORE, 1.0))
