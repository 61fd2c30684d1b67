"""Waiting for jobs. All waiting calls of one event loop share one `get`, at intervals that grow with its cost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from headrace.errors import JobHeld, JobNotFound, OutcomeUnknown, ResultTimeout, Unavailable
from headrace.model.job import Job, JobId, JobState
from headrace.store.contract import Store

FIRST_POLL, LONGEST_POLL = 0.010, 0.250
ASK_AT_ONCE: Final = 500
LOOK_UPSTREAM: Final = 2.0
"""Seconds between two looks at what a blocked job waits for."""
SHARE: Final = 0.1
"""Share of the time that the waiter spends on reads, and a waiting call on looks upstream. The more a read costs, the longer the interval."""


def not_found(id: JobId) -> JobNotFound:
    """The error for a job that is not there."""
    return JobNotFound(f"no job {id}: it was pruned or deleted, or the transaction that enqueues it has not committed")


class Watcher(Protocol):
    """Receives the state of a job."""

    def tell(self, job: Job | None) -> bool:
        """Take the job as last read; None: no such job. Returns True when no further read is needed."""
        ...

    def fail(self, error: Exception) -> None:
        """Take the error that ends the reads."""
        ...


class _Once:
    """Waits until a job satisfies a condition."""

    __slots__ = ("_enough", "future")

    def __init__(self, enough: Callable[[Job | None], bool]) -> None:
        self._enough = enough
        self.future: asyncio.Future[Job | None] = asyncio.get_running_loop().create_future()

    def tell(self, job: Job | None) -> bool:
        if not self._enough(job):
            return False
        if not self.future.done():
            self.future.set_result(job)
        return True

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Waiter:
    """Reads jobs for all watchers of one store object."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watched: dict[JobId, list[Watcher]] = {}
        self._fresh: dict[JobId, None] = {}
        """Jobs to read soon: new ones, which may have ended long ago, and those reported as ended."""
        self._joined = asyncio.Event()
        self._poll = FIRST_POLL
        self._task: asyncio.Task[None] | None = None

    @property
    def watched(self) -> int:
        """The number of jobs with watchers."""
        return len(self._watched)

    # ── waiting ─────────────────────────────────────────────────────────────
    async def finished(self, id: JobId, timeout: float | None, *, expected: bool = False) -> Job:
        """The job when it has ended; raises ResultTimeout, JobHeld, or JobNotFound unless `expected`."""
        next_look = 0.0

        def enough(job: Job | None) -> bool:
            if job is None:
                return not expected
            return job.state.finished or (job.state is JobState.BLOCKED and time.monotonic() >= next_look)

        try:
            async with asyncio.timeout(timeout):
                while (job := await self._once(id, enough)) is not None and not job.state.finished:
                    began = time.monotonic()
                    await self._check_upstream(job)
                    now = time.monotonic()
                    next_look = now + max(LOOK_UPSTREAM, (now - began) * (1 - SHARE) / SHARE)
        except TimeoutError:
            raise ResultTimeout(f"job {id} did not end within {timeout:g} s; it goes on") from None
        if job is None:
            raise not_found(id)
        return job

    async def _check_upstream(self, job: Job) -> None:
        """Raise JobHeld if a dead job holds this one."""
        from headrace.policy.explain.upstream import held_by  # imported here, because few jobs wait for others

        try:
            held = await held_by(self._store, job)
        except (Unavailable, OutcomeUnknown):
            return  # the next look tries again
        if held is None:
            return
        if held.job is None:
            raise JobHeld(f"job {job.id} of {job.task} waits for a group with dead jobs: see headrace dead list")
        dead = held.job
        raise JobHeld(
            f"job {job.id} of {job.task} waits for job {dead.id} of {dead.task}, which is dead: replay that one, or discard it",
            dead.id,
        )

    async def look(self, id: JobId) -> Job | None:
        """The job as it is now. Calls that come at the same time share one read."""
        return await self._once(id, lambda _: True)

    async def _once(self, id: JobId, enough: Callable[[Job | None], bool]) -> Job | None:
        watcher = _Once(enough)
        self.watch(id, watcher)
        try:
            return await watcher.future
        finally:
            self.leave(id, watcher)

    def watch(self, id: JobId, watcher: Watcher) -> None:
        """Pass every read of this job to the watcher, the first one soon, until `tell` returns True or it leaves."""
        self._watched.setdefault(id, []).append(watcher)
        self._fresh[id] = None
        self._poll = FIRST_POLL
        self._joined.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="headrace results")

    def leave(self, id: JobId, watcher: Watcher) -> None:
        """Remove a watcher. May be called twice."""
        others = self._watched.get(id, [])
        if watcher in others:
            others.remove(watcher)
            if not others:
                del self._watched[id]
                self._fresh.pop(id, None)

    def wake(self, ids: Iterable[JobId] | None = None) -> None:
        """These jobs (None: all) may have changed: read those with watchers at once."""
        news = list(self._watched) if ids is None else [id for id in ids if id in self._watched]
        if news:
            self._fresh.update(dict.fromkeys(news))
            self._joined.set()

    def dismiss(self, error: Exception) -> None:
        """Fail all watchers with this error."""
        watched, self._watched = self._watched, {}
        self._fresh.clear()
        for watchers in watched.values():
            for watcher in watchers:
                watcher.fail(error)

    def close(self) -> None:
        """Stop reading, and fail all watchers."""
        if self._task is not None:
            self._task.cancel()
        self.dismiss(Unavailable("the app was closed while a call waited for a result"))

    # ── looking ─────────────────────────────────────────────────────────────
    async def _run(self) -> None:
        due = 0.0
        try:
            while self._watched:
                began = time.monotonic()
                all_watched = not self._fresh or began >= due
                ids = list(self._watched if all_watched else self._fresh)
                self._fresh.clear()
                self._joined.clear()
                ended = await self._look(ids)
                if all_watched:
                    now = time.monotonic()
                    self._poll = FIRST_POLL if ended else min(self._poll * 1.5, LONGEST_POLL)
                    due = now + max(self._poll, (now - began) * (1 - SHARE) / SHARE)
                if self._fresh:
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(due - time.monotonic(), 0)):
                        await self._joined.wait()
        except Exception as error:  # noqa: BLE001 - handed to all watchers
            self.dismiss(error)

    async def _look(self, ids: list[JobId]) -> int:
        ended = 0
        for start in range(0, len(ids), ASK_AT_ONCE):
            some = ids[start : start + ASK_AT_ONCE]
            try:
                jobs = await self._store.get(some)
            except (Unavailable, OutcomeUnknown):
                continue  # the next read tries again
            for id, job in zip(some, jobs, strict=True):
                ended += self._tell(id, job)
        return ended

    def _tell(self, id: JobId, job: Job | None) -> int:
        """Returns the number of watchers that need no further read."""
        watchers = self._watched.get(id, [])
        satisfied = [watcher for watcher in list(watchers) if watcher.tell(job)]
        for watcher in satisfied:
            self.leave(id, watcher)
        return len(satisfied)
