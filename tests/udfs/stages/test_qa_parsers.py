"""Test the parsers of questions, rated questions, and answers with their confidence."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.udfs.stages.qa_read import QA, answered, mined, refined
from untold.udfs.ratings import Digit, weigh
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.stages.qa import (
    ANSWER_QUESTIONS,
    COMPARE_ANSWERS,
    MINE_QUESTIONS,
    REFINE_QUESTIONS,
)


def test_the_stages_are_registered_with_their_variables() -> None:
    assert {stage.name: stage.variables for stage in QA} == {
        "mine_questions": ("query", "text"),
        "refine_questions": ("query", "questions"),
        "answer_questions": ("text", "questions"),
        "compare_answers": ("question", "first", "second"),
    }
    assert [stage for stage in QA if stage.rated] == [REFINE_QUESTIONS, ANSWER_QUESTIONS]
    assert [stage for stage in QA if stage.tools] == [COMPARE_ANSWERS]
    assert all(STAGES[stage.name] is stage for stage in QA)


QUESTION_LISTS = {
    "contract": "* How high is it?\n* Who built it: a king?",
    "windows line ends": "* How high is it?\r\n* Who built it: a king?\r\n",
    "preamble and note": "Here are the questions:\n\n* How high is it?\n* Who built it: a king?\n\nShall I go on?",
    "other bullets": "- How high is it?\n• Who built it: a king?",
    "numbers": "1. How high is it?\n2) Who built it: a king?",
    "bold": "* **How high is it?**\n* **Who built it: a king?**",
    "bold numbers": "**1.** How high is it?\n**2. Who built it: a king?**",
    "labels": "Q1: How high is it?\nQ2: Who built it: a king?",
    "bold labels": "* **Question 1:** How high is it?\n* **Question 2: Who built it: a king?**",
    "fence": "```\n* How high is it?\n* Who built it: a king?\n```",
    "preamble and fence": "Questions:\n```text\n* How high is it?\n* Who built it: a king?\n```\nDone.",
    "blank lines and rules": "---\n* How high is it?\n\n* * *\n* Who built it: a king?\n***",
    "groups": "* Height:\n  * How high is it?\n* Builder:\n  * Who built it: a king?",
    "groups without colons": "1. **Height**\n   - How high is it?\n2. **Builder**\n   - Who built it: a king?",
    "bulleted preamble": "- Here are the questions:\n- How high is it?\n- Who built it: a king?",
    "headings": "## Height\n* How high is it?\n\n**Builder**\n* Who built it: a king?",
    "wrapped": "* How high\n  is it?\n* Who built it:\n  a king?",
    "notes with bullets": "* How high is it?\n* Who built it: a king?\n\n**Notes:**\n* I left out one.",
    "bulleted note": "* How high is it?\n* Who built it: a king?\n* Note: the text has no more.",
    "json": '["How high is it?", "Who built it: a king?"]',
    "json objects": '```json\n{"questions": [{"question": "How high is it?"},'
    ' {"question": "Who built it: a king?"}]}\n```',
    "channels": "<|channel|>final<|message|>* How high is it?\n* Who built it: a king?<|return|>",
    "thinking": "<think>* How old is it?</think>\n* How high is it?\n* Who built it: a king?",
    "orphan thinking": "Well.\n</think>\n* How high is it?\n* Who built it: a king?",
}


def test_the_query_itself_need_not_ask() -> None:
    assert mined("* price of a violin\n* Explain the price.") == ["price of a violin", "Explain the price."]


LONE_NONE = ["None", "none.", "- None", "* **None**.", "(none)", "```\nNone\n```", "<think>x</think>None", "NONE"]


@pytest.mark.parametrize("completion", [*LONE_NONE, "None\n\nNote: the text has nothing on it."])
def test_a_single_none_is_not_a_question(completion: str) -> None:
    assert mined(completion) == []
    assert refined(completion) == []


@pytest.mark.parametrize("completion", ["", " \n", "Here are the questions:", "*", "<think>* A?"])
def test_prose_is_not_a_list_of_questions(completion: str) -> None:
    with pytest.raises(Unparsable):
        mined(completion)


REFINED_LISTS = {
    "contract": "* How high is it? [Relevance: 4]\n* Who built [all of] it? [Relevance: 1]",
    "windows line ends": "* How high is it? [Relevance: 4]\r\n* Who built [all of] it? [Relevance: 1]\r\n",
    "preamble and note": "On a scale where [Relevance: 5] is best:\n\n* How high is it? [Relevance: 4]\n"
    "* Who built [all of] it? [Relevance: 1]\n\nNote: [Relevance: 3] was never given.",
    "numbers and case": "1. How high is it? [relevance: 4]\n2. Who built [all of] it? [RELEVANCE:1].",
    "bold": "* **How high is it?** [Relevance: **4**]\n* **Who built [all of] it? [Relevance: 1]**",
    "parentheses and fractions": "- How high is it? (Relevance: 4/5)\n- Who built [all of] it? (Relevance: 1 out of 5)",
    "no brackets": "* How high is it? - Relevance: 4\n* Who built [all of] it? **Relevance:** 1",
    "reasons": "* How high is it? [Relevance: 4 - in 2 ways]\n* Who built [all of] it? [Relevance: 1] (3 did)",
    "other words": "* How high is it? [Relevance score = 4]\n* Who built [all of] it? [Rating: 1]",
    "no bullets": "Here they are:\nHow high is it? [Relevance: 4]\nWho built [all of] it? [Relevance: 1]",
    "one bullet forgotten": "* How high is it? [Relevance: 4]\nWho built [all of] it? [Relevance: 1]",
    "labels": "Q1: How high is it? [Relevance: 4]\nQ2: Who built [all of] it? [Relevance: 1]",
    "rating first": "* [Relevance: 4] How high is it?\n* [Relevance: 1] Who built [all of] it?",
    "below": "* How high is it?\n  [Relevance: 4]\n* Who built [all of] it?\n  Relevance: 1",
    "below with bullets": "1. How high is it?\n\n   - Relevance: 4\n2. Who built [all of] it?\n   - **Relevance:** 1",
    "below without bullets": "How high is it?\nRelevance: 4\n\nWho built [all of] it?\nRelevance: 1",
    "wrapped": "* How high\n  is it? [Relevance: 4]\n* Who built\n[all of] it?\n[Relevance: 1]",
    "groups": "* Height:\n  * How high is it? [Relevance: 4]\n* Builder:\n  * Who built [all of] it? [Relevance: 1]",
    "closing question": "How high is it? [Relevance: 4]\nWho built [all of] it? [Relevance: 1]\n\nIt is a list.",
    "dropped ones below": "* How high is it? [Relevance: 4]\n* Who built [all of] it? [Relevance: 1]\n\n"
    "**Changes:**\n* I dropped a vague one.",
    "repeated": "* How high is it? [Relevance: 4]\n* Who built [all of] it? [Relevance: 1]\n"
    "* how  high is it? [Relevance: 2]",
    "fence": "```\n* How high is it? [Relevance: 4]\n* Who built [all of] it? [Relevance: 1]\n```",
    "json": '[{"question": "How high is it?", "relevance": 4}, {"question": "Who built [all of] it?", "relevance": 1}]',
    "table": "| Question | Relevance |\n|---|---|\n| How high is it? | 4 |\n| Who built [all of] it? | **1** |",
    "thinking": "<think>* Why? [Relevance: 5]</think>\n* How high is it? [Relevance: 4]\n"
    "* Who built [all of] it? [Relevance: 1]",
}


@pytest.mark.parametrize(
    "said", ["", "[Relevance: ]", "[Relevance: high]", "[4]", *(f"[Relevance: {n}]" for n in ("0", "6", "3-4", "4.5"))]
)
@pytest.mark.parametrize(
    "form", ["* A? [Relevance: 5]\n* B? {}", "* A? {}\n* B? [Relevance: 5]", "A? {}\nB? [Relevance: 5]"]
)
def test_a_listed_question_without_a_rating_is_unparsable(form: str, said: str) -> None:
    with pytest.raises(Unparsable):
        refined(form.format(said))


@pytest.mark.parametrize("completion", ["", "How high is it", "I would give [Relevance: 4] to most.", "[Relevance: 4]"])
def test_ratings_without_questions_are_not_a_list(completion: str) -> None:
    with pytest.raises(Unparsable):
        refined(completion)


TWO = ["How high is it?", "1. FC Köln won [3 of 5] games?"]
SAID = [[("5 m", 4), ("16 ft", 2)], []]

ANSWER_LISTS = {
    "contract": "* How high is it?\nA: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown",
    "windows line ends": "* How high is it?\r\nA: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\r\n"
    "* 1. FC Köln won [3 of 5] games?\r\nA: unknown\r\n",
    "one line": "* How high is it? A: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games? A: unknown",
    "lines of answers": "* How high is it?\n  A: 5 m [Confidence: 4]\n  A: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\n  A: Unknown.",
    "bulleted answers": "- How high is it?\n  - A: 5 m [Confidence: 4]\n  - A: 16 ft [Confidence: 2]\n"
    "- 1. FC Köln won [3 of 5] games?\n  - A: unknown [Confidence: 5]",
    "numbered questions": "1. How high is it?\n   A: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n"
    "2. FC Köln won [3 of 5] games?\n   A: unknown",
    "bold": "1. **How high is it?**\n**A:** 5 m **[Confidence: 4]** | **A:** 16 ft [**Confidence:** 2]\n"
    "2. **1. FC Köln won [3 of 5] games?**\n**A: unknown**",
    "long labels": "Question 1: How high is it?\nAnswer: 5 m [Confidence: 4]\nAnswer: 16 ft [Confidence: 2]\n\n"
    "Question 2: 1. FC Köln won [3 of 5] games?\n**Answer:** UNKNOWN",
    "numbered answers": "Q: How high is it?\nA1: 5 m [Confidence: 4]\nA2: 16 ft [Confidence: 2]\n"
    "Q: 1. FC Köln won [3 of 5] games?\nA: [unknown]",
    "no labels": "* How high is it?\n  - 5 m [Confidence: 4]\n  - 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\n  - unknown",
    "no second label": "* How high is it?\nA: 5 m [Confidence: 4] | 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\nunknown",
    "no labels, one line": "* How high is it? 5 m [Confidence: 4]; 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games? - unknown",
    "other separators": "* How high is it?\nA: 5 m [Confidence: 4], A: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown (the text does not say)",
    "no separator": "* How high is it?\nA: 5 m [Confidence: 4] A: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\nA: Unknown. The text does not say.",
    "no brackets": "* How high is it?\nA: 5 m - Confidence: 4\nA: 16 ft (confidence: 2/5)\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown - Confidence: 1",
    "confidence below": "* How high is it?\nA: 5 m\nConfidence: 4\nA: 16 ft\n- **Confidence:** 2\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown\nConfidence: N/A",
    "reasons": "* How high is it?\nA: 5 m [Confidence: 4 - stated] (see line 3)\nA: 16 ft [Confidence: 2]: guessed.\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown - not in the text",
    "reasons between": "* How high is it?\n- A: 5 m [Confidence: 4]\n- Reasoning: it says so.\n"
    "- A: 16 ft [Confidence: 2]\n* 1. FC Köln won [3 of 5] games?\nA: unknown",
    "unknown beside answers": "* How high is it?\nA: 5 m [Confidence: 4] | A: unknown | A: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown",
    "repeats": "* How high is it?\nA: 5 m [Confidence: 4] | A: “5 m.” [Confidence: 1] | A: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown",
    "reordered": "* 1. FC Köln won [3 of 5] games?\nA: unknown\n"
    "* How high is it?\nA: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]",
    "reworded": "* What is its height?\nA: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n"
    "* Did FC Cologne win?\nA: unknown",
    "one reworded": "* What is its height?\nA: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown",
    "answers alone": "1. A: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n2. A: unknown",
    "one more question": "* How high is it?\nA: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n"
    "* How old is it?\nA: 8 years [Confidence: 5]\n* 1. FC Köln won [3 of 5] games?\nA: unknown",
    "a block an answer": "* How high is it?\nA: 5 m [Confidence: 4]\n* How high is it?\nA: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown",
    "preamble, rule, note": "Here are the answers:\n---\n**How high is it?**\n\n"
    "A: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n\n"
    "---\n**1. FC Köln won [3 of 5] games?**\n\nA: unknown\n\nNote: I used the text only.",
    "fence": "```\n* How high is it?\nA: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n"
    "* 1. FC Köln won [3 of 5] games?\nA: unknown\n```",
    "json": '[{"question": "How high is it?", "answers": [{"answer": "5 m", "confidence": 4},'
    ' {"answer": "16 ft", "confidence": 2}]}, {"question": "1. FC Köln won [3 of 5] games?", "answers": []}]',
    "flat json": '[{"question": "How high is it?", "answer": "5 m", "confidence": 4},'
    ' {"question": "How high is it?", "answer": "16 ft", "confidence": 2},'
    ' {"question": "1. FC Köln won [3 of 5] games?", "answer": "unknown", "confidence": null}]',
    "table": "| Question | Answer | Confidence |\n|---|---|---|\n| How high is it? | 5 m | 4 |\n"
    "| How high is it? | 16 ft | 2 |\n| 1. FC Köln won [3 of 5] games? | unknown | |",
    "thinking": "<think>* How high is it?\nA: 9 m [Confidence: 5]</think>\n* How high is it?\n"
    "A: 5 m [Confidence: 4] | A: 16 ft [Confidence: 2]\n* 1. FC Köln won [3 of 5] games?\nA: unknown",
}  # fmt: skip


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ("A: the key [Ctrl] [Confidence: 3]", "the key [Ctrl]"),
        ("A: section A: heat [Confidence: 3]", "section A: heat"),
        ("A: about 4 m [2] [Confidence: 3]", "about 4 m [2]"),
        ("A: -5 °C [Confidence: 3]", "-5 °C"),
        ("A: - 5 °C [Confidence: 3]", "- 5 °C"),
        ("A: 3 [Confidence: 3]", "3"),
        ("A: the unknown soldier [Confidence: 3]", "the unknown soldier"),
        ("A: unknown, but it may be 5 m [Confidence: 3]", "unknown, but it may be 5 m"),
        ("A: **5 m** [Confidence: 3]", "5 m"),
        ("A: **5 m [Confidence: 3]**", "5 m"),
        ("A: 5 m [Confidence: 3] |", "5 m"),
        ("A: 5 m [Certainty: 3]", "5 m"),
        ("A: 5 m (confidence 3)", "5 m"),
        ("A: 5 m [Confidence: 3 (it says so)]", "5 m"),
    ],
)
def test_an_answer_is_the_text_between_label_and_confidence(written: str, answer: str) -> None:
    assert answered(f"* Q?\n{written}\n", ["Q?"]) == [[(answer, 3)]]


@pytest.mark.parametrize(
    ("completion", "missing"),
    [
        ("", 2),
        ("None", 2),
        ("unknown", 2),
        ("* How high is it?\nA: 5 m [Confidence: 4]", 1),
        ("* How high is it?\nA: 5 m [Confidence: 4]\n* 1. FC Köln won [3 of 5] games?", 1),
        ("* How high is it?\nA: 5 m [Confidence: 4]\n* 1. FC Köln won [3 of 5] games?\nA:", 1),
        ("* How high is it?\nA: 5 m [Confidence: 4]\n* 1. FC Köln won [3 of 5] games?\nA: [Confidence: 1]", 1),
        ("* What is its height?\nA: 5 m [Confidence: 4]", 2),
        ("A: 5 m [Confidence: 4]\nA: unknown", 2),
        ("1. A: 5 m [Confidence: 4]\n2. A: unknown\n3. A: unknown", 2),
    ],
)  # fmt: skip
def test_a_question_without_an_answer_is_unparsable_and_counted(completion: str, missing: int) -> None:
    with pytest.raises(Unparsable):
        answered(completion, TWO)


@pytest.mark.parametrize(
    "written",
    [
        "A: 5 m",
        "5 m",
        "A: 5 m [4]",
        "A: 5 m [Confidence: 0]",
        "A: 5 m [Confidence: 6]",
        "A: 5 m [Confidence: 3-4]",
        "A: 5 m [Confidence: high]",
        "A: 5 m [Confidence: 4/10]",
        "A: Low confidence: 4 people said so",
        "A: 5 m | A: 16 ft [Confidence: 2]",
        "A: 5 m [Confidence: 2] | A: 16 ft",
        "A: 5 m [Confidence: 2] | 16 ft",
        "A: 5 m\nA: 16 ft [Confidence: 2]",
        "A: 5 m [Confidence: 4] is what it says [Confidence: 5]",
        "A: unknown, but 5 m",
    ],
)
def test_an_answer_without_a_confidence_is_unparsable(written: str) -> None:
    with pytest.raises(Unparsable):
        answered(f"* B?\nA: unknown\n* Q?\n{written}", ["Q?", "B?"])


@pytest.mark.parametrize("confidence", ["", " [Confidence: 1]", " (confidence: 5)"])
@pytest.mark.parametrize(
    "written",
    ["None", "Not stated", "not mentioned in the text", "Unknown.", "N/A", "The text does not say", "no information"],
)
def test_an_answer_that_the_text_has_no_answer_is_none(written: str, confidence: str) -> None:
    assert answered(f"* Q?\nA: {written}{confidence}", ["Q?"]) == [[]]


def test_answers_under_a_line_without_a_question_are_unparsable() -> None:
    with pytest.raises(Unparsable):
        answered("* Q?\nA: 5 m [Confidence: 4]\n* Otherwise\nA: 6 m [Confidence: 4]", ["Q?"])


def test_a_lone_question_need_not_be_repeated() -> None:
    completion = "Here are the answers.\nA: 1871 [Confidence: 3] | A: 1873 [Confidence: 4]"
    assert answered(completion, ["When was it built?"]) == [[("1871", 3), ("1873", 4)]]
    with pytest.raises(Unparsable):
        answered(completion, ["When was it built?", "Who built it?"])


def test_offsets_count_from_the_start_of_the_completion() -> None:
    completion = "  <think>é 4 🙂</think>\r\n\n * A?\nA: 3 [Confidence: 3]"
    row = ANSWER_QUESTIONS.parse(completion, {"text": "t", "questions": ["A?"]})
    assert row["confidences"] == [[Digit(3, completion.rindex("3"))]]


def test_rows_fit_the_output_schemas() -> None:
    for stage, completion, variables in (
        (MINE_QUESTIONS, "* A?", {}),
        (REFINE_QUESTIONS, "* A? [Relevance: 2]", {}),
        (ANSWER_QUESTIONS, "* A?\nA: b [Confidence: 2]\n* C?\nA: unknown", {"questions": ["A?", "C?"]}),
        (COMPARE_ANSWERS, "neutral", {"first": "a", "second": "b"}),
    ):
        row, _ = weigh(stage.parse(completion, variables), None)
        assert pa.Table.from_pylist([row], schema=stage.output).to_pylist() == [row]
