"""The embedded model's file and server."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from untold.jobs.inference.backends import local_model
from untold.jobs.inference.backends.local_model import (
    LocalModelError,
    LocalServer,
    ModelFile,
    assemble,
    installed,
    model_file,
    sha256_of,
)
from untold.jobs.run.cache import cache_dir

OWNER = """
import sys, time
from untold.jobs.inference.backends.local_model import LocalServer, model_file
server = LocalServer(model_file(None))
server.start()
print(server.base_url, server.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A cache of the test's own, except where the real model is needed."""
    if "slow" not in request.keywords:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_dir()


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model, "PART_PACKAGES", ("no_such_model_part1",))
    monkeypatch.setattr(local_model, "SERVER_PACKAGE", "no_such_server")


@pytest.fixture
def with_server_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model, "SERVER_PACKAGE", "json")


@pytest.fixture
def made_up_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Two installed packages that hold the parts of a small file, in the order of the settings, not of their names."""
    for package, content in (("untold_part_b", b"GGUF first "), ("untold_part_a", b"second")):
        folder = tmp_path / "packages" / package
        folder.mkdir(parents=True)
        (folder / "part.bin").write_bytes(content)
        (folder / "__init__.py").write_text(
            "from pathlib import Path\ndef get_part_path():\n    return str(Path(__file__).with_name('part.bin'))\n"
        )
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setattr(local_model, "PART_PACKAGES", ("untold_part_b", "untold_part_a"))
    whole = b"GGUF first second"
    monkeypatch.setattr(local_model, "MODEL_SHA256", hashlib.sha256(whole).hexdigest())
    return whole


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_the_embedded_model_is_its_parts_in_order(made_up_parts: bytes) -> None:
    file = model_file(None)
    assert file.path.read_bytes() == made_up_parts
    assert file.sha256 == hashlib.sha256(made_up_parts).hexdigest()


def test_the_embedded_model_is_put_together_once(made_up_parts: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    first = model_file(None)
    monkeypatch.setattr(local_model, "PART_PACKAGES", ("no_such_model_part1",))
    assert model_file(None) == first


def test_parts_with_another_sha256_are_refused_and_leave_no_file(
    made_up_parts: bytes, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr(local_model, "MODEL_SHA256", "0" * 64)
    with pytest.raises(LocalModelError, match="force-reinstall"):
        model_file(None)
    assert not [path for path in cache.rglob("*") if path.suffix in {".gguf", ".partial"}]


def test_a_changed_embedded_model_is_refused(made_up_parts: bytes) -> None:
    path = model_file(None).path
    path.write_bytes(made_up_parts.replace(b"second", b"secont"))
    with pytest.raises(LocalModelError, match="delete it"):
        model_file(None)


def test_a_file_that_another_process_made_meanwhile_is_kept(tmp_path: Path) -> None:
    target = written(tmp_path / "model.gguf", b"made by another")
    assemble([], target, "0" * 64)
    assert target.read_bytes() == b"made by another"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    target = written(tmp_path / "file", b"") / "model.gguf"
    with pytest.raises(LocalModelError, match="XDG_CACHE_HOME"):
        assemble([], target, "0" * 64)


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path / "model.gguf", b"GGUF")
    sha256_of(path)
    (record,) = (cache / "digests").iterdir()
    record.write_text(json.dumps({**json.loads(record.read_text()), "sha256": "as remembered"}))
    assert sha256_of(path) == "as remembered"


def test_a_changed_file_is_read_again_even_with_its_old_size_and_time(tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", b"GGUF1")
    before = path.stat()
    sha256_of(path)
    path.write_bytes(b"GGUF2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert sha256_of(path) == hashlib.sha256(b"GGUF2").hexdigest()


def test_a_broken_record_is_not_an_obstacle(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path / "model.gguf", b"GGUF")
    expected = sha256_of(path)
    (record,) = (cache / "digests").iterdir()
    record.write_text("[")
    assert sha256_of(path) == expected


def test_a_path_gives_that_file(tmp_path: Path, with_server_package: None) -> None:
    path = written(tmp_path / "other.gguf", b"GGUF and more")
    assert model_file(str(path)) == ModelFile(path.resolve(), hashlib.sha256(b"GGUF and more").hexdigest())


def test_a_file_of_another_kind_is_refused(tmp_path: Path, with_server_package: None) -> None:
    with pytest.raises(LocalModelError, match="not a GGUF file"):
        model_file(str(written(tmp_path / "other.bin", b"PK\x03\x04")))


def test_a_missing_file_is_refused(tmp_path: Path, with_server_package: None) -> None:
    with pytest.raises(LocalModelError, match=r"llm\.local_model: cannot read"):
        model_file(str(tmp_path / "nowhere.gguf"))


@pytest.mark.parametrize("setting", [None, "model.gguf"])
def test_missing_packages_are_one_line_with_the_command_to_install_them(
    without_packages: None, setting: str | None
) -> None:
    with pytest.raises(LocalModelError) as caught:
        model_file(setting)
    assert "pip install 'untold[local]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_packages_count_as_not_installed(without_packages: None) -> None:
    assert not installed()


def test_threads_are_at_least_one_and_bounded() -> None:
    assert 1 <= local_model.threads() <= local_model.MOST_THREADS


def test_a_container_quota_bounds_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model, "_CGROUP_CPU", written(tmp_path / "cpu.max", b"100000 100000\n"))
    assert local_model.threads() == 1


@pytest.fixture
def held_lock(cache: Path) -> Iterator[Callable[[], None]]:
    """The machine's lock as a run with pid 4242 holds it, and the function that ends that run."""
    cache.mkdir(parents=True)
    with local_model.lock_path().open("wb") as file:
        file.write(b"4242")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


def test_a_second_server_is_refused_with_the_pid_of_the_first(
    tmp_path: Path, held_lock: Callable[[], None], with_server_package: None
) -> None:
    server = LocalServer(ModelFile(tmp_path / "model.gguf", "0" * 64), wait=False)
    with pytest.raises(LocalModelError, match="process 4242"):
        server.start()


def test_a_second_server_waits_after_one_line(
    tmp_path: Path, held_lock: Callable[[], None], with_server_package: None
) -> None:
    lines: list[str] = []

    def notice(line: str) -> None:
        lines.append(line)
        held_lock()

    server = LocalServer(ModelFile(tmp_path / "no_model.gguf", "0" * 64), notice=notice)
    with pytest.raises(LocalModelError, match="did not start"):
        server.start()
    assert len(lines) == 1
    assert "4242" in lines[0]


def test_a_server_that_fails_gives_the_lock_back(tmp_path: Path, with_server_package: None, cache: Path) -> None:
    with pytest.raises(LocalModelError, match="did not start"):
        LocalServer(ModelFile(tmp_path / "no_model.gguf", "0" * 64)).start()
    with local_model.lock_path().open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert file.read() == b""


def test_a_server_that_is_not_running_has_no_address(tmp_path: Path) -> None:
    with pytest.raises(LocalModelError, match="not running"):
        _ = LocalServer(ModelFile(tmp_path / "model.gguf", "0" * 64)).base_url


def asked(base_url: str) -> Any:
    """The answer to one small chat request."""
    body = {
        "model": local_model.MODEL_NAME,
        "messages": [{"role": "user", "content": "How many legs has a dog? One digit."}],
        "max_tokens": 2,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 5,
    }
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def ended(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
@pytest.mark.skipif(not installed(), reason="the extra 'local' is not installed")
def test_the_server_answers_with_log_probabilities_and_dies_with_its_owner() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        base_url, server_pid = owner.stdout.readline().split()
        answer = asked(base_url)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert ended(int(server_pid), 10)
    assert answer["model"] == local_model.MODEL_NAME
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert len(top) == 5
    assert {"token", "logprob"} <= top[0].keys()
