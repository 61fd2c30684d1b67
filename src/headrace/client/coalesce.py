"""The coalescer stores single enqueues that arrive while another is under way together, in one commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from headrace.errors import IdempotencyConflict, KeyHeld
from headrace.model.job import NewJob

MOST_TOGETHER = 1000
"""Jobs in one flush."""

ALONE = 4
"""Jobs of a failed group that are stored one by one, at most so many at the same time."""

T = TypeVar("T")

Carry = Callable[[Sequence[NewJob]], Awaitable[Sequence[T]]]
"""Store jobs durably, all or nothing. Returns for each where it went."""

_Waiting = tuple[NewJob, frozenset[tuple[str, str]], asyncio.Future[T]]


class Coalescer(Generic[T]):
    """Runs a few flushes at a time, by default one. Belongs to one event loop."""

    def __init__(self, carry: Carry[T], *, flushes: int = 1) -> None:
        self._carry = carry
        self._waiting: deque[_Waiting[T]] = deque()
        self._free = flushes
        self._busy: set[tuple[str, str]] = set()
        """Keys and locks of the jobs under way. A second job with one of them would only wait in the store."""
        self._flushes: set[asyncio.Task[None]] = set()

    async def put(self, job: NewJob) -> T:
        """Returns when the job is stored."""
        names = _names(job)
        if not self._free or not names.isdisjoint(self._busy):
            future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._waiting.append((job, names, future))
            return await future
        # A job that arrives alone needs no asyncio task of its own.
        self._free -= 1
        self._busy |= names
        try:
            return (await self._carry([job]))[0]
        finally:
            self._flushed(names)

    async def close(self) -> None:
        """Wait for the flushes that have begun."""
        while self._flushes:
            await asyncio.wait(self._flushes)

    def _flushed(self, names: frozenset[tuple[str, str]]) -> None:
        self._free += 1
        self._busy -= names
        while self._free and self._waiting and (group := self._next_group()):
            self._free -= 1
            busy = frozenset[tuple[str, str]]().union(*(call[1] for call in group))
            self._busy |= busy
            task = asyncio.create_task(self._flush(group), name="headrace-coalesce")
            self._flushes.add(task)
            task.add_done_callback(partial(self._end, names=busy))

    def _end(self, task: asyncio.Task[None], *, names: frozenset[tuple[str, str]]) -> None:
        self._flushes.discard(task)
        if not task.cancelled():
            self._flushed(names)

    def _next_group(self) -> list[_Waiting[T]]:
        """The calls that wait, in their order, without those whose key or lock is under way."""
        group: list[_Waiting[T]] = []
        stay: deque[_Waiting[T]] = deque()
        while self._waiting and len(group) < MOST_TOGETHER:
            call = self._waiting.popleft()
            if call[2].done():
                continue  # a call that is cancelled before its group is flushed enqueues nothing
            (group if call[1].isdisjoint(self._busy) else stay).append(call)
        self._waiting.extendleft(reversed(stay))
        return group

    async def _flush(self, group: list[_Waiting[T]]) -> None:
        group = [call for call in group if not call[2].done()]
        if not group:
            return
        try:
            answers = await self._carry([job for job, _, _ in group])
        except (IdempotencyConflict, KeyHeld) as refusal:
            if len(group) == 1:
                _fail(group, refusal)
                return
            # One job's key failed the group and nothing was stored, so each job goes alone.
            await self._each_alone(group, side_by_side=isinstance(refusal, KeyHeld))
        except Exception as error:  # noqa: BLE001 - handed to every call of the group
            _fail(group, error)
        else:
            for (_, _, future), answer in zip(group, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def _each_alone(self, group: list[_Waiting[T]], *, side_by_side: bool) -> None:
        """In their order; or at the same time, so that a job whose key is held does not delay the others again."""
        names = [name for call in group for name in call[1]]
        # Which of two jobs with the same key comes first decides which one is made.
        turns = asyncio.Semaphore(ALONE if side_by_side and len(names) == len(set(names)) else 1)

        async def go(call: _Waiting[T]) -> None:
            async with turns:
                await self._flush([call])

        await asyncio.gather(*(go(call) for call in group))


_NONE: frozenset[tuple[str, str]] = frozenset()


def _names(job: NewJob) -> frozenset[tuple[str, str]]:
    """The key and the unique lock of a job, which other jobs of its task may share."""
    if job.key is None and job.unique is None:
        return _NONE
    key = () if job.key is None else ((job.task, f"key {job.key.name}"),)
    lock = () if job.unique is None else ((job.task, f"lock {job.unique.name}"),)
    return frozenset((*key, *lock))


def _fail(group: list[_Waiting[T]], error: Exception) -> None:
    for _, _, future in group:
        if not future.done():
            future.set_exception(error)
