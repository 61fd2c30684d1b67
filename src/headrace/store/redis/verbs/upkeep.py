"""What janitors do with time: promote, reap, abandon, prune, and tidying up beside the jobs."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from headrace.errors import HeadraceError, OutcomeUnknown, StoreError, Unavailable
from headrace.model.job import JobId
from headrace.model.lease import Orphan, WorkerId, new_token
from headrace.model.records import Progress, Promoted, Pruned, Retention
from headrace.store.redis import scripts
from headrace.store.redis.connection import Reply
from headrace.store.redis.element import header_of
from headrace.store.redis.keys import LIMITS
from headrace.store.redis.parcel import microseconds, orphan_of
from headrace.store.redis.records import seen_us, text_bytes
from headrace.store.redis.verbs.base import STEP, chunks
from headrace.store.redis.verbs.settle import Working

_TIDY_STEPS: Final = 800
"""Scripts that tidy up in one prune, each of about 25 locks, buckets and pauses."""
_REMEMBERED: Final = 600_000_000
"""Microseconds for which tokens are remembered that were settled to the end, for a settle that is repeated."""
_SOME, _EMPTY = 1, 2
"""What `survey.lua` says of queues that have something to drop, and of those without jobs."""
_FAST: Final = 1_000_000
"""Microseconds by which the clock of a cluster's node may be before the one that is known: its own script decides."""
_SILENT: Final = 24 * 3600 * 1_000_000
"""Microseconds after which a worker that says nothing is forgotten."""


class Janitoring(Working):
    """See the contract."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._tidied: dict[str, Reply] = {}
        """How far `_tidy` has come."""

    async def promote(self, limit: int = 1000) -> Promoted:
        if self._keys.clustered:
            return await self._promote_each(limit)
        moved, wait = 0, 0
        while wait == 0 and moved < limit:
            some, wait = map(
                int, await self._wire.run(scripts.PROMOTE, self._keys.home, self._given, min(STEP, limit - moved))
            )
            moved += some
            if not some:
                break
        return Promoted(moved, timedelta(microseconds=wait) if wait >= 0 else None)

    async def _promote_each(self, limit: int) -> Promoted:
        """On a cluster no script sees two queues."""
        moved = 0
        waits: dict[str, int] = {}
        asked = await self._queues()
        while asked:
            share = min(STEP, (limit - moved) // len(asked))
            answers = await self._ask_each(scripts.PROMOTE, asked, self._given, share)
            waits.update((queue, int(answer[1])) for queue, answer in answers.items())
            moved += sum(int(answer[0]) for answer in answers.values())
            asked = [queue for queue in answers if waits[queue] == 0][: limit - moved]
        due = [wait for wait in waits.values() if wait >= 0]
        return Promoted(moved, timedelta(microseconds=min(due)) if due else None)

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        orphans: list[Orphan] = []
        round = self._round()
        trouble: HeadraceError | None = None
        for queue in await self._expired(limit):
            if await round.passes_over(queue):
                continue
            try:
                async with round.asking(queue):
                    while len(orphans) < limit:
                        found = await self._reap_first(queue, worker, ttl)
                        if found is None:
                            break
                        orphans += [found] if found.jobs else []
            except HeadraceError as error:
                # Of what was taken over the caller must hear, and one queue's trouble is not that of the others.
                trouble = error
                if isinstance(error, (OutcomeUnknown, Unavailable)):
                    break
            if len(orphans) >= limit:
                break
        if not orphans:
            round.end()
            if trouble is not None:
                raise trouble
        return orphans

    async def _expired(self, limit: int) -> list[str]:
        """Queues with leases that have run out."""
        if not self._keys.clustered:
            found = await self._wire.run(scripts.EXPIRED, self._keys.home, self._given, max(1, limit))
            return [self._keys.named(prefix.decode()) for prefix in found]
        queues = await self._queues()
        keys = [self._keys.leases(queue) for queue in queues]
        now = await self._now_us() + _FAST
        answers = await self._wire.ask_each([(key, [("ZCOUNT", key, "-inf", now)]) for key in keys])
        heard = zip(queues, answers, strict=True)
        return [queue for queue, answer in heard if not isinstance(answer, StoreError) and answer[0]]

    async def _reap_first(self, queue: str, worker: WorkerId, ttl: timedelta) -> Orphan | None:
        """The lease of this queue that expired first, with its parts in others.

        Not repeated after a lost answer: that would take the next one. What it took runs out once more.
        """
        fresh = new_token()
        args = (self._given, worker.hex, microseconds(ttl), fresh.hex)
        answer = await self._wire.run(scripts.REAP, self._keys.of(queue), *args, "", repeat=False)
        if not answer:
            return None
        parts = [(queue, answer)]
        token, *_, spans = header_of(answer[0])[:6]
        if spans:
            with suppress(StoreError):  # those run out by themselves
                others = [other for other in await self._queues() if other != queue]
                # Under the fresh token if this was asked before and the answer was lost.
                holders = (await self._survey(others, "tokens", token, fresh.hex)).found
                answers = await self._ask_each(scripts.REAP, list(holders), *args, token)
                parts += [(other, part) for other, part in answers.items() if part]
        orphan = orphan_of(fresh, parts)
        self._leases[fresh] = tuple(queue for queue, _ in parts)
        if not orphan.jobs:
            # Whoever settled the last part of it did not come to end it.
            await self._end_if_over(fresh, await self._states(fresh, self._leases[fresh]))
        return orphan

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        theirs: set[bytes] = set()
        round = self._round()
        # The leases of a node that is down run out by themselves.
        for queue in (await self._survey(await self._queues(), "running")).found:
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                key = self._keys.leases(queue)
                numbers = await self._wire.command(key, "ZRANGE", key, 0, -1)
                for some in chunks(numbers, STEP):
                    args = (self._given, worker.hex, text_bytes(cause), *some)
                    theirs.update(await self._run(scripts.ABANDON, queue, *args))
        round.end()
        return len(theirs)

    async def retire(self, worker: WorkerId) -> None:
        await self._wire.command(self._keys.workers, "HDEL", self._keys.workers, worker.bytes)

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        dropped, more = 0, False
        round = self._round()
        found = await self._old(keep)
        for queue in (queue for queue, says in found.items() if says == _SOME):
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                while True:
                    args = (self._given, microseconds(keep.done), limit - dropped, _REMEMBERED)
                    gone, rest = await self._run(scripts.PRUNE, queue, *args)
                    dropped += gone
                    if progress is not None:
                        progress(dropped, limit, "jobs")
                    if not rest or dropped >= limit:
                        more = more or bool(rest)
                        break
        round.end()
        await self._forget([queue for queue, says in found.items() if says == _EMPTY])
        await self._tidy()
        return Pruned(dropped, more)

    async def _old(self, keep: Retention) -> dict[str, int]:
        """Queues that have something to drop, and those that have no jobs."""
        now = await self._now_us()
        words = (now - microseconds(keep.done), now, now - _REMEMBERED)
        return (await self._survey(await self._queues(), "old", *words)).found

    async def _forget(self, queues: list[str]) -> None:
        """Queues without jobs are dropped from one server. On a cluster the list of queues lies on another node than they do."""
        if queues and not self._keys.clustered:
            answers = await self._ask_each(scripts.FORGET, queues, self._given, _REMEMBERED)
            self._registered.difference_update(queue for queue, gone in answers.items() if gone)

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        shortest = microseconds(min((keep.dead, *keep.dead_by_queue.values())))
        queues = (await self._survey(await self._queues(), "dead", await self._now_us() - shortest)).found
        calls = {queue: (self._given, microseconds(keep.dead_in(queue)), limit) for queue in queues}
        answers = await self._ask_by(scripts.EXPIRED_DEAD, calls) if calls else {}
        return [JobId(UUID(bytes=id)) for ids in answers.values() for id in ids][:limit]

    async def _tidy(self) -> None:
        """What lies beside the jobs, in small steps; if there is too much of it, the rest with the next call."""
        steps = _TIDY_STEPS
        round = self._round()
        for queue in await self._queues() if self._keys.clustered else [LIMITS]:
            if await round.passes_over(queue):
                continue
            at: Reply = self._tidied.pop(queue, [b"0"] * 5)
            async with round.asking(queue):
                while steps > 0 and set(at) != {b"-"}:
                    at = await self._run(scripts.TIDY, queue, self._given, *at)
                    steps -= 1
            if set(at) != {b"-"}:
                self._tidied[queue] = at
        async with round.asking(LIMITS):
            await self._forget_silent()

    async def _forget_silent(self) -> None:
        """Workers that were killed say no farewell."""
        key = self._keys.workers
        found = await self._wire.command(key, "HGETALL", key)
        horizon = await self._now_us() - _SILENT
        silent = [id for id, record in zip(found[::2], found[1::2], strict=True) if seen_us(record) < horizon]
        for some in chunks(silent, STEP):
            await self._wire.command(key, "HDEL", key, *some)
