"""Settings of what runs night after night."""

from __future__ import annotations

from pydantic import Field

from untold.jobs.settings.fields import Amount, Section


class NightlySettings(Section):
    """What `untold nightly` may spend besides `budget.*`, which holds for each night."""

    budget_month: Amount | None = Field(
        default=None,
        description="Maximum cost of all starts of a calendar month (UTC), in the currency of the prices",
    )
