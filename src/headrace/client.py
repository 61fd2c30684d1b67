"""The client: jobs into a store and news out of it, for code that runs in the store's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from headrace import explain
from headrace.errors import JobNotFound, OutcomeUnknown, ResultTimeout, Unavailable, Unsupported
from headrace.ferry import Ferry
from headrace.job import Batch, BatchId, Job, JobId, NewJob, job_id, new_batch
from headrace.lease import Presence
from headrace.store.contract import (
    CancelAnswer,
    Enqueued,
    Filter,
    Page,
    Stats,
    Store,
    Transactional,
)
from headrace.task import TaskOptions

CHUNK = 1000
"""Jobs in one call of the store: bulk enqueue is one round trip per so many."""

PATIENCE = 5.0
"""Seconds for which an enqueue is tried again while the store does not answer."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_FIRST_POLL, _LONGEST_POLL = 0.010, 0.250
_ASK_AT_ONCE = 500

T = TypeVar("T")


class Placed(NamedTuple):
    """Where the jobs of one call went: `job_id(batch, place)`, but for those that their keys had made before."""

    batch: BatchId
    existing: Mapping[int, JobId]

    def id(self, place: int) -> JobId:
        return self.existing.get(place) or job_id(self.batch, place)


class Client:
    """One store's verbs as an app uses them. Belongs to the event loop of its store."""

    def __init__(self, store: Store, *, patience: float = PATIENCE) -> None:
        self.store = store
        self._patience = patience
        self._waiter = Waiter(store)
        self._ferry = Ferry(self._carry)

    async def close(self) -> None:
        """Give the store back."""
        self._waiter.close()
        await self._ferry.close()
        await self.store.close()

    # ── in ───────────────────────────────────────────────────────────────────

    async def enqueue(self, jobs: Sequence[NewJob]) -> Placed:
        """Store jobs durably, all or nothing; repeats itself when the answer is lost, which is safe."""
        batch = Batch(new_batch(), list(jobs))
        answer = await self._persist(lambda: self.store.enqueue(batch))
        return Placed(batch.id, answer.existing)

    async def put(self, job: NewJob) -> JobId:
        """Store one job durably; calls that come at the same time share a commit."""
        return await self._ferry.put(job)

    async def _carry(self, jobs: Sequence[NewJob]) -> list[JobId]:
        placed = await self.enqueue(jobs)
        return [placed.id(place) for place in range(len(jobs))]

    async def _persist(self, call: Callable[[], Awaitable[Enqueued]]) -> Enqueued:
        give_up = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                return await call()
            except (Unavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown):
                    unknown = error
                if time.monotonic() + pause > give_up:
                    # Once the outcome was unknown it stays so, whatever kept us from finding out.
                    raise unknown or error from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    # ── out ──────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        """Jobs by id, in the order asked."""
        return await self.store.get(ids)

    async def job(self, id: JobId) -> Job:
        """One job; raises JobNotFound."""
        (found,) = await self.store.get([id])
        if found is None:
            raise not_found(id)
        return found

    async def explain(self, id: JobId, options_of: Callable[[str], TaskOptions | None]) -> explain.Explanation:
        """Why it does not run; raises JobNotFound."""
        found = await explain.look(self.store, id, options_of)
        if found is None:
            raise not_found(id)
        return found[1]

    async def finished(self, id: JobId, timeout: float | None, *, expected: bool = False) -> Job:
        """One job when it has ended; raises ResultTimeout or JobNotFound (not if it is expected to come yet)."""
        return await self._waiter.finished(id, timeout, expected=expected)

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        """Jobs by filter, newest first, in pages."""
        return await self.store.find(where, before=before, limit=limit)

    async def stats(self) -> Stats:
        """Every queue in figures."""
        return await self.store.stats()

    async def workers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        return await self.store.workers()

    # ── the operator's moves ─────────────────────────────────────────────────

    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """Waiting jobs are cancelled, running ones asked to stop, finished ones left alone."""
        return await self.store.cancel(ids, reason)

    async def stop(self, id: JobId, reason: str | None) -> bool:
        """Cancel one job; False: it had ended. Raises JobNotFound."""
        answer = (await self.store.cancel([id], reason)).get(id, CancelAnswer.UNKNOWN)
        if answer is CancelAnswer.UNKNOWN:
            raise not_found(id)
        return answer is not CancelAnswer.FINISHED

    async def retry(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Make finished or scheduled jobs ready now; answers those moved."""
        return await self.store.retry(ids)

    async def delete(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        """Forget jobs that are not running; answers those deleted."""
        return await self.store.delete(ids)

    async def pause(self, queue: str, *, by: str = "") -> None:
        """No job of this queue starts after this returns."""
        await self.store.pause(queue, by=by)

    async def resume(self, queue: str) -> None:
        """Undo `pause`."""
        await self.store.resume(queue)


def not_found(id: JobId) -> JobNotFound:
    return JobNotFound(f"no job {id}: it was pruned or deleted, or the transaction that enqueues it has not committed")


def transactional(store: Store) -> Transactional:
    """The store's own transactions, or Unsupported."""
    if isinstance(store, Transactional):
        return store
    raise Unsupported(
        "this store cannot join your transaction: declare app.outbox(…) for your database, leave tx out and enqueue "
        "after the commit, or use a PostgreSQL or SQLite store in the same database"
    )


class Waiter:
    """Everybody of one client who waits for results: one `get` for all of them, at growing intervals."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[JobId, list[asyncio.Future[Job]]] = {}
        self._fresh: set[JobId] = set()
        self._expected: set[JobId] = set()
        """May not be there yet: on their way through an outbox."""
        self._joined = asyncio.Event()
        self._poll = _FIRST_POLL
        self._task: asyncio.Task[None] | None = None

    async def finished(self, id: JobId, timeout: float | None, *, expected: bool = False) -> Job:
        """The job when it has ended; raises ResultTimeout or JobNotFound."""
        future: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, []).append(future)
        self._fresh.add(id)
        if expected:
            self._expected.add(id)
        self._poll = _FIRST_POLL
        self._joined.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="headrace results")
        try:
            async with asyncio.timeout(timeout):
                return await future
        except TimeoutError:
            raise ResultTimeout(f"job {id} did not end within {timeout:g} s; it goes on") from None
        finally:
            self._leave(id, future)

    def _leave(self, id: JobId, future: asyncio.Future[Job]) -> None:
        others = self._waiting.get(id, [])
        if future in others:
            others.remove(future)
        if not others:
            self._waiting.pop(id, None)
            self._fresh.discard(id)
            self._expected.discard(id)

    def close(self) -> None:
        """Whoever still waits is told that the store has gone."""
        if self._task is not None:
            self._task.cancel()
        self._fail(Unavailable("the app was closed while a result was waited for"))

    async def _run(self) -> None:
        due = 0.0
        try:
            while self._waiting:
                # Newcomers are looked up at once, alone: their jobs may have ended long ago.
                everybody = not self._fresh or time.monotonic() >= due
                ids = list(self._waiting if everybody else self._fresh)
                self._fresh.clear()
                self._joined.clear()
                ended = await self._look(ids)
                if everybody:
                    self._poll = _FIRST_POLL if ended else min(self._poll * 1.5, _LONGEST_POLL)
                    due = time.monotonic() + self._poll
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(due - time.monotonic(), 0)):
                        await self._joined.wait()
        except Exception as error:  # noqa: BLE001 - handed to everybody who waits
            self._fail(error)

    async def _look(self, ids: list[JobId]) -> int:
        ended = 0
        for start in range(0, len(ids), _ASK_AT_ONCE):
            some = ids[start : start + _ASK_AT_ONCE]
            try:
                jobs = await self._store.get(some)
            except (Unavailable, OutcomeUnknown):
                continue  # waiting is what we do anyway
            for id, job in zip(some, jobs, strict=True):
                if job.state.finished if job is not None else id not in self._expected:
                    ended += 1
                    self._tell(id, job)
        return ended

    def _tell(self, id: JobId, job: Job | None) -> None:
        for future in self._waiting.pop(id, []):
            if future.done():
                continue
            if job is None:
                future.set_exception(not_found(id))
            else:
                future.set_result(job)

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
