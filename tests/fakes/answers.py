"""The completions of the model server. An answer is a function from the variables of a prompt to a completion."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.fakes.claims import say_icat
from tests.fakes.criteria import say_relevancy, say_rubric, say_support
from tests.fakes.facts import IRRELEVANT, JUDGES, Odds, careless_lines, say
from tests.fakes.importance import say_importance
from tests.fakes.nuggets import say_nuggets
from tests.fakes.questions import NO_INFORMATION, careless_comparisons, quantities_of, say_qa
from tests.fakes.recall import say_longrecall
from tests.fakes.scripted import say_scripted
from tests.fakes.tools import Call, call
from tests.fakes.voters import VOTERS, say_vote

Payload = dict[str, Any]
Statement = tuple[str, tuple[int, ...]]

COVERED = "[Covered statements]"
UNCOVERED = "[Uncovered statements]"
DISPUTED = " (disputed)."
GARBAGE = "lorem ipsum dolor sit amet, consectetur adipiscing elit; sed do eiusmod tempor"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w+")
_SAID = 0.7
_RATINGS = tuple("12345")


@dataclass(frozen=True, slots=True)
class Said:
    """A completion, with the probabilities of alternative tokens by offset, including the tokens of the completion.

    If `call` is set, it is a call of a tool instead.
    """

    text: str
    odds: Mapping[int, Odds] = field(default_factory=dict)
    call: Call | None = None


Answer = Callable[[Payload], str | Said]


def collapse(text: str) -> str:
    """Return the text with single spaces and without outer spaces, the form in which statements are compared."""
    return " ".join(text.split())


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in order, with single spaces. They end with `.`, `!` or `?` before a space."""
    return [sentence for sentence in map(collapse, _SENTENCE_END.split(text)) if sentence]


def expected_summary(text: str) -> str | None:
    """Return the summary by `e2e`: the sentences without the word IRRELEVANT, or None if there are none."""
    kept = [sentence for sentence in sentences(text) if IRRELEVANT not in _WORD.findall(sentence)]
    return " ".join(kept) or None


def expected_e2e(query: str, contexts: Sequence[str], response: str) -> tuple[list[Statement], list[Statement]]:
    """Return the (covered, uncovered) statements of `e2e`: (text, context numbers from 1), in order of appearance.

    Each distinct sentence of the contexts is a statement. It is covered if the response contains it verbatim.
    """
    sources: dict[str, list[int]] = {}
    for number, context in enumerate(contexts, start=1):
        for sentence in sentences(context):
            numbers = sources.setdefault(sentence, [])
            if number not in numbers:
                numbers.append(number)
    said = collapse(response)
    statements = [(sentence, tuple(numbers)) for sentence, numbers in sources.items()]
    covered = [statement for statement in statements if statement[0] in said]
    return covered, [statement for statement in statements if statement[0] not in said]


def statement_lines(statements: Iterable[Statement]) -> str:
    """Return the statements as lines `- text [1, 2]`.

    Line breaks become spaces. Only the last bracket of a line has its sources. If a statement without sources ends with
    a bracket, `[0]` follows it, because no context has this number.
    """
    lines = []
    for text, numbers in statements:
        text = " ".join(text.splitlines()).strip()
        shown = list(numbers) or ([0] if text.endswith("]") else [])
        lines.append(f"- {text} {shown}" if shown else f"- {text}")
    return "\n".join(lines)


def coverage_text(covered: Iterable[Statement], uncovered: Iterable[Statement], preamble: str = "Reasoning.") -> str:
    """Return a completion in the form of `evaluate_coverage`. An empty list has no lines."""
    return f"{preamble}\n\n{COVERED}\n{statement_lines(covered)}\n\n{UNCOVERED}\n{statement_lines(uncovered)}\n"


def fixed(payload: Payload) -> str:
    """Return a constant valid completion per stage. A prompt of an unknown stage gets `evaluate_coverage`."""
    return _FIXED.get(payload.get("stage", ""), _FIXED["evaluate_coverage"])


def e2e(payload: Payload) -> str:
    """Return the deterministic truth: `expected_summary` and `expected_e2e` in the forms of their stages.

    `generate_answer` returns all sentences in the summaries of the contexts.
    """
    if payload.get("stage") == "summarise_context":
        return expected_summary(payload["text"]) or "None"
    if payload.get("stage") == "generate_answer":
        return " ".join(filter(None, map(expected_summary, payload["contexts"] or ()))) or NO_INFORMATION
    if payload.get("stage") != "evaluate_coverage":
        return fixed(payload)
    covered, uncovered = expected_e2e(payload["query"], payload["contexts"], payload["response"])
    preamble = f"Sentence by sentence.\n- {len(covered)} of {len(covered) + len(uncovered)} are in the response [1]"
    return coverage_text(covered, uncovered, preamble)


def strict(payload: Payload) -> str:
    """Answer as `e2e`, with a judge that rejects sentences that end with `DISPUTED`."""
    return e2e({**payload, "response": str(payload.get("response", "")).replace(DISPUTED, "")})


def echo(payload: Payload) -> str:
    """Return the variables as JSON."""
    return json.dumps(payload, ensure_ascii=False, sort_keys=True)


def world(payload: Payload, judge: str) -> str | Said:
    """Return the truth of the symbolic world of `tests.fakes.facts` by this judge. Other stages answer as `e2e`.

    If there is a tool, the model calls it for two lengths, and uses its result.
    """
    if payload.get("stage") == "compare_answers" and payload.get("tools") and "outcome" not in payload:
        quantities = quantities_of(payload["question"], payload["first"], payload["second"])
        if quantities:
            return Said("", call=call(quantities))
    said = say(payload, judge) or say_qa(payload, judge) or say_longrecall(payload, judge)
    said = said or say_icat(payload) or say_importance(payload, judge) or say_nuggets(payload, judge)
    said = said or say_rubric(payload, judge) or say_support(payload, judge) or say_relevancy(payload, judge)
    return e2e(payload) if said is None else Said(*said)


def careless(payload: Payload, judge: str) -> str | Said:
    """Answer as `world`, with faults of lists (`tests.fakes.facts.careless_lines`)."""
    if payload.get("stage") == "compare_many":
        return "\n".join(careless_comparisons(payload, judge))
    if payload.get("stage") not in ("classify_relations", "check_claims"):
        return world(payload, judge)
    return "\n".join(careless_lines(payload["premise"], payload["hypotheses"], judge))


def first_only(payload: Payload) -> str | Said:
    """Answer as a judge that reads only the first context. Each context is one statement."""
    if payload.get("stage") != "evaluate_coverage":
        return fixed(payload)
    lists: dict[bool, list[str]] = {True: [], False: []}
    for number, text in enumerate(payload["contexts"], start=1):
        lists[number == 1 and text in payload["response"]].append(f"- {text} [{number}]")
    return "\n".join([COVERED, *lists[True], "", UNCOVERED, *lists[False]])


def voter(payload: Payload, name: str) -> str | Said:
    """Answer as a judge of a panel (`tests.fakes.voters`). Other stages answer as `world`."""
    said = say_vote(payload, name)
    return world(payload, "closed") if said is None else said


def verbatim(payload: Payload) -> str:
    """Return the sentences of a text as facts and claims. A verbatim match with evidence or claims is support.

    The text of a fact contains its relevance and salience. Other stages answer as `fixed`.
    """
    stage = payload.get("stage")
    if stage in ("extract_facts", "extract_claims"):
        return "\n".join(f"- {sentence}" for sentence in sentences(payload["text"])) or "None"
    if stage == "rate_importance":
        digests = (sha256(fact.encode()).digest() for fact in payload["facts"])
        rated = enumerate(((1 + digest[0] % 5, 1 + digest[1] % 5) for digest in digests), start=1)
        return json.dumps([{"id": number, "relevance": one, "salience": other} for number, (one, other) in rated])
    if stage == "verify_claim":
        return "supported" if any(payload["claim"] in text for text in payload["evidence"]) else "not_supported"
    if stage == "check_coverage":
        numbers = [number for number, claim in enumerate(payload["claims"], start=1) if claim == payload["fact"]]
        return json.dumps({"label": "COVERED" if numbers else "NOT_COVERED", "evidence_claim_ids": numbers})
    return fixed(payload)


def scripted(payload: Payload, *, hasty: bool = False) -> str | Said:
    """Answer from `tests.fakes.scripted`. Other stages answer as `fixed`."""
    said = say_scripted(payload, hasty=hasty)
    return fixed(payload) if said is None else Said(*said)


def garbage(payload: Payload) -> str:
    """Return a text that does not have the form of any stage, except for a summary, which may be any text."""
    return GARBAGE


def replay_key(query: str, contexts: Sequence[str], response: str) -> str:
    """Return the key of a row of a replay table: sha256 of the variables of `evaluate_coverage`."""
    return sha256(json.dumps([query, list(contexts), response]).encode("ascii")).hexdigest()


def replay(table: Mapping[str, str]) -> Answer:
    """Return an answer that reads `evaluate_coverage` from a table by `replay_key`. Other stages answer as `fixed`.

    The answer raises LookupError for an input that was not recorded.
    """

    def answer(payload: Payload) -> str:
        if payload.get("stage") != "evaluate_coverage":
            return fixed(payload)
        return table[replay_key(payload["query"], payload["contexts"], payload["response"])]

    return answer


def find_answer(name: str) -> Answer:
    """Return the answer with this name, or the table of `replay:<path>`. Raises ValueError for an unknown name."""
    if name.startswith("replay:"):
        return replay(json.loads(Path(name.removeprefix("replay:")).read_text(encoding="utf-8")))
    if name not in _ANSWERS:
        near = get_close_matches(name, _ANSWERS, n=2)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"unknown answer {name!r}; known: {', '.join(_ANSWERS)}, replay:<path>{hint}")
    return _ANSWERS[name]


def spread(token: str) -> Odds:
    """Return 0.7 for the token, and the rest in equal parts for others. For digits these are the others of 1 to 5."""
    space, word = token[: len(token) - len(token.lstrip())], token.strip()
    others = (
        [space + digit for digit in _RATINGS if digit != word] if word.isdigit() else [f"{token}~{i}" for i in range(9)]
    )
    return {token: _SAID} | {other: (1 - _SAID) / 2**rank for rank, other in enumerate(others, start=1)}


def likeliest(odds: Odds, said: str, top: int) -> list[str]:
    """Return the requested number of alternatives, with the token of the completion first, then by probability."""
    return sorted(odds, key=lambda token: (token != said, -odds[token]))[:top]


def expected_score(odds: Odds, said: str, top: int | None) -> float:
    """Return the expected rating for a digit with these odds, if the request asks for `top` alternatives.

    E = sum of s p(s) / sum of p(s) over the digits 1 to 5 in the alternatives. The digit counts if `top` is None.
    """
    shown = {} if top is None else {token: odds[token] for token in likeliest(odds, said, top) if token in _RATINGS}
    total = sum(shown.values())
    return sum(int(digit) * share for digit, share in shown.items()) / total if total else float(said)


def content_of(turn: Mapping[str, Any]) -> str:
    """Return the text of a message, with other parts as JSON."""
    content = turn["content"]
    return content if isinstance(content, str) else json.dumps(content)


def payload_of(text: str) -> Payload:
    """Return the stage and variables of a machine-readable prompt, empty for any other prompt."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        payload = json.loads(text)
    except ValueError:
        return {}
    return payload if isinstance(payload, dict) and isinstance(payload.get("stage"), str) else {}


_ANSWERS: dict[str, Answer] = {"fixed": fixed, "e2e": e2e, "echo": echo, "verbatim": verbatim, "garbage": garbage}
_ANSWERS |= {f"world_{judge}": partial(world, judge=judge) for judge in JUDGES}
_ANSWERS |= {f"careless_{judge}": partial(careless, judge=judge) for judge in JUDGES}
_ANSWERS["world"] = _ANSWERS["world_closed"]
_ANSWERS |= {f"voter_{name}": partial(voter, name=name) for name in VOTERS}
_ANSWERS |= {"first_only": first_only, "strict": strict, "scripted": scripted, "hasty": partial(scripted, hasty=True)}
_FIXED = {
    "list_conflicts": '{"first": "A fixed fact.", "first_sources": [1], "second": "Another.", "second_sources": [1]}',
    "cover_sides": "1: covered",
    "generate_answer": "A fixed answer. It has two sentences.",
    "restate_answer": "A fixed statement.",
    "extract_claims": "A fixed claim.",
    "extract_verifiable_claims": "A fixed claim.",
    "generate_aspects": '{"topic": "a fixed topic"}',
    "align_claims": '{"topic_id": 1, "evidence": [1]}',
    "extract_facts": "- A fixed fact.",
    "rate_importance": '[{"id": 1, "relevance": 4, "salience": 3}]',
    "verify_claim": "supported",
    "check_coverage": '{"label": "COVERED", "evidence_claim_ids": [1]}',
    "resolve_coreference": "* A fixed fact.",
    "match_one": "Match",
    "check_claims": "1: entailment",
    "match_many": "[1]",
    "match_holistic": '{"reference": 1, "candidates": [1]}',
    "create_nuggets": "- A fixed nugget.",
    "rate_nuggets": "1: vital",
    "assign_nuggets": "1: support",
    "judge_criteria": "1: met | A fixed reason.",
    "judge_relevancy": "1: relevant | A fixed reason.",
    "judge_support": "1: full_support | A fixed reason.",
    "summarise_context": "A fixed summary. It has two sentences.",
    "evaluate_coverage": coverage_text([("A fixed covered statement.", (1,))], [("A fixed uncovered one.", (1,))]),
}
