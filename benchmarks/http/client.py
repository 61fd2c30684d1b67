"""The load client: `python -m benchmarks.http.client`. One process, one order after the other, from stdin."""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec

from benchmarks.http import limits
from benchmarks.http.orders import (
    CLAIM,
    WAIT,
    Claims,
    Drive,
    Driven,
    Held,
    Hold,
    Order,
    PickUp,
    Poll,
    Polled,
    Rest,
    Work,
)
from benchmarks.http.polling import Polling, claims
from benchmarks.http.wire import Connection, gone, read_lease, request, settlement, unexpected
from headrace.runtime.event_loop import run

STEP = 100
"""Idle workers that connect at once."""
PER_ADDRESS = 5000
"""Connections from one local address, which has some 28,000 ports that stay in use for a minute after a close."""
KEPT_FREE = 100
"""Open files besides connections."""
QUIET = 0.02
"""Seconds between two jobs for idle workers."""


# ── drive ────────────────────────────────────────────────────────────────────


class _Driver:
    """One connection's share of a load: no task and no future per request."""

    def __init__(self, connection: Connection, load: _Load) -> None:
        self._connection = connection
        self._load = load
        self._began = 0.0
        connection.answered = self._answered
        connection.lost = lambda: load.fail(gone())

    def next(self) -> None:
        load = self._load
        if load.left <= 0:
            return
        load.left -= 1
        self._began = time.monotonic()
        self._connection.send(load.data)

    def _answered(self, status: int, body: bytes) -> None:
        load = self._load
        load.samples.append(time.monotonic() - self._began)
        if status != 201:
            load.fail(unexpected(status, body))
        elif len(load.samples) >= load.count:
            load.end()
        else:
            self.next()


class _Load:
    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        self.count = self.left = count
        self.samples: list[float] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)


async def drive(order: Drive) -> Driven:
    connections = [await Connection.open(order.port) for _ in range(order.connections)]
    load = _Load(request(order.port, order.path, order.body.encode()), order.count)
    try:
        began = time.monotonic()
        for connection in connections:
            _Driver(connection, load).next()
        await load.over
        return Driven(began=began, ended=time.monotonic(), samples=load.samples)
    finally:
        for connection in connections:
            connection.close()


# ── work ─────────────────────────────────────────────────────────────────────


async def work(order: Work) -> Driven:
    connection = await Connection.open(order.port)
    asked = {"queues": [order.queue], "limit": CLAIM, "worker": "bench"}
    claim = request(order.port, "/v1/claim", msgspec.json.encode(asked))
    samples: list[float] = []
    done = 0
    try:
        began = before = time.monotonic()
        while done < order.count:
            status, body = await connection.ask(claim)
            if status != 200:
                raise unexpected(status, body or b"no job, though some wait")
            lease = read_lease(body)
            status, body = await connection.ask(settlement(order.port, lease))
            if status != 200:
                raise unexpected(status, body)
            done += len(lease.jobs)
            after = time.monotonic()
            samples.append(after - before)
            before = after
        # The last claim may have returned more than was left. The figures per job stay the same.
        return Driven(began=began, ended=began + (before - began) * order.count / done, samples=samples)
    finally:
        connection.close()


# ── idle workers ─────────────────────────────────────────────────────────────


class _Idler:
    """A worker with nothing to do: its claim waits as long as it may, and is sent again."""

    def __init__(self, connection: Connection, crowd: Crowd, number: int) -> None:
        self._connection = connection
        self._crowd = crowd
        asked = {"queues": [crowd.queue], "wait": WAIT, "worker": f"bench-{number}"}
        self._claim = request(crowd.port, "/v1/claim", msgspec.json.encode(asked))
        self._settling = False
        connection.answered = self._answered
        connection.lost = lambda: crowd.fail(gone())

    def start(self) -> None:
        self._connection.send(self._claim)

    def _answered(self, status: int, body: bytes) -> None:
        if status == 204 or (status == 200 and self._settling):
            self._settling = False
            self.start()
        elif status == 200:
            self._crowd.claimed()
            self._settling = True
            self._connection.send(settlement(self._crowd.port, read_lease(body)))
        else:
            self._crowd.fail(unexpected(status, body))


class Crowd:
    """Idle workers that are held."""

    def __init__(self, order: Hold) -> None:
        self.port = order.port
        self.queue = order.queue
        self.size = 0
        self._next_claim: asyncio.Future[float] | None = None
        self._fault: Exception | None = None
        self._wanted = order.workers

    async def gather(self) -> None:
        wanted = min(self._wanted, limits.raise_files() - KEPT_FREE)
        for first in range(0, wanted, STEP):
            numbers = range(first, min(first + STEP, wanted))
            await asyncio.gather(*(self._join(number) for number in numbers))
        self.size = wanted
        # An answer on the last connection shows that the server has accepted all connections before it.
        connection = await Connection.open(self.port)
        await connection.ask(f"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n\r\n".encode())
        connection.close()

    async def _join(self, number: int) -> None:
        connection = await Connection.open(self.port, source=f"127.0.0.{1 + number // PER_ADDRESS}")
        _Idler(connection, self, number).start()

    async def pick_up(self, order: PickUp) -> Driven:
        connection = await Connection.open(self.port)
        data = request(self.port, "/v1/jobs", order.body.encode())
        samples: list[float] = []
        first = time.monotonic()
        for _ in range(order.count):
            await asyncio.sleep(QUIET)
            if self._fault is not None:
                raise self._fault
            self._next_claim = asyncio.get_running_loop().create_future()
            began = time.monotonic()
            status, body = await connection.ask(data)
            if status != 201:
                raise unexpected(status, body)
            samples.append(await self._next_claim - began)
        connection.close()
        return Driven(began=first, ended=time.monotonic(), samples=samples)

    def claimed(self) -> None:
        if self._next_claim is not None and not self._next_claim.done():
            self._next_claim.set_result(time.monotonic())

    def fail(self, error: Exception) -> None:
        self._fault = self._fault or error
        if self._next_claim is not None and not self._next_claim.done():
            self._next_claim.set_exception(error)


# ── the process ──────────────────────────────────────────────────────────────


class LoadClient:
    """Carries out one order after the other."""

    def __init__(self) -> None:
        self._crowd: Crowd | None = None
        self._polling: Polling | None = None

    async def obey(self, order: Order) -> Driven | Held | Polled:
        match order:
            case Drive():
                return await drive(order)
            case Work():
                return await work(order)
            case Hold():
                self._crowd = Crowd(order)
                await self._crowd.gather()
                return Held(self._crowd.size)
            case PickUp():
                assert self._crowd is not None  # The run sends Hold first.
                return await self._crowd.pick_up(order)
            case Claims():
                return await claims(order)
            case Poll():
                self._polling = Polling(order)
                await self._polling.started()
                return Held(order.connections)
            case Rest():
                assert self._polling is not None  # The run sends Poll first.
                return await self._polling.rest()


async def main() -> None:
    """Run until stdin ends, which is the end of the run."""
    client = LoadClient()
    decode = msgspec.json.Decoder(Order).decode
    # A thread waits for the pipe, because the loop serves connections meanwhile.
    while line := await asyncio.to_thread(sys.stdin.readline):
        answer = await client.obey(decode(line))
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run(main())
