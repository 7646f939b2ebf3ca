"""Test the schema of each stage: the parser accepts all valid objects, and the result has the format of the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.linear import assert_linear
from tests.udfs.stages.test_completions import plain
from untold.udfs.facts.citation_measures import LABELS
from untold.udfs.facts.nodes import normalise
from untold.udfs.facts.nugget_measures import SUPPORTS
from untold.udfs.facts.rubric_measures import VERDICTS as VERDICTS_OF_CRITERIA
from untold.udfs.ratings import Digit
from untold.udfs.samples.items import IMPORTANCES
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import MOST_NUMBERS, filled, read_as, without_reasoning
from untold.udfs.stages.importance import VERDICTS
from untold.udfs.stages.nli import RELATIONS, UNIT_TYPES
from untold.udfs.stages.nuggets import CITED_LABELS
from untold.udfs.stages.qa import RELATIONS as COMPARISONS

WORDS = ("harbour", "lighthouse", "1874", "Ada Fenn", "zwölf Türme", "ferry", "salt", "5 km", "北塔")
TEXTS = st.lists(st.sampled_from(WORDS), min_size=2, max_size=5).map(lambda words: f"The {' and '.join(words)} stands")
QUESTIONS = TEXTS.map(lambda text: f"{text} where?")
RATINGS = st.integers(1, 5)


def distinct(texts: st.SearchStrategy[str], least: int = 1) -> st.SearchStrategy[list[str]]:
    return st.lists(texts, min_size=least, max_size=6, unique_by=normalise)


def numbers(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, count), unique=True, max_size=count) if count else st.just([])


def permuted(draw: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return draw(st.permutations(rows))


@st.composite
def _summaries(draw: Any) -> Any:
    summary = draw(st.none() | TEXTS)
    return {"query": "q", "text": "t"}, {"summary": summary}, {"summary": summary}


@st.composite
def _coverage(draw: Any) -> Any:
    contexts = draw(distinct(TEXTS))
    sources = st.lists(st.integers(1, len(contexts)), unique=True, min_size=1).map(sorted)
    statements = draw(st.lists(st.tuples(TEXTS, sources), unique_by=lambda one: one[0], max_size=4))
    cut = draw(st.integers(0, len(statements)))
    lists = [[{"statement": text, "sources": of} for text, of in part] for part in (statements[:cut], statements[cut:])]
    said = {"reasoning": draw(st.none() | TEXTS), "covered_statements": lists[0], "uncovered_statements": lists[1]}
    read = [{"text": text, "covered": n < cut, "sources": of} for n, (text, of) in enumerate(statements)]
    return {"query": "q", "contexts": contexts, "response": "r"}, said, {"statements": read, "dropped": 0}


@st.composite
def _atoms(draw: Any) -> Any:
    units = draw(st.lists(st.tuples(TEXTS, st.sampled_from(UNIT_TYPES)), max_size=5))
    said = {"atoms": [{"unit": text, "type": kind} for text, kind in units]}
    return {"text": "t"}, said, {"atoms": [{"text": text, "unit_type": kind} for text, kind in units]}


def _texts(field: str, column: str, **variables: Any) -> st.SearchStrategy[Any]:
    texts = QUESTIONS if column == "questions" else TEXTS
    return st.lists(texts, max_size=5).map(lambda found: (variables, {field: found}, {column: found}))


@st.composite
def _relevance(draw: Any) -> Any:
    statements = draw(distinct(TEXTS))
    rated = draw(st.lists(RATINGS, min_size=len(statements), max_size=len(statements)))
    rows = [{"id": number, "relevance": digit} for number, digit in enumerate(rated, start=1)]
    return {"query": "q", "statements": statements}, {"ratings": permuted(draw, rows)}, {"ratings": rated}


@st.composite
def _refined(draw: Any) -> Any:
    rated = [(question, draw(RATINGS)) for question in draw(distinct(QUESTIONS, 0))]
    said = {"questions": [{"question": question, "relevance": digit} for question, digit in rated]}
    read = {"questions": [question for question, _ in rated], "ratings": [digit for _, digit in rated]}
    return {"query": "q", "questions": ["Which?"]}, said, read


@st.composite
def _answers(draw: Any) -> Any:
    questions = draw(distinct(QUESTIONS))
    given_ = [[(text, draw(RATINGS)) for text in draw(distinct(TEXTS, 0))] for _ in questions]
    rows = [
        {"id": number, "answers": [{"answer": text, "confidence": digit} for text, digit in answers]}
        for number, answers in enumerate(given_, start=1)
    ]
    read = {
        "answers": [[text for text, _ in answers] for answers in given_],
        "confidences": [[digit for _, digit in answers] for answers in given_],
    }
    return {"text": "t", "questions": questions}, {"answers": permuted(draw, rows)}, read


@st.composite
def _comparison(draw: Any) -> Any:
    relation = draw(st.sampled_from(COMPARISONS))
    said = {"reasoning": draw(st.none() | TEXTS), "relation": relation}
    return {"question": "Which?", "first": "salt", "second": "ferry"}, said, {"relation": relation}


def _label(field: str, column: str, values: Mapping[str, Any], **variables: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(list(values)).map(lambda label: (variables, {field: label}, {column: values[label]}))


@st.composite
def _relations(draw: Any) -> Any:
    hypotheses = draw(distinct(TEXTS))
    relations = [draw(st.sampled_from(RELATIONS)) for _ in hypotheses]
    rows = [{"id": number, "relation": relation} for number, relation in enumerate(relations, start=1)]
    return {"premise": "p", "hypotheses": hypotheses}, {"relations": permuted(draw, rows)}, {"relations": relations}


@st.composite
def _labels(draw: Any, labels: Sequence[str], **variables: Any) -> Any:
    nuggets = draw(distinct(TEXTS))
    said = [draw(st.sampled_from(labels)) for _ in nuggets]
    rows = [{"number": number, "label": label} for number, label in enumerate(said, start=1)]
    # Only assignments can have reasons. The schema has no reasons
    expected = {"labels": said} | ({"reasons": [None] * len(said)} if "response" in variables else {})
    return {**variables, "nuggets": nuggets}, {"labels": permuted(draw, rows)}, expected


@st.composite
def _relevancies(draw: Any) -> Any:
    sentences = draw(distinct(TEXTS))
    said = [
        (draw(st.sampled_from(LABELS)), draw(st.sampled_from(("It gives no year.", "All of it")))) for _ in sentences
    ]
    rows = [{"number": n, "reason": reason, "label": label} for n, (label, reason) in enumerate(said, start=1)]
    expected = {"labels": [label for label, _ in said], "reasons": [reason for _, reason in said]}
    return {"query": "q", "sentences": sentences}, {"labels": permuted(draw, rows)}, expected


@st.composite
def _supports(draw: Any) -> Any:
    sentences = draw(distinct(TEXTS))
    said = [draw(st.sampled_from(CITED_LABELS)) for _ in sentences]
    reasons = [draw(st.sampled_from(("It gives no year.", "Is it there? Yes", "All of it"))) for _ in said]
    rows = [
        {"number": number, "reason": reason, "label": label}
        for number, (label, reason) in enumerate(zip(said, reasons, strict=True), start=1)
    ]
    supports = [label.partition("_")[0].replace("no", "none") for label in said]
    return (
        {"sources": ["s"], "sentences": sentences},
        {"labels": permuted(draw, rows)},
        {"supports": supports, "reasons": reasons},
    )


@st.composite
def _verdicts(draw: Any) -> Any:
    criteria = draw(distinct(TEXTS))
    levels = [draw(st.sampled_from(([], ["poor", "good"]))) for _ in criteria]
    said = [draw(st.sampled_from(["level_1", "level_2"] if own else VERDICTS_OF_CRITERIA)) for own in levels]
    reasons = [
        draw(st.sampled_from(("It names no dose.", "Is it clear? Yes: the text says so", "All of it"))) for _ in said
    ]
    rows = [
        {"number": number, "reason": reason, "label": label}
        for number, (label, reason) in enumerate(zip(said, reasons, strict=True), start=1)
    ]
    variables = {"query": "q", "response": "r", "criteria": criteria, "levels": levels}
    return variables, {"verdicts": permuted(draw, rows)}, {"verdicts": said, "reasons": reasons}


@st.composite
def _comparisons(draw: Any) -> Any:
    others = draw(distinct(TEXTS))
    relations = [draw(st.sampled_from(COMPARISONS)) for _ in others]
    rows = [{"id": number, "relation": relation} for number, relation in enumerate(relations, start=1)]
    variables = {"question": "q", "answer": "a", "others": others}
    return variables, {"relations": permuted(draw, rows)}, {"relations": relations}


@st.composite
def _conflicts(draw: Any) -> Any:
    names = ("first", "second")
    found = []
    for number in range(draw(st.integers(0, 3))):
        texts = [f"{draw(st.sampled_from(('The tower', 'It')))} has {number}{side} bells" for side in names]
        shown = [sorted(draw(numbers(3).filter(bool))) for _ in names]
        found.append({name: {"text": t, "sources": s} for name, t, s in zip(names, texts, shown, strict=True)})
    said = [
        {key: one[name][field] for name in names for key, field in ((name, "text"), (f"{name}_sources", "sources"))}
        for one in found
    ]
    return {"query": "q", "contexts": ["a", "b", "c"]}, {"conflicts": said}, {"conflicts": found, "dropped": 0}


@st.composite
def _sides(draw: Any) -> Any:
    statements = draw(distinct(TEXTS))
    covered = [draw(st.booleans()) for _ in statements]
    rows = [{"id": n, "label": "covered" if one else "uncovered"} for n, one in enumerate(covered, start=1)]
    return {"response": "r", "statements": statements}, {"labels": permuted(draw, rows)}, {"covered": covered}


@st.composite
def _aligned(draw: Any, lefts: str, rights: str, outer: str, left: str, right: str, column: str) -> Any:
    variables = {"query": "q", lefts: draw(distinct(TEXTS)), rights: draw(distinct(TEXTS))}
    found = [sorted(draw(numbers(len(variables[rights])))) for _ in variables[lefts]]
    rows = [{left: number, right: of} for number, of in enumerate(found, start=1) if of or draw(st.booleans())]
    return variables, {outer: permuted(draw, rows)}, {column: found}


@st.composite
def _importance(draw: Any) -> Any:
    facts = draw(distinct(TEXTS))
    rated = [(draw(RATINGS), draw(RATINGS)) for _ in facts]
    rows = [{"id": n, "relevance": one, "salience": other} for n, (one, other) in enumerate(rated, start=1)]
    read = {"relevance": [one for one, _ in rated], "salience": [other for _, other in rated]}
    return {"query": "q", "facts": facts}, {"ratings": permuted(draw, rows)}, read


@st.composite
def _covering(draw: Any) -> Any:
    claims = draw(distinct(TEXTS))
    known = sorted(draw(numbers(len(claims))))
    said = {"label": "COVERED" if known else "NOT_COVERED", "evidence_claim_ids": known}
    return {"fact": "f", "claims": claims}, said, {"covered": bool(known), "claims": known}


@st.composite
def _resolved(draw: Any) -> Any:
    facts = draw(distinct(TEXTS))
    resolved = [f"{fact} in Osk" for fact in facts]
    rows = [{"id": number, "fact": text} for number, text in enumerate(resolved, start=1)]
    return {"text": "t", "facts": facts}, {"facts": permuted(draw, rows)}, {"facts": resolved}


@st.composite
def _subset(draw: Any) -> Any:
    candidates = draw(distinct(TEXTS))
    chosen = draw(numbers(len(candidates)))
    return {"reference": "r", "candidates": candidates}, {"candidates": chosen}, {"candidates": sorted(chosen)}


INSTANCES: dict[str, st.SearchStrategy[Any]] = {
    "summarise_context": _summaries(),
    "evaluate_coverage": _coverage(),
    "extract_atoms": _atoms(),
    "revise_atoms": _texts("statements", "atoms", text="t", statements=["s"]),
    "rate_relevance": _relevance(),
    "classify_relation": _label("relation", "relation", {one: one for one in RELATIONS}, premise="p", hypothesis="h"),
    "classify_relations": _relations(),
    "check_claims": _relations(),
    "mine_questions": _texts("questions", "questions", query="q", text="t"),
    "refine_questions": _refined(),
    "answer_questions": _answers(),
    "compare_answers": _comparison(),
    "compare_many": _comparisons(),
    "list_conflicts": _conflicts(),
    "cover_sides": _sides(),
    "extract_claims": _texts("claims", "claims", text="t"),
    "extract_verifiable_claims": _texts("claims", "claims", query="q", before="b", sentence="s", after=""),
    "generate_aspects": _texts("topics", "aspects", query="q"),
    "align_claims": _aligned("aspects", "claims", "covered", "topic_id", "evidence", "evidence"),
    "extract_facts": _texts("facts", "facts", text="t"),
    "rate_importance": _importance(),
    "verify_claim": _label("verdict", "relation", {one: one for one in VERDICTS}, claim="c", evidence=["e"]),
    "check_coverage": _covering(),
    "resolve_coreference": _resolved(),
    "match_one": _label("label", "matched", {"Match": True, "No Match": False}, reference="r", candidate="c"),
    "match_many": _subset(),
    "match_holistic": _aligned("references", "candidates", "entailed", "reference", "candidates", "candidates"),
    "create_nuggets": _texts("nuggets", "nuggets", query="q", texts=["t"], nuggets=[], most=30),
    "rate_nuggets": _labels(IMPORTANCES, query="q"),
    "assign_nuggets": _labels(SUPPORTS, query="q", response="r"),
    "judge_criteria": _verdicts(),
    "judge_support": _supports(),
    "judge_relevancy": _relevancies(),
    "restate_answer": TEXTS.map(
        lambda text: ({"question": "q", "answer": "a"}, {"statement": text}, {"statement": text})
    ),
}


def test_every_stage_except_free_text_has_a_schema() -> None:
    assert set(STAGES) - set(INSTANCES) == {"generate_answer"}
    assert STAGES["generate_answer"].schema is None


@pytest.mark.parametrize("stage", INSTANCES)
@given(data=st.data())
def test_valid_objects_of_a_schema_are_parsed(stage: str, data: st.DataObject) -> None:
    variables, said, expected = data.draw(INSTANCES[stage])
    definition = STAGES[stage]
    assert definition.schema is not None
    Draft202012Validator(filled(definition.schema, variables)).validate(said)
    completion = json.dumps(said, ensure_ascii=False, indent=data.draw(st.sampled_from([None, 2])))
    read = definition.parse(completion, variables)
    assert plain(read) == plain(expected)
    assert read_as(completion, definition.schema, definition.form, variables) == "parsed_schema"
    assert all(completion[digit.offset] == str(digit.value) for digit in _digits(read))


def _digits(value: Any) -> list[Digit]:
    if isinstance(value, Digit):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return [digit for each in inner for digit in _digits(each)]


FORMS = {
    "summarise_context": ("The lighthouse was built in 1874.", None),
    "evaluate_coverage": (
        "Both say it.\n\n[Covered statements]\n- The tower stands [1, 2]\n\n[Uncovered statements]\n- It is red [2]\n",
        "## Covered statements\n- The tower stands [1]\n\n## Uncovered statements\nNone",
    ),
    "extract_atoms": ("- The tower stands: Fact\n- Is it red?: Question", "1. The tower stands (Fact)"),
    "revise_atoms": ("* The tower stands", "- The tower stands"),
    "rate_relevance": ("* The tower stands [Relevance: 4]", "- The tower stands: 4/5"),
    "classify_relation": ("neutral", "The relation is neutral."),
    "classify_relations": ("1: neutral", "1. Neutral"),
    "check_claims": ("1: neutral", "1. Neutral"),
    "mine_questions": ("* Does it stand?\n* Is it red?", "1. Does it stand?\n2. Is it red?"),
    "refine_questions": ("* Does it stand? [Relevance: 4]", "- Does it stand? (Relevance: 4)"),
    "answer_questions": ("* Does it stand?\nA: yes [Confidence: 5]", "1. Does it stand?\nAnswer: yes (Confidence: 5)"),
    "compare_many": ("1: first implies second", "1. Neutral"),
    "list_conflicts": (
        '{"first": "It stands", "first_sources": [1], "second": "It fell", "second_sources": [2]}',
        '[{"first": "It stands", "first_sources": [1], "second": "It fell", "second_sources": [2]}]',
    ),
    "cover_sides": ("1: covered", "1. Not covered"),
    "compare_answers": ("They differ.\nsalt - ferry [neutral]", "Classification: neutral"),
    **dict.fromkeys(
        ("extract_claims", "extract_verifiable_claims"),
        ("The tower stands.\nIt is red.", "- The tower stands.\n- It is red."),
    ),
    "generate_aspects": ('{"topic": "age"}\n{"topic": "height"}', '["age", "height"]'),
    "align_claims": ('{"topic_id": 1, "evidence": [1]}', "Topic 1: claim 1"),
    "extract_facts": ("- The tower stands.", "The tower stands."),
    "rate_importance": ('[{"id": 1, "relevance": 4, "salience": 3}]', '{"id": 1, "relevance": 4, "salience": 3}'),
    "verify_claim": ("not_supported", "Not supported."),
    "check_coverage": ('{"label": "COVERED", "evidence_claim_ids": [1]}', "COVERED: 1"),
    "resolve_coreference": ("* The tower stands", "1. The tower stands"),
    "match_one": ("No Match", "No match."),
    "match_many": ("[1]", "Candidate 1"),
    "match_holistic": ('{"reference": 1, "candidates": [1]}', "Reference 1: candidate 1"),
    "create_nuggets": ("- The tower stands", "1. The tower stands"),
    "rate_nuggets": ("1: vital", "1. Vital"),
    "assign_nuggets": ("1: partial_support", "1. Partial support"),
    "judge_criteria": ("1: partly_met | It names one.", "1. Partly met"),
    "judge_relevancy": ("1: background | It names one.", "1. Background"),
    "judge_support": ("1: partial_support | It names one.", "1. Partial support"),
    "generate_answer": ("It stands.", None),
    "restate_answer": ("The tower stands.", "The tower stands.\n\nLet me know if it helps."),
}
LISTS = ("statements", "hypotheses", "facts", "aspects", "claims", "evidence", "references", "candidates", "nuggets")
VARIABLES: dict[str, Any] = {name: ["The tower stands"] for name in LISTS}
VARIABLES |= {"sources": ["The tower stands."], "sentences": ["The tower stands"]}
VARIABLES |= {"criteria": ["The tower stands"], "levels": [[]]}
VARIABLES |= {"questions": ["Does it stand?"], "others": ["salt"], "query": "q", "text": "t"}
VARIABLES |= {"contexts": ["a", "b"], "first": "salt", "second": "ferry", "premise": "p", "hypothesis": "h"}


@pytest.mark.parametrize("stage", STAGES)
def test_a_completion_in_the_published_form_is_distinguished_from_others(stage: str) -> None:
    definition = STAGES[stage]
    for completion, known in zip(FORMS[stage], ("parsed_template", "parsed_lenient"), strict=True):
        if completion is None:
            continue
        thought = f"<think>The form is [1].</think>\n{completion}"
        for said in (completion, thought):
            definition.parse(said, VARIABLES)
            assert read_as(said, None, definition.form, VARIABLES) == known, said


@pytest.mark.parametrize("stage", [name for name, definition in STAGES.items() if definition.form])
def test_a_form_is_looked_for_in_linear_time(stage: str) -> None:
    form = STAGES[stage].form
    pieces = (" - ", " [", "a - b [", "* a\n", "- ", "\n", "[1, ", "] [", '{"a": ', ": ", "?")
    for piece in (*filter(None, FORMS[stage]), *pieces):

        def read(length: int, piece: str = piece) -> str:
            return read_as((piece * length)[:length] + "!", None, form, VARIABLES)

        assert_linear(read, 64_000)


def test_json_outside_the_schema_is_not_valid() -> None:
    definition = STAGES["check_coverage"]
    for said in (
        '{"label": "COVERED", "evidence_claim_ids": [2]}',
        '{"label": "COVERED", "evidence_claim_ids": ["1"]}',
    ):
        assert read_as(said, definition.schema, None, VARIABLES) == "parsed_template"
        assert read_as(said, definition.schema, definition.form, VARIABLES) in ("parsed_template", "parsed_lenient")
    fenced = '```json\n{"label": "COVERED", "evidence_claim_ids": [1]}\n```'
    assert read_as(fenced, definition.schema, definition.form, VARIABLES) == "parsed_lenient"


def test_a_schema_of_too_many_numbers_has_a_range() -> None:
    schema = filled({"type": "integer", "enum": "claims"}, {"claims": ["a claim"] * (MOST_NUMBERS + 1)})
    assert schema == {"type": "integer", "minimum": 1, "maximum": MOST_NUMBERS + 1}
    assert filled({"type": "integer", "enum": "claims"}, {}) == {"type": "integer", "minimum": 1, "maximum": 1}


def test_a_thinking_model_gets_no_request_for_reasoning() -> None:
    schema = STAGES["compare_answers"].schema
    assert schema is not None
    assert list(schema["properties"]) == ["reasoning", "relation"]
    assert without_reasoning(schema)["required"] == ["relation"]
