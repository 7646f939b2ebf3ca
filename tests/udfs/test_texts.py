"""Test the parts of texts in all scripts: words, tokens, ends of sentences, and characters outside the lines."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import assert_linear
from untold.udfs.recall.candidates import form_of, likeness
from untold.udfs.recall.fact_texts import Fact, negations_of, shown_form
from untold.udfs.recall.segmentation import sentences
from untold.udfs.texts import (
    TESTED_SCRIPTS,
    compatible,
    count_words,
    sentence_ends,
    split_words,
    tokens_in,
    with_breaks,
    without_struck,
)

# Two sentences, the first sentence in other words, and the number of words in the first sentence
LANGUAGES = {
    "Latin": ("Paris is a capital.", "Rome has seven hills.", "A capital is Paris.", 4),
    "Cyrillic": (
        "Москва является столицей России.",
        "Байкал очень глубокое озеро.",
        "Столицей России является Москва.",
        4,
    ),
    "Greek": ("Η Αθήνα είναι πρωτεύουσα.", "Το βουνό έχει χιόνι.", "Πρωτεύουσα είναι η Αθήνα.", 4),
    "Arabic": ("ما عاصمة فرنسا اليوم؟", "يحب الناس القهوة كثيرا.", "اليوم ما عاصمة فرنسا؟", 4),
    "Hebrew": ("ירושלים היא עיר הבירה.", "החתול ישן על הספה.", "עיר הבירה היא ירושלים.", 4),
    "Devanagari": ("दिल्ली भारत की राजधानी है।", "गंगा एक लंबी नदी थी।", "भारत की राजधानी दिल्ली है।", 5),
    "Hangul": ("서울은 한국의 수도이다.", "고양이는 소파에서 잔다.", "한국의 수도이다 서울은.", 3),
    "Han": ("北京是中国的首都。", "长江流入东海！", "中国的首都是北京。", 8),
    "Hiragana": ("とうきょうはにほんのしゅとです。", "ねこがねむる。", "にほんのしゅとはとうきょうです。", 15),
    "Katakana": ("東京タワーは赤い。", "ネコがいる。", "赤いのは東京タワー。", 6),
}


@pytest.mark.parametrize("script", LANGUAGES)
def test_sentences_end_with_and_without_a_space_behind_them(script: str) -> None:
    first, second, _, _ = LANGUAGES[script]
    between = "" if script in ("Han", "Hiragana", "Katakana") else " "
    assert list(sentences(first + between + second)) == [first, second]


@pytest.mark.parametrize("script", LANGUAGES)
def test_a_text_is_like_its_other_form_and_not_like_another(script: str) -> None:
    one, other, same = (form_of(Fact(shown_form(text))) for text in LANGUAGES[script][:3])
    assert likeness(one, same, 0.8)[0] >= 0.3 > likeness(one, other, 0.8)[0]


@pytest.mark.parametrize("script", LANGUAGES)
def test_words_are_counted(script: str) -> None:
    assert count_words(LANGUAGES[script][0]) == LANGUAGES[script][3]


def test_thai_has_no_ends_of_sentences_but_words() -> None:
    one, same = "กรุงเทพเป็นเมืองหลวงของไทย", "เมืองหลวงของไทยคือกรุงเทพ"
    forms = [form_of(Fact(text)) for text in (one, same, "ภูเขาไฟอยู่ในญี่ปุ่น")]
    assert likeness(forms[0], forms[1], 0.8)[0] >= 0.3 > likeness(forms[0], forms[2], 0.8)[0]
    assert 10 < count_words(one) < len(one)


def test_each_tested_script_is_tested() -> None:
    assert set(TESTED_SCRIPTS) == {*LANGUAGES, "Thai"}


@pytest.mark.parametrize(
    "text",
    [
        "他说：“我来了。”|然后他走了。",
        "真的吗？！|是的。",
        "「行きます。」と彼は言った。|彼は笑った。",
        "街は（大きい。）です。",
        "ہاں۔ |نہیں۔",
        "ሰላም። |ደህና።",
    ],
)
def test_quotations_and_brackets_end_with_their_sentence(text: str) -> None:
    plain, places = text.replace("|", ""), [place for place, sign in enumerate(text) if sign == "|"]
    cut_at = [len(plain[:end].rstrip()) for end in sentence_ends(plain) if end < len(plain)]
    assert cut_at == [len(plain[: place - number].rstrip()) for number, place in enumerate(places)]


def test_a_denial_is_not_a_repetition() -> None:
    for plain, denied in [
        ("他喜欢猫", "他不喜欢猫"),
        ("他は好きだ", "他は好きじゃない"),
        ("वह है", "वह नहीं है"),
        ("он идёт", "он не идёт"),
    ]:
        assert negations_of(plain) != negations_of(denied)


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Z", "S"])))
def test_what_has_no_accents_and_spaces_its_words_has_the_tokens_of_a_pattern(text: str) -> None:
    folded = compatible(text).casefold()
    plain = re.sub(
        r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\ua9e0-\uaaff\uf900-\ufaff\U00016fe0-\U0003ffff]",
        " ",
        folded,
    )
    if not re.search(r"[\u0300-\u1cff\u20d0-\u20ff\U00010000-\U000fffff]", plain):
        assert tokens_in(plain) == re.findall(r"\w+", plain)
        assert count_words(plain) == len(plain.split())


@given(st.text() | st.text("a 中ガーก็。“-", max_size=30))
def test_words_are_the_text(text: str) -> None:
    assert "".join(split_words(text)).rstrip(" ") == " ".join(text.split())
    assert count_words(text) == len(split_words(text))
    assert all(word.strip() for word in split_words(text))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r"They are:\n- a\n- b", "They are:\n- a\n- b"),
        (r"the capital\nof France", "the capital\nof France"),
        (r"a\r\nB", "a\nB"),
        (r"C:\new and D:\data\north", None),
        (r"$x \neq y$ and \nabla f", None),
        (r'print("a\nb") and `\n`', None),
        (r"a\\nb", None),
    ],
)
def test_an_escaped_line_break_is_a_line_break(text: str, read: str | None) -> None:
    assert with_breaks(text) == (text if read is None else read)


@pytest.mark.parametrize(
    ("text", "left"), [("~~a~~ b", "b"), ("~5 to ~10", None), ("~~~\ncode\n~~~", None), ("a ~~ b ~~ c", None)]
)
def test_what_is_struck_out_is_gone(text: str, left: str | None) -> None:
    assert without_struck(text) == (text if left is None else left)


@pytest.mark.parametrize(
    "part", ["⁵", "½", "₂", "5⁵½", "e\u0301\u0323", "。", "。」", "中 ", "กำ", "“", "~~a", r"\n", 'a"', "“中"]
)
def test_texts_of_one_sign_are_read_in_linear_time(part: str) -> None:
    def read(size: int) -> None:
        text = part * size
        for folded in (compatible(text), with_breaks(text), without_struck(text)):
            tokens_in(folded)
        count_words(text)
        list(sentence_ends(text))

    assert_linear(read, 16_000)
