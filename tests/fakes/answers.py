"""What the model server says, and the rules by which it misbehaves.

An answer is a function from the variables of a prompt to a completion. A rule is
`{"when": {...}, "do": {...}}`, the first that matches wins; `_CONDITIONS` and `_DEEDS` list what may stand there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from hashlib import blake2b, sha256
from http.client import responses
from itertools import accumulate
from math import log
from pathlib import Path
from typing import Any

from tests.fakes.facts import IRRELEVANT, JUDGES, Odds, say
from tests.fakes.questions import NO_INFORMATION, quantities_of, say_qa
from tests.fakes.tools import NO_TOOLS, Call, call, forced_call

Payload = dict[str, Any]
Statement = tuple[str, tuple[int, ...]]

COVERED = "[Covered statements]"
UNCOVERED = "[Uncovered statements]"
GARBAGE = "lorem ipsum dolor sit amet, consectetur adipiscing elit; sed do eiusmod tempor"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\s*[^\s\d]+|\s*\d|\s+")
_SAID = 0.7
_RATINGS = tuple("12345")
_HTML = b"<!DOCTYPE html>\n<html><head><title>Bad gateway</title></head><body><h1>Bad gateway</h1></body></html>\n"
_THOUGHT = "<think>\nThe statements are compared one by one.\n</think>\n\n"
_CONDITIONS = {"share", "seed", "every", "first", "after", "stage", "contains", "attempt_below", "between"}
_DEEDS = {"delay", "status", "headers", "error", "body", "hang", "html", "cut_json", "cut_body", "refuse", "garbage"}
_DEEDS |= {"empty", "null", "length", "filter", "no_usage", "no_logprobs", "text", "think"}
_DEEDS |= {"no_tools", "tool_garbage", "tool_loop", "finish", "nan", "zero", "short", "drop"}


@dataclass(frozen=True, slots=True)
class Said:
    """A completion, and by offset the probabilities of what could stand at some places of it, what stands there too.

    With `call` it is a call of a tool instead.
    """

    text: str
    odds: Mapping[int, Odds] = field(default_factory=dict)
    call: Call | None = None


Answer = Callable[[Payload], str | Said]


def collapse(text: str) -> str:
    """The text trimmed, each run of white space one space: the form in which statements are compared."""
    return " ".join(text.split())


def sentences(text: str) -> list[str]:
    """The sentences of a text in order, white space collapsed; one ends with `.`, `!` or `?` before white space."""
    return [sentence for sentence in map(collapse, _SENTENCE_END.split(text)) if sentence]


def expected_summary(text: str) -> str | None:
    """What `e2e` makes of a context: the sentences without the word IRRELEVANT; None where nothing is left."""
    kept = [sentence for sentence in sentences(text) if IRRELEVANT not in _WORD.findall(sentence)]
    return " ".join(kept) or None


def expected_e2e(query: str, contexts: Sequence[str], response: str) -> tuple[list[Statement], list[Statement]]:
    """The (covered, uncovered) statements that `e2e` gives: (text, numbers of the contexts from 1), first seen first.

    Each distinct sentence of the contexts is a statement, covered where the response has it verbatim.
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
    """The statements as lines `- text [1, 2]`.

    Line breaks become spaces. Only a line's last bracket is its sources: where a statement without sources ends with a
    bracket of its own, `[0]`, which is no context's number, stands after it.
    """
    lines = []
    for text, numbers in statements:
        text = " ".join(text.splitlines()).strip()
        shown = list(numbers) or ([0] if text.endswith("]") else [])
        lines.append(f"- {text} {shown}" if shown else f"- {text}")
    return "\n".join(lines)


def coverage_text(covered: Iterable[Statement], uncovered: Iterable[Statement], preamble: str = "Reasoning.") -> str:
    """A completion in the form of `evaluate_coverage`; an empty list has no lines."""
    return f"{preamble}\n\n{COVERED}\n{statement_lines(covered)}\n\n{UNCOVERED}\n{statement_lines(uncovered)}\n"


def fixed(payload: Payload) -> str:
    """One constant valid completion a stage; a prompt of no known stage gets the one of `evaluate_coverage`."""
    return _FIXED.get(payload.get("stage", ""), _FIXED["evaluate_coverage"])


def e2e(payload: Payload) -> str:
    """The deterministic truth: `expected_summary` and `expected_e2e` in the forms of their stages.

    `generate_answer` gets all that the summaries of the contexts say.
    """
    if payload.get("stage") == "summarise_context":
        return expected_summary(payload["text"]) or "None"
    if payload.get("stage") == "generate_answer":
        return " ".join(filter(None, map(expected_summary, payload["contexts"]))) or NO_INFORMATION
    if payload.get("stage") != "evaluate_coverage":
        return fixed(payload)
    covered, uncovered = expected_e2e(payload["query"], payload["contexts"], payload["response"])
    preamble = f"Sentence by sentence.\n- {len(covered)} of {len(covered) + len(uncovered)} are in the response [1]"
    return coverage_text(covered, uncovered, preamble)


def echo(payload: Payload) -> str:
    """The variables themselves, as JSON."""
    return json.dumps(payload, ensure_ascii=False, sort_keys=True)


def world(payload: Payload, judge: str) -> str | Said:
    """The truth of the symbolic world of `tests.fakes.facts`, by that judge; for stages unknown there, as `e2e`.

    Two lengths are given to the tool where there is one, and what it says of them counts.
    """
    if payload.get("stage") == "compare_answers" and payload.get("tools") and "outcome" not in payload:
        quantities = quantities_of(payload["question"], payload["first"], payload["second"])
        if quantities:
            return Said("", call=call(quantities))
    said = say(payload, judge) or say_qa(payload, judge)
    return e2e(payload) if said is None else Said(*said)


def garbage(payload: Payload) -> str:
    """Text that has the form of no stage (for a summary, any text has)."""
    return GARBAGE


def replay_key(query: str, contexts: Sequence[str], response: str) -> str:
    """The key of a row of a replay table: sha256 of what `evaluate_coverage` is shown."""
    return sha256(json.dumps([query, list(contexts), response]).encode("ascii")).hexdigest()


def replay(table: Mapping[str, str]) -> Answer:
    """Answers `evaluate_coverage` from a table by `replay_key`, everything else as `fixed`.

    The answer raises LookupError for an input that was never recorded.
    """

    def answer(payload: Payload) -> str:
        if payload.get("stage") != "evaluate_coverage":
            return fixed(payload)
        return table[replay_key(payload["query"], payload["contexts"], payload["response"])]

    return answer


def find_answer(name: str) -> Answer:
    """The answer of that name, or the table of `replay:<path>`. Raises ValueError for an unknown name."""
    if name.startswith("replay:"):
        return replay(json.loads(Path(name.removeprefix("replay:")).read_text(encoding="utf-8")))
    if name not in _ANSWERS:
        near = get_close_matches(name, _ANSWERS, n=2)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"unknown answer {name!r}; known: {', '.join(_ANSWERS)}, replay:<path>{hint}")
    return _ANSWERS[name]


def count_tokens(text: str) -> int:
    """The server's measure of tokens: a quarter of the UTF-8 bytes, and one."""
    return len(text.encode("utf-8", "replace")) // 4 + 1


def completion_body(
    request: Mapping[str, Any], chat: bool, said: Said | None, finish_reason: str, usage: tuple[int, int] | None
) -> Payload:
    """The object that answers a request: a chat completion or a plain one, with log-probabilities where asked for.

    `usage` is (prompt tokens, completion tokens), None to leave it out.
    """
    text = None if said is None else said.text
    body: Payload = {
        "id": "cmpl-0",
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": request.get("model", ""),
    }
    choice: Payload = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
    if said is not None and said.call:
        choice["message"] = {"role": "assistant", "content": None, "tool_calls": [said.call]}
    elif chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    if said is not None and request.get("logprobs"):
        choice["logprobs"] = chat_logprobs(said, int(request.get("top_logprobs") or 0)) if chat else None
        if not chat:
            choice["logprobs"] = plain_logprobs(said, int(request["logprobs"]))
    body["choices"] = [choice]
    if usage is not None:
        prompt, completion = usage
        total = prompt + completion
        body["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    return body


def chat_logprobs(said: Said, top: int) -> Payload:
    """Log-probabilities as chat completions have them: a token a word, digits their own; 0.7 on it without odds."""
    return {
        "content": [
            _logprob(token, odds[token])
            | {"top_logprobs": [_logprob(other, odds[other]) for other in likeliest(odds, token, top)]}
            for token, odds in _tokens(said)
        ]
    }


def plain_logprobs(said: Said, top: int) -> Payload:
    """The same as plain completions have them: parallel lists, alternatives as a mapping."""
    tokens = _tokens(said)
    lengths = (len(token) for token, _ in tokens)
    return {
        "tokens": [token for token, _ in tokens],
        "token_logprobs": [log(odds[token]) for token, odds in tokens],
        "top_logprobs": [{other: log(odds[other]) for other in likeliest(odds, token, top)} for token, odds in tokens],
        "text_offset": [0, *accumulate(lengths)][: len(tokens)],
    }


def spread(token: str) -> Odds:
    """0.7 on the token, half of what is left on each of the others; those of a digit are the other ones of 1 to 5."""
    space, word = token[: len(token) - len(token.lstrip())], token.strip()
    others = (
        [space + digit for digit in _RATINGS if digit != word] if word.isdigit() else [f"{token}~{i}" for i in range(9)]
    )
    return {token: _SAID} | {other: (1 - _SAID) / 2**rank for rank, other in enumerate(others, start=1)}


def likeliest(odds: Odds, said: str, top: int) -> list[str]:
    """The alternatives that are shown: as many as asked for, what was said first, then by probability."""
    return sorted(odds, key=lambda token: (token != said, -odds[token]))[:top]


def expected_score(odds: Odds, said: str, top: int | None) -> float:
    """The rating that must come of a digit said with these odds where `top` alternatives are asked for.

    E = sum of s p(s) / sum of p(s) over the digits 1 to 5 shown; the digit itself where none is asked for (None).
    """
    shown = {} if top is None else {token: odds[token] for token in likeliest(odds, said, top) if token in _RATINGS}
    total = sum(shown.values())
    return sum(int(digit) * share for digit, share in shown.items()) / total if total else float(said)


def _tokens(said: Said) -> list[tuple[str, Odds]]:
    """The tokens of a completion in order, each with its odds."""
    found = []
    for match in _TOKEN.finditer(said.text):
        token = match[0]
        space = token[: len(token) - len(token.lstrip())]
        odds = said.odds.get(match.start() + len(space))
        found.append((token, {space + word: share for word, share in odds.items()} if odds else spread(token)))
    return found


def _logprob(token: str, probability: float) -> Payload:
    return {"token": token, "logprob": log(probability), "bytes": list(token.encode("utf-8", "replace"))}


@dataclass(frozen=True)
class Config:
    """What the server does; all of it can change while it runs.

    `limits` has requests_per_minute, tokens_per_minute (sliding 60 s windows over what was let in) and retry_after in
    seconds. `latency` is in seconds, for every answer. With `api_key`, a request without that bearer token gets a 401.
    """

    answer: str = "e2e"
    rules: Sequence[Mapping[str, Any]] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    latency: float = 0.0
    down: bool = False
    api_key: str | None = None
    model: str = "fake-model"

    def __post_init__(self) -> None:
        for rule in self.rules:
            _check_names("rule", rule, {"when", "do"})
            _check_names("condition", rule.get("when", {}), _CONDITIONS)
            _check_names("deed", deeds_of(rule), _DEEDS)
        _check_names("limit", self.limits, {"requests_per_minute", "tokens_per_minute", "retry_after"})
        find_answer(self.answer)


@dataclass(slots=True)
class Request:
    """A request for a completion, as rules see it.

    `key` is a hash of its messages; `index` (among all) and `attempt` (of this key) count from 1.
    """

    chat: bool
    body: dict[str, Any]
    raw: bytes
    prompt: str
    payload: dict[str, Any]
    key: int
    index: int
    attempt: int
    elapsed: float


def condition(when: Mapping[str, Any], rule_index: int) -> Callable[[Request], bool]:
    """Whether all of `when` holds for a request. Shares of rules without a seed are independent of each other."""
    tests = [make(when[name]) for name, make in _TESTS.items() if name in when]
    if "share" in when:
        salt, share = str(when.get("seed", rule_index)).encode(), when["share"] * 2**64
        tests.append(lambda request: hash_of(salt + request.key.to_bytes(8, "big")) < share)
    return lambda request: all(test(request) for test in tests)


def _contains(request: Request, text: str) -> bool:
    if text in request.raw.decode("utf-8", "replace") or text in request.prompt:
        return True
    return text in json.dumps(request.payload, ensure_ascii=False)


_TESTS: dict[str, Callable[[Any], Callable[[Request], bool]]] = {
    "every": lambda n: lambda request: request.index % n == 0,
    "first": lambda n: lambda request: request.index <= n,
    "after": lambda n: lambda request: request.index > n,
    "stage": lambda name: lambda request: request.payload.get("stage") == name,
    "contains": lambda text: lambda request: _contains(request, text),
    "attempt_below": lambda k: lambda request: request.attempt < k,
    "between": lambda span: lambda request: span[0] <= request.elapsed < span[1],
}


def deeds_of(rule: Mapping[str, Any]) -> dict[str, Any]:
    """What a rule does; a bare name is a deed without a value."""
    deeds = rule.get("do", {})
    return {deeds: True} if isinstance(deeds, str) else dict(deeds)


def _check_names(kind: str, names: Mapping[str, Any], known: set[str]) -> None:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=2)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}{hint}")


def hash_of(data: bytes) -> int:
    """A hash of 64 bits."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


@dataclass(slots=True)
class Reply:
    """What goes back: the bytes, None for never, and whether the connection ends after them."""

    status: int
    content: bytes | None
    close: bool = False
    completion_tokens: int = 0
    delay: float = 0.0


def make_reply(
    answer: Answer,
    request: Request,
    prompt_tokens: int,
    deeds: Mapping[str, Any],
    lookup: Callable[[Request, int, Mapping[str, Any]], Reply] | None = None,
) -> Reply:
    """The reply with a completion by `answer`, or by `lookup`, or what the deeds of a rule make of it."""
    if "status" in deeds:
        return _status_reply(deeds)
    if "no_tools" in deeds and request.body.get("tools"):
        return error_reply(400, NO_TOOLS)
    if "hang" in deeds or "refuse" in deeds:
        return Reply(0, None, close="refuse" in deeds)
    if "html" in deeds:
        return Reply(200, http_message(200, _HTML, {"Content-Type": "text/html; charset=utf-8"}))
    if lookup is not None:
        return lookup(request, prompt_tokens, deeds)
    said, finish_reason = _say(answer, request, deeds)
    tokens = count_tokens(json.dumps(said.call) if said.call else said.text) if said else count_tokens("")
    usage = None if "no_usage" in deeds else (prompt_tokens, tokens)
    asked = request.body | ({"logprobs": None} if "no_logprobs" in deeds else {})
    content = json.dumps(completion_body(asked, request.chat, said, finish_reason, usage)).encode()
    if "cut_json" in deeds:
        return Reply(200, http_message(200, content[: len(content) // 2]), completion_tokens=tokens)
    if "cut_body" in deeds:
        return Reply(200, http_message(200, content)[: -(len(content) // 2)], close=True, completion_tokens=tokens)
    return Reply(200, http_message(200, content), completion_tokens=tokens)


def _say(answer: Answer, request: Request, deeds: Mapping[str, Any]) -> tuple[Said | None, str]:
    forced = forced_call(request.body, request.payload, deeds)
    if forced:
        return Said("", call=forced), "tool_calls"
    if "null" in deeds:
        return None, "stop"
    if "empty" in deeds or "filter" in deeds:
        return Said(""), "content_filter" if "filter" in deeds else "stop"
    text = GARBAGE if "garbage" in deeds else deeds.get("text")
    answered = answer(request.payload) if text is None else text
    said = answered if isinstance(answered, Said) else Said(answered)
    if said.call:
        return said, "tool_calls"
    if "finish" in deeds:
        return said, deeds["finish"]
    if "think" in deeds:
        said = Said(_THOUGHT + said.text, {place + len(_THOUGHT): odds for place, odds in said.odds.items()})
    return (Said(said.text[: len(said.text) // 2], said.odds), "length") if "length" in deeds else (said, "stop")


def http_message(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole HTTP/1.1 response, JSON where the headers do not say otherwise."""
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body))} | dict(headers or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {responses.get(status, 'Status')}\r\n{lines}\r\n".encode("latin-1") + body


def error_reply(status: int, error: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """An error in the form of the API."""
    return Reply(status, http_message(status, json.dumps({"error": error}).encode(), headers))


def _status_reply(deeds: Mapping[str, Any]) -> Reply:
    status, headers = int(deeds["status"]), deeds.get("headers")
    if "body" in deeds:
        return Reply(status, http_message(status, deeds["body"].encode(), headers))
    return error_reply(status, deeds.get("error", {"message": f"by rule: {status}", "type": "by_rule"}), headers)


def content_of(turn: Mapping[str, Any]) -> str:
    """The text of a message; parts of other kinds as JSON."""
    content = turn["content"]
    return content if isinstance(content, str) else json.dumps(content)


def payload_of(text: str) -> Payload:
    """The stage and variables that a machine-readable prompt carries; empty for any other prompt."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        payload = json.loads(text)
    except ValueError:
        return {}
    return payload if isinstance(payload, dict) and isinstance(payload.get("stage"), str) else {}


_ANSWERS: dict[str, Answer] = {"fixed": fixed, "e2e": e2e, "echo": echo, "garbage": garbage}
_ANSWERS |= {f"world_{judge}": partial(world, judge=judge) for judge in JUDGES}
_ANSWERS["world"] = _ANSWERS["world_closed"]
_FIXED = {
    "generate_answer": "A fixed answer. It has two sentences.",
    "restate_answer": "A fixed statement.",
    "summarise_context": "A fixed summary. It has two sentences.",
    "evaluate_coverage": coverage_text([("A fixed covered statement.", (1,))], [("A fixed uncovered one.", (1,))]),
}
