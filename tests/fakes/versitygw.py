"""versitygw, an S3 server over a folder, which checks signatures and supports conditions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.object_store import BUCKET, KEYS
from tests.fakes.programs import Gateway, free_port, install_go, serving
from untold.udfs.schemes import environment_of


def install() -> Path | None:
    """Build the program once per machine, and return it. Return None without Go or after a failed build."""
    return install_go("github.com/versity/versitygw/cmd/versitygw@v1.8.0")


@contextmanager
def serve(program: Path, folder: Path) -> Iterator[Gateway]:
    """Run the server on loopback, with an empty bucket in the folder."""
    (folder / BUCKET).mkdir(parents=True)
    port = free_port()
    words = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)]
    roots = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
    with serving(words, port, roots):
        settings = {"endpoint": f"http://127.0.0.1:{port}", "region": "us-east-1"}
        yield Gateway(settings, {**environment_of(settings), **KEYS})
