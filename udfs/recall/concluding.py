"""Pair the facts of a sample for entailment, and conclude its covered references and bounds (methods, section 13)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from untold.udfs.arrow import FLAG, FLOAT, NUMBER, TEXT, Row, columns, in_batches, over_rows, slices, struct
from untold.udfs.facts.aspect_coverage import CONCLUSION, UNKNOWN, BoundedValue, conclusion, share_of
from untold.udfs.facts.nodes import normalise
from untold.udfs.recall import sample_facts
from untold.udfs.recall.candidates import (
    Candidate,
    MatchText,
    form_of,
    form_of_texts,
    lexical_candidates,
    semantic_candidates,
    without_near_duplicates,
)
from untold.udfs.recall.fact_texts import Fact
from untold.udfs.recall.sample_facts import FEW_ROWS
from untold.udfs.recall.segmentation import distinct_facts

Numbers = NDArray[np.int64]
# The share of the reference's length that a common substring must have
LEAST_SHARE = 0.4
# No text in its shown form contains this character
_END = "\0"


def contained(texts: Sequence[str], generated: Sequence[str]) -> list[bool]:
    """ARecall: return for each text whether some generated text contains it. All texts are in their match form."""
    haystack = _END.join(generated)
    return [bool(text) and text in haystack for text in texts]


def share_common(references: Sequence[str], generated: Sequence[str], least: float = LEAST_SHARE) -> list[bool]:
    """ERecall: return whether the longest common substring with some generated text has this share of a reference.

    All texts are in their match form. The condition holds if a generated text contains a substring of the reference
    with the least sufficient length. Equal substrings get equal numbers, for doubling lengths (Karp, Miller and
    Rosenberg 1972). A substring of any length is the pair of numbers of its beginning and its end, so no text is slow.

    >>> share_common(["the old harbour", "a new bridge"], ["they saw the old pier"])
    [True, False]
    """
    before = _END.join(generated) + _END
    text = before + _END.join(references)
    starts = np.cumsum([len(before), *(len(one) + 1 for one in references)])[:-1]
    lengths = [_least_length(len(one), least) for one in references]
    found = [False] * len(references)
    for size, numbers in _numbered(text, max(lengths, default=0)):
        for place, length in enumerate(lengths):
            if size <= length < 2 * size:
                last = int(starts[place]) + len(references[place]) - length
                found[place] = _has_common(numbers, length - size, len(before) - length, int(starts[place]), last)
    return found


def _least_length(length: int, least: float) -> int:
    """Return the least length of a substring with this share of a text, 0 for an empty text."""
    # The quotient is compared, because 0.4 * 5 is more than 2
    return next((size for size in range(max(1, int(least * length)), length + 1) if size / length >= least), 0)


def _numbered(text: str, longest: int) -> Iterator[tuple[int, Numbers]]:
    """Yield the numbers of the substrings of length 1, 2, 4, ... up to `longest`, by their start."""
    numbers = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
    size = 1
    while size <= longest:
        yield size, numbers
        if 2 * size > longest:
            return
        pairs = numbers[:-size] * (int(numbers.max(initial=0)) + 1) + numbers[size:]
        numbers = np.unique(pairs, return_inverse=True)[1]
        size *= 2


def _has_common(numbers: Numbers, offset: int, ends: int, start: int, last: int) -> bool:
    """Return True if a substring that starts in `start` to `last` equals one that starts before `ends`.

    Substrings are identified by the numbers at their start and, `offset` later, at their end.
    """
    own = np.arange(start, last + 1)
    wanted = np.zeros(int(numbers.max(initial=0)) + 1, dtype=np.bool_)
    wanted[numbers[own]] = True
    others = np.flatnonzero(wanted[numbers[: max(0, ends)]])
    base = len(wanted)
    mine, theirs = (numbers[some] * base + numbers[some + offset] for some in (own, others))
    return bool(np.isin(mine, theirs).any())


LEXICAL, SEMANTIC = "lexical", "semantic"
# Vectors have single precision. Further decimals of equal cosines depend on the order of their sums
_DECIMALS = 6
# Kinds of texts, as in `embed_text`
QUERY, DOCUMENT = "query", "document"

# number: of the reference, from 1. position: of the generated fact, from 1. rank: from 1
PAIR = struct(
    number=NUMBER, position=NUMBER, step=TEXT, rank=NUMBER, **dict.fromkeys(("jaccard", "lcs", "cosine"), FLOAT)
)
REFERENCE = struct(number=NUMBER, id=TEXT, text=TEXT, anchor=TEXT, arecall=FLAG, erecall=FLAG)
GENERATED_FACT = struct(position=NUMBER, text=TEXT, anchor=TEXT)
# generated: null if the response was not cut
PREPARED = columns(sample_id=TEXT, references=[REFERENCE], generated=[GENERATED_FACT], pairs=[PAIR], dropped=NUMBER)
# The results of the references with candidates by words
OUTCOME = struct(number=NUMBER, chosen=[NUMBER], lost=FLAG, waiting=FLAG)
# A request: a reference and its candidates by rank
SHOWN = columns(sample_id=TEXT, number=NUMBER, positions=[NUMBER], reference=TEXT, candidates=[TEXT])
# A text for candidates by vectors: a reference or a generated fact, by its number
TEXTS = columns(sample_id=TEXT, kind=TEXT, number=NUMBER, text=TEXT)
# A reference that is open after words. pairs: empty if no fact is near enough. lost: a missing vector might have found
# more. waiting: a vector was never requested, so the pairs are unknown
OPEN = columns(SHOWN, pairs=[PAIR], lost=FLAG, waiting=FLAG)


@over_rows(PREPARED, FEW_ROWS, FEW_ROWS)
def prepare_samples(row: Row, options: sample_facts.Options) -> Row:
    """Return the columns of `PREPARED`: distinct facts, baselines without a model, and candidates by words.

    row: the columns of `CUT`, and resolved list<struct<side, facts list<string>>>, null if no request was sent.
    """
    sides = sample_facts.resolved_sides(row)
    references = _distinct(sides[sample_facts.REFERENCES] or [])
    response, similarity = sides[sample_facts.RESPONSE], options.thresholds.token_similarity
    generated = without_near_duplicates(distinct_facts(response or ()), options.duplicate_similarity, similarity)
    forms, stated = list(map(form_of, references)), list(map(form_of, generated))
    candidates = lexical_candidates(forms, stated, options.thresholds)
    facts = [
        {"position": position, "text": fact.text, "anchor": fact.anchor}
        for position, fact in enumerate(generated, start=1)
    ]
    return {
        "sample_id": row["sample_id"],
        "references": _reference_rows(references, forms, stated),
        "generated": None if response is None else facts,
        "pairs": [
            _pair(number, LEXICAL, rank, one)
            for number, ranked in enumerate(candidates, start=1)
            for rank, one in enumerate(ranked, start=1)
        ],
        "dropped": row["dropped"],
    }


def _distinct(references: Sequence[Fact]) -> list[Fact]:
    """Return the distinct references. Only equal references are merged, so no threshold changes their number.

    References that were cut from one text are numbered from 1, before duplicates are dropped.
    """
    return distinct_facts(replace(one, id=one.id or str(place)) for place, one in enumerate(references, start=1))


def _reference_rows(
    references: Sequence[Fact], forms: Sequence[MatchText], stated: Sequence[MatchText]
) -> list[dict[str, Any]]:
    texts = [form.text for form in stated]
    arecall = contained([form.anchor or form.text for form in forms], texts)
    erecall = share_common([form.text for form in forms], texts)
    return [
        {
            "number": number,
            "id": one.id,
            "text": one.text,
            "anchor": one.anchor,
            "arecall": by_anchor,
            "erecall": by_substring,
        }
        for number, (one, by_anchor, by_substring) in enumerate(zip(references, arecall, erecall, strict=True), start=1)
    ]


def _pair(number: int, step: str, rank: int, one: Candidate) -> dict[str, Any]:
    known = {"jaccard": one.jaccard, "lcs": one.lcs, "cosine": one.cosine}
    return {"number": number, "position": one.place + 1, "step": step, "rank": rank, **known}


@over_rows(SHOWN, FEW_ROWS)
def shown_by_words(row: Row) -> Iterator[Row]:
    """Yield rows of `SHOWN`, one per reference with candidates by words; from a row of `PREPARED`."""
    texts = {one["position"]: one["text"] for one in row["generated"] or ()}
    by_number = positions_by_number(row["pairs"])
    for one in row["references"]:
        positions = by_number.get(one["number"])
        if positions:
            candidates = [texts[position] for position in positions]
            request = {"number": one["number"], "reference": one["text"]}
            yield {"sample_id": row["sample_id"], **request, "positions": positions, "candidates": candidates}


def positions_by_number(pairs: Iterable[Mapping[str, Any]]) -> dict[int, list[int]]:
    """Return the positions of the candidates of each reference, by rank."""
    found: dict[int, list[int]] = {}
    for pair in sorted(pairs, key=lambda pair: (pair["number"], pair["rank"])):
        found.setdefault(pair["number"], []).append(pair["position"])
    return found


@over_rows(TEXTS, FEW_ROWS)
def open_texts(row: Row) -> Iterator[Row]:
    """Yield rows of `TEXTS`: the references that are open after words, and all generated facts.

    row: the columns of `PREPARED`, and outcomes list<OUTCOME>, null if no candidate was shown.
    """
    references = open_references(row)
    if not references or not row["generated"]:
        return
    for one in references:
        yield {"sample_id": row["sample_id"], "kind": QUERY, "number": one["number"], "text": one["text"]}
    for one in row["generated"]:
        yield {"sample_id": row["sample_id"], "kind": DOCUMENT, "number": one["position"], "text": one["text"]}


def open_references(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the references without candidates, and the references with only rejected candidates.

    A reference with a failed request is excluded, because it may be covered already.
    """
    settled = {one["number"] for one in row["outcomes"] or () if one["lost"] or one["waiting"] or one["chosen"]}
    return [one for one in row["references"] if one["number"] not in settled]


def find_by_vectors(batches: Iterable[pa.RecordBatch], options: sample_facts.Options) -> Iterator[pa.RecordBatch]:
    """Yield rows of `OPEN`, one per open reference of samples with generated facts.

    batches: the columns of `PREPARED`, outcomes as for `open_texts`, and embedded list<struct<kind, number, vector,
    waiting>>: the vector of each text, of length 1, null if missing.
    """
    found = (one for row, vectors in _rows_with_vectors(batches) for one in _find_by_vectors(row, vectors, options))
    return in_batches(found, OPEN)


Embedded = dict[tuple[str, int], tuple[NDArray[np.float32] | None, bool]]


def _rows_with_vectors(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Row, Embedded]]:
    for batch in batches:
        for few in slices(batch, FEW_ROWS):
            # Vectors stay arrays, because Python numbers would need twenty times the memory
            vectors = _vectors(few.column("embedded"))
            yield from zip(few.drop_columns(["embedded"]).to_pylist(), vectors, strict=True)


def _vectors(column: pa.ListArray) -> Iterator[Embedded]:
    """Yield for each row the vectors by kind and number, with a flag for waiting vectors."""
    for row in column:
        if row.values is None:
            yield {}
            continue
        kinds, numbers, waiting = (row.values.field(name).to_pylist() for name in ("kind", "number", "waiting"))
        vectors = row.values.field("vector")
        yield {
            (kind, number): (one.values.to_numpy(zero_copy_only=False) if one.is_valid else None, waits)
            for kind, number, waits, one in zip(kinds, numbers, waiting, vectors, strict=True)
        }


def _find_by_vectors(
    row: Mapping[str, Any], embedded: Embedded, options: sample_facts.Options
) -> Iterator[dict[str, Any]]:
    references, generated = open_references(row), row["generated"] or []
    if not references or not generated:
        return
    stated = [form_of_texts(one["text"], one["anchor"]) for one in generated]
    documents = [embedded.get((DOCUMENT, one["position"]), (None, True)) for one in generated]
    missing = [vector is None for vector, _ in documents]
    dimension = next((len(vector) for vector, _ in embedded.values() if vector is not None), 0)
    matrix = _stacked([vector for vector, _ in documents], dimension)
    waiting = any(waits for _, waits in documents)
    blocked = positions_by_number(row["pairs"])
    texts = {one["position"]: one["text"] for one in generated}
    for one in references:
        vector, waits = embedded.get((QUERY, one["number"]), (None, True))
        before = {position - 1 for position in blocked.get(one["number"], ())}
        unseen = vector is None or any(lost and place not in before for place, lost in enumerate(missing))
        pairs: list[dict[str, Any]] = []
        if vector is not None and not (waits or waiting):
            cosines = np.round(matrix @ vector.astype(np.float64), _DECIMALS)
            form = form_of_texts(one["text"], one["anchor"])
            ranked = semantic_candidates(form, stated, cosines, before, options.thresholds, options.cosine)
            pairs = [_pair(one["number"], SEMANTIC, rank, each) for rank, each in enumerate(ranked, start=1)]
        yield {
            "sample_id": row["sample_id"],
            "number": one["number"],
            "pairs": pairs,
            "positions": [pair["position"] for pair in pairs],
            "reference": one["text"],
            "candidates": [texts[pair["position"]] for pair in pairs],
            "lost": unseen and not (waits or waiting),
            "waiting": waits or waiting,
        }


def _stacked(vectors: Sequence[NDArray[np.float32] | None], dimension: int) -> NDArray[np.float64]:
    """Return float[vectors, dimension], NaN for a missing vector, which makes its inner products NaN."""
    missing = np.full(dimension, np.nan)
    return np.array([missing if one is None else one.astype(np.float64) for one in vectors])


def was_shown(shown: Collection[str], covered_by: Collection[str] | None) -> bool:
    """Return True if an entailment stage saw a fact that covers a reference, or any fact if none are named.

    Facts are equal if they are equal after normalisation (`untold.udfs.facts.nodes.normalise`).

    >>> was_shown(["Bees fly."], ["bees fly"]), was_shown(["Bees fly."], ["Bees sting."]), was_shown([], None)
    (True, False, False)
    """
    if covered_by is None:
        return bool(shown)
    return not {normalise(text) for text in shown}.isdisjoint(map(normalise, covered_by))


RECALL, ARECALL, ERECALL, HOLISTIC, REFERENCES, GENERATED = (
    *("recall", "arecall", "erecall", "holistic", "references", "generated"),
)
BASELINES = (ARECALL, ERECALL, HOLISTIC)

# covered and claims (the positions of the generated facts that cover it): null if unjudged
_STATEMENT = struct(
    struct(number=NUMBER, reference_id=TEXT, text=TEXT, anchor=TEXT, covered=FLAG, claims=[NUMBER], found_by=TEXT),
    **dict.fromkeys(BASELINES, FLAG),
)
_CANDIDATE = struct(PAIR, chosen=FLAG)
CONCLUDED = columns(CONCLUSION, statements=[_STATEMENT], candidates=[_CANDIDATE], unasked=FLAG)


@dataclass(frozen=True)
class ReferenceVerdict:
    """The verdict on a reference: the positions of the generated facts that cover it, empty if it is uncovered.

    `chosen` is None if unknown, because a request was lost or never sent (`waiting`).
    """

    chosen: tuple[int, ...] | None
    found_by: str | None = None
    waiting: bool = False


@over_rows(CONCLUDED, FEW_ROWS, FEW_ROWS)
def conclude_samples(row: Row, *, baselines: Sequence[str]) -> Row:
    """Return the columns of `CONCLUDED`.

    row: the columns of `PREPARED`; outcomes list<OUTCOME> of candidates by words; by_vectors list<struct<number, pairs,
    lost, waiting, outcome OUTCOME>>, for references that words left open; holistic list<list<int>>, null if not
    requested or lost. `empty`: there are no references. `unasked`: a required request was never sent.
    """
    first = {one["number"]: one for one in row["outcomes"] or ()}
    second = {one["number"]: one for one in row["by_vectors"] or ()}
    verdicts = [judge_reference(first.get(one["number"]), second.get(one["number"])) for one in row["references"]]
    said = {name: _baseline(row, name) for name in baselines}
    flags = [None if one.chosen is None else bool(one.chosen) for one in verdicts]
    by_vectors = {number: one["outcome"] for number, one in second.items()}
    return {
        **conclusion(row, _measures(flags, said, row["generated"]), flags, empty=not verdicts),
        "statements": [
            _statement(one, verdict, {name: found[place] for name, found in said.items() if found is not None})
            for place, (one, verdict) in enumerate(zip(row["references"], verdicts, strict=True))
        ],
        "candidates": [
            *_candidates(row["pairs"], first),
            *_candidates((pair for one in second.values() for pair in one["pairs"]), by_vectors),
        ],
        "unasked": any(one.waiting for one in verdicts),
    }


def judge_reference(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> ReferenceVerdict:
    """Return the verdict of a reference from candidates by words (an OUTCOME), then from candidates by vectors.

    Both are None if no candidate was shown. A covering fact decides even if other parts are missing.

    >>> judge_reference({"chosen": [2], "lost": False, "waiting": False}, None)
    ReferenceVerdict(chosen=(2,), found_by='lexical', waiting=False)
    """
    if first is not None and (first["chosen"] or first["lost"] or first["waiting"]):
        return _verdict(first, LEXICAL)
    if second is None:
        return ReferenceVerdict(())
    outcome = second["outcome"]
    found = ReferenceVerdict(()) if outcome is None else _verdict(outcome, SEMANTIC)
    if found.chosen == () and (second["lost"] or second["waiting"]):
        return ReferenceVerdict(None, waiting=bool(second["waiting"]))
    return found


def _verdict(outcome: Mapping[str, Any], step: str) -> ReferenceVerdict:
    if outcome["lost"] or outcome["waiting"]:
        return ReferenceVerdict(None, waiting=bool(outcome["waiting"]))
    chosen = tuple(outcome["chosen"])
    return ReferenceVerdict(chosen, step if chosen else None)


def _baseline(row: Mapping[str, Any], name: str) -> list[bool] | None:
    """Return the result of a baseline per reference, None if lost. Without references or facts no request is sent."""
    if name != HOLISTIC:
        return [bool(one[name]) for one in row["references"]]
    if not (row["references"] and row["generated"]):
        return [False for _ in row["references"]]
    return None if row["holistic"] is None else [bool(numbers) for numbers in row["holistic"]]


def _statement(
    reference: Mapping[str, Any], verdict: ReferenceVerdict, baselines: Mapping[str, bool]
) -> dict[str, Any]:
    known = verdict.chosen is not None
    return {
        **{name: reference[name] for name in ("number", "text", "anchor")},
        "reference_id": reference["id"],
        "covered": bool(verdict.chosen) if known else None,
        "claims": sorted(verdict.chosen or ()) if known else None,
        "found_by": verdict.found_by,
        **{name: baselines.get(name) for name in BASELINES},
    }


def _candidates(
    pairs: Iterable[Mapping[str, Any]], outcomes: Mapping[int, Mapping[str, Any] | None]
) -> Iterator[dict[str, Any]]:
    """Yield the shown pairs with a flag for chosen ones, None for a lost request."""
    for pair in pairs:
        outcome = outcomes.get(pair["number"])
        chosen = None if outcome is None else outcome["chosen"]
        yield {**pair, "chosen": None if chosen is None else pair["position"] in chosen}


def _measures(
    flags: Sequence[bool | None], baselines: Mapping[str, Sequence[bool] | None], generated: Sequence[Any] | None
) -> dict[str, BoundedValue]:
    """Return the measures of a sample: shares of its references (undefined without any), and the numbers of facts.

    flags: for each reference whether it is covered, None if it is unjudged.
    """
    found = {name: UNKNOWN if said is None else share_of(said) for name, said in baselines.items()}
    counts = {REFERENCES: flags, GENERATED: generated}
    numbers = {name: None if some is None else float(len(some)) for name, some in counts.items()}
    exact = {name: BoundedValue.exact(number) for name, number in numbers.items()}
    return {RECALL: share_of(flags), **found, **exact}
