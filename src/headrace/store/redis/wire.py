"""Which server to ask: the one there is, the primary that Sentinel names, or the node of a cluster that holds a slot."""

from __future__ import annotations

import asyncio
from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.store.redis import faults
from headrace.store.redis.asking import Wire
from headrace.store.redis.connection import Pool, Reply
from headrace.store.redis.faults import Cut, Refused
from headrace.store.redis.scripts import Script
from headrace.store.redis.url import Address


class SentinelWire(Wire):
    """The primary is whom the sentinels name."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._primary: tuple[str, int] | None = None

    async def pool_of(self, key: str) -> Pool:
        del key
        if self._primary is None:
            self._primary = await self._discover()
        return self.pool(*self._primary)

    async def look_again(self) -> None:
        self._primary = None

    async def _discover(self) -> tuple[str, int]:
        problem = "no sentinel answers"
        for host, port in self.address.hosts:
            try:
                answer = await self._ask_sentinel(host, port)
            except (Cut, Refused) as error:
                problem = f"{host}:{port}: {error}"
                continue
            if answer:
                return answer[0].decode(), int(answer[1])
            problem = f"the sentinel at {host}:{port} knows no {self.address.service!r}"
        raise Cut(problem, sent=False)

    async def _ask_sentinel(self, host: str, port: int) -> list[bytes] | None:
        ours = replace(self.address, db=0, username=None, password=self.address.sentinel_password)
        pool = Pool(host, port, ours)
        try:
            [answer] = await pool.ask([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.service)])
        finally:
            await pool.close()
        if isinstance(answer, Exception):
            raise answer
        found: list[bytes] | None = answer
        return found


class ClusterWire(Wire):
    """Every queue on the node that holds its slot."""

    clustered = True

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._slots: list[tuple[str, int] | None] = []
        self._looking = asyncio.Lock()

    async def pool_of(self, key: str) -> Pool:
        if not self._slots:
            await self._learn()
        node = self._slots[slot_of(key)]
        if node is None:
            await self.look_again()
            raise Refused("CLUSTERDOWN no node holds this slot")
        return self.pool(*node)

    async def run_many(self, script: Script, calls: Sequence[tuple[Sequence[str], tuple[Any, ...]]]) -> list[Reply]:
        return list(await asyncio.gather(*(self.run(script, keys, *args) for keys, args in calls)))

    async def wait(self, keys: Sequence[str], timeout: float) -> list[str]:
        # Queues live in different slots: one sleeper each, the first to wake ends the night.
        sleepers = [asyncio.ensure_future(super(ClusterWire, self).wait([key], timeout)) for key in keys]
        try:
            done, _ = await asyncio.wait(sleepers, return_when=asyncio.FIRST_COMPLETED)
            return [key for sleeper in done for key in sleeper.result()]
        finally:
            for sleeper in sleepers:
                sleeper.cancel()
            await asyncio.gather(*sleepers, return_exceptions=True)

    async def all_pools(self) -> list[Pool]:
        if not self._slots:
            await self._learn()
        return [self.pool(*node) for node in sorted({node for node in self._slots if node is not None})]

    async def look_again(self) -> None:
        self._slots = []

    async def _learn(self) -> None:
        async with self._looking:
            if self._slots:
                return
            problem: Exception = Cut("no node answers", sent=False)
            known = [*self._pools, *self.address.hosts]
            for host, port in dict.fromkeys(known):
                try:
                    [answer] = await self.pool(host, port).ask([("CLUSTER", "SLOTS")])
                except (Cut, Refused) as error:
                    if faults.unwelcome(error):
                        raise
                    problem = error
                    continue
                if isinstance(answer, Exception):
                    problem = answer
                    continue
                self._slots = _slots(answer, host)
                return
            if isinstance(problem, Cut):
                raise Cut(str(problem), sent=False)
            raise problem


def _slots(answer: list[Any], asked: str) -> list[tuple[str, int] | None]:
    """By slot: the node that holds it."""
    slots: list[tuple[str, int] | None] = [None] * 16384
    for first, last, primary, *_ in answer:
        # An empty name is the node that was asked.
        node = (primary[0].decode() or asked, int(primary[1]))
        slots[first : last + 1] = [node] * (last - first + 1)
    return slots


def make_wire(address: Address) -> Wire:
    if address.kind == "cluster":
        return ClusterWire(address)
    return SentinelWire(address) if address.kind == "sentinel" else Wire(address)


def slot_of(key: str) -> int:
    """Which of a cluster's slots a key is in: what stands in its first braces decides, if anything does."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return crc_hqx((tag if opened and closed and tag else key).encode(), 0) % 16384
