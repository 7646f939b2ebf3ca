"""Azurite, Azure's emulator of its blob storage. It has no ADLS endpoint, so Spark uses the endpoint of blobs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from tests.fakes.object_store import BUCKET
from tests.fakes.programs import Gateway, free_port, install_npm, serving
from untold.udfs.schemes import environment_of

ACCOUNT = "devstoreaccount1"
HOST = f"{ACCOUNT}.dfs.core.windows.net"
# The key of every Azurite
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def install() -> Path | None:
    """Install the program once per machine, and return it. Return None without Node or after a failed installation."""
    return install_npm("azurite@3.35.0", "azurite/dist/src/blob/main.js") if shutil.which("node") else None


@contextmanager
def serve(program: Path, folder: Path) -> Iterator[Gateway]:
    """Run the server on loopback, with an empty container."""
    port = free_port()
    words = ["node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    places = {f"{kind}_storage_authority": f"127.0.0.1:{port}" for kind in ("blob", "dfs")}
    options = {**places, "blob_storage_scheme": "http", "dfs_storage_scheme": "http", "account_key": KEY}
    with serving([*words, "--skipApiVersionCheck", "--disableTelemetry"], port):
        fs.AzureFileSystem(ACCOUNT, **options).create_dir(BUCKET)
        named = {name: value for name, value in options.items() if name != "account_key"}
        settings = {"options": {"abfss": {**named, "account_key_env": "AZURITE_KEY"}}}
        yield Gateway(settings, {**environment_of(settings), "AZURITE_KEY": KEY}, _spark(port))


def _spark(port: int) -> dict[str, str]:
    told = {
        f"account.key.{HOST}": KEY,
        "abfs.endpoint": f"127.0.0.1:{port}",
        "fns.account.service.type": "BLOB",
        "ingress.service.type": "BLOB",
        "account.hns.enabled": "false",
        "always.use.https": "false",
        # The other library requires TLS
        "networking.library": "JDK_HTTP_URL_CONNECTION",
    }
    return {f"spark.hadoop.fs.azure.{name}": value for name, value in told.items()}
