"""The ASGI application with the routes, and how uvicorn serves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Self

from starlette.applications import Starlette
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.app import Headrace
from headrace.errors import ConfigError
from headrace.server.api.resources import ENDPOINTS
from headrace.server.config import ServerSettings
from headrace.server.http import routes
from headrace.server.http.shutdown import at_signal
from headrace.server.state import ServerState
from headrace.store.contract import Store


class _Held:
    """A service that a task of its loop keeps open. If the loop ends unexpectedly, that task closes the service."""

    def __init__(self, opening: AbstractAsyncContextManager[ServerState]) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[ServerState] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._hold(opening), name="headrace-service")

    async def _hold(self, opening: AbstractAsyncContextManager[ServerState]) -> None:
        try:
            async with opening as service:
                self._opened.set_result(service)
                await self._closing.wait()
        except Exception as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)

    async def opened(self) -> Self:
        """Wait until the service is open, or raise the error."""
        try:
            await self._opened
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return self

    @property
    def service(self) -> ServerState:
        return self._opened.result()

    @property
    def over(self) -> bool:
        """Whether its loop is closed, and everything in it."""
        return self._loop.is_closed()

    async def close(self) -> None:
        self._closing.set()
        await self._task


class Application(Starlette):
    """The application. The routes turn errors into answers, so no middleware is needed."""

    def __init__(self, app: Headrace, settings: ServerSettings, store: Store | None) -> None:
        self._app = app
        self._settings = settings
        self._store = store
        self.server_calls_stop = False
        """The web server calls `stop` before the end. False: signals announce it."""
        self._held: _Held | None = None
        self._opening = asyncio.Lock()
        super().__init__(lifespan=self._lifespan)
        table = routes.routes(ENDPOINTS, self.service)
        self._exact = {route.path: route.app for route in table if not route.param_convertors}
        self.router = Router(
            table,
            redirect_slashes=False,
            default=routes.nowhere(self.service),
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Most requests go to a path without parameters. A dictionary finds it faster than a search in the routes.
        gate = self._exact.get(scope["path"]) if scope["type"] == "http" and not scope.get("root_path") else None
        if gate is None:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        scope["path_params"] = {}
        await gate(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        return self.router

    async def service(self) -> ServerState:
        """The service. The lifespan opens it, or the first request if the web server runs no lifespan."""
        held = self._held
        if held is None or held.over:
            if held is not None:
                # A test client without a lifespan uses a loop for each request, and everything in that loop ends with
                # it.
                self._held, self._opening = None, asyncio.Lock()
            async with self._opening:
                if self._held is None:
                    self._held = await _Held(ServerState.open(self._app, self._settings, self._store)).opened()
                held = self._held
        return held.service

    def stop(self) -> None:
        """Announce the end: no new long polls, and /readyz fails."""
        if self._held is not None:
            self._held.service.stop()

    async def aclose(self) -> None:
        """Close what was opened; the next request opens it again."""
        held, self._held = self._held, None
        if held is not None and not held.over:
            await held.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None, None]:
        await self.service()
        try:
            with nullcontext() if self.server_calls_stop else at_signal(self.stop):
                yield
        finally:
            await self.aclose()


def asgi(app: Headrace, *, settings: ServerSettings | None = None, store: Store | None = None) -> Application:
    """The app as an ASGI application, to be served or mounted. A given store must be open."""
    if store is None and app.settings.url.startswith(("http://", "https://")):
        raise ConfigError(
            "a server cannot serve another server's jobs: give it the store itself, such as postgresql://… or redis://…"
        )
    return Application(app, settings or ServerSettings(), store)


def serve(
    app: Headrace, settings: ServerSettings | None = None, *, listening: Callable[[int], None] | None = None
) -> None:
    """Serve until TERM or INT. Accepted requests are finished.

    `listening` is called with the port when the server listens, which is useful for port 0.
    """
    from headrace.server.http.listener import run

    run(asgi(app, settings=settings), settings or ServerSettings(), listening)
