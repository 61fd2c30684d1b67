"""Constant reads of figures, and a worker that claims meanwhile."""

from __future__ import annotations

import asyncio
import time
from itertools import cycle

import msgspec

from benchmarks.http.orders import Claims, Driven, Poll, Polled
from benchmarks.http.wire import Connection, look, read_lease, request, settlement, unexpected
from headrace.bench.load import Load
from headrace.bench.roles import Spec
from headrace.bench.roles import claim as claim_alone


class _AtOnce:
    """A connection that never waits for the run."""

    async def ready(self) -> None: ...

    async def stopped(self) -> None: ...

    def settled(self, count: int) -> None: ...


async def claims(order: Claims) -> Driven:
    """One job after the other."""
    if order.url:
        spec = Spec(role="claim", url=order.url, engine="", queue=order.queue, count=order.count)
        done = await claim_alone(spec, Load(order.url, order.queue), _AtOnce())
        return Driven(began=done.began, ended=done.ended, samples=done.samples)
    connection = await Connection.open(order.port)
    asked = {"queues": [order.queue], "limit": 1, "worker": "bench"}
    claim = request(order.port, "/v1/claim", msgspec.json.encode(asked))
    samples: list[float] = []
    first = time.monotonic()
    try:
        for _ in range(order.count):
            began = time.monotonic()
            status, body = await connection.ask(claim)
            samples.append(time.monotonic() - began)
            if status != 200:
                raise unexpected(status, body or b"no job, though some wait")
            status, body = await connection.ask(settlement(order.port, read_lease(body)))
            if status != 200:
                raise unexpected(status, body)
    finally:
        connection.close()
    return Driven(began=first, ended=time.monotonic(), samples=samples)


class Polling:
    """Reads at a steady rate, however long the answers take."""

    def __init__(self, order: Poll) -> None:
        self._order = order
        self._began = time.monotonic()
        self._answered = self._refused = 0
        self._over = asyncio.Event()
        self._silent = set(range(order.connections))
        self._all_answered = asyncio.Event()
        self._looking = [asyncio.create_task(self._look(number)) for number in range(order.connections)]

    async def _look(self, number: int) -> None:
        order = self._order
        connection = await Connection.open(order.port)
        every = order.connections / order.rate
        due = self._began + every * number / order.connections
        try:
            for path in cycle(order.paths):
                try:
                    await asyncio.wait_for(self._over.wait(), max(0.0, due - time.monotonic()))
                except TimeoutError:
                    due += every
                else:
                    return
                status, body = await connection.ask(look(order.port, path))
                self._answered += 1
                self._silent.discard(number)
                if not self._silent:
                    self._all_answered.set()
                if status == 429:
                    self._refused += 1
                elif status != (200 if order.at == "figures" else 404):
                    raise unexpected(status, body)
        finally:
            connection.close()

    async def started(self) -> None:
        """Wait for the first answer on each connection, because a few claims are made before a slow machine reads at all."""
        answered = asyncio.create_task(self._all_answered.wait())
        # A connection that fails ends the wait, and `rest` raises its error.
        await asyncio.wait([answered, *self._looking], return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()

    async def rest(self) -> Polled:
        """The results so far."""
        self._over.set()
        await asyncio.gather(*self._looking)
        return Polled(self._answered, self._refused, time.monotonic() - self._began)
