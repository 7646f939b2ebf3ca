"""K-QA: answers of language models to medical questions, and statements that three physicians looked for in each.

Manes et al. 2024. `NLI_medical_annotator.csv` has a row a pair of answer and statement, those of one answer together:
Question, llm_x (who answered), answer, claim, category_x (Must_have or Nice_to_have), label_0 to label_2 (Entailment,
Neutral or Contradiction, what each physician says of the answer and the statement). `questions_w_answers.jsonl` has all
questions, each with a physician's answer (Free_form_answer) and the statements of both kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from untold.udfs.hints import aside, near_misses
from untold.udfs.samples.file_records import READERS, FileRecord, Unit, UnreadableFileError

FILES = "*.csv"
LABELS = ("label_0", "label_1", "label_2")
COLUMNS = ("Question", "llm_x", "answer", "claim", "category_x", *LABELS)
MUST_HAVE, NICE_TO_HAVE = "Must_have", "Nice_to_have"
# A statement that an answer has to give counts in full, one that would be nice to have half
WEIGHTS = {MUST_HAVE: 1.0, NICE_TO_HAVE: 0.5}
QUESTIONS = ("Question", "Free_form_answer", MUST_HAVE, NICE_TO_HAVE)


def read_answers(unit: Unit) -> Iterator[FileRecord]:
    """The answers of a file, each with its statements as references and their kinds as `reference_types`.

    sample_id is `<n>-<llm_x>`, n the question in order of appearance, from 0. A row that is broken is a record of its
    own, and so is an answer with a statement of another kind. Raises UnreadableFileError where a column is missing.
    """
    questions: dict[Any, int] = {}
    for is_broken, records in groupby(READERS["csv"](unit), key=lambda record: record.problem is not None):
        if is_broken:
            yield from records
            continue
        for (question, system, response), own in groupby(records, key=_answer):
            number = questions.setdefault(question, len(questions))
            rows = list(own)
            values = [record.values for record in rows]
            answer = _record(f"{number}-{system}", str(number), question, response, system, values)
            yield replace(answer, row=rows[0].row)


def questions(record: FileRecord, row: int) -> list[FileRecord]:
    """A question with a physician's answer, and the statements of both kinds as references, yet to be weighed.

    sample_id is the row, from 0; `reference_types` says which statement is of which kind.
    """
    if record.problem:
        return [record]
    values = record.values
    given = [(kind, text) for kind in WEIGHTS for text in values.get(kind) or []]
    return [
        FileRecord(
            {
                "sample_id": str(row),
                "query": values.get("Question"),
                "response": values.get("Free_form_answer"),
                "contexts": [],
                "references": [{"id": str(place), "text": text} for place, (_, text) in enumerate(given, start=1)],
                "reference_types": [kind for kind, _ in given],
            }
        )
    ]


def _answer(record: FileRecord) -> tuple[Any, ...]:
    """Question, system and answer of a row. Raises UnreadableFileError where one of the columns is missing."""
    values = record.values
    missing = [name for name in COLUMNS if name not in values]
    if missing:
        parts = ", ".join(f"`{name}`{aside(near_misses(name, values))}" for name in missing)
        raise UnreadableFileError(f"no column {parts}; give NLI_medical_annotator.csv as it is published")
    return tuple(values[name] for name in COLUMNS[:3])


def _record(
    name: str, number: str, question: Any, response: Any, system: Any, rows: Sequence[Mapping[str, Any]]
) -> FileRecord:
    references = []
    for place, row in enumerate(rows, start=1):
        if row["category_x"] not in WEIGHTS:
            return FileRecord(problem=f"statement {place} is neither {' nor '.join(WEIGHTS)}", raw=name)
        labels = [row[label] for label in LABELS]
        weight = WEIGHTS[row["category_x"]]
        references.append({"id": str(place), "text": row["claim"], "weight": weight, "labels": labels})
    return FileRecord(
        {
            "sample_id": name,
            "query_id": number,
            "query": question,
            "response": response,
            "contexts": [],
            "system": system,
            "references": references,
            "reference_types": [row["category_x"] for row in rows],
        }
    )
