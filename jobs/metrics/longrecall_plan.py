"""What a plan of the metric longrecall takes for granted: as many facts as texts can have, and none that is covered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics.base import Assumptions
from untold.jobs.metrics.contexts import MARK
from untold.jobs.metrics.graphs import different_texts
from untold.jobs.metrics.likely import Likely, made_up, size_of_things, tokens_of, value_of, whole
from untold.jobs.retrieval.sources import assumed_results
from untold.jobs.retrieval.vectors import STAGE as EMBED
from untold.jobs.settings.model import Settings
from untold.udfs.recall.sample_facts import REFERENCES, RESPONSE

# A fact takes two words at least, so that no text has more than half its words
WORDS_OF_A_FACT = 2
# Of 399 references of K-QA, beside answers cut by sentences: for how many words find one candidate or several, and then
# vectors of the embedded model
SHARES = {
    "by_words": {"match_one": 32 / 399, "match_many": 3 / 399},
    "by_vectors": {"match_one": 53 / 399, "match_many": 293 / 399},
}


@dataclass(frozen=True)
class Sizes:
    """How many requests there are where answers that nobody has decide that, as of `jobs.asking.requests.Requests`.

    Frames of requests and bytes, at most and in the mean.
    """

    bound: DataFrame
    likely: DataFrame


@dataclass(frozen=True)
class StageSizes:
    """The sizes of what is asked once the facts are known: of entailment by stage, of vectors, of the one prompt."""

    by_words: Mapping[str, Sizes]
    texts: Sizes
    by_vectors: Mapping[str, Sizes]
    whole: Sizes


def assume(settings: Settings) -> Assumptions:
    """As many facts as texts can have, and all references open after each step."""
    results: dict[str, Mapping[str, Column]] = {
        "extract_claims": {"claims": different_texts(WORDS_OF_A_FACT)},
        EMBED: assumed_results()[EMBED],
        **_judged(),
    }
    return Assumptions(settings, results, likely=_likely)


def _judged() -> dict[str, Mapping[str, Column]]:
    """A resolved fact is a new text; nothing is covered, so that all references are looked for in both ways."""
    return {
        "resolve_coreference": {"facts": F.transform("facts", lambda text: F.concat(text, F.lit(MARK)))},
        "match_one": {"matched": F.lit(False)},
        "match_many": {"candidates": F.array().cast("array<int>")},
        "match_holistic": {"candidates": F.transform("references", lambda _: F.array().cast("array<int>"))},
    }


def _likely(figures: Likely) -> dict[str, Mapping[str, Column]]:
    """As many facts as the figures have of a text."""
    found: dict[str, Mapping[str, Column]] = dict(_judged())
    if "extract_claims" in figures:
        extract, tokens = figures["extract_claims"], tokens_of("text")
        count = whole(value_of(extract.things, tokens), "text")
        found["extract_claims"] = {"claims": made_up(count, size_of_things(extract, tokens), "text")}
    return found


def sizes_of(facts: DataFrame, samples: DataFrame, top_k: int) -> StageSizes:
    """The sizes by the facts of each sample (columns of `untold.udfs.recall.sample_facts.CUT`) and its query.

    In each step a reference is one request at most, whichever stage has it: with one candidate or with several.
    """
    side = {name: F.col(f"facts.{name}") for name in (RESPONSE, REFERENCES)}
    count = {name: F.greatest(F.coalesce(F.size(column), F.lit(0)), F.lit(0)) for name, column in side.items()}
    longest = {name: F.coalesce(F.array_max(_bytes(column)), F.lit(0)) for name, column in side.items()}
    total = {name: F.aggregate(_bytes(column), F.lit(0), lambda sum_, one: sum_ + one) for name, column in side.items()}
    references = count[REFERENCES]
    shown = {
        "match_one": (count[RESPONSE] >= 1, longest[REFERENCES] + longest[RESPONSE]),
        "match_many": (
            (count[RESPONSE] >= 2) & F.lit(top_k >= 2),
            longest[REFERENCES] + longest[RESPONSE] * F.least(count[RESPONSE], F.lit(top_k)),
        ),
    }
    make = partial(_sizes, facts)
    steps = {
        step: {
            stage: make(possible, references, size, SHARES[step][stage]) for stage, (possible, size) in shown.items()
        }
        for step in SHARES
    }
    both = (references > 0) & (count[RESPONSE] > 0)
    texts = make(both, references + count[RESPONSE], F.greatest(*longest.values()), 1.0)
    with_query = facts.join(samples.select("sample_id", "query"), on="sample_id", how="inner")
    prompt = _sizes(with_query, both, F.lit(1), F.octet_length("query") + sum(total.values(), F.lit(0)), 1.0)
    return StageSizes(steps["by_words"], texts, steps["by_vectors"], prompt)


def _bytes(facts: Column) -> Column:
    """The lengths of facts, with what stands between their parts."""

    def length(fact: Column) -> Column:
        before = (
            F.coalesce(F.octet_length(F.nullif(fact[part], F.lit(""))) + 2, F.lit(0)) for part in ("under", "anchor")
        )
        return sum(before, F.octet_length(fact["evidence"]))

    return F.transform(facts, length)


def _sizes(facts: DataFrame, possible: Column, requests: Column, size: Column, share: float) -> Sizes:
    """`requests` of this size where one is possible; of these, in the mean, that share."""
    most = F.when(possible, requests).otherwise(F.lit(0))
    usual = whole(most * share, F.col("sample_id")) if share < 1 else most
    return Sizes(*(facts.select(number.alias("requests"), size.alias("bytes")) for number in (most, usual)))
