"""Compare whole jobs with a panel of judges with the votes that the judges are known to give."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import krippendorff
import numpy as np
import pytest

from tests.fakes.citations import citation_worlds
from tests.fakes.expected_rag import rag_samples
from tests.fakes.model_server import ModelServer
from tests.fakes.nuggets import SUPPORTS
from tests.fakes.rubrics import rubric_worlds
from tests.fakes.voters import COVERAGE, VOTERS, vote_on
from tests.fakes.world import worlds
from tests.fakes.world_icat import icat_worlds
from tests.fakes.world_importance import importance_worlds
from tests.fakes.world_nuggets import nugget_worlds
from tests.runs.harness import Ended, Row, Run, read_table, words_of, write_samples
from tests.runs.here import RunHere
from tests.runs.icat_jobs import embedder
from tests.runs.worlds import scores_of
from untold.jobs.run_tables import open_run
from untold.jobs.summary.judge_families import compare_judges

Labels = Sequence[str | None]
# By label the labels that it includes, as `jobs.metrics.panel` defines them for the rule `all`
WEAKER = {
    **{label: SUPPORTS[place:] for place, label in enumerate(SUPPORTS)},
    "true": ("true", "false"),
    "false": ("false",),
    "entailment": ("entailment", "neutral"),
    "contradiction": ("contradiction", "neutral"),
    "neutral": ("neutral",),
}


@dataclass(frozen=True)
class Panel:
    """The servers of a run and of its judges, the file of the samples, and the end of the run."""

    main: ModelServer
    judges: Mapping[str, ModelServer]
    samples: Path
    output: Path
    settings: Mapping[str, Any]
    ended: Ended


def panel_of(judges: Mapping[str, str]) -> str:
    """Return the setting `judges` from addresses by model."""
    return json.dumps([{"model": name, "base_url": address} for name, address in judges.items()])


@contextmanager
def run_panel(run_here: RunHere, folder: Path, samples: Sequence[Row], metric: str, **settings: Any) -> Iterator[Panel]:
    """Run a metric with the judges `VOTERS`, each with its own server, and yield the finished run."""
    path = write_samples(folder / "samples.jsonl", list(samples))
    with ExitStack() as stack:
        main = stack.enter_context(ModelServer("world"))
        judges = {name: stack.enter_context(ModelServer(f"voter_{name}")) for name in VOTERS}
        panel = {"judges": panel_of({name: server.base_url for name, server in judges.items()})}
        given = {**panel, **{key.replace("__", "."): value for key, value in settings.items()}, **embedder(main)}
        ended = run_here(main, path, folder / "out", "--metric", metric, settings=given)
        yield Panel(main, judges, path, folder / "out", given, ended)


def majority(labels: Labels, judges: int = len(VOTERS)) -> str | None:
    counts = Counter(label for label in labels if label is not None)
    return next((label for label, count in counts.items() if 2 * count > judges), None)


def common(labels: Labels, judges: int = len(VOTERS)) -> str | None:
    """Return the first label that all votes include. A missing vote could include only the weakest."""
    known = [WEAKER[label] for label in labels if label is not None]
    shared = [label for label in (known or [()])[0] if all(label in own for own in known)]
    return shared[0] if len(known) == judges or len(shared) == 1 else None


def votes_of(output: Path, stage: str) -> dict[tuple[str, str], dict[str, str | None]]:
    """Return the labels by sample, item and judge."""
    found: dict[tuple[str, str], dict[str, str | None]] = defaultdict(dict)
    for row in read_table(output, "votes"):
        if row["stage"] == stage:
            found[row["sample_id"], row["item_id"]][row["judge"]] = row["label"]
    return found


def alpha_of(items: Sequence[Mapping[str, str | None]], judges: Sequence[str] = VOTERS) -> float:
    """Return Krippendorff's alpha by the package of the same name."""
    names = sorted({label for item in items for label in item.values() if label is not None})
    codes = [
        [np.nan if item.get(judge) is None else names.index(str(item[judge])) for item in items] for judge in judges
    ]
    return float(krippendorff.alpha(reliability_data=codes, level_of_measurement="nominal"))


def nugget_samples() -> list[Row]:
    return [sample for world in nugget_worlds(14) for sample in world.samples(2)]


@pytest.fixture(scope="module")
def nuggets(run_here: RunHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Panel]:
    with run_panel(run_here, tmp_path_factory.mktemp("panel"), nugget_samples(), "nuggets") as panel:
        yield panel


def test_the_majority_of_the_known_votes_is_the_support(nuggets: Panel) -> None:
    assert nuggets.ended.code == 4, nuggets.ended.err
    votes, statements = votes_of(nuggets.output, "assign_nuggets"), read_table(nuggets.output, "statements")
    judged = [row for row in statements if (row["sample_id"], row["statement_id"]) in votes]
    assert len(judged) == len(votes) > 50
    for row in judged:
        expected = {judge: vote_on(judge, row["text"], SUPPORTS) for judge in VOTERS}
        assert votes[row["sample_id"], row["statement_id"]] == expected
        assert row["support"] == majority(list(expected.values())), row["statement_id"]
    undecided = Counter(row["sample_id"] for row in judged if row["support"] is None)
    assert undecided
    scores = scores_of(nuggets.output)
    assert all(scores[name]["unjudged"] == count for name, count in undecided.items())
    for name in undecided:
        low, high = scores[name]["score_low"], scores[name]["score_high"]
        assert scores[name]["status"] == "partial" or scores[name]["score"] is None
        assert low is None or low <= high
    failures = [row for row in read_table(nuggets.output, "failures") if row["error_type"] == "undecided"]
    assert {row["sample_id"] for row in failures} == set(undecided)
    assert all(judge in row["error"] for row in failures for judge in VOTERS)


def test_the_ratings_of_the_judges_are_their_mean_credits(nuggets: Panel) -> None:
    credit, systems = {"support": 1.0, "partial_support": 0.5, "not_support": 0.0}, scores_of(nuggets.output)
    ratings: dict[tuple[str, str], list[float]] = defaultdict(list)
    by_sample: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (name, _), votes in votes_of(nuggets.output, "assign_nuggets").items():
        for judge, label in votes.items():
            by_sample[judge, name].append(credit[str(label)])
    for (judge, name), own in by_sample.items():
        ratings[judge, systems[name]["system"]].append(float(np.mean(own)))
    families = {system: system for _, system in ratings}
    rows = compare_judges([open_run(str(nuggets.output))], families=families)
    assert {(row["judge"], row["family"]): row["mean"] for row in rows} == {
        key: pytest.approx(float(np.mean(own))) for key, own in ratings.items()
    }
    assert all(row["p_adjusted"] is not None for row in rows)


def test_the_summary_has_krippendorffs_alpha(nuggets: Panel) -> None:
    votes, summary = votes_of(nuggets.output, "assign_nuggets"), read_table(nuggets.output, "summary")
    systems = {name: row["system"] for name, row in scores_of(nuggets.output).items()}
    for row in summary:
        items = [item for (name, _), item in votes.items() if row["system"] in (None, systems[name])]
        assert row["alpha"] == pytest.approx(alpha_of(items))
    assert f"alpha of the judges is {summary[0]['alpha']:.3f}" in nuggets.ended.err


def test_the_runs_model_lists_the_items_once_and_only_the_judges_label_them(nuggets: Panel) -> None:
    assert not nuggets.main.count("assign_nuggets")
    assert nuggets.main.count("create_nuggets")
    assert nuggets.main.count("rate_nuggets")
    lists = {name: server.count("assign_nuggets") for name, server in nuggets.judges.items()}
    assert len(set(lists.values())) == 1
    assert lists == {name: server.count() for name, server in nuggets.judges.items()}
    usage = {(row["stage"], row["model"]): row["requests"] for row in read_table(nuggets.output, "usage")}
    assert {name: usage["assign_nuggets", name] for name in VOTERS} == lists


@pytest.mark.gate
def test_a_plan_counts_the_requests_of_every_judge(run_here: RunHere, nuggets: Panel, tmp_path: Path) -> None:
    requests = sum(server.count() for server in nuggets.judges.values())
    rows = {}
    for name, output in (("known", nuggets.output), ("fresh", tmp_path / "other")):
        flags = ("--metric", "nuggets", "--json")
        words = words_of(nuggets.main, nuggets.samples, output, *flags, settings=nuggets.settings, command="plan")
        ended = run_here.command(words)
        assert ended.code == 0, ended.err
        rows[name] = {row["stage"]: row for row in json.loads(ended.out)}
    known, fresh = rows["known"]["assign_nuggets"], rows["fresh"]["assign_nuggets"]
    assert (known["exact"], known["requests"], known["reused"]) == (True, requests, requests)
    assert fresh["requests"] >= requests


@pytest.mark.gate
def test_another_start_asks_nothing_again(run_here: RunHere, nuggets: Panel) -> None:
    before = [server.count() for server in (nuggets.main, *nuggets.judges.values())]
    flags = ("--metric", "nuggets", "--retry-failed")
    again = run_here(nuggets.main, nuggets.samples, nuggets.output, *flags, settings=nuggets.settings)
    assert again.code == 4, again.err
    assert [server.count() for server in (nuggets.main, *nuggets.judges.values())] == before


@pytest.mark.gate
def test_a_judge_that_is_down_leaves_missing_votes_and_the_next_start_completes_them(
    run_here: RunHere, tmp_path: Path
) -> None:
    path = write_samples(tmp_path / "samples.jsonl", nugget_samples()[:8])
    with ExitStack() as stack:
        main = stack.enter_context(ModelServer("world"))
        a, b = (stack.enter_context(ModelServer(f"voter_{name}")) for name in "ab")
        c = stack.enter_context(ModelServer("voter_c", api_key="k"))
        panel = {"judges": panel_of({"a": a.base_url, "b": b.base_url, "c": c.base_url})}
        down = run_here(main, path, tmp_path / "out", "--metric", "nuggets", settings=panel)
        assert down.code == 4, down.err
        assert "the judge c has no more votes" in down.err
        votes = votes_of(tmp_path / "out", "assign_nuggets")
        missing = [row for row in read_table(tmp_path / "out", "votes") if row["judge"] == "c"]
        assert {(row["label"], row["error_type"]) for row in missing} == {(None, "judge_down")}
        assert all("401" in row["error"] for row in missing)
        for row in read_table(tmp_path / "out", "statements"):
            if (item := votes.get((row["sample_id"], row["statement_id"]))) is not None:
                assert row["support"] == majority(list(item.values()))
        paid = a.count(), b.count(), main.count()
        c.configure(api_key=None)
        run_here(main, path, tmp_path / "out", "--metric", "nuggets", settings=panel)
        assert (a.count(), b.count(), main.count()) == paid
        votes = votes_of(tmp_path / "out", "assign_nuggets")
        assert all(None not in item.values() for item in votes.values())


@pytest.mark.gate
def test_a_killed_run_pays_for_no_vote_twice(run_here: RunHere, tmp_path: Path) -> None:
    path = write_samples(tmp_path / "samples.jsonl", nugget_samples()[:6])
    with ExitStack() as stack:
        main = stack.enter_context(ModelServer("world"))
        judges = {name: stack.enter_context(ModelServer(f"voter_{name}")) for name in VOTERS}
        panel = {"judges": panel_of({name: server.base_url for name, server in judges.items()})}
        judges["c"].configure(latency=600.0)
        run = Run(main, path, tmp_path / "out", "--metric", "nuggets", settings=panel)
        run.wait_for(judges["c"], 1)
        run.kill()
        paid = {name: judges[name].count() for name in ("a", "b")}
        judges["c"].configure(latency=0.0)
        again = run_here(main, path, tmp_path / "out", "--metric", "nuggets", settings=panel)
        assert again.code in (0, 4), again.err
        assert {name: judges[name].count() for name in ("a", "b")} == paid
        assert all(len(item) == len(VOTERS) for item in votes_of(tmp_path / "out", "assign_nuggets").values())


@pytest.mark.gate
def test_the_judges_of_e2e_label_the_statements_of_the_runs_model(run_here: RunHere, tmp_path: Path) -> None:
    samples = [sample for world in worlds(4, "closed", ids=True) for sample in world.samples(2)]
    samples.append({**samples[0], "sample_id": "blank", "response": " "})
    with run_panel(run_here, tmp_path, samples, "e2e", judges_rule="all") as panel:
        votes, scores = votes_of(panel.output, "cover_sides"), scores_of(panel.output)
        assert panel.ended.code == 0, panel.ended.err
        statements = read_table(panel.output, "statements")
        for row in statements:
            labels = {judge: vote_on(judge, row["text"], COVERAGE) == "covered" for judge in VOTERS}
            is_blank = row["sample_id"] == "blank"
            assert row["covered"] == (all(labels.values()) and not is_blank)
            wanted = {} if is_blank else {judge: str(label).lower() for judge, label in labels.items()}
            assert votes.get((row["sample_id"], row["statement_id"]), {}) == wanted
        for name, score in scores.items():
            own = [row["covered"] for row in statements if row["sample_id"] == name]
            assert score["score"] == pytest.approx(sum(own) / len(own))
        assert len({row["covered"] for row in statements}) == 2


def icat_samples() -> list[Row]:
    return [sample for world in icat_worlds(8, "closed", ids=True) if world.given for sample in world.samples(1)][:4]


CASES: Mapping[str, tuple[Any, str, dict[str, Any]]] = {
    "rubric": (lambda: [s for world in rubric_worlds(7) for s in world.samples(1)], "judge_criteria", {}),
    "citations": (lambda: [s for world in citation_worlds(5) for s in world.samples(1)], "judge_support", {}),
    "icat": (icat_samples, "classify_relation", {"icat__variant": "s"}),
    "importance": (lambda: [s for world in importance_worlds(4) for s in world.samples(1)], "verify_claim", {}),
    "rag": (lambda: rag_samples(3, 1), "check_claims", {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("metric", CASES)
@pytest.mark.parametrize("rule", ["majority", "all"])
def test_the_verdicts_of_other_metrics_follow_the_rule(
    run_here: RunHere, tmp_path: Path, metric: str, rule: str
) -> None:
    samples, stage, settings = CASES[metric]
    with run_panel(run_here, tmp_path, samples(), metric, judges_rule=rule, **settings) as panel:
        assert panel.ended.code in (0, 4), panel.ended.err
        votes = votes_of(panel.output, stage)
        assert {tuple(item) for item in votes.values()} == {VOTERS}
        assert not panel.main.count(stage)
        found = verdicts_of(panel.output, metric)
        assert len(found.keys() & votes.keys()) > 5
        for key in found.keys() & votes.keys():
            assert found[key] == decide(metric, rule, list(votes[key].values())), (key, votes[key])
        assert read_table(panel.output, "summary")[0]["alpha"] is not None


def decide(metric: str, rule: str, labels: Labels) -> str | None:
    if rule == "majority":
        return majority(labels)
    order = {"rubric": ["met", "partly_met", "not_met"], "citations": ["full", "partial", "none"]}.get(metric)
    if order:
        return max((label for label in labels if label), key=order.index)
    if len(set(labels)) == 1:
        return labels[0]
    return "not_supported" if metric == "importance" else "neutral"


def verdicts_of(output: Path, metric: str) -> dict[tuple[str, str], str | None]:
    """Return the verdicts of items from the table of a metric. They lack criteria with levels and sets of sources."""
    if metric == "rubric":
        rows = [row for row in read_table(output, "criteria") if row["verdict"] != "graded"]
        return {(row["sample_id"], f"{row['sample_id']}:rubric:{row['number']}"): row["verdict"] for row in rows}
    if metric == "citations":
        rows = [row for row in read_table(output, "citations") if row["citation"] and row["status"] != "no_source"]
        return {
            (row["sample_id"], f"{row['sample_id']}:citations:{row['sentence_number']}:{row['source']}"): row["support"]
            for row in rows
        }
    if metric == "icat":
        rows = read_table(output, "evidence")
        return {(row["sample_id"], f"{row['claim_id']}:{row['chunk_id']}"): row["relation"] for row in rows}
    if metric == "importance":
        return {(row["sample_id"], row["claim_id"]): row["verdict"] for row in read_table(output, "claims")}
    used = read_table(output, "contexts_used")
    return {
        (row["sample_id"], f"{row['sample_id']}:rag:response:{row['rank']}:{place}"): relation
        for row in used
        for place, relation in enumerate(row["response"] or [], start=1)
    }
