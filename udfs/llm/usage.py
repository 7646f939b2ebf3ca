"""Count the tokens and the cost of calls, and estimate tokens before an endpoint counts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add, attrgetter
from typing import Any

# Endpoints publish prices per million tokens and per thousand calls
TOKENS_OF_A_PRICE = 1e6
CALLS_OF_A_PRICE = 1e3
_SUMMED = (
    *("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "calls", "asked", "rate_limited", "tool_turns"),
    *("retries_after_parse", "done", "failed", "reasoning_tokens", "cut_prompts", "seconds"),
)
_NUMBERS = attrgetter(*_SUMMED)


@dataclass(frozen=True)
class Usage:
    """The usage of a call, an actor, a stage or a run. Usages can be added, and counts only grow.

    Attributes:
        estimated: True if the endpoint did not return token counts, or returned impossible ones.
        asked: number of requests with at least one call. Their other calls are retries.
        tool_turns: calls after a tool call.
        retries_after_parse: calls after an unusable completion.
        done: finished requests. `failed` of them have no completion.
        reasoning_tokens: part of the completion tokens for reasoning.
        cut_prompts: calls with too few reported prompt tokens for the bytes of the request.
        cost: in the currency of the prices, None without a price.
        endpoints: usage of each of several endpoints.

    >>> both = Usage(10, calls=1, cost=0.5) + Usage(5, calls=2, estimated=True)
    >>> both.tokens, both.calls, both.estimated, both.cost
    (15, 3, True, 0.5)
    """

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 0
    asked: int = 0
    rate_limited: int = 0
    tool_turns: int = 0
    retries_after_parse: int = 0
    done: int = 0
    failed: int = 0
    reasoning_tokens: int = 0
    cut_prompts: int = 0
    seconds: float = 0.0
    estimated: bool = False
    cost: float | None = None
    endpoints: Mapping[str, Usage] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Usage:
        """Return the usage from its JSON values."""
        return cls(**{**plain, "endpoints": {name: cls.of(one) for name, one in plain.get("endpoints", {}).items()}})

    @property
    def tokens(self) -> int:
        """The sum of the tokens of prompts and completions."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        """Return the sum of both usages."""
        if self is NOTHING_USED:
            return other
        parts = self.endpoints
        if other.endpoints:
            both = {**parts, **other.endpoints}
            parts = {name: parts.get(name, NOTHING_USED) + other.endpoints.get(name, NOTHING_USED) for name in both}
        # By position, in the order of the fields
        sums = map(add, _NUMBERS(self), _NUMBERS(other))
        values: list[Any] = [*sums, self.estimated or other.estimated, sum_costs((self, other)), parts]
        return Usage(*values)


NOTHING_USED = Usage()


class UsageCounter:
    """A mutable usage. Several additions of records per call took 5 % of the time of an actor."""

    def __init__(self) -> None:
        self._counts: dict[str, Any] = dict.fromkeys(_SUMMED, 0)
        self._estimated = False

    def count(self, **counts: int) -> None:
        """Add to counts by their names in `Usage`."""
        for name, count in counts.items():
            self._counts[name] += count

    def book(self, usage: Usage) -> None:
        """Add the tokens of a call."""
        self._counts["prompt_tokens"] += usage.prompt_tokens
        self._counts["cached_prompt_tokens"] += usage.cached_prompt_tokens
        self._counts["completion_tokens"] += usage.completion_tokens
        self._counts["reasoning_tokens"] += usage.reasoning_tokens
        self._counts["cut_prompts"] += usage.cut_prompts
        self._estimated |= usage.estimated

    @property
    def usage(self) -> Usage:
        """Return the usage so far."""
        return Usage(**self._counts, estimated=self._estimated)


def sum_costs(usages: Iterable[Usage]) -> float | None:
    """Return the sum of the known costs, None if all are unknown."""
    known = [one.cost for one in usages if one.cost is not None]
    return sum(known) if known else None


@dataclass(frozen=True)
class Prices:
    """Prices per million tokens and per thousand calls, in one currency. None is a price that is not set.

    If at least one price is set, the others count as 0, because embeddings have no completions and searches no tokens.
    """

    prompt: float | None = None
    completion: float | None = None
    thousand_calls: float | None = None

    @property
    def known(self) -> bool:
        """True if a price is set, so that calls have a cost."""
        return (self.prompt, self.completion, self.thousand_calls) != (None, None, None)

    @property
    def complete(self) -> bool:
        """True if tokens and calls have all their prices, so that a budget can limit the cost."""
        return None not in (self.prompt, self.completion)

    def cost(self, prompt_tokens: float, completion_tokens: float, calls: float = 0.0) -> float | None:
        """Return the cost of these tokens and calls, None without prices.

        >>> Prices(2.0, 8.0).cost(1_000, 500), Prices(2.0).cost(1_000, 500), Prices().cost(1_000, 500)
        (0.006, 0.002, None)
        """
        if not self.known:
            return None
        prompts, completions = prompt_tokens * (self.prompt or 0.0), completion_tokens * (self.completion or 0.0)
        return (prompts + completions) / TOKENS_OF_A_PRICE + calls * self.of_a_call

    def times(self, share: float) -> Prices:
        """Return the prices times a share, for a discount.

        >>> Prices(2.0, 8.0).times(0.5)
        Prices(prompt=1.0, completion=4.0, thousand_calls=None)
        """
        each = (self.prompt, self.completion, self.thousand_calls)
        return Prices(*(None if price is None else share * price for price in each))

    def priced(self, usage: Usage) -> Usage:
        """Return the usage with its cost by these prices."""
        return replace(usage, cost=self.cost(usage.prompt_tokens, usage.completion_tokens, usage.calls))

    @property
    def of_a_call(self) -> float:
        """Cost of a call in addition to its tokens."""
        return (self.thousand_calls or 0.0) / CALLS_OF_A_PRICE

    @property
    def most_of_a_token(self) -> float:
        """Maximum cost of a token, because the shares of prompt and completion are unknown before a call.

        >>> Prices(2.0, 8.0).most_of_a_token
        8e-06
        """
        return max(self.prompt or 0.0, self.completion or 0.0) / TOKENS_OF_A_PRICE


def dearest(prices: Sequence[Prices]) -> Prices:
    """Return the highest price of each kind, None if one of them is None.

    >>> dearest([Prices(2.0, 8.0), Prices(3.0, 6.0)]), dearest([Prices(2.0, 8.0), Prices()])
    (Prices(prompt=3.0, completion=8.0, thousand_calls=None), Prices(prompt=None, completion=None, thousand_calls=None))
    """

    def most(name: str) -> float | None:
        values = [getattr(one, name) for one in prices]
        return None if None in values else max(values)

    return Prices(most("prompt"), most("completion"), most("thousand_calls"))


# Usual for English text. For scripts with fewer bytes per token, estimates are low until the endpoint returns counts
BYTES_OF_A_TOKEN = 4


def estimate_tokens(size: int) -> int:
    """Return the estimated number of tokens of `size` UTF-8 bytes.

    >>> estimate_tokens(400)
    101
    """
    return size // BYTES_OF_A_TOKEN + 1


def shown_tokens(tokens: float, *, estimated: bool) -> str:
    """Return a number of tokens as text. `~` marks an estimate.

    >>> shown_tokens(1200, estimated=True)
    '~1,200'
    """
    return f"{'~' if estimated else ''}{tokens:,.0f}"
