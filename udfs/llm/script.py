"""What is said in a stage: requests to bodies of calls, and answers to what its parser makes of them."""

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
from untold.udfs.stages.definitions import OutputFormat, Unparsable, filled
from untold.udfs.stages.lookups import PROVIDERS, NoHitsError, Provider

TOP_LOGPROBS = 10
# A cautious estimate of a prompt's tokens, beside a context window
BYTES_OF_A_TOKEN = 3
# At least an eighth of a context window is left for the completion; a prompt that needs more is refused
LEAST_SHARE = 8

Parse = Callable[[str, Mapping[str, Any]], Any]


class Script(Protocol):
    """What is said in a stage: how a request becomes a body, and how an answer is read."""

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """The body of the next call, or why there can be none. Never raises."""

    def reader(self, request: Request) -> Reader:
        """What makes an answer of the body of a 200 to this request."""

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """The answer, with an error where the stage cannot use it."""

    def tokens_of(self, size: int) -> int:
        """The tokens that a body of so many bytes is taken to have before the endpoint says it."""


def script_of(stage: Stage, parse: Parse, form: OutputFormat | None = None) -> Script:
    """The script of a stage by its API; `form` is the one that its template asks for."""
    if stage.api == "embeddings":
        return Embedding(stage)
    if stage.api in (LOCAL, *CLASSIFYING):
        return Classifying(stage)
    return WebSearchScript(stage) if stage.api == "search" else Prompting(stage, parse, form)


def key_header_of(stage: Stage) -> str:
    """The header in which the endpoint of a stage wants its key."""
    return PROVIDERS[stage.model].key_header if stage.api == "search" else BEARER


class Prompting:
    """A language model is given a prompt; its completion is read by the stage's parser."""

    def __init__(self, stage: Stage, parse: Parse, form: OutputFormat | None) -> None:
        self._stage, self._parse, self._form = stage, parse, form
        self._prompt: Prompt = compile_prompt(stage.template, api=stage.api, name=stage.name)
        self._fields = SchemaFields(stage)
        # The most that a completion of this stage used so far; later requests have room for as many
        self.reasoning_tokens = stage.reasoning_tokens

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """The body of the next call, or the failure of a template that cannot be filled in.

        Never raises: a template of a user's may fail in any way on any row, which is then a row of `failures`.
        """
        if request.body is not None:
            return request.body, None
        # Told to call no more tools in its last round, a model gives an answer rather than nothing.
        left = request.rounds < MAX_ROUNDS
        instruction = self._reminder(request.variables) if request.names_form else None
        options: Any = {"tools_left": left, "instruction": instruction, "limit": request.limit}
        try:
            options["fields"] = self._fields.of(request.variables)
            options["reasoning_tokens"] = self.reasoning_tokens
            return request_body(self._stage, self._prompt, request.variables, request.turns, **options), None
        except Exception as error:
            said = f"the template cannot be filled in ({type(error).__name__})"
            return None, Answer(error_type="template", error=said)

    def _reminder(self, variables: Mapping[str, Any]) -> str:
        """What names the form after a completion of no use: without it, the same request would bring the same again."""
        words = self._form.words if self._form else "the form asked for"
        if self._stage.structured:
            schema = filled(self._stage.structured["schema"], variables)
            words = f"one JSON object of this schema: {json.dumps(schema)}"
        return f"An earlier answer could not be read. Write exactly in this form and nothing else: {words}"

    def reader(self, request: Request) -> Reader:
        """Completions are read alike, whatever was asked."""
        return self._read_body

    def _read_body(self, content: bytes, sent: int, headers: Mapping[str, str]) -> Answer:
        answer = read_completion(content, self._stage.api, sent, headers, structured=bool(self._stage.structured))
        self.reasoning_tokens = max(self.reasoning_tokens, answer.usage.reasoning_tokens)
        return answer

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """The answer, with the error `unparsable` or `refused` where the stage's parser cannot read it.

        Parsing here only decides whether to ask again; what is stored is the text, and it is parsed anew when it is
        read.
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
        """As many as a text of that size usually has."""
        return estimate_tokens(size)


def request_body(
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
) -> bytes:
    """The JSON body of the call for these variables, going on after the `turns` that tools were used in.

    `instruction` is added to what the prompt tells the model. Without `tools_left` the model is told to call none.
    `logprobs: false` in `extra_body` sends none of them, for models that refuse to give log-probabilities. `fields`:
    what `schema_fields` gives, where that is known. `limit` replaces the stage's token limit; without it,
    `reasoning_tokens` are added to that, and the rest of the stage's context window bounds it.
    """
    body: dict[str, Any] = {"model": stage.model}
    if stage.api == "chat":
        messages = _instructed(prompt.messages(variables), instruction)
        body["messages"] = [*_with_system_role(messages, stage.system_role), *turns]
        if stage.rated:
            body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    else:
        text = prompt.text(variables)
        # A plain completion goes on with the prompt's last words
        body["prompt"] = f"{instruction}\n\n{text}" if instruction else text
        if stage.rated:
            body["logprobs"] = TOP_LOGPROBS
    if stage.tools:
        body["tools"] = list(stage.tools)
        if not tools_left:
            body["tool_choice"] = "none"
    body |= schema_fields(stage, variables) if fields is None else fields
    # Last, so that what the settings say of a field counts; a null cannot be sent, hence `logprobs: false` to send
    # none.
    body |= stage.decoding
    if body.get("logprobs") is False:
        del body["logprobs"]
        body.pop("top_logprobs", None)
    for name in (MAX_TOKENS, MAX_COMPLETION_TOKENS):
        if name in body:
            body[name] = limit or body[name] + max(reasoning_tokens, stage.reasoning_tokens)
            bounds = [stage.most_tokens or body[name]]
            if stage.window and not limit:
                prompt_tokens = len(_encoded(body)) // BYTES_OF_A_TOKEN
                bounds.append(max(stage.window - prompt_tokens, stage.window // LEAST_SHARE))
            body[name] = min(body[name], *bounds)
    return _encoded(body)


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
    """The messages with an instruction at the end of the system's, or before all others where it says nothing.

    A second turn of a user's in a row is an error for some models.
    """
    if instruction is None:
        return messages
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": instruction}, *messages]
    return [messages[0] | {"content": f"{messages[0]['content']}\n\n{instruction}"}, *messages[1:]]


class Embedding:
    """An embedding model is given the texts of all members of a request at once."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        # Where it is asked for, else that of the first vector: another one has no place beside it
        asked = stage.extra_body.get("dimensions")
        self._dimension = asked if isinstance(asked, int) else None

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """The body with the texts of all members."""
        if request.body is None:
            return embedding_body(self._stage, self._inputs(request)), None
        return request.body, None

    def reader(self, request: Request) -> Reader:
        """Reads a part for each member."""
        sizes = [len(text.encode("utf-8")) for text in self._inputs(request)]
        return partial(read_embeddings, sizes=sizes, dimension=self._dimension)

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """The answer; the first vector says how long all others are."""
        if self._dimension is None:
            self._dimension = next((len(part.vector) for part in answer.parts if part.vector is not None), None)
        return answer

    def tokens_of(self, size: int) -> int:
        """As many as a text of that size usually has."""
        return estimate_tokens(size)

    def _inputs(self, request: Request) -> list[str]:
        return embedding_inputs(self._stage, _rows_of(request))


class Classifying:
    """A server that classifies pairs is given those of all members of a request at once."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._relations: Sequence[str] = stage.extra_body["relations"]

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """The body with the pairs of all members."""
        return request.body or classifying_body(self._stage, _rows_of(request)), None

    def reader(self, request: Request) -> Reader:
        """Reads a part for each member."""
        sizes = [len(text.encode("utf-8")) for text in pair_texts(self._stage, _rows_of(request))]
        return partial(read_classes, api=self._stage.api, sizes=sizes, relations=self._relations)

    def read(self, answer: Answer, variables: Mapping[str, Any]) -> Answer:
        """The answer: its probabilities were read with its body."""
        return answer

    def tokens_of(self, size: int) -> int:
        """As many as a text of that size usually has."""
        return estimate_tokens(size)


def _rows_of(request: Request) -> list[Mapping[str, Any]]:
    return [member.variables for member in request.members]


class WebSearchScript:
    """A search service is asked for a query; its answer is kept as it came."""

    def __init__(self, stage: Stage) -> None:
        self._provider: Provider = PROVIDERS[stage.model]

    def render(self, request: Request) -> tuple[bytes | None, Answer | None]:
        """The query of the address, as bytes."""
        return self._provider.query(request.variables).encode("ascii"), None

    def reader(self, request: Request) -> Reader:
        """Answers are read alike, whatever was searched."""
        return self._read_body

    def _read_body(self, content: bytes, sent: int, headers: Mapping[str, str]) -> Answer:
        """The body as text; `bad_body` where it is no answer of the service's, such as a page of HTML."""
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
        """The answer: its hits were read with its body."""
        return answer

    def tokens_of(self, size: int) -> int:
        """None: a search is paid for by the call."""
        return 0


def _json_of(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def failed(answer: Answer, error_type: str, error: str) -> Answer:
    """The same answer as a failure: what was paid for stays."""
    return replace(answer, error_type=error_type, error=error)
