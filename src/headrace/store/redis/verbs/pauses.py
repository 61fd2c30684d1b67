"""What holds jobs back: pauses of queues, tenants and tasks, and the rules of limits."""

from __future__ import annotations

import asyncio
from datetime import datetime

from headrace.errors import StoreError
from headrace.model.records import LimitRule, Pause, PauseKind
from headrace.store.redis import scripts
from headrace.store.redis.asking import Asked
from headrace.store.redis.element import from_us, to_us
from headrace.store.redis.records import paused_of, rule_bytes, rule_of, text_bytes
from headrace.store.redis.verbs.moves import Operating


class Holding(Operating):
    """See the contract."""

    # ── pauses ──────────────────────────────────────────────────────────────

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        await self._pause(name, kind, -1 if until is None else to_us(until), by)

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        await self._pause(name, kind, "", "")

    async def _pause(self, name: str, kind: PauseKind, until: int | str, by: str) -> None:
        if kind == "queue":
            await self._register([name])
        keys = self._keys.of(name) if kind == "queue" else self._keys.limits
        await self._wire.run(scripts.PAUSE, keys, self._given, kind, name, until, text_bytes(by))
        if kind == "tenant":
            await self._spread_rules()

    async def pauses(self) -> list[Pause]:
        """One round trip, two on a cluster: a worker that has rested looks before it starts a job."""
        home = self._keys.limits[0]
        hashes = [("HGETALL", home + name) for name in ("#t", "#a", "#p")]
        (tenants, tasks, paused), queues = await asyncio.gather(
            self._wire.command_many(hashes, home), self._queues() if self._keys.clustered else _nothing()
        )
        found: list[tuple[PauseKind, str, bytes]] = []
        asks: list[Asked] = [(key, [("GET", key)]) for key in map(self._keys.paused, queues)]
        for queue, answer in zip(queues, await self._wire.ask_each(asks), strict=True):
            # Nobody claims from a queue whose node does not answer, paused or not.
            found.append(("queue", queue, b"" if isinstance(answer, StoreError) else answer[0] or b""))
        kinds: tuple[tuple[PauseKind, list[bytes]], ...] = (("tenant", tenants), ("task", tasks), ("queue", paused))
        for kind, pairs in kinds:
            for name, raw in zip(pairs[::2], pairs[1::2], strict=True):
                found.append((kind, name.decode(), raw))
        now = from_us(await self._now_us())
        pauses = [_pause(kind, name, raw) for kind, name, raw in sorted(found)]
        return [pause for pause in pauses if pause is not None and (pause.until is None or pause.until > now)]

    # ── limits ──────────────────────────────────────────────────────────────

    async def limits(self) -> dict[str, LimitRule]:
        key = self._keys.limits[0] + "#r"
        found = await self._wire.command(key, "HGETALL", key)
        pairs = sorted(zip(found[::2], found[1::2], strict=True))
        return {name.decode(): rule_of(raw) for name, raw in pairs}

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        said = b"0" if rule is None else b"1" + rule_bytes(rule)
        expected = "" if expect is None else expect
        keys = self._keys.limits
        # Not repeated after a lost answer: one's own write would look like somebody else's.
        version: int = await self._wire.run(scripts.LIMIT, keys, name, expected, said, repeat=False)
        if version < 0:
            return None
        await self._confirmed(keys[0])
        await self._spread_rules()
        return version

    async def _spread_rules(self) -> None:
        """On a cluster every queue gets its copy."""
        if self._keys.clustered:
            await self._follow(await self._queues())


async def _nothing() -> list[str]:
    """On one server the queues that are paused are kept in one place."""
    return []


def _pause(kind: PauseKind, name: str, raw: bytes) -> Pause | None:
    paused = paused_of(raw)
    if paused.by is None or paused.since is None:
        return None
    return Pause(kind, name, paused.by, paused.since, paused.until)
