"""A server that runs in a test's own event loop, the app it serves, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2

from headrace import Headrace, Retry
from headrace.operate import tokens
from headrace.server import ServerSettings, asgi
from headrace.server.http.application import Application
from headrace.server.http.listener import Server
from headrace.server.state import ServerState
from headrace.store.contract import Store


@dataclass(slots=True)
class Running:
    """A server under test."""

    url: str
    port: int
    app: Headrace
    frame: Application
    server: Server
    service: ServerState
    http: httpx2.AsyncClient
    """Without a token."""

    @property
    def store(self) -> Store:
        """The server's own."""
        return self.service.store

    async def token(self, *scopes: str, name: str = "", **bound: Any) -> str:
        """A fresh token that this server knows already."""
        made, _ = await tokens.create(self.store, name or f"t{uuid4().hex}", scopes=scopes, **bound)
        self.service.auth.forget()  # The server would read the tokens within a second.
        return made

    def client(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        """Another client. The caller closes it."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=60, verify=False)


class Calls:
    """Tells when a method of some object was called, which goes on as ever."""

    def __init__(self, owner: Any, name: str) -> None:
        self._seen = asyncio.Semaphore(0)
        method = getattr(owner, name)

        def called(*given: Any, **named: Any) -> Any:
            self._seen.release()
            return method(*given, **named)

        setattr(owner, name, called)

    async def __call__(self, count: int = 1) -> None:
        """Return when it was called so many times more."""
        async with asyncio.timeout(60):
            for _ in range(count):
                await self._seen.acquire()


def make_app(url: str) -> Headrace:
    """An app with a few tasks of every kind."""
    app = Headrace(url)
    app.queue("foreign", foreign=True)
    app.queue("short", max_length=3)

    @app.task(name="add")
    async def add(a: int, b: int = 0) -> int:
        return a + b

    @app.task(name="echo")
    async def echo(value: Any = None, **more: Any) -> Any:
        return more or value

    @app.task(name="fail", queue="broken", retry=Retry(max_attempts=1))
    async def fail(why: str = "as asked") -> None:
        raise RuntimeError(why)

    @app.task(name="login", redact=["password"])
    async def login(user: str, password: str) -> None:
        raise RuntimeError(f"wrong password {password} of {user}")

    def shop_of(order: int, shop: str) -> str:
        return shop

    @app.task(name="charge", queue="billing", tenant=shop_of)
    async def charge(order: int, shop: str) -> int:
        return order

    return app


@asynccontextmanager
async def running(
    app: Headrace, settings: ServerSettings | None = None, *, store: Store | None = None
) -> AsyncGenerator[Running, None]:
    """A server of this app on a free port of this machine. A given store is open, and may belong to another server."""
    settings = settings or ServerSettings(port=0)
    frame = asgi(app, settings=settings, store=store)
    server = Server(frame, settings, signals=False)
    serving = asyncio.create_task(server.serve(), name="server")
    try:
        await server.up()
        port = server.port
        url = f"http://127.0.0.1:{port}"
        # Without TLS there is nothing to verify, and reading all certificates takes longer than most tests.
        async with httpx2.AsyncClient(base_url=url, timeout=60, verify=False) as http:
            yield Running(url, port, app, frame, server, await frame.service(), http)
    finally:
        server.stop()
        await serving
        await app.aclose()
