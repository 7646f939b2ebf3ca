"""Test the batches of a job with a faulty endpoint, and runs that are killed at any step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.fakes.answers import Said
from tests.fakes.batches import FakeBatches
from tests.fakes.model_server import ModelServer
from tests.fakes.replies import completion_body
from tests.jobs.inference.batched import (
    HOW,
    ROWS,
    Api,
    Endpoint,
    KilledError,
    Row,
    deliver,
    delivery,
    is_whole,
    left_job,
    rows_of,
)
from tests.udfs.llm.askers import SETTINGS, STAGE, requests
from untold.jobs.inference.backends import batch_jobs
from untold.jobs.inference.backends.batch_jobs import Batch, Part, Watch
from untold.jobs.inference.backends.batch_submission import BatchSubmitter
from untold.udfs.llm.batch_api import BatchError, BatchStatus, Host, HostedBatches, Sent
from untold.udfs.llm.calls import Answer
from untold.udfs.llm.limiter import Budget
from untold.udfs.llm.responses import read_status


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


DEEDS = st.fixed_dictionaries(
    {},
    optional={
        "expire": st.sampled_from([0.0, 0.4]),
        "twice": st.just(True),
        "cut": st.just(True),
        "shuffle": st.just(True),
        "lost": st.just(True),
        "garbage": st.just(1),
        "delay": st.just(0.003),
        "fail": st.just("token_limit_exceeded"),
    },
)


@examples(25)
@given(st.lists(DEEDS, max_size=4), st.lists(st.sampled_from(["", "lost", "fails"]), max_size=4), st.data())
def test_each_request_ends_with_one_row_and_is_not_sent_twice_without_need(
    root: Path, deeds: list[Row], uploads: list[str], data: st.DataObject
) -> None:
    """A request is sent twice only if its result was lost in a damaged file. All other requests are sent once."""
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint, deeds, uploads)
    for dies in data.draw(st.lists(st.sampled_from([place / 2 for place in range(2, 30)]), max_size=4)):
        with suppress(KilledError):
            if job.is_open:
                deliver(job, Api(fake, dies=dies))
    while job.is_open:
        assert deliver(job, Api(fake)).reason in (None, "outage")
    assert is_whole(job)
    lost = sum(bool(deed.get("cut") or deed.get("garbage")) for deed in deeds)
    assert max(endpoint.asked.values()) <= 1 + lost
    assert job.ledger().batches == ()


@pytest.mark.parametrize("place", [number / 2 for number in range(2, 38)])
def test_a_kill_before_and_after_each_call_costs_nothing(root: Path, place: float) -> None:
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint)
    with pytest.raises(KilledError):
        deliver(job, Api(fake, dies=place))
    assert deliver(job, Api(fake)).reason is None
    assert is_whole(job)
    assert set(endpoint.asked.values()) == {1}
    assert (len(fake.files), len(fake.made)) == (3, 3)
    used = job.ledger().used
    assert (used.calls, used.asked, used.prompt_tokens) == (ROWS, ROWS, 7 * ROWS)


@pytest.mark.parametrize("poll", [True, False])
def test_a_batch_that_lists_do_not_show_yet_is_not_created_again(root: Path, poll: bool) -> None:
    how = HOW.model_copy(update={"settle_seconds": 5.0})
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint, [{"lost": True, "lag": 0.2}])
    while job.is_open:
        assert deliver(job, Api(fake), how, poll=poll).reason in (None, "batched")
    assert is_whole(job)
    assert set(endpoint.asked.values()) == {1}
    assert len(fake.made) == 3


def test_a_batch_that_does_not_appear_is_created_again_after_the_settle_time(root: Path) -> None:
    how = HOW.model_copy(update={"settle_seconds": 0.3})
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint)
    with pytest.raises(KilledError):
        deliver(job, Api(fake, dies=2.0), how)
    assert deliver(job, Api(fake), how, poll=False).reason == "batched"
    # The other batches continue in the meantime
    assert ([batch.id for batch in job.ledger().batches], len(fake.made)) == ([None], 2)
    sleep(0.3)
    # This also holds if each run polls only once
    assert deliver(job, Api(fake), how, poll=False).reason is None
    assert is_whole(job)


def test_a_creation_that_was_refused_need_not_settle(root: Path) -> None:
    class Refusing(Api):
        def create(self, sent: Sent) -> BatchStatus:
            raise BatchError(read_status(401, b"{}", {}))

    how = HOW.model_copy(update={"settle_seconds": 60.0})
    job, fake = left_job(root), FakeBatches(Endpoint())
    assert deliver(job, Refusing(fake), how).reason == "refused"
    assert deliver(job, Api(fake), how).reason is None
    assert is_whole(job)


@pytest.mark.parametrize("what", ["upload", "create", "look"])
def test_an_endpoint_gets_no_calls_during_its_pause(root: Path, what: str) -> None:
    times: list[float] = []

    class Busy(Api):
        def _call(self, act: Callable[[], Any]) -> Any:
            times.append(monotonic())
            return super()._call(act)

    api, job = Busy(FakeBatches(Endpoint(), delay=0.01)), left_job(root)
    answers = iter([Answer(error_type="http_503", error="HTTP 503", retry_after=0.4)])
    act = getattr(api, what)
    busy_at = float("inf")

    def refuse(*given: Any) -> Any:
        nonlocal busy_at
        if (answer := next(answers, None)) is not None:
            busy_at = monotonic()
            raise BatchError(answer)
        return act(*given)

    setattr(api, what, refuse)
    assert deliver(job, api).reason is None
    assert is_whole(job)
    assert busy_at < times[-1]
    assert not [one for one in times if busy_at <= one < busy_at + 0.4]


def test_uploads_that_hang_neither_end_a_run_nor_are_doubled(server: ModelServer, tmp_path: Path) -> None:
    server.configure(batches={"uploads": ["hung", "hangs"]})
    job = left_job(tmp_path, base_url=server.base_url, timeout=0.5)
    with closing(HostedBatches(job.read().settings, Host())) as api:
        assert deliver(job, api).reason is None
        ids = [file.id for file in api._client.files.list()]
    assert is_whole(job)
    assert server.count() == ROWS
    # Three batches and three files: the first upload was found on the server, and the second upload was repeated
    assert len([one for one in server.arrivals() if one.path == "/v1/batches" and one.status == 200]) >= 3
    assert len(set(ids)) == 3


def test_files_are_kept_on_request_and_a_failed_removal_is_one_line(root: Path) -> None:
    class Keeping(Api):
        def remove(self, file: str) -> None:
            raise BatchError(read_status(403, b"{}", {}))

    fake = FakeBatches(Endpoint())
    assert deliver(left_job(root, keep_files=True), Api(fake)).reason is None
    assert fake.removed == []
    started, notes = delivery(left_job(root), Keeping(fake))
    assert started.run().reason is None
    assert "file file-4 stays at the endpoint: HTTP 403" in notes


def test_what_a_killed_start_has_not_removed_is_removed_by_the_next(root: Path) -> None:
    job, fake = left_job(root), FakeBatches(Endpoint())
    places = iter(number / 2 for number in range(2, 60))
    while not job.ledger().leftovers:
        job, fake = left_job(root), FakeBatches(Endpoint())
        with suppress(KilledError):
            deliver(job, Api(fake, dies=next(places)))
    assert deliver(job, Api(fake)).reason is None
    assert sorted(fake.removed) == sorted([*fake.files, *(f"output-{name}" for name in fake.made)])


def test_without_polling_a_start_looks_once(root: Path) -> None:
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint, delay=60.0)
    assert deliver(job, Api(fake), poll=False).reason == "batched"
    interrupted, notes = delivery(job, Api(fake), stopped="interrupted")
    assert interrupted.run().reason == "interrupted"
    assert notes == ["these batches continue, and the next start reads their completions: batch_1, batch_2, batch_3"]
    assert (len(fake.made), len(job.ledger().in_flight), rows_of(job)) == (3, 3, [])
    for batch in fake.made.values():
        batch.until = 0.0
    assert deliver(job, Api(fake), poll=False).reason is None
    assert is_whole(job)


def test_without_submitting_results_are_read_and_other_requests_are_returned(root: Path) -> None:
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint, [{}, {"expire": 0.5, "delay": 60.0}])
    assert deliver(job, Api(fake), poll=False).reason == "batched"
    fake.made["batch_2"].until = 0.0
    assert deliver(job, Api(fake), submit=False).reason is None
    assert (len(rows_of(job)), len(fake.made)) == (ROWS - 2, 3)
    # The request is not in a batch any longer, so another job can send it
    assert (job.ledger().batches, job.ledger().pool) == ((), ())
    assert pq.read_table(job.pending()).num_rows == 0


def test_a_ledger_of_an_earlier_version_is_read(root: Path) -> None:
    """The old ledger has a number of rows in place of a pool, and the rows of a batch in place of its parts."""
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint, delay=60.0)
    with pytest.raises(KilledError):
        deliver(job, Api(fake, dies=4.5))
    path = Path(str(job.place)) / "batches.json"
    ledger = json.loads(path.read_text())
    del ledger["pool"]
    batches = [batch | batch.pop("parts")[0] for batch in ledger["batches"]]
    # The second batch has only some of its rows
    batches[1]["requests"] = 1
    job.write_rest("000002", {"r0005": {"attempts": 1}})
    for batch in batches:
        batch["part"] = batch.pop("rest") is not None or batch["name"] == "000002"
    path.write_text(json.dumps({**ledger, "batches": batches, "cut": 8}))
    first, second = job.ledger().batches
    assert (first.id, first.parts) == ("batch_1", (Part(0, 4),))
    assert (second.id, second.parts, job.ledger().pool) == (None, (Part(4, 8, "000002"),), (Part(8, ROWS),))
    assert pq.read_table(job.pending())["request_id"].to_pylist() == ["r0000", "r0001", "r0002", "r0003", "r0005"]
    path.write_text(json.dumps({**ledger, "batches": batches, "cut": ROWS}))
    assert job.ledger().pool == ()
    fake.made["batch_1"].until = fake.delay = 0.0
    assert deliver(job, Api(fake)).reason is None
    assert sorted(row["request_id"] for row in rows_of(job)) == ["r0000", "r0001", "r0002", "r0003", "r0005"]


def test_requests_that_the_endpoint_may_have_are_not_returned(root: Path) -> None:
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint, delay=60.0)
    with pytest.raises(KilledError):
        deliver(job, Api(fake, dies=4.5))
    assert [batch.id for batch in job.ledger().batches] == ["batch_1", None]
    assert deliver(job, Api(fake), submit=False, poll=False).reason == "batched"
    assert [batch.id for batch in job.ledger().batches] == ["batch_1", "batch_2"]
    assert pq.read_table(job.pending())["request_id"].to_pylist() == [one for one, _ in requests(8)]


def test_rows_of_errors_and_filters_are_their_rows_failures(root: Path) -> None:
    good = completion_body({}, True, Said("x"), "stop", (7, 1))
    said = {
        "Text number 1.": lambda _: (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
        "Text number 2.": lambda _: (200, completion_body({}, True, Said(""), "content_filter", (7, 0))),
        "Text number 3.": lambda number: (500, {}) if number < 3 else (500, {"error": "still"}),
        "Text number 4.": lambda number: (429, {}) if number < 3 else (200, good),
        "Text number 5.": lambda _: (404, {"error": {"message": "no"}}),
    }
    job, endpoint = left_job(root), Endpoint(said=said)
    assert deliver(job, Api(FakeBatches(endpoint))).reason is None
    failed = {row["request_id"][-1]: row["error_type"] for row in rows_of(job) if row["error_type"]}
    assert failed == {"1": "http_400", "2": "filtered", "3": "http_500", "5": "http_404"}
    assert (endpoint.asked["Text number 3."], endpoint.asked["Text number 4."]) == (SETTINGS.max_attempts, 3)
    used = job.ledger().used
    assert (used.done, used.failed, used.rate_limited) == (ROWS, 4, 2)


def test_rows_that_fail_without_credit_are_refused_and_sent_again_later(root: Path) -> None:
    empty = (429, {"error": {"code": "insufficient_quota", "message": "no credit"}})
    endpoint = Endpoint(said={f"Text number {number}.": lambda _: empty for number in range(2, ROWS)})
    job, fake = left_job(root), FakeBatches(endpoint)
    outcome = deliver(job, Api(fake))
    assert outcome.reason == "refused"
    assert "insufficient_quota" in str(outcome.error)
    assert "add credit" in str(outcome.error)
    assert sorted(row["request_id"] for row in rows_of(job)) == ["r0000", "r0001"]
    endpoint.said = {}
    assert deliver(job, Api(fake)).reason is None
    assert is_whole(job)
    assert endpoint.asked["Text number 0."] == 1


def test_an_unknown_model_ends_the_run_before_any_row_fails(root: Path) -> None:
    unknown = (404, {"error": {"code": "model_not_found", "message": "no such model"}})
    endpoint = Endpoint(said={f"Text number {number}.": lambda _: unknown for number in range(ROWS)})
    job = left_job(root)
    assert deliver(job, Api(FakeBatches(endpoint))).reason == "refused"
    assert rows_of(job) == []


def test_an_endpoint_whose_queue_is_full_is_sent_less(root: Path) -> None:
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint, delay=0.005, queue=150)
    assert deliver(job, Api(fake)).reason is None
    assert is_whole(job)
    assert set(endpoint.asked.values()) == {1}


def test_a_queue_that_others_fill_is_waited_for_and_grows_again(root: Path) -> None:
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint, [{"fail": "token_limit_exceeded"}] * 5)
    assert deliver(job, Api(fake), poll=False).reason == "batched"
    assert len(fake.files) == 3
    small = job.ledger().queue or 0
    assert small > 0
    assert deliver(job, Api(fake)).reason is None
    assert is_whole(job)
    assert set(endpoint.asked.values()) == {1}
    assert (job.ledger().queue or 0) > small
    # The rest is combined into larger batches and is not sent in single requests
    assert len(fake.made) < 5 + ROWS


def test_a_job_waits_for_the_batches_of_another(root: Path) -> None:
    job = left_job(root)
    other = Batch("000001", (), requests=5, tokens=90, most=120, id="batch_9")
    watch = Watch(lambda: None, lambda _: None, lambda _: None)
    how = HOW.model_copy(update={"queue": 100})
    assert BatchSubmitter(job, job.read(), Api(FakeBatches(Endpoint())), how, watch, [other]).run().reason == "batched"
    # A batch without an id at the endpoint does not use the queue
    waiting = replace(other, id=None)
    assert BatchSubmitter(job, job.read(), Api(FakeBatches(Endpoint())), how, watch, [waiting]).run().reason is None
    assert is_whole(job)


@pytest.mark.parametrize("status", [403, 404, 410])
def test_missing_results_are_requested_again(root: Path, status: int) -> None:
    class Gone(Api):
        def lines(self, file: str) -> Iterable[bytes]:
            if file == "output-batch_1":
                raise BatchError(read_status(status, b"{}", {}))
            return super().lines(file)

    job, endpoint = left_job(root), Endpoint()
    started, notes = delivery(job, Gone(FakeBatches(endpoint)))
    assert started.run().reason is None
    assert is_whole(job)
    assert "batch batch_1 has incomplete results. The missing requests are sent again" in notes
    assert sorted(endpoint.asked.values()) == [1] * (ROWS - 4) + [2] * 4


@pytest.mark.parametrize("kind", ["cut", "html", "broken"])
def test_results_that_come_incomplete_are_downloaded_again_before_they_are_paid_again(root: Path, kind: str) -> None:
    class Stumbling(Api):
        downloads = 0

        def lines(self, file: str) -> Iterable[bytes]:
            self.downloads += 1
            whole = list(super().lines(file))
            if self.downloads > 2:
                yield from whole
            elif kind == "html":
                yield b"<html>Busy</html>"
            else:
                yield from whole[:2]
                if kind == "broken":
                    raise BatchError(Answer(error_type="bad_body", error="the endpoint's answer broke off"))

    job, endpoint = left_job(root), Endpoint()
    assert deliver(job, Stumbling(FakeBatches(endpoint))).reason is None
    assert is_whole(job)
    assert set(endpoint.asked.values()) == {1}


def test_a_line_that_never_comes_fails_its_row(root: Path) -> None:
    class Losing(Api):
        def lines(self, file: str) -> Iterable[bytes]:
            return [line for line in super().lines(file) if b"r0003" not in line]

    job, endpoint = left_job(root), Endpoint()
    assert deliver(job, Losing(FakeBatches(endpoint))).reason is None
    assert {row["request_id"]: row["error_type"] for row in rows_of(job) if row["error_type"]} == {"r0003": "bad_body"}
    assert endpoint.asked["Text number 3."] == SETTINGS.max_attempts


@pytest.mark.parametrize("response", [None, {}, {"status_code": 0, "body": {}}])
def test_an_unsent_line_is_identified_by_its_error(root: Path, response: Any) -> None:
    class Expired(Api):
        def lines(self, file: str) -> Iterable[bytes]:
            found = super().lines(file)
            if file != "output-batch_1":
                return found
            expired = {"response": response, "error": {"code": "batch_expired"}}
            return [json.dumps({**json.loads(line), **expired}).encode() for line in found if line]

    job, endpoint = left_job(root), Endpoint()
    assert deliver(job, Expired(FakeBatches(endpoint))).reason is None
    assert is_whole(job)
    assert job.ledger().used.calls == ROWS


def test_an_outage_counts_from_its_first_fault(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away(Api):
        outages: Iterator[bool] = iter(())

        def look(self, batch: str) -> BatchStatus:
            if next(self.outages, False):
                raise BatchError(Answer(error_type="http_503", error="HTTP 503"))
            return super().look(batch)

    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(batch_jobs, "monotonic", lambda: float(next(clock)))
    for faults, reason in (((False, True, False), None), ((False, True, True), "outage")):
        job, api = left_job(root), Away(FakeBatches(Endpoint(), delay=0.05))
        api.outages = iter(faults)
        assert deliver(job, api, HOW.model_copy(update={"requests": ROWS})).reason == reason


def test_lowered_limits_are_not_a_spent_budget(root: Path) -> None:
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint)
    with pytest.raises(KilledError):
        deliver(job, Api(fake, dies=1.0))
    assert [batch.requests for batch in job.ledger().batches] == [4]
    assert deliver(job, Api(fake), HOW.model_copy(update={"requests": 3})).reason is None
    assert is_whole(job)
    assert max(len(batch.lines) for batch in fake.made.values()) == 3


def test_a_too_large_file_is_an_error_with_the_setting_to_lower(root: Path) -> None:
    class Small(Api):
        def upload(self, name: str, file: IO[bytes]) -> str:
            raise BatchError(read_status(413, b"{}", {}))

    outcome = deliver(left_job(root), Small(FakeBatches(Endpoint())))
    assert (outcome.reason, outcome.error) == ("refused", "HTTP 413; lower batch.requests or batch.bytes")


def test_a_returned_request_is_not_removed_later(root: Path) -> None:
    """This also holds if polling of the submitted batches fails early."""

    class Refusing(Api):
        def look(self, batch: str) -> BatchStatus:
            raise BatchError(read_status(401, b"{}", {}))

    job, fake = left_job(root, budget=Budget(max_calls=4)), FakeBatches(Endpoint(), delay=60.0)
    deliver(job, Api(fake), poll=False)
    assert [(part.first, part.end) for part in job.ledger().pool] == [(4, ROWS)]
    assert deliver(job, Refusing(fake), submit=False, poll=False).reason == "refused"
    assert job.ledger().pool == ()


def test_an_upload_under_another_key_is_that_keys(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stumbling(Api):
        stumbled = False

        def create(self, sent: Sent) -> BatchStatus:
            if not self.stumbled:
                self.stumbled = True
                raise BatchError(Answer(error_type="http_503", error="HTTP 503"))
            return super().create(sent)

    job, fake = left_job(root, api_key_env="A_KEY"), FakeBatches(Endpoint())
    monkeypatch.setenv("A_KEY", "sk-one")
    with pytest.raises(KilledError):
        deliver(job, Api(fake, "sk-one", dies=1.0))
    monkeypatch.setenv("A_KEY", "sk-two")
    assert deliver(job, Stumbling(fake, "sk-two")).reason is None
    assert is_whole(job)
    assert len(fake.made) == 3


def test_a_queue_that_is_known_is_never_full(root: Path) -> None:
    job, endpoint = left_job(root), Endpoint()
    fake = FakeBatches(endpoint, delay=0.005, queue=150)
    assert deliver(job, Api(fake), HOW.model_copy(update={"queue": 100})).reason is None
    assert is_whole(job)
    assert not any("fail" in batch.deeds for batch in fake.made.values())


def test_a_batch_of_another_key_is_passed_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, endpoint = left_job(root, api_key_env="A_KEY"), Endpoint()
    fake = FakeBatches(endpoint, delay=60.0)
    monkeypatch.setenv("A_KEY", "sk-one")
    deliver(job, Api(fake, "sk-one"), poll=False)
    assert b"sk-one" not in (Path(str(job.place)) / "batches.json").read_bytes()
    monkeypatch.setenv("A_KEY", "sk-two")
    assert deliver(job, Api(fake, "sk-two")).reason == "batched"
    assert (len(fake.made), rows_of(job)) == (3, [])
    monkeypatch.setenv("A_KEY", "sk-one")
    for batch in fake.made.values():
        batch.until = 0.0
    assert deliver(job, Api(fake, "sk-one")).reason is None
    assert is_whole(job)


def test_a_batch_that_another_key_may_have_created_is_not_created_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, fake = left_job(root, api_key_env="A_KEY"), FakeBatches(Endpoint())
    monkeypatch.setenv("A_KEY", "sk-one")
    with pytest.raises(KilledError):
        deliver(job, Api(fake, "sk-one", dies=2.5))
    monkeypatch.setenv("A_KEY", "sk-two")
    assert deliver(job, Api(fake, "sk-two")).reason == "batched"
    assert [batch.key for batch in fake.made.values()] == ["sk-one", "sk-two", "sk-two"]
    # A batch that was not uploaded does not belong to a key
    job, fake = left_job(root, api_key_env="A_KEY"), FakeBatches(Endpoint())
    monkeypatch.setenv("A_KEY", "sk-one")
    with pytest.raises(KilledError):
        deliver(job, Api(fake, "sk-one", dies=1.0))
    monkeypatch.setenv("A_KEY", "sk-two")
    assert deliver(job, Api(fake, "sk-two")).reason is None
    assert is_whole(job)


def test_a_run_counts_the_requests_in_flight_of_other_jobs(root: Path) -> None:
    job, endpoint = left_job(root, budget=Budget(max_calls=7)), Endpoint()
    other = Batch("000001", (), requests=5, tokens=10, most=20, id="batch_9")
    watch = Watch(lambda: None, lambda _: None, lambda _: None)
    fake = FakeBatches(endpoint, delay=60.0)
    BatchSubmitter(job, job.read(), Api(fake), HOW, watch, [other]).run(poll=False)
    assert endpoint.asked.total() == 2


def test_requests_in_flight_count_against_the_budget(root: Path) -> None:
    job, endpoint = left_job(root, budget=Budget(max_calls=7)), Endpoint()
    fake = FakeBatches(endpoint, delay=60.0)
    assert deliver(job, Api(fake), poll=False).reason == "batched"
    assert sum(batch.requests for batch in job.ledger().in_flight) == 7
    # Another run also counts these requests
    assert deliver(job, Api(fake), poll=False).reason == "batched"
    assert endpoint.asked.total() == 7
    fake.delay = 0.0
    for batch in fake.made.values():
        batch.until = 0.0
    assert deliver(job, Api(fake)).reason == "budget"
    assert endpoint.asked.total() == len(rows_of(job)) == 7
    assert deliver(job, Api(fake)).reason is None
    assert is_whole(job)


def test_an_unparsable_completion_is_retried_with_words_and_stored_unchanged(root: Path) -> None:
    """The row contains the number of calls and the tokens of all calls after the first, as in a run with calls."""

    def late(number: int) -> tuple[int, Any]:
        text = "" if number < 2 else "a summary"
        return 200, completion_body({}, True, Said(text), "stop", (7, 1))

    job, endpoint = left_job(root), Endpoint(said={"Text number 3.": late})
    fake = FakeBatches(endpoint)
    assert deliver(job, Api(fake)).reason is None
    assert is_whole(job)
    (row,) = [row for row in rows_of(job) if row["request_id"] == "r0003"]
    assert (row["attempts"], row["prompt_tokens"], row["endpoint"]) == (2, 14, "http://host/v1")


def test_a_template_that_cannot_be_filled_in_fails_its_row_and_sends_nothing(root: Path) -> None:
    template = STAGE.template + "{{ 1 / (text | length - 14) }}"
    job = left_job(root, stage=replace(STAGE, template=template.replace("{{ text | tojson }}", "{{ text | tojson }}")))
    outcome = deliver(job, Api(FakeBatches(lambda *_: (400, {}))))
    assert outcome.reason is None
    assert {row["error_type"] for row in rows_of(job)} == {"template"}


def test_an_endpoint_without_batches_is_an_error_with_the_setting(root: Path) -> None:
    class Without(Api):
        def upload(self, name: str, file: IO[bytes]) -> str:
            raise BatchError(read_status(404, b"{}", {}))

    outcome = deliver(left_job(root), Without(FakeBatches(Endpoint())))
    assert (outcome.reason, "set llm.backend to process" in str(outcome.error)) == ("refused", True)
