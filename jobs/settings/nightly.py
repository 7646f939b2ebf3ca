"""Settings of what runs night after night."""

from __future__ import annotations

from pydantic import Field

from untold.jobs.settings.fields import (
    A_VARIABLE,
    AN_ADDRESS,
    Address,
    Amount,
    PathText,
    Section,
    Share,
    VariableName,
)


class NightlySettings(Section):
    """What `untold nightly` does besides what `untold score` does."""

    budget_month: Amount | None = Field(
        default=None,
        description="Maximum cost of all starts of a calendar month (UTC), in the currency of the prices",
    )
    sentinel: PathText | None = Field(
        default=None,
        description="File of answers that each night scores anew, so that `untold trend` sees when the judge moves",
    )


class TrendSettings(Section):
    """What `untold trend` takes for a fall."""

    fall: Share = Field(
        default=0.05,
        description="By how much a system's mean or answer rate falls beyond chance, so that `untold trend --alert` "
        "ends with 4",
    )


class NotifySettings(Section):
    """Who is told how a command ended: `score`, `nightly` and `trend --alert` post JSON without any text of samples."""

    url: Address | None = Field(
        default=None,
        description="Address that gets a JSON message when a run ended or failed",
        json_schema_extra=AN_ADDRESS,
    )
    key_env: VariableName | None = Field(
        default=None,
        description="Name of the environment variable with the key that signs the message (HMAC SHA-256)",
        json_schema_extra=A_VARIABLE,
    )
