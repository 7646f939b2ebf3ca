"""Define a stage without settings: name, variables, schema, parser, and the sizes that a plan expects of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from untold.udfs.errors import Refused as Refused
from untold.udfs.errors import Unparsable as Unparsable
from untold.udfs.ratings import SCALE
from untold.udfs.stages.non_answers import leaked_names, without_leaked
from untold.udfs.stages.reading import first_turn, texts_of

if TYPE_CHECKING:
    import pyarrow as pa


RATINGS = (1.0, 2.0, 3.0, 4.0, 5.0)


class ExtractedItem(NamedTuple):
    """One of what a completion yields: its text, with all that tells it apart, and its rating if the stage rates."""

    text: str
    rating: float = RATINGS[-1]


# Reads the things of a completion without the variables of its request, which no store holds. Raises Unparsable.
Reader = Callable[[str], Sequence[ExtractedItem]]
RECORDED, FACTSCORE, WRITTEN = "recorded judges", "FActScore", "completions written by hand"


@dataclass(frozen=True)
class LinearSize:
    """A quantity of a request that grows with the tokens of its variables.

    >>> LinearSize(3.0, slope=0.5).at(10.0)
    8.0
    """

    base: float = 0.0
    slope: float = 0.0

    def at(self, tokens: float) -> float:
        """Its value for variables of so many tokens."""
        return self.base + self.slope * tokens


@dataclass(frozen=True)
class Figures:
    """Means over the requests of a stage.

    `completion`: tokens of the answer; `things`: how many of what it is asked for it yields (atoms, questions, answers;
    of a summary 1, where the text says something). `ratings`: the share of things by rating, 1 to 5. `distinct`: the
    share of things that are left where equal texts are one, as they are one node of a graph. `calls` and
    `prompt_tokens`, those of all calls, are known from a store alone: without, the prompts are rendered and counted.
    """

    source: str
    completion: LinearSize
    things: LinearSize = LinearSize()
    ratings: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 1.0)
    distinct: float = 1.0
    calls: float = 1.0
    prompt_tokens: float | None = None

    def passing(self, threshold: float) -> float:
        """The share of things that are rated at least so high.

        >>> Figures("", LinearSize(), ratings=(0.1, 0.2, 0.1, 0.2, 0.4)).passing(3.5)
        0.6
        """
        shares = zip(RATINGS, self.ratings, strict=True)
        return round(sum(share for rating, share in shares if rating >= threshold), 6)


Parser = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
# What templates are tried with before anything is asked, by the names that the shipped stages have for variables
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
# What a stage's template is named after its own name, by the API whose form it has
SUFFIXES = {"chat": ".jinja", "completions": ".text.jinja"}


@dataclass(frozen=True)
class StageDefinition:
    """A stage as its metric family defines it; `udfs.llm.keys.Stage` is one with model, template and decoding bound.

    `parse(completion, variables)` gives a row of `output` or raises `Unparsable` or `Refused`. `rated` stages ask for
    log-probabilities; their parsers give a `udfs.ratings.Digit` where the output has a rating. `tools` are those that
    the model may call, where settings and endpoint let it. `figures` are for a plan, which takes a stage without them
    to write as much as it may; `things` reads what a completion yields, so that a store's means beat these figures.
    `example` has values of variables that `EXAMPLES` lacks, or has in another form. `max_tokens`, of a completion under
    `llm.max_tokens=auto`: a list, or reasoning before an answer, takes more than a label.
    `items` are the lists of the output that hold what the model found, the texts first: of these, items of the
    template's own examples are dropped. `schema` is that of a completion as JSON
    (`udfs.stages.schemas`), None where it is free text; `form` is what the template asks for. `read_alone`: results are
    read without the variables, as the texts of millions of pairs are not joined to their labels. `text` is the column
    of a stage that writes one text: a text with a name of the template's examples that no variable has is unparsable.
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
    # A mapping has no hash, and the name tells stages apart
    example: Mapping[str, Any] = field(default_factory=dict, hash=False)
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    form: OutputFormat | None = None
    read_alone: bool = False

    def accept(
        self, completion: str, variables: Mapping[str, Any], names: tuple[str, ...] = ()
    ) -> tuple[Mapping[str, Any], int]:
        """Return the row of a completion, and the number of dropped items. Actors and readers of the store call it.

        names: the names in the examples of the template (`example_names`). Raises as `parse`, and Unparsable for a
        text with such a name.
        """
        output = self.parse(completion, {} if self.read_alone else variables)
        if self.text is not None and leaked_names(output[self.text] or "", variables, names):
            raise Unparsable("a text of the prompt's examples")
        return without_leaked(output, self.items, variables, names)

    @property
    def examples(self) -> dict[str, Any] | None:
        """Variables to try a template with; None where a name is neither in `example` nor in `EXAMPLES`."""
        known = {**EXAMPLES, **self.example}
        return {name: known[name] for name in self.variables} if known.keys() >= set(self.variables) else None

    @property
    def results(self) -> pa.Schema:
        """The output as it is read from the store: of rated stages also whether log-probabilities weigh the ratings.

        Of those with a form, how the completion was read (`udfs.stages.schemas.READ_AS`).
        """
        # Not at the top: what only wants the names of templates is spared an import of 0.2 s
        import pyarrow as pa

        weighted = [pa.field("weighted", pa.bool_())] if self.rated else []
        read_as = [pa.field("read_as", pa.string())] if self.form else []
        return pa.schema([*self.output, *weighted, *read_as])


Schema = Mapping[str, Any]

# How a completion was read: as JSON of the schema, in the form of methods, section 9, or in another without doubt
SCHEMA, TEMPLATE, LENIENT = READ_AS = ("parsed_schema", "parsed_template", "parsed_lenient")
REASONING = "reasoning"
# OpenAI takes 1,000 values in one schema; beyond these, numbers are a range
MOST_NUMBERS = 250

TEXT: Schema = {"type": "string"}
RATING: Schema = {"type": "integer", "enum": list(map(int, SCALE))}
# Endpoints want every field; a model that has thought already leaves it null
THOUGHTS: Schema = {"type": ["string", "null"]}


def record(**fields: Schema) -> Schema:
    """An object with these fields, in this order, and no others."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def listed(item: Schema) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": item}


def one_of(labels: Sequence[str]) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(labels)}


def number_of(variable: str) -> Schema:
    """The number, from 1, of one of the texts of a variable."""
    return {"type": "integer", "enum": variable}


@dataclass(frozen=True)
class OutputFormat:
    """The form that a template asks for: in words for a model, and what matches a completion; None matches any text."""

    words: str
    pattern: re.Pattern[str] | None = None


def lines_of(pattern: str, line: str, each: str = "one line for each:") -> OutputFormat:
    """The form with one item a line, which the pattern matches and `line` shows, or a lone `None`."""
    return OutputFormat(f"{each} `{line}`", re.compile(rf"(?:{pattern})(?:\n+(?:{pattern}))*|None"))


def label_of(labels: Sequence[str]) -> OutputFormat:
    """The form that is one of these labels and nothing else."""
    return OutputFormat(f"one of {', '.join(labels)}", re.compile("|".join(map(re.escape, labels))))


def filled(schema: Schema, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of one request.

    >>> filled(number_of("claims"), {"claims": ["Water is wet.", "Ice is cold."]})
    {'type': 'integer', 'enum': [1, 2]}
    """
    variable = schema.get("enum")
    if isinstance(variable, str):
        return {"type": "integer", **_numbers(len(variables.get(variable) or ()))}
    return {name: filled(value, variables) if isinstance(value, Mapping) else value for name, value in schema.items()}


def lists_in(schema: Schema) -> Iterator[str]:
    """The variables on whose lengths `filled` depends."""
    variable = schema.get("enum")
    if isinstance(variable, str):
        yield variable
    for value in schema.values():
        if isinstance(value, Mapping):
            yield from lists_in(value)


def _numbers(count: int) -> dict[str, Any]:
    """The numbers from 1; a range in place of too many, or of none, which no schema may list."""
    if 0 < count <= MOST_NUMBERS:
        return {"enum": list(range(1, count + 1))}
    return {"minimum": 1, "maximum": max(count, 1)}


def without_reasoning(schema: Schema) -> Schema:
    """The schema for a model that thinks before it answers."""
    fields = {name: field for name, field in schema["properties"].items() if name != REASONING}
    return record(**fields)


def read_as(completion: str, schema: Schema | None, form: OutputFormat | None, variables: Mapping[str, Any]) -> str:
    """One of `READ_AS`, for a completion that a stage's parser can read. A stage without a form takes any text.

    schema: the one that was sent; None for none.
    """
    answer = first_turn(completion, list(texts_of(variables.values()))).strip()
    if schema is not None and answer.startswith("{") and _fits(answer, filled(schema, variables)):
        return SCHEMA
    pattern = form.pattern if form else None
    return TEMPLATE if pattern is None or pattern.fullmatch(answer) else LENIENT


def _fits(answer: str, schema: Mapping[str, Any]) -> bool:
    # Not at the top: it takes a tenth of a second, and most completions are no JSON
    from jsonschema import Draft202012Validator

    try:
        return bool(Draft202012Validator(schema).is_valid(json.loads(answer)))
    except (ValueError, RecursionError):
        return False
