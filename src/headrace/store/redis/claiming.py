"""Claim and wait: jobs of one server in one script, of a cluster queue by queue; and until when to sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from headrace.errors import HeadraceError, OutcomeUnknown, Unavailable
from headrace.lease import MAX_LEASE, Ask, Band, Lease, Token
from headrace.store.redis import scripts
from headrace.store.redis.base import Base
from headrace.store.redis.connection import Reply
from headrace.store.redis.element import header_of, to_us
from headrace.store.redis.parcel import ask_args, bands_of, lease_of, microseconds
from headrace.store.redis.records import paused_of

_MOST_LOOKS: Final = 10
"""Scripts in one claim that find nothing but blocked lanes; then wait says that there may be more."""
_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25
"""Seconds. Jobs that a claim was not for keep the marker up: who takes it at once again and again would only spin."""
_USE_WITHIN: Final = 0.1
"""Seconds within which a claim follows a hint; else the hint goes to the next."""
_LAST_WORDS: Final = 1.0


class Claiming(Base):
    """See the contract."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._turn = 0
        self._opens_us: int | None = None
        """When the first of what the last claim passed over opens, by the store's clock."""
        self._pauses: dict[str, float] = {}
        """queue → seconds to leave its marker to others, where the last claim from here was not for what waits there."""
        self._taken: dict[str, None] = {}
        """Markers taken since the last claim."""
        self._idle: asyncio.TimerHandle | None = None
        self._handing: asyncio.Task[None] | None = None
        self._leases: dict[Token, tuple[str, ...]] = {}
        """Which queues a lease that was claimed here is of. A token from elsewhere is looked for in all."""

    # ── claim ───────────────────────────────────────────────────────────────

    async def claim(self, ask: Ask) -> Lease | None:
        limit = min(ask.limit, MAX_LEASE)
        queues = list(dict.fromkeys(ask.queues))
        self._opens_us = None
        if limit <= 0 or not queues:
            return None
        if len(queues) > 1:
            # Queues of one priority take turns.
            self._turn += 1
            at = self._turn % len(queues)
            queues = queues[at:] + queues[:at]
        parts: list[tuple[str, Reply]]
        if self._keys.clustered and len(queues) > 1:
            parts = await self._claim_one_by_one(ask, limit, queues)
        else:
            answer = await self._claim_of(ask, limit, queues, bands_of(ask, limit))
            parts = [(queues[part[0]], part) for part in answer]
        if not parts:
            return None
        self._leases[ask.token] = tuple(dict.fromkeys(queue for queue, _ in parts))
        return lease_of(ask.token, parts)

    async def _claim_of(
        self,
        ask: Ask,
        limit: int,
        queues: list[str],
        bands: Sequence[Band],
        taken: int = 0,
        had: int = 0,
        *,
        spread: bool = False,
    ) -> Reply:
        """Parts of a lease by queue. `spread`: other calls, for other queues, may add to it."""
        args = (self._given, limit, ask.token.hex, ask.worker.hex, microseconds(ask.ttl), taken, int(spread), had)
        said = ask_args(ask, limit, queues, bands)
        narrow = ask.only_bands or ask.tenant is not None
        parts: Reply = []
        left: Reply = []
        # A script looks into so many lanes at most: should all of them be blocked, those behind are looked into next.
        for _ in range(1 if narrow or spread else _MOST_LOOKS):
            (opens, left), *parts = await self._wire.run(scripts.CLAIM, self._keys.of(*queues), *args, said)
            self._used()
            self._note_opening(int(opens) if opens else None)
            if parts or not left:
                break
        for number, queue in enumerate(queues):
            if narrow and not parts and number in left:
                self._pauses[queue] = min(_LONGEST_PAUSE, 2 * self._pauses.get(queue, _SHORTEST_PAUSE / 2))
            else:
                self._pauses.pop(queue, None)
        return parts

    def _note_opening(self, at_us: int | None) -> None:
        """Something was passed over until then."""
        if at_us is not None:
            self._opens_us = at_us if self._opens_us is None else min(at_us, self._opens_us)

    async def _claim_one_by_one(self, ask: Ask, limit: int, queues: list[str]) -> list[tuple[str, Reply]]:
        """On a cluster no script sees two queues: each band by itself."""
        parts: list[tuple[str, Reply]] = []
        had = dict.fromkeys(queues, 0)
        for band in bands_of(ask, limit):
            named = [queue for queue in queues if not band.queues or queue in band.queues]
            share = min(limit, sum(had.values()) + band.share)
            if ask.tenant is not None:
                # What is best for one tenant no queue can tell beforehand: strict within each queue only.
                for queue in named:
                    await self._claim_part(ask, share, band, queue, had, parts)
            elif await self._claim_band(ask, share, Band(band.lowest, band.highest, share), named, had, parts):
                break
        if not parts and ask.only_bands:
            # The bands found nothing without asking: what else waits there is still to be told of.
            await asyncio.gather(*(self._claim_of(ask, 0, [queue], []) for queue in queues))
        return parts

    async def _claim_band(
        self, ask: Ask, limit: int, band: Band, queues: list[str], had: dict[str, int], parts: list[tuple[str, Reply]]
    ) -> bool:
        """Ask the queue whose best job is best, down to the next one's best. True: a suspect, which stays alone."""
        tops = await self._tops(queues, band, first=True)
        while (taken := sum(had.values())) < limit and tops:
            best = max(tops, key=lambda queue: tops[queue])
            rest = [priority for queue, priority in tops.items() if queue != best]
            part = Band(max(rest, default=band.lowest), band.highest, limit)
            answer = await self._claim_part(ask, limit, part, best, had, parts)
            if answer and header_of(answer[0][1])[3]:
                return True
            before = tops.pop(best)
            again = await self._tops([best], band)
            # Nothing though something waits: its next job must be alone.
            if again and (answer or again[best] < before):
                tops.update(again)
            elif again and taken:
                break
        return False

    async def _claim_part(
        self, ask: Ask, limit: int, band: Band, queue: str, had: dict[str, int], parts: list[tuple[str, Reply]]
    ) -> Reply:
        """What one queue adds to a lease that is to have `limit` jobs."""
        taken = sum(had.values())
        if taken >= limit:
            return []
        whole = Band(band.lowest, band.highest, limit - taken)
        answer = await self._claim_of(ask, limit - taken, [queue], [whole], taken, had[queue], spread=True)
        if answer:
            parts.append((queue, answer[0]))
            had[queue] += len(answer[0]) - 2
        return answer

    async def _tops(self, queues: list[str], band: Band, *, first: bool = False) -> dict[str, int]:
        """The highest priority that waits in each of these, but for the paused.

        At `first` a queue where something parked may have opened comes with the highest there is: asking it tells.
        """
        now = await self._now_us()

        async def top(queue: str) -> int | None:
            prefix = self._keys.queue(queue)
            best, opening, raw = await self._wire.command_many(
                [
                    ("ZRANGE", prefix + "P", -band.highest, -band.lowest, "BYSCORE", "LIMIT", 0, 1),
                    ("ZRANGE", prefix + "#o", 0, 0, "WITHSCORES"),
                    ("GET", prefix + "p"),
                ],
                prefix,
            )
            paused = paused_of(raw or b"")
            if paused.since is not None and (paused.until is None or to_us(paused.until) > now):
                self._note_opening(None if paused.until is None else to_us(paused.until))
                return None
            opens = int(float(opening[1])) if opening else None
            if first and opens is not None and opens <= now:
                return band.highest
            self._note_opening(opens)
            return int(best[0]) if best else None

        found = await asyncio.gather(*(top(queue) for queue in queues))
        return {queue: priority for queue, priority in zip(queues, found, strict=True) if priority is not None}

    # ── wait ────────────────────────────────────────────────────────────────

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        if not queues or timeout <= 0:
            return False
        opens, opened = self._opens_us, False
        if opens is not None:
            left = (opens - await self._now_us()) / 1_000_000
            if left <= 0:
                return True
            opened, timeout = left < timeout, min(left, timeout)
        pause = max((self._pauses.get(queue, 0.0) for queue in queues), default=0.0)
        if pause:
            await asyncio.sleep(min(pause, timeout))
            timeout -= pause
            if timeout <= 0:
                return opened
        markers = [self._keys.marker(queue) for queue in dict.fromkeys(queues)]
        try:
            taken = await self._wire.wait(markers, timeout)
        except OutcomeUnknown as error:
            # Nothing was written: a lost hint is no hint.
            raise Unavailable(str(error)) from error
        if not taken:
            return opened
        self._taken.update(dict.fromkeys(taken))
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(_USE_WITHIN, self._hand_on)
        return True

    def _used(self) -> None:
        """A claim has seen what the hints were about, and has left others where jobs are left."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
            self._taken.clear()

    def _hand_on(self) -> None:
        self._handing = asyncio.create_task(self._give_back(), name="headrace-hint")

    async def _give_back(self) -> None:
        """Hints taken and not followed, because their taker has no room by now, say: somebody else may have."""
        taken = list(self._taken)
        self._used()
        with suppress(HeadraceError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._wire.lay_back(taken)

    async def close(self) -> None:
        if self._taken:
            await self._give_back()
        if self._handing is not None:
            await asyncio.wait([self._handing])
        await self._wire.close()
