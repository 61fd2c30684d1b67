"""The floor of Redis: bare lists. The list of a lease stays, and one entry of a sorted set says that its jobs have ended."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.floors.base import PAYLOAD, Rows, Spent, sizes
from headrace.model.job import new_batch

_REDIS_CLAIM = """
local e = redis.call('LPOP', KEYS[1], ARGV[1])
if not e then return {} end
redis.call('RPUSH', KEYS[2], unpack(e))
redis.call('ZADD', KEYS[3], ARGV[2], KEYS[2])
return e
"""
_REDIS_DONE = """
if redis.call('ZREM', KEYS[2], KEYS[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[3], ARGV[1], KEYS[1])
return 1
"""


class RedisFloor:
    """Bare list lanes by the store's own client: RPUSH; LPOP into a lease list; an entry per lease in a sorted set."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def prepare(self) -> None:
        await self.drop()

    async def drop(self) -> None:
        async with self._wire() as wire:
            keys = await wire.command("headrace_bench", "KEYS", "headrace_bench:*")
            if keys:
                await wire.command("headrace_bench", "UNLINK", *keys)

    @asynccontextmanager
    async def _wire(self) -> AsyncGenerator[Any]:
        parse = importlib.import_module("headrace.store.redis.client.url").parse
        wire = importlib.import_module("headrace.store.redis.client.client").make_wire(parse(self._url))
        try:
            yield wire
        finally:
            await wire.close()

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Rows]:
        async with self._wire() as wire:
            claim = await wire.command("headrace_bench", "SCRIPT", "LOAD", _REDIS_CLAIM)
            done = await wire.command("headrace_bench", "SCRIPT", "LOAD", _REDIS_DONE)
            yield _RedisRows(wire, claim, done)

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[None]:
        yield  # Redis has no transaction to hold open

    async def wal(self) -> int | None:
        """Bytes of AOF; None: it is off. A rewrite would make it smaller: `auto-aof-rewrite-percentage 0` on the stand."""
        found = await self._info("persistence")
        return int(found["aof_current_size"]) if found.get("aof_enabled") == "1" else None

    async def stored(self) -> int:
        return int((await self._info("memory"))["used_memory"])

    async def spent(self) -> Spent | None:
        found = {**await self._info("cpu"), **await self._info("memory")}
        return Spent(float(found["used_cpu_user"]) + float(found["used_cpu_sys"]), int(found["used_memory"]))

    async def calls(self) -> int | None:
        return int((await self._info("stats"))["total_commands_processed"])

    async def _info(self, section: str) -> dict[str, str]:
        async with self._wire() as wire:
            info = (await wire.command("headrace_bench", "INFO", section)).decode()
        return dict(line.split(":", 1) for line in info.splitlines() if ":" in line)


class _RedisRows:
    def __init__(self, wire: Any, claim: bytes, done: bytes) -> None:
        self._wire, self._claim, self._done = wire, claim, done

    async def one(self) -> None:
        await self.jobs(1, 1)

    async def jobs(self, count: int, batch: int) -> None:
        for size in sizes(count, batch):
            prefix = new_batch().bytes[:14]
            elements = [prefix + i.to_bytes(2, "big") + PAYLOAD for i in range(size)]
            await self._wire.command("headrace_bench", "RPUSH", "headrace_bench:ready", *elements)

    async def done(self, count: int, batch: int) -> None:
        left, idle = count, 0
        while left > 0:
            size = min(batch, left)
            lease = f"headrace_bench:lease:{new_batch().hex}"
            keys = (3, "headrace_bench:ready", lease, "headrace_bench:leases")
            got = await self._wire.command("headrace_bench", "EVALSHA", self._claim, *keys, size, 0)
            if got:
                keys = (3, lease, "headrace_bench:leases", "headrace_bench:ended")
                await self._wire.command("headrace_bench", "EVALSHA", self._done, *keys, 0)
                left, idle = left - len(got), 0
            elif idle <= 200:
                idle += 1
                await asyncio.sleep(0.0005)
            else:  # no producer runs: only the entry
                await self._wire.command("headrace_bench", "ZADD", "headrace_bench:ended", 0, lease)
                left -= size
