"""The expected results of the metric icat for samples of the symbolic world, by brute force (Samarinas et al. 2025).

The chunks of a claim are an argument, the best first, so the function works for any source and any retriever. Figures
are exact fractions that are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import hypot
from typing import Any

from tests.fakes.claims import align, aspects_of, claims_of
from tests.fakes.facts import normalise, relate_text
from tests.fakes.lookups import vector_of
from tests.fakes.world_icat import Annotation, Document, text_of

Bounds = tuple[float | None, float | None, float | None]
Found = Callable[[str], Sequence["Chunk"]]
_WAVES = (1, 4, 10)


@dataclass(frozen=True)
class Chunk:
    """A chunk of a document, as it is found."""

    chunk_id: str
    document_id: str
    text: str


@dataclass(frozen=True)
class Options:
    """The options of a job in a world: the judge of the server, and the settings of the job.

    `lost(claim, chunk)` and `unfound(claim)` return True for a failed verdict or retrieval. `read` applies the changes
    of the parsers to a claim. `verify(chunk, claim)` returns the relation if the server is not the judge.
    """

    judge: str = "closed"
    variant: str = "auto"
    beta: float = 1.0
    aspects: int = 10
    top: int = 10
    early_stop: bool = True
    lost: Callable[[str, str], bool] = lambda claim, chunk: False
    unfound: Callable[[str], bool] = lambda claim: False
    read: Callable[[str], str] = str.strip
    verify: Callable[[str, str], str] | None = None

    def relate(self, chunk: str, claim: str) -> str:
        """Return the relation of a chunk to a claim."""
        return self.verify(chunk, claim) if self.verify else relate_text(chunk, claim, self.judge)


@dataclass(frozen=True)
class ExpectedClaim:
    """A claim, its verdict (None if unjudged), and the ids of the chunks that support it, by rank.

    `judged`: the chunks that the claim is compared with, by rank, with their relation, None if lost.
    """

    text: str
    verdict: str | None
    evidence: tuple[str, ...]
    document_id: str | None
    judged: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class ExpectedAspect:
    """An aspect, its given id, and the positions (from 1) of the claims that cover it."""

    reference_id: str | None
    text: str
    claims: tuple[int, ...]


@dataclass(frozen=True)
class ExpectedIcat:
    """The expected icat result of a sample. Measures by name: value, low, high."""

    claims: tuple[ExpectedClaim, ...]
    aspects: tuple[ExpectedAspect, ...]
    measures: Mapping[str, Bounds]
    status: str


def distinct(texts: Sequence[str]) -> list[str]:
    """Return the texts without duplicates by `normalise`. The first of equal texts is kept."""
    return [text for place, text in enumerate(texts) if normalise(text) not in map(normalise, texts[:place])]


def cut(document: Document, words: int = 128, overlap: int = 32) -> list[Chunk]:
    """Return the chunks of a document with `words` words, and `overlap` words in common with the next one."""
    said, chunks = document["text"].split(), []
    while said:
        name = f"{document['document_id']}#{len(chunks)}"
        chunks.append(Chunk(name, document["document_id"], " ".join(said[:words])))
        said = said[words - overlap :] if len(said) > words else []
    return chunks


def nearest(query: str, chunks: Sequence[Chunk], top: int = 10) -> list[Chunk]:
    """Return the chunks by the cosine of the server's vectors, to 6 decimals, then by their ids."""
    asked = _unit_vector(query)
    return sorted(chunks, key=lambda chunk: (-round(_product(asked, _unit_vector(chunk.text)), 6), chunk.chunk_id))[
        :top
    ]


@lru_cache(maxsize=10_000)
def _unit_vector(text: str) -> Sequence[float]:
    vector = vector_of(text)
    return [part / (hypot(*vector) or 1.0) for part in vector]


def _product(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


def expected_icat(
    sample: Mapping[str, Any], found: Found, options: Options | None = None, annotations: Sequence[Annotation] = ()
) -> ExpectedIcat:
    """Compute the result by brute force. `annotations` are for variant m."""
    options = options or Options()
    texts = distinct([options.read(claim) for claim in claims_of(sample["response"])])
    claims = [_judge(text, found(text)[: options.top], options) for text in texts]
    named = _aspects(sample, options)
    covering = _by_documents(sample, named, claims, annotations) if options.variant == "m" else _by_judge(named, claims)
    aspects = tuple(ExpectedAspect(name, text, tuple(at)) for (name, text), at in zip(named, covering, strict=True))
    unjudged = any(claim.verdict is None for claim in claims)
    status = "no_statements" if not (claims and aspects) else "partial" if unjudged else "ok"
    return ExpectedIcat(tuple(claims), aspects, _measures(claims, aspects, options.beta), status)


def _judge(claim: str, chunks: Sequence[Chunk], options: Options) -> ExpectedClaim:
    """Return supported if a chunk entails the claim, else contradicted if one does, unjudged if one was lost."""
    if options.unfound(claim):
        return ExpectedClaim(claim, None, (), None)
    relations = [None if options.lost(claim, chunk.text) else options.relate(chunk.text, claim) for chunk in chunks]
    grounding = [rank for rank, relation in enumerate(relations, start=1) if relation == "entailment"]
    last = options.top
    if grounding and options.early_stop:
        last = next(end for end in (*_WAVES, options.top) if end >= grounding[0])
    judged = tuple((chunk.chunk_id, relation) for chunk, relation in zip(chunks, relations, strict=True))[:last]
    if grounding:
        evidence = tuple(name for name, relation in judged if relation == "entailment")
        return ExpectedClaim(claim, "supported", evidence, chunks[grounding[0] - 1].document_id, judged)
    verdict = "contradicted" if "contradiction" in relations else "not_supported"
    return ExpectedClaim(claim, None if None in relations else verdict, (), None, judged)


def _aspects(sample: Mapping[str, Any], options: Options) -> list[tuple[str | None, str]]:
    """Return (given id, text) of the sample's aspects, otherwise of the judge's first aspects without duplicates."""
    given = sample.get("aspects") if options.variant != "a" else None
    if given:
        ids = [str(number) if isinstance(one, str) else one["id"] for number, one in enumerate(given, start=1)]
        return list(zip(ids, map(text_of, given), strict=True))
    generated = aspects_of(sample["query"]) if options.variant in ("auto", "a") else []
    return [(None, text) for text in distinct(generated[: options.aspects])]


def _by_judge(named: Sequence[tuple[str | None, str]], claims: Sequence[ExpectedClaim]) -> list[list[int]]:
    grounded = [number for number, claim in enumerate(claims, start=1) if claim.verdict == "supported"]
    aligned = align([text for _, text in named], [claims[number - 1].text for number in grounded])
    return [[grounded[number - 1] for number in numbers] for numbers in aligned]


def _by_documents(
    sample: Mapping[str, Any],
    named: Sequence[tuple[str | None, str]],
    claims: Sequence[ExpectedClaim],
    annotations: Sequence[Annotation],
) -> list[list[int]]:
    """Return the claims whose first supporting chunk is in a document with an annotation of the aspect."""
    relevant = {(topic, subtopic, document) for topic, subtopic, document, relevance in annotations if relevance > 0}
    return [
        [
            number
            for number, claim in enumerate(claims, start=1)
            if (sample["query_id"], reference, claim.document_id) in relevant
        ]
        for reference, _ in named
    ]


def _measures(claims: Sequence[ExpectedClaim], aspects: Sequence[ExpectedAspect], beta: float) -> dict[str, Bounds]:
    grounded = sum(claim.verdict == "supported" for claim in claims)
    lost = sum(claim.verdict is None for claim in claims)
    covered = sum(bool(aspect.claims) for aspect in aspects)
    fact = (_share(grounded, len(claims) - lost), _share(grounded, len(claims)), _share(grounded + lost, len(claims)))
    value = _share(covered, len(aspects))
    coverage = (value, value, Fraction(1) if lost and aspects else value)
    icat = tuple(_icat(one, other, Fraction(beta)) for one, other in zip(fact, coverage, strict=True))
    count = Fraction(len(claims))
    named = {"s_fact": fact, "s_coverage": coverage, "icat": icat, "claims": (count, count, count)}
    return {name: tuple(None if one is None else float(one) for one in ends) for name, ends in named.items()}  # type: ignore[misc]


def _share(part: int, whole: int) -> Fraction | None:
    return Fraction(part, whole) if whole else None


def _icat(fact: Fraction | None, coverage: Fraction | None, beta: Fraction) -> Fraction | None:
    if fact is None or coverage is None:
        return None
    if fact == coverage == 0:
        return Fraction(0)
    return (1 + beta**2) * fact * coverage / (beta**2 * fact + coverage)
