"""Object stores of each kind, for tests of their common behaviour."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import azurite, fake_gcs, versitygw
from tests.fakes.object_store import BUCKET, ObjectStore
from tests.fakes.programs import Gateway

# Azure's scheme for HTTPS is abfss
URIS = {
    "moto": f"s3://{BUCKET}",
    "versitygw": f"s3://{BUCKET}",
    "fake-gcs-server": f"gs://{BUCKET}",
    "azurite": f"abfs://{BUCKET}@{azurite.HOST}",
}
_SERVERS: dict[str, Any] = {"versitygw": versitygw, "fake-gcs-server": fake_gcs, "azurite": azurite}


@contextmanager
def serve_store(kind: str, folder: Path) -> Iterator[Gateway]:
    """Run a server of one of `URIS` with an empty bucket. Skip the test if it cannot be installed."""
    if kind == "moto":
        with ObjectStore() as store:
            yield Gateway(store.settings, store.variables)
        return
    program = _SERVERS[kind].install()
    if program is None:
        pytest.skip(f"no {kind}: Go is needed to build it, and Node for azurite")
    with _SERVERS[kind].serve(program, folder) as gateway:
        yield gateway
