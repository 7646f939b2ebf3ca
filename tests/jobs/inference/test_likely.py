"""Test the figures of a plan: the means of a store, the means of the same stage with other models, and the shipped
means.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.stage.expected_usage import FROM_STORE, read_figures
from untold.jobs.inference.store.store import stage_folder
from untold.jobs.settings.model import LlmSettings, Settings
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.store_files import Completion, completions_table, write_file
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import LinearSize

EXTRACT, RATE, CLASSIFY = "extract_atoms", "rate_relevance", "classify_relation"


def stage_of(name: str, model: str = "m") -> Stage:
    return bind_stage(name, Settings(llm=LlmSettings(base_url="http://127.0.0.1:9/v1", model=model)))


def write(
    store: Path, stage: Stage, *texts: str | None, tokens: tuple[int, int] = (100, 10), attempts: int = 1
) -> None:
    """Write a file with these completions into the folder of the stage. A completion of None is an error."""
    folder = Path(stage_folder(str(store), stage))
    folder.mkdir(parents=True, exist_ok=True)
    paid = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "attempts": attempts}
    rows = [
        Completion(
            f"{n:032x}", text=text, error_type=None if text else "timeout", answered_at=datetime.now(UTC), **paid
        )
        for n, text in enumerate(texts)
    ]
    write_file(f"{folder}/{len(list(folder.iterdir()))}.parquet", completions_table(rows))


def test_without_completions_figures_are_as_shipped(spark: SparkSession, tmp_path: Path) -> None:
    stages = {name: stage_of(name) for name in STAGES}
    shipped = {name: stage.figures for name, stage in STAGES.items()}
    assert read_figures(spark, None, stages) == read_figures(spark, str(tmp_path), stages) == shipped


def test_means_cover_the_successful_and_readable_completions(spark: SparkSession, tmp_path: Path) -> None:
    extract, rate = stage_of(EXTRACT), stage_of(RATE)
    write(tmp_path, extract, "- A: Fact\n- B: Claim\n- C: Other", "- A: Fact", None, tokens=(100, 20), attempts=2)
    write(tmp_path, extract, "nothing that can be read", tokens=(400, 80), attempts=2)
    write(tmp_path, rate, "* A [Relevance: 5]\n* B [Relevance: 2]", "* A [Relevance: 4]\n* B [Relevance: 1]")
    figures = read_figures(spark, str(tmp_path), {EXTRACT: extract, RATE: rate, CLASSIFY: stage_of(CLASSIFY)})
    extracted, rated = figures[EXTRACT], figures[RATE]
    assert extracted is not None
    assert rated is not None
    assert (extracted.source, extracted.completion, extracted.things) == (FROM_STORE, LinearSize(40.0), LinearSize(1.5))
    assert (extracted.prompt_tokens, extracted.calls) == (200.0, 2.0)
    # The texts are A, B and A again
    assert extracted.distinct == pytest.approx(2 / 3)
    assert (rated.things, rated.ratings, rated.passing(3.5)) == (LinearSize(2.0), (0.25, 0.25, 0.0, 0.25, 0.25), 0.5)
    assert figures[CLASSIFY] == STAGES[CLASSIFY].figures


@pytest.mark.parametrize(("models", "tokens"), [(("other",), 7.0), (("other", "m"), 3.0)])
def test_an_unknown_model_has_the_figures_of_another_model(
    spark: SparkSession, tmp_path: Path, models: tuple[str, ...], tokens: float
) -> None:
    for model in models:
        write(tmp_path, stage_of(CLASSIFY, model), "neutral", tokens=(50, 3 if model == "m" else 7))
    figures = read_figures(spark, str(tmp_path), {CLASSIFY: stage_of(CLASSIFY)})[CLASSIFY]
    assert figures is not None
    assert figures.completion == LinearSize(tokens)
