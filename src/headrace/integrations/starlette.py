"""Starlette and FastAPI: the app is opened and closed with the web application, which may also run a worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount

from headrace.app import Headrace
from headrace.server.http.application import Application
from headrace.server.http.shutdown import at_signal

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
OwnLifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def lifespan(
    app: Headrace,
    *,
    worker: bool = False,
    concurrency: int | None = None,
    queues: Sequence[str] | None = None,
    within: OwnLifespan | None = None,
) -> Lifespan:
    """For `FastAPI(lifespan=lifespan(app, worker=True))`: the store is open while the web application runs.

    `worker`: jobs run in this process and are drained when it stops. Each process of the web server is one more worker.
    `within`: your own lifespan, run inside this one and around the worker. A mounted `headrace.server.asgi(…)` is opened and closed, too.
    """

    @asynccontextmanager
    async def run(web: Starlette) -> AsyncGenerator[Mapping[str, Any], None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app)
            for frame in mounted(web.routes):
                await frame.service()
                stack.push_async_callback(frame.aclose)
                stack.enter_context(at_signal(frame.stop))
            state = None if within is None else await stack.enter_async_context(within(web))
            if worker:
                # Entered last, so left first: resources of your lifespan stay open as long as jobs run.
                await stack.enter_async_context(app.worker(concurrency=concurrency, queues=queues))
            yield state or {}

    return run


def mounted(routes: Iterable[BaseRoute]) -> Iterator[Application]:
    """The mounted HTTP APIs of headrace. Starlette does not run the lifespan of a mounted application."""
    for route in routes:
        if isinstance(route, Mount):
            if isinstance(route.app, Application):
                yield route.app
            else:
                yield from mounted(route.routes)
