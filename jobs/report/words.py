"""The judge's own words: the completions of a store that judged the samples of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow.dataset as ds

from untold.jobs.asking.snapshots import VERSION, list_folder
from untold.jobs.report.sources import Key, Sources
from untold.jobs.results import Run
from untold.udfs.llm.keys import request_id
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.storage import Place

JUDGE, SUMMARISE = "evaluate_coverage", "summarise_context"
Variables = Mapping[str, Any]


def judges_words(sources: Sources, among: Collection[Key]) -> dict[Key, str]:
    """What the end-to-end judge wrote of these samples, as far as the store still has it."""
    found: dict[Key, str] = {}
    rows = defaultdict(list)
    for key, row in sources.rows("samples", ("query", "response", "contexts"), among=among):
        rows[key[0]].append((key, row))
    for place, own in rows.items():
        store = _Store(sources.runs[place])
        # A store that is gone, or that this machine does not reach, takes no figure from the report
        with suppress(OSError, ValueError):
            found |= store.judged(own)
    return found


class _Store:
    """The completions of one run."""

    def __init__(self, run: Run) -> None:
        self._stages: Mapping[str, str] = run.manifest.get("identity", {}).get("stages") or {}
        self._models = run.manifest.get("models") or []
        self._summarised = run.manifest.get("identity", {}).get("results", {}).get("summarise_contexts")
        store = (run.manifest.get("settings") or {}).get("store")
        self._place = (Place(store) if store else run.place / "completions") / VERSION

    def judged(self, samples: Sequence[tuple[Key, Mapping[str, Any]]]) -> dict[Key, str]:
        """By sample what the judge wrote."""
        if JUDGE not in self._stages or not self._place.entries():
            return {}
        summaries = self._summaries(row for _, row in samples) if self._summarised else {}
        asked = {}
        for key, row in samples:
            texts = [one["text"] for one in row["contexts"] or ()]
            kept = [summaries.get((row["query"], text), text) for text in texts]
            contexts = [text for text in kept if text is not None]
            asked[key] = {"query": row["query"], "contexts": contexts, "response": row["response"]}
        return self._answers(JUDGE, asked)

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
