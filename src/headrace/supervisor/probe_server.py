"""`--health-port`: /livez, /readyz and /metrics of a whole `headrace worker`, answered by its supervisor.

The supervisor runs no tasks, so its loop answers while tasks block the loops of the workers. Requests get little: a bounded
number of connections, a few seconds and a few kilobytes each, and one answer.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import NamedTuple

from headrace.errors import ConfigError
from headrace.supervisor.health import WorkerHealth
from headrace.supervisor.log import log

MAX_CONNECTIONS = 32
PATIENCE = 5.0
"""Seconds for a request and its answer."""
MAX_REQUEST = 8 * 1024
REST = 1.0
"""Seconds without new connections after one could not be accepted, for example because too many files are open."""
_BACKLOG = 100
_END = b"\r\n\r\n"

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


class _Reply(NamedTuple):
    code: int
    kind: str
    body: bytes


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen(address: Address) -> list[socket.socket]:
    """Open a socket for each address of the host, all on one port. Port 0: the system chooses it."""
    sockets: list[socket.socket] = []
    port = address.port
    try:
        infos = socket.getaddrinfo(address.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in dict.fromkeys(infos):
            listener = socket.socket(family, kind, protocol)
            sockets.append(listener)
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((place[0], port, *place[2:]))
            listener.listen(_BACKLOG)
            port = listener.getsockname()[1]
    except OSError as error:
        for listener in sockets:
            listener.close()
        raise ConfigError(
            f"the health endpoint cannot listen on {address}: {error.strerror or error}; choose another --health-port"
        ) from None
    return sockets


class _Connection:
    """One client: its request, then its answer."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.until = monotonic() + PATIENCE
        self.request = b""
        self.answer = b""


class HealthServer:
    """A small HTTP server in the loop of its caller: GET and HEAD, one request per connection."""

    def __init__(
        self, health: WorkerHealth, selector: selectors.BaseSelector, listeners: Iterable[socket.socket]
    ) -> None:
        self._health = health
        self._selector = selector
        self._listeners = list(listeners)
        self._resting_until = 0.0
        self.open: set[_Connection] = set()
        for listener in self._listeners:
            listener.setblocking(False)
        self._attend()

    def step(self, now: float) -> None:
        """Close connections that took too long, and accept new ones again after a rest."""
        for connection in [connection for connection in self.open if connection.until <= now]:
            self._close(connection)
        if self._resting_until and self._resting_until <= now:
            self._resting_until = 0.0
            self._attend()

    def stop(self) -> None:
        """Close all connections, and listen no more."""
        for connection in list(self.open):
            self._close(connection)
        for listener in self._listeners:
            if not self._resting_until:
                self._selector.unregister(listener)
            listener.close()

    def _attend(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))

    def _accept(self, listener: socket.socket) -> None:
        if self._resting_until:
            return
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # The client left meanwhile.
        except OSError as error:
            log.error("the health endpoint cannot accept a connection: %s", error)
            # The listener stays readable, so the loop would try again without a pause.
            self._resting_until = monotonic() + REST
            for listening in self._listeners:
                self._selector.unregister(listening)
            return
        if len(self.open) >= MAX_CONNECTIONS:
            client.close()
            return
        client.setblocking(False)
        connection = _Connection(client)
        self.open.add(connection)
        self._selector.register(client, selectors.EVENT_READ, partial(self._serve, connection))

    def _serve(self, connection: _Connection) -> None:
        try:
            over = self._go_on(connection)
        except BlockingIOError:
            return
        except OSError:
            over = True  # The client left.
        except Exception:  # noqa: BLE001  # no request may end the supervisor
            log.exception("the health endpoint failed to answer a request")
            over = True
        if over:
            self._close(connection)

    def _go_on(self, connection: _Connection) -> bool:
        """Read or write what can be read or written now. True: the connection is over."""
        if not connection.answer:
            part = connection.client.recv(MAX_REQUEST)
            connection.request += part
            if part and _END not in connection.request and len(connection.request) <= MAX_REQUEST:
                return False
            connection.answer = self._answer(connection.request)
            serving = self._selector.get_key(connection.client).data
            self._selector.modify(connection.client, selectors.EVENT_WRITE, serving)
        sent = connection.client.send(connection.answer)
        connection.answer = connection.answer[sent:]
        return not connection.answer

    def _close(self, connection: _Connection) -> None:
        self.open.discard(connection)
        self._selector.unregister(connection.client)
        connection.client.close()

    def _answer(self, request: bytes) -> bytes:
        head, end, _ = request.partition(_END)
        method, target = _read(head) if end and len(head) <= MAX_REQUEST else ("", "")
        if not target:
            return _written(_refusal(400, "not an HTTP request"), head=False)
        if method not in {"GET", "HEAD"}:
            return _written(_refusal(405, "use GET"), head=False)
        return _written(self._route(target.partition("?")[0]), head=method == "HEAD")

    def _route(self, path: str) -> _Reply:
        probes: dict[str, Callable[[], str]] = {"/livez": self._health.not_alive, "/readyz": self._health.not_ready}
        if path in probes:
            problem = probes[path]()
            return _refusal(503, problem) if problem else _Reply(200, _JSON, b'{"status":"ok"}')
        if path == "/metrics":
            return _Reply(200, _TEXT, self._health.exposition())
        return _refusal(404, "there are /livez, /readyz and /metrics")


def _read(head: bytes) -> tuple[str, str]:
    """Method and target of a request; empty: it is none."""
    parts = head.partition(b"\r\n")[0].split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not parts[1].startswith(b"/"):
        return "", ""
    with suppress(UnicodeDecodeError):
        return parts[0].decode("ascii"), parts[1].decode("ascii")
    return "", ""


def _refusal(code: int, reason: str) -> _Reply:
    import json  # not above, because few supervisors answer probes

    status = "unavailable" if code == 503 else "error"
    return _Reply(code, _JSON, json.dumps({"status": status, "reason": reason}, separators=(",", ":")).encode())


def _written(reply: _Reply, *, head: bool) -> bytes:
    fields = (
        f"HTTP/1.1 {reply.code} {_REASONS[reply.code]}",
        f"Content-Type: {reply.kind}",
        f"Content-Length: {len(reply.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    )
    return "\r\n".join((*fields, "", "")).encode() + (b"" if head else reply.body)
