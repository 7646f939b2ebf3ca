"""What calls cost: the prices of an endpoint, and the arithmetic of what was spent and of what may be."""

from __future__ import annotations

from dataclasses import dataclass

# Endpoints publish their prices for so many tokens
TOKENS_OF_A_PRICE = 1e6
CALLS_OF_A_PRICE = 1e3


@dataclass(frozen=True)
class Prices:
    """Prices of a million tokens, and of a thousand calls, in any one currency; null where one is not set.

    A price that is not set beside one that is, is 0: of embeddings, which have no completions, that of prompts is all,
    and of searches, which have no tokens, that of calls.
    """

    prompt: float | None = None
    completion: float | None = None
    thousand_calls: float | None = None

    @property
    def known(self) -> bool:
        """Whether there is any price, so that a cost can be told."""
        return (self.prompt, self.completion, self.thousand_calls) != (None, None, None)

    @property
    def complete(self) -> bool:
        """Whether nothing that is counted is without a price, so that a budget of cost can be held."""
        return None not in (self.prompt, self.completion)

    def cost(self, prompt_tokens: float, completion_tokens: float, calls: float = 0.0) -> float | None:
        """The cost of these tokens and calls; None where no price is set.

        >>> Prices(2.0, 8.0).cost(1_000, 500), Prices(2.0).cost(1_000, 500), Prices().cost(1_000, 500)
        (0.006, 0.002, None)
        """
        if not self.known:
            return None
        prompts, completions = prompt_tokens * (self.prompt or 0.0), completion_tokens * (self.completion or 0.0)
        return (prompts + completions) / TOKENS_OF_A_PRICE + calls * self.of_a_call

    @property
    def of_a_call(self) -> float:
        """What a call costs beside its tokens."""
        return (self.thousand_calls or 0.0) / CALLS_OF_A_PRICE

    @property
    def most_of_a_token(self) -> float:
        """What a token costs at most: how an estimate will divide into prompt and completion is not known before.

        >>> Prices(2.0, 8.0).most_of_a_token
        8e-06
        """
        return max(self.prompt or 0.0, self.completion or 0.0) / TOKENS_OF_A_PRICE
