"""Compare the results of `untold calibrate` on two runs with figures that this test computes."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.jobs.report.outputs import sample, score, statement, write_output
from tests.runs.calibrated import assert_agreement
from untold.jobs import calibrate
from untold.jobs.calibrate import _agreement
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.run import output
from untold.jobs.run.locks import UnlockableError
from untold.jobs.run.terminal import Display
from untold.jobs.run_tables import open_run
from untold.jobs.settings.model import Settings, SettingsError

# Agreement only depends on the support of a claim
VERDICTS = ("supported", "contradicted", "not_supported")


def write_form(folder: Path, seed: int | None) -> Path:
    """Write a run with six queries, three systems, ten facts and three claims.

    Each seed changes some of the verdicts.
    """
    random, errs = np.random.default_rng(0), np.random.default_rng(seed)
    tables: dict[str, list[dict[str, object]]] = {name: [] for name in ("samples", "scores", "statements", "claims")}
    for query in range(6):
        for place, system in enumerate("abc"):
            name = f"{system}{query}"
            truth = random.random(10) < 0.3 + 0.2 * place
            found = truth if seed is None else truth ^ (errs.random(10) < 0.15)
            tables["samples"].append(sample(name, f"Query {query}?", system=system))
            tables["scores"].append(score(name, system=system, value=float(found.mean())))
            for number, covered in enumerate(found.tolist()):
                # References are matched by id. Facts are matched by text, without regard to case and spaces
                named = {"reference_id": f"r{number}"} if number % 2 else {}
                text = f"Fact {number}." if seed is None else f" FACT {number}. "
                tables["statements"].append(statement(name, number, text, covered, **named))
            said = random.integers(0, 3, 3)
            judged = said if seed is None else np.where(errs.random(3) < 0.15, (said + 1) % 3, said)
            for number, verdict in enumerate(judged.tolist(), start=1):
                claim = {"sample_id": name, "metric": "e2e", "claim_id": f"{name}:e2e:{number}", "position": number}
                tables["claims"].append({**claim, "text": f"Fact {number}.", "verdict": VERDICTS[verdict]})
            if seed == 2:
                # If a variant does not have a statement, it does not agree on it
                tables["statements"].pop()
    return write_output(folder, tables)


@pytest.mark.parametrize("seed", [1, 2])
def test_verdicts_of_statements_and_claims_scores_and_rankings_are_compared_as_by_hand(
    tmp_path: Path, seed: int
) -> None:
    outputs = [write_form(tmp_path / "published", None), write_form(tmp_path / "form", seed)]
    row = _agreement([open_run(one) for one in outputs], "e2e", 0)
    assert_agreement(row, outputs, "e2e")
    assert row["verdicts"] == 180 + 54
    assert 0.3 < row["kappa"] < 0.9


@pytest.mark.parametrize(("lock", "error"), [(True, UnlockableError), (False, SettingsError)])
def test_a_store_without_locks_needs_no_lock_with_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: bool, error: type[Exception]
) -> None:
    monkeypatch.setattr(output, "check_lockable", raising(UnlockableError("the store has no locks")))
    monkeypatch.setattr(calibrate, "open_held", raising(SettingsError("the engines start")))
    (tmp_path / "samples.jsonl").write_text("{}\n")
    given = {"input": str(tmp_path / "samples.jsonl"), "output": str(tmp_path / "out" / "forms" / "published")}
    settings = Settings.model_validate({"llm": {"base_url": "http://host/v1", "model": "m"}})
    request = ScoreRequest(**given, settings=settings, metrics=("e2e",), embedded=False, lock=lock)
    variant = calibrate.Variant("published", (), request)
    with pytest.raises(error):
        calibrate.calibrate([variant], str(tmp_path / "out"), Display(StringIO()), least=0.9, overwrite=False)


def raising(error: Exception) -> Callable[..., Any]:
    """Return a function that raises the error."""

    def refuse(*_: object) -> None:
        raise error

    return refuse
