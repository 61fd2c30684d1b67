"""A table of ClickHouse as the tests look at it, sinks that fill it, and a proxy that keeps answers back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headrace.sink.sink import HistorySink, sink_of
from headrace.store.contract import Store
from servers.clickhouse import ClickHouseServer


@dataclass(frozen=True)
class Table:
    server: ClickHouseServer
    name: str
    url: str

    def rows(self) -> list[dict[str, Any]]:
        """All rows, as a query with FINAL shows them, in the order of their ends."""
        return self.server.query(f"SELECT * FROM {self.name} FINAL ORDER BY ended_at, id")

    def ids(self) -> list[UUID]:
        """The ids of the rows, with duplicates if the table should have any."""
        return sorted(UUID(row["id"]) for row in self.server.query(f"SELECT id FROM {self.name} FINAL"))

    def count(self) -> int:
        """How many rows are stored, with those that FINAL drops."""
        [row] = self.server.query(f"SELECT count() AS rows FROM {self.name}")
        return int(row["rows"])

    def sink(self, store: Store, holder: str = "host:1", **options: Any) -> HistorySink:
        return sink_of(store, self.url, holder=holder, **options)


class HoldingProxy:
    """Passes requests on to ClickHouse, and keeps answers back, or the ends of requests."""

    def __init__(self, server: ClickHouseServer) -> None:
        self._server = server
        self.port = 0
        self.answers = -1
        """How many answers it still passes on. -1: all of them."""
        self.bytes = -1
        """How many bytes of requests it still passes on. -1: all of them."""
        self.held = asyncio.Event()
        """An answer, or the end of a request, is kept back."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self._server.port)
        back = asyncio.ensure_future(self._answers(inner, writer))
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                if self.bytes >= 0:
                    data, rest = data[: self.bytes], data[self.bytes :]
                    self.bytes -= len(data)
                    if rest:
                        self.held.set()
                outer.write(data)
                await outer.drain()
        back.cancel()
        outer.close()
        writer.close()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = b""
        with suppress(ConnectionError, asyncio.CancelledError):
            while b"\r\n\r\n" not in answer:
                answer += await reader.read(65536)
            if self.answers == 0:
                self.held.set()
                return
            self.answers -= self.answers > 0
            writer.write(answer)
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.close()


@asynccontextmanager
async def holding(server: ClickHouseServer) -> AsyncGenerator[HoldingProxy]:
    proxy = HoldingProxy(server)
    listener = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
