"""The check reads prose from Python and Markdown, and flags the constructions that the style guide rejects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.english.english_check import BITS, MARKED, Trigrams, _rate, _state, main
from tests.english.prose import Passage, passages_of, sentences_of
from tests.english.rules import findings

HERE = Path(__file__).parent
# Lower it with every file that leaves the list; it never rises
MOST_OVER_BUDGET = 0


def first(text: str) -> dict[str, int]:
    return findings(sentences_of(Passage("x.py", 1, "comment", text))[0])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("What an API needs of the settings and does not have.", "what-phrase"),
        ("Whether a stored row leaves its request to be asked.", "whether-opener"),
        ("Those of them that metrics may require.", "pro-form"),
        ("The means are of the samples whose score is defined.", "predicative-of"),
        ("Of a local Spark only object stores are tried.", "fronted"),
        ("The folder is no index.", "is-no"),
        ("The column is null where there is no score.", "where-for-if"),
        ("The manifest says how the run ended.", "house-verb"),
        ("The faults of disks are mended.", "archaic"),
        ("The limiter hears of dead clients.", "personified"),
    ],
)
def test_a_construction_is_flagged(text: str, rule: str) -> None:
    assert rule in first(text)


@pytest.mark.parametrize(
    "text",
    [
        "Return the missing settings of an API.",
        "Return True if the request must be sent again.",
        "If a sample has no statements, its score is null.",
        "There are no samples in the folder.",
        "For example, set the folder of the index.",
        "What is a nugget?",
    ],
)
def test_plain_english_is_not_flagged(text: str) -> None:
    assert first(text) == {}


def test_prose_is_found_in_docstrings_comments_messages_and_pages(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""A module with prose."""\n# A comment of its kind\ndef f():\n    """Return one row."""\n'
        '    raise ValueError(f"cannot read the file {1}")\n'
    )
    (tmp_path / "b.md").write_text(
        "# Title\n\nA paragraph of words.\n\n```\ncode is not prose here\n```\n\n- An item of a list\n"
    )
    kinds = [passage.kind for name in ("a.py", "b.md") for passage in passages_of(tmp_path / name)]
    assert sorted(kinds) == ["comment", "docs", "docs", "function", "message", "module"]


def test_doctests_and_parameter_names_are_not_prose() -> None:
    text = "Return the sum.\n\n    Args:\n        first: The first number.\n\n    >>> add(1, 2)\n    3\n"
    assert [s.text for s in sentences_of(Passage("x.py", 1, "function", text))] == [
        "Return the sum.",
        "The first number.",
    ]


ODD = "".join(
    f'def f{n}():\n    """{line}"""\n'
    for n, line in enumerate(
        [
            "What an API needs of the settings and does not have.",
            "Whether a stored row leaves its request to be asked. None is an answer.",
            "The address that was set, which may be a default of the code's no more.",
            "Of what facts are looked up with, what is set.",
            "Takes what came of a batch, and what is left to batches to come.",
            "What this start has found out, which counts where the store cannot be written.",
        ]
    )
)
SHORT = ODD.replace(", which", ". It").replace(", and what", ". What").replace(", what", ". What")
PLAIN = "".join(
    f'def f{n}():\n    """{line}"""\n'
    for n, line in enumerate(
        [
            "Return the settings that are required by the API and not set.",
            "Return True if the request must be sent again. A result without an error is complete.",
            "Return the address if the user set it, and ignore the defaults.",
            "Check the services that are configured for the lookup of facts.",
            "Save the results of a batch and return the requests for the next batch.",
            "Store the results of this run in memory if the store cannot be written.",
        ]
    )
)


def test_a_file_outside_the_list_has_to_meet_the_budget_and_short_sentences_do_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listed.txt").write_text("")
    for text, code in ((ODD, 1), (SHORT, 1), (PLAIN, 0)):
        (tmp_path / "a.py").write_text(text)
        assert main(["check", "a.py", "--over-budget", "listed.txt"]) == code


def test_a_listed_file_is_over_budget_and_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listed.txt").write_text("a.py\n")
    for text, code in ((ODD, 0), (PLAIN, 1)):
        (tmp_path / "a.py").write_text(text)
        assert main(["check", ".", "--over-budget", "listed.txt"]) == code
    (tmp_path / "a.py").unlink()
    assert main(["check", ".", "--over-budget", "listed.txt"]) == 1


def test_the_list_of_files_over_budget_does_not_grow() -> None:
    listed = (HERE / "over_budget.txt").read_text(encoding="utf-8").splitlines()
    assert listed == sorted(set(listed))
    assert len(listed) <= MOST_OVER_BUDGET


def test_the_budgets_separate_the_two_texts(tmp_path: Path) -> None:
    model = Trigrams.load(HERE / "reference.json.gz")
    for text, is_above in ((ODD, True), (PLAIN, False)):
        file = tmp_path / "a.py"
        file.write_text(text)
        row = _state([str(file)], None, model)[str(file)]
        assert (_rate(row, "marked") > MARKED) == is_above
        assert (_rate(row, "bits") > BITS) == is_above
    assert json.dumps(row)
