"""A web application in a process of its own, with the server of headrace below `/queue`: `python mounted.py fastapi|django URL`.

It prints its address when it listens.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn

from headrace import Headrace
from headrace.integrations.starlette import lifespan
from headrace.server import asgi


def with_fastapi(app: Headrace) -> Any:
    from fastapi import FastAPI

    web = FastAPI(lifespan=lifespan(app))
    web.mount("/queue", asgi(app))

    @web.get("/hello")
    async def hello() -> str:
        return "hello"

    return web


def with_django(app: Headrace) -> Any:
    """Django has no mounts of its own, so its ASGI application is one of two that a Starlette application mounts."""
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.http import HttpRequest, HttpResponse
    from django.urls import path
    from starlette.applications import Starlette
    from starlette.routing import Mount

    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="for this test only", USE_TZ=True)
    django.setup()

    async def hello(request: HttpRequest) -> HttpResponse:
        return HttpResponse(b'"hello"')

    urlpatterns.append(path("hello", hello))
    routes = [Mount("/queue", app=asgi(app)), Mount("/", app=get_asgi_application())]
    return Starlette(routes=routes, lifespan=lifespan(app))


urlpatterns: list[Any] = []


def main() -> None:
    which, url = sys.argv[1:]
    app = Headrace(url)

    @app.task(name="greet")
    async def greet(name: str) -> str:
        return f"hello {name}"

    web = {"fastapi": with_fastapi, "django": with_django}[which](app)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(web, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
