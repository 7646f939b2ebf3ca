from __future__ import annotations

import json
import math
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.linear import assert_linear
from untold.jobs.tables import ALTERNATIVE
from untold.udfs.ratings import Digit, read_alternatives, weigh

Top = dict[str, float]
Tokens = list[tuple[str, Top]]
FIVES_AND_FOURS: Top = {"4": 0.6, "5": 0.3, "3": 0.1}


def chat(tokens: Tokens) -> dict[str, Any]:
    """Return probabilities as log-probabilities in the format of chat completions."""
    return {
        "content": [
            {"token": token, "logprob": math.log(top.get(token, 1.0)), "bytes": None, "top_logprobs": named(top)}
            for token, top in tokens
        ]
    }


def named(top: Top) -> list[dict[str, Any]]:
    return [{"token": token, "logprob": math.log(p)} for token, p in top.items()]


def legacy(tokens: Tokens) -> dict[str, Any]:
    """Return the same in the format of plain completions."""
    names = [token for token, _ in tokens]
    return {
        "tokens": names,
        "token_logprobs": [math.log(top.get(token, 1.0)) for token, top in tokens],
        "top_logprobs": [{name: math.log(p) for name, p in top.items()} or None for _, top in tokens],
        "text_offset": [0, *accumulate(map(len, names))][: len(names)],
    }


def rated(text: str, logprobs: Any) -> dict[int, float]:
    """Return the expected score at each digit with alternatives."""
    places = [place["offset"] for place in read_alternatives(text, logprobs) or []]
    row, weighted = weigh(
        {"r": [Digit(int(text[place]), place) for place in places]}, read_alternatives(text, logprobs)
    )
    assert weighted
    return dict(zip(places, row["r"], strict=True))


def only(text: str, logprobs: Any) -> float:
    [score] = rated(text, logprobs).values()
    return round(score, 6)


def at(offset: int, **top: float) -> dict[str, Any]:
    return {"offset": offset, "top": [{"token": name.strip("_"), "logprob": math.log(p)} for name, p in top.items()]}


def test_a_rating_is_its_expected_score() -> None:
    row, weighted = weigh({"ratings": [Digit(4, 7), Digit(1, 30)]}, [at(7, _4=0.5, _5=0.25), at(30, _1=0.9)])
    assert row == {"ratings": [pytest.approx((4 * 0.5 + 5 * 0.25) / 0.75), 1.0]}
    assert weighted


def test_digits_are_found_at_any_depth_and_all_else_stays() -> None:
    row = {"a": [{"text": "x", "c": Digit(2, 1)}, None], "b": Digit(5, 9), "n": 7, "t": "1"}
    weighed, weighted = weigh(row, [at(1, _2=0.5, _4=0.5), at(9, _5=1.0)])
    assert weighed == {"a": [{"text": "x", "c": pytest.approx(3.0)}, None], "b": 5.0, "n": 7, "t": "1"}
    assert weighted


@pytest.mark.parametrize(
    "alternatives",
    [
        None,
        [],
        [{"offset": 3, "top": None}],
        [at(2, _5=1.0)],
        [{"offset": 3, "top": [{"token": "x", "logprob": -0.1}]}],
        [{"offset": 3, "top": [{"token": "4", "logprob": -9999.0}]}],
        [{"offset": 3, "top": [{"token": "4", "logprob": None}, {"token": None, "logprob": -1.0}]}],
        [{"offset": 3, "top": [{"token": "4", "logprob": math.nan}, {"token": "5", "logprob": math.inf}]}],
    ],
)
def test_without_alternatives_a_rating_is_its_digit_and_the_row_is_not_weighted(alternatives: Any) -> None:
    assert weigh({"r": [Digit(4, 3)]}, alternatives) == ({"r": [4.0]}, False)


def test_a_row_is_weighted_only_if_every_digit_is() -> None:
    assert weigh({"r": [Digit(4, 3), Digit(2, 5)]}, [at(3, _5=1.0)]) == ({"r": [5.0, 2.0]}, False)
    assert weigh({"r": []}, None) == ({"r": []}, True)


def test_tiny_probabilities_weigh_next_to_nothing() -> None:
    top = [{"token": "4", "logprob": -0.2}, {"token": "1", "logprob": -9999.0}, {"token": "2", "logprob": -math.inf}]
    assert weigh({"r": Digit(4, 0)}, [{"offset": 0, "top": top}]) == ({"r": 4.0}, True)


@pytest.mark.parametrize("shape", [chat, legacy])
@pytest.mark.parametrize(
    "tokens",
    [
        [("[Relevance: ", {}), ("4", FIVES_AND_FOURS), ("]", {})],
        [("[Relevance", {}), (":", {}), (" 4", {" 4": 0.6, " 5": 0.3, " 3": 0.1}), ("]", {})],
        [("[Relevance:", {}), (" 4]", {" 4]": 0.6, " 5]": 0.3, " 3]": 0.1})],
        [("[Relevance:", {}), (" 4]", {" 4]": 0.6, " 5": 0.3, "3]": 0.1})],
        [("[Relevance", {}), (": 4", {": 4": 0.6, ": 5": 0.3, ": 3": 0.1}), ("]", {})],
        [("[Rel", {}), ("evance: 4]", {"evance: 4]": 0.6, "evance: 5]": 0.3, "evance: 3]": 0.1})],
        [("[Relevance: ", {}), ("4", {"4": 0.3, " 4": 0.3, "5": 0.3, "3": 0.1}), ("]", {}), ("", {})],
        [("[Relevance: ", {}), ("4", {**FIVES_AND_FOURS, "10": 1.0, "7": 1.0, "four": 1.0, "4.5": 1.0}), ("]", {})],
        [("[Relevance: ", {}), ("4", {**FIVES_AND_FOURS, "": 1.0, "\n": 1.0, "0": 1.0, "45": 1.0}), ("]", {})],
        [("[Relevance: ", {}), ("4", FIVES_AND_FOURS), ("]", {}), ("<|im_end|>", {})],
        [
            ("4", {"4": 1.0}),
            ("</think>", {}),
            ("\n\n[Relevance: ", {}),
            ("4", FIVES_AND_FOURS),
            ("]", {}),
            ("</s>", {}),
        ],
    ],
)
def test_the_digit_is_found_in_its_token(shape: Any, tokens: Tokens) -> None:
    assert only("[Relevance: 4]", shape(tokens)) == round(4 * 0.6 + 5 * 0.3 + 3 * 0.1, 6)


@pytest.mark.parametrize("shape", [chat, legacy])
@pytest.mark.parametrize(
    "pieces",
    [
        ["Ž", "i", "ž", "ka", " –", " 🙂", ": "],
        ["\ufffd", "\ufffd", "i", "ž", "ka", " \ufffd", "\ufffd", " \ufffd", "\ufffd", "\ufffd", ": "],
        ["\\xc5\\xbd", "i", "ž", "ka", " –", "bytes: \\xf0\\x9f", "bytes:\\x99\\x82", ": "],
        ["Ži", "žka", "▁–", "▁🙂", ":", "▁"],
        ["<0xC5>", "<0xBD>", "i", "žka", " –", " ", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", ": "],
    ],
)
def test_bytes_of_characters_do_not_move_the_digit(shape: Any, pieces: list[str]) -> None:
    logprobs = shape([*((piece, {}) for piece in pieces), ("4", FIVES_AND_FOURS)])
    assert only("Žižka – 🙂: 4", logprobs) == 4.2


@pytest.mark.parametrize("text", ["  [4]", "[4]  \n", "[4]\n\n", "[4"])
def test_white_space_and_a_cut_at_a_stop_string_do_not_move_the_digit(text: str) -> None:
    assert only(text, chat([(" [", {}), ("4", FIVES_AND_FOURS), ("]", {}), ("\n\n", {})])) == 4.2


def test_what_llama_cpp_answers_is_read() -> None:
    said = {"5": -0.44, "4": -1.47, "3": -2.61, "2": -3.29, "1": -4.17, "6": -8.49, "0": -9.9, " ": -11.43}
    top = [{"id": 20, "token": token, "bytes": list(token.encode()), "logprob": p} for token, p in said.items()]
    tokens = [
        "*",
        " 6",
        "0",
        " metres",
        " –",
        " Ž",
        "i",
        "ž",
        "ka",
        " [",
        "Re",
        "levance",
        ":",
        " ",
        "5",
        "]\n",
        "* ",
        "",
    ]
    entries = [{"id": 1, "token": each, "bytes": list(each.encode()), "logprob": -0.1} for each in tokens]
    logprobs = {"content": [entry | {"top_logprobs": top if entry["token"] == "5" else []} for entry in entries]}
    total = sum(math.exp(p) for token, p in said.items() if token in "12345")
    expected = sum(int(token) * math.exp(p) for token, p in said.items() if token in "12345") / total
    assert only("* 60 metres – Žižka [Relevance: 5]\n*", logprobs) == round(expected, 6)


def test_only_single_digits_of_the_scale_have_alternatives() -> None:
    text = "In 1912, 7 of 3 ate 0. [5]"
    logprobs = chat([(character, {character: 0.5, "2": 0.5}) for character in text])
    assert rated(text, logprobs) == {text.index("3"): 2.5, text.index("5"): 3.5}


def test_two_digits_in_one_token_keep_their_positions() -> None:
    logprobs = chat([("3/5", {"3/5": 0.5, "4/5": 0.25, "3/4": 0.25})])
    assert rated("3/5", logprobs) == {0: pytest.approx(10 / 3), 2: pytest.approx(14 / 3)}


def test_a_token_that_its_own_alternatives_leave_out_counts_too() -> None:
    logprobs = legacy([("4", {"5": 0.25})])
    logprobs["token_logprobs"] = [math.log(0.75)]
    assert only("4", logprobs) == 4.25


@pytest.mark.parametrize("top", [None, [], {}])
def test_a_probability_without_alternatives_is_not_a_weight(top: Any) -> None:
    assert read_alternatives("4", {"content": [{"token": "4", "logprob": -0.1, "top_logprobs": top}]}) is None
    assert read_alternatives("4", {"tokens": ["4"], "token_logprobs": [-0.1], "top_logprobs": [top]}) is None


@pytest.mark.parametrize(
    "tokens",
    [
        ["5"],
        ["[", "4"],
        ["The rating", " 4", "]"],
        ["a", "[", "5", "]"],
        ["[", "4", "]", " then ", "[", "4", "]", " and more"],
        [],
    ],
)
def test_tokens_of_another_text_have_no_alternatives(tokens: list[str]) -> None:
    assert read_alternatives("[4]", chat([(token, FIVES_AND_FOURS) for token in tokens])) is None


def test_what_is_read_fits_the_store() -> None:
    logprobs = chat([("4", {"4": 0.5, "\ud83d": 0.2, "5": 0.1})])
    alternatives = read_alternatives("4", logprobs)
    stored = pa.array([alternatives], pa.list_(ALTERNATIVE)).to_pylist()
    assert weigh({"r": Digit(4, 0)}, stored[0]) == ({"r": pytest.approx(4 + 1 / 6)}, True)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.sampled_from(["4", " 5", 10**400])
)
names = st.sampled_from(["content", "tokens", "token_logprobs", "top_logprobs", "token", "logprob", "bytes", "4", "5"])
hostile = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=25,
)


@examples(300)
@given(st.text("45 a\n]é", max_size=6), hostile, hostile)
def test_hostile_log_probabilities_never_raise_and_never_leave_the_scale(text: str, one: Any, other: Any) -> None:
    entries = [{"token": each, "logprob": one, "top_logprobs": other} for each in text]
    for logprobs in (one, {"content": one}, {"content": entries}, {"tokens": list(text), "top_logprobs": one}):
        alternatives = read_alternatives(text, logprobs)
        for place in alternatives or []:
            score, _ = weigh({"r": Digit(int(text[place["offset"]]), place["offset"])}, alternatives)
            assert 1 <= score["r"] <= 5


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 5, True, "0", None, 10**400, [], {}])
def test_invalid_log_probabilities_are_left_out(wrong: Any) -> None:
    top = [{"token": "4", "logprob": -0.5}, {"token": "1", "logprob": wrong}]
    assert only("4", {"content": [{"token": "4", "logprob": -0.5, "top_logprobs": top}]}) == 4


probabilities = st.dictionaries(st.sampled_from("12345"), st.floats(1e-6, 1.0), min_size=1)


@examples(200)
@given(st.data())
def test_any_tokenization_has_the_same_scores(data: st.DataObject) -> None:
    digits = data.draw(st.lists(st.tuples(st.sampled_from("12345"), probabilities), min_size=1, max_size=4))
    pieces = [(data.draw(st.text("ab [:]é–", min_size=1, max_size=5)), digit, top) for digit, top in digits]
    tokens: Tokens = []
    for words, digit, top in pieces:
        cut = data.draw(st.integers(0, len(words)))
        tail = data.draw(st.sampled_from(["", "]", " "]))
        tops = {f"{words[cut:]}{name}{tail}": p for name, p in {digit: 0.5, **top}.items()}
        tokens += [(words[:cut], {}), (f"{words[cut:]}{digit}{tail}", tops)]
    text = "".join(token for token, _ in tokens)
    expected = []
    for _, digit, top in pieces:
        all_of = {digit: 0.5, **top}
        expected.append(sum(int(name) * p for name, p in all_of.items()) / sum(all_of.values()))
    for logprobs in (chat(tokens), legacy(tokens)):
        assert list(rated(text, json.loads(json.dumps(logprobs))).values()) == pytest.approx(expected)


LENGTH = 32_000


@pytest.mark.parametrize("piece", ["4 ", "4", "a", " ", "é", "\ufffd", "<a>", "\\xff", "44 ", "[4]"])
def test_long_completions_are_read_in_linear_time(piece: str) -> None:
    top = [{"token": piece, "logprob": -0.1}, {"token": "5", "logprob": -2.0}]

    def read(length: int) -> None:
        text = piece * (length // len(piece))
        halves = [text[: length // 2], text[length // 2 :]]
        for tokens in ([piece] * (length // len(piece)), halves, [*halves, "</s>", *halves], ["b", text]):
            entries = [{"token": token, "logprob": -0.1, "top_logprobs": top} for token in tokens]
            weigh({"r": Digit(4, 0)}, read_alternatives(text, {"content": entries}))

    assert_linear(read, LENGTH)
