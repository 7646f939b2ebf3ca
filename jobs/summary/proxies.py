"""Proxies without a judge: scores of a file, and how far responses share words or vectors with what they rest on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from untold.jobs.results import Run, open_run
from untold.jobs.summary.estimating import READERS, EstimateError, numbers_in, suffix_of
from untold.jobs.tables import SAMPLES, SCORES
from untold.udfs.facts.words import words_of
from untold.udfs.hints import aside, near_misses
from untold.udfs.retrieval.embedding import find_model, normalised, open_embedder
from untold.udfs.retrieval.local_models import MINILM
from untold.udfs.storage import Place

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TEXTS = ("response", "contexts", "references")
# Of which the model has learned; longer texts are cut
MAX_TOKENS = 256
Scores = list[float | None]
Texts = Sequence[tuple[str, Sequence[str]]]
"""A response each, and its references, or its contexts where it has none."""


@dataclass(frozen=True, repr=False)
class ProxyRun(Run):
    """Proxy scores in memory, in the place of a run that has them: its tables `samples` and `scores`."""

    frames: Mapping[str, pa.Table]

    @property
    def tables(self) -> tuple[str, ...]:
        """The two tables."""
        return tuple(self.frames)

    def select_from(self, database: DuckDBPyConnection, name: str) -> str:
        """SQL of all rows of a table."""
        database.register(f"proxy_{name}", self.frames[name])
        return f"from proxy_{name}"


def open_proxy(proxy: str, run: Run, samples: str | None = None) -> Run:
    """A proxy on all samples: `words` or `vectors` of their texts, a file of sample_id and score, or a run.

    samples: the file or folder of all samples, by default what `run` was drawn from; of a file of scores, which may
    have system and query itself, by default none. Raises EstimateError for files without the columns.
    """
    if proxy in MEASURES:
        path = samples or str((run.manifest.get("input") or {}).get("path") or "")
        rows = _read(path, ("sample_id", "response"), "give --input with all samples")
        return _proxy_run(path, proxy, rows, MEASURES[proxy](list(map(_texts_of, rows.to_pylist()))))
    if suffix_of(proxy) not in READERS:
        return open_run(proxy)
    rows = _read(proxy, ("sample_id", "score"), "a proxy is a file of sample_id and score")
    scores = dict(zip(_ids(rows), numbers_in(proxy, rows, "score").to_pylist(), strict=True))
    if samples is not None:
        rows = _read(samples, ("sample_id",), "give --input with all samples")
    return _proxy_run(proxy, "score", rows, [scores.get(name) for name in _ids(rows)])


def _proxy_run(path: str, metric: str, rows: pa.Table, scores: Scores) -> ProxyRun:
    """The run of these scores, one a row."""
    kept = rows.drop_columns([name for name in (*TEXTS, "score", "sample_id") if name in rows.column_names])
    for name in ("query", "system"):
        own = kept[name].cast(pa.string()) if name in kept.column_names else pa.nulls(len(rows), pa.string())
        kept = kept.drop_columns([name] if name in kept.column_names else []).append_column(name, own)
    ids = pa.array(_ids(rows), pa.string())
    samples = kept.append_column("sample_id", ids)
    values = pa.array(scores, pa.float64())
    known = {"sample_id": ids, "system": kept["system"], "score": values}
    table = pa.table({**known, "metric": [metric] * len(rows), "status": ["ok"] * len(rows)})
    frames = {"samples": _whole(samples, SAMPLES), "scores": _whole(table, SCORES)}
    digest = sha256(json.dumps([ids.to_pylist(), scores]).encode()).hexdigest()
    manifest = {"status": "finished", "metrics": [metric], "identity": {"input": digest, "dataset": "proxy"}}
    return ProxyRun(path, manifest, frames)


def _whole(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with all columns of a table."""
    for column in schema:
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(len(rows), column.type))
    return rows


def share_words(texts: Texts) -> Scores:
    """Of the words of what a response rests on, the share that it has; None where there are none.

    >>> share_words([("The Seine is in Paris.", ["Paris is on the Seine.", "Lyon is not."]), ("Yes.", [])])
    [0.5, None]
    """
    found: Scores = []
    for response, grounds in texts:
        wanted = frozenset[str]().union(*map(words_of, grounds))
        found.append(len(wanted & words_of(response)) / len(wanted) if wanted else None)
    return found


def share_vectors(texts: Texts) -> Scores:
    """The mean cosine of a response with what it rests on, by the embedding model minilm; None where there is none.

    Raises LocalModelFileError where the model is not installed.
    """
    distinct = sorted({text for response, grounds in texts for text in (response, *grounds)})
    embedder = open_embedder(find_model(MINILM), "mean", MAX_TOKENS)
    vectors = normalised(embedder.embed(distinct)) if distinct else np.empty((0, 0), np.float32)
    place = {text: number for number, text in enumerate(distinct)}
    return [
        float((vectors[[place[one] for one in grounds]] @ vectors[place[response]]).mean()) if grounds else None
        for response, grounds in texts
    ]


MEASURES: Mapping[str, Callable[[Texts], Scores]] = {"words": share_words, "vectors": share_vectors}


def _texts_of(row: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The response, and the texts that it rests on."""
    given = row.get("references") or row.get("contexts") or []
    parts = [given] if isinstance(given, str) else given
    texts = [one if isinstance(one, str) else (one or {}).get("text") for one in parts]
    return str(row["response"] or ""), [text for text in texts if text]


def _ids(rows: pa.Table) -> list[str]:
    found: list[str] = rows["sample_id"].cast(pa.string()).to_pylist()
    return found


def _read(path: str, needed: Sequence[str], hint: str) -> pa.Table:
    """The rows of a file, or of the Parquet files of a folder. Raises EstimateError."""
    place = Place(path)
    try:
        if suffix_of(path) in READERS:
            rows = READERS[suffix_of(path)](io.BytesIO(place.read_bytes()))
        else:
            files = sorted(str(one.place) for one in place.entries() if one.name.endswith(".parquet"))
            rows = pa.concat_tables(READERS[".parquet"](io.BytesIO(Place(file).read_bytes())) for file in files)
    except (OSError, pa.ArrowInvalid) as error:
        raise EstimateError(f"{path or 'no samples'}: cannot be read; {hint}") from error
    missing = [name for name in needed if name not in rows.column_names]
    if missing:
        near = aside(near_misses(missing[0], rows.column_names))
        raise EstimateError(f"{path}: no column {missing[0]}{near}; {hint}")
    return rows
