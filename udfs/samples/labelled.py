"""Read claims and items with human labels as samples, and measure the word overlap of responses and items."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from untold.udfs.retrieval.embedding import BERTSCORE, TokenScorer
from untold.udfs.retrieval.local_models import ModelFiles
from untold.udfs.samples import data_sets
from untold.udfs.samples.adapters import LINES, Adapter, read_lines
from untold.udfs.samples.file_records import FileRecord, Unit, UnreadableFileError, converted
from untold.udfs.samples.tool_files import Values
from untold.udfs.samples.values import canonical, finite, json_or
from untold.udfs.texts import words_of

VERDICTS = {"S": "supported", "NS": "not_supported"}


def read_claims(unit: Unit) -> Iterator[FileRecord]:
    """Yield the facts in biographies of a model that are supported or not: claim, evidence, label.

    sample_id is `<row>-<model>-<place>`, with the row from 0 and the position of the fact in the biography from 1.
    There is no evidence, because Wikipedia's texts are not in the data set. Irrelevant facts are excluded, as
    published. Raises UnreadableFileError if rows have no annotations.
    """
    system = PurePosixPath(unit.path).stem
    for row, record in enumerate(read_lines(unit)):
        if record.problem:
            yield record
        elif "annotations" not in record.values:
            raise UnreadableFileError("no `annotations`. Give the human data of FActScore as published")
        else:
            name = f"{row}-{system}"
            for claim in converted(partial(_claims, name, system), record):
                yield replace(claim, row=record.row)


def _claims(name: str, system: str, record: FileRecord) -> Iterator[FileRecord]:
    sentences, query = record.values["annotations"] or [], record.values.get("input")
    facts = [fact for sentence in sentences for fact in sentence.get("human-atomic-facts") or []]
    for place, fact in enumerate(facts, start=1):
        if label := VERDICTS.get(fact.get("label")):
            claim = {"claim": fact.get("text"), "evidence": [], "label": label}
            yield FileRecord(data_sets.labelled_claim(name, place, query=query, system=system, **claim))


# The required columns of claims as samples. No code reads the query of a claim
NEEDS = ("response", "contexts")
COLUMNS = ("claim", "evidence", "label")


def _as_sample(row: Values, _: int = 0) -> Iterator[Values | FileRecord]:
    """Yield a row of claim, evidence and label as a sample. A missing claim or label is a problem of the row."""
    missing = [name for name in ("claim", "label") if finite(row.get(name)) is None]
    if missing:
        yield FileRecord(problem=f"{' and '.join(missing)} is null", raw=canonical(row))
        return
    rest = {name: value for name, value in row.items() if name not in ("claim", "evidence")}
    yield {**rest, "response": row["claim"], "contexts": _texts(row.get("evidence"))}


def _texts(evidence: Any) -> Any:
    """Return evidence as a list: a list or its JSON unchanged, a single text as the only element, null as empty.

    >>> _texts("one text"), _texts('["a", "b"]'), _texts(None)
    (['one text'], ['a', 'b'], [])
    """
    if finite(evidence) is None:
        return []
    if not isinstance(evidence, str):
        return evidence
    read = json_or(evidence, None)
    return read if isinstance(read, list) else [evidence]


def _expertqa(row: Values, number: int) -> Iterator[Values | FileRecord]:
    return (sample for claim in data_sets.claims(row, number) for sample in _as_sample(claim))


PLAIN = "claims"
CLAIM_FORMATS: dict[str, Adapter] = {
    PLAIN: Adapter(COLUMNS, _as_sample, optional=("sample_id", "query_id", "query", "system")),
    "expertqa": Adapter(data_sets.REQUIRED, _expertqa, LINES, read_lines, by_row=True),
    "factscore": Adapter((), _as_sample, LINES, read_claims, by_row=True),
}
"""Formats of labelled claims."""

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SURFACE = (*ROUGE, "bleu", "meteor")
_WORD = re.compile(r"\w+")
# An empty WordNet: METEOR matches exactly and by stems, and needs no downloaded corpus
_NO_SYNONYMS = SimpleNamespace(synsets=lambda word: [])


def surface_scores(response: str, reference: str) -> dict[str, float]:
    """Return the similarity by each measure of `SURFACE`, from 0 to 1, BLEU from 0 to 100.

    ROUGE's F without stemmer (rouge-score; lines are the sentences of `rougeLsum`), BLEU of one sentence (sacrebleu,
    its defaults), METEOR of case-folded `\\w+` tokens (nltk). A response or a reference without a word has 0.
    """
    if not (_WORD.search(response) and _WORD.search(reference)):
        return dict.fromkeys(SURFACE, 0.0)
    # Imported here because the imports take a second, and only this function needs them
    from nltk.translate.meteor_score import single_meteor_score
    from sacrebleu import sentence_bleu

    rouge = _rouge().score(reference, response)
    words = [_WORD.findall(text.casefold()) for text in (reference, response)]
    return {
        **{name: float(rouge[name].fmeasure) for name in ROUGE},
        "bleu": float(sentence_bleu(response, [reference]).score),
        "meteor": float(single_meteor_score(*words, wordnet=_NO_SYNONYMS)),
    }


@lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=False)


def word_overlap(fact: str, response: str) -> float | None:
    """Return the share of a fact's distinct words (`udfs.texts.words_of`) that occur in the response, or None.

    >>> word_overlap("The Seine is a river in France.", "A river of Europe is the Seine.")
    0.6666666666666666
    """
    words = words_of(fact)
    return len(words & words_of(response)) / len(words) if words else None


def baseline_names(model: ModelFiles | None) -> tuple[str, ...]:
    """Return the available baselines, with a local embedding model or without."""
    return SURFACE if model is None else (*SURFACE, *BERTSCORE)


def baseline_schema(names: Iterable[str]) -> pa.Schema:
    """Return the columns of `baseline_batches`: sample_id, then a double per baseline."""
    return pa.schema([("sample_id", pa.string()), *((name, pa.float64()) for name in names)])


def baseline_batches(batches: Iterable[pa.RecordBatch], model: ModelFiles | None) -> Iterator[pa.RecordBatch]:
    """Yield the columns of `baseline_schema` for sample_id, response and reference (text). Null responses are null."""

    def scores(response: str | None, reference: str) -> Mapping[str, float]:
        if response is None:
            return {}
        states = {} if model is None else _scorer(model).score(response, reference)
        return {**surface_scores(response, reference), **states}

    for batch in batches:
        rows = [{**row, **scores(row["response"], row["reference"])} for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, baseline_schema(baseline_names(model)))


@lru_cache(maxsize=1)
def _scorer(model: ModelFiles) -> TokenScorer:
    """Return a scorer that a worker process keeps for its next task."""
    return TokenScorer(model)
