"""Test `untold trend`: the inputs and outputs, the alerts, and the messages about invalid input."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import untold
from tests.fakes.object_store import BUCKET, ObjectStore
from tests.jobs.summary.test_trends import QUERIES, write_night
from tests.jobs.test_analysis import write_run
from untold.jobs.cli.main import main
from untold.udfs.storage import StoragePath

HIGH, LOW = [0.7, 0.75, 0.8, 0.85] * 4, [0.4, 0.35, 0.45, 0.5] * 4
Ended = tuple[int, str, str]


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    """Write three dates of two systems. The scores of one system are lower on the last date."""
    folder = tmp_path / "nightly"
    for day, values in ((17, HIGH), (18, HIGH), (19, LOW)):
        write_night(folder, day, {"a": HIGH, "=b": values})
    return folder


@pytest.fixture
def trend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    def run(*words: Any) -> Ended:
        code = main(["trend", *map(str, words), "--output", str(tmp_path / "trend")])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_tables_picture_and_json_show_the_changes(nights: Path, tmp_path: Path, trend: Callable[..., Ended]) -> None:
    code, out, err = trend(nights)
    assert (code, err) == (0, "")
    assert "2026-11-19, =b is lower by 0.350 (" in out
    assert "fall: =b under e2e, 2026-11-19, by more than 0.05 beyond chance" in out
    folder = tmp_path / "trend"
    points, changes, moved = (
        pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("trend", "changes", "moved")
    )
    assert next((row["date"], row["mean"]) for row in points if row["system"] == "a") == ("2026-11-17", 0.775)
    assert [(row["system"], row["date"]) for row in changes if row["p_adjusted"] < 0.05] == [("=b", "2026-11-19")]
    assert {(row["date"], row["system"], row["sample_id"][:3]) for row in moved} == {("2026-11-19", "=b", "=b-")}
    with open(folder / "moved.csv", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["system"] == "'=b"
    content = json.loads((folder / "trend.json").read_text(encoding="utf-8"))
    assert [row["system"] for row in content["findings"]] == [row["system"] for row in content["falls"]] == ["=b"]
    assert (folder / "trend.png").read_bytes().startswith(b"\x89PNG")
    # The same call with a glob and JSON output writes into the same folder
    code, out, _ = trend(f"{nights}/2026-*", "--json")
    assert (code, json.loads(out)) == (0, content)


@pytest.mark.parametrize(("fall", "code"), [(0.05, 4), (0.3, 4), (0.34, 0)])
def test_an_alert_is_of_the_upper_end_of_the_interval(
    nights: Path, trend: Callable[..., Ended], fall: float, code: int
) -> None:
    assert trend(nights, "--set", f"trend.fall={fall}")[0] == 0
    assert trend(nights, "--alert", "--set", f"trend.fall={fall}")[0] == code


def test_an_equal_fall_of_all_samples_is_a_fall(tmp_path: Path, trend: Callable[..., Ended]) -> None:
    for day, value in ((17, 0.9), (18, 0.3)):
        write_night(tmp_path / "nightly", day, {"a": [value] * 10})
    assert trend(tmp_path / "nightly", "--alert")[0] == 4


@pytest.fixture
def hook() -> Iterator[tuple[str, list[Any]]]:
    """Start a server that records the requests of the webhook."""
    posted: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", posted
    server.shutdown()
    server.server_close()


def test_an_alert_is_posted_without_any_text(
    nights: Path, trend: Callable[..., Ended], hook: tuple[str, list[Any]]
) -> None:
    address, posted = hook
    words = ("--alert", "--set", f"notify.url={address}")
    assert trend(f"{nights}/2026-11-1[78]", *words)[0] == 0
    assert posted == []
    assert trend(nights, *words)[0] == 4
    (message,) = posted
    assert {name: message[name] for name in ("command", "status", "exit_code")} == {
        "command": "trend",
        "status": "fallen",
        "exit_code": 4,
    }
    assert [row["system"] for row in message["falls"]] == ["=b"]
    assert "What of" not in json.dumps(message)


def test_outputs_that_have_no_part_are_named(nights: Path, tmp_path: Path, trend: Callable[..., Ended]) -> None:
    running = Path(write_run(nights / "2026-11-20", {}).directory) / "manifest.json"
    running.write_text('{"status": "running"}', encoding="utf-8")
    write_run(nights / "2026-11-21", {}, status="budget")
    write_run(nights / "2026-11-22", {})
    (nights / "completions").mkdir()
    write_night(nights, 23, {"a": HIGH}, metric="qa", metrics=["qa"])
    code, _, err = trend(*sorted(nights.iterdir()))
    assert code == 0
    (left_out, *missing) = err.splitlines()
    for told in (
        *("2026-11-20 (it has not ended)", "2026-11-21 (it ended early: budget)"),
        *("2026-11-22 (no scores)", "completions (no output)"),
    ):
        assert f"{nights}/{told}" in left_out
    assert [line.removeprefix("untold: ") for line in missing] == [
        *("e2e: no scores of 2026-11-23", "qa: no scores of 3 dates from 2026-11-17 on")
    ]


def test_no_date_is_an_error_and_one_date_is_a_line(nights: Path, tmp_path: Path, trend: Callable[..., Ended]) -> None:
    code, out, err = trend(tmp_path / "nowhere")
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].endswith(
        "no finished output of untold score has a date. Give outputs of untold nightly: 'nightly/*'"
    )
    code, out, err = trend(nights / "2026-11-17")
    assert code == 0
    assert "2026-11-17 is the only date, so there is no comparison" in err
    assert "no change is more than chance" in out


def test_the_output_of_a_run_is_not_written_into(nights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", str(nights), "--output", str(nights / "2026-11-17")]) == 1
    assert "2026-11-17 belongs to a run; give another --output" in capsys.readouterr().err


def test_an_object_store_has_a_trend_too(nights: Path, object_store: ObjectStore) -> None:
    root = f"s3://{BUCKET}"
    StoragePath(str(nights)).copy(StoragePath(f"{root}/nightly"))
    assert main(["trend", f"{root}/nightly/*", "--output", f"{root}/trend", "--alert"]) == 4
    content = json.loads(object_store.objects["trend/trend.json"])
    assert [(row["system"], row["date"], row["n"]) for row in content["falls"]] == [("=b", "2026-11-19", QUERIES)]
    runs = untold.open_runs(str(nights))
    assert [row["difference"] for row in runs[0].changes(*runs[1:]).to_pylist() if row["system"] == "=b"][-1] == (
        content["falls"][0]["difference"]
    )
