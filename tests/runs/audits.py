"""Compare the relations and audits of jobs of the metric nli with brute force."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.fakes.expected import Expected, Options, expected_nli
from tests.runs.harness import read_manifest, read_table
from tests.runs.worlds import Job, assert_conflicts, rows_by_sample, scores_of
from untold.udfs.statistics.intervals import clustered_bca_interval

NliJob: TypeAlias = Job[Options, Expected]


def relations_of(output: Path) -> dict[str, dict[tuple[str, str], str | None]]:
    """Return the relation of each pair of texts of each sample."""
    texts = {row["atom_id"]: row["text"] for row in read_table(output, "atoms")}
    return {
        sample_id: {(texts[row["premise_id"]], texts[row["hypothesis_id"]]): row["relation"] for row in rows}
        for sample_id, rows in rows_by_sample(output, "relations").items()
    }


def assert_audited(
    job: NliJob, output: Path, share: float, tell: Callable[[tuple[str, str]], tuple[str, str | None]]
) -> Counter[str]:
    """Check the tables of an audit against brute force, and return the number of pairs by source.

    The argument `tell` returns the source of a pair and, for a pair without the model, its relation.
    """
    texts = {row["atom_id"]: row["text"] for row in read_table(output, "atoms")}
    told: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    audited: dict[tuple[str, str], tuple[str | None, str | None]] = {}
    counts: Counter[str] = Counter()
    for row in read_table(output, "relations"):
        told[row["sample_id"]][texts[row["premise_id"]], texts[row["hypothesis_id"]]] = row["judged_by"]
    found, scores = relations_of(output), scores_of(output)
    measures = {(row["sample_id"], row["measure"]): row["value"] for row in read_table(output, "measures")}
    expected: dict[str, Expected] = {}
    for sample in job.samples:
        name, whole = sample["sample_id"], job.expected[sample["sample_id"]]
        known = {pair: tell(pair) for pair in whole.relations}
        tellers = {pair: teller for pair, (teller, _) in known.items()}
        asked = {pair for pair, teller in tellers.items() if teller in ("model", "audit")}
        judged = {pair: whole.relations[pair] if pair in asked else relation for pair, (_, relation) in known.items()}
        assert (told[name], found.get(name, {})) == (tellers, judged)
        expected[name] = expected_nli(sample, job.options, judged)
        score = expected[name].score
        assert scores[name]["score"] == score
        drawn = {pair: (judged[pair], known[pair][1]) for pair, teller in tellers.items() if teller == "audit"}
        audited |= drawn
        counts.update(tellers.values())
        worth = [
            (score or 0.0) - (expected_nli(sample, job.options, {**judged, pair: told}).score or 0.0)
            for pair, (relation, told) in drawn.items()
            if "entailment" in (relation, told) and relation != told
        ]
        corrected = None if score is None else pytest.approx(score + sum(worth) * (1 / share - 1))
        assert measures[name, "score_audited"] == corrected
    assert_conflicts(output, expected)
    missed = Counter(relation for relation, told in audited.values() if relation != told)
    rows = {(row["measure"], row["system"]): row for row in read_table(output, "measures_summary")}
    assert (rows["miss_rate", None]["defined"], rows["miss_rate", None]["mean"]) == (
        len(audited),
        missed.total() / len(audited),
    )
    for relation in ("entailment", "contradiction", "neutral"):
        assert rows[f"miss_rate_{relation}", None]["mean"] == missed[relation] / len(audited)
    audits = read_manifest(output)["audits"]
    assert {one["measure"]: one["mean"] for one in audits} == {
        name: row["mean"] for (name, _), row in rows.items() if name.startswith("miss_rate")
    }
    of_query: dict[str, list[float]] = defaultdict(list)
    for sample in job.samples:
        if (value := measures[sample["sample_id"], "score_audited"]) is not None:
            of_query[sample["query"]].append(value)
    sums, sizes = ([count(own) for own in of_query.values()] for count in (sum, len))
    interval = clustered_bca_interval(sums, sizes, seed=0)
    row = rows["score_audited", None]
    assert row["mean"] == pytest.approx(interval.mean)
    # The resamples use another order of the queries
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((interval.low, interval.high), abs=0.02)
    assert missed.total() > 5
    return counts
