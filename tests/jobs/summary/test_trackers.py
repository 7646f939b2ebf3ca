"""Scores for tools that show traces: files in their formats, and sends to a server on loopback that misbehaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.jobs.test_export import write_run
from tests.runs.harness import clean_environment
from untold import open_run
from untold.jobs.cli.main import main
from untold.jobs.export import CALLS_PER_SECOND, export, send
from untold.jobs.summary import trackers
from untold.jobs.summary.trackers import ID, TRACKERS, TrackedScore, TrackerClient, send_scores
from untold.udfs.errors import UserError

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "a-secret-of-the-tool"
VARIABLES = {
    "langfuse": ("LANGFUSE_BASE_URL", {"LANGFUSE_PUBLIC_KEY": "public", "LANGFUSE_SECRET_KEY": SECRET}),
    "phoenix": ("PHOENIX_ENDPOINT", {"PHOENIX_API_KEY": SECRET}),
    "mlflow-traces": ("MLFLOW_TRACKING_URI", {"MLFLOW_TRACKING_TOKEN": SECRET}),
    "otlp": ("OTEL_EXPORTER_OTLP_ENDPOINT", {"OTEL_EXPORTER_OTLP_HEADERS": f"x-key={SECRET}"}),
}


def closed(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others. A `?` marks an optional one."""
    names = {name.rstrip("_"): value for name, value in properties.items()}
    required = [name for name in properties if not name.endswith("_")]
    return {"type": "object", "properties": names, "required": required, "additionalProperties": False}


def many(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": 100}


TEXT, NUMBER, OBJECT = {"type": "string", "minLength": 1}, {"type": "number"}, {"type": "object"}
INSTANT = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:\d\d)$"}
RESULT = closed(label_=TEXT, score_=NUMBER, explanation_=TEXT)
ANNOTATION = {"name": TEXT, "annotator_kind": {"enum": ["LLM", "CODE", "HUMAN"]}, "result": RESULT}
ANNOTATION |= {"metadata_": OBJECT, "identifier_": TEXT}
HEX = {digits: {"type": "string", "pattern": f"^(?!0+$)[0-9a-f]{{{digits}}}$"} for digits in (len(SPAN), len(TRACE))}
ANY_VALUE = {"oneOf": [closed(stringValue={"type": "string"}), closed(doubleValue=NUMBER)]}
ATTRIBUTES = {"type": "array", "items": closed(key=TEXT, value=ANY_VALUE)}
NANOSECONDS = {"type": "string", "pattern": r"^\d+$"}
# By hand from: langfuse 5.0.4, api/scores/types/create_score_request.py; arize-phoenix-client 3.5.0,
# __generated__/v1 (SpanAnnotationData, TraceAnnotationData, AnnotationResult); mlflow 3.17.2, protos/assessments.proto;
# opentelemetry-proto 1.45.2, trace/v1/trace.proto, in the JSON of the OTLP specification (ids are hexadecimal)
SCHEMAS = {
    "langfuse": many(
        closed(
            id_=TEXT,
            traceId_=TEXT,
            observationId_=TEXT,
            name=TEXT,
            value={"type": ["number", "string"]},
            dataType_={"enum": ["NUMERIC", "CATEGORICAL", "BOOLEAN", "TEXT", "CORRECTION"]},
            comment_={"type": "string"},
            metadata_=OBJECT,
            timestamp_=INSTANT,
        )
    ),
    "phoenix": {
        "oneOf": [
            closed(data=many(closed(span_id=TEXT, **ANNOTATION))),
            closed(data=many(closed(trace_id=TEXT, **ANNOTATION))),
        ]
    },
    "mlflow-traces": closed(
        assessment=closed(
            assessment_name=TEXT,
            trace_id=TEXT,
            span_id_=TEXT,
            source=closed(source_type={"enum": ["HUMAN", "LLM_JUDGE", "CODE"]}, source_id=TEXT),
            create_time=INSTANT,
            last_update_time=INSTANT,
            feedback=closed(value_={}, error_=closed(error_code=TEXT, error_message=TEXT)),
            rationale_=TEXT,
            metadata_={"type": "object", "additionalProperties": {"type": "string"}},
        )
    ),
    "otlp": closed(
        resourceSpans=many(
            closed(
                resource=closed(attributes=ATTRIBUTES),
                scopeSpans=many(
                    closed(
                        scope=closed(name=TEXT),
                        spans=many(
                            closed(
                                traceId=HEX[32],
                                spanId=HEX[16],
                                parentSpanId_=HEX[16],
                                name=TEXT,
                                kind={"enum": [0, 1, 2, 3, 4, 5]},
                                startTimeUnixNano=NANOSECONDS,
                                endTimeUnixNano=NANOSECONDS,
                                attributes=ATTRIBUTES,
                            )
                        ),
                    )
                ),
            )
        )
    ),
}


def score(number: int = 0, **more: Any) -> TrackedScore:
    """Return a score of a sample in the trace `TRACE`."""
    known: dict[str, Any] = {
        "id": trackers.score_id("run", f"s{number}", "nli"),
        "trace": TRACE,
        "span": None,
        "metric": "nli",
        "score": 0.5,
        "low": 0.25,
        "high": 0.75,
        "status": "partial",
        "comment": "status: partial\nmissing:\n- first",
        "started_at": "2026-11-28T10:00:00.25+00:00",
    }
    return TrackedScore(**{**known, **more})


SCORES = [
    score(),
    score(1, span=SPAN),
    score(2, trace="tr-2", score=None, low=None, high=None, status="failed"),
    score(3, trace="tr-2", score=1.0, low=1.0, high=1.0, status="ok"),
]


@pytest.mark.parametrize("name", TRACKERS)
def test_each_line_of_a_file_is_a_body_of_the_tool(tmp_path: Path, name: str) -> None:
    export(open_run(write_run(tmp_path / "run", 130)), name, str(tmp_path / "out"))
    lines = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    bodies = [json.loads(line) for line in lines]
    assert len(bodies) == (260 if name == "mlflow-traces" else 3)
    bodies += [call.body for call in TRACKERS[name].calls_of(SCORES)]
    validator = Draft202012Validator(SCHEMAS[name])
    assert [error.message for body in bodies for error in validator.iter_errors(body)] == []
    assert "first" in lines[0]
    assert "=second" in lines[0]


def test_a_score_of_langfuse() -> None:
    (call,) = TRACKERS["langfuse"].calls_of([SCORES[1], SCORES[2]])
    assert call.path == "/api/public/scores"
    assert call.body[0] == {
        "id": trackers.score_id("run", "s1", "nli"),
        "traceId": TRACE,
        "observationId": SPAN,
        "name": "nli",
        "value": 0.5,
        "dataType": "NUMERIC",
        "comment": "status: partial\nmissing:\n- first",
        "metadata": {"score_low": 0.25, "score_high": 0.75, "status": "partial"},
        "timestamp": "2026-11-28T10:00:00.25+00:00",
    }
    assert (call.body[1]["value"], call.body[1]["dataType"]) == ("failed", "CATEGORICAL")


def test_annotations_of_spans_and_traces_go_to_their_paths() -> None:
    calls = {
        call.path: [one["identifier"] for one in call.body["data"]] for call in TRACKERS["phoenix"].calls_of(SCORES)
    }
    ids = [one.id for one in SCORES]
    assert calls == {
        "/v1/trace_annotations?sync=true": [ids[0], ids[2], ids[3]],
        "/v1/span_annotations?sync=true": [ids[1]],
    }


def test_a_span_of_otlp_is_in_the_trace_of_its_response() -> None:
    (call,) = TRACKERS["otlp"].calls_of(SCORES)
    spans = call.body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [one["traceId"] == TRACE for one in spans] == [True, True, False, False]
    assert spans[2]["traceId"] == spans[3]["traceId"]
    assert [one.get("parentSpanId") for one in spans] == [None, SPAN, None, None]
    assert spans[0]["startTimeUnixNano"] == "1795860000250000000"
    values = {one["key"]: one["value"] for one in spans[2]["attributes"]}
    assert values["gen_ai.evaluation.score.label"] == {"stringValue": "failed"}
    assert "gen_ai.evaluation.score.value" not in values


def test_the_table_of_wandb(tmp_path: Path) -> None:
    export(open_run(write_run(tmp_path / "run", 3)), "wandb", str(tmp_path / "scores.table.json"))
    table = json.loads((tmp_path / "scores.table.json").read_text(encoding="utf-8"))
    assert table["columns"] == ["trace", "metric", "score", "score_low", "score_high", "status", "comment"]
    assert table["data"][:2] == [
        ["s00000", "e2e", 0.5, 0.25, 0.75, "partial", "status: partial\nmissing:\n- first\n- =second"],
        ["s00000", "qa", None, None, None, "failed", "status: failed"],
    ]
    assert len(table["data"]) == 6


class ToolServer:
    """A server of all tools, with their rules for ids. `faults` are the first responses: a status or `close`."""

    def __init__(self) -> None:
        self.faults: list[Any] = []
        self.records: dict[str, Any] = {}
        self.calls: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def respond(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                server.calls.append((self.command, self.path))
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
                fault = server.faults.pop(0) if server.faults else None
                if fault == "close":
                    # A response that ends early: the call may have worked
                    server.store(self.command, self.path, body)
                    self.close_connection = True
                    self.connection.close()
                    return
                status, more = fault if isinstance(fault, tuple) else (fault or 200, {})
                answer = server.store(self.command, self.path, body) if status < 300 else {"error": SECRET}
                data = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **more}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = respond  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def store(self, method: str, path: str, body: Any) -> Any:
        """Store the records of a call as the tool does: an equal id replaces a record, except in MLflow."""
        if "/mlflow/" in path:
            return self._assessment(method, path, body)
        if isinstance(body, list):
            self.records |= {one["id"]: one for one in body}
        elif "data" in body:
            self.records |= {(one["name"], one["identifier"]): one for one in body["data"]}
        else:
            spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
            self.records |= {(one["traceId"], one["spanId"]): one for one in spans}
        return {}

    def _assessment(self, method: str, path: str, body: Any) -> Any:
        """MLflow chooses the ids and adds fields. A second creation is a second assessment."""
        if method == "GET":
            trace = path.rpartition("/")[2]
            known = [one for one in self.records.values() if one["trace_id"] == trace]
            return {"trace": {"trace_info": {"trace_id": trace, "assessments": known}}}
        name = path.rpartition("/")[2] if method == "PATCH" else f"a-{len(self.records)}"
        added = {"assessment_id": name, "valid": True}
        self.records[name] = {**body["assessment"], **added}
        self.records[name]["metadata"] = {**body["assessment"]["metadata"], "mlflow.added": "x"}
        return {"assessment": self.records[name]}


@pytest.fixture
def tool() -> Iterator[ToolServer]:
    server = ToolServer()
    yield server
    server.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the waits of clients instead of waiting."""
    found: list[float] = []
    monkeypatch.setattr(TrackerClient.__init__, "__defaults__", ((), found.append))
    return found


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tool: ToolServer) -> None:
    for address, secrets in VARIABLES.values():
        for name, value in {address: tool.url, **secrets}.items():
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", TRACKERS)
@pytest.mark.usefixtures("keys", "waits")
def test_a_second_send_changes_nothing(
    tmp_path: Path, tool: ToolServer, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(write_run(tmp_path / "run", 60)), "--to", name, "--send", "--rate", "1000"]
    assert main(words) == 0
    records = json.dumps(list(tool.records.values()))
    assert len(tool.records) == 120
    assert main(words) == 0
    assert json.dumps(list(tool.records.values())) == records
    out, err = capsys.readouterr()
    assert f"sent to {name} at {tool.url}" in out
    assert SECRET not in out + err + records
    assert all(SECRET in json.dumps(one) or "Basic " in one["authorization"] for one in tool.headers)


@pytest.mark.parametrize("name", TRACKERS)
@pytest.mark.usefixtures("keys")
def test_a_tool_that_misbehaves_gets_all_scores(tool: ToolServer, name: str, waits: list[float]) -> None:
    tool.faults = [(429, {"Retry-After": "7"}), 500, "close", 503]
    tracker = TRACKERS[name]
    client = TrackerClient(tracker.address(os.environ), tracker.headers(os.environ), 1e6)
    send_scores(name, SCORES, client)
    assert len(tool.records) == len(SCORES)
    assert [wait for wait in waits if wait >= 1] == [7.0, 2.0, 4.0, 8.0]


@pytest.mark.usefixtures("waits")
def test_a_lost_response_creates_no_second_assessment(tool: ToolServer) -> None:
    tool.faults = [None, "close", 500]
    assert send_scores("mlflow-traces", SCORES[:1], TrackerClient(tool.url, {}, 1e6)) == 1
    assert len(tool.records) == 1
    assert send_scores("mlflow-traces", SCORES[:1], TrackerClient(tool.url, {}, 1e6)) == 0
    changed = score(score=0.75)
    assert send_scores("mlflow-traces", [changed], TrackerClient(tool.url, {}, 1e6)) == 1
    (record,) = tool.records.values()
    assert (record["feedback"], record["metadata"][ID]) == ({"value": 0.75}, changed.id)


def test_a_slow_tool_and_no_tool_are_one_line(
    tool: ToolServer, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setattr(trackers, "MOST_ATTEMPTS", 2)
    monkeypatch.setattr(trackers, "SECONDS", 0.2)
    stored = tool.store
    monkeypatch.setattr(tool, "store", lambda *given: __import__("time").sleep(0.5) or stored(*given))
    with pytest.raises(UserError, match=r"cannot send to http://127\.0\.0\.1:\d+/v1/traces: timed out"):
        send_scores("otlp", SCORES, TrackerClient(tool.url, {}, 1e6))
    with pytest.raises(UserError, match="Connection refused"):
        send_scores("otlp", SCORES, TrackerClient("http://127.0.0.1:9", {}, 1e6))
    assert [wait for wait in waits if wait >= 1] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (401, "refused the scores with status 401. Check the key in LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY"),
        (404, "status 404. Check that the tool has the traces"),
        ((302, {"Location": "http://127.0.0.1:9/"}), "status 302"),
    ],
)
@pytest.mark.usefixtures("keys", "waits")
def test_a_refusal_is_one_line_without_keys(
    tmp_path: Path, tool: ToolServer, capsys: pytest.CaptureFixture[str], fault: Any, message: str
) -> None:
    """The body of a refusal can repeat a key."""
    tool.faults = [fault]
    url = tool.url.replace("http://", f"http://user:{SECRET}@")
    words = ["export", str(write_run(tmp_path / "run")), "--to", "langfuse", "--send"]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert message in error
    assert SECRET not in error
    assert len(tool.calls) == 1
    assert main([*words[:3], "phoenix", "--send", "--url", url]) in (0, 1)
    out, err = capsys.readouterr()
    assert SECRET not in out + err


@pytest.mark.usefixtures("waits")
def test_a_rejected_part_is_an_error(tool: ToolServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "store", lambda *_: {"accepted": 3, "rejected": 1, "errors": [{"message": "m"}]})
    with pytest.raises(UserError, match="langfuse rejected 1 of 4 scores"):
        send_scores("langfuse", SCORES, TrackerClient(tool.url, {}, 1e6))


def test_calls_keep_the_rate(tool: ToolServer, waits: list[float]) -> None:
    client = TrackerClient(tool.url, {}, CALLS_PER_SECOND)
    for call in list(TRACKERS["otlp"].calls_of(SCORES)) * 5:
        client.send("POST", call.path, call.body)
    assert sum(waits) > 3.0 / CALLS_PER_SECOND


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "csv", "--send"], "--send needs --to with one of langfuse, phoenix, mlflow-traces, otlp, wandb"),
        (["--to", "otlp", "--url", "http://x"], "--url and --rate need --send"),
        (["--to", "otlp", "--send", "--rate", "0"], "must be a number above 0"),
    ],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        main(["export", str(write_run(tmp_path / "run")), *words])
    assert message in capsys.readouterr().err


def test_langfuse_without_a_key_gets_no_call(
    tmp_path: Path, tool: ToolServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default address is on the internet, and the comments of scores are texts of the run."""
    words = ["export", str(write_run(tmp_path / "run")), "--to", "langfuse", "--send", "--url", tool.url]
    assert main(words) == 1
    line = "untold: langfuse needs its keys. Set LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY\n"
    assert (capsys.readouterr().err, tool.calls) == (line, [])


def test_an_address_of_a_database_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///track.db")
    with pytest.raises(UserError, match=r"not an address of HTTP\. Set --url or MLFLOW_TRACKING_URI"):
        send(open_run(write_run(tmp_path / "run")), "mlflow-traces")


def test_a_run_of_wandb_has_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test with a test double for the package."""
    known: dict[str, Any] = {}

    class Logged:
        summary: dict[str, float] = {}  # noqa: RUF012

        def log_artifact(self, artifact: Any) -> None:
            known["artifact"] = artifact

        def finish(self) -> None:
            known["finished"] = True

    class Artifact:
        def __init__(self, name: str, type: str) -> None:
            self.name, self.type, self.tables = name, type, dict[str, Any]()

        def add(self, table: Any, name: str) -> None:
            self.tables[name] = table

    def init(**given: Any) -> Logged:
        known.setdefault("ids", []).append((given["id"], given["resume"]))
        return Logged()

    module: Any = ModuleType("wandb")
    module.init, module.Artifact, module.Table = init, Artifact, SimpleNamespace
    run = open_run(write_run(tmp_path / "run"))
    with pytest.raises(UserError, match="needs wandb: pip install wandb"):
        send(run, "wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr("untold.jobs.export.find_spec", lambda _: True)
    assert send(run, "wandb") == send(run, "wandb")
    assert known["ids"][0] == known["ids"][1]
    assert known["ids"][0][1] == "allow"
    assert len(known["artifact"].tables["scores"].data) == 6
    assert Logged.summary["e2e.mean"] == 0.5
    assert known["finished"]


CHECK = """
import json, sys
from google.protobuf.json_format import Parse
from langfuse.api.core.serialization import convert_and_respect_annotation_metadata
from langfuse.api.scores.types.create_score_request import CreateScoreRequest
from mlflow.entities import Feedback
from mlflow.protos.service_pb2 import CreateAssessment
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from phoenix.client.__generated__ import v1
import wandb

def read(name):
    with open(f"{sys.argv[1]}/{name}", encoding="utf-8") as file:
        return [json.loads(line) for line in file]

for body in read("langfuse"):
    for one in body:
        plain = convert_and_respect_annotation_metadata(object_=one, annotation=CreateScoreRequest, direction="read")
        known = CreateScoreRequest.model_validate(plain)
        assert (known.trace_id, known.model_extra) == (one["traceId"], {}), known.model_extra
for body in read("phoenix"):
    for one in body["data"]:
        unknown = set(one) - set(v1.TraceAnnotationData.__annotations__)
        assert not unknown, unknown
        assert not set(one["result"]) - set(v1.AnnotationResult.__annotations__)
for body in read("mlflow-traces"):
    message = Parse(json.dumps(body), CreateAssessment())
    assert Feedback.from_proto(message.assessment).metadata["status"]
for body in read("otlp"):
    message = Parse(json.dumps(body), ExportTraceServiceRequest())
    assert message.resource_spans[0].scope_spans[0].spans[0].attributes
with open(f"{sys.argv[1]}/wandb", encoding="utf-8") as file:
    table = json.load(file)
assert len(wandb.Table(columns=table["columns"], data=table["data"]).data) == 6
print("valid")
"""


@pytest.mark.slow
def test_files_are_valid_for_the_packages_of_the_tools(tmp_path: Path) -> None:
    packages = [
        "langfuse>=5,<6",
        "arize-phoenix-client>=3,<4",
        "mlflow-skinny>=3.17,<4",
        "opentelemetry-proto",
        "wandb",
    ]
    library = tmp_path / "library"
    line = [sys.executable, "-m", "uv", "--quiet", "pip", "install", "--target", str(library), *packages]
    subprocess.run(line, check=True, capture_output=True)
    run = open_run(write_run(tmp_path / "run"))
    for name in (*TRACKERS, "wandb"):
        export(run, name, str(tmp_path / name))
    environment = {**clean_environment(), "PYTHONPATH": str(library)}
    checked = subprocess.run(
        [sys.executable, "-c", CHECK, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert checked.stdout.splitlines()[-1:] == ["valid"], checked.stderr
