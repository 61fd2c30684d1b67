"""`/docs`: a small page that shows the API from /openapi.json. It needs no other network access."""

from __future__ import annotations

import functools
from importlib import resources

from starlette.responses import Response

from headrace.server.http.call import Call, HtmlPage
from headrace.server.http.endpoint import Endpoint

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""What a page of this server may do in a browser: load its own files, and nothing inline."""


@functools.cache
def _file(name: str) -> bytes:
    return resources.files("headrace.server").joinpath("page", name).read_bytes()


def _page(name: str, media: str) -> Response:
    return HtmlPage(
        _file(name), media_type=media, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
    )


async def page(call: Call) -> Response:  # noqa: ARG001 - every handler takes a call
    """GET /docs"""
    return _page("docs.html", "text/html; charset=utf-8")


async def script(call: Call) -> Response:  # noqa: ARG001 - every handler takes a call
    """GET /docs/docs.js"""
    return _page("docs.js", "text/javascript; charset=utf-8")


async def style(call: Call) -> Response:  # noqa: ARG001 - every handler takes a call
    """GET /docs/docs.css"""
    return _page("docs.css", "text/css; charset=utf-8")


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/docs",
        scope=None,
        does="Show this API as a web page.",
        handler=page,
        answers={200: str},
        media="text/html",
    ),
    Endpoint(
        method="GET",
        path="/docs/docs.js",
        scope=None,
        does="The script of the page.",
        handler=script,
        answers={200: str},
        media="text/javascript",
    ),
    Endpoint(
        method="GET",
        path="/docs/docs.css",
        scope=None,
        does="The style of the page.",
        handler=style,
        answers={200: str},
        media="text/css",
    ),
)
