"""The answers of a report: a sample's texts, and for each metric its statements, claims, graph and failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow.dataset as ds

from untold.graph.views import DRAWN_RELATIONS, order_statements
from untold.jobs.metrics.views import told_conflict
from untold.jobs.report.facts import MAX_EDGES, MAX_NODES, fact_edges
from untold.jobs.report.points import Points
from untold.jobs.report.sources import Key, Sources
from untold.jobs.report.texts import CONTEXT, DETAILED, RESPONSE, Texts, columns_of, compact, rounded
from untold.jobs.report.words import judges_words
from untold.jobs.results import batches_of
from untold.jobs.tables import ATOMS, CLAIMS, CONFLICTS, FAILURES, SCORES, STATEMENTS
from untold.udfs.redaction import redact

Row = dict[str, Any]
Place = tuple[Key, str]
"""A sample under a metric."""

# Of more samples, graphs, evidence and the judge's words are of the worst so many
MOST_DETAILED = 1_000
MAX_CONTEXTS, MAX_STATEMENTS = 10_000, 2_000
# Of chunks that ground a claim, else of those that are nearest to it
EVIDENCE = 3
# What is shown of a statement as it is
PLAIN = ("covered", "in_basis", "claims", "anchor", "found_by", "rank", "kept", "arecall", "erecall", "holistic")
RATINGS = ("relevance", "salience", "weight")


class Answers:
    """The samples that a report shows, worst first; `texts` are theirs, `points` say which statements are alike."""

    def __init__(self, sources: Sources) -> None:
        self.sources, self.texts, self.points = sources, Texts(), Points()
        # The contexts of a query are those of its samples
        self.contexts: dict[tuple[tuple[str, int | None], ...], int] = {}
        self._questions: dict[str, int] = {}
        self._scores = self._by_metric("scores", SCORES.names)
        self._order = _worst_first(self._scores)
        self._detailed = frozenset(self._order[:MOST_DETAILED])
        self._samples = dict(sources.rows("samples", ("query", "query_id")))

    def data(self) -> Row:
        """What the page is filled with. Texts are numbers in it, and what is null or empty is left out.

        `samples`, worst first, and `contexts`: lists of (id, text), which samples name by their places.
        """
        found = {key: compact(self._sample(key)) for key in self._order}
        self._add_texts(found)
        self._add_statements(found)
        self._add_conflicts(found)
        self._add_claims(found)
        self._add_failures(found)
        self._add_measures(found)
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
        """What answers of several systems to one query have in common: its id, or its text."""
        sample = self._samples.get(key, {})
        return sample.get("query_id") or sample.get("query")

    def _add_texts(self, found: Mapping[Key, Row]) -> None:
        """Responses and contexts, in the order of the table."""
        for key, row in self.sources.rows("samples", ("response", "contexts")):
            if key in found:
                times = DETAILED if key in self._detailed else 1
                found[key]["response"] = self.texts.add(row["response"], times * RESPONSE)
                given = (row["contexts"] or ())[:MAX_CONTEXTS]
                contexts = tuple((one["id"], self.texts.add(one["text"], times * CONTEXT)) for one in given)
                found[key]["contexts"] = self.contexts.setdefault(contexts, len(self.contexts))

    def _add_statements(self, found: Mapping[Key, Row]) -> None:
        """Statements in the order of `untold show`, and the fact graphs of those in `_detailed`."""
        among = self._detailed
        drawn = ds.field("relation").isin(DRAWN_RELATIONS)
        atoms = self._by_metric("atoms", ATOMS.names[2:], among)
        relations = self._by_metric("relations", ("premise_id", "hypothesis_id", "relation"), among, drawn)
        for key, metric, rows in self._statements(found):
            own = [dict(row) for row in order_statements(rows)[:MAX_STATEMENTS]]
            into = found[key]["metrics"][metric]
            if atoms[key][metric]:
                into["graph"] = self._graph(own, atoms[key][metric], relations[key][metric])
            into["statements"] = columns_of([{k: v for k, v in row.items() if k != "statement_id"} for row in own])

    def _statements(self, found: Mapping[Key, Row]) -> Iterator[tuple[Key, str, list[Row]]]:
        """By sample and metric its statements, made small while they are read."""
        places: dict[int | None, dict[str, int]] = {
            number: {name: place for place, (name, _) in enumerate(own)} for own, number in self.contexts.items()
        }
        # Of samples that the run has no row of
        places[None] = {}
        rows: dict[Place, list[Row]] = defaultdict(list)
        for key, row in self.sources.rows("statements", STATEMENTS.names[1:]):
            if key in found and row["metric"] in found[key]["metrics"]:
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
        return {**plain, **named, "text": number, "point": point, "members": others}

    def _graph(self, statements: Sequence[Row], atoms: Iterable[Row], relations: Iterable[Row]) -> Row | None:
        alone, edges = fact_edges(statements, atoms, relations)
        nodes = [[self.texts.add(_atom_text(row)), row["origin"], row["sources"] or []] for row in alone]
        return {"alone": nodes[:MAX_NODES], "edges": edges[:MAX_EDGES], "more": max(0, len(edges) - MAX_EDGES)}

    def _add_conflicts(self, found: Mapping[Key, Row]) -> None:
        """What a response says of statements that contradict each other."""
        for key, row in self.sources.rows("conflicts", CONFLICTS.names[1:], among=self._detailed):
            if row["metric"] in found[key]["metrics"]:
                told = found[key]["metrics"][row["metric"]].setdefault("conflicts", [])
                told.append(self.texts.add(told_conflict(row)))

    def _add_claims(self, found: Mapping[Key, Row]) -> None:
        """Claims with their verdicts, and the chunks that ground them, or that are nearest to them."""
        claims = self._by_metric("claims", CLAIMS.names[2:])
        evidence = self._by_metric("evidence", ("claim_id", "chunk_id", "rank", "relation"), self._detailed)
        chunks: dict[Key, dict[str, None]] = defaultdict(dict)
        for key, metric in _places(found):
            judged: dict[str, list[Row]] = defaultdict(list)
            for row in sorted(evidence[key][metric], key=lambda row: row["rank"] or 0):
                judged[row["claim_id"]].append(row)
            rows = [self._claim(row, judged[row["claim_id"]]) for row in claims[key][metric]]
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

    def _chunks(self, names: Collection[str]) -> dict[tuple[int, str], int | None]:
        """By run and chunk the numbers of texts."""
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

    def _add_measures(self, found: Mapping[Key, Row]) -> None:
        for key, row in self.sources.rows("measures", ("metric", "measure", "value")):
            if key in found and row["metric"] in found[key]["metrics"]:
                measures = found[key]["metrics"][row["metric"]].setdefault("measures", {})
                measures[row["measure"]] = rounded(row["value"])

    def _by_metric(
        self, name: str, columns: Iterable[str], among: Collection[Key] | None = None, where: Any = None
    ) -> dict[Key, dict[str, list[Row]]]:
        """The rows of a table by sample and metric."""
        found: dict[Key, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for key, row in self.sources.rows(name, ("metric", *columns), where, among):
            found[key][row["metric"]].append(row)
        return found


def _places(found: Mapping[Key, Row]) -> Iterator[Place]:
    """Every sample under each of its metrics."""
    return ((key, metric) for key, row in found.items() for metric in row["metrics"])


def _worst_first(scores: Mapping[Key, Mapping[str, Sequence[Row]]]) -> list[Key]:
    """The samples by their lowest score, those without one last; equal ones by run and id."""

    def lowest(key: Key) -> float:
        return min(
            (row["score"] for rows in scores[key].values() for row in rows if row["score"] is not None), default=2
        )

    return sorted(scores, key=lambda key: (lowest(key), key))


def _score(row: Row) -> Row:
    numbers = {name: rounded(row[name]) for name in ("score", "score_low", "score_high")}
    return compact(
        {**numbers, **{name: row[name] for name in ("covered", "uncovered", "unjudged", "dropped", "status")}}
    )


def _atom_text(row: Mapping[str, Any]) -> str:
    """An answer is shown with its question, without which it says nothing."""
    return row["text"] if row["question"] is None else f"Q: {row['question']} A: {row['text']}"
