"""Claim and wait: jobs of one server in one script, of a cluster queue by queue; and until when to sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import HeadraceError, OutcomeUnknown, StoreError, StoreFull, Unavailable
from headrace.model.lease import MAX_LEASE, Ask, Band, Lease, Token
from headrace.store.redis import scripts
from headrace.store.redis.asking import ONE_NODE, Asked
from headrace.store.redis.connection import Reply
from headrace.store.redis.element import header_of, to_us
from headrace.store.redis.parcel import ask_args, bands_of, lease_of, microseconds
from headrace.store.redis.records import paused_of
from headrace.store.redis.verbs.base import Base

_MOST_LOOKS: Final = 10
"""Scripts in one claim that find nothing but blocked lanes; then wait says that there may be more."""
_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25
"""Seconds. Jobs that a claim was not for keep the marker up: who takes it at once again and again would only spin."""
_USE_WITHIN: Final = 0.1
"""Seconds within which a claim follows a hint; else the hint goes to the next."""
_LAST_WORDS: Final = 1.0
_MOST_BEGUN: Final = 1000


@dataclass(slots=True)
class _Making:
    """A lease in the making, of queues that no script sees together."""

    had: dict[str, int]
    """Jobs so far, by queue."""
    parts: list[tuple[str, Reply]] = field(default_factory=list[tuple[str, Reply]])
    answered: bool = False
    silent: StoreError | None = None
    """Why a queue was passed over."""

    @property
    def taken(self) -> int:
        return sum(self.had.values())


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
        self._begun: dict[Token, None] = {}
        """Leases of several nodes that were begun, and not heard to be made."""

    # ── claim ───────────────────────────────────────────────────────────────

    async def claim(self, ask: Ask) -> Lease | None:
        limit = min(ask.limit, MAX_LEASE)
        queues = self._in_turn(ask.queues)
        self._opens_us = None
        if limit <= 0 or not queues:
            return None
        parts: list[tuple[str, Reply]]
        if self._keys.clustered:
            self._known.update(queues)
        if self._keys.clustered and len(queues) > 1:
            parts = await self._claim_of_all(ask, limit, queues)
        else:
            answer = await self._claim_of(ask, limit, queues, bands_of(ask, limit))
            parts = [(queues[part[0]], part) for part in answer]
        return self._leased(ask, parts) if parts else None

    def _in_turn(self, queues: Sequence[str]) -> list[str]:
        """Queues of one priority take turns."""
        found = list(dict.fromkeys(queues))
        if len(found) > 1:
            self._turn += 1
            at = self._turn % len(found)
            found = found[at:] + found[:at]
        return found

    def _leased(self, ask: Ask, parts: list[tuple[str, Reply]]) -> Lease:
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
        args = self._claim_args(ask, limit, queues, bands, taken, had, spread=spread)
        narrow = ask.only_bands or ask.tenant is not None
        parts: Reply = []
        left: Reply = []
        # A script looks into so many lanes at most: should all of them be blocked, those behind are looked into next.
        for _ in range(1 if narrow or spread else _MOST_LOOKS):
            left, parts = self._told(await self._wire.run(scripts.CLAIM, self._keys.of(*queues), *args))
            if parts or not left:
                break
        for number, queue in enumerate(queues):
            if narrow and not parts and number in left:
                self._pauses[queue] = min(_LONGEST_PAUSE, 2 * self._pauses.get(queue, _SHORTEST_PAUSE / 2))
            else:
                self._pauses.pop(queue, None)
        return parts

    def _claim_args(
        self,
        ask: Ask,
        limit: int,
        queues: list[str],
        bands: Sequence[Band],
        taken: int = 0,
        had: int = 0,
        *,
        spread: bool = False,
    ) -> tuple[Any, ...]:
        lease = (ask.token.hex, ask.worker.hex, microseconds(ask.ttl))
        return (self._given, limit, *lease, taken, int(spread), had, ask_args(ask, limit, queues, bands))

    def _told(self, answer: Reply) -> tuple[Reply, Reply]:
        """Of a claim: numbers of queues with jobs left, and the parts of a lease."""
        (opens, left), *parts = answer
        self._used()
        self._note_opening(int(opens) if opens else None)
        return left, parts

    def _note_opening(self, at_us: int | None) -> None:
        """Something was passed over until then."""
        if at_us is not None:
            self._opens_us = at_us if self._opens_us is None else min(at_us, self._opens_us)

    async def _claim_of_all(self, ask: Ask, limit: int, queues: list[str]) -> list[tuple[str, Reply]]:
        """On a cluster: a lease of several queues. One that was begun before is told as far as it came, not added to."""
        if ask.token in self._begun or ask.token in self._leases:
            # Whoever does not say what it holds under this token is not asked for more: the positions might be the same.
            held = await self._ask_each(scripts.CLAIM, queues, *self._claim_args(ask, 0, queues[:1], [], spread=True))
            queues = list(held)
            if found := [(queue, part) for queue, answer in held.items() for part in self._told(answer)[1]]:
                return found
        if len(self._begun) >= _MOST_BEGUN:
            self._begun.clear()
        self._begun[ask.token] = None
        parts = await self._claim_one_by_one(ask, limit, queues)
        self._begun.pop(ask.token, None)
        return parts

    async def _claim_one_by_one(self, ask: Ask, limit: int, queues: list[str]) -> list[tuple[str, Reply]]:
        """On a cluster no script sees two queues: each band by itself. Queues on a node that is down are passed over."""
        made = _Making(dict.fromkeys(queues, 0))
        for band in bands_of(ask, limit):
            named = [queue for queue in queues if not band.queues or queue in band.queues]
            share = min(limit, made.taken + band.share)
            if ask.tenant is not None:
                # What is best for one tenant no queue can tell beforehand: strict within each queue only.
                for queue in named:
                    await self._claim_part(ask, share, band, queue, made)
            elif await self._claim_band(ask, share, Band(band.lowest, band.highest, share), named, made):
                break
        if made.silent is not None and not made.answered:
            raise made.silent
        if not made.parts and ask.only_bands:
            # The bands found nothing without asking: what else waits there is still to be told of.
            await asyncio.gather(*(self._tell_of_the_rest(ask, queue) for queue in queues))
        return made.parts

    async def _tell_of_the_rest(self, ask: Ask, queue: str) -> None:
        with suppress(*ONE_NODE):
            await self._claim_of(ask, 0, [queue], [])

    async def _claim_band(self, ask: Ask, limit: int, band: Band, queues: list[str], made: _Making) -> bool:
        """Ask the queue whose best job is best, down to the next one's best. True: a suspect, which stays alone."""
        tops = await self._tops(queues, band, made, first=True)
        while (taken := made.taken) < limit and tops:
            best = max(tops, key=lambda queue: tops[queue])
            rest = [priority for queue, priority in tops.items() if queue != best]
            part = Band(max(rest, default=band.lowest), band.highest, limit)
            answer = await self._claim_part(ask, limit, part, best, made)
            if answer and header_of(answer[0][1])[3]:
                return True
            before = tops.pop(best)
            again = await self._tops([best], band, made)
            # Nothing though something waits: its next job must be alone.
            if again and (answer or again[best] < before):
                tops.update(again)
            elif again and taken:
                break
        return False

    async def _claim_part(self, ask: Ask, limit: int, band: Band, queue: str, made: _Making) -> Reply:
        """What one queue adds to a lease that is to have `limit` jobs."""
        taken = made.taken
        if taken >= limit:
            return []
        whole = Band(band.lowest, band.highest, limit - taken)
        try:
            answer = await self._claim_of(ask, limit - taken, [queue], [whole], taken, made.had[queue], spread=True)
        except (Unavailable, StoreFull) as error:
            # It has given nothing. Where that is not known, the caller asks again.
            made.silent = error
            return []
        made.answered = True
        if answer:
            made.parts.append((queue, answer[0]))
            made.had[queue] += len(answer[0]) - 2
        return answer

    async def _tops(self, queues: list[str], band: Band, made: _Making, *, first: bool = False) -> dict[str, int]:
        """The highest priority that waits in each of these, but for the paused, and those that do not say.

        At `first` a queue where something parked may have opened comes with the highest there is: asking it tells.
        """
        now = await self._now_us()

        def top(best: list[bytes], opening: list[bytes], raw: bytes | None) -> int | None:
            paused = paused_of(raw or b"")
            if paused.since is not None and (paused.until is None or to_us(paused.until) > now):
                self._note_opening(None if paused.until is None else to_us(paused.until))
                return None
            opens = int(float(opening[1])) if opening else None
            if first and opens is not None and opens <= now:
                return band.highest
            self._note_opening(opens)
            return int(best[0]) if best else None

        asks: list[Asked] = []
        for prefix in map(self._keys.queue, queues):
            best = ("ZRANGE", prefix + "P", -band.highest, -band.lowest, "BYSCORE", "LIMIT", 0, 1)
            asks.append((prefix, [best, ("ZRANGE", prefix + "#o", 0, 0, "WITHSCORES"), ("GET", prefix + "p")]))
        tops: dict[str, int] = {}
        try:
            answers = await self._wire.ask_each(asks)
        except ONE_NODE as error:
            made.silent = error
            return tops
        for queue, answer in zip(queues, answers, strict=True):
            if isinstance(answer, StoreError):
                made.silent = answer
                continue
            made.answered = True
            if (priority := top(*answer)) is not None:
                tops[queue] = priority
        return tops

    # ── wait ────────────────────────────────────────────────────────────────

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        if not queues or timeout <= 0:
            return False
        timeout, opened = await self._until(timeout)
        if timeout <= 0:
            return True
        pause = max((self._pauses.get(queue, 0.0) for queue in queues), default=0.0)
        if pause:
            await asyncio.sleep(min(pause, timeout))
            timeout -= pause
            if timeout <= 0:
                return opened
        markers = [self._keys.marker(queue) for queue in dict.fromkeys(queues)]
        try:
            # A server looks at its sleepers' time ten times a second: too seldom for a rate that opens, so that is ours.
            async with asyncio.timeout(timeout if opened else None):
                taken = await self._wire.wait(markers, timeout + 1.0 if opened else timeout)
        except TimeoutError:
            return True
        except OutcomeUnknown as error:
            # Nothing was written: a lost hint is no hint.
            raise Unavailable(str(error)) from error
        self._took(taken)
        return bool(taken) or opened

    async def _until(self, timeout: float) -> tuple[float, bool]:
        """How long to sleep, and whether something opens then."""
        if self._opens_us is None:
            return timeout, False
        left = (self._opens_us - await self._now_us()) / 1_000_000
        return (left, True) if left < timeout else (timeout, False)

    def _took(self, markers: list[str]) -> None:
        """A claim has to follow."""
        if not markers:
            return
        self._taken.update(dict.fromkeys(markers))
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(_USE_WITHIN, self._hand_on)

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
