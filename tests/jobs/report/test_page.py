"""Test the page of a report without a browser: the figures, the data, the texts and the size."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.object_store import BUCKET, ObjectStore
from tests.jobs.report.outputs import HARM, TURNED, data_of, sample, score, statement, write_output
from tests.jobs.summary.test_trends import write_night
from untold.jobs.api import open_run
from untold.jobs.cli.main import main
from untold.jobs.report import sources
from untold.jobs.report.page import ReportError, make_report, write_report
from untold.jobs.run_tables import UnreadableRunError

TABLES: dict[str, list[dict[str, Any]]] = {
    "samples": [sample("s1"), sample("s2", system="b", response="It has 12 bells."), sample("s3", "Why?", "No.")],
    "scores": [
        score("s1"),
        score("s2", system="b", value=0.25, covered=1, uncovered=3),
        score("s3", value=None, status="failed", covered=None, uncovered=None),
    ],
    "statements": [
        statement("s1", 1, "The tower is 8 m high.", True),
        statement("s1", 2, "It has 12 bells.", False, sources=["c2"]),
        statement("s2", 1, "The tower is 8 m high.", False),
    ],
    "failures": [
        {"sample_id": "s3", "metric": "e2e", "stage": "evaluate_coverage", "error_type": "timeout", "error": "60 s"}
    ],
    "usage": [{"stage": "evaluate_coverage", "model": "a-judge", "requests": 3, "answered": 2, "failed": 1}],
}


# Two systems with responses to the same two queries
PAIRED = {
    "samples": [sample(f"{system}{number}", f"Query {number}?", system=system) for system in "ab" for number in (0, 1)],
    "scores": [
        score(f"{system}{number}", system=system, value=value + number / 10)
        for system, value in (("a", 0.5), ("b", 0.25))
        for number in (0, 1)
    ],
    "statements": [statement(f"{system}0", 1, "It has 12 bells.", False, sources=["c2"]) for system in "ab"],
}


class Words(HTMLParser):
    """The visible words of a page, and its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self._words, self._hidden = list[str](), list[str](), False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._words).split())


def text_of(page: str) -> str:
    return Words(page).text


def test_miss_rates_of_audits_are_in_the_page(tmp_path: Path) -> None:
    row = {"metric": "e2e", "level": "overall", "system": None, "n": 3, "defined": 2400, "ci_low": 0.1, "ci_high": 0.15}
    measures = [{**row, "measure": "miss_rate", "mean": 0.1234}, {**row, "measure": "score_audited", "mean": 0.5678}]
    text = text_of(make_report([open_run(write_output(tmp_path / "out", {**TABLES, "measures_summary": measures}))]))
    assert "miss_rate out 3 2,400 0.123 0.100 to 0.150" in text
    assert "score_audited out 3 2,400 0.568 0.100 to 0.150" in text


def test_it_states_the_scored_samples_the_judge_and_the_cost(tmp_path: Path) -> None:
    text = text_of(make_report([open_run(write_output(tmp_path / "out", TABLES))]))
    assert (
        "3 answers of 2 systems were scored by e2e. The judge is a-judge. The last start ended on 2026-11-20." in text
    )
    assert "It cost 1.5000, or 0.500000 a sample, for 12 calls and 3,400 tokens." in text
    assert "1 of 3 samples (33.3%) have no score under e2e, because requests failed." in text
    assert "evaluate_coverage timeout 1 60 s s3" in text


def test_the_data_has_every_answer_worst_first_and_a_context_once(tmp_path: Path) -> None:
    data = data_of(make_report([open_run(write_output(tmp_path / "out", TABLES))]))
    assert [one["id"] for one in data["samples"]] == ["s2", "s1", "s3"]
    assert len(data["contexts"]) == 1
    assert data["samples"][2]["metrics"]["e2e"]["failures"] == [["evaluate_coverage", "timeout", "60 s"]]
    # Statements of two responses about the same point have the same number
    first, second = (list(accumulate(one["metrics"]["e2e"]["statements"]["text"])) for one in data["samples"][:2])
    assert set(first) < set(second)


def test_texts_of_a_run_are_no_part_of_the_page(tmp_path: Path) -> None:
    tables = {
        "samples": [sample(HARM, HARM, HARM, system=HARM)],
        "scores": [score(HARM, system=HARM)],
        "statements": [statement(HARM, 1, HARM, False)],
        "failures": [{"sample_id": HARM, "metric": "e2e", "stage": HARM, "error_type": HARM, "error": HARM}],
        "usage": [{"stage": HARM, "model": TURNED}],
    }
    page = make_report([open_run(write_output(tmp_path / "out", tables))])
    tags = Words(page).tags
    assert "img" not in tags
    assert tags.count("script") == 2
    assert f"<bdi>{TURNED}</bdi>" in page


def test_the_page_loads_no_network_resource(tmp_path: Path) -> None:
    page = make_report([open_run(write_output(tmp_path / "out", TABLES))])
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src &#39;none&#39;;")
    assert "unsafe" not in policy
    assert not re.findall(r"https?://(?!www\.w3\.org/)", page)


def test_several_runs_are_named_apart(tmp_path: Path) -> None:
    runs = [open_run(write_output(tmp_path / name, TABLES)) for name in ("monday", "tuesday")]
    data = data_of(make_report(runs))
    assert data["runs"] == ["monday", "tuesday"]
    labels = {one["system"] for one in data["samples"]}
    assert labels == {f"{system} ({run})" for system in "ab" for run in ("monday", "tuesday")}


@pytest.mark.gate
def test_pairs_of_systems_equal_compare_or_changes_by_date(tmp_path: Path) -> None:
    run = open_run(write_output(tmp_path / "2026-11-20", PAIRED))
    text = text_of(make_report([run]))
    assert "Paired differences" in text
    (row,) = run.compare()["comparisons"].to_pylist()
    assert f"a b 2 {row['difference']:+.3f}" in text
    assert f"{row['p_value']:.4f} {row['p_adjusted']:.4f} may be chance" in text
    text = text_of(make_report([run, open_run(write_output(tmp_path / "2026-11-21", PAIRED))]))
    assert "a, 2026-11-21 a, 2026-11-20 2 +0.000" in text
    again = open_run(write_output(tmp_path / "again" / "2026-11-20", PAIRED))
    assert "There are no paired differences:" in text_of(make_report([run, again]))


def test_what_most_answers_leave_out_is_listed(tmp_path: Path) -> None:
    text = text_of(make_report([open_run(write_output(tmp_path / "out", PAIRED))]))
    assert "What is left out most" in text
    assert "It has 12 bells. Query 0? e2e 2 of 2 c2 a, b" in text


def test_a_study_states_the_agreement_of_the_judge_with_people(tmp_path: Path) -> None:
    run = open_run(write_output(tmp_path / "out", TABLES))
    assert "This report has no measure of the judge's agreement with people." in text_of(make_report([run]))
    row = {
        "dataset": "wikicontradict",
        "metric": "e2e",
        "model": "a-judge",
        "measure": "kappa",
        "value": 0.61,
        "n": 253,
    }
    study = open_run(write_output(tmp_path / "study", {"meta_evaluation": [row], "summary": []}))
    text = text_of(make_report([run, study]))
    assert "Agreement with people, e2e by a-judge on wikicontradict: kappa 0.61, n = 253." in text


def test_a_large_run_shows_the_worst_and_whole_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LISTED", 50)
    monkeypatch.setattr(sources, "PART", 10)
    names = [f"s{number:03d}" for number in range(200)]
    tables = {
        "samples": [sample(name, f"Query {number // 2}?") for number, name in enumerate(names)],
        "scores": [score(name, value=number / 200) for number, name in enumerate(names)],
    }
    run = open_run(write_output(tmp_path / "out", tables))
    page = make_report([run])
    shown = {one["id"] for one in data_of(page)["samples"]}
    assert set(names[:10]) <= shown
    drawn = sources._drawn(run, 10)
    assert shown == {*names[:10], *drawn}
    assert {int(name[1:]) // 2 for name in drawn} == {int(name[1:]) // 2 for name in drawn[::2]}
    assert make_report([run]) == page
    assert f"The table has {len(shown)} of 200 answers" in text_of(page)


@pytest.mark.gate
def test_ten_thousand_answers_stay_below_five_megabytes(tmp_path: Path) -> None:
    random_ = random.Random(0)

    def sentences(count: int) -> str:
        # Random text has the worst compression ratio
        return " ".join(f"{random_.randbytes(30).hex()}." for _ in range(count))

    tables: dict[str, list[dict[str, Any]]] = {"samples": [], "scores": [], "statements": []}
    for query in range(2_000):
        contexts = [{"id": f"c{place}", "text": sentences(6)} for place in range(4)]
        facts = [sentences(1) for _ in range(3)]
        for system in "abcde":
            name = f"{query}-{system}"
            response = sentences(8)
            tables["samples"].append(sample(name, sentences(1), response, contexts=contexts, system=system))
            tables["scores"].append(score(name, system=system, value=random_.randint(0, 8) / 8))
            tables["statements"] += [statement(name, place, fact, place % 2 == 0) for place, fact in enumerate(facts)]
    page = make_report([open_run(write_output(tmp_path / "out", tables))])
    assert len(page.encode()) < 5_000_000
    assert len(data_of(page)["samples"]) == 10_000
    assert "Long texts are cut" in page


def test_runs_without_a_score_or_a_sample_have_a_report(tmp_path: Path) -> None:
    lost = {"samples": [sample("s")], "scores": [score("s", value=None, status="failed", system=None)]}
    text = text_of(make_report([open_run(write_output(tmp_path / "lost", lost))]))
    assert "e2e: 0 of 1 have a score, 1 failed." in text
    assert "There are no paired differences: nothing to compare" in text
    none: dict[str, list[dict[str, Any]]] = {"samples": [], "scores": []}
    text = text_of(make_report([open_run(write_output(tmp_path / "none", none, metrics=["e2e"]))]))
    assert "0 answers were scored by no metric." in text


def test_an_invalid_output_and_an_unwritable_page_are_reported(tmp_path: Path) -> None:
    run = open_run(write_output(tmp_path / "out", TABLES))
    bare = open_run(write_output(tmp_path / "bare", {"samples": []}))
    with pytest.raises(UnreadableRunError, match=r"bare has no table scores\. Give an output of untold score"):
        make_report([bare])
    with pytest.raises(ReportError, match=r"cannot be written \(FileNotFoundError\)\. Choose another --html FILE"):
        write_report([run], tmp_path / "no" / "report.html")


def test_the_command_writes_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    output = write_output(tmp_path / "out", TABLES)
    assert main(["report", str(output)]) == 0
    assert re.fullmatch(r"report: report\.html \(0\.\d MB\)\. Open it in a browser\n", capsys.readouterr().out)
    assert data_of((tmp_path / "report.html").read_text(encoding="utf-8"))["runs"] == ["out"]


@pytest.mark.gate
def test_an_output_on_an_object_store_has_the_same_report(object_store: ObjectStore, tmp_path: Path) -> None:
    output = write_output(tmp_path / "out", PAIRED)
    for file in output.rglob("*.*"):
        object_store.put(str(file.relative_to(tmp_path)), file.read_bytes())
    there = open_run(f"s3://{BUCKET}/out")
    assert data_of(make_report([there])) == data_of(make_report([open_run(output)]))
    write_report([there], f"s3://{BUCKET}/report.html")
    assert object_store.objects["report.html"].decode() == make_report([there])


def test_a_notebook_shows_it_in_a_sandboxed_frame(tmp_path: Path) -> None:
    run = open_run(write_output(tmp_path / "out", TABLES))
    frame = run.report()._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert Words(frame).tags == ["iframe"]
    written = run.report(tmp_path / "r.html")
    assert written.html == (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "r.html" in written._repr_html_()
    assert len(repr(written)) < 500


def test_outputs_of_several_dates_have_a_trend(tmp_path: Path) -> None:
    runs = [write_night(tmp_path, day, {"a": [value] * 12}) for day, value in ((17, 0.75), (18, 0.25))]
    page = make_report(runs)
    section = page[page.index('<section id="trend"') :].partition("</section>")[0]
    assert "2026-11-18, a is lower by 0.500 (n = 12) under e2e" in section
    assert section.count('<th scope="row">2026-11-1') == 2
    # A report of one date, or of outputs without dates, has no trend
    assert 'id="trend"' not in make_report(runs[:1])
    (tmp_path / "2026-11-17").rename(tmp_path / "first")
    assert 'id="trend"' not in make_report([open_run(tmp_path / "first"), runs[1]])
