"""Questions whose answers are lists, each answer with its proof: QAMPARI and RoMQA. Nobody has answered them yet.

QAMPARI (Amouyal et al. 2022): JSON Lines of qid, question_text and answer_list, an answer being answer_text, aliases,
aid and proof, a list of proof_text with the page that it is from. RoMQA (Zhong et al. 2022), the files of `gold`: a
JSON array of id, question, candidates and complete_answer; a candidate is text, uri, is_answer and evidence, a list of
sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from untold.udfs.samples.file_records import FileRecord

QAMPARI = ("qid", "question_text", "answer_list")
ROMQA = ("id", "question", "candidates")


def qampari(record: FileRecord, _: int) -> list[FileRecord]:
    """The question with its answers as references: the anchor is the answer, the text its proof."""
    if record.problem:
        return [record]
    values = record.values
    answers = [
        _reference(one.get("aid"), one.get("answer_text"), _texts(one.get("proof"), "proof_text"))
        for one in _objects(values.get("answer_list"))
    ]
    return [_question(values.get("qid"), values.get("question_text"), answers)]


def romqa(record: FileRecord, _: int) -> list[FileRecord]:
    """The question with the answers among its candidates as references: anchor the answer, text its evidence.

    An answer that is in `complete_answer` alone has no evidence and is a reference too.
    """
    if record.problem:
        return [record]
    values = record.values
    answers = {
        one.get("uri"): _reference(one.get("uri"), one.get("text"), _texts(one.get("evidence"), "text"))
        for one in _objects(values.get("candidates"))
        if one.get("is_answer") is True
    }
    for one in _objects(values.get("complete_answer")):
        answers.setdefault(one.get("uri"), _reference(one.get("uri"), one.get("text"), []))
    return [_question(values.get("id"), values.get("question"), list(answers.values()))]


def _reference(name: Any, answer: Any, proof: list[str]) -> dict[str, Any]:
    """An answer without proof is its own text, and has no anchor beside it."""
    return {"id": name, "anchor": answer if proof else None, "text": " ".join(proof) or answer}


def _question(name: Any, query: Any, references: list[dict[str, Any]]) -> FileRecord:
    """Contexts are the proofs, each with its answer before it: whoever writes an answer from them can know it all."""
    proofs = [f"{one['anchor']}: {one['text']}" for one in references if one["anchor"]]
    named = {"sample_id": name, "query_id": name}
    return FileRecord({**named, "query": query, "contexts": list(dict.fromkeys(proofs)), "references": references})


def _objects(value: Any) -> Iterable[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _texts(value: Any, name: str) -> list[str]:
    """The distinct texts of a list of objects, in its order."""
    found = [one.get(name) for one in _objects(value)]
    return list(dict.fromkeys(text for text in found if isinstance(text, str) and text.strip()))
