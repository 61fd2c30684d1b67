"""`/livez`, `/readyz`, `/healthz`: whether the process lives, and whether it can serve."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from starlette.responses import Response

from headrace.errors import HeadraceError
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint
from headrace.server.http.problems import Problem

_PATIENCE = 2.0
"""Seconds in which the store must answer."""


class Health(msgspec.Struct):
    """All is well."""

    status: Literal["ok"] = "ok"


_OK = Health()


async def live(call: Call) -> Response:  # noqa: ARG001 - every handler takes a call
    """GET /livez, /healthz"""
    return answer(_OK)


async def ready(call: Call) -> Response:
    """GET /readyz"""
    if call.service.stopping:
        raise Problem(503, "stopping", "this server is about to stop")
    try:
        async with asyncio.timeout(_PATIENCE):
            await call.service.store.now()
    except (HeadraceError, TimeoutError):
        raise Problem(503, "store_unavailable", "the store does not answer") from None
    return answer(_OK)


ENDPOINTS = (
    *(
        Endpoint(
            method="GET",
            path=path,
            scope=None,
            does="Check that the process runs.",
            handler=live,
            answers={200: Health},
        )
        for path in ("/livez", "/healthz")
    ),
    Endpoint(
        method="GET",
        path="/readyz",
        scope=None,
        does="Check that the store answers and that the server is not stopping.",
        handler=ready,
        answers={200: Health},
        problems=((503, "stopping"),),
    ),
)
