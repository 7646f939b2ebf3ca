"""Render requests as bodies of calls, and read the responses, for each kind of API."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from untold.udfs.llm.calls import BEARER, Answer, Request
from untold.udfs.llm.keys import (
    CLASSIFYING,
    LOCAL,
    MAX_COMPLETION_TOKENS,
    MAX_TOKENS,
    SYSTEM,
    SchemaFields,
    Stage,
    schema_fields,
)
from untold.udfs.llm.responses import Reader, read_completion, read_status, status_in
from untold.udfs.llm.templates import Prompt, compile_prompt
from untold.udfs.llm.text_models import classifying_body, embedding_body, pair_texts, read_classes, read_embeddings
from untold.udfs.llm.tools import MAX_ROUNDS
from untold.udfs.llm.usage import estimate_tokens
from untold.udfs.retrieval.embedding import embedding_inputs
from untold.udfs.stages import definition_of
from untold.udfs.stages.definitions import Unparsable, filled
from untold.udfs.stages.lookups import PROVIDERS, NoHitsError
from untold.udfs.stages.non_answers import example_names
from untold.udfs.stages.schemas import OutputFormat

TOP_LOGPROBS = 10
# The fields of a body with the token limit
LIMITS = (MAX_TOKENS, MAX_COMPLETION_TOKENS)
# A cautious estimate of the tokens of a prompt, for the rest of a context window
BYTES_OF_A_TOKEN = 3
# At least an eighth of a context window is for the completion. The endpoint refuses a longer prompt
LEAST_SHARE = 8

Parse = Callable[[str, Mapping[str, Any]], Any]


def accept_of(stage: Stage) -> Parse:
    """Return the function that reads the completions of a stage, the same as for readers of the store."""
    return partial(definition_of(stage.name).accept, names=example_names(stage.template))


class Script(Protocol):
    """The conversion of the requests of a stage to bodies, and of responses to answers."""

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """Return the body of the next call, or the error of the request. Never raises."""

    def reader(self, request: Request) -> Reader:
        """Return the function that reads the body of a response with status 200."""

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """Return the answer, with an error if the stage cannot use it."""

    def tokens_of(self, size: int) -> int:
        """Return the estimated tokens of a body of `size` bytes."""


def script_of(stage: Stage, parse: Parse, form: OutputFormat | None = None) -> Script:
    """Return the script of a stage by its API. `form` is the output format of its template."""
    if stage.api == "embeddings":
        return Embedding(stage)
    if stage.api in (LOCAL, *CLASSIFYING):
        return Classifying(stage)
    return WebSearchScript(stage) if stage.api == "search" else Prompting(stage, parse, form)


def key_header_of(stage: Stage) -> str:
    """Return the name of the header for the key."""
    return PROVIDERS[stage.model].key_header if stage.api == "search" else BEARER


class Prompting:
    """Prompts for a language model. The parser of the stage reads the completions."""

    def __init__(self, stage: Stage, parse: Parse, form: OutputFormat | None) -> None:
        self._stage, self._parse, self._form = stage, parse, form
        self._prompt: Prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
        self._fields = SchemaFields(stage)
        # The maximum of the completions so far. Later requests reserve as many tokens
        self.reasoning_tokens = stage.reasoning_tokens

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """Return the body of the next call, and keep its token limit in the request. Return the error of the template.

        Never raises: a template of a user can fail in any way for any row, and the row is then in `failures`.
        """
        if request.body is not None:
            return request.body, None
        # In the last round the model must call no tool, so that it writes an answer
        left = request.rounds < MAX_ROUNDS
        instruction = self._reminder(request.variables) if request.names_form else None
        options: Any = {"tools_left": left, "instruction": instruction, "limit": request.limit}
        try:
            options["fields"] = self._fields.of(request.variables)
            options["reasoning_tokens"] = self.reasoning_tokens
            fields = request_fields(self._stage, self._prompt, request.variables, request.turns, **options)
            body = _encoded(fields)
        except Exception as error:
            said = f"the template cannot be filled in ({type(error).__name__})"
            return None, Answer(error_type="template", error=said)
        request.sent_limit = next((fields[name] for name in LIMITS if name in fields), None)
        return body, None

    def _reminder(self, variables: Mapping[str, Any]) -> str:
        """Return the text that names the output format after an unparsable completion.

        Without it, the same request would return the same completion.
        """
        words = self._form.words if self._form else "the form asked for"
        if self._stage.structured:
            schema = filled(self._stage.structured["schema"], variables)
            words = f"one JSON object of this schema: {json.dumps(schema)}"
        return f"An earlier answer could not be read. Write exactly in this form and nothing else: {words}"

    def reader(self, request: Request) -> Reader:
        """Return the reader of completions, which does not depend on the request."""
        return self._read_body

    def _read_body(self, content: bytes, sent: int, headers: Mapping[str, str]) -> Answer:
        answer = read_completion(content, self._stage.api, sent, headers, structured=bool(self._stage.structured))
        self.reasoning_tokens = max(self.reasoning_tokens, answer.usage.reasoning_tokens)
        return answer

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """Return the answer, with the error `unparsable` or `refused` if the parser of the stage cannot read it.

        This only decides if the request is sent again. The store has the text, and its readers parse it again.
        """
        if answer.error_type is not None or answer.text is None:
            return answer
        try:
            self._parse(answer.text, variables)
        except Unparsable as error:
            return failed(answer, error.error_type, str(error))
        except Exception as error:
            return failed(answer, "unparsable", f"the parser failed ({type(error).__name__})")
        return answer

    def tokens_of(self, size: int) -> int:
        """Return the usual number of tokens for a text of `size` bytes."""
        return estimate_tokens(size)


def request_body(stage: Stage, prompt: Prompt, variables: Mapping[str, Any], *more: Any, **options: Any) -> bytes:
    """Return the JSON body of the call for these variables. The arguments are those of `request_fields`."""
    return _encoded(request_fields(stage, prompt, variables, *more, **options))


def request_fields(
    stage: Stage,
    prompt: Prompt,
    variables: Mapping[str, Any],
    turns: Sequence[Mapping[str, Any]] = (),
    *,
    tools_left: bool = True,
    instruction: str | None = None,
    fields: Mapping[str, Any] | None = None,
    limit: int | None = None,
    reasoning_tokens: int = 0,
) -> dict[str, Any]:
    """Return the fields of the call for these variables.

    `logprobs: false` in `extra_body` removes the fields of log-probabilities, for models that refuse them.

    Args:
        turns: turns after the prompt, with calls of tools.
        tools_left: False forbids the model to call tools.
        instruction: text to add to the system message.
        fields: the result of `schema_fields`, if it is known.
        limit: token limit in place of the limit of the stage.
        reasoning_tokens: tokens to add to the limit of the stage, within the rest of its context window.
    """
    body: dict[str, Any] = {"model": stage.model}
    if stage.api == "chat":
        messages = _instructed(prompt.messages(variables), instruction)
        body["messages"] = [*_with_system_role(messages, stage.system_role), *turns]
        if stage.rated:
            body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    else:
        text = prompt.text(variables)
        # A plain completion continues the end of the prompt, so the instruction is at its beginning
        body["prompt"] = f"{instruction}\n\n{text}" if instruction else text
        if stage.rated:
            body["logprobs"] = TOP_LOGPROBS
    if stage.tools:
        body["tools"] = list(stage.tools)
        if not tools_left:
            body["tool_choice"] = "none"
    body |= schema_fields(stage, variables) if fields is None else fields
    # Last, so that the settings override all fields. A null cannot be sent, so `logprobs: false` removes the fields
    body |= stage.decoding
    if body.get("logprobs") is False:
        del body["logprobs"]
        body.pop("top_logprobs", None)
    for name in LIMITS:
        if name in body:
            body[name] = limit or body[name] + max(reasoning_tokens, stage.reasoning_tokens)
            bounds = [stage.most_tokens or body[name]]
            if stage.window and not limit:
                prompt_tokens = len(_encoded(body)) // BYTES_OF_A_TOKEN
                bounds.append(max(stage.window - prompt_tokens, stage.window // LEAST_SHARE))
            body[name] = min(body[name], *bounds)
    return body


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _with_system_role(messages: list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
    """Return the messages with this role for the system turn; `user` merges it into the first user turn."""
    if role == SYSTEM or messages[0]["role"] != SYSTEM:
        return messages
    system, *rest = messages
    if role != "user":
        return [system | {"role": role}, *rest]
    if rest and rest[0]["role"] == "user":
        return [rest[0] | {"content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]
    return [system | {"role": "user"}, *rest]


def _instructed(messages: list[dict[str, Any]], instruction: str | None) -> list[dict[str, Any]]:
    """Return the messages with an instruction at the end of the system message, or as a new system message.

    Some models refuse two user messages in a row.
    """
    if instruction is None:
        return messages
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": instruction}, *messages]
    return [messages[0] | {"content": f"{messages[0]['content']}\n\n{instruction}"}, *messages[1:]]


class Embedding:
    """Calls of an embedding model with the texts of all members of a request."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        # The requested dimension, or the dimension of the first vector. All vectors must have the same
        asked = stage.extra_body.get("dimensions")
        self._dimension = asked if isinstance(asked, int) else None

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """Return the body with the texts of all members."""
        if request.body is None:
            return embedding_body(self._stage, self._inputs(request)), None
        return request.body, None

    def reader(self, request: Request) -> Reader:
        """Return the reader of the body, which returns one part per member."""
        sizes = [len(text.encode("utf-8")) for text in self._inputs(request)]
        return partial(read_embeddings, sizes=sizes, dimension=self._dimension)

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """Return the answer. The first vector defines the dimension of all others."""
        if self._dimension is None:
            self._dimension = next((len(part.vector) for part in answer.parts if part.vector is not None), None)
        return answer

    def tokens_of(self, size: int) -> int:
        """Return the usual number of tokens for a text of `size` bytes."""
        return estimate_tokens(size)

    def _inputs(self, request: Request) -> list[str]:
        return embedding_inputs(self._stage, _rows_of(request))


class Classifying:
    """Calls of a server of classifiers with the pairs of all members of a request."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._relations: Sequence[str] = stage.extra_body["relations"]

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """Return the body with the pairs of all members."""
        return request.body or classifying_body(self._stage, _rows_of(request)), None

    def reader(self, request: Request) -> Reader:
        """Return the reader of the body, which returns one part per member."""
        sizes = [len(text.encode("utf-8")) for text in pair_texts(self._stage, _rows_of(request))]
        return partial(read_classes, api=self._stage.api, sizes=sizes, relations=self._relations)

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """Return the answer, because the reader of its body has read the probabilities."""
        return answer

    def tokens_of(self, size: int) -> int:
        """Return the usual number of tokens for a text of `size` bytes."""
        return estimate_tokens(size)


def _rows_of(request: Request) -> list[Mapping[str, Any]]:
    return [member.variables for member in request.members]


class WebSearchScript:
    """Calls of a search service. The response is stored unchanged."""

    def __init__(self, stage: Stage) -> None:
        self._provider = PROVIDERS[stage.model]

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """Return the query string of the URL as bytes."""
        return self._provider.query(request.variables).encode("ascii"), None

    def reader(self, request: Request) -> Reader:
        """Return the reader of responses, which does not depend on the request."""
        return self._read_body

    def _read_body(self, content: bytes, sent: int, headers: Mapping[str, str]) -> Answer:
        """Return the body as text, or the error `bad_body` for a body of another kind, such as an HTML page."""
        try:
            text = content.decode("utf-8")
            self._provider.hits(text)
        except (UnicodeDecodeError, NoHitsError):
            status = status_in(_json_of(content))
            if status is not None:
                return read_status(status, content, headers)
            return Answer(error_type="bad_body", error="the answer is no result of a web search")
        return Answer(text=text, model=self._provider.name)

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """Return the answer, because the reader of its body has read the hits."""
        return answer

    def tokens_of(self, size: int) -> int:
        """Return 0, because a search has a price per call."""
        return 0


def _json_of(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def failed(answer: Answer, error_type: str, error: str) -> Answer:
    """Return the answer as a failure. Its usage stays."""
    return replace(answer, error_type=error_type, error=error)
