"""The judge's own words: the completions of a store that judged the samples of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

import pyarrow.dataset as ds

from untold.jobs.asking.snapshots import VERSION, list_folder
from untold.jobs.report.sources import Key, Sources
from untold.jobs.results import Run
from untold.udfs.llm.keys import request_id
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.storage import Place

SUMMARISE, JUDGE, CLAIMS, ALIGN = "summarise_context", "evaluate_coverage", "extract_claims", "align_claims"
# The stages that see a whole answer, or all of its claims, in the order in which they are asked
WROTE = {
    "e2e": (JUDGE,),
    "nli": ("extract_atoms",),
    "icat": (CLAIMS, ALIGN),
    "importance": (CLAIMS,),
    "longrecall": (CLAIMS,),
    "rag": (CLAIMS,),
}
Variables = Mapping[str, Any]
Words = dict[str, list[tuple[str, str]]]
"""By metric the stages that saw the answer, and what the judge wrote for each."""


def judges_words(sources: Sources, among: Collection[Key]) -> dict[Key, Words]:
    """What judges wrote of these samples' answers, as far as the stores still have it."""
    samples = dict(sources.rows("samples", ("query", "response", "contexts"), among=among))
    asked = {stage for run in sources.runs for stage in run.manifest.get("identity", {}).get("stages") or ()}
    if ALIGN in asked:
        supported = sources.rows(
            "claims", ("metric", "claim_id", "text", "verdict"), ds.field("verdict") == "supported", among
        )
        _add_texts(samples, "claims", supported)
        _add_texts(samples, "aspects", sources.rows("statements", ("metric", "statement_id", "text"), None, among))
    rows: dict[int, dict[Key, Variables]] = defaultdict(dict)
    for key, row in samples.items():
        rows[key[0]][key] = row
    found: dict[Key, Words] = defaultdict(dict)
    for place, own in rows.items():
        store, metrics = _Store(sources.runs[place]), sources.runs[place].manifest.get("metrics", ())
        # A store that is gone, or that this machine does not reach, takes no figure from the report
        with suppress(OSError, ValueError):
            written = {stage: store.written(stage, own) for metric in metrics for stage in WROTE.get(metric, ())}
            for metric, key in product(metrics, own):
                texts = [(stage, written[stage][key]) for stage in WROTE.get(metric, ()) if key in written[stage]]
                if texts:
                    found[key][metric] = texts
    return found


def _add_texts(samples: Mapping[Key, dict[str, Any]], name: str, rows: Iterable[tuple[Key, Variables]]) -> None:
    """The texts of `icat` by sample, in the order in which their ids are numbered."""
    texts: dict[Key, dict[int, str]] = defaultdict(dict)
    for key, row in rows:
        if row["metric"] == "icat":
            own_id = row["claim_id"] if name == "claims" else row["statement_id"]
            texts[key][int(own_id.rpartition(":")[2])] = row["text"]
    for key, row in samples.items():
        row[name] = [text for _, text in sorted(texts[key].items())]


class _Store:
    """The completions of one run."""

    def __init__(self, run: Run) -> None:
        self._stages: Mapping[str, str] = run.manifest.get("identity", {}).get("stages") or {}
        self._models = run.manifest.get("models") or []
        self._summarised = run.manifest.get("identity", {}).get("results", {}).get("summarise_contexts")
        store = (run.manifest.get("settings") or {}).get("store")
        self._place = (Place(store) if store else run.place / "completions") / VERSION

    def written(self, stage: str, samples: Mapping[Key, Variables]) -> dict[Key, str]:
        """By sample what the judge wrote for a stage."""
        if stage not in self._stages or not self._place.entries():
            return {}
        if stage == JUDGE:
            return self._answers(stage, self._judged(samples))
        if stage == ALIGN:
            names = ("query", "aspects", "claims")
            return self._answers(stage, {key: {name: row[name] for name in names} for key, row in samples.items()})
        return self._answers(stage, {key: {"text": row["response"]} for key, row in samples.items()})

    def _judged(self, samples: Mapping[Key, Variables]) -> dict[Key, Variables]:
        """What the end-to-end judge was shown: contexts, or their summaries."""
        summaries = self._summaries(samples.values()) if self._summarised else {}
        asked: dict[Key, Variables] = {}
        for key, row in samples.items():
            texts = [one["text"] for one in row["contexts"] or ()]
            kept = [summaries.get((row["query"], text), text) for text in texts]
            contexts = [text for text in kept if text is not None]
            asked[key] = {"query": row["query"], "contexts": contexts, "response": row["response"]}
        return asked

    def _summaries(self, rows: Iterable[Mapping[str, Any]]) -> dict[Any, str | None]:
        """By query and text of a context its summary; None for one that says nothing of the query."""
        places = {(row["query"], one["text"]) for row in rows for one in row["contexts"] or ()}
        asked = {place: {"query": place[0], "text": place[1]} for place in places}
        found = {}
        for place, text in self._answers(SUMMARISE, asked).items():
            with suppress(Unparsable):
                found[place] = STAGES[SUMMARISE].parse(text, asked[place])["summary"]
        return found

    def _answers(self, stage: str, asked: Mapping[Any, Variables]) -> dict[Any, str]:
        """By place the text of the completion, whether the judge was asked with or without a schema."""
        found: dict[Any, str] = {}
        for folder in self._folders(stage):
            digest = folder.name.rpartition("-")[2]
            ids = {place: request_id(digest, variables) for place, variables in asked.items() if place not in found}
            texts = self._texts(folder, set(ids.values()))
            found |= {place: texts[name] for place, name in ids.items() if name in texts}
        return found

    def _texts(self, folder: Place, ids: Collection[str]) -> dict[str, str]:
        """By request the text of its completion, of models that judged this run."""
        files = [(folder / name).arrow for name in list_folder(str(folder)).live()]
        if not files or not ids:
            return {}
        rows = ds.dataset([path for _, path in files], filesystem=files[0][0], format="parquet")
        wanted = ds.field("request_id").isin(sorted(ids)) & ds.field("error_type").is_null()
        if self._models:
            wanted &= ds.field("model").isin(self._models)
        found = rows.to_table(columns=["request_id", "text"], filter=wanted)
        return {row["request_id"]: row["text"] for row in found.to_pylist() if row["text"] is not None}

    def _folders(self, stage: str) -> list[Place]:
        """The folders of a stage, that of the run's own digest first."""
        named = f"{stage}-{self._stages[stage]}" if stage in self._stages else ""
        there = [entry.place for entry in self._place.entries() if entry.kind == "folder"]
        own = [place for place in there if place.name.rpartition("-")[0] == stage]
        return sorted(own, key=lambda place: (place.name != named, place.name))
