"""An OpenAI-compatible model server for tests. It runs in a separate process, counts requests, and simulates faults.

`ModelServer` is the handle of a test. `python -m tests.fakes.model_server` is its process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.fakes.answers import content_of, find_answer, payload_of
from tests.fakes.arrivals import ASKED_PATHS, COMPLETION_PATHS, Arrival, Log
from tests.fakes.batch_forms import WrongError, chat_of_params, check, is_batch_path, message_of
from tests.fakes.batches import FakeBatches
from tests.fakes.classifier import FakeClassifier
from tests.fakes.lookups import LOOKUP_PATHS, LOOKUPS, SEARCH_PATH, lookup_content, payload_of_lookup, query_of
from tests.fakes.replies import Reply, count_tokens, error_reply, http_message, make_reply
from tests.fakes.rules import Config, Request, condition, deeds_of, hash_of
from tests.fakes.tools import conversation_of
from tests.fakes.wire import parse_request

_ROOT = Path(__file__).resolve().parents[2]
_WINDOW_SECONDS = 60.0
_BACKLOG = 4096
MESSAGES_PATH = "/v1/messages"
# The characters of a block of the prefix cache
_BLOCK = 16
_KEY = re.compile(
    rb"\r\n(?:authorization:[ \t]*bearer|x-subscription-token:|(?:x-)?api-key:)[ \t]+(\S+)", re.IGNORECASE
)


class ModelServer:
    """A model server in a separate process, on a loopback port that it keeps until `close`.

    It accepts the fields of `Config`. Arrivals before a `stop`, `kill` or `restart` are kept. A restarted process
    counts arrivals and seconds for its rules from the start.
    """

    def __init__(self, answer: str = "e2e", rules: Sequence[Mapping[str, Any]] = (), **settings: Any) -> None:
        self._config = Config(answer=answer, rules=rules, **settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._control_port = 0
        self._earlier: list[Arrival] = []
        self._earlier_peak = 0
        # This socket is bound and does not listen. It reserves the port while the server is down
        self._holder = _bound_socket(0, self._config.address)
        self.port: int = self._holder.getsockname()[1]
        self.base_url = f"http://{self._config.address}:{self.port}/v1"
        self.root_url = f"http://{self._config.address}:{self.port}"
        self.search_url = f"http://{self._config.address}:{self.port}{SEARCH_PATH}"

    def __enter__(self) -> ModelServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Return the process id of the running server."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process and wait until it listens."""
        command = [sys.executable, "-m", "tests.fakes.model_server", str(self.port), json.dumps(asdict(self._config))]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the model server on port {self.port} did not start; see the error above")
        self._control_port = json.loads(line)["control_port"]

    def stop(self) -> None:
        """Stop the process. It closes its connections, and the port refuses new connections."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """Kill the process with SIGKILL. Its connections break, and the port refuses new connections."""
        self._end(subprocess.Popen.kill)

    def restart(self) -> None:
        """Start the server again on the same port, with the last configuration."""
        self.kill()
        self._config = replace(self._config, down=False)
        self.start()

    def close(self) -> None:
        """Stop the process and release the port."""
        self.kill()
        self._holder.close()

    def configure(self, **changes: Any) -> None:
        """Change fields of `Config`. `down=True` breaks all connections and refuses new ones until `down=False`."""
        self._config = replace(self._config, **changes)
        self._ask("POST", "configure", json.dumps(asdict(self._config)).encode())

    def reset(self) -> None:
        """Remove all arrivals and attempts. Rules and limits start again."""
        self._earlier, self._earlier_peak = [], 0
        self._ask("POST", "reset")

    def arrivals(self) -> list[Arrival]:
        """Return all requests in order of arrival, including requests for other paths than completions."""
        return self._earlier + (Log.unpack(self._ask("GET", "arrivals")) if self._process else [])

    def count(self, stage: str | None = None) -> int:
        """Return the number of requests for completions, of one stage or in total."""
        kept = sum(stage in (None, arrival.stage) for arrival in self._earlier if arrival.path in ASKED_PATHS)
        counts: dict[str, int] = self._stats()["counts"]
        return kept + (sum(counts.values()) if stage is None else counts.get(stage, 0))

    def in_flight_peak(self) -> int:
        """Return the maximum number of concurrent requests."""
        return max(self._earlier_peak, int(self._stats()["peak"]))

    def wait_for(self, count: int, timeout: float = 30.0) -> None:
        """Wait until this number of completions was requested. Raises TimeoutError after `timeout` seconds."""
        end = monotonic() + timeout
        while (arrived := self.count()) < count:
            if monotonic() > end:
                raise TimeoutError(f"{arrived} of {count} requests reached the model server within {timeout:g} s")
            sleep(0.01)

    def _stats(self) -> dict[str, Any]:
        if self._process is None:
            return {"counts": {}, "peak": 0}
        stats: dict[str, Any] = json.loads(self._ask("GET", "stats"))
        return stats

    def _end(self, end: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process, peak = self._process, 0
        if process is None:
            return
        try:
            # Set it down first, because requests between the copy of the log and the end would be lost
            self._ask("POST", "configure", json.dumps(asdict(replace(self._config, down=True))).encode())
            peak = self._stats()["peak"]
            self._earlier = self.arrivals()
        except OSError:  # the process was killed from outside, so its counts are lost
            pass
        finally:
            self._process, self._earlier_peak = None, max(self._earlier_peak, peak)
            end(process)
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()

    def _ask(self, method: str, what: str, body: bytes = b"") -> bytes:
        with closing(HTTPConnection("127.0.0.1", self._control_port, timeout=30)) as connection:
            connection.request(method, f"/_control/{what}", body)
            response = connection.getresponse()
            content = response.read()
        if response.status != 200:
            raise RuntimeError(f"the model server refused {what}: {content.decode('utf-8', 'replace')}")
        return content


class _Model:
    """The state of all connections: configuration, log, windows."""

    def __init__(self, config: Config) -> None:
        self.batches = FakeBatches(self.answer_line)
        self.apply(config)
        self.reset()
        self.in_flight = 0

    def apply(self, config: Config) -> None:
        self.config = config
        vars(self.batches).update(config.batches)
        self.answer = find_answer(config.answer)
        self.classifier = FakeClassifier(**config.classifier)
        self.rules = [(condition(rule.get("when", {}), i), deeds_of(rule)) for i, rule in enumerate(config.rules)]

    def reset(self) -> None:
        self.log = Log()
        self.batches = FakeBatches(self.answer_line, **self.config.batches)
        self.attempts: Counter[int] = Counter()
        self.started = monotonic()
        self.completions = 0
        self.peak = 0
        self.window: deque[tuple[float, int]] = deque()
        self.window_tokens = 0
        self.prefixes: set[int] = set()

    def cached(self, prompt: str) -> int:
        """Return the number of tokens at the beginning of a prompt that an earlier prompt had."""
        known, found = 0, False
        for end in range(_BLOCK, len(prompt) + 1, _BLOCK):
            key = hash_of(prompt[:end].encode("utf-8", "replace"))
            found = key in self.prefixes
            known = end if found and known == end - _BLOCK else known
            self.prefixes.add(key)
        return known // 4

    def read(self, path: str, raw: bytes) -> Request:
        """Read a body and number it. Raises ValueError, LookupError or TypeError for an invalid request."""
        if path in LOOKUP_PATHS:
            return self._read_lookup(path, raw)
        body = json.loads(raw)
        turns = body["messages"] if path == COMPLETION_PATHS[0] else [{"role": "user", "content": body["prompt"]}]
        texts = [content_of(turn) for turn in turns]
        asked = [text for turn, text in zip(turns, texts, strict=True) if turn["role"] == "user"]
        payload = payload_of(asked[-1]) if asked else {}
        payload = payload | conversation_of(body) if payload else {}
        # The key excludes additional text for the model, because a second attempt belongs to the same request
        said = [text for turn, text in zip(turns, texts, strict=True) if turn["role"] != "system" or not payload]
        return self._numbered(path, body, raw, texts, payload, said)

    def _read_lookup(self, path: str, raw: bytes) -> Request:
        body = query_of(raw.decode("ascii")) if path == SEARCH_PATH else json.loads(raw)
        payload = payload_of_lookup(path, body)
        texts = payload.get("texts") or [payload["query"]]
        return self._numbered(path, body, raw, texts, payload, texts)

    def _numbered(
        self, path: str, body: Any, raw: bytes, texts: Sequence[str], payload: dict[str, Any], said: Sequence[str]
    ) -> Request:
        key = hash_of("\0".join(said).encode("utf-8", "replace"))
        self.completions += 1
        self.attempts[key] += 1
        elapsed = monotonic() - self.started
        index, attempt = self.completions, self.attempts[key]
        return Request(path == COMPLETION_PATHS[0], body, raw, "".join(texts), payload, key, index, attempt, elapsed)

    def answer_line(self, path: str, body: bytes) -> tuple[int, Any]:
        """Return the status and body for a line of a batch, which counts as a call."""
        request = self.read(path, body)
        tokens, stage = count_tokens(request.prompt), request.payload.get("stage")
        position = self.log.add(path, str(request.body.get("model", "")), stage, tokens, request.key)
        reply = self.reply(request, tokens, True)
        self.log.answered(position, reply.status, reply.completion_tokens)
        return reply.status, json.loads((reply.content or b"").partition(b"\r\n\r\n")[2])

    def reply(self, request: Request, prompt_tokens: int, authorised: bool) -> Reply:
        """Return the response from the key, rules, limits and answer, in this order."""
        if not authorised:
            return error_reply(401, {"message": "Incorrect API key provided", "code": "invalid_api_key"})
        deeds = next((deeds for holds, deeds in self.rules if holds(request)), {})
        lookup = partial(lookup_content, classifier=self.classifier)
        answer = lookup if request.payload.get("stage") in LOOKUPS else None
        cached = self.cached(request.prompt) if self.config.prefix_cache else None
        reply = make_reply(self.answer, request, prompt_tokens, deeds, answer, cached)
        if self.config.limits and reply.status != 429 and not self._let_in(prompt_tokens + reply.completion_tokens):
            wait = self.config.limits.get("retry_after", 1)
            reply = error_reply(429, {"message": "Rate limit reached"}, {"Retry-After": f"{wait:g}"})
        reply.delay = self.config.latency + float(deeds.get("delay", 0.0))
        return reply

    def _let_in(self, tokens: int) -> bool:
        now, limits, window = monotonic(), self.config.limits, self.window
        while window and window[0][0] <= now - _WINDOW_SECONDS:
            self.window_tokens -= window.popleft()[1]
        if len(window) + 1 > limits.get("requests_per_minute", float("inf")):
            return False
        if self.window_tokens + tokens > limits.get("tokens_per_minute", float("inf")):
            return False
        window.append((now, tokens))
        self.window_tokens += tokens
        return True


class _Connection(asyncio.Protocol):
    """A connection. It parses a request and sends its response before it parses the next one."""

    def __init__(self, server: _Server, control: bool) -> None:
        self.server, self.control = server, control
        self.buffer = bytearray()
        self.busy = False
        self.due: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.server.down and not self.control:
            transport.abort()
        elif not self.control:
            self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        if self.due is not None:
            self.due.cancel()
        if self.busy and not self.control:
            self.server.model.in_flight -= 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self._advance()

    def _advance(self) -> None:
        while self.buffer and not self.busy and not self.transport.is_closing():
            try:
                parsed = parse_request(self.buffer)
            except ValueError:
                self.transport.write(http_message(400, b"{}", {"Connection": "close"}))
                self.transport.close()
                return
            if parsed is None:
                return
            head, body, size = parsed
            del self.buffer[:size]
            self._handle(head, body)

    def _handle(self, head: bytes, body: bytes) -> None:
        self.busy = True
        method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        path = target.partition("?")[0]
        if self.control:
            self.control_task = self.loop.create_task(self._obey(method, path, body))
            return
        model = self.server.model
        model.in_flight += 1
        model.peak = max(model.peak, model.in_flight)
        log, position, reply = self._reply(method, target, head, body)
        if reply.content is not None and b"\r\nconnection: close" in head.lower():
            reply.close = True
        if reply.delay > 0:
            self.due = self.loop.call_later(reply.delay, self._send, log, position, reply)
        else:
            self._send(log, position, reply, resume=False)

    def _reply(self, method: str, target: str, head: bytes, body: bytes) -> tuple[Log, int, Reply]:
        model, path = self.server.model, target.partition("?")[0]
        log = model.log
        if path == SEARCH_PATH and method == "GET":
            # The address contains the whole request of a search
            body = target.encode("ascii")
        elif is_batch_path(path):
            position, sent = log.add(path, "", None, 0, 0), _KEY.search(head)
            return log, position, model.batches.reply(method, target, head, body, sent[1].decode() if sent else "")
        elif path == MESSAGES_PATH and method == "POST":
            return self._reply_to_message(head, body)
        elif method != "POST" or path not in ASKED_PATHS:
            return log, log.add(path, "", None, 0, 0), _other_reply(method, path, model.config.model)
        try:
            request = model.read(path, body)
        except (ValueError, LookupError, TypeError, AttributeError):
            return log, log.add(path, "", None, 0, 0), error_reply(400, {"message": "the body is no request"})
        tokens = count_tokens(request.prompt)
        stage = request.payload.get("stage")
        position = log.add(path, str(request.body.get("model", "")), stage, tokens, request.key)
        key, sent = model.config.api_key, _KEY.search(head)
        authorised = key is None or (sent is not None and sent.group(1) == key.encode())
        try:
            return log, position, model.reply(request, tokens, authorised)
        except LookupError:
            return log, position, error_reply(400, {"message": "the answer knows no such input"})

    def _reply_to_message(self, head: bytes, body: bytes) -> tuple[Log, int, Reply]:
        """Reply to a request of Anthropic's Messages API as to a chat completion."""
        log, sent = self.server.model.log, head.lower()
        try:
            check(b"\r\nanthropic-version:" in sent and b"\r\nauthorization:" not in sent, "no version, or another key")
            chat = json.dumps(chat_of_params(json.loads(body))).encode()
        except (ValueError, LookupError, TypeError, AttributeError, WrongError) as error:
            told = {"type": "invalid_request_error", "message": str(error)}
            return log, log.add(MESSAGES_PATH, "", None, 0, 0), error_reply(400, told)
        log, position, reply = self._reply("POST", COMPLETION_PATHS[0], head, chat)
        if reply.status == 200 and reply.content is not None:
            completion = json.loads(reply.content.partition(b"\r\n\r\n")[2])
            reply.content = http_message(200, json.dumps(message_of(completion)).encode())
        return log, position, reply

    def _send(self, log: Log, position: int, reply: Reply, resume: bool = True) -> None:
        self.due = None
        if reply.content is None and not reply.close:
            return
        self.busy = False
        self.server.model.in_flight -= 1
        if reply.content is not None:
            log.answered(position, reply.status, reply.completion_tokens if reply.status == 200 else 0)
            self.transport.write(reply.content)
        if reply.close:
            self.transport.close()
        elif resume:
            self._advance()

    async def _obey(self, method: str, path: str, body: bytes) -> None:
        status, content = 200, b"{}"
        try:
            content = await self.server.obey(path.removeprefix("/_control/"), body)
        except (ValueError, LookupError, TypeError) as error:
            status, content = 400, str(error).encode()
        self.busy = False
        self.transport.write(http_message(status, content, {"Connection": "close"}))
        self.transport.close()


class _Server:
    """The listening sockets, and the commands of the control port."""

    def __init__(self, config: Config, port: int) -> None:
        self.model = _Model(config)
        self.port = port
        self.connections: set[_Connection] = set()
        self.listener: asyncio.Server | None = None
        self.down = False

    async def serve(self) -> None:
        """Listen until standard input ends, together with the parent process."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 1) else ended.set())
        control = await loop.create_server(lambda: _Connection(self, True), "127.0.0.1", 0)
        await self.set_down(self.model.config.down)
        print(json.dumps({"port": self.port, "control_port": control.sockets[0].getsockname()[1]}), flush=True)
        await ended.wait()

    async def set_down(self, down: bool) -> None:
        self.down = down
        if down and self.listener is not None:
            self.listener.close()
            self.listener = None
            for connection in list(self.connections):
                connection.transport.abort()
        elif not down and self.listener is None:
            bound, loop = _bound_socket(self.port, self.model.config.address), asyncio.get_running_loop()
            self.port = bound.getsockname()[1]
            self.listener = await loop.create_server(lambda: _Connection(self, False), sock=bound, backlog=_BACKLOG)

    async def obey(self, what: str, body: bytes) -> bytes:
        model = self.model
        if what == "configure":
            model.apply(Config(**json.loads(body)))
            await self.set_down(model.config.down)
        elif what == "reset":
            model.reset()
            model.peak = model.in_flight
        elif what == "arrivals":
            return model.log.pack()
        elif what == "stats":
            return json.dumps({"counts": model.log.counts, "peak": model.peak}).encode()
        else:
            raise LookupError(f"no control named {what!r}")
        return b"{}"


def _other_reply(method: str, path: str, model: str) -> Reply:
    if method == "GET" and path == "/v1/models":
        models = [{"id": model, "object": "model", "created": 0, "owned_by": "untold"}]
        return Reply(200, http_message(200, json.dumps({"object": "list", "data": models}).encode()))
    return error_reply(404, {"message": f"no such path: {path}"})


def _bound_socket(port: int, address: str) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((address, port))
    return bound


def main(arguments: Sequence[str]) -> None:
    """Serve on the port in the first argument (0: any) with the configuration in the second (JSON)."""
    port = int(arguments[0]) if arguments else 0
    server = _Server(Config(**json.loads(arguments[1])) if arguments[1:] else Config(), port)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.collect()
    gc.freeze()
    asyncio.run(server.serve())


if __name__ == "__main__":
    main(sys.argv[1:])
