"""The options list all data sets that the adapters declare."""

from __future__ import annotations

import pytest

from untold.jobs.cli.values import known_formats, question_formats, studied, study_formats
from untold.udfs.samples.adapters import FORMATS, Adapter
from untold.udfs.samples.labelled import CLAIM_FORMATS


def test_a_declared_data_set_is_an_option_wherever_its_rows_are_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "mine", Adapter((), lambda record, _: [record], uses=("questions", "items", "labels")))
    monkeypatch.setitem(FORMATS, "samples_alone", Adapter((), lambda record, _: [record]))
    monkeypatch.setitem(CLAIM_FORMATS, "my_claims", Adapter((), lambda record, _: [record]))
    assert all("mine" in names() for names in (known_formats, question_formats, study_formats, studied))
    assert not any("samples_alone" in names() for names in (question_formats, study_formats, studied))
    assert "my_claims" in study_formats()
    assert "my_claims" not in known_formats()


def test_the_shipped_data_sets() -> None:
    data_sets = {"eli5_category", "trec_web", "expertqa", "qampari", "romqa", "longfact", "trec_rag_nuggets", "rubrics"}
    data_sets |= {"deepresearch_bench", "deepresearch_bench_2", "scholarqa_cs"}
    tools = {
        "ragas",
        "trec_rag",
        "huggingface",
        "langsmith",
        "langfuse",
        "phoenix",
        "mlflow",
        "openai_evals",
        "deepeval",
    }
    assert set(question_formats()) == data_sets | tools
    assert {"ragchecker", "trec_rag_answers", *tools} <= set(known_formats())
    items = ["realsumm", "k_qa", "k_qa_questions", "expertqa", "trec_rag_nuggets"]
    assert study_formats() == [*items, "rubrics", "healthbench_meta", "factscore"]
    assert studied() == ["wikicontradict", "conflictbank", "coverage", "claims", "nuggets", "rubrics"]
