from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.cli.main import main
from untold.jobs.inputs.options import ShowRequest
from untold.jobs.metrics import METRICS
from untold.jobs.metrics.views import VIEWS
from untold.jobs.run_tables import UnreadableRunError
from untold.jobs.show import NEAR_IDS, ShowError, show
from untold.jobs.tables import RELATIONS, RESULT_TABLES

Rows = Sequence[Mapping[str, Any]]
MakeRun = Callable[..., Path]
HOSTILE_IDS = (
    "../../escape",
    "/etc/passwd",
    "a/b",
    "..",
    ".",
    "a\nb",
    "\x1b[2J",
    "nul\x00",
    "é" * 300,
    "",
    "con:",
    "a b",
)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(status: str = "finished", **tables: Rows) -> Path:
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"status": status}))
        for name, rows in tables.items():
            (folder / name).mkdir()
            pq.write_table(pa.Table.from_pylist(list(rows), RESULT_TABLES[name]), folder / name / "part-0.parquet")
        return folder

    return make


def sample(name: str = "one", **others: Any) -> dict[str, Any]:
    first = "The first context. This is statement 1. It has statement number two, 2."
    contexts = [{"id": "1", "text": first}, {"id": "2", "text": "The second."}]
    return {"sample_id": name, "query": "How high?", "response": "High.", "contexts": contexts, **others}


def score(name: str = "one", metric: str = "nli", **others: Any) -> dict[str, Any]:
    bounds = {"score": 0.5, "score_low": 0.5, "score_high": 0.5}
    return {"sample_id": name, "metric": metric, **bounds, "covered": 2, "uncovered": 2, "status": "ok"} | others


def statement(number: int, metric: str = "nli", *, name: str = "one", **others: Any) -> dict[str, Any]:
    """Return a statement.

    The first two are missing, and the second is in the basis. The other statements are covered.
    """
    text = f"Statement {number}."
    row = {"sample_id": name, "metric": metric, "statement_id": f"s{number}", "text": text, "sources": ["1"]}
    return {**row, "covered": number > 2, "in_basis": number == 2, "members": [text]} | others


def atom(name: str, origin: str, statement_id: str | None) -> dict[str, Any]:
    row = {"sample_id": "one", "metric": "nli", "atom_id": name, "text": f"Atom {name}.", "origin": origin}
    return {**row, "sources": ["1"], "kept": True, "statement_id": statement_id}


def relation(premise: str, hypothesis: str, name: str | None) -> dict[str, Any]:
    row = {"sample_id": "one", "metric": "nli", "premise_id": premise, "hypothesis_id": hypothesis}
    return {**row, "relation": name}


NLI = {
    "samples": [sample(), sample("two", query="Another query?")],
    "scores": [score(system="a"), score("two", score=1.0)],
    "statements": [statement(4), statement(1), statement(3), statement(2), statement(9, name="two")],
    "atoms": [atom(f"c{number}", "context", f"s{number}") for number in (1, 2, 3, 4)] + [atom("r", "response", None)],
    "relations": [
        relation("c2", "c1", "entailment"),
        relation("r", "c3", "entailment"),
        relation("r", "c4", "neutral"),
    ],
}
E2E = {
    "samples": [sample()],
    "scores": [score(metric="e2e")],
    "statements": [statement(number, "e2e", in_basis=None, members=None) for number in (1, 3)],
}


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def texts_of(picture: str | Path) -> str:
    return "\n".join("".join(element.itertext()) for element in ElementTree.parse(picture).iter())


def picture_of(folder: Path, **options: Any) -> Path:
    """Return the picture of sample one."""
    (picture,) = show(ShowRequest(str(folder), "one", picture=str(folder / "p.svg"), **options))
    return Path(picture)


def test_missing_statements_come_first_with_the_basis_marked(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(**NLI)
    before = set(folder.rglob("*"))
    assert show(ShowRequest(str(folder), "one")) == []
    assert set(folder.rglob("*")) == before
    assert lines_of(capsys) == [
        "sample one, metric nli, system a",
        "query: How high?",
        "response: High.",
        "score: 0.50 (ok), 2 covered, 2 missing",
        "",
        "missing: 2 statements; adding the 1 statement marked * would complete the answer",
        "*   1  Statement 2.",
        "       stated in context 1",
        "         1 (found by shared words): It has statement number two, 2.",
        "    2  Statement 1.",
        "       stated in context 1",
        "         1: This is statement 1.",
        "",
        "covered: 2 statements",
        "    3  Statement 3.",
        "       stated in context 1",
        "    4  Statement 4.",
        "       stated in context 1",
        "",
    ]


def test_contradicting_statements_are_shown_with_missing_sides_and_sources(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"sample_id": "one", "metric": "nli", "first_id": "s3", "second_id": "s1", "first_sources": ["1"]}
    row |= {"second_sources": ["1", "2"], "first": "Statement 3.", "second": "Statement 1."}
    coverage = ("both", "first", "second", "neither")
    folder = make_run(**NLI, conflicts=[{**row, "coverage": one} for one in coverage])
    show(ShowRequest(str(folder), "one"))
    assert lines_of(capsys)[-7:] == [
        "",
        "conflicts: 4 pairs of contradicting statements",
        "       says Statement 3 and Statement 1",
        "       says Statement 3; leaves out Statement 1, which contexts 1, 2 state",
        "       says Statement 1; leaves out Statement 3, which context 1 states",
        "       leaves out Statement 3, which context 1 states, and Statement 1, which contexts 1, 2 state",
        "",
    ]


def test_without_a_sample_the_first_ids_are_printed(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["one", "two", *map(str, range(20))]
    folder = make_run(scores=[score(name, metric) for name in names for metric in ("e2e", "nli")])
    assert main(["show", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "the first sample ids:",
        *(f"  {name}" for name in names[:10]),
        "",
        f"next: untold show {folder} --sample one",
    ]
    assert main(["show", str(folder), "--picture", "one.svg"]) == 1
    assert capsys.readouterr().err == "untold: --picture needs --sample\n"


def test_each_metric_of_the_package_has_its_view() -> None:
    assert {name: METRICS[name].view for name in METRICS if name in VIEWS} == VIEWS


def test_several_statements_of_the_basis_are_counted(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    statements = [statement(number, covered=False, in_basis=number < 3) for number in (1, 2, 3)]
    show(ShowRequest(str(make_run(scores=[score()], statements=statements)), "one"))
    line = "missing: 3 statements; adding the 2 statements marked * would complete the answer"
    assert line in lines_of(capsys)


@pytest.mark.parametrize(
    ("response", "lines"),
    [
        ("One.\n\n- two\x1b[2J", ["response: One.", "  - two�[2J"]),
        (" \n", ["response: (empty)"]),
        (None, []),
    ],
)
def test_the_response_is_shown_line_by_line(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], response: str | None, lines: list[str]
) -> None:
    show(ShowRequest(str(make_run(samples=[sample(response=response)], scores=[score()])), "one"))
    shown = lines_of(capsys)
    assert shown[2 : shown.index("score: 0.50 (ok), 2 covered, 2 missing")] == lines


def test_a_picture_has_the_texts_of_the_terminal(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    picture = picture_of(make_run(**NLI))
    assert lines_of(capsys)[-1] == f"picture: {picture}"
    shown = texts_of(picture)
    assert all(f"Statement {number}." in shown for number in (1, 2, 3, 4))
    assert "Atom r." in shown
    assert "High." in shown
    assert "Atom c1." not in shown


def test_the_raw_picture_shows_atoms(make_run: MakeRun) -> None:
    assert "Atom c1." in texts_of(picture_of(make_run(**NLI), raw=True))


def test_a_picture_is_written_to_the_given_path(make_run: MakeRun, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.png"
    assert show(ShowRequest(str(make_run(**NLI)), "one", picture=str(target))) == [str(target)]
    assert target.read_bytes().startswith(b"\x89PNG")


def test_the_same_sample_gives_the_same_picture(make_run: MakeRun) -> None:
    folder = make_run(**NLI)
    assert picture_of(folder).read_bytes() == picture_of(folder).read_bytes()


def test_other_texts_of_a_statement_are_below_it(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    statements = [statement(3, members=["Statement 3.", "The third."], sources=["1", "2"])]
    show(ShowRequest(str(make_run(scores=[score()], statements=statements)), "one"))
    lines = lines_of(capsys)
    at = lines.index("    1  Statement 3.")
    assert lines[at + 1 : at + 3] == ["       stated in contexts 1, 2", "       also: The third."]


def test_e2e_has_no_basis_and_draws_contexts(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    picture = picture_of(make_run(**E2E))
    lines = lines_of(capsys)
    assert "missing: 1 statement" in lines
    assert not any(line.startswith("*") for line in lines)
    assert "The first context." in texts_of(picture)


def test_every_metric_is_shown_unless_one_is_named(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    both = {name: [*NLI.get(name, []), *E2E.get(name, [])] for name in RESULT_TABLES if name != "samples"}
    folder = make_run(samples=NLI["samples"], **both)
    pictures = show(ShowRequest(str(folder), "one", picture=str(folder / "p.svg")))
    assert [Path(path).name for path in pictures] == ["p-e2e.svg", "p-nli.svg"]
    assert [line for line in lines_of(capsys) if line.startswith("sample")] == [
        "sample one, metric e2e",
        "sample one, metric nli, system a",
    ]
    assert picture_of(folder, metric="nli") == folder / "p.svg"


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            score(score_low=0.25, score_high=0.75, unjudged=3, status="partial"),
            "score: 0.50, between 0.25 and 0.75 (partial), 2 covered, 2 missing, 3 pairs unjudged",
        ),
        (score(dropped=1), "score: 0.50 (ok), 2 covered, 2 missing, 1 without a source dropped"),
        (score(score=None, score_low=None, score_high=None, status="no_statements"), "score: none (no_statements)"),
        (
            score(score=None, score_low=0.0, score_high=1.0, status="failed"),
            "score: none, between 0.00 and 1.00 (failed)",
        ),
    ],
)
def test_the_score_is_shown_with_its_bounds_and_status(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], row: dict[str, Any], line: str
) -> None:
    assert show(ShowRequest(str(make_run(scores=[row])), "one")) == []
    assert line in lines_of(capsys)


def test_a_failed_sample_shows_its_failures_and_has_no_picture(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {"sample_id": "one", "metric": "nli", "stage": "extract_atoms", "error_type": "timeout", "error": "late"}
    row = score(score=None, score_low=0.0, score_high=1.0, status="failed")
    rare = {**failed, "error": "later"}
    folder = make_run(scores=[row], failures=[failed, rare, failed])
    assert show(ShowRequest(str(folder), "one", picture=str(folder / "p.svg"))) == []
    lines = lines_of(capsys)
    assert "failed: extract_atoms (3): timeout: late" in lines
    assert lines[-1] == "no picture, because there is nothing to draw"


def test_no_text_of_a_run_reaches_the_terminal_as_control(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J\x9b1mred\x07\rover\nline\u202e\x00"
    tables = {
        "samples": [sample(evil, query=evil)],
        "scores": [score(evil, system=evil, status=evil)],
        "statements": [statement(1, name=evil, text=evil, sources=[evil], members=[evil, evil + "2"])],
        "failures": [{"sample_id": evil, "metric": "nli", "stage": evil, "error_type": evil}],
    }
    show(ShowRequest(str(make_run(**tables)), evil))
    shown = capsys.readouterr().out
    assert shown.count("over line") >= 6
    assert not set(shown) & {"\x1b", "\x9b", "\x07", "\r", "\x00", "\u202e"}


def test_a_terminal_that_lacks_letters_gets_question_marks(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = make_run(scores=[score()], statements=[statement(1, text="Žižek")])
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        show(ShowRequest(str(folder), "one"))
    assert "?i?ek" in (tmp_path / "out").read_text(encoding="ascii")


@pytest.mark.parametrize("name", HOSTILE_IDS, ids=range(len(HOSTILE_IDS)))
def test_no_name_of_a_run_leaves_the_folder_of_the_picture(make_run: MakeRun, name: str, tmp_path: Path) -> None:
    metrics = [f"m/{name}", "nli"]
    folder = make_run(
        scores=[score(name, metric) for metric in metrics],
        statements=[statement(1, metric, name=name) for metric in metrics],
    )
    before = set(tmp_path.rglob("*"))
    pictures = show(ShowRequest(str(folder), name, picture=str(tmp_path / "p.svg")))
    assert set(tmp_path.rglob("*")) - before == set(map(Path, pictures))
    assert {Path(picture).parent for picture in pictures} == {tmp_path}
    assert len(pictures) == 2


def error_of(request: ShowRequest) -> str:
    with pytest.raises(ShowError) as raised:
        show(request)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def test_an_unknown_sample_names_similar_ids(make_run: MakeRun) -> None:
    folder = make_run(scores=[score(f"query-{number:05}-a") for number in range(20_000)])
    assert "did you mean 'query-00012-a'" in error_of(ShowRequest(str(folder), "query-00012"))
    assert "did you mean 'query-00012-a'" in error_of(ShowRequest(str(folder), "QUERY-00012-A"))
    assert "did you mean 'query-19999-a'" in error_of(ShowRequest(str(folder), "19999"))
    assert NEAR_IDS < 20_000
    assert "its ids look like 'query-00000-a', 'query-00001-a'" in error_of(ShowRequest(str(folder), "zzz"))


def test_an_unknown_sample_is_one_line_for_any_ids(make_run: MakeRun) -> None:
    folder = make_run(scores=[score("a\n\x1b[2J" + "b" * 5_000)])
    for name in ("a\nb\udcff", "", "x" * 5_000):
        told = error_of(ShowRequest(str(folder), name))
        assert "\x1b" not in told
        assert len(told) < 500


def test_an_unknown_metric_names_the_existing_metrics(make_run: MakeRun) -> None:
    assert "the sample was scored by nli" in error_of(ShowRequest(str(make_run(**NLI)), "one", metric="qa"))


def test_a_picture_of_another_ending_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    told = error_of(ShowRequest(str(tmp_path / "no run"), "one", picture="p.gif"))
    assert "p.gif: the name has to end in .svg or .png" in told


def test_an_unwritable_picture_is_reported(make_run: MakeRun, tmp_path: Path) -> None:
    target = str(tmp_path / "no folder" / "p.svg")
    assert f"{target} cannot be written" in error_of(ShowRequest(str(make_run(**NLI)), "one", picture=target))


def test_a_run_that_has_not_ended_is_refused(make_run: MakeRun) -> None:
    assert "has not ended" in error_of(ShowRequest(str(make_run("running", **NLI)), "one"))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRunError, match=r"no manifest\.json"):
        show(ShowRequest(str(tmp_path), "one"))


def test_neutral_pairs_change_no_picture(make_run: MakeRun, tmp_path: Path) -> None:
    pairs = [relation(first, second, "neutral") for first in ("c1", "c4", "r") for second in ("c3", "c4", "r")]
    folder = make_run(**NLI)
    first = picture_of(folder).read_bytes()
    table = pa.Table.from_pylist([*pairs, *NLI["relations"]], RELATIONS)
    pq.write_table(table, folder / "relations" / "part-0.parquet")
    assert picture_of(folder).read_bytes() == first
