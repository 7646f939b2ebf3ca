"""What a stage is before settings are bound to it: name, variables, and how its completion is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from untold.udfs.stages.figures import Figures, Reader

if TYPE_CHECKING:
    import pyarrow as pa

Parser = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
# What a stage's template is named after its own name, by the API whose form it has
SUFFIXES = {"chat": ".jinja", "completions": ".text.jinja"}


class Unparsable(ValueError):
    """A completion that does not have its stage's form. The message names what is missing, never the text."""


@dataclass(frozen=True)
class StageDefinition:
    """A stage as its metric family defines it; `udfs.llm.keys.Stage` is one with model, template and decoding bound.

    `parse(completion, variables)` gives a row of `output` or raises `Unparsable`. `rated` stages ask for
    log-probabilities; their parsers give a `udfs.ratings.Digit` where the output has a rating. `tools` are those that
    the model may call, where settings and endpoint let it. `figures` are for a plan, which takes a stage without them
    to write as much as it may; `things` reads what a completion yields, so that a store's means beat these figures.
    """

    name: str
    variables: tuple[str, ...]
    parse: Parser
    output: pa.Schema
    rated: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()
    figures: Figures | None = None
    things: Reader | None = None

    @property
    def results(self) -> pa.Schema:
        """The output as it is read from the store: of rated stages also whether log-probabilities weigh the ratings."""
        # Not at the top: what only wants the names of templates is spared an import of 0.2 s
        import pyarrow as pa

        return self.output.append(pa.field("weighted", pa.bool_())) if self.rated else self.output
