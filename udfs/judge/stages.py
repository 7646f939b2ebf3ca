"""Answer the requests of stages with the judge of the package, in the JSON of language models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.facts.nugget_measures import NOT_SUPPORT, PARTIAL, SUPPORT
from untold.udfs.judge.model import Judgement, shipped_judge
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.store_files import Completion
from untold.udfs.recall.segmentation import cut, distinct_facts
from untold.udfs.retrieval.classifying import find_for
from untold.udfs.retrieval.embedding import LOCAL_ANSWERS, Answering, Answers, Row, open_embedder
from untold.udfs.retrieval.local_models import find_minilm

# Minimum probability of a stated fact, and of a partly stated fact
STATED, PARTLY_STATED = 0.5, 0.2
# The default of longrecall.anchor_words
_ANCHOR_WORDS = 10
# Minimum cosines of query and statement for the ratings 2, 3, 4 and 5
_COSINES = (0.1, 0.2, 0.3, 0.5)
# Types of atoms
_FACT, _QUESTION = "Fact", "Question"
UNJUDGED = "unjudged"
RELEVANCE = "rate_relevance"

# Texts, facts, and the queries that the texts answer, or empty strings
Pairs = list[tuple[str, str, str]]


class Unjudged(Exception):
    """A judgement has no probability. The message is the reason."""


@dataclass(frozen=True)
class JudgedStage:
    """The answers of a stage.

    `pairs` returns the pairs (text, fact, query) of a request. `answer` returns the completion in the schema of the
    stage. It receives the variables and the judgements in the order of the pairs, and raises Unjudged.
    """

    answer: Callable[[Row, Sequence[Judgement]], Mapping[str, Any]]
    pairs: Callable[[Row], Pairs] = lambda row: []


def statements_in(text: str) -> list[str]:
    """Return the distinct list items and sentences of a text, in order.

    >>> statements_in("It rained. It rained. Why?")
    ['It rained.', 'Why?']
    """
    return [fact.text for fact in distinct_facts(cut(text, "list", _ANCHOR_WORDS))]


def claims_in(text: str) -> list[str]:
    """Return the statements of a text without its questions."""
    return [statement for statement in statements_in(text) if not _asks(statement)]


def _asks(statement: str) -> bool:
    return statement.endswith("?")


def relation_of(judgement: Judgement) -> str:
    """Return the relation of a pair, by its larger probability. Raises Unjudged without a probability."""
    entailment, contradiction = _known(judgement)
    if max(entailment, contradiction) < STATED:
        return "neutral"
    return "entailment" if entailment >= contradiction else "contradiction"


def _known(judgement: Judgement) -> tuple[float, float]:
    if judgement.entailment is None or judgement.contradiction is None:
        raise Unjudged(judgement.reason or "the judgement has no probability")
    return judgement.entailment, judgement.contradiction


def _states(judgement: Judgement) -> bool:
    return _known(judgement)[0] >= STATED


def _support_of(judgement: Judgement) -> str:
    entailment, _ = _known(judgement)
    return SUPPORT if entailment >= STATED else PARTIAL if entailment >= PARTLY_STATED else NOT_SUPPORT


def _citation_support_of(judgement: Judgement) -> str:
    return {SUPPORT: "full_support", PARTIAL: "partial_support", NOT_SUPPORT: "no_support"}[_support_of(judgement)]


def _reason_of(judgement: Judgement) -> str:
    return f"probability {_known(judgement)[0]:.2f}"


def _of_lists(
    text: str,
    facts: str,
    records: str,
    number: str,
    label: str,
    label_of: Callable[[Judgement], str],
    reason_of: Callable[[Judgement], str] | None = None,
) -> JudgedStage:
    """Return a stage that labels each fact of a list by one text. A fact without a probability has no record.

    The stage raises Unjudged if no fact has a probability. `text`, with one or several texts, and `facts` are
    variables; `records`, `number` and `label` are fields of the schema. With `reason_of` a record has a reason too.
    """

    def answer(row: Row, judgements: Sequence[Judgement]) -> Mapping[str, Any]:
        found = []
        for place, judgement in enumerate(judgements, start=1):
            if judgement.entailment is not None:
                reason = {} if reason_of is None else {"reason": reason_of(judgement)}
                found.append({number: place, **reason, label: label_of(judgement)})
        if judgements and not found:
            _known(judgements[0])
        return {records: found}

    def pairs(row: Row) -> Pairs:
        joined = row[text] if isinstance(row[text], str) else "\n\n".join(row[text])
        return [(joined, fact, row.get("query", "")) for fact in row[facts]]

    return JudgedStage(answer, pairs)


def _several(fact: str, texts: Sequence[str]) -> Pairs:
    """Return the pairs of a fact with each text, and with the joined texts."""
    together = [" ".join(texts)] if len(texts) > 1 else []
    return [(text, fact, "") for text in [*texts, *together]]


def _stating(judgements: Sequence[Judgement], count: int) -> list[int]:
    """Return the numbers, from 1, of the texts that state a fact. All texts count if only the joined texts state it.

    Raises Unjudged if no text states the fact and a judgement has no probability.
    """
    judged = [number for number, one in enumerate(judgements, start=1) if one.reason is None]
    alone = [number for number in judged if number <= count and _states(judgements[number - 1])]
    if alone:
        return alone
    return list(range(1, count + 1)) if any(list(map(_states, judgements))[count:]) else []


def _align(row: Row, judgements: Sequence[Judgement]) -> Mapping[str, Any]:
    left = iter(judgements)
    covered = []
    for number, _ in enumerate(row["aspects"], start=1):
        evidence = _stating(list(islice(left, len(row["claims"]))), len(row["claims"]))
        covered.append({"topic_id": number, "evidence": evidence})
    return {"covered": covered}


def _cover(row: Row, judgements: Sequence[Judgement]) -> Mapping[str, Any]:
    claims = _stating(judgements, len(row["claims"]))
    return {"label": "COVERED" if claims else "NOT_COVERED", "evidence_claim_ids": claims}


def _verify(_: Row, judgements: Sequence[Judgement]) -> Mapping[str, Any]:
    if any(relation_of(one) == "entailment" for one in judgements if one.reason is None):
        return {"verdict": SUPPORTED}
    contradicts = "contradiction" in [relation_of(one) for one in judgements]
    return {"verdict": CONTRADICTED if contradicts else NOT_SUPPORTED}


def _listed(name: str, variable: str = "text") -> JudgedStage:
    return JudgedStage(lambda row, _: {name: claims_in(row[variable])})


def _atoms(row: Row, _: Sequence[Judgement]) -> Mapping[str, Any]:
    units = statements_in(row["text"])
    return {"atoms": [{"unit": one, "type": _QUESTION if _asks(one) else _FACT} for one in units]}


def _relevance(row: Row, _: Sequence[Judgement]) -> Mapping[str, Any]:
    """Rate each statement by the cosine of its vector and the vector of the query."""
    vectors = open_embedder(find_minilm(), "mean", 256).embed([row["query"], *row["statements"]])
    lengths = np.linalg.norm(vectors, axis=1)
    cosines = (vectors[1:] @ vectors[0]) / (lengths[1:] * lengths[0])
    ratings = 1 + np.searchsorted(_COSINES, cosines, side="right")
    return {"ratings": [{"id": number, "relevance": int(one)} for number, one in enumerate(ratings, start=1)]}


_RELATIONS = _of_lists("premise", "hypotheses", "relations", "id", "relation", relation_of)

JUDGED: Mapping[str, JudgedStage] = {
    "classify_relation": JudgedStage(
        lambda _, found: {"relation": relation_of(found[0])}, lambda row: [(row["premise"], row["hypothesis"], "")]
    ),
    "classify_relations": _RELATIONS,
    "check_claims": _RELATIONS,
    "match_one": JudgedStage(
        lambda _, found: {"label": "Match" if _states(found[0]) else "No Match"},
        lambda row: [(row["candidate"], row["reference"], "")],
    ),
    "match_many": JudgedStage(
        lambda row, found: {"candidates": _stating(found, len(row["candidates"]))},
        lambda row: _several(row["reference"], row["candidates"]),
    ),
    "assign_nuggets": _of_lists("response", "nuggets", "labels", "number", "label", _support_of),
    "judge_support": _of_lists("sources", "sentences", "labels", "number", "label", _citation_support_of, _reason_of),
    "align_claims": JudgedStage(
        _align, lambda row: [(claim, aspect, row["query"]) for aspect in row["aspects"] for claim in row["claims"]]
    ),
    "verify_claim": JudgedStage(_verify, lambda row: [(text, row["claim"], "") for text in row["evidence"]]),
    "check_coverage": JudgedStage(_cover, lambda row: _several(row["fact"], row["claims"])),
    "extract_atoms": JudgedStage(_atoms),
    "revise_atoms": JudgedStage(lambda row, _: {"statements": list(row["statements"])}),
    RELEVANCE: JudgedStage(_relevance),
    "extract_claims": _listed("claims"),
    "extract_facts": _listed("facts"),
    "extract_verifiable_claims": _listed("claims", "sentence"),
}
"""The stages that the judge answers."""

GIVEN: Mapping[str, str] = {
    "create_nuggets": "the judge cannot create nuggets. Give the nuggets of the sample as references",
    "rate_nuggets": "the judge cannot rate nuggets. Give each nugget an importance or a weight",
    "rate_importance": "the judge cannot rate facts. Give the facts of the sample as references",
}
"""The reasons of failure of stages that the judge cannot answer. Samples with given facts make no such request."""


def judging(stage: Stage) -> Answers:
    """Return a function that answers requests of a stage. A request without a probability fails as `unjudged`.

    The column tool_trace contains the probabilities and windows of each pair, as JSON. Raises LocalModelFileError if
    the files of this worker differ from the files of the driver.
    """
    find_for(stage)
    judged, judge = JUDGED.get(stage.name), shipped_judge()

    def answers(rows: Sequence[Row]) -> list[Completion]:
        if judged is None:
            return [_failed(row, GIVEN[stage.name]) for row in rows]
        pairs = [judged.pairs(row) for row in rows]
        flat = [pair for own in pairs for pair in own]
        found = iter(judge.assess(*zip(*flat, strict=True)) if flat else [])
        return [_completion(judged, row, list(islice(found, len(own)))) for row, own in zip(rows, pairs, strict=True)]

    return answers


def _completion(judged: JudgedStage, row: Row, judgements: Sequence[Judgement]) -> Completion:
    trace = json.dumps(list(map(_traced, judgements))) if judgements else None
    try:
        text = json.dumps(judged.answer(row, judgements), ensure_ascii=False)
    except Unjudged as error:
        return _failed(row, str(error), trace)
    return Completion(row["request_id"], text=text, tool_trace=trace)


def _traced(judgement: Judgement) -> dict[str, Any]:
    """Return the known fields of a judgement, with six digits of a probability."""
    known = {name: value for name, value in asdict(judgement).items() if value is not None}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in known.items()}


def _failed(row: Row, reason: str, trace: str | None = None) -> Completion:
    return Completion(row["request_id"], tool_trace=trace, error_type=UNJUDGED, error=reason)


ANSWERS: Mapping[str, Answering] = {**LOCAL_ANSWERS, **dict.fromkeys((*JUDGED, *GIVEN), judging)}
"""The functions that answer requests in Spark's tasks, by stage."""
