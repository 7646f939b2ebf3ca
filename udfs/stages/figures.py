"""What a request of a stage is likely to come to: the figures that a plan goes by where no store knows better.

Tokens are counted as `udfs.llm.tokens` estimates them, from UTF-8 bytes; a reasoning model's thinking is in none of
these figures. Each stage's definition names the source of its own, which is one of these:

- RECORDED: what three judges wrote over 1,200 answers of WikiContradict (Dejl et al. 2025), all of them short passages
  chosen for their question.
- FACTSCORE: the atomic facts that a model wrote down of 505 biographies (FActScore, Min et al. 2023).
- WRITTEN: the completions of `tests/udfs/completions`, by hand, in the manner of models, of short texts: their lengths
  beside those of the variables, all added up, or their mean where they do not grow with these. Nothing else is
  recorded of these stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

RATINGS = (1.0, 2.0, 3.0, 4.0, 5.0)


class Thing(NamedTuple):
    """One of what a completion yields: its text, with all that tells it apart, and its rating if the stage rates."""

    text: str
    rating: float = RATINGS[-1]


# Reads the things of a completion without the variables of its request, which no store holds. Raises Unparsable.
Reader = Callable[[str], Sequence[Thing]]
RECORDED, FACTSCORE, WRITTEN = "recorded judges", "FActScore", "completions written by hand"


@dataclass(frozen=True)
class Line:
    """A quantity of a request that grows with the tokens of its variables.

    >>> Line(3.0, slope=0.5).at(10.0)
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
    completion: Line
    things: Line = Line()
    ratings: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 1.0)
    distinct: float = 1.0
    calls: float = 1.0
    prompt_tokens: float | None = None

    def passing(self, threshold: float) -> float:
        """The share of things that are rated at least so high.

        >>> Figures("", Line(), ratings=(0.1, 0.2, 0.1, 0.2, 0.4)).passing(3.5)
        0.6
        """
        shares = zip(RATINGS, self.ratings, strict=True)
        return round(sum(share for rating, share in shares if rating >= threshold), 6)
