"""Settings of metrics that hold the claims of a response against a source of knowledge."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from jobs.settings.fields import Count, Section, Text

# Beyond a thousand ICAT is S_coverage to six digits
Beta = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]


class IcatSettings(Section):
    """Options of the metric icat: methods, section 11. Of qrels the annotations count, and not the path."""

    NO_RESULT: ClassVar[frozenset[str]] = frozenset({"qrels"})

    variant: Literal["auto", "m", "s", "a"] = Field(
        default="auto",
        description="Whose aspects: m, given, covered by the documents that icat.qrels annotates; s, given; a, "
        "generated; auto, s where a sample gives some and else a",
    )
    qrels: Text | None = Field(
        default=None, description="File of annotated documents, for icat.variant m: topic subtopic document relevance"
    )
    aspects: Count = Field(default=10, description="Most aspects that are generated for a query")
    early_stop: bool = Field(
        default=True, description="Whether chunks are judged in three waves, for claims that none grounds yet"
    )
    beta: Beta = Field(default=1.0, description="How much more coverage weighs than factuality")
