"""Compare the chunks of words with a simple loop for Unicode texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.retrieval.chunks import chunk_text
from untold.udfs.texts import count_words


def plain_loop(text: str, words: int, overlap: int) -> list[str]:
    found, chunks, start = text.split(), [], 0
    while found:
        chunks.append(" ".join(found[start : start + words]))
        if start + words >= len(found):
            break
        start += words - overlap
    return chunks


SIZES = st.integers(1, 9).flatmap(lambda words: st.tuples(st.just(words), st.integers(0, words - 1)))


@given(st.text(st.sampled_from("aé\u00a0 \u3000\n\u200b\x1cд\U0001f600")), SIZES)
def test_chunks_equal_a_simple_loop(text: str, sizes: tuple[int, int]) -> None:
    assert list(chunk_text(text, *sizes)) == plain_loop(text, *sizes)


@pytest.mark.parametrize(
    ("words", "chunks"), [(0, 0), (1, 1), (32, 1), (128, 1), (129, 2), (224, 2), (225, 3), (320, 3), (321, 4)]
)
def test_the_number_of_chunks(words: int, chunks: int) -> None:
    """The number is 1 for up to 128 words, and otherwise 1 + ceil((words - 128) / 96)."""
    assert len(list(chunk_text("word " * words, 128, 32))) == chunks


@given(st.text(st.sampled_from("aé \n中京ガー。“(")), SIZES)
def test_chunks_of_scripts_without_spaces_are_pieces_of_the_text(text: str, sizes: tuple[int, int]) -> None:
    plain, chunks = " ".join(text.split()), list(chunk_text(text, *sizes))
    assert all(chunk in plain and count_words(chunk) == sizes[0] for chunk in chunks[:-1])
    assert [sign for sign in "".join(chunk_text(text, sizes[0], 0)) if sign != " "] == [
        sign for sign in plain if sign != " "
    ]
    assert not chunks or plain.endswith(chunks[-1])


def test_a_long_chinese_text_is_many_chunks() -> None:
    chunks = list(chunk_text("的" * 24_000, 128, 32))
    assert len(chunks) == 250
    assert {len(chunk) for chunk in chunks} == {128, 24_000 - 249 * 96}


def test_every_word_is_in_a_chunk_and_chunks_overlap() -> None:
    text = " ".join(map(str, range(300)))
    first, second, *_ = chunks = list(chunk_text(text, 128, 32))
    assert first.split()[-32:] == second.split()[:32]
    assert set(" ".join(chunks).split()) == set(text.split())
