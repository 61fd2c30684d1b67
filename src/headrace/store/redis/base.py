"""What every verb of the Redis store needs: the way to the servers, the queues there are, and the time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from headrace.clock import Clock
from headrace.errors import OutcomeUnknown
from headrace.store.redis import scripts
from headrace.store.redis.connection import Reply
from headrace.store.redis.element import from_us, to_us
from headrace.store.redis.keys import Keys
from headrace.store.redis.scripts import Script
from headrace.store.redis.url import parse
from headrace.store.redis.wire import make_wire

STEP: Final = 500
"""Jobs that one script moves at most: a script holds up everybody."""

_FRESH: Final = 30.0
"""Seconds for which the server's clock and the list of queues are taken as known."""

_T = TypeVar("_T")


def chunks(items: Sequence[_T], size: int) -> Iterable[Sequence[_T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


class Base:
    """Shared by the verbs."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._address = parse(url)
        self._wire = make_wire(self._address)
        self._keys = Keys(self._address.prefix, self._wire.clustered)
        self._clock = clock
        self._registered: set[str] = set()
        self._server_us = 0
        self._measured = float("-inf")

    # ── time ────────────────────────────────────────────────────────────────

    @property
    def _given(self) -> str:
        """What scripts take as the time: nothing for the server's own."""
        return "" if self._clock is None else str(to_us(self._clock.now()))

    async def _now_us(self) -> int:
        """The store's clock, without asking for it each time: the server's at its last word and what has passed since."""
        if self._clock is not None:
            return to_us(self._clock.now())
        passed = asyncio.get_running_loop().time() - self._measured
        if passed > _FRESH:
            await self._refresh()
            passed = 0.0
        return self._server_us + int(passed * 1_000_000)

    async def _refresh(self) -> None:
        """Ask for the time, and say again which queues there are: somebody may have flushed the server."""
        seconds, micro = await self._wire.command(self._keys.queues, "TIME")
        self._server_us = int(seconds) * 1_000_000 + int(micro)
        self._measured = asyncio.get_running_loop().time()
        if self._registered:
            await self._wire.command(self._keys.queues, "SADD", self._keys.queues, *self._registered)

    async def now(self) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        await self._refresh()
        return from_us(self._server_us)

    # ── queues ──────────────────────────────────────────────────────────────

    async def _register(self, queues: Iterable[str]) -> None:
        """Janitors and onlookers find queues by this list, so a queue is on it before its first job is."""
        new = set(queues) - self._registered
        if new:
            await self._wire.command(self._keys.queues, "SADD", self._keys.queues, *new)
            # On the list first: whoever changes a rule now either sees the queue there or is seen here.
            await self._follow(new)
            self._registered |= new

    async def _follow(self, queues: Iterable[str]) -> None:
        """On a cluster each queue has its own copy of the rules and of the tenants that are paused."""
        names = sorted(queues)
        if not self._keys.clustered or not names:
            return
        version, rules, tenants = await self._wire.run(scripts.RULES, self._keys.limits)
        if int(version):
            await self._run_each(scripts.FOLLOW, names, version, len(rules), *rules, *tenants)

    async def _queues(self) -> list[str]:
        """Every queue there is."""
        found = await self._wire.command(self._keys.queues, "SMEMBERS", self._keys.queues)
        return sorted(name.decode() for name in found)

    # ── scripts ─────────────────────────────────────────────────────────────

    async def _run(self, script: Script, queue: str, *args: Any) -> Reply:
        """A script that may be repeated: after a lost answer it is."""
        return await self._wire.run(script, self._keys.of(queue), *args)

    async def _run_each(self, script: Script, queues: Sequence[str], *args: Any) -> list[Reply]:
        """The same on each of these queues."""
        return await self._wire.run_many(script, [(self._keys.of(queue), args) for queue in queues])

    async def _confirmed(self, key: str) -> None:
        """Wait for as many replicas as the URL asks for to have what was written."""
        wanted = self._address.replicas
        if not wanted:
            return
        got = await self._wire.command(key, "WAIT", wanted, 1000)
        if got < wanted:
            raise OutcomeUnknown(
                f"stored, but only {got} of {wanted} replicas confirmed it within 1 s: it may be lost in a failover; ask again"
            )
