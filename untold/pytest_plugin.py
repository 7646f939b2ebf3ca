"""A plugin for pytest. It has a fixture for a run of `untold score`, and an assertion about the means of two runs.

The fixture reads the run from the option `--untold-run DIR`, or from the setting `untold_run` of pytest.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from untold.jobs.run_analysis import Run
    from untold.jobs.run_tables import RunTables
    from untold.jobs.summary.gate import Gate


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting that name the run."""
    parser.getgroup("untold").addoption("--untold-run", metavar="DIR", help="the run of the fixture untold_run")
    parser.addini("untold_run", "the run of the fixture untold_run: a path from the root folder, or a URI")


@pytest.fixture(scope="session")
def untold_run(request: pytest.FixtureRequest) -> Run:
    """Return the run that the option `--untold-run` or the setting `untold_run` names.

    An indirect parameter of a test replaces both. The test fails if there is no name. Raises UntoldError if the folder
    does not contain a finished run.
    """
    from untold.jobs.run_analysis import open_run

    directory = getattr(request, "param", None) or request.config.getoption("--untold-run")
    if not directory and (setting := str(request.config.getini("untold_run"))):
        directory = setting if "://" in setting else request.config.rootpath / setting
    if not directory:
        pytest.fail("no run: use pytest --untold-run DIR, or set untold_run in the configuration of pytest", False)
    return open_run(directory)


def assert_not_worse(
    candidate: RunTables | str | os.PathLike[str],
    base: RunTables | str | os.PathLike[str],
    *,
    max_drop: float,
    metric: str | None = None,
    cluster: bool = False,
    undefined: str = "mean",
    seed: int = 0,
) -> Gate:
    """Assert that no mean of the candidate fell by `max_drop` or more, and return the verdicts.

    This is the same decision as `untold compare BASE CANDIDATE --max-drop X`.

    Args:
        candidate, base: Runs, or the paths of their folders.
        max_drop: The permitted drop of a mean, from 0 to 1.
        metric: The name of a metric. The default is all metrics of the base.
        cluster, undefined, seed: See `untold.Run.compare`.

    Raises:
        AssertionError: A verdict is FAIL or INCONCLUSIVE.
        UntoldError: The runs cannot be compared.
    """
    __tracebackhide__ = True
    from untold.jobs.run_tables import open_run
    from untold.jobs.summary.gate import PASS, compare_with_base

    notes: list[str] = []
    runs = [open_run(run) if isinstance(run, str | os.PathLike) else run for run in (base, candidate)]
    gate = compare_with_base(
        *runs,
        max_drop=max_drop,
        metrics=None if metric is None else [metric],
        seed=seed,
        cluster=cluster,
        undefined=undefined,
        notify=notes.append,
    )
    for note in notes:
        warnings.warn(note, stacklevel=2)
    if gate.verdict != PASS:
        raise AssertionError("\n".join([gate.summary(), *gate.problems()]))
    return gate
