"""A claim from several queues of a cluster, where no script sees two queues."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import StoreError, StoreFull, Unavailable
from headrace.model.lease import Ask, Band, Token
from headrace.store.redis.arguments import bands_of
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.client.wire import ONE_NODE, Asked
from headrace.store.redis.element import header_of, to_us
from headrace.store.redis.lease_homes import LeaseHomes
from headrace.store.redis.records import paused_of
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.verbs.claim_script import ClaimScript
from headrace.store.redis.verbs.wait import Wait

_MOST_BEGUN: Final = 1000


@dataclass(slots=True)
class _PartialLease:
    """The part of a lease that was claimed so far. No script sees all its queues together."""

    had: dict[str, int]
    """The number of jobs claimed so far, by queue."""
    parts: list[tuple[str, Reply]] = field(default_factory=list[tuple[str, Reply]])
    answered: bool = False
    silent: StoreError | None = None
    """The error of a queue that was passed over."""

    @property
    def taken(self) -> int:
        return sum(self.had.values())


class ClusterClaim:
    """Makes one lease of several queues, queue by queue."""

    def __init__(
        self, client: Client, time: StoreClock, leases: LeaseHomes, waiting: Wait, script: ClaimScript
    ) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._leases, self._waiting, self._script = time, leases, waiting, script
        self._begun: dict[Token, None] = {}
        """Leases of several nodes that were begun, and whose claim has not ended."""

    async def claim(self, ask: Ask, limit: int, queues: list[str]) -> list[tuple[str, Reply]]:
        """Parts of a lease by queue. A repeated call for a token gets what was claimed before, and adds nothing to it."""
        if ask.token in self._begun or ask.token in self._leases.known:
            # A queue that does not say what it holds under this token is not asked for more: positions might be used twice.
            args = self._script.args(ask, 0, queues[:1], [], spread=True)
            held = await self._client.ask_each(scripts.CLAIM, queues, *args)
            queues = list(held)
            if parts := [(queue, part) for queue, answer in held.items() for part in self._script.read(answer)[1]]:
                return parts
        if len(self._begun) >= _MOST_BEGUN:
            self._begun.clear()
        self._begun[ask.token] = None
        parts = await self._one_by_one(ask, limit, queues)
        self._begun.pop(ask.token, None)
        return parts

    async def _one_by_one(self, ask: Ask, limit: int, queues: list[str]) -> list[tuple[str, Reply]]:
        """Claim band by band. Queues on a node that is down are passed over."""
        lease = _PartialLease(dict.fromkeys(queues, 0))
        for band in bands_of(ask, limit):
            named = [queue for queue in queues if not band.queues or queue in band.queues]
            share = min(limit, lease.taken + band.share)
            if ask.tenant is not None:
                # No queue can say beforehand what is best for one tenant: the order is strict within each queue only.
                for queue in named:
                    await self._part(ask, share, band, queue, lease)
            elif await self._band(ask, share, Band(band.lowest, band.highest, share), named, lease):
                break
        if lease.silent is not None and not lease.answered:
            raise lease.silent
        if not lease.parts and ask.only_bands:
            # The bands found nothing without a script. A script tells `Wait` what else waits in the queues.
            await asyncio.gather(*(self._look_at_the_rest(ask, queue) for queue in queues))
        return lease.parts

    async def _look_at_the_rest(self, ask: Ask, queue: str) -> None:
        with suppress(*ONE_NODE):
            await self._script.run(ask, 0, [queue], [])

    async def _band(self, ask: Ask, limit: int, band: Band, queues: list[str], lease: _PartialLease) -> bool:
        """Ask the queue whose best job is best, down to the next one's best. True: the lease takes no further job.

        A suspect stays alone, and large jobs use up the bytes of a lease.
        """
        tops = await self._tops(queues, band, lease, first=True)
        while (taken := lease.taken) < limit and tops:
            best = max(tops, key=lambda queue: tops[queue])
            rest = [priority for queue, priority in tops.items() if queue != best]
            part = Band(max(rest, default=band.lowest), band.highest, limit)
            answer = await self._part(ask, limit, part, best, lease)
            if answer and (header_of(answer[0][1])[3] or self._script.cut):
                return True
            before = tops.pop(best)
            again = await self._tops([best], band, lease)
            # If the script took nothing though something waits, then the next job must be alone in its lease.
            if again and (answer or again[best] < before):
                tops.update(again)
            elif again and taken:
                break
        return False

    async def _part(self, ask: Ask, limit: int, band: Band, queue: str, lease: _PartialLease) -> Reply:
        """What one queue adds to a lease that is to have `limit` jobs."""
        taken = lease.taken
        if taken >= limit:
            return []
        whole = Band(band.lowest, band.highest, limit - taken)
        try:
            answer = await self._script.run(ask, limit - taken, [queue], [whole], taken, lease.had[queue], spread=True)
        except (Unavailable, StoreFull) as error:
            # The queue gave no job. After an error that leaves this open, the caller repeats the claim.
            lease.silent = error
            return []
        lease.answered = True
        if answer:
            lease.parts.append((queue, answer[0]))
            lease.had[queue] += len(answer[0]) - 2
        return answer

    async def _tops(
        self, queues: list[str], band: Band, lease: _PartialLease, *, first: bool = False
    ) -> dict[str, int]:
        """The highest priority that waits in each queue. Paused queues and those that do not answer are left out.

        At `first` a queue where something parked may have opened comes with the highest priority there is, so that a
        script looks into it.
        """
        now = await self._time.now_us()

        def top(best: list[bytes], opening: list[bytes], raw: bytes | None) -> int | None:
            paused = paused_of(raw or b"")
            if paused.since is not None and (paused.until is None or to_us(paused.until) > now):
                self._waiting.note_opening(None if paused.until is None else to_us(paused.until))
                return None
            opens = int(float(opening[1])) if opening else None
            if first and opens is not None and opens <= now:
                return band.highest
            self._waiting.note_opening(opens)
            return int(best[0]) if best else None

        asks: list[Asked] = []
        for prefix in map(self._keys.queue, queues):
            best = ("ZRANGE", prefix + "P", -band.highest, -band.lowest, "BYSCORE", "LIMIT", 0, 1)
            asks.append((prefix, [best, ("ZRANGE", prefix + "#o", 0, 0, "WITHSCORES"), ("GET", prefix + "p")]))
        tops: dict[str, int] = {}
        try:
            answers = await self._wire.ask_each(asks)
        except ONE_NODE as error:
            lease.silent = error
            return tops
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, StoreError):
                lease.silent = answer
                continue
            lease.answered = True
            if (priority := top(*answer)) is not None:
                tops[queue] = priority
        return tops
