"""Define a stage without settings: name, variables, schema, parser, and the sizes that a plan expects of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from untold.udfs.errors import Refused as Refused
from untold.udfs.errors import Unparsable as Unparsable
from untold.udfs.stages.non_answers import leaked_names, texts_of, without_leaked
from untold.udfs.stages.reading import first_turn
from untold.udfs.stages.schemas import OutputFormat, Schema, record

if TYPE_CHECKING:
    import pyarrow as pa


RATINGS = (1.0, 2.0, 3.0, 4.0, 5.0)


class ExtractedItem(NamedTuple):
    """One item of a completion: its distinctive text, and its rating if the stage rates items."""

    text: str
    rating: float = RATINGS[-1]


# Return the items of a completion without the variables of its request, because the store lacks them. Raises Unparsable
Reader = Callable[[str], Sequence[ExtractedItem]]
RECORDED, FACTSCORE, WRITTEN = "recorded judges", "FActScore", "completions written by hand"


@dataclass(frozen=True)
class Mask:
    """A mask of texts, such as names of people, that another package adds as an entry point of `untold.masks`.

    Attributes:
        name: the name of the entry point.
        version: the name and the version are part of the key of a request, so a new version repeats all requests.
        function: returns one text for each text, in their order. It runs in tasks of Spark, and must return a masked
            text unchanged.
    """

    name: str
    version: str
    function: Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True)
class LinearSize:
    """A quantity of a request that grows with the tokens of its variables: `base`, and `slope` for each token."""

    base: float = 0.0
    slope: float = 0.0


@dataclass(frozen=True)
class Figures:
    """Means over the requests of a stage.

    Attributes:
        completion: tokens of a completion.
        things: number of its items (atoms, questions, answers), 1 for a summary with content.
        ratings: shares of items by rating, 1 to 5.
        distinct: share of items with distinct texts, because equal texts are one node of a graph.
        calls: number of calls.
        prompt_tokens: tokens of all calls. Only a store knows them; otherwise a plan renders the prompts.
    """

    source: str
    completion: LinearSize
    things: LinearSize = LinearSize()
    ratings: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 1.0)
    distinct: float = 1.0
    calls: float = 1.0
    prompt_tokens: float | None = None

    def passing(self, threshold: float) -> float:
        """Return the share of items with at least this rating.

        >>> Figures("", LinearSize(), ratings=(0.1, 0.2, 0.1, 0.2, 0.4)).passing(3.5)
        0.6
        """
        shares = zip(RATINGS, self.ratings, strict=True)
        return round(sum(share for rating, share in shares if rating >= threshold), 6)


Parser = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
# Values of variables for the test of a template before the first request, by the names in the shipped stages
_TEXTS = (
    *("query", "text", "response", "question", "answer", "first", "second", "premise", "hypothesis"),
    *("fact", "claim", "reference", "candidate"),
)
_LISTS = (
    *("contexts", "statements", "hypotheses", "questions", "facts", "aspects", "claims", "evidence", "references"),
    *("candidates", "texts", "nuggets", "others"),
)
_EXAMPLE = "Ada lives in Lyon."
EXAMPLES = {**dict.fromkeys(_TEXTS, _EXAMPLE), **{name: [_EXAMPLE, _EXAMPLE] for name in _LISTS}}
MAX_TOKENS = 4_096
"""Longest completion of a stage that declares no limit of its own, where settings give none."""
# The endings of the names of templates, by API
SUFFIXES = {"chat": ".jinja", "completions": ".text.jinja"}


@dataclass(frozen=True)
class StageDefinition:
    """A stage of a metric without settings. `udfs.llm.keys.Stage` also has a model, a template and decoding parameters.

    Attributes:
        parse: function from a completion and variables to a row of `output`. Raises `Unparsable` or `Refused`.
        rated: request log-probabilities. The parser then returns a `udfs.ratings.Digit` for each rating.
        tools: tools that the model can call, if the settings and the endpoint allow it.
        figures: means for a plan. Without them, a plan assumes completions of the maximum length.
        things: reader of the items of stored completions, whose means replace `figures`.
        example: values of variables that `EXAMPLES` lacks or has in another form.
        max_tokens: limit of a completion with `llm.max_tokens=auto`. Lists and reasoning need more than a label.
        items: lists of the output with the results of the model, texts first. Items from the examples of the template
            are dropped.
        text: column of the only text of the output. A text with a name from the examples of the template is unparsable,
            unless a variable has the name.
        schema: JSON schema of a completion, None for free text.
        form: output format that the template requests.
        read_alone: read results without variables, so that texts of millions of pairs are not joined to their labels.
    """

    name: str
    variables: tuple[str, ...]
    parse: Parser
    output: pa.Schema
    rated: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()
    figures: Figures | None = None
    things: Reader | None = None
    max_tokens: int = MAX_TOKENS
    items: tuple[str, ...] = ()
    text: str | None = None
    # A mapping has no hash, and the name identifies a stage
    example: Mapping[str, Any] = field(default_factory=dict, hash=False)
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    form: OutputFormat | None = None
    read_alone: bool = False

    def accept(
        self, completion: str, variables: Mapping[str, Any], names: tuple[str, ...] = ()
    ) -> tuple[Mapping[str, Any], int]:
        """Return the row of a completion, and the number of dropped items. Actors and readers of the store call it.

        names: the names in the examples of the template (`example_names`). Raises as `parse`, and Unparsable for a
        text with such a name, or if each item has one.
        """
        output = self.parse(completion, {} if self.read_alone else variables)
        if self.text is not None and leaked_names(output[self.text] or "", variables, names):
            raise Unparsable("a text of the prompt's examples")
        kept, leaked = without_leaked(output, self.items, variables, names)
        if leaked and not kept[self.items[0]]:
            raise Unparsable("only items of the prompt's examples")
        return kept, leaked

    @property
    def examples(self) -> dict[str, Any] | None:
        """The variables for the test of a template, None if a name is neither in `example` nor in `EXAMPLES`."""
        known = {**EXAMPLES, **self.example}
        return {name: known[name] for name in self.variables} if known.keys() >= set(self.variables) else None

    @property
    def results(self) -> pa.Schema:
        """The columns of results from the store: the output, and `weighted` for rated stages.

        Stages with a form also have `read_as`, the way in which the completion was read (`READ_AS`).
        """
        # Not at the top, because the import takes 0.2 s, and some users only need the names of templates
        import pyarrow as pa

        weighted = [pa.field("weighted", pa.bool_())] if self.rated else []
        read_as = [pa.field("read_as", pa.string())] if self.form else []
        return pa.schema([*self.output, *weighted, *read_as])


# The ways to read a completion: JSON of the schema, the output format (methods, section 9), or another clear form
SCHEMA, TEMPLATE, LENIENT = READ_AS = ("parsed_schema", "parsed_template", "parsed_lenient")
REASONING = "reasoning"
# OpenAI accepts 1,000 values in one schema. More numbers are a range
MOST_NUMBERS = 250


def filled(schema: Schema, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of one request.

    >>> filled({"type": "integer", "enum": "claims"}, {"claims": ["Water is wet.", "Ice is cold."]})
    {'type': 'integer', 'enum': [1, 2]}
    """
    variable = schema.get("enum")
    if isinstance(variable, str):
        count = len(variables.get(variable) or ())
        # A range for too many numbers, and for none
        few = 0 < count <= MOST_NUMBERS
        numbers = {"enum": list(range(1, count + 1))} if few else {"minimum": 1, "maximum": max(count, 1)}
        return {"type": "integer", **numbers}
    return {name: filled(value, variables) if isinstance(value, Mapping) else value for name, value in schema.items()}


def lists_in(schema: Schema) -> Iterator[str]:
    """Yield the variables whose lengths change the result of `filled`."""
    variable = schema.get("enum")
    if isinstance(variable, str):
        yield variable
    for value in schema.values():
        if isinstance(value, Mapping):
            yield from lists_in(value)


def without_reasoning(schema: Schema) -> Schema:
    """Return the schema for a model that reasons before its completion."""
    return record(**{name: field for name, field in schema["properties"].items() if name != REASONING})


def read_as(completion: str, schema: Schema | None, form: OutputFormat | None, variables: Mapping[str, Any]) -> str:
    """Return one of `READ_AS` for a readable completion. A stage without a form accepts any text.

    schema: the schema in the request, or None.
    """
    answer = first_turn(completion, list(texts_of(variables.values()))).strip()
    if schema is not None and answer.startswith("{") and _fits(answer, filled(schema, variables)):
        return SCHEMA
    pattern = form.pattern if form else None
    return TEMPLATE if pattern is None or pattern.fullmatch(answer) else LENIENT


def _fits(answer: str, schema: Mapping[str, Any]) -> bool:
    # Not at the top, because the import takes a tenth of a second, and most completions are not JSON
    from jsonschema import Draft202012Validator

    try:
        return bool(Draft202012Validator(schema).is_valid(json.loads(answer)))
    except (ValueError, RecursionError):
        return False
