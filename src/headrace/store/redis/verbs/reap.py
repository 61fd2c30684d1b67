"""Leases of workers that are gone: reap and abandon; and retire, for a worker that leaves."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Final

from headrace.errors import HeadraceError, OutcomeUnknown, StoreError, Unavailable
from headrace.model.lease import Orphan, WorkerId, new_token
from headrace.store.redis.arguments import microseconds
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import STEP, Client, chunks
from headrace.store.redis.client.wire import ONE_NODE
from headrace.store.redis.element import header_of
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.records import text_bytes, upkeep_of
from headrace.store.redis.rows import orphan_of
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.verbs.settle import Settle

_FAST: Final = 1_000_000
"""Microseconds by which the clock of a node may be ahead of the known time. The script on that node decides by its clock."""


class Reap:
    """See the contract."""

    def __init__(self, client: Client, time: StoreClock, queues: QueueList, leases: LeaseHomes, settle: Settle) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._queues, self._leases, self._settle = time, queues, leases, settle

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        orphans: list[Orphan] = []
        round = self._client.round()
        trouble: HeadraceError | None = None
        for queue in await self._expired(limit):
            if await round.passes_over(queue):
                continue
            try:
                async with round.asking(queue):
                    while len(orphans) < limit:
                        orphan = await self._reap_first(queue, worker, ttl)
                        if orphan is None:
                            break
                        orphans += [orphan] if orphan.jobs else []
            except HeadraceError as error:
                # The caller must get what was taken over, and the other queues may be well.
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
            prefixes = await self._wire.run(scripts.EXPIRED, self._keys.home, self._time.given, max(1, limit))
            return [self._keys.named(prefix.decode()) for prefix in prefixes]
        queues = await self._queues.names()
        keys = [self._keys.leases(queue) for queue in queues]
        now = await self._time.now_us() + _FAST
        answers = await self._wire.ask_each([(key, [("ZCOUNT", key, "-inf", now)]) for key in keys])
        heard = zip(queues, answers, strict=True)
        return [queue for queue, answer in heard if not isinstance(answer, StoreError) and answer[0]]

    async def _reap_first(self, queue: str, worker: WorkerId, ttl: timedelta) -> Orphan | None:
        """The lease of this queue that expired first, with its parts in others.

        It is not repeated after a lost answer, because that would take the next lease. What it took runs out once more.
        """
        fresh = new_token()
        args = (self._time.given, worker.hex, microseconds(ttl), fresh.hex)
        answer = await self._wire.run(scripts.REAP, self._keys.of(queue), *args, "", repeat=False)
        if not answer:
            return None
        parts = [(queue, answer)]
        token, *_, spans = header_of(answer[0])[:6]
        if spans:
            with suppress(StoreError):  # parts that are not taken over here run out by themselves
                others = [other for other in await self._queues.names() if other != queue]
                # They are under the fresh token if a call before this one was answered and the answer was lost.
                holders = (await self._client.survey(others, "tokens", token, fresh.hex)).answers
                answers = await self._client.ask_each(scripts.REAP, list(holders), *args, token)
                parts += [(other, part) for other, part in answers.items() if part]
        orphan = orphan_of(fresh, parts)
        self._leases.known[fresh] = tuple(queue for queue, _ in parts)
        if not orphan.jobs:
            # Its last part was settled, but the call that should have ended the lease did not arrive.
            await self._settle.end_if_over(fresh, await self._settle.states(fresh, self._leases.known[fresh]))
        return orphan

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        theirs: set[bytes] = set()
        round = self._client.round()
        # The leases of a node that is down run out by themselves.
        for queue in (await self._client.survey(await self._queues.names(), "running")).answers:
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                key = self._keys.leases(queue)
                numbers = await self._wire.command(key, "ZRANGE", key, 0, -1)
                for some in chunks(numbers, STEP):
                    args = (self._time.given, worker.hex, text_bytes(cause), *some)
                    theirs.update(await self._client.run(scripts.ABANDON, queue, *args))
        round.end()
        # On a cluster the node of the workers may be down. The place then ends with its time to live.
        with suppress(*ONE_NODE if self._keys.clustered else ()):
            await self._free_upkeep(worker)
        return len(theirs)

    async def retire(self, worker: WorkerId) -> None:
        await self._free_upkeep(worker)
        await self._wire.command(self._keys.workers, "HDEL", self._keys.workers, worker.bytes)

    async def _free_upkeep(self, worker: WorkerId) -> None:
        record = await self._wire.command(self._keys.workers, "HGET", self._keys.workers, worker.bytes)
        if record is not None and (group := upkeep_of(record)) is not None:
            key = self._keys.upkeep(group)
            await self._wire.command(key, "ZREM", key, worker.bytes)
