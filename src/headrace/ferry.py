"""The ferry: single enqueues that come while another is under way travel together on the next trip, one commit for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from headrace.errors import IdempotencyConflict
from headrace.job import NewJob

SEATS = 1000
"""Jobs on one trip."""

T = TypeVar("T")

Carry = Callable[[Sequence[NewJob]], Awaitable[Sequence[T]]]
"""Store jobs durably, all or nothing; answers for each where it went."""

_Passenger = tuple[NewJob, asyncio.Future[T]]


class Ferry(Generic[T]):
    """One trip at a time. Belongs to one event loop."""

    def __init__(self, carry: Carry[T]) -> None:
        self._carry = carry
        self._waiting: deque[_Passenger[T]] = deque()
        self._away = False
        self._trips: asyncio.Task[None] | None = None

    async def put(self, job: NewJob) -> T:
        """Comes back when the job is stored."""
        if self._away:
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._waiting.append((job, future))
            return await future
        # Nobody is under way: who comes alone travels without a hand-over.
        self._away = True
        try:
            return (await self._carry([job]))[0]
        finally:
            if self._waiting:
                self._trips = asyncio.create_task(self._go(), name="headrace-ferry")
            else:
                self._away = False

    async def close(self) -> None:
        """Wait for those who have been let aboard."""
        if self._trips is not None:
            await asyncio.wait([self._trips])

    async def _go(self) -> None:
        while self._waiting:
            party = [self._waiting.popleft() for _ in range(min(SEATS, len(self._waiting)))]
            # Whoever was cancelled on the quay is not enqueued.
            await self._trip([each for each in party if not each[1].done()])
        self._away = False

    async def _trip(self, party: list[_Passenger[T]]) -> None:
        if not party:
            return
        try:
            answers = await self._carry([job for job, _ in party])
        except IdempotencyConflict as conflict:
            if len(party) == 1:
                _fail(party, conflict)
                return
            # One passenger's conflict is not the others': nothing was stored, each goes alone.
            for each in party:
                await self._trip([each])
        except Exception as error:  # noqa: BLE001 - handed to everybody aboard
            _fail(party, error)
        else:
            for (_, future), answer in zip(party, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(party: list[_Passenger[T]], error: Exception) -> None:
    for _, future in party:
        if not future.done():
            future.set_exception(error)
