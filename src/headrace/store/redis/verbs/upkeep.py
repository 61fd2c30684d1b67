"""The work of janitors: promote, prune, and drop keys that no job uses any more."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final
from uuid import UUID

from headrace.errors import OutcomeUnknown, StoreError, Unavailable
from headrace.model.job import JobId
from headrace.model.records import Progress, Promoted, Pruned, Retention
from headrace.store.redis.arguments import microseconds
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import STEP, Client, chunks, pairs
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.keys import LIMITS
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.records import seen_us
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.telling import Telling

_TIDY_STEPS: Final = 800
"""Scripts that tidy up in one prune. Each looks at about 25 locks, buckets and pauses."""
_PRUNE_STEPS: Final = 1000
"""Scripts that prune one queue in one call. Each drops about 100 jobs, or passes over a few hundred that gates keep."""
_FROM_THE_START: Final = ["-inf", 0] * 3
"""The places at which a walk through a queue's history begins: see `prune.lua`."""
_REMEMBERED: Final = 600_000_000
"""Microseconds for which the tokens of settled leases are kept, for a settle that is repeated after a lost answer."""
_LEAVING: Final = 100
"""Queues of a cluster that one prune forgets."""
_SOME, _EMPTY = 1, 2
"""The answers of `survey.lua` for queues that have something to drop, and for those without jobs."""
_NONE: Final = -1
"""Stands for no time in the answers of `promote.lua`."""
_SILENT: Final = 24 * 3600 * 1_000_000
"""Microseconds without a heartbeat after which a worker is forgotten."""


class Upkeep:
    """See the contract."""

    def __init__(self, client: Client, time: StoreClock, queues: QueueList, telling: Telling) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._queues, self._telling = time, queues, telling
        self._tidied: dict[str, Reply] = {}
        """The places at which the next `_tidy` continues, by queue."""
        self._pruned: dict[str, Reply] = {}
        """The same for `_prune_queue`."""

    async def promote(self, limit: int = 1000) -> Promoted:
        if self._keys.clustered:
            return await self._promote_each(limit)
        moved, wait, expiry = 0, 0, _NONE
        while wait == 0 and moved < limit:
            some, wait, expiry, _ = map(
                int, await self._wire.run(scripts.PROMOTE, self._keys.home, self._time.given, min(STEP, limit - moved))
            )
            moved += some
            if not some:
                break
        return _promoted(moved, wait, expiry)

    async def _promote_each(self, limit: int) -> Promoted:
        """On a cluster no script sees two queues."""
        moved = 0
        waits: dict[str, int] = {}
        expiries: dict[str, int] = {}
        asked = await self._queues.names()
        while asked:
            share = min(STEP, (limit - moved) // len(asked))
            answers = await self._client.ask_each(scripts.PROMOTE, asked, self._time.given, share)
            waits.update((queue, int(answer[1])) for queue, answer in answers.items())
            moved += sum(int(answer[0]) for answer in answers.values())
            expiries.update((queue, int(answer[2])) for queue, answer in answers.items())
            for queue, answer in answers.items():
                if int(answer[3]):
                    moved += await self._telling.try_to_tell(queue)
            asked = [queue for queue in answers if waits[queue] == 0][: max(0, limit - moved)]
        return _promoted(moved, _first(waits.values()), _first(expiries.values()))

    @property
    def hears(self) -> bool:
        """On a cluster no script of a queue reaches the marker of all queues."""
        return not self._keys.clustered

    async def wait_due(self, timeout: float) -> timedelta | None:
        try:
            return timedelta(0) if await self._wire.wait_apart(self._keys.due_marker, timeout) else None
        except OutcomeUnknown as error:
            # Nothing was written: a lost hint is no hint.
            raise Unavailable(str(error)) from error

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        await self._prune_gates(keep)
        dropped, more = 0, False
        round = self._client.round()
        marks = await self._old(keep)
        for queue in (queue for queue, mark in marks.items() if mark == _SOME):
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                gone, rest = await self._prune_queue(queue, keep, limit - dropped)
                dropped, more = dropped + gone, more or rest
                if progress is not None:
                    progress(dropped, limit, "jobs")
        round.end()
        await self._forget([queue for queue, mark in marks.items() if mark == _EMPTY])
        await self._tidy()
        return Pruned(dropped, more)

    async def _prune_queue(self, queue: str, keep: Retention, limit: int) -> tuple[int, bool]:
        """Drop jobs of a queue; how many, and whether there are more. The next call continues where this one ends."""
        dropped, rest, far = 0, 1, _FarGates(self._client)
        places: Reply = self._pruned.pop(queue, _FROM_THE_START)
        for _ in range(_PRUNE_STEPS):
            args = (self._time.given, microseconds(keep.done), limit - dropped, _REMEMBERED, *places, *far.free)
            gone, rest, *words = await self._client.run(scripts.PRUNE, queue, *args)
            dropped, places = dropped + gone, words[:6]
            if await far.ask(words[6:]):
                rest, places = 1, _FROM_THE_START
            if not rest or dropped >= limit:
                break
        if rest:
            self._pruned[queue] = places
        return dropped, bool(rest) and dropped >= limit

    async def _prune_gates(self, keep: Retention) -> None:
        """Drop gates past their time. On one server all lie together."""
        kept = (microseconds(keep.done), microseconds(keep.dead))
        gated: list[str | None] = [None]
        if self._keys.clustered:
            gated = list((await self._client.survey(await self._queues.names(), "gated")).answers)
        round = self._client.round()
        for queue in gated:
            if queue is not None and await round.passes_over(queue):
                continue
            async with round.asking(queue or LIMITS):
                keys = self._keys.home if queue is None else self._keys.of(queue)
                more, over, signalled, far = 1, 0, 0, _FarGates(self._client)
                while more:
                    args = (self._time.given, *kept, over, signalled, *far.free)
                    more, over, signalled, owes, *asked = await self._wire.run(scripts.PRUNE_GATES, keys, *args)
                    if await far.ask(asked):
                        more, over, signalled = 1, 0, 0
                    if owes and queue is not None:
                        await self._telling.try_to_tell(queue)
        round.end()

    async def _old(self, keep: Retention) -> dict[str, int]:
        """Queues that have something to drop, and those that have no jobs."""
        now = await self._time.now_us()
        words = (now - microseconds(keep.done), now, now - _REMEMBERED)
        return (await self._client.survey(await self._queues.names(), "old", *words)).answers

    async def _forget(self, queues: list[str]) -> None:
        """Drop queues without jobs. On a cluster that takes several calls for each, so the rest waits for the next prune."""
        if not queues:
            return
        if self._keys.clustered:
            with suppress(StoreError):  # one of the nodes that it takes is down
                for queue in queues[:_LEAVING]:
                    await self._queues.forget(queue, self._time.given, _REMEMBERED)
            return
        answers = await self._client.ask_each(scripts.FORGET, queues, self._time.given, _REMEMBERED)
        self._queues.registered.difference_update(queue for queue, gone in answers.items() if gone)

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        shortest = microseconds(min((keep.dead, *keep.dead_by_queue.values())))
        queues = (
            await self._client.survey(await self._queues.names(), "dead", await self._time.now_us() - shortest)
        ).answers
        calls = {queue: (self._time.given, microseconds(keep.dead_in(queue)), limit) for queue in queues}
        answers = await self._client.ask_by(scripts.EXPIRED_DEAD, calls) if calls else {}
        return [JobId(UUID(bytes=id)) for ids in answers.values() for id in ids][:limit]

    async def _tidy(self) -> None:
        """Drop keys that no job uses any more, in small steps. The next call continues where this one ends."""
        steps = _TIDY_STEPS
        round = self._client.round()
        for queue in await self._queues.names() if self._keys.clustered else [LIMITS]:
            if await round.passes_over(queue):
                continue
            at: Reply = self._tidied.pop(queue, [b"0"] * 5)
            async with round.asking(queue):
                while steps > 0 and set(at) != {b"-"}:
                    at = await self._client.run(scripts.TIDY, queue, self._time.given, *at)
                    steps -= 1
            if set(at) != {b"-"}:
                self._tidied[queue] = at
        async with round.asking(LIMITS):
            await self._forget_silent()

    async def _forget_silent(self) -> None:
        """Forget workers that were killed: they could not call `retire`."""
        key = self._keys.workers
        words = await self._wire.command(key, "HGETALL", key)
        horizon = await self._time.now_us() - _SILENT
        silent = [id for id, record in pairs(words) if seen_us(record) < horizon]
        for some in chunks(silent, STEP):
            await self._wire.command(key, "HDEL", key, *some)


class _FarGates:
    """On a cluster: gates of other queues, which a script that prunes one queue cannot see."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked: set[bytes] = set()
        self.free: list[bytes] = []
        """Those that keep nothing: they are not stored any more, or nothing waits for them."""

    async def ask(self, words: Reply) -> bool:
        """Ask for gates that were not asked for before; whether one of them keeps nothing. `words`: prefixes and ids."""
        by_queue: dict[str, list[bytes]] = {}
        for prefix, id in pairs(words):
            if id not in self._asked:
                by_queue.setdefault(self._client.keys.named(prefix.decode()), []).append(id)
        before = len(self.free)
        for queue, ids in by_queue.items():
            self._asked.update(ids)
            kept = await self._client.run(scripts.KEEPS, queue, *ids)
            self.free += (id for id, keeps in zip(ids, kept, strict=True) if not keeps)
        return len(self.free) > before


def _first(times: Iterable[int]) -> int:
    return min((time for time in times if time != _NONE), default=_NONE)


def _promoted(moved: int, due: int, expiry: int) -> Promoted:
    next_due, next_expiry = (None if time == _NONE else timedelta(microseconds=time) for time in (due, expiry))
    return Promoted(moved, next_due, expired=expiry == 0, next_expiry=next_expiry)
