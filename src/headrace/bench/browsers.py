"""Browsers that watch a server: each asks for what the dashboard asks for, and follows the events of all jobs."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator

from headrace.bench.fork_server import BenchFailed

BROWSERS = 10
"""How many watch at the same time."""
OFTEN = "/v1/queues"
"""What a page of the dashboard reads each second."""
RARE = ("/v1/pauses", "/v1/workers", "/v1/limits")
"""What it reads every three seconds."""
HISTORY = "/v1/history?since=1h&by=end"
"""What a page with a chart reads every 15 seconds."""
PERIOD = 1.0
"""Seconds between two rounds of questions."""
_EVENT = b"\nevent: "
_PART = 1 << 16
"""Bytes of a stream that are read at once."""


class Browsers:
    """Ten pages of the dashboard, each with two connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answers = 0
        self.events = 0
        self._answered: set[int] = set()
        self._bell = asyncio.Event()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Watch until the end of the block. Raises BenchFailed if a browser got an error meanwhile."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(watch()) for _ in range(BROWSERS) for watch in (self._ask, self._follow)]
                yield
                for task in tasks:
                    task.cancel()
        except* BenchFailed as failures:
            raise failures.exceptions[0] from None

    async def until_answered(self, seconds: float) -> None:
        """Wait until each browser has had its first answers. Raises BenchFailed."""
        try:
            async with asyncio.timeout(seconds):
                while len(self._answered) < BROWSERS:
                    self._bell.clear()
                    await self._bell.wait()
        except TimeoutError:
            raise BenchFailed(
                f"{len(self._answered)} of {BROWSERS} browsers got answers within {seconds:.0f} s"
            ) from None

    async def _ask(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            # Pages are opened at different times.
            await asyncio.sleep(random.uniform(0, PERIOD))
            turn = random.randrange(15)
            while True:
                paths = (OFTEN, *(RARE if turn % 3 == 0 else ()), *((HISTORY,) if turn % 15 == 0 else ()))
                for path in paths:
                    await self._get(reader, writer, path)
                self._answered.add(id(reader))
                self._bell.set()
                turn += 1
                await asyncio.sleep(PERIOD)
        finally:
            writer.close()

    async def _get(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        length = await self._begin(reader, writer, path)
        await reader.readexactly(length)
        self.answers += 1

    async def _follow(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await self._begin(reader, writer, "/v1/events")
            rest = b"\n"
            while part := await reader.read(_PART):
                # All browsers are in one process beside the server. Reading line by line would take more time than the server does.
                self.events += (rest + part).count(_EVENT)
                rest = (rest + part)[1 - len(_EVENT) :]
            raise BenchFailed("the server has ended a stream of events")
        finally:
            writer.close()

    async def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> int:
        """Ask, and read the head of the answer. Returns the length of the body, 0 if it is a stream."""
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n\r\n".encode())
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        if " 200 " not in f"{status} ":
            raise BenchFailed(f"GET {path} answered {status}")
        lengths = [line.partition(":")[2] for line in headers if line.lower().startswith("content-length:")]
        return int(lengths[0]) if lengths else 0
