"""The listener: uvicorn with a limit on how long a request may take to arrive and how large its head may be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from headrace.errors import ConfigError
from headrace.runtime.sighup import on_hangup
from headrace.server.config import ServerSettings
from headrace.server.http import boundary, problems
from headrace.server.http.call import encode
from headrace.server.http.problems import Problem
from headrace.server.http.routes import new_request_id

if TYPE_CHECKING:
    from headrace.server.http.application import Application

log = logging.getLogger("headrace.server")

BACKLOG = 4096
SWEEP = 0.5
"""Seconds between checks for slow clients."""
DATE = 1.0
"""Seconds between updates of the date header."""
LINGER = 2.0
"""Seconds in which a refused client may stop sending."""
LINGER_BYTES = 2 * 1024 * 1024
"""Bytes that are read meanwhile and discarded."""

_ANSWER = (
    b"HTTP/1.1 %d %b\r\ncontent-type: application/problem+json\r\nx-content-type-options: nosniff\r\n"
    b"x-request-id: %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
)


def bare(problem: Problem) -> bytes:
    """A complete answer, for requests that do not reach the application."""
    request_id = new_request_id()
    document = problems.document(problem, request_id)
    body = encode(document)
    return _ANSWER % (problem.status, document["title"].encode(), request_id.encode(), len(body), body)


class _Exit:
    """The part of a transport that a response uses. The protocol closes it, because it knows what still comes in."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, protocol: Protocol) -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.leave


class _State(ServerState):
    """The connections of a server, and an event that is set when one of them closes."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()


class Protocol(HttpToolsProtocol):
    """One connection. It notes when its current request began to arrive, and a sweep checks all connections."""

    max_head = 64 * 1024

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.waiting_since: float | None = time.monotonic()
        """Since when a request arrives. None: it has arrived, or none is expected."""
        self.stuck_since: float | None = None
        """Since when the client does not read the answer."""
        self.leaving_since: float | None = None
        """Since when the last answer is sent, and further input is discarded."""
        self._head = 0
        self._thrown = 0
        self._exit: _Exit | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own narrowing
        super().connection_made(transport)
        self._exit = _Exit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if isinstance(self.server_state, _State):
            self.server_state.changed.set()
        # Otherwise both objects would stay until the garbage collector runs.
        self._exit = None
        if self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison]  # no request has come yet
            self.cycle.transport = self.transport

    def data_received(self, data: bytes) -> None:
        if self.leaving_since is not None:
            self._throw(data)
            return
        in_head = self.waiting_since is not None and self._head >= 0
        if in_head:
            self._head += len(data)
        super().data_received(data)
        if in_head and self._head > self.max_head and self.leaving_since is None:
            # The headers are not complete, so the application has not seen the request and this is the only answer.
            self._refuse(boundary.too_many_headers())

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "malformed_request", msg))

    def _refuse(self, problem: Problem) -> None:
        self.transport.write(bare(problem))
        self.leave()

    def leave(self) -> None:
        """Close so that a client that still sends its request gets the answer.

        Closing a socket with unread bytes resets the connection, and a client that still sends sees an error instead of
        the answer. So the server closes its sending side first, and discards the input for a while.
        """
        if self.waiting_since is None or not self.transport.can_write_eof():
            self.transport.close()
        elif self.leaving_since is None and not self.transport.is_closing():
            self.leaving_since = time.monotonic()
            self._let_go()
            self.flow.resume_reading()
            self.transport.write_eof()

    def _let_go(self) -> None:
        """Release the memory of the input, so that many closing connections take no more than their sockets."""
        self.parser = cast("Any", None)  # as uvicorn does at the end
        self.headers = []
        self.pipeline.clear()
        if self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison]  # no request has come yet
            self.cycle.body.clear()

    def _throw(self, data: bytes) -> None:
        self._thrown += len(data)
        if self._thrown > LINGER_BYTES:
            # The client may still read the answer. Closing now would discard it.
            self.flow.pause_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.waiting_since = time.monotonic()
        self._head = 0

    def on_headers_complete(self) -> None:
        self._head = -1
        super().on_headers_complete()
        # The task of the request has not started yet.
        self.cycle.transport = cast("asyncio.Transport", self._exit)

    def on_message_complete(self) -> None:
        self.waiting_since = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        self.stuck_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stuck_since = None
        super().resume_writing()

    def overdue(self, now: float, patience: float) -> bool:
        """Whether the client's time is over."""
        if self.leaving_since is not None:
            return now - self.leaving_since > LINGER
        if self.waiting_since is not None and self.flow.read_paused:
            self.waiting_since = now  # the server does not read: it still answers the earlier request
        waiting, stuck = self.waiting_since, self.stuck_since
        return (waiting is not None and now - waiting > patience) or (stuck is not None and now - stuck > 3 * patience)


class Server(uvicorn.Server):
    """A uvicorn server that disconnects slow clients, and tells the service when it stops."""

    def __init__(
        self,
        frame: Application,
        settings: ServerSettings,
        *,
        signals: bool = True,
        listening: Callable[[int], None] | None = None,
    ) -> None:
        """Without `signals`, only `stop` ends it. `listening` is called with the port."""
        self._frame = frame
        frame.server_calls_stop = True
        self._settings = settings
        self._signals = signals
        self._listening = listening
        self._up = asyncio.Event()
        Protocol.max_head = settings.max_header_bytes + 4096
        config = uvicorn.Config(
            frame,
            host=settings.host,
            port=settings.port,
            http=Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=int(settings.keep_alive),
            timeout_graceful_shutdown=int(settings.drain),
            backlog=BACKLOG,
        )
        super().__init__(config)
        self.server_state = self._state = _State()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self.sweeper: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Stop after the accepted requests. May be called from any thread and from a signal handler."""
        self.should_exit = True
        self._wake()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            # A plain `set` would not wake a sleeping event loop.
            loop.call_soon_threadsafe(self._stopping.set)
            loop.call_soon_threadsafe(self._state.changed.set)

    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.sweeper = asyncio.create_task(self._sweep(), name="headrace-sweep")
        self._up.set()
        if self.started and self._listening is not None:
            self._listening(self.port)

    async def up(self) -> None:
        """Returns when it listens."""
        await self._up.wait()

    @property
    def port(self) -> int:
        """The port, also if the system has chosen it."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """The first TERM, INT or closed terminal lets accepted requests finish, a second INT does not."""
        if not self._signals:
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        on_hangup(lambda: self.handle_exit(signal.SIGTERM, None))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def main_loop(self) -> None:
        # uvicorn polls ten times a second whether it should stop. Here it waits for an event.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE):
                    await self._stopping.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        """Finish accepted requests, then close the application. Unlike uvicorn's method, it waits for events only."""
        self._frame.stop()
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._finish()
        except TimeoutError:
            log.warning("requests are cancelled: %d still ran after the drain time", len(self._state.tasks))
            for task in self._state.tasks:
                task.cancel("the drain time is over")
        if not self.force_exit:
            await self.lifespan.shutdown()
        if self.sweeper is not None:
            self.sweeper.cancel()

    async def _finish(self) -> None:
        """Returns when every connection is closed and every request answered, or when a second INT arrives."""
        watched: set[asyncio.Task[None]] = set()
        while (self._state.connections or self._state.tasks) and not self.force_exit:
            self._state.changed.clear()
            for task in self._state.tasks - watched:
                task.add_done_callback(self._changed)
                watched.add(task)
            await self._state.changed.wait()
        for server in self.servers:
            await server.wait_closed()

    def _changed(self, _: asyncio.Task[None]) -> None:
        self._state.changed.set()

    async def _sweep(self) -> None:
        patience = self._settings.read_timeout - SWEEP
        while True:
            await asyncio.sleep(SWEEP)
            now = time.monotonic()
            for protocol in list(self.server_state.connections):
                connection = cast("Protocol", protocol)
                if connection.overdue(now, patience):
                    connection.transport.abort()


def bound(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A name such as localhost has both. IPv4 works for most clients.
    family, kind, protocol, _, address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    # The protocol is given explicitly, because asyncio sets TCP_NODELAY only then. Else answers wait up to 40 ms.
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


@asynccontextmanager
async def alongside(frame: Application, settings: ServerSettings) -> AsyncGenerator[str, None]:
    """Serve while other code runs in the same event loop. Returns the address. Raises OSError if it is taken."""
    with bound(settings.host, settings.port) as listening:
        server = Server(frame, settings, signals=False)
        serving = asyncio.create_task(server.serve([listening]), name="headrace-server")
        up = asyncio.create_task(server.up())
        await asyncio.wait([serving, up], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        try:
            yield f"http://{settings.host}:{listening.getsockname()[1]}"
        finally:
            server.stop()
            await serving


def run(frame: Application, settings: ServerSettings, listening: Callable[[int], None] | None) -> None:
    """Serve until TERM or INT. Accepted requests are finished."""
    try:
        sockets = [bound(settings.host, settings.port)]
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {settings.host}:{settings.port}, {error.strerror}: give another port or host"
        ) from None
    with sockets[0]:
        Server(frame, settings, listening=listening).run(sockets)
