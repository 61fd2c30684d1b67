"""A server in a thread of its own, in front of a memory store: what the store "http" of the suites talks to."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
import uvicorn

from headrace import Headrace
from headrace.model.clock import Clock, SystemClock
from headrace.server import ServerSettings, asgi
from headrace.server.http.application import Application
from headrace.store.http.store import HttpStore
from headrace.store.memory import MemoryStore


class Hands:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.by: Clock = SystemClock()

    def now(self) -> datetime:
        return self.by.now()

    def monotonic(self) -> float:
        return self.by.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self.by.sleep(seconds)


class HttpStand:
    """One uvicorn, one server after the other behind it, each with an empty store."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._url = url
        self._loop = loop
        self._app = Headrace("memory://", max_payload=64 * 1024 * 1024)
        self._clock = Hands()
        self._frame: Application | None = None
        # The suites look at once at what they have written, as often as they like, in queues of any number.
        self._settings = ServerSettings(tidy=False, stats_ttl=0.0, max_polls=1_000_000, max_queues=100_000)

    def fresh(self) -> str:
        """The URL of a server whose store is empty, and lives by the machine's clock until it is given another."""
        self.clear()
        self._clock = Hands()
        store = MemoryStore(clock=self._clock)
        self._frame = asgi(self._app, settings=self._settings, store=store)
        return self._url

    def live_by(self, clock: Clock) -> None:
        """From now on; one store has one clock, so the first one counts."""
        if isinstance(self._clock.by, SystemClock):
            self._clock.by = clock

    def clear(self) -> None:
        frame, self._frame = self._frame, None
        if frame is not None:
            asyncio.run_coroutine_threadsafe(frame.aclose(), self._loop).result()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._frame is not None
        await self._frame(scope, receive, send)


@contextmanager
def http_stand() -> Generator[HttpStand]:
    """For a whole test process."""
    # Of this very protocol: asyncio sends at once on such sockets only, else every answer waits 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        # Before the thread runs, so that a client that comes before uvicorn waits and is not refused.
        listening.listen(2048)
        loop = asyncio.new_event_loop()
        stand = HttpStand(f"http://127.0.0.1:{listening.getsockname()[1]}", loop)
        server = uvicorn.Server(
            uvicorn.Config(stand, lifespan="off", log_config=None, access_log=False, ws="none", timeout_keep_alive=30)
        )
        thread = threading.Thread(target=_serve, args=(loop, server, listening), name="http-stand", daemon=True)
        thread.start()
        try:
            yield stand
        finally:
            stand.clear()
            server.should_exit = True
            thread.join(60)


def _serve(loop: asyncio.AbstractEventLoop, server: uvicorn.Server, listening: socket.socket) -> None:
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # older uvicorns: signals belong to pytest
    try:
        loop.run_until_complete(server.serve([listening]))
    finally:
        loop.close()


def hand_over_clocks(stand: HttpStand, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a clock that a test gives to `connect` is the one of the server's store."""
    make = HttpStore.__init__

    def hand_over(self: HttpStore, url: str, *, clock: Clock | None = None) -> None:
        if clock is not None:
            stand.live_by(clock)
        make(self, url)

    monkeypatch.setattr(HttpStore, "__init__", hand_over)
