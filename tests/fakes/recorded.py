"""The recorded judges of the end-to-end metric: samples, a replay table for the model server, and expected results.

Reads `wikicontradict/recorded_e2e/<judge>.jsonl`. Recordings of equal input sometimes differ. The first recording of
equal inputs is used for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.answers import Statement, collapse, coverage_text, replay_key

Expected = tuple[str, tuple[str, ...]]
Expectation = tuple[list[Expected], list[Expected], float | None]
_ListedStatements = tuple[list[Statement], list[Statement]]


@dataclass(frozen=True)
class _Recording:
    sample: dict[str, Any]
    covered: list[Statement]
    uncovered: list[Statement]

    @property
    def texts(self) -> list[str]:
        return [context["text"] for context in self.sample["contexts"]]

    @property
    def key(self) -> str:
        return replay_key(self.sample["query"], self.texts, self.sample["response"])


def recorded_samples(path: Path) -> list[dict[str, Any]]:
    """Return the samples of a judge's file, one per line: sample_id, query, contexts, response, label, judge.

    Contexts are the recorded summaries except `None`, as {id, text} in the order of the file.
    """
    return [recording.sample for recording in _recordings(path)]


def write_replay(path: Path, out: Path) -> int:
    """Write the table for the server's answer `replay:<out>`. Return its number of rows, the expected calls."""
    table = {
        key: coverage_text(recording.covered, recording.uncovered) for key, recording in _first_of_groups(path).items()
    }
    out.write_text(json.dumps(table), encoding="utf-8")
    return len(table)


def distinct_inputs(path: Path) -> int:
    """Return the number of distinct inputs with contexts in a judge's file. Each is one call."""
    return len(_first_of_groups(path))


def expectations(path: Path) -> dict[str, Expectation]:
    """Return the expected result by sample_id: covered and uncovered as (text, source ids), and the score.

    Texts have single spaces, and the order of the recording. Equal texts are merged with all their sources, and covered
    if any of them is. The score is null without statements. Sources that were not shown are dropped.
    """
    firsts = _first_of_groups(path)
    expected = {}
    for recording in _recordings(path):
        ids = [context["id"] for context in recording.sample["contexts"]]
        lists = (firsts[recording.key].covered, firsts[recording.key].uncovered) if ids else ([], [])
        expected[recording.sample["sample_id"]] = _expectation(lists, ids)
    return expected


def _expectation(lists: _ListedStatements, ids: Sequence[str]) -> Expectation:
    sources: dict[str, set[int]] = {}
    for text, numbers in [*lists[0], *lists[1]]:
        sources.setdefault(collapse(text), set()).update(numbers)
    said = {collapse(text) for text, _ in lists[0]}
    named = [(text, tuple(ids[number - 1] for number in sorted(numbers))) for text, numbers in sources.items()]
    covered = [statement for statement in named if statement[0] in said]
    uncovered = [statement for statement in named if statement[0] not in said]
    return covered, uncovered, len(covered) / len(named) if named else None


def _first_of_groups(path: Path) -> dict[str, _Recording]:
    firsts: dict[str, _Recording] = {}
    for recording in _recordings(path):
        if recording.sample["contexts"]:
            firsts.setdefault(recording.key, recording)
    return firsts


def _recordings(path: Path) -> Iterator[_Recording]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            sample = _sample(row)
            ids = [context["id"] for context in sample["contexts"]]
            yield _Recording(sample, _statements(row["covered"], ids), _statements(row["uncovered"], ids))


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sample_id": f"{row['row']}-{row['answer_field']}",
        "query": row["question"],
        "contexts": [
            {"id": name, "text": text}
            for name, text in row["context_summaries"].items()
            if text is not None and text.strip().lower() != "none"
        ],
        "response": row["answer"],
        "label": row["adjusted_label"],
        "judge": row["judge"],
    }


def _statements(rows: Sequence[Mapping[str, Any]], ids: Sequence[str]) -> list[Statement]:
    return [
        (row["statement"], tuple(ids.index(name) + 1 for name in dict.fromkeys(row["context_ids"]) if name in ids))
        for row in rows
        if row["statement"].strip()
    ]
