"""A server under load: `python -m benchmarks.http.server`, the real one or a bare route. It ends when stdin does."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from uuid import UUID

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.http import limits
from benchmarks.http.orders import Serve, Up
from headrace.bench.load import Load
from headrace.runtime.event_loop import run
from headrace.server import ServerSettings, asgi
from headrace.server.api.job_request import JobRequest
from headrace.server.api.jobs import Created
from headrace.server.http.listener import Server

_ID = UUID("01890a5d-ac96-774b-bcce-b302099a0001")


def bare() -> uvicorn.Server:
    """A Starlette route that reads the same body, answers the same, and does nothing else."""
    decode = msgspec.json.Decoder(JobRequest).decode
    encode = msgspec.json.Encoder().encode

    async def create(request: Request) -> Response:
        decode(await request.body())
        return Response(encode(Created(_ID)), 201, media_type="application/json")

    # As the real server has it.
    config = uvicorn.Config(
        Starlette(routes=[Route("/v1/jobs", create, methods=["POST"])]),
        host="127.0.0.1",
        port=0,
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        backlog=4096,
    )
    return uvicorn.Server(config)


def real(order: Serve) -> uvicorn.Server:
    """The server as `headrace serve` runs it, without the access log."""
    usual = ServerSettings()
    settings = ServerSettings(
        port=0,
        access_log=False,
        max_failures=order.max_failures or usual.max_failures,
        max_polls=order.max_polls or usual.max_polls,
    )
    return Server(asgi(Load(order.url, order.queue).app, settings=settings), settings)


def _tell(answer: object) -> None:
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    sys.stdout.flush()


def _listen(server: uvicorn.Server) -> None:
    for _ in sys.stdin:
        _tell(limits.spent())
    # The run has ended.
    if isinstance(server, Server):
        server.stop()
    else:
        server.should_exit = True


async def main(order: Serve) -> None:
    limits.raise_files()
    server = bare() if order.what == "bare" else real(order)
    config = server.config
    here = socket.create_server(("127.0.0.1", 0), backlog=config.backlog)
    # The socket listens from here on. A client that connects before the server has started waits a little.
    _tell(Up(int(here.getsockname()[1])))
    threading.Thread(target=_listen, args=(server,), daemon=True).start()
    await server.serve([here])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    run(main(msgspec.json.decode(sys.stdin.readline(), type=Serve)))
