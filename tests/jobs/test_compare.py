"""`untold compare`: ranks, intervals and paired tests from outputs of `untold score`."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import false_discovery_control, permutation_test

from untold.jobs.analysis import compare_runs
from untold.jobs.cli.main import main
from untold.jobs.compare import comparison_lines
from untold.jobs.run.terminal import Page
from untold.jobs.run_tables import UnreadableRunError, open_run
from untold.jobs.summary import score_counts
from untold.jobs.summary.ranking import CompareError, compare_scores
from untold.jobs.summary.score_counts import ScoreCounts
from untold.jobs.tables import MEASURES, MEASURES_SUMMARY, SAMPLES, SCORES
from untold.udfs.statistics.intervals import bca_interval, clustered_bca_interval
from untold.udfs.statistics.permutation import clustered_permutation_test

Scores = dict[tuple[str | None, str, int], float | None]
IDENTITY = {
    "input": "i",
    "metrics": ["qa"],
    "results": {"stages": {}, "qa": {"questions": "all"}},
    "stages": {"mine": "1"},
}


def compare(outputs: list[str], **how: Any) -> dict[str, list[dict[str, Any]]]:
    return compare_scores([open_run(output) for output in outputs], **how)


def write_output(folder: Path, scores: Scores, metric: str = "qa", **identity: Any) -> str:
    """Write an output of `untold score` with a score by system, kind of sample and question.

    None means no statements.
    """
    samples, rows = [], []
    for (system, kind, question), score in scores.items():
        name = f"{question}:{system}:{kind}"
        contexts = [{"id": "1", "text": f"context of {question}"}]
        samples.append({"sample_id": name, "query": "q", "response": name, "contexts": contexts, "system": system})
        status = "no_statements" if score is None else "ok"
        counts = {"covered": 0, "uncovered": 3} if score is None else {}
        rows.append({"sample_id": name, "metric": metric, "system": system, "score": score, "status": status, **counts})
    for name, table, schema in (("samples", samples, SAMPLES), ("scores", rows, SCORES)):
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(table, schema), folder / name / "part-0.parquet")
    manifest = {"status": "finished", "metrics": [metric], "identity": {**IDENTITY, **identity}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return str(folder)


def write_queries(folder: Path, questions: int) -> None:
    """Assign the same query to groups of this number of consecutive questions."""
    samples = pq.read_table(folder / "samples").to_pylist()
    queries = {row["sample_id"]: f"q{int(row['sample_id'].split(':')[0]) // questions}" for row in samples}
    table = pa.Table.from_pylist([row | {"query": queries[row["sample_id"]]} for row in samples], SAMPLES)
    pq.write_table(table, folder / "samples" / "part-0.parquet")


def draw(systems: str, questions: int, seed: int = 0) -> Scores:
    random = np.random.default_rng(seed)
    return {
        (system, "a", question): float(random.integers(0, 5 + place)) / (4 + place)
        for place, system in enumerate(systems)
        for question in range(questions)
    }


def test_systems_are_ranked_and_compared_as_by_scipy(tmp_path: Path) -> None:
    scores = draw("abc", 60)
    # The scores equal those of `a` except for one question, so the difference is exact
    scores |= {("d", "a", question): scores["a", "a", question] for question in range(59)}

    found = compare([write_output(tmp_path / "out", scores)], seed=3)

    values = {name: [score for (system, _, _), score in scores.items() if system == name] for name in "abcd"}
    means = {name: math.fsum(value) / len(value) for name, value in values.items()}
    ranked = sorted(means, key=lambda name: (-means[name], name))
    assert [row["system"] for row in found["systems"]] == ranked
    for row in found["systems"]:
        interval = bca_interval(values[row["system"]], [1] * row["n"], seed=3)
        assert (row["mean"], row["ci_low"], row["ci_high"]) == (interval.mean, interval.low, interval.high)
    pairs = list(combinations(ranked, 2))
    assert [(row["first"], row["second"]) for row in found["comparisons"]] == pairs
    for row in found["comparisons"]:
        check_interval(row, *(values[row[name]][:60] for name in ("first", "second")))
        check_pair(row, [np.array(values[row[name]][:60]) for name in ("first", "second")])
    adjusted = false_discovery_control([row["p_value"] for row in found["comparisons"]])
    assert [row["p_adjusted"] for row in found["comparisons"]] == pytest.approx(list(adjusted))


def check_interval(row: dict[str, Any], first: list[Any], second: list[Any]) -> None:
    differences = [one - other for one, other in zip(first, second, strict=False)]
    if all(difference == 0 for difference in differences):
        assert (row["ci_low"], row["ci_high"]) == (None, None)
        return
    interval = bca_interval(differences, [1] * len(differences), seed=0)
    # These are two estimates of the same limits
    assert [row["ci_low"], row["ci_high"]] == pytest.approx([interval.low, interval.high], abs=0.02)


def check_pair(row: dict[str, Any], values: list[Any]) -> None:
    common = min(map(len, values))
    first, second = (value[:common] for value in values)
    assert row["n"] == common
    assert row["difference"] == pytest.approx((first - second).mean(), abs=1e-9)
    test = permutation_test(
        (first, second),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=9999,
        rng=np.random.default_rng(0),
    )
    # These are two estimates of the same share from 10,000 resamples each
    assert row["p_value"] == pytest.approx(test.pvalue, abs=5 * 0.01)


def test_outputs_without_any_score_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = write_output(tmp_path / "out", {("a", "a", question): None for question in range(3)})
    assert main(["compare", output]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    nothing = f"untold: nothing to compare, because no sample of {output} has a score (0 failed, 3 undefined)"
    assert told.err.startswith(nothing)
    assert told.err.count("\n") == 1


def test_samples_of_one_question_count_as_their_mean_without_undefined_scores(tmp_path: Path) -> None:
    scores: Scores = {("a", "x", 0): 1.0, ("a", "y", 0): 0.5, ("a", "z", 0): None, ("a", "x", 1): None}
    scores |= {("b", "x", 0): 0.25, ("b", "x", 1): 1.0, ("b", "x", 2): 0.0}

    found = compare([write_output(tmp_path / "out", scores)], seed=0)

    ranks = [(row["system"], row["n"], row["scored"], row["undefined"], row["mean"]) for row in found["systems"]]
    assert ranks == [("a", 4, 2, 2, 0.75), ("b", 3, 3, 0, pytest.approx(1.25 / 3))]
    pair = {"metric": "qa", "first": "a", "second": "b", "n": 1, "difference": 0.5, "ci_low": None, "ci_high": None}
    assert found["comparisons"] == [{**pair, "p_value": 1.0, "p_adjusted": 1.0}]


def abstaining() -> Scores:
    """Return scores of three systems for twenty questions. One has scores for the three easy questions only."""
    scores: Scores = {("shy", "x", question): 1.0 if question < 3 else None for question in range(20)}
    scores |= {("able", "x", question): 0.75 for question in range(20)}
    return scores | {("poor", "x", question): 0.5 if question < 18 else None for question in range(20)}


@pytest.mark.gate
def test_a_system_with_few_statements_leads_by_the_mean_but_not_with_zeros(tmp_path: Path) -> None:
    output, notes = write_output(tmp_path / "out", abstaining()), list[str]()
    by_mean = compare([output], seed=0, notify=notes.append)
    zero = compare([output], seed=0, undefined="zero")

    assert [(row["system"], row["mean"], row["mean_zero"], row["answer_rate"]) for row in by_mean["systems"]] == [
        ("shy", 1.0, 3 / 20, 3 / 20),
        ("able", 0.75, 0.75, 1.0),
        ("poor", 0.5, 9 / 20, 18 / 20),
    ]
    assert [row["system"] for row in zero["systems"]] == ["able", "poor", "shy"]
    shy = zero["systems"][-1]
    limits = bca_interval([0.0, 1.0], [17, 3], seed=0)
    assert (shy["ci_low"], shy["ci_high"]) == (limits.low, limits.high)
    # With only the three scores, the comparison over all twenty questions would have the opposite result
    (pair,) = [row for row in zero["comparisons"] if row["first"] == "able" and row["second"] == "shy"]
    assert (pair["n"], pair["difference"]) == (20, pytest.approx(0.75 - 3 / 20))
    assert notes[0] == (
        "qa: answer rates differ by more than chance (shy 0.15, able 1.00). "
        "--undefined zero counts an undefined score as 0"
    )


def test_answer_rates_that_chance_explains_are_not_named(tmp_path: Path) -> None:
    scores = {key: score for key, score in abstaining().items() if key[0] != "shy"}
    notes: list[str] = []
    compare([write_output(tmp_path / "out", scores)], seed=0, notify=notes.append)
    assert not any("answer rates" in note for note in notes)


def test_the_command_ranks_by_the_mean_with_zeros(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = write_output(tmp_path / "out", abstaining())
    assert main(["compare", output, "--undefined", "zero"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[1:6] for line in lines[1:4]] == [
        ["able", "20", "20", "1.00", "0.750"],
        ["poor", "20", "18", "0.90", "0.450"],
        ["shy", "20", "3", "0.15", "0.150"],
    ]
    with pytest.raises(SystemExit):
        main(["compare", output, "--undefined", "none"])


@pytest.mark.gate
def test_outputs_are_one_table_and_nameless_samples_are_named_after_theirs(tmp_path: Path) -> None:
    nameless: Scores = {(None, "x", n): 0.5 for n in range(4)}
    outputs = [
        write_output(tmp_path / "early", {("a", "x", n): 1.0 for n in range(2)}),
        write_output(tmp_path / "late", {("a", "x", n): 0.0 for n in range(2, 4)} | nameless),
        write_output(tmp_path / "other" / "late", nameless),
        write_output(tmp_path / "e2e", {("a", "x", n): 0.0 for n in range(4)}, metric="e2e"),
    ]

    found = compare(outputs, seed=0)

    assert [(row["metric"], row["system"], row["n"], row["mean"]) for row in found["systems"]] == [
        ("e2e", "a", 4, 0.0),
        ("qa", outputs[1], 4, 0.5),
        ("qa", outputs[2], 4, 0.5),
        ("qa", "a", 4, 0.5),
    ]
    assert [(row["n"], row["difference"], row["p_value"]) for row in found["comparisons"]] == [(4, 0.0, 1.0)] * 3
    assert [row["metric"] for row in compare(outputs, metrics=["e2e"], seed=0)["systems"]] == ["e2e"]


def test_without_common_or_defined_scores_there_is_no_test(tmp_path: Path) -> None:
    scores: Scores = {("a", "x", 0): 1.0, ("b", "x", 1): 1.0, ("c", "x", 0): None}

    found = compare([write_output(tmp_path / "out", scores)], seed=0)

    assert [(row["system"], row["mean"], row["ci_low"]) for row in found["systems"]] == [
        ("a", 1.0, None),
        ("b", 1.0, None),
        ("c", None, None),
    ]
    nothing = {"n": 0, "difference": None, "p_value": None, "p_adjusted": None}
    assert [{name: row[name] for name in nothing} for row in found["comparisons"]] == [nothing] * 3
    alone = compare([write_output(tmp_path / "alone", {("a", "x", 0): 1.0})], seed=0)
    assert (len(alone["systems"]), alone["comparisons"]) == (1, [])


@pytest.mark.parametrize("how", [{}, {"undefined": "zero"}, {"cluster": True}], ids=str)
def test_runs_have_the_same_numbers_as_tables(tmp_path: Path, how: dict[str, Any]) -> None:
    thirds: Scores = {("a", kind, n): n / 3 / (1 + len(kind)) for kind in ("x", "yy") for n in range(3)}
    outputs = [
        write_output(tmp_path / "one", abstaining()),
        write_output(tmp_path / "two", draw("bc", 40) | {(None, "x", 5): float("nan")}),
        write_output(tmp_path / "three", {**draw("b", 40), **thirds}, metric="e2e"),
    ]
    lines: list[str] = []
    others: list[str] = []

    found = compare(outputs, seed=3, notify=lines.append, **how)
    runs = [open_run(output) for output in outputs]
    tables = compare_runs(runs, seed=3, notify=others.append, **how)

    assert {name: table.to_pylist() for name, table in tables.items()} == found
    assert others == lines


@pytest.mark.gate
@pytest.mark.parametrize("how", [{}, {"cluster": True}], ids=str)
def test_measures_are_compared_as_scores_of_the_same_values(tmp_path: Path, how: dict[str, Any]) -> None:
    """The scores in the run differ from the measure. A measure with bounds but no value counts as failed."""
    scores = {**abstaining(), **draw("bc", 20)}
    expected = compare([write_output(tmp_path / "expected", scores)], seed=3, **how)
    run = write_output(tmp_path / "run", dict.fromkeys(scores, 0.5))
    rows = [(f"{question}:{system}:{kind}", score) for (system, kind, question), score in scores.items()]
    lost = {"sample_id": rows[0][0], "metric": "qa", "measure": "lost", "value_low": 0.0, "value_high": 1.0}
    values = [{"sample_id": name, "metric": "qa", "measure": "one_sided", "value": value} for name, value in rows]
    for name, table, schema in (
        ("measures", [*values, lost, {**lost, "value": 9.0, "sample_id": rows[1][0]}], MEASURES),
        ("measures_summary", [{"measure": "one_sided"}, {"measure": "lost"}], MEASURES_SUMMARY),
    ):
        (tmp_path / "run" / name).mkdir()
        pq.write_table(pa.Table.from_pylist(table, schema), tmp_path / "run" / name / "part-0.parquet")
    measures = ["one_sided", "lost"]
    found = compare([run], measures=measures, seed=3, **how)
    tables = compare_runs([open_run(run)], measures=measures, seed=3, **how)
    assert {name: table.to_pylist() for name, table in tables.items()} == found
    assert [row for row in found["comparisons"] if row["metric"] == "qa.one_sided"] == [
        {**row, "metric": "qa.one_sided"} for row in expected["comparisons"]
    ]
    unknown = dict.fromkeys(("answer_rate", "answer_ci_low", "answer_ci_high", "mean_zero"))
    own = {metric: [row for row in found["systems"] if row["metric"] == f"qa.{metric}"] for metric in measures}
    assert own["one_sided"] == [{**row, "metric": "qa.one_sided", **unknown} for row in expected["systems"]]
    assert [(row["n"], row["scored"], row["failed"], row["mean"]) for row in own["lost"]] == [(2, 1, 1, 9.0)]
    with pytest.raises(CompareError, match="no measure one_side; did you mean one_sided"):
        compare([run], measures=["one_side"], seed=3)
    with pytest.raises(CompareError, match="undefined=zero is for scores"):
        compare([run], measures=measures, seed=3, undefined="zero")


@pytest.mark.parametrize("cluster", [False, True])
def test_too_many_distinct_values_are_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: bool) -> None:
    random = np.random.default_rng(1)
    scores: Scores = {(system, "x", n): float(random.random()) for system in "ab" for n in range(200)}
    output = write_output(tmp_path / "out", scores)
    write_queries(tmp_path / "out", 2)

    exact = compare([output], seed=0, cluster=cluster)
    monkeypatch.setattr(score_counts, "MAX_DISTINCT", 50)
    rounded = compare([output], seed=0, cluster=cluster)

    one, other = exact["comparisons"][0], rounded["comparisons"][0]
    assert other["difference"] == pytest.approx(one["difference"], abs=1e-4)
    assert other["difference"] != one["difference"]
    assert other["p_value"] == pytest.approx(one["p_value"], abs=0.02)
    for name in ("ci_low", "ci_high"):
        own, others = (found["systems"][0][name] for found in (exact, rounded))
        assert others == pytest.approx(own, abs=1e-3)
        assert others != own


def test_differences_are_counted_once_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("m", "b", "q1", 0.5), ("m", "a", "q1", 0.3), ("m", "a", "q2", 0.3), ("m", "b", "q2", 0.5)]
    rows += [("m", "a", "q3", None), ("m", "b", "q3", 1.0), ("n", "a", "q1", 1.0), ("m", "a", None, 1.0)]
    database = duckdb.connect()
    database.execute(
        "create table judged (output integer, sample_id varchar, metric varchar, system varchar, score double)"
    )
    database.execute("create table asked (output integer, sample_id varchar, query varchar, question varchar)")
    for number, (metric, system, question, score) in enumerate(rows):
        database.execute("insert into judged values (0, ?, ?, ?, ?)", [str(number), metric, system, score])
        database.execute("insert into asked values (0, ?, ?, ?)", [str(number), question, question])
    counts = ScoreCounts(database)

    assert counts.count_differences("score", cluster=False) == {("m", "a", "b"): ([-0.2], [1], [2])}
    monkeypatch.setattr(score_counts, "MAX_DISTINCT", 0)
    monkeypatch.setattr(score_counts, "GRID", 2)
    assert counts.count_differences("score", cluster=False) == {("m", "a", "b"): ([0.0], [1], [2])}


def test_one_question_of_a_system_in_two_outputs_is_an_error(tmp_path: Path) -> None:
    outputs = [write_output(tmp_path / name, {("a", "x", n): 0.0 for n in range(3)}) for name in ("one", "two")]

    with pytest.raises(CompareError, match="both have qa scores of system a, for 3 questions; give one of the two"):
        compare(outputs, seed=0)


@pytest.mark.gate
def test_rows_of_one_query_are_grouped_on_request_and_otherwise_noted(tmp_path: Path) -> None:
    scores = draw("ab", 24)
    output = write_output(tmp_path / "out", scores)
    write_queries(tmp_path / "out", 4)
    notes: list[str] = []

    found = compare([output], seed=3, cluster=True, notify=notes.append)
    assert notes == []
    compare([output], seed=3, notify=notes.append)
    (note,) = notes
    assert note.startswith("6 queries have several rows of one system")

    sums = {name: [math.fsum(scores[name, "a", 4 * n + k] for k in range(4)) for n in range(6)] for name in "ab"}
    for row in found["systems"]:
        interval = clustered_bca_interval(sums[row["system"]], [4] * 6, seed=3)
        assert [row["ci_low"], row["ci_high"]] == pytest.approx([interval.low, interval.high])
    (pair,) = found["comparisons"]
    differences = [one - other for one, other in zip(sums[pair["first"]], sums[pair["second"]], strict=True)]
    test = clustered_permutation_test(differences, [4] * 6, seed=3)
    assert (pair["n"], pair["p_value"]) == (24, test.p_value)
    assert pair["difference"] == pytest.approx(test.difference)


def test_outputs_that_were_judged_differently_are_named(tmp_path: Path) -> None:
    results = {"stages": {"mine": {"model": "m"}}, "qa": {"questions": "contexts"}, "statistics": {"seed": 1}}
    outputs = [
        write_output(tmp_path / "one", {("a", "x", 0): 0.0}),
        write_output(tmp_path / "two", {("b", "x", 0): 0.0}, stages={"mine": "2", "rate": "3"}, results=results),
        write_output(tmp_path / "three", {("c", "x", 0): 0.0}, stages={"rate": "3"}),
    ]
    notes: list[str] = []

    compare(outputs, seed=0, notify=notes.append)

    one, two, three = outputs
    assert notes == [
        f"{one} and {two} were judged by different mine, qa: the results may not be comparable",
        f"{two} and {three} were judged by different qa: the results may not be comparable",
    ]


def test_an_output_of_another_command_is_refused(tmp_path: Path) -> None:
    output = write_output(tmp_path / "out", {("a", "x", 0): 0.0})
    generated = write_output(tmp_path / "generated", {("a", "x", 0): 0.0})
    (tmp_path / "generated" / "scores" / "part-0.parquet").unlink()

    with pytest.raises(CompareError, match=f"no table scores.*; score it: untold score --input {generated}/samples"):
        compare([output, generated], seed=0)
    with pytest.raises(CompareError, match="no scores of metric q; did you mean qa"):
        compare([output], metrics=["q"], seed=0)
    with pytest.raises(CompareError, match="given twice"):
        compare([output, output], seed=0)
    with pytest.raises(UnreadableRunError):
        compare([str(tmp_path)], seed=0)


def ranking(*p_values: float | None) -> dict[str, list[dict[str, Any]]]:
    """Return the systems and the pairs with these adjusted p-values."""
    system = {"metric": "qa", "n": 20, "scored": 20, "mean": 0.5, "ci_low": 0.25, "ci_high": 0.75}
    system |= {"answer_rate": 1.0, "undefined": 0}
    pair = {"metric": "qa", "n": 20, "difference": 0.125, "ci_low": 0.0625, "ci_high": 0.25, "p_value": 0.01}
    places = enumerate(p_values)
    return {
        "systems": [{**system, "system": f"system-{place}"} for place in range(3)],
        "comparisons": [
            {**pair, "first": f"s{place}", "second": f"t{place}", "p_adjusted": value} for place, value in places
        ],
    }


def test_pairs_are_shown_that_differ_by_more_than_chance() -> None:
    found = ranking(0.049, 0.05, None)
    lines = list(comparison_lines(found, Page()))
    assert [line.split() for line in lines[5:7]] == [
        ["metric", "first", "second", "n", "diff.", "95", "%", "interval", "p", "p", "adj."],
        ["qa", "s0", "t0", "20", "+0.125", "+0.062", "..", "+0.250", "0.0100", "0.0490"],
    ]
    assert lines[8:] == ["2 pairs do not differ by more than chance (p adj. < 0.05); --all or --json shows them"]
    shown = list(comparison_lines(found, Page(), every=True))
    assert [line.split()[1] for line in shown[6:]] == ["s0", "s1", "s2"]


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"scored": 12, "ci_low": 0.25}, "0.250 .. 0.500"),
        ({"scored": 9, "ci_low": 0.25}, "0.250 .. 0.500 (n < 10)"),
        ({"scored": 1, "ci_low": None}, "- (n = 1)"),
        ({"scored": 0, "ci_low": None}, "- (n = 0)"),
        ({"scored": 12, "ci_low": None}, "- (all equal)"),
    ],
)
def test_a_missing_interval_has_a_reason(row: dict[str, Any], shown: str) -> None:
    (system, *_) = ranking()["systems"]
    lines = list(comparison_lines({"systems": [{**system, **row, "ci_high": 0.5}], "comparisons": []}, Page()))
    assert lines[1].endswith(f"  {shown}")


def test_intervals_of_queries_report_possibly_equal_queries() -> None:
    (system, *_) = ranking()["systems"]
    alone = {"systems": [{**system, "ci_low": None}], "comparisons": []}
    assert list(comparison_lines(alone, Page(), clustered=True))[1].endswith("- (one query, or all equal)")


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [
        write_output(tmp_path / name, {(name, "x", n): score for n in range(5)})
        for name, score in (("a", 0.0), ("b", 1.0))
    ]
    command = ["compare", *outputs, "--set", "statistics.seed=4"]

    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == compare(outputs, seed=4)
    assert main(command) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in shown] == [["metric", "system"], ["qa", "b"], ["qa", "a"], [], ["1", "pair"]]
    assert main([*command, "--all"]) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[-2:]] == [
        ["metric", "first", "second"],
        ["qa", "b", "a"],
    ]
    assert main([*command, "--metric", "nli"]) == 1
    assert "no scores of metric nli" in capsys.readouterr().err
