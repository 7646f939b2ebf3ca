"""Test the parser of the summary of a context."""

from __future__ import annotations

import pytest

from tests.udfs.stages.e2e_read import summary
from untold.udfs.stages.definitions import Unparsable


@pytest.mark.parametrize(
    "completion",
    [
        "None",
        "none.",
        "NONE",
        " None \n",
        '"None."',
        "**None**",
        "`None`",
        "```\nNone\n```",
        "```text\nNone.\n```",
        "<think>Hm. It says much.</think>\nNone",
        "Summary: None",
        "**Summary:** None.",
        "## Summary\n\nNone",
        "None. The text deals with cheese.",
        "None - it speaks of nothing else.",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>None<|return|>",
        "None<|im_end|>",
    ],
)
def test_a_single_none_is_not_a_summary(completion: str) -> None:
    assert summary(completion) is None


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("The sun is hot.", "The sun is hot."),
        ("  The sun is hot.\n\nThe moon is not.\n", "The sun is hot.\n\nThe moon is not."),
        ("Summary: The sun is hot.", "The sun is hot."),
        ("Summary: **Hot** sun.", "**Hot** sun."),
        ("**Summary:**\nThe sun is hot.", "The sun is hot."),
        ("### Summary\nThe sun is hot.", "The sun is hot."),
        ("Here is the summary of the relevant text:\n\nThe sun is hot.", "The sun is hot."),
        ("```\nThe sun is hot.\n```", "The sun is hot."),
        ("<think>a</think>\n\nThe sun is hot.", "The sun is hot."),
        ("The text says much.\n</think>\n\nThe sun is hot.", "The sun is hot."),
        ("None of the ships sank.", "None of the ships sank."),
        ("None of the drugs is safe", "None of the drugs is safe"),
        ("analysis\nIt is short.\nassistantfinal\nThe sun is hot.", "The sun is hot."),
        ("Summary judgement was given: the case ended.", "Summary judgement was given: the case ended."),
        ("Use the tag <think>x</think> here.", "Use the tag <think>x</think> here."),
    ],
)
def test_a_summary_loses_its_label_and_nothing_else(completion: str, expected: str) -> None:
    assert summary(completion) == expected


@pytest.mark.parametrize(
    "completion", ["", " \n", "<think>so", "<think>a</think>", "Summary:", "```\n```", "a\n</think>\n"]
)
def test_no_answer_is_unparsable(completion: str) -> None:
    with pytest.raises(Unparsable):
        summary(completion)
