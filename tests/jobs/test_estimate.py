"""Compare `untold estimate` with ppi-python and simulated worlds. It estimates the mean of all samples from a part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ppi_py
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import untold
from untold.jobs.cli.main import main
from untold.jobs.compare import estimate, needed
from untold.jobs.inputs.sampling import allocate
from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.summary.estimating import EstimateError, EstimateRequest, open_proxy, share_vectors
from untold.udfs.errors import UserError

Floats = NDArray[np.float64]
# The coverage of a 95 % interval in 2,000 worlds is between these shares, except once in a thousand cases
LEAST, MOST = 0.935, 0.965
WORLDS = 2_000


def write_run(
    folder: Path,
    scores: dict[str, Sequence[float | None]],
    *,
    queries: Sequence[object],
    systems: Sequence[str | None],
    kept: Sequence[bool] | None = None,
    status: str = "failed",
    topic: Sequence[int] | None = None,
    **manifest: Any,
) -> RunTables:
    """Write an output with one score per sample and metric. A sample with a null score has the given status."""
    places = [place for place in range(len(queries)) if kept is None or kept[place]]
    ids = [f"s{place:07}" for place in places]
    shared = {"sample_id": ids, "system": [systems[place] for place in places]}
    asked = {"query": [f"query {queries[place]}" for place in places]}
    extra = {} if topic is None else {"topic": [topic[place] for place in places]}
    samples = pa.table({**shared, **asked, **extra})
    tables = []
    for metric, values in scores.items():
        own = pa.array([values[place] for place in places], pa.float64())
        states = pa.array(["ok" if one else status for one in own.is_valid().to_pylist()])
        ones = pa.array(np.ones(len(places), np.int64))
        row = {**shared, "metric": pa.array([metric] * len(places)), "score": own, "status": states}
        tables.append(pa.table({**row, "covered": ones, "uncovered": ones}))
    for name, table in (("samples", samples), ("scores", pa.concat_tables(tables))):
        (folder / name).mkdir(parents=True)
        pq.write_table(table, folder / name / "part-0.parquet")
    told = {"status": "finished", "metrics": list(scores), "identity": {"input": folder.name}, **manifest}
    (folder / "manifest.json").write_text(json.dumps(told))
    return open_run(str(folder))


def draw_world(seed: int, samples: int, systems: int = 1) -> tuple[Floats, Floats, list[int], list[str | None]]:
    """Return the scores and proxies of the samples, their queries and their systems.

    Each system has one sample per query.
    """
    random = np.random.default_rng(seed)
    queries = np.repeat(np.arange(samples // systems), systems)
    names = [f"system {number % systems}" for number in range(samples)]
    ease = random.normal(0, 0.1, samples // systems)[queries]
    score = np.clip(0.5 + ease + random.normal(0, 0.15, samples), 0, 1)
    proxy = np.clip(0.1 + 0.8 * score + random.normal(0, 0.08, samples), 0, 1)
    return score, proxy, queries.tolist(), list(names)


def test_without_strata_and_shared_queries_it_is_ppi(tmp_path: Path) -> None:
    score, proxy, _, _ = draw_world(1, 1_000)
    judged = np.random.default_rng(2).random(1_000) < 0.2
    of_all: dict[str, Any] = {"queries": range(1_000), "systems": [None] * 1_000}
    run = write_run(tmp_path / "dear", {"nli": score.tolist()}, kept=judged.tolist(), **of_all)
    cheap = write_run(tmp_path / "cheap", {"e2e": proxy.tolist()}, **of_all)
    (row,) = estimate(EstimateRequest(run, cheap))["estimates"]
    given = (score[judged], proxy[judged], proxy[~judged])
    low, high = ppi_py.ppi_mean_ci(*given, alpha=0.05)
    assert row["mean"] == pytest.approx(float(np.squeeze(ppi_py.ppi_mean_pointestimate(*given))), abs=1e-9)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((float(low[0]), float(high[0])), abs=1e-6)
    plain = ppi_py.classical_mean_ci(score[judged], alpha=0.05)
    assert row["plain_mean"] == pytest.approx(score[judged].mean())
    assert (row["plain_low"], row["plain_high"]) == pytest.approx([float(np.squeeze(one)) for one in plain], rel=1e-2)
    assert (row["metric"], row["proxy"], row["level"], row["n"]) == ("nli", "e2e", "overall", 1_000)
    assert row["judged"] == judged.sum()
    assert row["effective_sample_size"] == pytest.approx(
        row["judged"] * (np.diff(plain)[0] / (high - low)[0]) ** 2, rel=2e-2
    )


def coverage(folder: Path, *, systems: int, topics: bool) -> dict[str, float]:
    """Return the share of worlds with an interval that contains the true mean, by level.

    Each world is a metric of one pair of runs. With topics, the judged samples are drawn by strata. Half of the strata
    are so small that only one sample is drawn from each.
    """
    random = np.random.default_rng(5)
    size, judged, queries = 450, 150, 450 // systems
    of_query = np.repeat(np.arange(queries), systems)
    names: list[str | None] = [f"system {number % systems}" for number in range(size)]
    topic = np.where(of_query < 24, of_query // 3, 100 + of_query % 4) if topics else np.zeros(size, int)
    kept = np.zeros(size, bool)
    values, counts = np.unique(topic, return_counts=True)
    for value, share in zip(values, allocate(counts.tolist(), judged), strict=True):
        kept[random.permutation(np.flatnonzero(topic == value))[:share]] = True
    # The first term is shared by the samples of a query, and the second term is the effect of a system
    ease = random.normal(0, 0.1 if systems > 1 else 0, (WORLDS, queries))[:, of_query]
    truth = 0.4 + 0.05 * (np.arange(size) % systems) + 0.02 * (topic % 7)
    score = truth + ease + random.normal(0, 0.1, (WORLDS, size))
    proxy = 0.2 + 0.7 * score + random.normal(0, 0.05, (WORLDS, size))
    shared: dict[str, Any] = {"queries": of_query.tolist(), "systems": names, "topic": topic.tolist()}
    drawn = {"input": {"draw": {"stratify": ["topic"] if topics else []}}}
    worlds = {f"{world:04}": world for world in range(WORLDS)}
    run = write_run(
        folder / "dear", {name: score[at] for name, at in worlds.items()}, kept=kept.tolist(), **shared, **drawn
    )
    cheap = write_run(folder / "cheap", {name: proxy[at] for name, at in worlds.items()}, **shared)
    found = estimate(EstimateRequest(run, cheap))
    means = {name: float(truth[[other == name for other in names]].mean()) for name in names} | {None: truth.mean()}
    levels: dict[str, list[bool]] = {}
    for row in [*found["estimates"], *found["differences"]]:
        true = means[row["system"]] - (means[row["compared_system"]] if row["compared_system"] else 0)
        levels.setdefault(row["level"], []).append(row["ci_low"] <= true <= row["ci_high"])
    return {level: float(np.mean(holds)) for level, holds in levels.items()}


@pytest.mark.gate
@pytest.mark.parametrize(("systems", "topics"), [(1, False), pytest.param(3, False, marks=pytest.mark.slow), (3, True)])
def test_intervals_contain_the_mean_at_the_stated_rate(tmp_path: Path, systems: int, topics: bool) -> None:
    found = coverage(tmp_path, systems=systems, topics=topics)
    assert all(LEAST <= share <= MOST for share in found.values()), found


def small_runs(folder: Path) -> tuple[RunTables, RunTables]:
    """Return a run with forty judged samples out of a thousand samples of two systems, and a proxy for all samples."""
    score, proxy, queries, systems = draw_world(3, 1_000, systems=2)
    shared: dict[str, Any] = {"queries": queries, "systems": systems}
    kept = [query < 60 for query in queries]
    values: list[float | None] = [*score]
    values[0] = values[1] = None
    drawn = {"input": {"draw": {"rows": 120, "seed": 0, "of": 1_000}}}
    run = write_run(folder / "dear", {"nli": values}, kept=kept, status="no_statements", **shared, **drawn)
    return run, write_run(folder / "cheap", {"nli": [None, None, None, *proxy[3:]]}, **shared)


def test_samples_without_a_score_are_counted_and_reported(tmp_path: Path) -> None:
    run, cheap = small_runs(tmp_path)
    notes: list[str] = []
    overall, first, second = estimate(EstimateRequest(run, cheap), notes.append)["estimates"]
    assert notes == [
        "nli: 2 of 120 drawn samples have no score (2 undefined, 0 failed). The mean covers samples with a score"
    ]
    assert (overall["n"], overall["judged"], overall["undefined"]) == (998, 118, 2)
    assert (first["undefined"], second["undefined"]) == (1, 1)
    zero = estimate(EstimateRequest(run, cheap, undefined="zero"))["estimates"][0]
    assert (zero["judged"], zero["undefined"]) == (120, 0)
    assert zero["plain_mean"] == pytest.approx(overall["plain_mean"] * 118 / 120)


def test_a_proxy_that_adds_nothing_is_named(tmp_path: Path) -> None:
    score, _, queries, systems = draw_world(4, 400)
    noise = np.random.default_rng(0).random(400)
    shared: dict[str, Any] = {"queries": queries, "systems": systems}
    run = write_run(tmp_path / "dear", {"nli": score.tolist()}, kept=[place < 100 for place in range(400)], **shared)
    cheap = write_run(tmp_path / "cheap", {"e2e": noise.tolist(), "nli": score.tolist()}, **shared)
    notes: list[str] = []
    found = estimate(EstimateRequest(run, cheap, proxy_metric="e2e"), notes.append)["estimates"][0]
    assert found["effective_sample_size"] == pytest.approx(100, rel=0.05)
    assert notes[0].startswith(
        "nli: the proxy e2e adds nothing to the mean of all samples, system 0 (its weight is 0.0"
    )
    best = estimate(EstimateRequest(run, cheap))["estimates"][0]
    assert best["effective_sample_size"] > 350
    everything = write_run(tmp_path / "all", {"nli": score.tolist()}, **shared)
    estimate(EstimateRequest(everything, cheap), notes.append)
    assert notes[-1].startswith("nli: the proxy nli adds nothing to the mean of all samples, system 0 (every sample is")


def test_people_are_the_judges_of_a_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score, proxy, queries, systems = draw_world(6, 500)
    shared: dict[str, Any] = {"queries": queries, "systems": systems}
    run = write_run(tmp_path / "dear", {"e2e": proxy.tolist()}, **shared)
    # Two people label each sample. One of the samples is not in the run, and one of the samples has no label
    lines = [f"s{place:07},{score[place] + shift}" for place in range(100) for shift in (-0.1, 0.1)]
    labels = tmp_path / "people.csv"
    labels.write_text("\n".join(["sample_id,label", *lines, "x,1", "s0000100,"]))
    assert main(["estimate", run.directory, "--labels", str(labels), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    row = found["estimates"][0]
    judged = np.arange(500) < 100
    low, high = ppi_py.ppi_mean_ci(score[judged], proxy[judged], proxy[~judged], alpha=0.05)
    assert (row["metric"], row["proxy"], row["judged"], found["differences"]) == ("labels", "e2e", 100, [])
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((float(low[0]), float(high[0])), abs=1e-6)
    assert f"people.csv: 1 sample is not in {run.directory}, and left out" in err
    wrong = {
        "sample_id,label\ns1,yes": "column label must be numbers",
        "id,x\n1,2": "need the columns",
        "sample_id,label\nx,1": "people.csv: none of its samples with a score is in",
    }
    for text, said in wrong.items():
        labels.write_text(text)
        assert main(["estimate", run.directory, "--labels", str(labels)]) == 1
        assert said in capsys.readouterr().err


def test_the_command_prints_and_writes_the_results_of_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, cheap = small_runs(tmp_path)
    output = tmp_path / "out"
    given = ["estimate", run.directory, "--proxy", cheap.directory, "--output", str(output), "--all"]
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert "worth: judged samples whose plain mean would have an interval as narrow" in printed
    assert "system 0" in printed
    with pytest.warns(UserWarning, match="2 of 120 drawn samples have no score"):
        found = untold.open_run(run.directory).estimate(cheap)
    written = open_run(str(output)).table("estimates").to_pylist()
    assert written == [*found["estimates"].to_pylist(), *found["differences"].to_pylist()]
    assert [row["level"] for row in written] == ["overall", "system", "system", "difference"]
    difference, means = written[-1], {row["system"]: row["mean"] for row in written[1:3]}
    assert difference["mean"] == pytest.approx(
        means[difference["system"]] - means[difference["compared_system"]], abs=0.02
    )
    assert main(given[:-1]) == 0
    assert main(["estimate", cheap.directory, "--proxy", run.directory, "--output", str(output)]) == 1
    assert "belongs to another input" in capsys.readouterr().err


def test_runs_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    run, cheap = small_runs(tmp_path)
    with pytest.raises(EstimateError, match=r"^give --proxy, cheap scores of all samples"):
        estimate(EstimateRequest(run))
    two = write_run(tmp_path / "two", {"e2e": [0.5], "qa": [0.5]}, queries=["q"], systems=["a"])
    with pytest.raises(EstimateError, match=r"has no metric nli\. Set --proxy-metric to one of e2e, qa"):
        estimate(EstimateRequest(run, two))
    apart = write_run(tmp_path / "apart", {"nli": [0.5]}, queries=["q"], systems=["a"], kept=[True])
    (tmp_path / "apart" / "scores" / "part-0.parquet").unlink()
    with pytest.raises(UserError, match="no table"):
        estimate(EstimateRequest(run, apart))
    drawn = write_run(
        tmp_path / "drawn", {"nli": [0.5]}, queries=["q"], systems=["a"], input={"draw": {"stratify": ["topic"]}}
    )
    with pytest.raises(EstimateError, match="drawn by topic, which the samples of the proxy do not have"):
        estimate(EstimateRequest(drawn, cheap))


@pytest.mark.parametrize("half_width", [0.02, 0.008])
def test_the_required_number_of_judged_samples_gives_the_width(tmp_path: Path, half_width: float) -> None:
    score, proxy, queries, systems = draw_world(7, 4_000)
    shared: dict[str, Any] = {"queries": queries, "systems": systems}
    cheap = write_run(tmp_path / "cheap", {"nli": proxy.tolist()}, **shared)
    order = np.random.default_rng(1).permutation(4_000)

    def judge(number: int) -> RunTables:
        chosen = np.isin(np.arange(4_000), order[:number]).tolist()
        return write_run(tmp_path / f"dear-{number}", {"nli": score.tolist()}, kept=chosen, **shared)

    pilot = judge(300)
    for plain in (False, True):
        row = needed(EstimateRequest(pilot, None if plain else cheap), half_width)[0]
        assert row["needed"] is not None
        (found, *_) = estimate(EstimateRequest(judge(row["needed"]), cheap))["estimates"]
        low, high = ("plain_low", "plain_high") if plain else ("ci_low", "ci_high")
        assert (found[high] - found[low]) / 2 == pytest.approx(half_width, rel=0.08)
    # The width is too small, even with the proxy of all samples
    assert needed(EstimateRequest(pilot, cheap), 0.0001)[0]["needed"] is None


def test_the_command_prints_the_required_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, cheap = small_runs(tmp_path)
    given = ["sample-size", run.directory, "--proxy", cheap.directory, "--half-width", ".02"]
    assert main([*given, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["system"], row["judged"]) for row in rows] == [(None, 118), ("system 0", 59), ("system 1", 59)]
    assert all(row["judged"] < row["needed"] < row["n"] for row in rows[1:])
    assert main(given) == 0
    assert "needed: judged samples for a 95 % interval of +-0.02" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*given[:-1], "0"])
    assert "must be a number above 0" in capsys.readouterr().err


def write_texts(folder: Path, judged: int) -> tuple[Path, RunTables, Floats]:
    """Write all samples as Parquet and a run of the first samples. Also return the true scores.

    A true score is the share of the words of the contexts in the response.
    """
    random = np.random.default_rng(7)
    words = [f"word{number}" for number in range(10)]
    told = [[words[place] for place in np.flatnonzero(random.random(10) < 0.5)] for _ in range(200)]
    rows = {
        "sample_id": [f"s{place:07}" for place in range(200)],
        "query": [f"query {place // 2}" for place in range(200)],
        "system": [f"system {place % 2}" for place in range(200)],
        "response": [" ".join(one) for one in told],
        "contexts": [[" ".join(words[:6]), f"The {words[6]} of {' '.join(words[7:])}."]] * 200,
    }
    pq.write_table(pa.table(rows), folder / "all.parquet")
    truth = np.array([len(one) / 10 for one in told])
    run = write_run(
        folder / "dear",
        {"nli": (truth / 2).tolist()},
        queries=[place // 2 for place in range(200)],
        systems=rows["system"],
        kept=[place < judged for place in range(200)],
        input={"path": str(folder / "all.parquet")},
    )
    return folder / "all.parquet", run, truth


def test_words_that_responses_share_with_contexts_are_a_proxy_without_a_model(tmp_path: Path) -> None:
    path, run, truth = write_texts(tmp_path, 40)
    proxy = open_proxy("words", run)
    shares = proxy.frames["scores"]["score"].to_pylist()  # type: ignore[attr-defined]
    assert shares == pytest.approx(truth.tolist())
    rows = estimate(EstimateRequest(run, proxy))["estimates"]
    assert [(row["metric"], row["proxy"], row["system"], row["n"]) for row in rows] == [
        ("nli", "words", name, size) for name, size in ((None, 200), ("system 0", 100), ("system 1", 100))
    ]
    # The proxy is the score times a constant factor, so all samples are as good as judged samples
    assert rows[0]["mean"] == pytest.approx(truth.mean() / 2, abs=0.01)
    assert rows[0]["effective_sample_size"] > 100
    for named in (path, path.parent):
        assert open_proxy("words", run, str(named)).frames == proxy.frames  # type: ignore[attr-defined]


def test_a_proxy_from_a_file_equals_the_same_run(tmp_path: Path) -> None:
    path, run, truth = write_texts(tmp_path, 40)
    names = [f"s{place:07}" for place in range(200)]
    written = pa.table({"sample_id": names, "score": truth})
    pq.write_table(written, tmp_path / "proxy.parquet")
    (tmp_path / "proxy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written.to_pylist()))
    pa.csv.write_csv(written, tmp_path / "proxy.csv")
    of_all: dict[str, Any] = {
        "queries": [place // 2 for place in range(200)],
        "systems": [f"system {place % 2}" for place in range(200)],
    }
    cheap = write_run(tmp_path / "cheap", {"score": truth.tolist()}, **of_all)
    wanted = estimate(EstimateRequest(run, cheap))
    for kind in ("parquet", "jsonl", "csv"):
        assert estimate(EstimateRequest(run, open_proxy(str(tmp_path / f"proxy.{kind}"), run, str(path)))) == wanted
    # A proxy without the samples does not have systems
    (row,) = estimate(EstimateRequest(run, open_proxy(str(tmp_path / "proxy.csv"), run)))["estimates"]
    assert (row["level"], row["n"], row["mean"]) == (
        "overall",
        200,
        pytest.approx(wanted["estimates"][0]["mean"], abs=0.01),
    )


def test_vectors_of_responses_are_nearest_to_texts_with_the_same_meaning() -> None:
    bees = ["Honey bees are insects that make honey.", "A bee hive is full of honey."]
    near, far, unknown = share_vectors(
        [("Bees make honey in hives.", bees), ("The bank raised its interest rate.", bees), ("No texts.", [])]
    )
    assert near is not None
    assert far is not None
    assert far + 0.3 < near <= 1
    assert unknown is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("proxy.csv", "sample_id,scor\ns1,1\n", "no column score"),
        ("proxy.csv", "sample_id,score\ns1,good\n", "must be numbers"),
        ("missing.csv", None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_proxy_is_refused_in_one_line(
    tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    _, run, _ = write_texts(tmp_path, 40)
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(EstimateError, match=said) as caught:
        open_proxy(str(tmp_path / name), run)
    assert "\n" not in str(caught.value)


def test_the_command_accepts_a_proxy_without_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, run, _ = write_texts(tmp_path, 40)
    output = tmp_path / "estimated"
    assert main(["estimate", run.directory, "--proxy", "words", "--output", str(output), "--json"]) == 0
    assert {row["proxy"] for row in json.loads(capsys.readouterr().out)["estimates"]} == {"words"}
    assert pq.read_table(output / "estimates").num_rows == 4
    assert untold.open_run(run.directory).estimate("words")["estimates"].num_rows == 3
