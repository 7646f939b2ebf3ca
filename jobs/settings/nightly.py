"""Settings of what runs night after night."""

from __future__ import annotations

from pydantic import Field

from untold.jobs.settings.fields import A_VARIABLE, AN_ADDRESS, Address, Amount, Section, VariableName


class NightlySettings(Section):
    """What `untold nightly` may spend besides `budget.*`, which holds for each night."""

    budget_month: Amount | None = Field(
        default=None,
        description="Maximum cost of all starts of a calendar month (UTC), in the currency of the prices",
    )


class NotifySettings(Section):
    """Who is told how a command ended: `untold score` and `untold nightly` post JSON without any text of samples."""

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
