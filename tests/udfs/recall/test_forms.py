"""Test the two forms of a fact: the form in requests and the form for the comparison of texts."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from untold.udfs.recall.fact_texts import match_form, negations_of, numbers_of, shown_form, tokens_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("“Café” — 1963", '"Café" - 1963'),
        ("Cafe\u0301", "Café"),
        ("‘it’s’ ‚‛ ′ ` ´", "'it's' '' ' ' '"),
        ("„a‟ «b» ″", '"a" "b" "'),
        ("a‐b‑c‒d–e—f―g−h", "a-b-c-d-e-f-g-h"),
        ("【Paris】", "[Paris]"),
        ("a\u200bb\ufeff\x00c\xad", "abc"),
        ("\t a \xa0\u3000 b\r\nc ", "a b c"),
        ("ﬁlm Ⅳ ８½", "film IV 8 1/2"),
        ("10⁵ m⁻² of 6.02×10²³", "10^5 m^-2 of 6.02×10^23"),
        ("½ cup, 2⅓, ½½, 1⁄2, ³⁄₄", "1/2 cup, 2 1/3, 1/2 1/2, 1/2, 3/4"),
        ("H₂O, 10₂, log₂8, Ca²⁺, x²3", "H2O, 10_2, log2 8, Ca^2+, x^2 3"),
        ("2ⁿ, 2ⁿᵈ, 4ᵗʰ, 5㎡, 5㎞", "2^n, 2nd, 4th, 5m^2, 5km"),
        ("\x00", ""),
    ],
)
def test_what_is_shown_has_plain_signs_and_single_spaces(text: str, shown: str) -> None:
    assert shown_form(text) == shown


@pytest.mark.parametrize(
    ("shown", "match"),
    [
        ("The Harbor.", "the harbor"),
        ('"The Harbor".', "the harbor"),
        ("'\"Straße!?\" ;', ", "strasse"),
        ('"a" and "b"', 'a" and "b'),
        ('say "b"', 'say "b"'),
        ('"', '"'),
        ("''", ""),
        ("...", ""),
        ("No. 1", "no. 1"),
        ("d'", "d'"),
        ("東京です。", "東京です"),
        ("दिल्ली है।", "दिल्ली है"),
    ],
)
def test_what_is_matched_has_no_outer_quotes_and_final_signs(shown: str, match: str) -> None:
    assert match_form(shown) == match


def plain_match(text: str) -> str:
    """Apply the rules of the definition until the text does not change."""
    text = text.casefold()
    while True:
        before = text
        text = text.strip()
        if text and text[-1] in ".;:,!?":
            text = text[:-1]
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
        if text == before:
            return text


@given(st.text(alphabet="aB'\". ,!?:;"))
def test_the_match_form_is_stable(text: str) -> None:
    assert match_form(text) == plain_match(text)


def in_line(text: str) -> str:
    """Replace the characters that NFKC would join with their neighbors.

    The cases above contain texts with these characters.
    """
    assume(not any("<super>" in kind or "<sub>" in kind or "<fraction>" in kind for kind in map(deep, text)))
    return text.translate({ord("⁄"): "/", ord("∕"): "/"})


def deep(sign: str) -> str:
    """Return the kinds of decomposition of a character and its parts."""
    kind, *parts = unicodedata.decomposition(sign).split() or [""]
    return kind + "".join(deep(chr(int(part, 16))) for part in parts)


def plain_shown(text: str) -> str:
    """Apply the rules of the definition to each character."""
    marks = {"'": "‘’‚‛′`´", '"': "“”„‟″«»", "-": "‐‑‒–—―−", "[": "【", "]": "】"}
    plain = {sign: target for target, signs in marks.items() for sign in signs}
    mapped = unicodedata.normalize("NFKC", in_line("".join(plain.get(sign, sign) for sign in text)))
    kept = [sign for sign in mapped if sign.isspace() or unicodedata.category(sign) not in ("Cc", "Cf")]
    return " ".join("".join(kept).split())


@given(st.text() | st.text(st.characters(categories=["Mn", "Lu", "Cf", "Cc", "Zs", "Pd"])))
def test_any_text_has_its_form(text: str) -> None:
    assert shown_form(text) == plain_shown(text)
    assert match_form(shown_form(text)) == plain_match(plain_shown(text))


@given(st.lists(st.sampled_from("a\u0301\u0323\u0344\u0958é각 "), max_size=40).map(lambda some: 50 * "".join(some)))
def test_accents_in_any_order_equal_nfkc(text: str) -> None:
    assert shown_form(text) == plain_shown(text)


def test_a_text_of_many_accents_takes_linear_time() -> None:
    # For a million accents, the NFKC function alone would need half an hour
    form = shown_form("e" + "\u0301\u0323" * 500_000)
    assert form.startswith("ẹ\u0323")
    assert len(form) == 1_000_000


def test_tokens_numbers_and_negations() -> None:
    match = match_form("In 1962 the B-52 wasn't fuelled; nobody cannot say it never was not.")
    assert tokens_of(match) >= {"in", "1962", "b", "52", "wasn", "t", "fuelled"}
    assert numbers_of(match) == {"1962", "52"}
    assert negations_of(match) == {"n't": 1, "cannot": 1, "never": 1, "not": 1}
