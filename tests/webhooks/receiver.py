"""A receiver of webhooks: a small HTTP server that answers as it is told, and remembers what it got."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def answer(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Got:
    """One request."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


Behave = Callable[[Got, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Receiver:
    port: int = 0
    answers: list[bytes] = field(default_factory=list)
    """To be given one after the other; then 200."""
    behave: Behave | None = None
    """Instead of answering."""
    got: list[Got] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str = "/hook", *, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def gets(self, count: int) -> list[Got]:
        async with asyncio.timeout(60):
            while len(self.got) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.got

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
            got = Got(line, headers, await reader.readexactly(int(headers["content-length"])))
            self.got.append(got)
            self.arrived.set()
            if self.behave is not None:
                await self.behave(got, writer)
            else:
                writer.write(self.answers.pop(0) if self.answers else OK)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiver(tls: ssl.SSLContext | None = None) -> AsyncGenerator[Receiver]:
    made = Receiver()
    calls: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        calls.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await made.serve(reader, writer)
        finally:
            calls.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for call in list(calls):
            call.cancel()
        if calls:
            await asyncio.wait(list(calls))
        await server.wait_closed()
