"""`untold.judge`: probabilities as a NumPy array, without Spark."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import untold

BEES = "Bees make honey from nectar. They dance to show others the way to flowers."


def test_probabilities_are_an_array_with_one_number_per_pair() -> None:
    found = untold.judge([BEES, BEES, ""], ["Bees make honey.", "The Danube flows through Vienna.", "Bees dance."])
    assert (found.shape, found.dtype) == ((3,), np.float64)
    assert found[0] > 0.5 > found[1]
    assert np.isnan(found[2])


def test_one_text_is_judged_with_every_fact() -> None:
    facts = ["Bees make honey.", "Bees dance."]
    assert untold.judge(BEES, facts).tolist() == untold.judge([BEES, BEES], facts).tolist()
    assert untold.judge(BEES, "Bees dance.").tolist() == untold.judge(BEES, facts)[1:].tolist()
    assert untold.judge(BEES, []).shape == untold.judge([], []).shape == (0,)


def test_one_query_is_before_every_text() -> None:
    texts, facts = ["They dance.", "They make honey."], ["Bees dance.", "Bees make honey."]
    found = untold.judge(texts, facts, "What do bees do?")
    assert found.tolist() == untold.judge(texts, facts, ["What do bees do?"] * 2).tolist()
    assert (found > untold.judge(texts, facts)).all()


def test_lists_of_different_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 texts, 2 facts and 2 queries"):
        untold.judge([BEES] * 3, ["Bees dance."] * 2)


def test_values_that_are_not_strings_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"texts\[1\] is of type float, not str"):
        untold.judge([BEES, float("nan")], ["Bees dance."] * 2)  # type: ignore[list-item]


def test_neither_spark_nor_ray_nor_pandas_is_imported() -> None:
    code = (
        "import sys, untold\n"
        "print(untold.judge('Bees make honey.', ['Bees make honey.'])[0] > 0.5)\n"
        "print([name for name in ('pyspark', 'ray', 'pandas', 'duckdb', 'openai') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:2] == ["True", "[]"]
