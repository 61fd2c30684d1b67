"""One call of the claim script: its arguments, and what its answer means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.errors import OutcomeUnknown, Unavailable
from headrace.model.job import Claimed
from headrace.model.lease import Ask, Band
from headrace.store.redis.arguments import ask_args, microseconds
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.element import claimed_of, header_of, runs_of
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.verbs.wait import Wait

_MOST_LOOKS: Final = 10
"""Scripts in one claim that find nothing but blocked lanes. After them, wait returns at once: there may be more."""


class ClaimScript:
    """Claims from queues that one script can see together. Tells `Wait` what was passed over."""

    def __init__(self, client: Client, time: StoreClock, waiting: Wait) -> None:
        self._wire, self._keys, self._time, self._waiting = client.wire, client.keys, time, waiting
        self.cut = False
        """The last script ended because the jobs that it took are large."""
        self._unread: int | None = None
        """The number of the lease whose first jobs the last script did not read."""

    async def run(
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
        args = self.args(ask, limit, queues, bands, taken, had, spread=spread)
        narrow = ask.only_bands or ask.tenant is not None
        parts: Reply = []
        left: Reply = []
        # A script looks into a bounded number of lanes. If all of them are blocked, the next script continues behind them.
        for _ in range(1 if narrow or spread else _MOST_LOOKS):
            left, parts = self.read(await self._wire.run(scripts.CLAIM, self._keys.of(*queues), *args))
            if parts or not left:
                break
        for number, queue in enumerate(queues):
            if narrow and not parts and number in left:
                self._waiting.pause(queue)
            else:
                self._waiting.pauses.pop(queue, None)
        return parts if self._unread is None else await self._with_large(queues, parts, self._unread)

    def args(
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
        return (self._time.given, limit, *lease, taken, int(spread), had, ask_args(ask, limit, queues, bands))

    def read(self, answer: Reply) -> tuple[Reply, Reply]:
        """The numbers of queues with jobs left, and the parts of a lease."""
        (opens, left, *more), *parts = answer
        self.cut = bool(more and more[0])
        self._unread = int(more[1]) if len(more) > 1 else None
        self._waiting.used()
        self._waiting.note_opening(int(opens) if opens else None)
        return left, parts

    async def _with_large(self, queues: list[str], parts: Reply, lease: int) -> Reply:
        """The parts with large jobs in the places of the empty elements. The script left these jobs for the client to read.

        No parts: the lease has expired meanwhile, and its jobs are under another token.
        """
        part: list[Any] = next(part for part in parts if not part[2])
        number: int = part[0]
        queue, (lane, count, _) = queues[number], next(runs_of(header_of(part[1])))

        def make(element: memoryview) -> Claimed | None:
            return claimed_of(element, queue, lane) if element else None

        try:
            jobs = await self._wire.elements(self._keys.lease(queue, lease), 1, count, make)
        except Unavailable as error:
            # The claim is made. The caller repeats it, and gets the same jobs.
            raise OutcomeUnknown(str(error)) from error
        if len(jobs) < count or None in jobs:
            return []
        part[2 : 2 + count] = jobs
        return parts
