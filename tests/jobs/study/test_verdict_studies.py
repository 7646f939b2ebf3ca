"""Verdicts against labels of claims, against statsmodels, SciPy and counting by hand."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.inter_rater import cohens_kappa

from tests.examples import examples
from untold.jobs.inputs.options import RunOptions
from untold.jobs.run.terminal import Display
from untold.jobs.settings.model import Settings, SettingsError
from untold.jobs.study import meta_evaluation
from untold.jobs.study.judgements import Judgements, LabelledUnits
from untold.jobs.study.meta_evaluation import MetaEvaluationRequest, StageCaller, endpoint_of
from untold.jobs.study.verdict_studies import VERDICTS, claim_agreements, claim_rows, share_rows
from untold.udfs.statistics.intervals import clustered_bca_interval, wilson_interval

Claims = list[tuple[str, str | None]]
CLAIMS = st.lists(st.tuples(st.sampled_from(VERDICTS), st.sampled_from([*VERDICTS, None])), min_size=1, max_size=40)


def agreement_of(claims: Claims, units: int = 0) -> dict[str, dict[str, Any]]:
    """Return the rows of labels and verdicts by measure; the claims belong to units in turn, if there are units."""
    labels, verdicts = zip(*claims, strict=True)
    names = [f"u{place % (units or len(claims))}" for place in range(len(claims))]
    rows = claim_agreements(labels, names, verdicts, clustered=units > 0, seed=0)
    return {row["measure"]: row for row in rows}


def labelled(claims: Claims, units: int = 0) -> LabelledUnits:
    rows = [
        {"claim_id": str(place), "unit": f"u{place % (units or len(claims))}", "system": None, "label": label}
        for place, (label, _) in enumerate(claims)
    ]
    schema = pa.schema([(name, pa.string()) for name in ("claim_id", "unit", "system", "label")])
    return LabelledUnits("input", pa.Table.from_pylist(rows, schema), ("claim_id",))


@examples(30)
@given(CLAIMS)
def test_measures_equal_the_counts_of_single_claims(claims: Claims) -> None:
    names = [name for name in VERDICTS if name in {label for label, _ in claims}]
    known = [(label, verdict) for label, verdict in claims if verdict is not None]
    if "contradicted" not in names:
        known = [(label, "not_supported" if verdict == "contradicted" else verdict) for label, verdict in known]
    found = {name: row["value"] for name, row in agreement_of(claims).items()}
    if not known:
        assert set(found.values()) == {None}
        return
    assert found["accuracy"] == pytest.approx(np.mean([label == verdict for label, verdict in known]))
    f1 = []
    for name in names:
        hits = sum(label == verdict == name for label, verdict in known)
        size = sum((label == name) + (verdict == name) for label, verdict in known)
        f1 += [2 * hits / size] if size else []
    assert found["macro_f1"] == pytest.approx(np.mean(f1))
    table = np.zeros((3, 3))
    for label, verdict in known:
        table[VERDICTS.index(label), VERDICTS.index(verdict)] += 1
    agreed_by_chance = (table.sum(axis=0) * table.sum(axis=1)).sum() == table.sum() ** 2
    if agreed_by_chance:
        assert found["kappa"] is None
    else:
        assert found["kappa"] == pytest.approx(float(cohens_kappa(table, return_results=False)))


def test_whole_units_with_similar_claims_have_wider_intervals() -> None:
    said = [("supported", "supported"), ("not_supported", "supported"), ("not_supported", "not_supported")]
    claims = [said[n % 3] for n in range(60)]
    one_by_one = agreement_of(claims)["accuracy"]
    # Every third claim has one kind, so each of the six units has claims of one kind
    by_unit = agreement_of(claims, 6)["accuracy"]
    assert {name: one_by_one[name] for name in ("value", "ci_low", "ci_high")} == wilson_interval(40, 60).columns()
    assert one_by_one["value"] == by_unit["value"] == pytest.approx(2 / 3)
    widths = [one["ci_high"] - one["ci_low"] for one in (one_by_one, by_unit)]
    assert widths[1] > 2 * widths[0]


def test_the_supported_share_is_that_of_all_claims() -> None:
    claims: Claims = [("supported", "supported")] * 5 + [("not_supported", None)] * 3
    labels, verdicts = map(list, zip(*claims, strict=True))
    (share,) = share_rows(labelled(claims), labels, clustered=False, seed=0)
    assert share == {"measure": "supported_share", "n": 8, "excluded": 0} | wilson_interval(5, 8).columns()
    (share,) = share_rows(labelled(claims), verdicts, clustered=False, seed=0)
    assert (share["n"], share["excluded"]) == (5, 3)
    (share,) = share_rows(labelled(claims, 2), labels, clustered=True, seed=0)
    expected = clustered_bca_interval([3, 2], [4, 4], seed=0).columns()
    assert {name: share[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("labels", "accuracy"),
    [(["not_supported", "supported", "not_supported"], 2 / 3), (["not_supported", "supported"], 1 / 2)],
)
def test_the_constant_label_is_the_most_frequent_and_supported_among_equals(labels: list[str], accuracy: float) -> None:
    units = labelled([(label, None) for label in labels])
    rows = claim_rows(units, Judgements({}, {}, {}), clustered=False, seed=0)
    (found,) = [row for row in rows if (row["metric"], row["measure"]) == ("constant", "accuracy")]
    assert found["value"] == pytest.approx(accuracy)


def test_a_stage_of_a_study_has_the_options_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--no-lock` and `--no-poll` apply to the stages of a study, too."""
    opened: list[RunOptions] = []

    def stop(settings: Settings, display: Display, run: str, options: RunOptions) -> None:
        opened.append(options)
        raise SettingsError("stopped")

    monkeypatch.setattr(meta_evaluation, "open_engines", stop)
    settings = Settings.model_validate({"llm": {"base_url": "http://host/v1", "model": "m"}})
    request = MetaEvaluationRequest(
        input="claims.jsonl", output=str(tmp_path), settings=settings, dataset="claims", lock=False, poll=False
    )
    caller = StageCaller(request, endpoint_of(settings, embedded=False), Display(StringIO()))
    with pytest.raises(SettingsError, match="stopped"):
        caller.ask("verify_claim", cast(Any, SimpleNamespace(sparkSession=None)), (), ())
    assert [(one.lock, one.poll) for one in opened] == [(False, False)]
