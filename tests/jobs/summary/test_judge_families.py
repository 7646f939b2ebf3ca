"""Compare the ratings of judges with brute force, and the named judges with the judges that have a preference."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import untold
from tests.jobs.gates import Scored, write_run, write_tables
from untold.jobs.cli.main import main
from untold.jobs.run_tables import open_run
from untold.jobs.summary.judge_families import compare_judges, family_of
from untold.jobs.summary.ranking import CompareError

JUDGES = ("gpt-4o", "claude-x", "llama-3")
SYSTEMS = ("gpt-4o", "gpt-mini", "claude-x")
CREDITS = {"support": 1.0, "partial_support": 0.5, "not_support": 0.0}
# The labels by judge, question, system and item
Votes = Mapping[tuple[str, int, str, int | str], str | None]
Cell = tuple[str, str]


def write_panel(folder: Path, votes: Votes, metric: str = "nuggets", points: Mapping[int, float] | None = None) -> str:
    """Write an output with the votes on the items of each response, and with the points of criteria by number."""
    places = sorted({(question, system) for _, question, system, _ in votes})
    output = write_run(folder, [Scored(question, 0.5, system, metric=metric) for question, system in places])
    rows = [
        {
            "sample_id": (sample := Scored(question, None, system).sample_id),
            "metric": metric,
            "stage": "assign_nuggets",
            "item_id": f"{sample}:{metric}:{item}",
            "judge": judge,
            "label": label,
        }
        for (judge, question, system, item), label in votes.items()
    ]
    criteria = [
        {"sample_id": Scored(question, None, system).sample_id, "metric": metric, "number": number, "points": own}
        for (question, system), (number, own) in product(places, (points or {}).items())
    ]
    write_tables(folder, {"votes": rows, "criteria": criteria})
    return output


def expected(votes: Votes) -> dict[Cell, tuple[float, float | None]]:
    """Return the mean rating and the interaction by judge and family, from the definition of methods, section 22."""
    judges = sorted({judge for judge, *_ in votes})
    credits: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for judge, question, system, item in votes:
        labels = [votes.get((other, question, system, item)) for other in judges]
        if None not in labels:
            credits[judge, question, system].append(CREDITS[str(votes[judge, question, system, item])])
    ratings: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for (judge, question, system), own in credits.items():
        ratings[judge, question, family_of(system, {})].append(fmean(own))
    mean = {key: fmean(own) for key, own in ratings.items()}
    excess = {
        (judge, question, family): value - fmean(mean[other, question, family] for other in judges if other != judge)
        for (judge, question, family), value in mean.items()
    }
    means: dict[Cell, list[float]] = defaultdict(list)
    interactions: dict[Cell, list[float]] = defaultdict(list)
    for (judge, question, family), value in mean.items():
        means[judge, family].append(value)
        others = [
            one for (who, where, other), one in excess.items() if (who, where) == (judge, question) and other != family
        ]
        if others:
            interactions[judge, family].append(excess[judge, question, family] - fmean(others))
    return {key: (fmean(own), fmean(interactions[key]) if key in interactions else None) for key, own in means.items()}


def found_in(rows: Sequence[Mapping[str, Any]]) -> dict[Cell, tuple[float, float | None]]:
    return {(row["judge"], row["family"]): (row["mean"], row["interaction"]) for row in rows}


VOTE = st.sampled_from([*CREDITS, None])
KEYS = list(product(JUDGES, range(3), SYSTEMS, range(2)))


@given(votes=st.lists(VOTE, min_size=len(KEYS), max_size=len(KEYS)))
def test_ratings_and_interactions_equal_brute_force(votes: list[str | None]) -> None:
    given_votes = dict(zip(KEYS, votes, strict=True))
    known = expected(given_votes)
    with TemporaryDirectory() as folder:
        run = open_run(write_panel(Path(folder, "run"), given_votes))
        if not known:
            with pytest.raises(CompareError, match="two or more judges"):
                compare_judges([run])
            return
        found = found_in(compare_judges([run]))
    assert found.keys() == known.keys()
    for key, values in known.items():
        assert found[key] == pytest.approx(values, abs=1e-9), key


def drawn_votes(
    own_bonus: float, leniency: Mapping[str, float], questions: int = 60, seed: int = 3
) -> dict[Any, str | None]:
    """Return random votes, with more `support` by a lenient judge, and for systems of the family of the judge."""
    random = np.random.default_rng(seed)
    votes: dict[Any, str | None] = {}
    for question, system, item in product(range(questions), SYSTEMS, range(4)):
        for judge in JUDGES:
            own = family_of(judge, {}) == family_of(system, {})
            share = 0.4 + leniency.get(judge, 0.0) + own_bonus * own
            votes[judge, question, system, item] = "support" if random.random() < share else "not_support"
    return votes


def test_a_judge_that_favours_its_family_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = write_panel(tmp_path / "run", drawn_votes(0.35, {}))
    assert main(["compare", output, "--judges"]) == 0
    shown = capsys.readouterr().out
    assert "nuggets: gpt-4o favours its own family gpt" in shown
    assert "nuggets: claude-x favours its own family claude" in shown
    rows = {(row["judge"], row["family"]): row for row in compare_judges([open_run(output)])}
    own = rows["gpt-4o", "gpt"]
    assert own["own"]
    assert own["n"] == 60
    assert own["p_adjusted"] < 0.01
    assert own["interaction_low"] > 0
    # No system belongs to the family of llama-3
    assert not any(rows["llama-3", family]["own"] for family in ("gpt", "claude"))


def test_a_lenient_judge_favours_nobody(tmp_path: Path) -> None:
    named = 0
    for seed in range(12):
        output = write_panel(tmp_path / str(seed), drawn_votes(0.0, {"gpt-4o": 0.3}, 30, seed))
        rows = {(row["judge"], row["family"]): row for row in compare_judges([open_run(output)])}
        assert rows["gpt-4o", "gpt"]["mean"] > rows["claude-x", "gpt"]["mean"] + 0.1
        named += any(row["p_adjusted"] < 0.05 for row in rows.values())
    # Chance names one in twenty
    assert named <= 2


def test_without_a_preference_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = write_panel(tmp_path / "run", drawn_votes(0.0, {"gpt-4o": 0.3}, 30, seed=0))
    assert main(["compare", output, "--judges"]) == 0
    assert "nuggets: no judge favours its own family by more than chance" in capsys.readouterr().out
    assert main(["compare", output, "--judges", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"judges": compare_judges([open_run(output)])}


def write_scored(folder: Path, judge: str, scores: Mapping[tuple[int, str], float]) -> str:
    """Write a run of one judge, with its model in the usage of the manifest."""
    output = write_run(folder, [Scored(question, score, system) for (question, system), score in scores.items()])
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | {"starts": [{"usage": [{"model": judge}, {"model": None}]}]}
    path.write_text(json.dumps(manifest))
    return output


def test_runs_with_one_judge_each_compare_scores(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    scores = {judge: {(n, system): float(random.random()) for n in range(9) for system in SYSTEMS} for judge in JUDGES}
    outputs = [write_scored(tmp_path / judge, judge, own) for judge, own in scores.items()]
    rows = compare_judges([open_run(output) for output in outputs])
    excess = {
        (judge, family): [
            fmean(
                scores[judge][n, one] - fmean(scores[other][n, one] for other in JUDGES if other != judge)
                for one in own
            )
            for n in range(9)
        ]
        for judge in JUDGES
        for family, own in (("gpt", SYSTEMS[:2]), ("claude", SYSTEMS[2:]))
    }
    for row in rows:
        (other,) = {"gpt", "claude"} - {row["family"]}
        own, others = excess[row["judge"], row["family"]], excess[row["judge"], other]
        assert row["interaction"] == pytest.approx(fmean(own) - fmean(others))
        assert (row["metric"], row["n"]) == ("qa", 9)
    table = untold.open_run(outputs[0]).compare_judges(*map(open_run, outputs[1:]))
    assert table.to_pylist() == rows


def test_families_have_names(tmp_path: Path) -> None:
    output, notes = write_panel(tmp_path / "run", drawn_votes(0.0, {}, 4)), list[str]()
    named = dict.fromkeys(SYSTEMS, "mine")
    rows = compare_judges([open_run(output)], families=named | {"llama-3": "other"}, notify=notes.append)
    assert {(row["judge"], row["own"]) for row in rows} == {("gpt-4o", True), ("claude-x", True), ("llama-3", False)}
    # An interaction needs two families
    assert all(row["interaction"] is row["p_value"] is None for row in rows)
    assert notes == []


def test_the_command_reads_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = product(JUDGES, range(2), ("rag-a", "rag-b"), [1])
    favoured = ("gpt-4o", "rag-a")
    votes = {key: "support" if (key[0], key[2]) == favoured else "not_support" for key in places}
    output = write_panel(tmp_path / "run", votes)
    assert main(["compare", output, "--judges", "--families", "rag-a=gpt,rag-b=claude", "--json"]) == 0
    rows = {(row["judge"], row["family"]): row for row in json.loads(capsys.readouterr().out)["judges"]}
    assert rows["gpt-4o", "gpt"]["own"]
    assert rows["gpt-4o", "gpt"]["interaction"] == 1.0


def test_a_panel_without_systems_of_its_families_says_so(tmp_path: Path) -> None:
    votes: Votes = {(judge, n, "rag-a", 1): "support" for judge in ("gpt-4o", "claude-x") for n in range(2)}
    notes: list[str] = []
    compare_judges([open_run(write_panel(tmp_path / "run", votes))], notify=notes.append)
    assert notes == [
        "no system belongs to the family of a judge (judges: claude, gpt; systems: rag). Name the families with "
        "--families"
    ]


def test_negative_criteria_count_the_other_way_and_levels_not_at_all(tmp_path: Path) -> None:
    labels = {("a", 1): "met", ("a", 2): "met", ("a", 3): "level_1", ("b", 1): "met", ("b", 2): "not_met"}
    labels[("b", 3)] = "level_1"
    # Votes on the ground truth, and on the response without blocked sentences
    others = {(judge, f"1:{side}"): "not_met" for judge in "ab" for side in ("reference", "unblocked")}
    votes: Votes = {(judge, 0, "gpt", item): label for (judge, item), label in {**labels, **others}.items()}
    notes: list[str] = []
    output = write_panel(tmp_path / "run", votes, "rubric", {1: 4.0, 2: -3.0, 3: 1.0})
    rows = compare_judges([open_run(output)], notify=notes.append)
    assert {row["judge"]: row["mean"] for row in rows} == {"a": 0.5, "b": 1.0}
    assert notes[0] == "2 votes are left out, because levels of a rubric have no credit"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--judges", "--max-drop", "0.1"], "leave out --max-drop"),
        (["--families", "a=b"], "--families requires --judges"),
        (["--judges", "--families", "a"], "not of the form NAME=FAMILY"),
    ],
)
def test_wrong_options_are_one_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(tmp_path), *options])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_runs_without_several_judges_are_refused(tmp_path: Path) -> None:
    one = open_run(write_scored(tmp_path / "one", "gpt-4o", {(0, "gpt"): 0.5}))
    same = open_run(write_scored(tmp_path / "same", "gpt-4o", {(0, "gpt"): 0.5}))
    other = open_run(write_scored(tmp_path / "other", "claude", {(1, "gpt"): 0.5}))
    for runs, said in (
        ([one], "has no table votes"),
        ([one, same], "same judge"),
        ([one, other], "two or more judges"),
    ):
        with pytest.raises(CompareError, match=said):
            compare_judges(runs)
