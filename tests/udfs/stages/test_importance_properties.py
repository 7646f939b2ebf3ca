from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import assert_linear
from tests.udfs.stages.importance_read import IMPORTANCE, covering, facts, ratings, verdict
from untold.udfs.ratings import Digit, weigh
from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.importance import CHECK_COVERAGE, EXTRACT_FACTS, RATE_IMPORTANCE, VERDICTS, VERIFY_CLAIM

characters = st.one_of(
    st.sampled_from("[](){}*-•`_#:.,|\"' 195aéA中"),
    st.characters(exclude_characters="\n", exclude_categories=["Cs", "Cc"]),
)
# The words around a text are not part of a list. The text has single spaces, because lines are joined with a space
texts = (
    st.text(characters, max_size=40)
    .filter(lambda text: "\\n" not in text and "~~" not in text)  # a line break and deleted text in a list
    .map(lambda text: " ".join(["It says", *text.split(), "so"]))
)
bullets = st.sampled_from(["- ", "* ", "• ", "  - ", "1. ", "(2) ", ""])
ends = st.sampled_from(["\n", "\r\n", "\n\n", " \n"])
points = st.integers(1, 5)
numbers = st.integers(1, 9)
frames = st.sampled_from(
    ["{}", "```json\n{}\n```", "Here it is:\n\n{}\n\nNote: all done.", "<think>[1]</think>{}<|im_end|>"]
)


@given(st.lists(texts, min_size=1, max_size=6), bullets, ends)
def test_facts_in_the_form_are_read_back(written: list[str], bullet: str, end: str) -> None:
    # The text is in the first person, so that an `I` among the characters is not treated as a remark
    assert facts(end.join(bullet + text for text in written), text="I say so") == written


def as_list(objects: list[dict[str, Any]]) -> str:
    return json.dumps(objects)


def as_lines(objects: list[dict[str, Any]]) -> str:
    return "\n".join(f"- {json.dumps(one)}" for one in objects)


def as_mapping(objects: list[dict[str, Any]]) -> str:
    return json.dumps({str(one["id"]): {key: one[key] for key in one if key != "id"} for one in objects}, indent=1)


def as_table(objects: list[dict[str, Any]]) -> str:
    rows = "\n".join(f"| {one['id']} | {one['relevance']} | {one['salience']} |" for one in objects)
    return f"| id | relevance | salience |\n|---|---|---|\n{rows}"


@given(
    st.lists(st.tuples(points, points), min_size=1, max_size=12),
    st.sampled_from([as_list, as_lines, as_mapping, as_table]),
    st.data(),
)
def test_ratings_in_any_form_and_order_are_read_back(
    written: list[tuple[int, int]], form: Any, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([int, str, "fact {}".format, "F{}".format]))
    objects = [{"id": name(n), "relevance": one, "salience": two} for n, (one, two) in enumerate(written, start=1)]
    strangers = [
        {"id": name(len(written) + more), "relevance": 9, "salience": 1}
        for more in range(1, data.draw(st.integers(1, 3)))
    ]
    completion = data.draw(frames).replace("{}", form(data.draw(st.permutations([*objects, *strangers]))))
    assert ratings(completion, [f"text {n}" for n in range(len(written))]) == written


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["relevance", "salience"]), st.integers(0, 6)), max_size=14)
)
def test_ratings_are_read_only_if_each_fact_has_one_value_per_scale(
    said: list[tuple[int, str, int]],
) -> None:
    """The oracle uses objects with one rating each."""
    found: dict[tuple[int, str], set[int]] = {}
    for fact, scale, rating in said:
        found.setdefault((fact, scale), set()).add(rating)
    wanted = [[found.get((fact, scale), set()) for scale in ("relevance", "salience")] for fact in (1, 2)]
    completion = "\n".join(json.dumps({"id": fact, scale: rating}) for fact, scale, rating in said)
    if all(len(values) == 1 and values <= {*range(1, 6)} for pair in wanted for values in pair):
        assert ratings(completion) == [(one.pop(), two.pop()) for one, two in wanted]
    else:
        with pytest.raises(Unparsable):
            ratings(completion)


@given(st.lists(st.tuples(points, points, points, points), min_size=1, max_size=8), frames)
def test_every_rating_is_the_expected_score_at_its_own_digit(
    written: list[tuple[int, int, int, int]], frame: str
) -> None:
    """Half of the probability is on the digit in the text and half on another digit. Only the positions differ."""
    objects = [
        f'{{"id": {n}, "relevance": {one}, "salience": {two}}}' for n, (one, two, *_) in enumerate(written, start=1)
    ]
    completion = frame.replace("{}", "[" + ", ".join(objects) + "]")
    row = RATE_IMPORTANCE.parse(completion, {"query": "q", "facts": [f"text {n}" for n in range(len(written))]})
    places = [digit.offset for scale in ("relevance", "salience") for digit in row[scale]]
    others = [each[2] for each in written] + [each[3] for each in written]
    alternatives = [
        {
            "offset": place,
            "top": [
                {"token": completion[place], "logprob": math.log(0.5)},
                {"token": str(other), "logprob": math.log(0.5)},
            ],
        }
        for place, other in zip(places, others, strict=True)
    ]
    found, weighted = weigh(row, alternatives)
    assert weighted
    assert found["relevance"] == pytest.approx([(one + other) / 2 for one, _, other, _ in written])
    assert found["salience"] == pytest.approx([(two + other) / 2 for _, two, _, other in written])


@given(
    st.lists(st.tuples(st.booleans(), st.lists(numbers, max_size=5)), min_size=1, max_size=3),
    st.integers(1, 7),
    bullets,
    frames,
)
def test_covered_facts_in_the_form_are_read_back(
    written: list[tuple[bool, list[int]]], many: int, bullet: str, frame: str
) -> None:
    """The oracle drops unknown numbers, returns one judgement, and requires a claim for a covered fact.

    If a completion has claims but also states that no claim covers the fact, it is a contradiction.
    """
    judged = {(covered, tuple(sorted({n for n in said if covered and 1 <= n <= many}))) for covered, said in written}
    lines = [
        json.dumps({"label": "COVERED" if yes else "NOT_COVERED", "evidence_claim_ids": said}) for yes, said in written
    ]
    completion = frame.replace("{}", "\n".join(bullet + line for line in lines))
    claims = [f"text {n}" for n in range(many)]
    contradicted = any(1 <= n <= many for covered, said in written for n in said if not covered)
    if len(judged) == 1 and judged != {(True, ())} and not contradicted:
        assert covering(completion, claims) == list(judged.pop()[1])
    else:
        with pytest.raises(Unparsable):
            covering(completion, claims)


@given(
    st.sampled_from(VERDICTS),
    st.sampled_from([str, str.upper, str.capitalize, str.title]),
    st.sampled_from([" ", "_", "-", "", "  "]),
    st.sampled_from(["{}", "**{}**", "Label: {}", '{{"label": "{}"}}', "`{}`.", "- {}", "Classification: **{}**"]),
    st.text(st.sampled_from("abc .\n"), max_size=20),
)
def test_a_verdict_in_any_spelling_is_read(label: str, case: Any, gap: str, form: str, after: str) -> None:
    said = case(label.replace("_", gap))
    assert verdict(f"{form.format(said)}\n\n{after}") == label
    # The result is never the word `supported` inside the label
    assert verdict(form.format(case(f"not{gap}supported"))) == "not_supported"


pieces = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["\n", "\n\n", "- ", "* ", "1. ", ": ", "A is b.", "Fact 1: ", "None", "```", "---", "**", "| ", "|---|\n"]
    ),
    st.sampled_from(
        ['{"id": ', ', "relevance": ', ', "salience": ', "4", "2", "}", "{", "[", "]", '"', '{"1": {', "}, "]
    ),
    st.sampled_from(
        ['{"label": "', "COVERED", "NOT_", "not covered", '", "evidence_claim_ids": [', "]}", "claim 1", "1, 2"]
    ),
    st.sampled_from(
        ["supported", "not ", "contradicted", "NOT_SUPPORTED", "neither ", " nor ", "Label: ", "?", "supports"]
    ),
    st.sampled_from(
        ["<think>", "</think>", "<fact>", "</claim>", '<evidence id="1">', "Note: ", "Here are the facts:", "I "]
    ),
)


@given(st.lists(pieces, max_size=25).map("".join))
def test_any_text_is_read_or_unparsable(text: str) -> None:
    variables: dict[str, Any] = {
        "text": text,
        "query": "q",
        "claim": text[:9],
        "fact": "A is b.",
        "facts": ["A", text[:9]],
        "evidence": ["A", text[:9]],
        "claims": ["A is b.", text[:9]],
    }
    for stage in IMPORTANCE:
        try:
            row = stage.parse(text, variables)
        except Unparsable:
            continue
        assert set(row) == set(stage.output.names)
        assert all(each.strip() for each in row.get("facts", []))
        assert row.get("relation", VERDICTS[0]) in VERDICTS
        for scale in ("relevance", "salience"):
            digits: list[Digit] = row.get(scale, [])
            assert all(text[digit.offset] == str(digit.value) in "12345" for digit in digits)
            assert len(digits) in (0, 2)
        if "covered" in row:
            assert bool(row["claims"]) is row["covered"]
            assert row["claims"] == sorted({*row["claims"]} & {1, 2})


HOSTILE = {
    EXTRACT_FACTS: [
        "- ",
        "a\n",
        "A is b.\n",
        "None\n",
        "**",
        "Fact 1: a\n",
        '{"fact": "a"}\n',
        "<fact>",
        "- a\n  - b\n",
        "| a ",
    ],
    RATE_IMPORTANCE: [
        *(
            '{"id": 1, "relevance": 4, "salience": 2}\n',
            '{"1": {"relevance": 4, ',
            '{"id": ',
            "{",
            "[",
            '{"1": ',
            "- {",
            "[]\n",
        ),
        *(
            '[{"id": 1}]\n',
            "Fact 1: {",
            "fact 1 ",
            '{"ratings": ',
            "| 1 | 2 | 3 |\n|---|---|---|\n",
            "<fact>",
            "1. ",
            '"relevance": 5, ',
        ),
        *("<think>", "</think>", "\n", "\\", '{"fact": "A", "relevance": 1}\n', "assistantfinal"),
    ],
    VERIFY_CLAIM: [
        *(
            "supported ",
            "supported\n",
            "not ",
            "not\n",
            "not supported ",
            "label: ",
            "neither supported ",
            "nor contradicted ",
            "~~",
        ),
        *(
            "isn't supported or ",
            "the claim is ",
            "the claim ",
            "claim: \n",
            "* ",
            "supported or ",
            '"label": "',
            "answer is ",
            "not_",
            "_",
        ),
        *("not *", "~~a", "not supported nor ", "verdict between ", "? ", "<claim>"),
    ],
    CHECK_COVERAGE: [
        *(
            '{"label": "COVERED", "evidence_claim_ids": [1]}\n',
            '{"label": ',
            '{"label": "',
            '{"a": {',
            '[{"a": ',
            "{",
            "[]\n",
            "not ",
        ),
        *(
            "covered ",
            "not_covered\n",
            "label: ",
            "covered by claims ",
            "1, ",
            "claim ",
            '{"evidence": [',
            "and ",
            "(",
            "- {",
            "`{",
        ),
    ],
}
LENGTH = 32_000


@pytest.mark.parametrize(("stage", "piece"), [(stage, piece) for stage, all_of in HOSTILE.items() for piece in all_of])
def test_long_hostile_text_is_read_in_linear_time(stage: StageDefinition, piece: str) -> None:
    def read(length: int) -> None:
        text = piece * (length // len(piece))
        own = {"text": text, "query": "q", "claim": text, "fact": text, "facts": ["A", text], "claims": ["A", text]}
        fields = {"id": text, "relevance": text, "label": text, "evidence_claim_ids": text, "fact": text}
        for hostile in (text, f"* answer: {text} {{", f"COVERED {text}", json.dumps(fields)):
            try:
                row = stage.parse(hostile, {**own, "evidence": ["A", text]})
            except Unparsable:
                row = {}
            assert set(row) <= set(stage.output.names)

    assert_linear(read, LENGTH)
