"""What is said in a stage: requests to bodies of calls, and answers to what its parser makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from udfs.llm.calls import Answer, Request
from udfs.llm.client import request_body
from udfs.llm.keys import Stage
from udfs.llm.templates import Prompt, compile_prompt
from udfs.llm.tools import MAX_ROUNDS
from udfs.stages.definitions import Unparsable

Parse = Callable[[str, Mapping[str, Any]], Any]


class Script:
    """What is said in a stage: how a request becomes a body, and how an answer is read."""

    def __init__(self, stage: Stage, parse: Parse) -> None:
        self._stage, self._parse = stage, parse
        self._prompt: Prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """The body of the next call, or the failure of a template that cannot be filled in.

        Never raises: a template of a user's may fail in any way on any row, which is then a row of `failures`.
        """
        if request.body is not None:
            return request.body, None
        # Told to call no more tools in its last round, a model gives an answer rather than nothing.
        left = request.rounds < MAX_ROUNDS
        try:
            return request_body(self._stage, self._prompt, request.variables, request.turns, tools_left=left), None
        except Exception as error:
            said = f"the template cannot be filled in ({type(error).__name__})"
            return None, Answer(error_type="template", error=said)

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """The answer, with the error `unparsable` where the stage's parser cannot read it.

        Parsing here only decides whether to ask again; what is stored is the text, and it is parsed anew when it is
        read.
        """
        if answer.error_type is not None or answer.text is None:
            return answer
        try:
            self._parse(answer.text, variables)
        except Unparsable as error:
            return failed(answer, "unparsable", str(error))
        except Exception as error:
            return failed(answer, "unparsable", f"the parser failed ({type(error).__name__})")
        return answer


def failed(answer: Answer, error_type: str, error: str) -> Answer:
    """The same answer as a failure: what was paid for stays."""
    return replace(answer, error_type=error_type, error=error)
