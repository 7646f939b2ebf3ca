"""fake-gcs-server with a proxy for all clients: obstore's XML writes, and the JVM's HTTPS."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from tests.fakes.object_store import BUCKET
from tests.fakes.programs import Gateway, free_port, install_go, serving
from untold.udfs.schemes import environment_of

GOOGLE = "storage.googleapis.com"
PASSWORD = "changeit"
JSON = {"Content-Type": "application/json"}
_HOP = {"connection", "transfer-encoding", "host", "content-length", "accept-encoding"}


def install() -> Path | None:
    """Build the program once per machine, and return it. Return None without Go or after a failed build."""
    return install_go("github.com/fsouza/fake-gcs-server@v1.56.1")


@contextmanager
def serve(program: Path, folder: Path) -> Iterator[Gateway]:
    """Run the server on loopback with an empty bucket: settings for Arrow and obstore, and for Spark's connector."""
    port, front = free_port(), free_port()
    words = [str(program), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    # A separate process, because Arrow holds Python's lock during requests
    fronts = [sys.executable, "-m", __name__, str(port), str(front), *map(str, _certificate(folder))]
    with serving(words, port), serving(fronts, front):
        _send(port, "POST", "/storage/v1/b?project=tests", json.dumps({"name": BUCKET}).encode(), JSON)
        options = {"gs": {"endpoint_override": f"127.0.0.1:{front}", "scheme": "http"}}
        settings = {"anonymous": True, "options": options}
        # obstore signs writes even if it is configured not to
        yield Gateway(settings, {**environment_of(settings), "GOOGLE_BEARER_TOKEN": "of tests"}, _spark(front, folder))


def _spark(port: int, folder: Path) -> dict[str, str]:
    """Return the settings that lead Spark here: a proxy and a trusted certificate, as it only uses Google's host."""
    java = {
        "https.proxyHost": "127.0.0.1",
        "https.proxyPort": port,
        "javax.net.ssl.trustStore": folder / "trusted.p12",
        "javax.net.ssl.trustStorePassword": PASSWORD,
    }
    own = {"auth.type": "USER_CREDENTIALS", "token.server.url": f"http://127.0.0.1:{port}/token"}
    own |= {f"auth.{name}": "of tests" for name in ("client.id", "client.secret", "refresh.token")}
    options = {f"spark.hadoop.fs.gs.{name}": value for name, value in {**own, "project.id": "tests"}.items()}
    return {"spark.driver.extraJavaOptions": " ".join(f"-D{name}={value}" for name, value in java.items()), **options}


def _listen(server: int, port: int, certificate: str, key: str) -> None:
    """Run the proxy of the server until this process ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handler = type("Handler", (_Handler,), {"server_port": server, "tls": context})
    ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Return a certificate of Google's host, which only these tests trust, and its key."""
    folder.mkdir(parents=True, exist_ok=True)
    cert, key, trusted = folder / "cert.pem", folder / "key.pem", folder / "trusted.p12"
    name = ["-subj", f"/CN={GOOGLE}", "-addext", f"subjectAltName=DNS:{GOOGLE}", "-days", "30"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert), *name]
    subprocess.run(made, check=True, capture_output=True)
    store = ["-keystore", str(trusted), "-storetype", "PKCS12", "-storepass", PASSWORD]
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "keytool" if "JAVA_HOME" in os.environ else "keytool"
    words = [str(java), "-importcert", "-noprompt", "-alias", "google", "-file", str(cert), *store]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


class _Handler(BaseHTTPRequestHandler):
    """Sends requests to the server, and converts the requests that it does not support."""

    protocol_version = "HTTP/1.1"
    server_port: int
    tls: ssl.SSLContext
    https = False

    def do_CONNECT(self) -> None:
        """Start TLS as the host in the request."""
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        self.request = self.tls.wrap_socket(self.request, server_side=True)
        self.https = True
        self.setup()
        self.close_connection = False

    def _pass_on(self) -> None:
        body = self._body()
        path, query = (lambda parts: (parts.path, parts.query))(urlsplit(self.path))
        if path == "/token":
            return self._answer(200, JSON, json.dumps({"access_token": "of tests", "expires_in": 3600}).encode())
        if self.command == "PUT" and not path.startswith("/upload/") and "upload_id" not in query:
            return self._write(path, body)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        if "/moveTo/" in path:
            return self._move(path)
        status, found, content = _send(self.server_port, self.command, self.path, body, headers)
        if location := found.get("Location"):
            where = f"https://{GOOGLE}" if self.https else f"http://{self.headers['Host']}"
            found["Location"] = where + location[location.index("/", 8) :]
        return self._answer(status, found, content)

    def _write(self, path: str, body: bytes) -> None:
        """Convert a write of obstore from the XML API to the JSON API."""
        bucket, _, key = path.lstrip("/").partition("/")
        condition = self.headers.get("x-goog-if-generation-match")
        only = f"&ifGenerationMatch={condition}" if condition is not None else ""
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(unquote(key), safe='')}{only}"
        status, _, content = _send(self.server_port, "POST", target, body, {"Content-Type": "application/octet-stream"})
        written = json.loads(content) if status == 200 else {}
        tags = {"ETag": written.get("etag", ""), "x-goog-generation": written.get("generation", "")}
        self._answer(status, tags if written else {}, b"" if written else content)

    def _move(self, path: str) -> None:
        """Convert a move, which the server does not support, to a copy and a removal of the source."""
        source, _, target = path.partition("/moveTo/")
        copied = f"{source}/copyTo/b/{BUCKET}/{target}"
        status, found, content = _send(self.server_port, "POST", copied, b"{}", JSON)
        if status == 200:
            _send(self.server_port, "DELETE", source, b"", {})
        self._answer(status, found, content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""


def _send(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """Send a request to the server. Return status, headers and body of the response."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"Host": GOOGLE, **headers})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


# http.server looks for these names
for _method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._pass_on)

if __name__ == "__main__":
    _listen(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
