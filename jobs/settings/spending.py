"""Settings of what a start may spend, and of batches, which cost less than calls."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from untold.jobs.settings.fields import Amount, Count, PathText, Positive, Section, Share

Delivery = Literal["calls", "batch"]
BatchFormat = Literal["auto", "openai", "azure", "mistral", "together", "groq", "anthropic", "files"]


class BatchSettings(Section):
    """Batches of requests, where `llm.delivery` asks for them. None of it changes a result."""

    ADVANCED: ClassVar[frozenset[str]] = frozenset(
        {"requests", "bytes", "longest_poll_seconds", "settle_seconds", "keep_files"}
    )

    format: BatchFormat = Field(
        default="auto",
        description="Form of the endpoint's batches; auto is by the host of its address, and openai for hosts that are "
        "not known; files are for vLLM's run-batch",
    )
    folder: PathText | None = Field(
        default=None, description="Folder of the requests and results of batch.format=files"
    )
    requests: Count = Field(default=50_000, description="Maximum requests of a batch")
    bytes: Count = Field(default=200_000_000, description="Maximum bytes of a batch's file")
    discount: Share = Field(default=0.5, description="What a batch costs, as a share of the price of its calls")
    queue: Count | None = Field(
        default=None, description="Maximum prompt tokens in batches that are not done; null is what the endpoint says"
    )
    poll_seconds: Positive = Field(default=30.0, description="Seconds before batches are looked at again, at first")
    longest_poll_seconds: Positive = Field(
        default=600.0, description="Longest wait between two looks, to which each wait grows by half"
    )
    settle_seconds: Amount = Field(
        default=60.0,
        description="Seconds for which a batch whose creation was not answered is looked for before it is created anew",
    )
    keep_files: bool = Field(
        default=False, description="Whether files of requests and results stay at the endpoint once they are read"
    )


class BudgetSettings(Section):
    """What one start may spend, retries included; None is without end.

    Once it is used up nothing more is asked, and the run ends resumable (docs/contract.md, "Exit codes").
    """

    max_calls: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Maximum HTTP requests of a start")
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Maximum prompt and completion tokens of a start"
    )
    max_cost: Amount | None = Field(default=None, description="Maximum cost of a start, in the currency of the prices")
