"""Make one call to an OpenAI-compatible endpoint. No retry, no wait, no limit."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import aiohttp
from multidict import CIMultiDict
from openai import VERSION, AsyncOpenAI, DefaultAioHttpClient, Omit, OpenAI
from openai._models import FinalRequestOptions
from yarl import URL

from untold.udfs.llm.calls import BEARER, EXPIRED_KEY, MESSAGES, PATHS, Answer, CallSettings, is_loopback, sent_values
from untold.udfs.llm.keys import CLASSIFYING
from untold.udfs.llm.messages import HEADERS, KEY_HEADER, MESSAGES_PATH, chat_body, message_body
from untold.udfs.llm.responses import Reader, read_completion, read_status
from untold.udfs.llm.usage import Usage, estimate_tokens

NOTHING: Mapping[str, Any] = MappingProxyType({})


def sent_beside(
    client: OpenAI | AsyncOpenAI,
    api_key: str | None,
    key_header: str = BEARER,
    headers: Mapping[str, Any] = NOTHING,
    query: Mapping[str, Any] = NOTHING,
) -> Any:
    """Return the options of the client of OpenAI for headers and parameters of a call (see `Endpoint`)."""
    unsent = [] if api_key and key_header == BEARER else [BEARER]
    if unsent or api_key != os.environ.get("OPENAI_API_KEY"):
        unsent += ["OpenAI-Organization", "OpenAI-Project", *client._custom_headers]
    sent: dict[str, Any] = {name: Omit() for name in dict.fromkeys(unsent)}
    if api_key and key_header != BEARER:
        sent[key_header] = api_key
    own = sent_values(headers).items()
    # With the name that the client uses, otherwise both would be sent
    sent |= {BEARER if name.lower() == BEARER.lower() else name: value for name, value in own}
    return ({"headers": sent} if sent else {}) | ({"params": sent_values(query)} if query else {})


if TYPE_CHECKING:
    import httpx2 as httpx
else:
    # The library under the client of OpenAI
    httpx = import_module("httpx" if VERSION.startswith("2.") else "httpx2")

# No completion has this size. A larger body could fill the memory of an actor
MOST_BYTES = 64 * 2**20
# The size of inflated pieces. 1 KB of gzip can be 1 MB of zeros, so the limit is checked after each piece
PIECE_BYTES = 2**20
_NO_HEADERS: Mapping[str, str] = {}
_INFLATED = ("gzip", "x-gzip")
_AUTHORITIES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
# Errors while a body is read
BROKEN_STREAMS: tuple[type[Exception], ...] = (httpx.TransportError, httpx.DecodingError)


@lru_cache(maxsize=4)
def _tls_context(*_: str | None) -> ssl.SSLContext:
    """Return the certificates, read once per value of the environment variables for all endpoints."""
    context: ssl.SSLContext = httpx.create_ssl_context(trust_env=True)
    return context


class _TooLargeError(Exception):
    """A body that is longer than `MOST_BYTES`, or has an encoding that was not requested."""


async def _bounded(chunks: AsyncIterable[bytes], encoding: str) -> AsyncIterator[bytes]:
    """Yield the decoded body, at most `MOST_BYTES`. A longer body is not read completely.

    Raises _TooLargeError, and zlib.error for invalid gzip.
    """
    # With 32 + MAX_WBITS, zlib detects the headers of gzip and zlib
    inflater = zlib.decompressobj(32 + zlib.MAX_WBITS) if encoding in _INFLATED else None
    size = 0
    async for chunk in chunks:
        for piece in (chunk,) if inflater is None else _inflate(inflater, chunk):
            size += len(piece)
            if size > MOST_BYTES:
                raise _TooLargeError
            yield piece


def _inflate(inflater: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    """Yield the inflated chunk in pieces of at most `PIECE_BYTES`."""
    # Until a piece is empty, because zlib may keep output after it consumed the whole chunk
    while piece := inflater.decompress(chunk, PIECE_BYTES):
        yield piece
        chunk = inflater.unconsumed_tail


def _encoding_of(headers: Mapping[str, str]) -> str:
    """Return the encoding of a body. Raises _TooLargeError for an encoding that was not requested."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("identity", "", *_INFLATED):
        raise _TooLargeError
    return encoding


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of a response, within the limit."""
    encoding, length = _encoding_of(response.headers), response.content_length
    if encoding not in _INFLATED and length is not None and length <= MOST_BYTES:
        return await response.read()
    return b"".join([piece async for piece in _bounded(response.content.iter_any(), encoding)])


# A command that prints a key usually signs in over the network
KEY_SECONDS = 60.0
# An endpoint that refuses a younger key refuses the account, and not an expired key
LEAST_KEY_AGE = 10.0
KEY_REFUSED = "http_401"


class KeyCommandError(Exception):
    """The command of a key failed. The message has no output of the command."""


class ApiKey:
    """The key of an endpoint: a fixed text, or the output of a command, which is run again after some seconds.

    `version` is the number of keys that the command printed.
    """

    def __init__(self, key: str | None, command: str | None = None, seconds: float = 1800.0) -> None:
        self.text, self.version = key, 0
        self._command, self._seconds = command, seconds
        self._made_at = float("-inf")
        self._lock = asyncio.Lock()

    @classmethod
    def of(cls, settings: CallSettings) -> ApiKey:
        """Return the key of an endpoint by its variable or its command."""
        key = os.environ.get(settings.api_key_env or "") or None
        return cls(key, settings.api_key_command, settings.api_key_seconds)

    async def renew(self) -> None:
        """Run the command if its key is too old. Raises KeyCommandError."""
        if self._command is None:
            return
        async with self._lock:
            if monotonic() - self._made_at >= self._seconds:
                self.text = await _printed_by(self._command)
                self.version, self._made_at = self.version + 1, monotonic()

    def expire(self, version: int) -> bool:
        """Return True if a refused call can have another key. A key that is not new is then replaced."""
        if version == self.version and self._command is not None and monotonic() - self._made_at >= LEAST_KEY_AGE:
            self._made_at = float("-inf")
            return True
        return version < self.version


async def _printed_by(command: str) -> str:
    """Return the output of a shell command in one line. Raises KeyCommandError."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(KEY_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        # With all processes that the shell started
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise KeyCommandError(f"llm.api_key_command printed no key within {KEY_SECONDS:g} s") from None
    key = output.decode("utf-8", "replace").strip()
    if process.returncode or not key or not key.isprintable() or not key.isascii():
        ended = f"ended with exit code {process.returncode}" if process.returncode else "printed no key"
        raise KeyCommandError(f"llm.api_key_command {ended}")
    return key


@dataclass(frozen=True)
class _Sender:
    """The parts that all requests of an API have in common, and the session that sends them."""

    session: aiohttp.ClientSession
    url: URL
    headers: CIMultiDict[str]
    proxy: Mapping[str, Any]


class Endpoint:
    """An async client on the aiohttp transport that sends each call once and follows no redirect.

    Without a key there is no Authorization header. Another `key_header` replaces it and contains the plain key.
    `protocol` is `chat` or `messages`: Anthropic's Messages API, to which chat completions are translated.
    `headers` and `query` (see `sent_values`) are sent with every call. The client reads other OPENAI_* variables
    (organisation, project, headers), which describe the account. It sends them only with the key of OPENAI_API_KEY.

    The client of OpenAI builds one request of each API. All requests are copies with another body, sent by its aiohttp
    session, because building each request took more time than sending it.

    Proxies of the environment are ignored for the loopback interface.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | ApiKey | None,
        *,
        connections: int,
        timeout: float,
        key_header: str = BEARER,
        headers: Mapping[str, Any] = _NO_HEADERS,
        query: Mapping[str, Any] = _NO_HEADERS,
        protocol: str = "chat",
    ) -> None:
        self._base_url, self._timeout = base_url, timeout
        self._messages = protocol == MESSAGES
        if self._messages:
            key_header, headers = KEY_HEADER, {**HEADERS, **headers}
        self._key = api_key if isinstance(api_key, ApiKey) else ApiKey(api_key)
        self._http = DefaultAioHttpClient(
            # The only encoding with a decoder that can stop at a limit
            headers={"Accept-Encoding": "gzip"},
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            timeout=httpx.Timeout(timeout),
            # The key is only sent to the address in the settings
            follow_redirects=False,
            trust_env=not is_loopback(base_url),
            verify=_tls_context(*map(os.environ.get, _AUTHORITIES)),
        )
        self._client = AsyncOpenAI(
            base_url=base_url,
            api_key=self._key.text or "none",
            # A retry in the client would be a call outside of the limits and of the usage
            max_retries=0,
            timeout=timeout,
            http_client=self._http,
        )
        self._sent = key_header, headers, query
        self._senders: dict[str, _Sender] = {}
        self._use_key()
        self._limits = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=timeout, connect=timeout)

    async def call(self, api: str, body: bytes, timeout: float | None = None, read: Reader | None = None) -> Answer:
        """Send one request and read the response, within `timeout` seconds or the timeout of the client.

        `read` reads the body of a response with status 200. None reads a completion. Never raises for errors of an
        endpoint.
        """
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        translated = self._messages and api == "chat"
        try:
            await self._key.renew()
            if self._key.version != self._version:
                self._use_key()
            version = self._version
            async with asyncio.timeout(seconds):
                status, content, headers = await self._send(api, message_body(body) if translated else body)
        except KeyCommandError as error:
            return Answer(error_type="connection", error=str(error))
        except (aiohttp.ClientError, ssl.SSLError) as error:
            return read_connection_error(error)
        except TimeoutError:
            return Answer(error_type="timeout", error=f"no answer within {seconds:g} s")
        except (_TooLargeError, zlib.error) as error:
            large = isinstance(error, _TooLargeError)
            said = "is too large or in an unknown encoding" if large else "cannot be decompressed"
            usage = Usage(estimate_tokens(len(body)), 0, 0, estimated=True)
            return Answer(error_type="bad_body", error=f"the endpoint's answer {said}", usage=usage)
        except Exception as error:
            # Only the type of an unknown error, because its message may contain the address, the key or the prompt
            return Answer(error_type="connection", error=f"the connection failed ({type(error).__name__})")
        if not 200 <= status < 300:
            answer = read_status(status, content, headers)
            if answer.error_type == KEY_REFUSED and self._key.expire(version):
                return Answer(error_type=EXPIRED_KEY, error="the key had expired; the next call has a new one")
            return answer
        if translated:
            content = chat_body(content)
        if read is not None:
            return read(content, len(body), headers)
        return read_completion(content, api, len(body), headers)

    def _use_key(self) -> None:
        """Send the current key from now on."""
        self._version = self._key.version
        self._client.api_key = self._key.text or "none"
        self._options = sent_beside(self._client, self._key.text, *self._sent)
        self._senders.clear()

    async def _send(self, api: str, body: bytes) -> tuple[int, bytes, Mapping[str, str]]:
        """POST the body, or GET it as the query of a search. Return status, body and headers of the response."""
        if api == "search":
            # A full URL, because the client would put a slash before the query
            sender, method, data = self._build("get", f"{self._base_url}?{body.decode('ascii')}"), "GET", None
        else:
            if api not in self._senders:
                # The address of a classifier contains its path
                path = self._base_url if api in CLASSIFYING else MESSAGES_PATH if self._messages else PATHS[api]
                self._senders[api] = self._build("post", path)
            sender, method, data = self._senders[api], "POST", body
        sent = sender.session.request(
            method,
            sender.url,
            data=data,
            headers=sender.headers,
            allow_redirects=False,
            auto_decompress=False,
            timeout=self._limits,
            **sender.proxy,
        )
        async with sent as response:
            return response.status, await _read_body(response), response.headers

    def _build(self, method: str, path: str) -> _Sender:
        """Return the parts of a request that the client of OpenAI builds, without the headers of its own body."""
        options: Any = {"method": method, "url": path, "content": b"{}", **self._options}
        request = self._client._build_request(FinalRequestOptions.construct(**options))
        transport: Any = self._http._transport_for_url(request.url)
        if not isinstance(transport.client, aiohttp.ClientSession):
            transport.client = transport.get_client()
        proxy = transport.proxy
        auth = aiohttp.BasicAuth(*proxy.auth) if proxy and proxy.auth else None
        through = {"proxy": str(proxy.url), "proxy_auth": auth, "proxy_headers": proxy.headers} if proxy else {}
        headers = CIMultiDict(request.headers.multi_items())
        headers.popall("Content-Length", None)
        return _Sender(transport.client, URL(str(request.url), encoded=True), headers, through)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def read_connection_error(error: Exception) -> Answer:
    """Return the error of a call: a timeout, a response that broke off (and may be paid), or a failed connection."""
    # The error of aiohttp is wrapped once or twice, and the innermost is the reason
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(isinstance(cause, (TimeoutError, aiohttp.ServerTimeoutError)) for cause in causes):
        return Answer(error_type="timeout", error="the connection timed out")
    if any(isinstance(cause, aiohttp.ClientPayloadError) for cause in causes):
        return Answer(error_type="bad_body", error="the endpoint's answer broke off")
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        said = "the certificate of the endpoint is not trusted"
        return Answer(error_type="connection", error=said, refused=True, about=("certificate",))
    unconnected = any(isinstance(cause, aiohttp.ClientConnectorError) for cause in causes)
    reason = "no connection could be made" if unconnected else "the connection broke"
    return Answer(error_type="connection", error=reason, unconnected=unconnected)
