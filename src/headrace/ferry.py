"""The ferry: single enqueues that come while another is under way travel together on the next trip, one commit for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from headrace.errors import IdempotencyConflict, KeyHeld
from headrace.job import NewJob

SEATS = 1000
"""Jobs on one trip."""

ALONE = 4
"""Jobs of a trip that failed because of one key which go alone at the same time."""

T = TypeVar("T")

Carry = Callable[[Sequence[NewJob]], Awaitable[Sequence[T]]]
"""Store jobs durably, all or nothing; answers for each where it went."""

_Passenger = tuple[NewJob, frozenset[tuple[str, str]], asyncio.Future[T]]


class Ferry(Generic[T]):
    """A few trips at a time, by default one. Belongs to one event loop."""

    def __init__(self, carry: Carry[T], *, trips: int = 1) -> None:
        self._carry = carry
        self._waiting: deque[_Passenger[T]] = deque()
        self._free = trips
        self._away: set[tuple[str, str]] = set()
        """Keys and locks of the jobs that are under way. A second job with one of them would only wait in the store."""
        self._trips: set[asyncio.Task[None]] = set()

    async def put(self, job: NewJob) -> T:
        """Comes back when the job is stored."""
        names = _names(job)
        if not self._free or not names.isdisjoint(self._away):
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._waiting.append((job, names, future))
            return await future
        # A job that comes alone travels without a task of its own.
        self._free -= 1
        self._away |= names
        try:
            return (await self._carry([job]))[0]
        finally:
            self._arrive(names)

    async def close(self) -> None:
        """Wait for those who have been let aboard."""
        while self._trips:
            await asyncio.wait(self._trips)

    def _arrive(self, names: frozenset[tuple[str, str]]) -> None:
        self._free += 1
        self._away -= names
        while self._free and self._waiting and (party := self._board()):
            self._free -= 1
            aboard = frozenset[tuple[str, str]]().union(*(each[1] for each in party))
            self._away |= aboard
            task = asyncio.create_task(self._trip(party), name="headrace-ferry")
            self._trips.add(task)
            task.add_done_callback(partial(self._end, names=aboard))

    def _end(self, task: asyncio.Task[None], *, names: frozenset[tuple[str, str]]) -> None:
        self._trips.discard(task)
        if not task.cancelled():
            self._arrive(names)

    def _board(self) -> list[_Passenger[T]]:
        """Those who wait, in their order, but for those whose key or lock is under way."""
        party: list[_Passenger[T]] = []
        stay: deque[_Passenger[T]] = deque()
        while self._waiting and len(party) < SEATS:
            each = self._waiting.popleft()
            if each[2].done():
                continue  # a call that is cancelled before its trip enqueues nothing
            (party if each[1].isdisjoint(self._away) else stay).append(each)
        self._waiting.extendleft(reversed(stay))
        return party

    async def _trip(self, party: list[_Passenger[T]]) -> None:
        party = [each for each in party if not each[2].done()]
        if not party:
            return
        try:
            answers = await self._carry([job for job, _, _ in party])
        except (IdempotencyConflict, KeyHeld) as refusal:
            if len(party) == 1:
                _fail(party, refusal)
                return
            # One job's key is not the others': nothing was stored, each goes alone.
            await self._each_alone(party, side_by_side=isinstance(refusal, KeyHeld))
        except Exception as error:  # noqa: BLE001 - handed to everybody aboard
            _fail(party, error)
        else:
            for (_, _, future), answer in zip(party, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def _each_alone(self, party: list[_Passenger[T]], *, side_by_side: bool) -> None:
        """In their order; or side by side, so that the job whose key is held keeps no other waiting a second time."""
        names = [name for each in party for name in each[1]]
        # Which of two jobs with the same key comes first decides which one is made.
        turns = asyncio.Semaphore(ALONE if side_by_side and len(names) == len(set(names)) else 1)

        async def go(each: _Passenger[T]) -> None:
            async with turns:
                await self._trip([each])

        await asyncio.gather(*(go(each) for each in party))


_NONE: frozenset[tuple[str, str]] = frozenset()


def _names(job: NewJob) -> frozenset[tuple[str, str]]:
    """What other jobs of its task may have in common with a job: its key and its unique lock."""
    if job.key is None and job.unique is None:
        return _NONE
    key = () if job.key is None else ((job.task, f"key {job.key.name}"),)
    lock = () if job.unique is None else ((job.task, f"lock {job.unique.name}"),)
    return frozenset((*key, *lock))


def _fail(party: list[_Passenger[T]], error: Exception) -> None:
    for _, _, future in party:
        if not future.done():
            future.set_exception(error)
