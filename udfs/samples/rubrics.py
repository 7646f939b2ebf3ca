"""Adapters of data sets with rubrics: HealthBench, ResearchRubrics, ProfBench, DeepResearch Bench and ScholarQA-CS."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from untold.udfs.samples.file_records import RowError
from untold.udfs.samples.items import WEIGHTS
from untold.udfs.samples.tool_files import ASKED, Names, Values, find_text, opened, under_our_names
from untold.udfs.samples.values import first_of, object_of

# HealthBench and ResearchRubrics have prompt and rubrics; ProfBench has a task_id too
NAMES: Names = {
    "query": ("query", "prompt"),
    "response": ("response", "completion"),
    "query_id": ("query_id", "prompt_id", "task_id"),
    "rubric": ("rubrics",),
}
DEEPRESEARCH: Names = {
    "query": ("query", "prompt"),
    "response": ("response", "article"),
    "query_id": ("query_id", "id"),
    "ground_truth": ("ground_truth", "reference_article"),
}
SCHOLARQA: Names = {
    "query": ("initial_prompt",),
    "response": ("response", "answer_text"),
    "query_id": ("query_id", "case_id"),
}
# The names of a criterion's fields. The first that it has counts
_TEXT, _POINTS = ("text", "criterion", "criterion_description", "title"), (*WEIGHTS, "criterion_weight")
_DIMENSION, _TAGS = ("dimension", "axis", "category"), ("tags", "criterion_type")
# Fields with a number that is no weight. A number in another field is a weight with an unknown name
_COUNTS = ("id", "index", "number", "position", "row_index")
_NUMBER = re.compile(r"\s*[-+]?\d+(\.\d+)?\s*")
# The weights of ProfBench, by its evaluation code
_WORDS = {"Critical": 4.0, "Major": 3.0, "Minor": 2.0, "Additional": 1.0}
# A tag of HealthBench that names the axis of a criterion
_AXIS = "axis:"
# The columns of ProfBench with the responses that people annotated
_OF_SYSTEM, _LABEL = "_response", "_fulfilment"
# The judges of DeepResearch Bench and ScholarQA-CS give each criterion a number from 0 to 10
GRADES = [{"label": str(grade), "share": grade / 10} for grade in range(11)]
_IMPORTANCE = re.compile(r"(most_important|nice_to_have)_item_\d+")


def rubrics(row: Values, _: int) -> Iterator[Values]:
    """Yield a task with its criteria as a rubric, once for each response in a column `<system>_response`.

    Several messages of a prompt become one text. Without a response, a last message of the assistant is the response.
    HealthBench's ideal completion is the ground truth, and its tag
    `axis:NAME` the dimension of a criterion.
    """
    values = _named(row, NAMES)
    criteria = opened(values.get("rubric"))
    ideal = object_of(values.get("ideal_completions_data")).get("ideal_completion")
    if isinstance(criteria, list):
        values["rubric"] = [_criterion(one, f"criterion {place}") for place, one in enumerate(criteria, start=1)]
    if isinstance(values.get("query"), list):
        values |= _conversation(values["query"], is_judged="response" not in values)
    if isinstance(ideal, str):
        values.setdefault("ground_truth", ideal)
    yield from _by_system(values, criteria) if isinstance(criteria, list) else [values]


def _named(values: Mapping[str, Any], names: Names) -> dict[str, Any]:
    return {"contexts": [], **under_our_names(values, names)}


def _criterion(value: Any, where: str) -> Any:
    """Return a criterion under our names. Raises RowError if the name of its weight is not known."""
    if not isinstance(value, Mapping):
        return value
    known = (*_TEXT, *_POINTS, *_COUNTS)
    numbers = [name for name, one in value.items() if name not in known and _NUMBER.fullmatch(str(one))]
    if numbers and first_of(value, _POINTS) is None:
        raise RowError(f"{where} has no weight, but `{numbers[0]}`; rename it to `weight` or `points`")
    points, tags = value.get("criterion_weight"), first_of(value, _TAGS)
    axes = [tag.removeprefix(_AXIS) for tag in tags or () if isinstance(tag, str) and tag.startswith(_AXIS)]
    found = {name: value[name] for name in ("id", "levels", "labels", *WEIGHTS) if name in value}
    if points is not None:
        found["points"] = _WORDS.get(points, points) if isinstance(points, str) else points
    dimension = first_of(value, _DIMENSION) or next(iter(axes), None)
    return {**found, "text": first_of(value, _TEXT), "dimension": dimension, "tags": tags}


def _by_system(values: Mapping[str, Any], criteria: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the task with each of its responses by system and the labels of people, or with its only response."""
    responses = {name: one for name, one in values.items() if name.endswith(_OF_SYSTEM) and isinstance(one, str)}
    rest = {name: one for name, one in values.items() if name not in responses}
    if not responses or "response" in values:
        yield dict(values)
        return
    for name, response in responses.items():
        system = name.removesuffix(_OF_SYSTEM)
        labels = [object_of(one).get(f"{system}{_LABEL}") for one in criteria]
        rubric = [
            {**one, "labels": label} if isinstance(one, dict) else one
            for one, label in zip(values["rubric"], labels, strict=True)
        ]
        yield {**rest, "response": response, "system": system, "rubric": rubric}


def healthbench_meta(row: Values, _: int) -> Iterator[Values]:
    """Yield a criterion of HealthBench's meta-evaluation with the labels of physicians and its category."""
    values = _named(row, NAMES)
    one = {"text": values["rubric"], "dimension": values.get("category"), "labels": opened(values.pop("binary_labels"))}
    values["rubric"] = [one]
    if isinstance(values.get("query"), list):
        values |= _conversation(values["query"], is_judged=False)
    yield values


def _conversation(messages: Sequence[Any], *, is_judged: bool) -> dict[str, str | None]:
    """Return the messages as the query, each with its role; a single message has no role.

    is_judged: True if a last message of the assistant is the response.
    """
    texts = [find_text(one, ASKED, ()) for one in messages]
    roles = [object_of(one).get("role") for one in messages]
    last = {"response": texts.pop()} if is_judged and len(texts) > 1 and roles[-1] == "assistant" else {}
    if len(texts) < 2:
        return {"query": next(iter(texts), None), **last}
    turns = [f"{role}: {text}" if role else text for role, text in zip(roles, texts, strict=False) if text]
    return {"query": "\n\n".join(turns), **last}


def deepresearch_bench(row: Values, _: int) -> Iterator[Values]:
    """Yield a task with its criteria (RACE). Points are the weight of the dimension times the weight within it.

    A criterion has the grades 0 to 10. Rows with `article` or `response` have a response, and with `reference_article`
    a ground truth. Raises RowError for a row without weights.
    """
    values = _named(row, DEEPRESEARCH)
    criteria, weights = opened(values.pop("criterions")), opened(values.pop("dimension_weight"))
    if not isinstance(criteria, Mapping) or not isinstance(weights, Mapping):
        raise RowError("`criterions` and `dimension_weight` need one entry per dimension; correct them")
    try:
        values["rubric"] = [
            {
                # With its explanation, as its judge sees both
                "text": ": ".join(str(one[part]) for part in ("criterion", "explanation") if one.get(part)),
                "points": weights[name] * one["weight"] / total,
                "dimension": name,
                "levels": GRADES,
            }
            for name, own in criteria.items()
            for total in [sum(one["weight"] for one in own)]
            for one in own
        ]
    except (KeyError, TypeError, ZeroDivisionError):
        raise RowError("a criterion or a dimension has no weight; correct it") from None
    yield values


def deepresearch_articles(row: Values, _: int) -> Iterator[Values]:
    """Yield an article of DeepResearch Bench. Pages that FACT scraped are contexts, with the URL as id.

    The citations that FACT's model extracted are the column `extracted`, since the article has its own markers.
    """
    values = _named(row, DEEPRESEARCH)
    pages, extracted = opened(values.pop("citations_deduped", None)), values.pop("citations", None)
    if isinstance(pages, Mapping):
        texts = {url: one.get("url_content") for url, one in pages.items() if isinstance(one, Mapping)}
        # FACT could not scrape some pages
        values["contexts"] = [
            {"id": url, "text": text}
            for url, text in texts.items()
            if isinstance(text, str) and text.strip() and not text.startswith("scrape failed:")
        ]
    yield {**values, **({} if extracted is None else {"extracted": extracted})}


def deepresearch_bench_2(row: Values, _: int) -> Iterator[Values]:
    """Yield a task with its nested rubric: each item has one point, and its group is the dimension.

    The references that a response must not use are the column `blocked`, and their URLs the column `blocked_sources`.
    The prompt names them too.
    """
    values = _named(row, DEEPRESEARCH)
    content = object_of(opened(values.pop("content")))
    groups = content.get("rubric")
    if not isinstance(groups, Mapping) or not all(isinstance(own, list) for own in groups.values()):
        raise RowError("`content` needs a rubric with one list per dimension; correct it")
    values["rubric"] = [
        {"text": text, "points": 1, "dimension": name, "tags": []} for name, own in groups.items() for text in own
    ]
    blocked = content.get("blocked")
    urls = object_of(blocked).get("urls")
    yield {**values, "blocked": blocked, **({"blocked_sources": urls} if urls else {})}


def scholarqa_cs(row: Values, _: int) -> Iterator[Values]:
    """Yield a question with its annotated criteria, with the grades 0 to 10 and the importance as the dimension.

    The measures of length, expertise, citations and excerpts are no criteria of an annotator, and are left out.
    """
    values = _named(row, SCHOLARQA)
    config = object_of(opened(values.pop("metric_config"))).get("config")
    own = object_of(config).get("other_properties")
    if not isinstance(own, list) or not all(isinstance(one, Mapping) for one in own):
        raise RowError("`metric_config` needs a config with other_properties; correct it")
    values["rubric"] = [
        {
            "text": one.get("criterion"),
            "points": one.get("weight"),
            "dimension": found[1] if (found := _IMPORTANCE.fullmatch(str(one.get("name")))) else None,
            "levels": GRADES,
        }
        for one in own
    ]
    yield values
