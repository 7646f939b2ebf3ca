"""What a stage is before settings are bound to it: name, variables, and how its completion is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from untold.udfs.stages.figures import Figures, Reader

if TYPE_CHECKING:
    import pyarrow as pa

    from untold.udfs.stages.schemas import Form

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


class Unparsable(ValueError):
    """A completion that does not have its stage's form. The message names what is missing, never the text."""

    error_type = "unparsable"


class Refused(Unparsable):
    """A completion that declines the task."""

    error_type = "refused"


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
    read without the variables, as the texts of millions of pairs are not joined to their labels.
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
    # A mapping has no hash, and the name tells stages apart
    example: Mapping[str, Any] = field(default_factory=dict, hash=False)
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    form: Form | None = None
    read_alone: bool = False

    def accept(self, completion: str, variables: Mapping[str, Any]) -> Any:
        """Return the row of a completion as results are read from the store; raises as `parse`."""
        return self.parse(completion, {} if self.read_alone else variables)

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
