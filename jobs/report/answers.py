"""Collect the answers of a report: texts, statements, claims, graph, failures, equal points and completions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import pyarrow.dataset as ds
from rapidfuzz import fuzz, process

from untold.graph.views import CONTRADICTIONS, DRAWN_RELATIONS, ENTAILMENTS, order_statements
from untold.graph.views import Row as GraphRow
from untold.jobs.inference.store.compaction import VERSION, read_completions
from untold.jobs.metrics.views import describe_conflict
from untold.jobs.report.sources import (
    CONTEXT,
    DETAILED,
    RESPONSE,
    Key,
    ReportTexts,
    Sources,
    columns_of,
    compact,
    rounded,
)
from untold.jobs.run_tables import RunTables, batches_of
from untold.jobs.summary.score_counts import group_by
from untold.jobs.tables import ATOMS, CITATIONS, CLAIMS, CONFLICTS, CRITERIA, FAILURES, SCORES, STATEMENTS
from untold.udfs.llm.keys import request_id
from untold.udfs.recall.fact_texts import match_form, shown_form
from untold.udfs.redaction import redact
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.storage import StoragePath

# A larger graph is not readable on any screen
MAX_NODES, MAX_EDGES = 150, 1_000
ENTAILS, CONTRADICTS = 0, 1
Edge = tuple[int, int, int]


def fact_edges(
    statements: Sequence[GraphRow], atoms: Iterable[GraphRow], relations: Iterable[GraphRow]
) -> tuple[list[GraphRow], list[Edge]]:
    """Return the atoms without a statement, and the relations as (from, to, kind).

    Nodes are numbered: the statements in order, then these atoms. Relations within a statement, and other relations
    than entailment and contradiction, are left out. kind is `ENTAILS` or `CONTRADICTS`; a contradiction has no
    direction. The graph is the condensation that `untold show` draws.
    """
    numbers = {row["statement_id"]: number for number, row in enumerate(statements)}
    kept = [row for row in atoms if row.get("kept") is not False]
    alone = sorted((row for row in kept if row["statement_id"] not in numbers), key=lambda row: row["atom_id"])
    places = {row["atom_id"]: numbers[row["statement_id"]] for row in kept if row["statement_id"] in numbers}
    places |= {row["atom_id"]: len(numbers) + place for place, row in enumerate(alone)}
    edges: set[Edge] = set()
    for row in relations:
        first, second = places.get(row["premise_id"]), places.get(row["hypothesis_id"])
        if first is None or second is None or first == second:
            continue
        forth, back = ENTAILMENTS.get(row["relation"], (False, False))
        if forth:
            edges.add((first, second, ENTAILS))
        if back:
            edges.add((second, first, ENTAILS))
        if row["relation"] in CONTRADICTIONS:
            edges.add((min(first, second), max(first, second), CONTRADICTS))
    return alone, sorted(edges)


# The least similarity (of 100) of the words of two statements, in any order: judges word a statement differently per
# answer
ALIKE = 75
# Points of a query that a new statement is compared with
MOST_COMPARED = 300
Point = tuple[str, frozenset[str], int]
"""The form, the sources and the number of the first statement of a point."""


class StatementGroups:
    """Points, identified by the number of the text of their first statement.

    Statements are one point if they have the same reference or a common text. Statements without other wordings
    (`members` null) are also one point if their words are similar, their numbers are equal, and they share a source.
    """

    def __init__(self) -> None:
        # By metric and query: the number of a point by its exact forms, and the points in order
        self._known: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self._points: dict[tuple[str, str], list[Point]] = defaultdict(list)

    def number(self, metric: str, query: str, statement: Mapping[str, Any], text: int) -> int:
        """Return the point of a statement of an answer to the query. A new point is the statement's text."""
        known, points = self._known[metric, query], self._points[metric, query]
        reference = statement["reference_id"]
        texts = [statement["text"] or "", *(statement["members"] or ())]
        forms = [f"#{reference}"] if reference is not None else [match_form(shown_form(text)) for text in texts]
        found = next((known[form] for form in forms if form in known), None)
        sources = frozenset(statement["sources"] or ())
        if found is None and reference is None and statement["members"] is None:
            found = _alike(points, forms[0], sources)
        if found is None:
            found = text
            points.append((forms[0], sources, text))
        for form in forms:
            known.setdefault(form, found)
        return found


def _alike(points: Sequence[Point], form: str, sources: frozenset[str]) -> int | None:
    """Return the point with the most similar words, or None if no point is similar enough."""
    forms = [first for first, _, _ in points[:MOST_COMPARED]]
    for other, _, place in process.extract(form, forms, scorer=fuzz.token_sort_ratio, score_cutoff=ALIKE, limit=3):
        _, there, number = points[place]
        if _numbers(other) == _numbers(form) and (not sources or not there or sources & there):
            return number
    return None


def _numbers(form: str) -> list[str]:
    return sorted(re.findall(r"\d+", form))


SUMMARISE, JUDGE, EXTRACT, ALIGN = "summarise_context", "evaluate_coverage", "extract_claims", "align_claims"
# The stages that read a whole answer, or all of its claims, in the order of their requests
WROTE = {
    "e2e": (JUDGE,),
    "nli": ("extract_atoms",),
    "icat": (EXTRACT, ALIGN),
    "importance": (EXTRACT,),
    "longrecall": (EXTRACT,),
    "rag": (EXTRACT,),
}
Variables = Mapping[str, Any]
Words = dict[str, list[tuple[str, str]]]
"""The completions of the judge, as pairs of stage and text, by metric."""


def judges_words(sources: Sources, among: Collection[Key]) -> dict[Key, Words]:
    """Return the completions of judges for the answers of these samples, if the stores still have them."""
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
        # A store that was removed, or is not reachable from this machine, must not fail the report
        with suppress(OSError, ValueError):
            written = {stage: store.written(stage, own) for metric in metrics for stage in WROTE.get(metric, ())}
            for metric, key in product(metrics, own):
                texts = [(stage, written[stage][key]) for stage in WROTE.get(metric, ()) if key in written[stage]]
                if texts:
                    found[key][metric] = texts
    return found


def _add_texts(samples: Mapping[Key, dict[str, Any]], name: str, rows: Iterable[tuple[Key, Variables]]) -> None:
    """Add the texts of `icat` to each sample, in the order of their numbers."""
    texts: dict[Key, dict[int, str]] = defaultdict(dict)
    for key, row in rows:
        if row["metric"] == "icat":
            own_id = row["claim_id"] if name == "claims" else row["statement_id"]
            texts[key][int(own_id.rpartition(":")[2])] = row["text"]
    for key, row in samples.items():
        row[name] = [text for _, text in sorted(texts[key].items())]


class _Store:
    """The completions of one run."""

    def __init__(self, run: RunTables) -> None:
        self._stages: Mapping[str, str] = run.manifest.get("identity", {}).get("stages") or {}
        self._models = run.manifest.get("models") or []
        self._summarised = run.manifest.get("identity", {}).get("results", {}).get("summarise_contexts")
        store = (run.manifest.get("settings") or {}).get("completion_store")
        self._place = (StoragePath(store) if store else run.place / "completions") / VERSION

    def written(self, stage: str, samples: Mapping[Key, Variables]) -> dict[Key, str]:
        """Return the completions of a stage by sample."""
        if stage not in self._stages or not self._place.entries():
            return {}
        if stage == JUDGE:
            return self._answers(stage, self._judged(samples))
        if stage == ALIGN:
            names = ("query", "aspects", "claims")
            return self._answers(stage, {key: {name: row[name] for name in names} for key, row in samples.items()})
        return self._answers(stage, {key: {"text": row["response"]} for key, row in samples.items()})

    def _judged(self, samples: Mapping[Key, Variables]) -> dict[Key, Variables]:
        """Return the variables of the end-to-end judge: contexts, or their summaries."""
        summaries = self._summaries(samples.values()) if self._summarised else {}
        asked: dict[Key, Variables] = {}
        for key, row in samples.items():
            texts = [one["text"] for one in row["contexts"] or ()]
            kept = [summaries.get((row["query"], text), text) for text in texts]
            contexts = [text for text in kept if text is not None]
            asked[key] = {"query": row["query"], "contexts": contexts, "response": row["response"]}
        return asked

    def _summaries(self, rows: Iterable[Mapping[str, Any]]) -> dict[Any, str | None]:
        """Return the summary of each context by query and text, None if it is empty."""
        places = {(row["query"], one["text"]) for row in rows for one in row["contexts"] or ()}
        asked = {place: {"query": place[0], "text": place[1]} for place in places}
        found = {}
        for place, text in self._answers(SUMMARISE, asked).items():
            with suppress(Unparsable):
                found[place] = STAGES[SUMMARISE].parse(text, asked[place])["summary"]
        return found

    def _answers(self, stage: str, asked: Mapping[Any, Variables]) -> dict[Any, str]:
        """Return the texts of completions by key, for requests with or without a schema."""
        found: dict[Any, str] = {}
        for folder in self._folders(stage):
            digest = folder.name.rpartition("-")[2]
            ids = {place: request_id(digest, variables) for place, variables in asked.items() if place not in found}
            texts = self._texts(folder, set(ids.values()))
            found |= {place: texts[name] for place, name in ids.items() if name in texts}
        return found

    def _texts(self, folder: StoragePath, ids: Collection[str]) -> dict[str, str]:
        """Return the texts of completions by request, from models that judged this run."""
        if not ids:
            return {}
        wanted = ds.field("request_id").isin(sorted(ids)) & ds.field("error_type").is_null()
        if self._models:
            wanted &= ds.field("model").isin(self._models)
        found = read_completions(folder, ["request_id", "text"], wanted).to_pylist()
        return {row["request_id"]: row["text"] for row in found if row["text"] is not None}

    def _folders(self, stage: str) -> list[StoragePath]:
        """Return the folders of a stage. The folder with the digest of the run is first."""
        named = f"{stage}-{self._stages[stage]}" if stage in self._stages else ""
        there = [entry.place for entry in self._place.entries() if entry.kind == "folder"]
        own = [place for place in there if place.name.rpartition("-")[0] == stage]
        return sorted(own, key=lambda place: (place.name != named, place.name))


Row = dict[str, Any]
SampleMetric = tuple[Key, str]
"""A sample under a metric."""

# If there are more samples, graphs, evidence and completions are limited to this number of the worst
MOST_DETAILED = 1_000
MAX_CONTEXTS, MAX_STATEMENTS = 10_000, 2_000
# Chunks that ground a claim, or the nearest chunks if there are none
EVIDENCE = 3
# Columns of a statement that are copied unchanged
PLAIN = ("covered", "in_basis", "claims", "anchor", "found_by", "rank", "kept", "arecall", "erecall", "holistic")
RATINGS = ("relevance", "salience", "weight", "source_weight")


class ReportSamples:
    """The samples of a report, worst first, with their `texts` and the `points` that group similar statements."""

    def __init__(self, sources: Sources) -> None:
        self.sources, self.texts, self.points = sources, ReportTexts(), StatementGroups()
        # Samples of the same query share their contexts
        self.contexts: dict[tuple[tuple[str, int | None], ...], int] = {}
        self._questions: dict[str, int] = {}
        self._scores = self._by_metric("scores", SCORES.names)
        self._order = _worst_first(self._scores)
        self._detailed = frozenset(self._order[:MOST_DETAILED])
        self._samples = dict(sources.rows("samples", ("query", "query_id")))

    def data(self) -> Row:
        """Return the data of the page. Texts are numbers, and null or empty values are left out.

        `samples` are worst first. `contexts` are lists of (id, text), and samples refer to them by position.
        """
        found = {key: compact(self._sample(key)) for key in self._order}
        self._add_texts(found)
        self._add_statements(found)
        for _, row, into in self._rows(found, "conflicts", CONFLICTS.names, among=self._detailed):
            into.setdefault("conflicts", []).append(self.texts.add(describe_conflict(row)))
        self._add_claims(found)
        for _, row, into in self._rows(found, "criteria", CRITERIA.names):
            into.setdefault("criteria", []).append(self._criterion(row))
        for _, row, into in self._rows(found, "citations", CITATIONS.names):
            into.setdefault("citations", []).append(self._citation(row))
        self._add_failures(found)
        for _, row, into in self._rows(found, "measures", ("metric", "measure", "value")):
            into.setdefault("measures", {})[row["measure"]] = rounded(row["value"])
        for key, words in judges_words(self.sources, self._detailed).items():
            for metric, texts in words.items():
                if metric in found[key]["metrics"]:
                    written = [[stage, self.texts.add(text, RESPONSE)] for stage, text in texts]
                    found[key]["metrics"][metric]["words"] = written
        samples = [found[key] for key in self._order]
        return {"runs": self.sources.names, "samples": samples, "contexts": list(self.contexts)}

    def _sample(self, key: Key) -> Row:
        sample = self._samples.get(key, {})
        scores = {metric: _score(row) for metric, (row,) in self._scores[key].items()}
        system = next(row["system"] for (row,) in self._scores[key].values())
        label = self.sources.labels.get((key[0], system), system or self.sources.names[key[0]])
        question = self._question(key)
        number = None if question is None else self._questions.setdefault(question, len(self._questions))
        query = {"query": self.texts.add(sample.get("query")), "question": number}
        return {"id": key[1], "run": key[0], "system": label, **query, "metrics": scores}

    def _question(self, key: Key) -> str | None:
        """Return the common key of the answers to one query: its id, or its text."""
        sample = self._samples.get(key, {})
        return sample.get("query_id") or sample.get("query")

    def _add_texts(self, found: Mapping[Key, Row]) -> None:
        """Add responses and contexts, in the order of the table."""
        for key, row in self.sources.rows("samples", ("response", "contexts")):
            if key in found:
                times = DETAILED if key in self._detailed else 1
                found[key]["response"] = self.texts.add(row["response"], times * RESPONSE)
                given = (row["contexts"] or ())[:MAX_CONTEXTS]
                contexts = tuple((one["id"], self.texts.add(one["text"], times * CONTEXT)) for one in given)
                found[key]["contexts"] = self.contexts.setdefault(contexts, len(self.contexts))

    def _add_statements(self, found: Mapping[Key, Row]) -> None:
        """Add statements in the order of `untold show`, and the fact graphs of samples in `_detailed`."""
        among = self._detailed
        drawn = ds.field("relation").isin(DRAWN_RELATIONS)
        atoms = self._by_metric("atoms", ATOMS.names[2:], among)
        relations = self._by_metric("relations", ("premise_id", "hypothesis_id", "relation"), among, drawn)
        for key, metric, rows in self._statements(found):
            own = [dict(row) for row in order_statements(rows)[:MAX_STATEMENTS]]
            into = found[key]["metrics"][metric]
            if atoms[key][metric]:
                alone, edges = fact_edges(own, atoms[key][metric], relations[key][metric])
                nodes = [[self.texts.add(_atom_text(row)), row["origin"], row["sources"] or []] for row in alone]
                more = max(0, len(edges) - MAX_EDGES)
                into["graph"] = {"alone": nodes[:MAX_NODES], "edges": edges[:MAX_EDGES], "more": more}
            into["statements"] = columns_of([{k: v for k, v in row.items() if k != "statement_id"} for row in own])

    def _statements(self, found: Mapping[Key, Row]) -> Iterator[tuple[Key, str, list[Row]]]:
        """Yield the statements by sample and metric, in compact form."""
        places: dict[int | None, dict[str, int]] = {
            number: {name: place for place, (name, _) in enumerate(own)} for own, number in self.contexts.items()
        }
        # For samples without a row in the run
        places[None] = {}
        rows: dict[SampleMetric, list[Row]] = defaultdict(list)
        for key, row, _ in self._rows(found, "statements", STATEMENTS.names):
            sources = [places[found[key].get("contexts")].get(name, name) for name in row["sources"] or ()]
            rows[key, row["metric"]].append({**self._statement(row, key), "sources": sources})
        for key, metric in _places(found):
            if own := rows.pop((key, metric), None):
                yield key, metric, own

    def _statement(self, row: Row, key: Key) -> Row:
        question, number = self._question(key), self.texts.number(row["text"] or "")
        others = [self.texts.add(member) for member in row["members"] or () if member != row["text"]]
        point = number if question is None else self.points.number(row["metric"], question, row, number)
        plain = compact({name: row[name] for name in PLAIN} | {name: rounded(row[name], 2) for name in RATINGS})
        named = {"statement_id": row["statement_id"], "covered": row["covered"]}
        reason = {"reason": self.texts.add(row["reason"])} if row["reason"] else {}
        # The page joins the parts of the id. Metrics of other packages may have other ids
        last = str(row["statement_id"]).removeprefix(f"{key[1]}:{row['metric']}:")
        own_id = {"number": int(last)} if last.isdecimal() else {"number": 0, "id": row["statement_id"]}
        return {**plain, **named, **own_id, "text": number, "point": point, "members": others, **reason}

    def _rows(
        self, found: Mapping[Key, Row], name: str, columns: Sequence[str], **which: Any
    ) -> Iterator[tuple[Key, Row, Row]]:
        """Yield each row of a table with its sample and with the data of its metric in the page."""
        for key, row in self.sources.rows(name, columns, **which):
            if key in found and row["metric"] in found[key]["metrics"]:
                yield key, row, found[key]["metrics"][row["metric"]]

    def _add_claims(self, found: Mapping[Key, Row]) -> None:
        """Add claims with their verdicts, and the chunks that ground them or are nearest to them."""
        claims = self._by_metric("claims", CLAIMS.names[2:])
        evidence = self._by_metric("evidence", ("claim_id", "chunk_id", "rank", "relation"), self._detailed)
        chunks: dict[Key, dict[str, None]] = defaultdict(dict)
        for key, metric in _places(found):
            judged = group_by(sorted(evidence[key][metric], key=lambda row: row["rank"] or 0), "claim_id")
            rows = [self._claim(row, judged.get(row["claim_id"], ())) for row in claims[key][metric]]
            for row in rows:
                chunks[key].update(dict.fromkeys(name for name, _ in row.get("evidence", ())))
            if rows:
                found[key]["metrics"][metric]["claims"] = rows
        texts = self._chunks({name for names in chunks.values() for name in names})
        for key, names in chunks.items():
            found[key]["chunks"] = {name: texts[key[0], name] for name in names if (key[0], name) in texts}

    def _claim(self, row: Row, judged: Sequence[Row]) -> Row:
        grounding = set(row["evidence"] or ())
        best = sorted(judged, key=lambda one: one["chunk_id"] not in grounding)[:EVIDENCE]
        shown = [[one["chunk_id"], one["relation"]] for one in best]
        named = {"id": row["claim_id"], "text": self.texts.add(row["text"])}
        return compact({**named, "verdict": row["verdict"], "anchor": row["anchor"], "evidence": shown})

    def _citation(self, row: Row) -> Row:
        texts = {name: self.texts.add(row[name]) for name in ("sentence", "source", "reason") if row[name]}
        named = {"number": row["sentence_number"], "support": row["support"], "status": row["status"]}
        return compact(texts | named)

    def _criterion(self, row: Row) -> Row:
        """Return a criterion with its verdict, or with the grade of a criterion with levels."""
        texts = {name: self.texts.add(row[name]) for name in ("text", "reason") if row[name]}
        named = {"verdict": row["grade"] or row["verdict"], "dimension": row["dimension"]}
        return compact(texts | named | {name: rounded(row[name]) for name in ("points", "earned")})

    def _chunks(self, names: Collection[str]) -> dict[tuple[int, str], int | None]:
        """Return the numbers of texts by run and chunk."""
        found = {}
        for place, run in enumerate(self.sources.runs):
            if names and "chunks" in run.tables:
                wanted = ds.field("chunk_id").isin(sorted(names))
                for batch in batches_of(run.dataset("chunks"), ["chunk_id", "text"], wanted):
                    for row in batch.to_pylist():
                        found[place, row["chunk_id"]] = self.texts.add(row["text"], DETAILED * CONTEXT)
        return found

    def _add_failures(self, found: Mapping[Key, Row]) -> None:
        for key, row in self.sources.rows("failures", FAILURES.names[1:]):
            if key in found:
                into = found[key]["metrics"].get(row["metric"]) or next(iter(found[key]["metrics"].values()))
                into.setdefault("failures", []).append([row["stage"], row["error_type"], redact(row["error"] or "")])

    def _by_metric(
        self, name: str, columns: Iterable[str], among: Collection[Key] | None = None, where: Any = None
    ) -> dict[Key, dict[str, list[Row]]]:
        """Return the rows of a table by sample and metric."""
        found: dict[Key, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for key, row in self.sources.rows(name, ("metric", *columns), where, among):
            found[key][row["metric"]].append(row)
        return found


def _places(found: Mapping[Key, Row]) -> Iterator[SampleMetric]:
    """Return every sample under each of its metrics."""
    return ((key, metric) for key, row in found.items() for metric in row["metrics"])


def _worst_first(scores: Mapping[Key, Mapping[str, Sequence[Row]]]) -> list[Key]:
    """Return the samples by their lowest score, samples without a score last, then by run and id."""
    lowest = {
        key: min((row["score"] for rows in own.values() for row in rows if row["score"] is not None), default=2)
        for key, own in scores.items()
    }
    return sorted(lowest, key=lambda key: (lowest[key], key))


def _score(row: Row) -> Row:
    numbers = {name: rounded(row[name]) for name in ("score", "score_low", "score_high")}
    return compact(
        {**numbers, **{name: row[name] for name in ("covered", "uncovered", "unjudged", "dropped", "status")}}
    )


def _atom_text(row: Mapping[str, Any]) -> str:
    """Return the text of an atom. An answer includes its question, which gives it a meaning."""
    return row["text"] if row["question"] is None else f"Q: {row['question']} A: {row['text']}"
