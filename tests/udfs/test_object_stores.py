"""Test object stores that are available, busy, silent or missing, and the settings of their clients."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from tests.fakes.object_store import BUCKET, DENIED, Fault, ObjectStore
from untold.udfs import object_stores
from untold.udfs.schemes import complaint_of, environment_of
from untold.udfs.storage import PlaceError, StoragePath

PART_BYTES = 5 * 2**20


@pytest.fixture
def silent() -> Iterator[str]:
    """Start a server that accepts connections and never sends a response, and return its address."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("path", ["dbfs:/mnt/out", "x:/out", "hdfs:/out", "ftp://host/out", "https://host/a.jsonl"])
def test_an_unknown_scheme_is_not_a_local_folder(path: str) -> None:
    assert str(complaint_of(path)).startswith(
        f"{path} has the unknown scheme {path.partition(':')[0]}. Give a local path"
    )
    with pytest.raises(PlaceError, match="unknown scheme"):
        StoragePath(path).entry()


def test_a_file_that_is_named_like_a_uri_is_a_file(tmp_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs("x:/out")
    assert complaint_of("x:/out") is None
    assert StoragePath("x:/out").entry().kind == "folder"


def test_a_store_that_does_not_answer_is_named_after_the_deadline(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_stores, "ANSWER_SECONDS", 1.0)
    monkeypatch.setenv("UNTOLD_STORAGE__ENDPOINT", silent)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    with pytest.raises(PlaceError, match=r"^s3://bucket did not answer within 1 seconds\. Check the network"):
        StoragePath("s3://bucket/out").entry()


def test_a_process_that_waits_for_a_store_ends_on_a_signal(silent: str) -> None:
    code = "from untold.udfs.storage import StoragePath; print('begun', flush=True); StoragePath('s3://bucket/out').entry()"
    keys = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "a secret"}
    given = {**os.environ, **environment_of({"endpoint": silent}), **keys}
    with subprocess.Popen([sys.executable, "-c", code], env=given, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        waiting.stdout.readline()
        waiting.send_signal(signal.SIGTERM)
        began = monotonic()
        assert waiting.wait(timeout=object_stores.ANSWER_SECONDS / 2) == -signal.SIGTERM
        assert monotonic() - began < object_stores.ANSWER_SECONDS / 2


@pytest.mark.usefixtures("object_store")
def test_a_missing_bucket_is_reported() -> None:
    with pytest.raises(PlaceError, match=r"^s3://other: the bucket does not exist"):
        StoragePath("s3://other/out").entry()


def test_an_address_without_a_server_is_an_immediate_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNTOLD_STORAGE__ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("UNTOLD_STORAGE__ANONYMOUS", "true")
    with pytest.raises(PlaceError, match=r"^s3://bucket cannot be opened .*; check the address, the credentials"):
        StoragePath("s3://bucket/out").entry()


def test_a_slow_store_receives_and_returns_every_byte(object_store: ObjectStore) -> None:
    place = StoragePath(f"s3://{BUCKET}/one")
    faults = chain.from_iterable(repeat([Fault(refused=True), Fault(refused=True), None]))
    object_store.fault = lambda method, key: next(faults) if key == "one" else None
    place.write_bytes(b"content")
    assert place.read_bytes() == b"content"
    with place.open() as file:
        assert file.read() == b"content"
    assert [request.status for request in object_store.requests].count(503) >= 4


def test_a_truncated_response_is_requested_again(object_store: ObjectStore) -> None:
    place = StoragePath(f"s3://{BUCKET}/one")
    place.write_bytes(b"content" * 1000)
    faults = iter([Fault(cut=True), None, Fault(cut=True)])
    object_store.fault = lambda method, key: next(faults, None) if method == "GET" and key == "one" else None
    assert place.read_bytes() == b"content" * 1000
    with place.open() as file:
        assert file.read() == b"content" * 1000


def test_a_listing_that_breaks_off_is_requested_again(object_store: ObjectStore) -> None:
    faults = iter([Fault(cut=True)] * 3)
    object_store.fault = lambda method, key: next(faults, None) if not key else None
    place = StoragePath(f"s3://{BUCKET}/one")
    place.write_bytes(b"content")
    assert place.read_bytes() == b"content"
    assert next(faults, None) is None


def test_keys_without_the_right_to_list_can_read_and_write(object_store: ObjectStore) -> None:
    object_store.fault = lambda method, key: Fault(denied=True) if not key else None
    place = StoragePath(f"s3://{BUCKET}/one")
    place.write_bytes(b"content")
    assert place.read_bytes() == b"content"


def test_a_key_that_the_store_does_not_know_is_refused(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = DENIED.replace(b"AccessDenied", b"InvalidAccessKeyId")
    monkeypatch.setattr("tests.fakes.object_store.DENIED", unknown)
    object_store.fault = lambda method, key: Fault(denied=True)
    with pytest.raises(PlaceError, match=r"^s3://bucket cannot be opened .*; check the address, the credentials"):
        StoragePath(f"s3://{BUCKET}/one").read_bytes()


def test_a_forbidden_object_is_requested_once(object_store: ObjectStore) -> None:
    place = StoragePath(f"s3://{BUCKET}/one")
    place.write_bytes(b"content")
    object_store.fault = lambda method, key: Fault(denied=True) if key else None
    for act in (place.read_bytes, place.open, lambda: place.write_bytes(b"other")):
        before = len(object_store.requests)
        with pytest.raises(PermissionError, match="403 Forbidden"):
            act()
        assert len(object_store.requests) == before + 1


def test_hdfs_that_does_not_answer_is_named_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        """A name node that accepts connections and does not respond, so that libhdfs waits."""

        @staticmethod
        def from_uri(uri: str) -> Any:
            sleep(5.0)

    monkeypatch.setattr(object_stores, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(object_stores.fs, "FileSystem", Silent)
    with pytest.raises(
        PlaceError, match=r"^hdfs://host did not answer within 0 seconds\. Check the network, the address"
    ):
        StoragePath("hdfs://host/out").entry()


def test_an_interrupted_large_object_leaves_no_file(object_store: ObjectStore) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 2 * PART_BYTES:
                raise ValueError("no more")
            return super().read(size)

    root, path = StoragePath(f"s3://{BUCKET}/large").root
    with pytest.raises(OSError, match="no more"):
        object_stores.put(root, path, Broken(bytes(4 * PART_BYTES)))
    assert object_store.objects == {}


def test_folders_are_copied_object_by_object(object_store: ObjectStore) -> None:
    place = StoragePath(f"s3://{BUCKET}/a")
    (place / "b c%20" / "one").write_bytes(b"one")
    (place / "two").write_bytes(b"two")
    place.copy(StoragePath(f"s3://{BUCKET}/copy"))
    assert {key: content for key, content in object_store.objects.items() if key.startswith("copy/")} == {
        "copy/b c%20/one": b"one",
        "copy/two": b"two",
    }


def test_an_object_is_moved_by_a_copy(object_store: ObjectStore) -> None:
    place = StoragePath(f"s3://{BUCKET}/a b%20")
    place.write_bytes(b"one")
    place.move(StoragePath(f"s3://{BUCKET}/damaged/a b%20"))
    assert object_store.objects == {"damaged/a b%20": b"one"}
    with pytest.raises(FileNotFoundError):
        place.move(StoragePath(f"s3://{BUCKET}/other"))


def test_another_endpoint_of_google_or_azure_is_the_writers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gs = {"gs": {"endpoint_override": "127.0.0.1:4443", "scheme": "http"}}
    azure = {"abfss": {"blob_storage_authority": "127.0.0.1:10000", "blob_storage_scheme": "http"}}
    cloud = {"abfss": {"blob_storage_authority": ".blob.core.example"}}
    found = []
    for options, uri in [(gs, "gs://b/x"), (azure, "abfs://box@one.dfs.example/x"), (cloud, "abfss://box@one.dfs.x/x")]:
        monkeypatch.setenv("UNTOLD_STORAGE__OPTIONS", environment_of({"options": options})["UNTOLD_STORAGE__OPTIONS"])
        found.append(object_stores.store_config(StoragePath(uri).root[0]))
    assert found == [
        {"base_url": "http://127.0.0.1:4443"},
        {"endpoint": "http://127.0.0.1:10000/one"},
        {"endpoint": "https://one.blob.core.example"},
    ]


def test_a_store_is_opened_with_the_settings(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment_of(object_store.settings):
        monkeypatch.delenv(name)
    # If the settings do not have a value, the client uses the variables of the AWS tools
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.endpoint)
    (StoragePath(f"s3a://{BUCKET}/one")).write_bytes(b"one")
    assert object_store.objects == {"one": b"one"}


def test_a_folder_whose_marker_is_an_object_of_its_name_is_copied_and_removed_with_all_in_it(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    folder = StoragePath(f"s3://{BUCKET}/store/folder")
    folder.write_bytes(b"")
    (folder / "part").write_bytes(b"content")
    StoragePath(f"s3://{BUCKET}/store").copy(StoragePath(str(tmp_path / "copied")))
    assert [path.name for path in sorted((tmp_path / "copied").rglob("*"))] == ["folder", "part"]
    folder.remove()
    assert [entry.place for entry in StoragePath(f"s3://{BUCKET}/store").entries(recursive=True)] == []
