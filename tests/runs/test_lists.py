"""Test qa, icat and importance with lists.

The results equal the results of pairs if items are missing or a run is killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.claims import claims_of
from tests.fakes.model_server import ModelServer
from tests.fakes.world import qa_worlds, worlds
from tests.fakes.world_icat import icat_worlds
from tests.runs.harness import Row, read_table, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder
from tests.runs.killing import assert_same_tables, kill_among
from tests.runs.worlds import scores_of

pytestmark = pytest.mark.slow
WORLDS, RESPONSES = 8, 2
# The tables with results. The tables `evidence` and `relations` depend on the judge
TABLES = ("statements", "scores", "measures")


@dataclass(frozen=True)
class Case:
    """A metric, the stage that judges its lists, and a judge with the same result for lists and for pairs."""

    metric: str
    lists: str
    more: Mapping[str, Any]
    judge: str = "noisy"

    def samples(self) -> list[Row]:
        known = {"qa": qa_worlds, "icat": icat_worlds, "importance": worlds}[self.metric](WORLDS, self.judge)
        samples = [sample for world in known for sample in world.samples(RESPONSES)]
        if self.metric != "importance":
            return samples
        # The one stage judges the chunks together and combines their sentences, and the other stage judges each chunk
        return [
            {**one, "contexts": ["\n".join(claims_of(text)) or text for text in one["contexts"]]} for one in samples
        ]

    def settings(self, server: ModelServer, *, lists: bool) -> dict[str, Any]:
        """Each call has one text, so that the number of calls equals the number of requests."""
        place = {} if self.metric == "qa" else {**embedder(server), "embeddings.batch": 1}
        in_lists = {f"{self.metric}.judgement": "lists", f"{self.metric}.list_size": 3}
        return {**place, **self.more, **(in_lists if lists else {})}


CASES = (
    Case("qa", "compare_many", {"qa.quantity_tool": "none"}),
    Case("icat", "classify_relations", {}),
    # A noisy judge can be wrong about several chunks but right about each chunk
    Case("importance", "classify_relations", {}, judge="closed"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.metric))
def test_lists_have_the_results_of_pairs_and_resume_after_kills_and_failures(
    run_here: RunHere, case: Case, tmp_path: Path
) -> None:
    path, flags = write_samples(tmp_path / "samples.jsonl", case.samples()), ("--metric", case.metric)
    with ModelServer(answer=f"world_{case.judge}") as server:
        ended = run_here(server, path, tmp_path / "pairs", *flags, settings=case.settings(server, lists=False))
        assert ended.code == 0, ended.err
        settings = case.settings(server, lists=True)
        words = words_of(server, path, tmp_path / "whole", *flags, "--json", settings=settings, command="plan")
        planned = {row["stage"]: row["requests"] for row in json.loads(run_here.command(words).out)}
        ended = run_here(server, path, tmp_path / "whole", *flags, settings=settings)
        assert ended.code == 0, ended.err
        assert 0 < server.count(case.lists) <= planned[case.lists]
    assert_same_tables(tmp_path / "whole", tmp_path / "pairs", TABLES)

    with ModelServer(answer=f"careless_{case.judge}") as server:
        settings = case.settings(server, lists=True)
        ended = run_here(server, path, tmp_path / "careless", *flags, settings=settings)
        assert ended.code == 0, ended.err
        distinct, listed = server.count(), server.count(case.lists)
    assert_same_tables(tmp_path / "careless", tmp_path / "pairs", TABLES)

    with ModelServer(answer=f"careless_{case.judge}", latency=0.05) as server:
        settings = case.settings(server, lists=True)
        output = tmp_path / "killed"
        kill_among(run_here, server, path, output, case.metric, case.lists, listed // 3, distinct, **settings)
    assert_same_tables(tmp_path / "killed", tmp_path / "pairs", TABLES)

    rules = [{"when": {"stage": case.lists, "share": 0.3, "seed": 7}, "do": "garbage"}]
    with ModelServer(answer=f"careless_{case.judge}", rules=rules) as server:
        settings = {"llm.max_attempts": 1, **case.settings(server, lists=True)}
        ended = run_here(server, path, tmp_path / "faulty", *flags, settings=settings)
        assert ended.code == 4, ended.err
        assert {row["stage"] for row in read_table(tmp_path / "faulty", "failures")} == {case.lists}
        whole = scores_of(tmp_path / "pairs")
        for name, row in scores_of(tmp_path / "faulty").items():
            if whole[name]["score"] is not None and row["score_low"] is not None:
                assert row["score_low"] - 1e-9 <= whole[name]["score"] <= row["score_high"] + 1e-9, name
        server.configure(rules=[])
        ended = run_here(server, path, tmp_path / "faulty", *flags, "--retry-failed", settings=settings)
        assert ended.code == 0, ended.err
    assert_same_tables(tmp_path / "faulty", tmp_path / "pairs", TABLES)
