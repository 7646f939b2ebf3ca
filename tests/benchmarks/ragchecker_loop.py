"""Run RAGChecker's package over samples in its format, with the interpreter of its environment.

`python ragchecker_loop.py INPUTS OUTPUTS BASE_URL N` keeps N calls in flight, writes the results with their metrics,
and prints the seconds of its evaluation as JSON. Its prompts are sent to the model server as requests of our stages,
and completions are converted to its format, so both use one judge.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Formatter
from time import monotonic
from types import ModuleType
from typing import Any

import httpx

# RAGChecker's claims are triplets. These are the last two parts of a triplet for one of our sentences
PREDICATE = ', "is", "said")'
RELATION = re.compile("entailment|neutral|contradiction", re.IGNORECASE)
ITEM, NOTHING = re.compile(r"^(?:[-*]|\d+\.) "), ("", "None", "none")
# Its local checkers, which need torch and are not used
LOCAL = {
    "refchecker.checker.nli_checker": "NLIChecker",
    "refchecker.checker.alignscore": "",
    "refchecker.checker.alignscore.alignscore_checker": "AlignScoreChecker",
}


def leave_out_local_checkers() -> None:
    for name, checker in LOCAL.items():
        sys.modules[name] = ModuleType(name)
        setattr(sys.modules[name], checker or "__path__", [])


def read_claims(said: str) -> list[str]:
    """Return the claims of a completion of the symbolic world, in all its formats."""
    if said.startswith("```"):
        found: list[str] = json.loads(said.strip("`").removeprefix("json"))
        return found
    lines = [ITEM.sub("", line).strip() for line in said.splitlines()]
    return [line for line in lines if line and not line.endswith("text:") and line.strip("[].") not in NOTHING]


class Judge:
    """Answers its prompts with the model server."""

    def __init__(self, base_url: str, in_flight: int) -> None:
        from refchecker.checker.checker_prompts import JOINT_CHECKING_PROMPT_Q
        from refchecker.extractor.extractor_prompts import LLM_TRIPLET_EXTRACTION_PROMPT_Q

        extraction = Formatter().parse(LLM_TRIPLET_EXTRACTION_PROMPT_Q)
        self._extraction = _pattern([(text, name) for text, name, *_ in extraction])
        parts = re.split(r"\[(QUESTION|REFERENCE|CLAIMS)\]", JOINT_CHECKING_PROMPT_Q)
        self._checking = _pattern([*zip(parts[::2], parts[1::2], strict=False), (parts[-1], None)])
        limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
        self._client = httpx.Client(base_url=base_url, limits=limits, timeout=120)
        self._threads = ThreadPoolExecutor(in_flight)

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        return list(self._threads.map(self._answer, prompts))

    def _answer(self, prompt: str) -> str:
        if found := self._checking.fullmatch(prompt):
            claims = [line.removeprefix('("').removesuffix(f'"{PREDICATE}') for line in found["CLAIMS"].split("\n")]
            said = self._ask({"stage": "check_claims", "premise": found["REFERENCE"], "hypotheses": claims})
            return "\n".join(RELATION.findall(said)).title()
        found = self._extraction.fullmatch(prompt)
        if found is None:
            raise RuntimeError("a prompt of another form")
        said = self._ask({"stage": "extract_claims", "text": found["a"]})
        claims = read_claims(said)
        return "\n".join(f"({json.dumps(claim, ensure_ascii=False)}{PREDICATE}" for claim in claims)

    def _ask(self, variables: dict[str, Any]) -> str:
        message = {"role": "user", "content": json.dumps(variables, ensure_ascii=False)}
        body = {"model": "fake-model", "temperature": 0, "messages": [message]}
        answer = self._client.post("chat/completions", json=body).raise_for_status()
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text


def _pattern(parts: Sequence[tuple[str, str | None]]) -> re.Pattern[str]:
    """Return the pattern that finds the fields of a template of literals and fields."""
    return re.compile("".join(re.escape(text) + (f"(?P<{name}>.*)" if name else "") for text, name in parts), re.DOTALL)


def main(inputs: str, outputs: str, base_url: str, in_flight: str) -> None:
    leave_out_local_checkers()
    from ragchecker import RAGChecker, RAGResults

    results = RAGResults.from_json(Path(inputs).read_text(encoding="utf-8"))
    size = int(in_flight)
    checker = RAGChecker(
        extractor_name="fake-model",
        checker_name="fake-model",
        batch_size_extractor=size,
        batch_size_checker=size,
        custom_llm_api_func=Judge(base_url, size),
    )
    began = monotonic()
    checker.evaluate(results, "all_metrics")
    seconds = monotonic() - began
    Path(outputs).write_text(results.to_json(), encoding="utf-8")
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
