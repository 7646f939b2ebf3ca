"""Test the parser of relations in lists. Each number gets its label in every format, and other text has no effect."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linear import assert_linear
from untold.udfs.stages import Unparsable
from untold.udfs.stages.nli import CLASSIFY_RELATIONS, RELATIONS
from untold.udfs.stages.nuggets import ASSIGN_NUGGETS

TEXTS = (
    *("The bridge is made of steel", "8 boats belong to the harbour.", "The matter is open", "1.5 km are closed"),
    *("It rains: often", "Neutral ground is near.", "A contradiction was found", "In 1874 - a winter - it froze"),
)
FORMS = (
    *("{n}: {r}", "{n}. {r}", "{n}) {r}", "({n}) {r}", "[{n}] {r}", "{n} - {r}", "{n} → {r}", "{n} {r}", "{n}={r}"),
    *(
        "**{n}**: {r}",
        "**{n}.** {r}",
        "- {n}: {r}",
        "* **{n}:** {r}",
        "Hypothesis {n}: {r}",
        "**Hypothesis {n}:** `{r}`",
    ),
    *("{n}. {t} — {r}", "{n}. **{t}**: {r}", '<hypothesis id="{n}">{t}</hypothesis>: {r}', "{n}: {r} (as it says)"),
    *("**{n}**\nRelation: {r}", "{n}\n\n{t}\nLabel: **{r}**\n"),
)
PREAMBLES = ("", "Here are the relations:\n\n", "<think>\n1: neutral\n2 is hard\n</think>\n", "## Result\n\n")
NOTES = ("", "\n\nI hope this helps!", "<|im_end|>", "\n\nNote: names are taken as they are.", "\n---\n")
LABELS = [*RELATIONS, "unclear"]
Said = list[tuple[int, str]]


def oracle(said: Said, count: int) -> list[str | None]:
    """Return the label of each number that occurs once with a valid label."""
    times, labels = Counter(number for number, _ in said), dict(said)
    return [
        labels[number] if times[number] == 1 and labels[number] in RELATIONS else None for number in range(1, count + 1)
    ]


def parse(completion: str, hypotheses: list[str]) -> list[str | None] | None:
    try:
        relations: list[str | None] = CLASSIFY_RELATIONS.parse(
            completion, {"premise": "It is so.", "hypotheses": hypotheses}
        )["relations"]
    except Unparsable:
        return None
    return relations


@st.composite
def answers(draw: Any) -> tuple[list[str], Said]:
    """Draw hypotheses and labels for their numbers. Some numbers are missing, repeated or too large."""
    hypotheses = draw(st.lists(st.sampled_from(TEXTS), min_size=2, max_size=8, unique=True))
    said = [(number, draw(st.sampled_from(LABELS))) for number in range(1, len(hypotheses) + 1)]
    more = draw(st.lists(st.tuples(st.integers(1, len(hypotheses) + 3), st.sampled_from(LABELS)), max_size=2))
    kept = [one for one in said if draw(st.integers(0, 5))]
    return hypotheses, draw(st.permutations(kept + more))


@given(answers(), st.sampled_from(FORMS), st.sampled_from(PREAMBLES), st.sampled_from(NOTES))
def test_lines_are_read_as_an_oracle_reads_them(given_: Any, form: str, preamble: str, note: str) -> None:
    hypotheses, said = given_
    texts = dict(enumerate(hypotheses, start=1))
    lines = [form.format(n=number, r=label, t=texts.get(number, "Another text")) for number, label in said]
    expected = oracle(said, len(hypotheses))
    found = parse(preamble + "\n".join(lines) + note, hypotheses)
    # A form that repeats the text may be refused
    assert found == (expected if any(expected) else None) or (found is None and "{t}" in form)


@given(
    answers(), st.sampled_from(["id", "number", "hypothesis"]), st.sampled_from(["relation", "label"]), st.booleans()
)
def test_json_and_tables_are_read_as_an_oracle_reads_them(given_: Any, key: str, label: str, table: bool) -> None:
    hypotheses, said = given_
    expected = oracle(said, len(hypotheses))
    if table:
        rows = "\n".join(f"| {number} | {relation} |" for number, relation in said)
        completion = f"| {key} | {label} |\n|---|---|\n{rows}"
    else:
        completion = json.dumps({"relations": [{key: number, label: relation} for number, relation in said]})
    assert parse(completion, hypotheses) == (expected if any(expected) else None)


pieces = st.one_of(
    st.text(max_size=10),
    st.sampled_from(
        ["\n", "\n\n", "1: ", "2. ", "0", "3", "neutral", "entailment", "**", "|", "{", '"1": ', "[", "- "]
    ),
)


@given(st.lists(pieces, max_size=25).map("".join))
def test_any_text_is_read_or_unparsable(text: str) -> None:
    relations = parse(text, ["A", text[:9], "B."])
    assert relations is None or (len(relations) == 3 and any(relations) and set(relations) <= {None, *RELATIONS})


HOSTILE = (
    "1: neutral\n",
    "1: ",
    "1",
    "1 ",
    "**",
    "1: entailment or ",
    '{"1": "neutral"}\n',
    "- ",
    "<hypothesis id=",
    "|1",
)


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_is_read_in_linear_time(piece: str) -> None:
    def read(length: int) -> None:
        text = piece * (length // len(piece))
        parse(text, ["A", text])

    assert_linear(read, 32_000)


@pytest.mark.parametrize(
    ("completion", "labels", "reasons"),
    [
        ("1: support | It says so.\n2: not_support", ["support", "not_support"], ["It says so.", None]),
        (
            '{"labels": [{"number": 2, "label": "support", "reason": "{\\"a\\": 1} is there"},'
            ' {"number": 1, "label": "not_support", "explanation": " "}]}',
            ["not_support", "support"],
            [None, '{"a": 1} is there'],
        ),
        ("1: maybe | It may.\n2: support | Not less.", [None, "support"], [None, "Not less."]),
        ("1: support | not support\n2: support", [None, "support"], [None, None]),
        ("1: support | It says so. Wait, not_support\n2: support", [None, "support"], [None, None]),
        (
            "1. **Support** — It says so.\n2. not support (It is dry.)",
            ["support", "not_support"],
            ["It says so.", "It is dry."],
        ),
        ("1: support\n   *It says so.*\n2: support\nReason: It snows.", ["support"] * 2, ["It says so.", "It snows."]),
        (
            "1: partial_support | The final is actually supported, the place is not.\n2: support",
            ["partial_support", "support"],
            ["The final is actually supported, the place is not.", None],
        ),
        ("1: support\n2: support\n\nI hope this helps!", ["support"] * 2, [None, None]),
    ],
    ids=[
        "bars",
        "records",
        "no label",
        "two labels",
        "withdrawn",
        "dash and brackets",
        "below",
        "words",
        "closing remark",
    ],
)
def test_a_reason_belongs_to_its_label(completion: str, labels: list[str | None], reasons: list[str | None]) -> None:
    found = ASSIGN_NUGGETS.parse(completion, {"query": "q", "response": "r", "nuggets": ["It rains.", "It snows."]})
    assert found == {"labels": labels, "reasons": reasons}
