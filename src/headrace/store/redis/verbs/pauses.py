"""Pauses of queues, tenants and tasks."""

from __future__ import annotations

import asyncio
from datetime import datetime

from headrace.errors import StoreError
from headrace.model.records import Pause, PauseKind
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client, pairs
from headrace.store.redis.client.wire import Asked
from headrace.store.redis.element import from_us, to_us
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.records import paused_of, text_bytes
from headrace.store.redis.store_clock import StoreClock


class Pauses:
    """See the contract."""

    def __init__(self, client: Client, time: StoreClock, queues: QueueList) -> None:
        self._wire, self._keys, self._time, self._queues = client.wire, client.keys, time, queues

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        await self._pause(name, kind, -1 if until is None else to_us(until), by)

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        await self._pause(name, kind, "", "")

    async def _pause(self, name: str, kind: PauseKind, until: int | str, by: str) -> None:
        args = (self._time.given, kind, name, until, text_bytes(by))
        if kind == "queue":
            await self._queues.register([name])
            await self._queues.fill(scripts.PAUSE, [name], *args)
        else:
            await self._wire.run(scripts.PAUSE, self._keys.limits, *args)
        if kind == "tenant":
            await self._queues.spread_rules()

    async def pauses(self) -> list[Pause]:
        """One round trip, two on a cluster: a worker that was idle calls this before it starts a job."""
        home = self._keys.limits[0]
        hashes = [("HGETALL", home + name) for name in ("#t", "#a", "#p")]
        (tenants, tasks, paused), queues = await asyncio.gather(
            self._wire.command_many(hashes, home), self._queues.names() if self._keys.clustered else _nothing()
        )
        rows: list[tuple[PauseKind, str, bytes]] = []
        asks: list[Asked] = [(key, [("GET", key)]) for key in map(self._keys.paused, queues)]
        for queue, answer in zip(queues, await self._wire.ask_each(asks), strict=True):
            # A queue whose node does not answer gives no jobs, so it counts as not paused.
            rows.append(("queue", queue, b"" if isinstance(answer, StoreError) else answer[0] or b""))
        kinds: tuple[tuple[PauseKind, list[bytes]], ...] = (("tenant", tenants), ("task", tasks), ("queue", paused))
        for kind, words in kinds:
            for name, raw in pairs(words):
                rows.append((kind, name.decode(), raw))
        now = from_us(await self._time.now_us())
        pauses = [_pause(kind, name, raw) for kind, name, raw in sorted(rows)]
        return [pause for pause in pauses if pause is not None and (pause.until is None or pause.until > now)]


async def _nothing() -> list[str]:
    """On one server all pauses of queues are in one hash, so the list of queues is not needed."""
    return []


def _pause(kind: PauseKind, name: str, raw: bytes) -> Pause | None:
    paused = paused_of(raw)
    if paused.by is None or paused.since is None:
        return None
    return Pause(kind, name, paused.by, paused.since, paused.until)
