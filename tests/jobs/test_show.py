from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from untold.jobs.results import UnreadableRunError
from untold.jobs.show import NEAR_IDS, ShowError, ShowRequest, picture_name, show
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
    contexts = [{"id": "1", "text": "The first context."}, {"id": "2", "text": "The second."}]
    return {"sample_id": name, "query": "How high?", "response": "High.", "contexts": contexts, **others}


def score(name: str = "one", metric: str = "nli", **others: Any) -> dict[str, Any]:
    bounds = {"score": 0.5, "score_low": 0.5, "score_high": 0.5}
    return {"sample_id": name, "metric": metric, **bounds, "covered": 2, "uncovered": 2, "status": "ok"} | others


def statement(number: int, metric: str = "nli", *, name: str = "one", **others: Any) -> dict[str, Any]:
    """The first two are missing, the second of them the basis; the others are covered."""
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


def test_what_is_missing_comes_first_with_the_basis_marked(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    (picture,) = show(ShowRequest(str(make_run(**NLI)), "one"))
    assert lines_of(capsys) == [
        "sample one, metric nli, system a",
        "query: How high?",
        "score: 0.50 (ok), 2 covered, 2 missing",
        "",
        "missing: 2 statements; the 1 marked * would make up for all",
        "*   1  Statement 2.",
        "       contexts: 1",
        "    2  Statement 1.",
        "       contexts: 1",
        "",
        "covered: 2 statements",
        "    3  Statement 3.",
        "       contexts: 1",
        "    4  Statement 4.",
        "       contexts: 1",
        "",
        f"picture: {picture}",
    ]


def test_the_picture_lies_in_the_run_and_has_the_numbers_of_the_terminal(make_run: MakeRun) -> None:
    folder = make_run(**NLI)
    (picture,) = show(ShowRequest(str(folder), "one"))
    assert Path(picture) == folder / "pictures" / "one-nli.svg"
    shown = texts_of(picture)
    assert all(f"Statement {number}." in shown for number in (1, 2, 3, 4))
    assert "Atom r." in shown
    assert "Atom c1." not in shown


def test_the_raw_picture_shows_atoms(make_run: MakeRun) -> None:
    (picture,) = show(ShowRequest(str(make_run(**NLI)), "one", raw=True))
    assert picture.endswith("one-nli-raw.svg")
    assert "Atom c1." in texts_of(picture)


def test_a_picture_goes_where_it_is_asked_to(make_run: MakeRun, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.png"
    assert show(ShowRequest(str(make_run(**NLI)), "one", picture=str(target))) == [str(target)]
    assert target.read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "run" / "pictures").exists()


def test_the_same_sample_gives_the_same_picture(make_run: MakeRun) -> None:
    request = ShowRequest(str(make_run(**NLI)), "one")
    (picture,) = show(request)
    first = Path(picture).read_bytes()
    show(request)
    assert Path(picture).read_bytes() == first


def test_other_texts_of_a_statement_stand_below_it(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    statements = [statement(3, members=["Statement 3.", "The third."], sources=["1", "2"])]
    show(ShowRequest(str(make_run(scores=[score()], statements=statements)), "one"))
    lines = lines_of(capsys)
    at = lines.index("    1  Statement 3.")
    assert lines[at + 1 : at + 3] == ["       contexts: 1, 2", "       also: The third."]


def test_e2e_has_no_basis_and_draws_contexts(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    (picture,) = show(ShowRequest(str(make_run(**E2E)), "one"))
    lines = lines_of(capsys)
    assert "missing: 1 statement" in lines
    assert not any(line.startswith("*") for line in lines)
    assert "e2e has no fact graph: the picture shows which contexts state what" in lines
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
    assert len(show(ShowRequest(str(folder), "one", metric="nli"))) == 1


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
def test_the_score_stands_with_its_bounds_and_status(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], row: dict[str, Any], line: str
) -> None:
    assert show(ShowRequest(str(make_run(scores=[row])), "one")) == []
    assert line in lines_of(capsys)


def test_a_failed_sample_says_what_failed_and_draws_nothing(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {"sample_id": "one", "metric": "nli", "stage": "extract_atoms", "error_type": "timeout", "error": "late"}
    row = score(score=None, score_low=0.0, score_high=1.0, status="failed")
    assert show(ShowRequest(str(make_run(scores=[row], failures=[failed, failed])), "one")) == []
    lines = lines_of(capsys)
    assert "failed: extract_atoms: timeout (2)" in lines
    assert lines[-1] == "no picture: there is nothing to draw"


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
def test_no_sample_id_leaves_the_folder_of_pictures(make_run: MakeRun, name: str, tmp_path: Path) -> None:
    folder = make_run(scores=[score(name)], statements=[statement(1, name=name)])
    before = set(tmp_path.rglob("*"))
    (picture,) = show(ShowRequest(str(folder), name))
    assert set(tmp_path.rglob("*")) - before == {folder / "pictures", Path(picture)}
    assert Path(picture).parent == folder / "pictures"
    assert len(Path(picture).name) < 120


def test_picture_names_differ_where_ids_do() -> None:
    names = [picture_name(name, metric) for name in (*HOSTILE_IDS, "a_b", "plain") for metric in ("nli", "n/li")]
    assert len(set(names)) == len(names)
    assert picture_name("plain", "nli") == "plain-nli.svg"


def error_of(request: ShowRequest) -> str:
    with pytest.raises(ShowError) as raised:
        show(request)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def test_an_unknown_sample_names_those_that_are_near(make_run: MakeRun) -> None:
    folder = make_run(scores=[score(f"query-{number:05}-a") for number in range(20_000)])
    assert "did you mean 'query-00012-a'" in error_of(ShowRequest(str(folder), "query-00012"))
    assert "did you mean 'query-00012-a'" in error_of(ShowRequest(str(folder), "QUERY-00012-A"))
    assert "did you mean 'query-19999-a'" in error_of(ShowRequest(str(folder), "19999"))
    assert NEAR_IDS < 20_000
    assert "its ids look like 'query-00000-a', 'query-00001-a'" in error_of(ShowRequest(str(folder), "zzz"))


def test_an_unknown_sample_is_one_line_whatever_the_ids(make_run: MakeRun) -> None:
    folder = make_run(scores=[score("a\n\x1b[2J" + "b" * 5_000)])
    for name in ("a\nb\udcff", "", "x" * 5_000):
        told = error_of(ShowRequest(str(folder), name))
        assert "\x1b" not in told
        assert len(told) < 500


def test_an_unknown_metric_names_those_there_are(make_run: MakeRun) -> None:
    assert "the sample was scored by nli" in error_of(ShowRequest(str(make_run(**NLI)), "one", metric="qa"))


def test_a_picture_of_another_ending_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    told = error_of(ShowRequest(str(tmp_path / "no run"), "one", picture="p.gif"))
    assert "p.gif: the name has to end in .svg or .png" in told


def test_a_picture_that_cannot_be_written_is_told(make_run: MakeRun, tmp_path: Path) -> None:
    target = str(tmp_path / "no folder" / "p.svg")
    assert f"{target}: cannot be written" in error_of(ShowRequest(str(make_run(**NLI)), "one", picture=target))


def test_a_run_that_has_not_ended_is_refused(make_run: MakeRun) -> None:
    assert "has not ended" in error_of(ShowRequest(str(make_run("running", **NLI)), "one"))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRunError, match=r"no manifest\.json"):
        show(ShowRequest(str(tmp_path), "one"))


def test_neutral_pairs_change_no_picture(make_run: MakeRun, tmp_path: Path) -> None:
    pairs = [relation(first, second, "neutral") for first in ("c1", "c4", "r") for second in ("c3", "c4", "r")]
    folder = make_run(**NLI)
    (picture,) = show(ShowRequest(str(folder), "one"))
    first = Path(picture).read_bytes()
    table = pa.Table.from_pylist([*pairs, *NLI["relations"]], RELATIONS)
    pq.write_table(table, folder / "relations" / "part-0.parquet")
    show(ShowRequest(str(folder), "one"))
    assert Path(picture).read_bytes() == first
