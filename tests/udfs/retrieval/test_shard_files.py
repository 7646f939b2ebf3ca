"""Shards of an index that lies on an object store: written there whole, and searched by way of a copy."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.object_store import BUCKET, ObjectStore
from untold.udfs.retrieval.catalog import COARSE, SHARDS
from untold.udfs.retrieval.shards import FACTS_FILE, coarse_of, local_folder, place_to_write, shard_folder

INDEX = f"s3://{BUCKET}/index"


def test_a_shard_goes_to_an_object_store_and_comes_back(tmp_path: Path, object_store: ObjectStore) -> None:
    with place_to_write(INDEX, "s1") as folder:
        Path(folder).mkdir()
        for name in (FACTS_FILE, "terms.arrow"):
            (Path(folder) / name).write_text(name)
    written = [request.key for request in object_store.requests if request.method == "PUT"]
    # What says that the others are whole is written last
    assert written == [f"index/{SHARDS}/s1/terms.arrow", f"index/{SHARDS}/s1/{FACTS_FILE}"]
    copies = {local_folder(shard_folder(INDEX, "s1"), str(tmp_path / "cache")) for _ in range(2)}
    assert copies == {str(tmp_path / "cache" / "s1")}
    found = {path.name: path.read_text() for path in (tmp_path / "cache" / "s1").iterdir()}
    assert found == {name: name for name in (FACTS_FILE, "terms.arrow")}


def test_what_every_shard_begins_as_is_read_from_an_object_store(object_store: ObjectStore) -> None:
    object_store.put(f"index/{COARSE}", b"an empty index")
    with coarse_of(INDEX) as path:
        assert Path(path).read_bytes() == b"an empty index"
    assert not Path(path).exists()
