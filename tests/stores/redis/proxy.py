"""A proxy that loses answers: what was asked reaches the server, what it says does not come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from servers.redis import RedisServer


class Proxy:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        self.spare_answers = 0
        """So many answers to `cut_word` come through before."""
        self.cut_answers = 0
        """So many answers that come next to `cut_word` are lost, each with its connection."""
        self.cut_word = b"EVALSHA"
        """Which command's answers those are."""
        self.silent = False
        """Half open: takes everything, says nothing."""
        self.cuts = 0
        self.port = 0
        self._spell = 0
        self.unheard: set[asyncio.StreamReader] = set()
        """Connections that are half open and were asked something since."""

    @property
    def url(self) -> str:
        return f"redis://:{self._server.password}@127.0.0.1:{self.port}/0"

    def half_open(self) -> None:
        """The connections that there are say nothing from here on; new ones are well."""
        self._spell += 1

    def lead_to(self, server: RedisServer) -> None:
        """New connections go there."""
        self._server = server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self._server.port)
        asked: list[bytes] = [b""]
        born = self._spell
        back = asyncio.ensure_future(self._answers(inner, writer, asked))
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                if born < self._spell:
                    self.unheard.add(reader)
                    continue
                asked[0] += data
                outer.write(data)
                await outer.drain()
        back.cancel()
        outer.close()
        writer.close()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bytes]) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.silent:
                    continue
                meant, asked[0] = self.cut_word in asked[0], b""
                if meant and self.spare_answers:
                    self.spare_answers -= 1
                elif meant and self.cut_answers:
                    self.cut_answers -= 1
                    self.cuts += 1
                    writer.transport.abort()
                    return
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def between(server: RedisServer) -> AsyncGenerator[Proxy]:
    proxy = Proxy(server)
    listener = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
