"""Adapters of published data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any
from xml.etree import ElementTree

from untold.udfs.errors import aside, near_misses
from untold.udfs.samples.file_records import READERS, FileRecord, RowError, Unit, UnreadableFileError, read_text
from untold.udfs.samples.files import open_text
from untold.udfs.samples.items import FIELDS
from untold.udfs.samples.values import canonical, json_or, object_of, text_of

Values = Mapping[str, Any]
REQUIRED = ("question", "answers")
# A claim is a reference if it is relevant to the question and true
RELEVANT = ("Very relevant", "A bit relevant")
CORRECT = ("Definitely correct", "Probably correct")
VERDICTS = {"Complete": "supported", "Partial": "not_supported", "Incomplete": "not_supported"}
# 64 bits: unique ids for a billion answers
ID_CHARACTERS = 16


def answers(row: Values, _: int) -> Iterator[Values]:
    """Yield the answers of a row as samples, with their relevant and correct claims as references.

    Contexts are the distinct texts of evidence of all claims, and `field` is the field of the expert. The id of a
    reference is the position of its claim in the answer, from 1. The published answer is the response; `untold
    generate` writes new ones.
    """
    for system, answer in _answers(row):
        evidence = [text for _, claim in _claims(answer) for text in claim.get("evidence") or []]
        yield {
            "sample_id": _answer_id(row, system),
            "query": row.get("question"),
            "response": answer.get("answer_string"),
            "contexts": list(dict.fromkeys(evidence)),
            "system": system,
            "field": object_of(row.get("metadata")).get("field"),
            "references": [
                {"id": str(place), "text": claim.get("claim_string")}
                for place, claim in _claims(answer)
                if claim.get("informativeness") in RELEVANT and claim.get("correctness") in CORRECT
            ],
        }


def claims(row: Values, _: int) -> Iterator[Values]:
    """Yield the claims of a row with evidence and a judgement of it: claim, evidence, label.

    Complete support is `supported`, Partial and Incomplete support are `not_supported`. sample_id is the id of the
    answer and the position of the claim in it.
    """
    for system, answer in _answers(row):
        name = _answer_id(row, system)
        for place, claim in _claims(answer):
            if claim.get("evidence") and claim.get("support") in VERDICTS:
                yield labelled_claim(
                    name,
                    place,
                    query=row.get("question"),
                    system=system,
                    claim=claim.get("claim_string"),
                    evidence=claim["evidence"],
                    label=VERDICTS[claim["support"]],
                )


def labelled_claim(name: str, place: int, **columns: Any) -> Values:
    """Return the columns of a claim. Its id is the name of its text, and its place in the text from 1."""
    return {"sample_id": f"{name}-{place}", "query_id": name, **columns}


def _answers(values: Values) -> Iterator[tuple[str, Values]]:
    given = values.get("answers")
    if not given or not isinstance(given, dict) or not all(isinstance(answer, dict) for answer in given.values()):
        raise RowError("`answers` needs one object per system; correct it")
    yield from given.items()


def _claims(answer: Values) -> Iterator[tuple[int, Values]]:
    """Yield the claims of an answer, numbered from 1."""
    for place, claim in enumerate(answer.get("claims") or [], start=1):
        if isinstance(claim, dict):
            yield place, claim


def _answer_id(values: Values, system: str) -> str:
    """Return the id of an answer as a hash: rows have no ids, and a row may be in several files."""
    text = canonical([text_of(values.get("question")), system])
    return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARACTERS]


LABEL_COLUMNS = ("label_0", "label_1", "label_2")
COLUMNS = ("Question", "llm_x", "answer", "claim", "category_x", *LABEL_COLUMNS)
MUST_HAVE, NICE_TO_HAVE = "Must_have", "Nice_to_have"
# A statement that an answer must have counts fully, and a statement that is nice to have counts half
WEIGHTS = {MUST_HAVE: 1.0, NICE_TO_HAVE: 0.5}
QUESTIONS = ("Question", "Free_form_answer", MUST_HAVE, NICE_TO_HAVE)


def read_answers(unit: Unit) -> Iterator[FileRecord]:
    """Yield the answers of a file, with their statements as references and their kinds as `reference_types`.

    sample_id is `<n>-<llm_x>`, with n the number of the question in order of appearance, from 0. A broken row is a
    separate record, and so is an answer with a statement of an unknown kind. Raises UnreadableFileError for a missing
    column.
    """
    questions: dict[Any, int] = {}
    for is_broken, records in groupby(READERS["csv"](unit), key=lambda record: record.problem is not None):
        if is_broken:
            yield from records
            continue
        for (question, system, response), own in groupby(records, key=_answer):
            number = questions.setdefault(question, len(questions))
            rows = list(own)
            name, kinds = f"{number}-{system}", [record.values["category_x"] for record in rows]
            unknown = next((place for place, kind in enumerate(kinds, start=1) if kind not in WEIGHTS), None)
            if unknown:
                problem = f"statement {unknown} is neither {' nor '.join(WEIGHTS)}"
                yield FileRecord(problem=problem, raw=name, row=rows[0].row)
                continue
            references = [
                {
                    "id": str(place),
                    "text": record.values["claim"],
                    "weight": WEIGHTS[record.values["category_x"]],
                    "labels": [record.values[label] for label in LABEL_COLUMNS],
                }
                for place, record in enumerate(rows, start=1)
            ]
            answer = {
                "sample_id": name,
                "query_id": str(number),
                "query": question,
                "response": response,
                "contexts": [],
                "system": system,
                "references": references,
                "reference_types": kinds,
            }
            yield FileRecord(answer, row=rows[0].row)


def questions(row: Values, number: int) -> Iterator[Values]:
    """Yield a question with a physician's answer, and the statements of both kinds as unweighted references.

    sample_id is the row, from 0. `reference_types` has the kind of each statement.
    """
    given = [(kind, text) for kind in WEIGHTS for text in row.get(kind) or []]
    yield {
        "sample_id": str(number),
        "query": row.get("Question"),
        "response": row.get("Free_form_answer"),
        "contexts": [],
        "references": [{"id": str(place), "text": text} for place, (_, text) in enumerate(given, start=1)],
        "reference_types": [kind for kind, _ in given],
    }


def _answer(record: FileRecord) -> tuple[Any, ...]:
    """Return question, system and answer of a row. Raises UnreadableFileError for a missing column."""
    values = record.values
    missing = [name for name in COLUMNS if name not in values]
    if missing:
        parts = ", ".join(f"`{name}`{aside(near_misses(name, values))}" for name in missing)
        raise UnreadableFileError(f"no column {parts}. Give NLI_medical_annotator.csv as published")
    return tuple(values[name] for name in COLUMNS[:3])


QAMPARI = ("qid", "question_text", "answer_list")
ROMQA = ("id", "question", "candidates")


def qampari(row: Values, _: int) -> Iterator[Values]:
    """Yield the question with its answers as references: the anchor is the answer, the text its proof."""
    answers = [
        _reference(one.get("aid"), one.get("answer_text"), _texts(one.get("proof"), "proof_text"))
        for one in _objects(row.get("answer_list"))
    ]
    yield _question(row.get("qid"), row.get("question_text"), answers)


def romqa(row: Values, _: int) -> Iterator[Values]:
    """Yield the question with the correct candidates as references: anchor the answer, text its evidence.

    An answer that only occurs in `complete_answer` has no evidence and is a reference too.
    """
    answers = {
        one.get("uri"): _reference(one.get("uri"), one.get("text"), _texts(one.get("evidence"), "text"))
        for one in _objects(row.get("candidates"))
        if one.get("is_answer") is True
    }
    for one in _objects(row.get("complete_answer")):
        answers.setdefault(one.get("uri"), _reference(one.get("uri"), one.get("text"), []))
    yield _question(row.get("id"), row.get("question"), list(answers.values()))


def _reference(name: Any, answer: Any, proof: list[str]) -> dict[str, Any]:
    """Return an answer as a reference. An answer without proof is the text, and has no anchor."""
    return {"id": name, "anchor": answer if proof else None, "text": " ".join(proof) or answer}


def _question(name: Any, query: Any, references: list[dict[str, Any]]) -> Values:
    """Return a question with its proofs as contexts, each after its answer, so that contexts contain all answers."""
    proofs = [f"{one['anchor']}: {one['text']}" for one in references if one["anchor"]]
    named = {"sample_id": name, "query_id": name}
    return {**named, "query": query, "contexts": list(dict.fromkeys(proofs)), "references": references}


def _objects(value: Any) -> Iterable[Values]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _texts(value: Any, name: str) -> list[str]:
    """Return the distinct texts of a list of objects, in its order."""
    found = [one.get(name) for one in _objects(value)]
    return list(dict.fromkeys(text for text in found if isinstance(text, str) and text.strip()))


# The data set has no questions. This was the task of all its systems
QUERY = "Summarise the article."
_OF_ARTICLES = ("ids.txt", "documents.txt", "SCUs.txt")


def read_system(unit: Unit) -> Iterator[FileRecord]:
    """Yield the summaries of the system of a label file, each with its article as context, and its facts.

    Facts are both aspects and references, because a summary should cover them. Raises UnreadableFileError if the
    numbers of lines of the files differ, and OSError if one is missing.
    """
    folder, _, file = unit.path.rpartition("/labels/")
    system = file.removesuffix(".label")
    names = [f"{folder}/{name}" for name in _OF_ARTICLES]
    names += [f"{folder}/summaries/{system}.summary", unit.path]
    columns = []
    for name in names:
        # Split only by line feeds: an article may contain other line ends
        with open_text(name, newline="\n") as stream:
            columns.append([line.rstrip("\r\n") for line in stream])
    for name, lines in zip(names, columns, strict=True):
        if len(lines) != len(columns[0]):
            raise UnreadableFileError(
                f"{name} has {len(lines):,} lines and {names[0]} {len(columns[0]):,}. Give the whole data set"
            )
    for row in zip(*columns, strict=True):
        yield _realsumm_record(system, *row)


def _realsumm_record(system: str, article: str, document: str, facts: str, summary: str, labels: str) -> FileRecord:
    texts, marks = facts.split("\t"), labels.split("\t")
    if len(texts) != len(marks):
        return FileRecord(
            problem=f"{len(marks)} labels where its article has {len(texts)} facts", raw=f"{article} {system}"
        )
    items = [
        {"id": str(place), "text": text, "labels": [mark]}
        for place, (text, mark) in enumerate(zip(texts, marks, strict=True), start=1)
    ]
    return FileRecord(
        {
            "sample_id": f"{article}-{system}",
            "query_id": article,
            "query": QUERY,
            "response": summary,
            "contexts": [{"id": "article", "text": document}],
            "system": system,
            "aspects": items,
            "references": items,
        }
    )


def read_topics(unit: Unit) -> Iterator[FileRecord]:
    """Yield the topics of a file as questions, with the description as query. Raises UnreadableFileError.

    Two topics of 2014 have an empty description, so the search words are their query. Types are carried unchanged,
    because the files have some that are not in their DTD.
    """
    text = read_text(unit)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, _ = error.position
        raise UnreadableFileError(f"no XML of topics (line {line}). Give the unchanged files of NIST") from error
    for topic in root.iter("topic"):
        number, subtopics, words = topic.get("number"), topic.findall("subtopic"), _text(topic.find("query"))
        if not number:
            yield FileRecord(problem="a topic without a number", raw=ElementTree.tostring(topic, encoding="unicode"))
            continue
        values = {
            "sample_id": number,
            "query_id": number,
            "query": _text(topic.find("description")) or words,
            "topic": words,
            "topic_type": topic.get("type"),
            "aspects": [{"id": one.get("number"), "text": _text(one)} for one in subtopics],
            "aspect_types": [one.get("type") for one in subtopics],
        }
        yield FileRecord(values)


def _text(element: ElementTree.Element | None) -> str | None:
    """Return the text of an element on one line. Its line breaks only wrap the file."""
    return None if element is None else " ".join("".join(element.itertext()).split())


RESULTS = "results"


def read_results(unit: Unit) -> Iterator[FileRecord]:
    """Yield the results of a file as samples, with `gt_answer` as references and ground truth.

    `retrieved_context` becomes the contexts. Raises UnreadableFileError unless the file is an object with a list of
    results.
    """
    value = json_or(read_text(unit), None)
    results = object_of(value).get(RESULTS)
    if not isinstance(results, list):
        raise UnreadableFileError("no JSON object with a list `results`. Give an unchanged file of RAGChecker")
    for row, result in enumerate(results, start=1):
        if not isinstance(result, dict):
            yield FileRecord(problem="no JSON object", raw=canonical(result), row=row)
            continue
        values = dict(result)
        contexts, answer = values.pop("retrieved_context", None), values.pop("gt_answer", None)
        checks = {name: values.pop(name) for fields in FIELDS.values() for name in fields if name in values}
        given = {"contexts": _contexts(contexts), "references": answer, "ground_truth": answer}
        named = {"sample_id": values["query_id"]} if values.get("query_id") not in (None, "") else {}
        yield FileRecord({**named, **values, **given, **({"claim_checks": checks} if checks else {})}, row=row)


def _contexts(passages: Any) -> Any:
    """Return the passages with their documents as ids, or with positions if two have the same document."""
    if not isinstance(passages, list) or not all(isinstance(one, Mapping) for one in passages):
        return passages
    names = [one.get("doc_id") for one in passages]
    named = len(set(map(str, names))) == len(names)
    return [{"id": name if named else None, "text": one.get("text")} for name, one in zip(names, passages, strict=True)]
