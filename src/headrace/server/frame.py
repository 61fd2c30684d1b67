"""The frame: the ASGI application around the routes, and uvicorn around that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.app import Headrace
from headrace.server import routes
from headrace.server.config import ServerSettings
from headrace.server.resources import ENDPOINTS
from headrace.server.service import Service
from headrace.store.contract import Store


class Frame(Starlette):
    """The application. Errors become answers in the routes, so that no middleware stands before them."""

    def __init__(self, app: Headrace, settings: ServerSettings, store: Store | None) -> None:
        self._app = app
        self._settings = settings
        self._store = store
        self._open: Service | None = None
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        super().__init__(lifespan=self._lifespan)
        found = routes.routes(ENDPOINTS, self.service)
        self._exact = {route.path: route.app for route in found if not route.param_convertors}
        self.router = Router(
            found,
            redirect_slashes=False,
            default=routes.nowhere(self.service),
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Most requests go to a path without parameters: a look-up instead of a walk along the routes.
        gate = self._exact.get(scope["path"]) if scope["type"] == "http" and not scope.get("root_path") else None
        if gate is None:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        scope["path_params"] = {}
        await gate(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        return self.router

    async def service(self) -> Service:
        """The service, opened by the lifespan, or by the first request where a server runs none."""
        if self._open is None:
            async with self._opening:
                if self._open is None:
                    opening = Service.open(self._app, self._settings, self._store)
                    self._open = await self._stack.enter_async_context(opening)
        return self._open

    def stop(self) -> None:
        """Say that the end is near: no new long polls, and /readyz says no."""
        if self._open is not None:
            self._open.stop()

    async def aclose(self) -> None:
        """Close what was opened; the next request opens it again."""
        self._open = None
        await self._stack.aclose()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None, None]:
        await self.service()
        try:
            yield
        finally:
            await self.aclose()


def asgi(app: Headrace, *, settings: ServerSettings | None = None, store: Store | None = None) -> Frame:
    """The app's queue as an ASGI application, to be served or mounted. A store that is given is open already."""
    return Frame(app, settings or ServerSettings(), store)


def serve(
    app: Headrace, settings: ServerSettings | None = None, *, listening: Callable[[int], None] | None = None
) -> None:
    """Serve until told to stop by TERM or INT; what was accepted is finished.

    `listening` is called once callers are taken, with the port: useful where that was left to the system by port 0.
    """
    from headrace.server.listener import run

    run(asgi(app, settings=settings), settings or ServerSettings(), listening)
