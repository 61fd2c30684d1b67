"""The client: enqueues jobs and reads them, for code that runs in the store's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from headrace.client import enqueue_log
from headrace.client.bulk import Placed, batch_of, gather
from headrace.client.coalesce import Coalescer
from headrace.client.queue_guard import QueueGuard, bounded
from headrace.client.results import Waiter, not_found
from headrace.errors import KeyHeld, OutcomeUnknown, Unavailable, Unsupported
from headrace.model.gate import GateId
from headrace.model.job import Batch, Job, JobId, NewJob
from headrace.model.lease import Presence
from headrace.model.records import Enqueued, Pause, Stats
from headrace.policy.queue import QueueOptions
from headrace.runtime import faults
from headrace.store.audit import Audit
from headrace.store.contract import Store
from headrace.store.transactional import Transactional
from headrace.task.handle import Put
from headrace.task.task_options import TaskOptions

if TYPE_CHECKING:
    from headrace.policy.explain.answer import Explanation

PATIENCE = 5.0
"""Seconds for which the client repeats an enqueue while the store does not answer."""

KEYED_TRIPS = 2
"""Enqueues with keys or unique locks that are under way at once: fewer than a store has connections."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

T = TypeVar("T")


class Client:
    """The verbs of one store as an app uses them. A client belongs to the event loop of its store."""

    def __init__(
        self, store: Store, *, patience: float = PATIENCE, queues: Mapping[str, QueueOptions] | None = None
    ) -> None:
        """`queues`: the app's declared queues. Some may have a `max_length`."""
        self.store = store
        self.audit = Audit(store)
        queues = {} if queues is None else queues
        self._guard = QueueGuard(store, queues)
        self.bounded = bounded(store, queues, guard=self._guard)
        """The store, for verbs other than `enqueue` and `put` that make jobs."""
        self._patience = patience
        self._waiter = Waiter(store)
        self._coalescer = Coalescer(self._carry)
        self._keyed = Coalescer(self._carry, flushes=KEYED_TRIPS)

    async def close(self) -> None:
        """Close the client and its store."""
        await self.leave()
        await self.store.close()

    async def leave(self) -> None:
        """Finish the calls under way. The store stays open."""
        self._waiter.close()
        await self._coalescer.close()
        await self._keyed.close()

    @property
    def transactional(self) -> Transactional:
        """The store's own transactions, or Unsupported."""
        if isinstance(self.store, Transactional):
            return self.store
        raise Unsupported(
            "this store cannot join your transaction: declare app.outbox(…) for your database, leave tx out and enqueue "
            "after the commit, or use a PostgreSQL or SQLite store in the same database"
        )

    # ── in ───────────────────────────────────────────────────────────────────

    @property
    def has_bounds(self) -> bool:
        """Whether any queue has a `max_length`."""
        return bool(self._guard.bounds)

    def bounds(self, queue: str) -> bool:
        """Whether this queue has a `max_length`."""
        return queue in self._guard.bounds

    async def admit(self, jobs: Sequence[NewJob]) -> None:
        """Count jobs that are stored by another path, or raise QueueFull."""
        if self._guard.bounds:
            await self._guard.admit(jobs)

    async def enqueue(self, jobs: Sequence[NewJob], into: GateId | None = None) -> Placed:
        """Store jobs durably, all or nothing. The call is repeated when its answer is lost, which is safe.

        `into`: the group whose members they are.
        """
        await self.admit(jobs)
        placed = await self._store_all(jobs, into)
        if faults.ARMED and into is not None:
            faults.reach("filled")
        enqueue_log.tell_all(jobs, placed)
        return placed

    async def _store_all(self, jobs: Sequence[NewJob], into: GateId | None = None) -> Placed:
        together, ords = gather(jobs)
        batch = batch_of(together, into)
        answer = await self._persist(lambda: self.store.enqueue(batch))
        return Placed(batch.id, answer.existing, ords)

    async def enqueue_batch(self, batch: Batch) -> Placed:
        """Store a batch as it is, with its gates, all or nothing."""
        await self.admit(batch.jobs)
        answer = await self._persist(lambda: self.store.enqueue(batch))
        placed = Placed(batch.id, answer.existing)
        enqueue_log.tell_all(batch.jobs, placed)
        return placed

    async def repeat(self, batch: Batch, began: float, unknown: OutcomeUnknown | None) -> Enqueued:
        """Go on with an enqueue that the calling thread began at this monotonic time and could not end.

        `unknown`: the error of that attempt, if the batch may be stored already.
        """
        return await self._persist(lambda: self.store.enqueue(batch), began, unknown)

    async def put(self, job: NewJob) -> JobId:
        """Store one job durably. Calls that come at the same time share a commit."""
        return (await self.place(job)).id

    async def place(self, job: NewJob) -> Put:
        """As `put`, and whether the job is new. False: the id is that of an earlier job with the same key or lock."""
        if self._guard.bounds:
            await self._guard.admit((job,))
        # Another transaction may hold a key or a lock. Jobs that have neither must not wait for it.
        put = await (self._coalescer if job.key is None and job.unique is None else self._keyed).put(job)
        if enqueue_log.is_on():
            enqueue_log.tell(job, put.id, created=put.created)
        return put

    async def _carry(self, jobs: Sequence[NewJob]) -> list[Put]:
        placed = await self._store_all(jobs)
        return [placed.put(place) for place in range(len(jobs))]

    async def _persist(
        self,
        call: Callable[[], Awaitable[Enqueued]],
        began: float | None = None,
        unknown: OutcomeUnknown | None = None,
    ) -> Enqueued:
        give_up = (time.monotonic() if began is None else began) + self._patience
        pause = _FIRST_PAUSE
        while True:
            try:
                return await call()
            except KeyHeld:
                raise  # the store has waited for the key itself
            except (Unavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown):
                    unknown = error
                if time.monotonic() + pause > give_up:
                    # An unknown outcome stays unknown, whatever error the repeated call raised.
                    raise unknown or error from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    # ── out ──────────────────────────────────────────────────────────────────

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        """Jobs by id, in the given order."""
        return await self.store.get(ids)

    async def job(self, id: JobId) -> Job:
        """One job; raises JobNotFound."""
        (job,) = await self.store.get([id])
        if job is None:
            raise not_found(id)
        return job

    async def explain(
        self,
        id: JobId,
        options_of: Callable[[str], TaskOptions | None],
        queue_of: Callable[[str], QueueOptions | None] = lambda _: None,
    ) -> Explanation:
        """Why it does not run; raises JobNotFound."""
        # Few programs explain jobs, and all import this module.
        from headrace.policy.explain import explain

        answer = await explain.look(self.store, id, options_of, queue_of)
        if answer is None:
            raise not_found(id)
        return answer[1]

    async def finished(self, id: JobId, timeout: float | None, *, expected: bool = False) -> Job:
        """One job when it has ended; raises ResultTimeout, or JobNotFound unless `expected`."""
        return await self._waiter.finished(id, timeout, expected=expected)

    async def stats(self) -> Stats:
        """Counts of every queue."""
        return await self.store.stats()

    async def workers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        return await self.store.workers()

    async def pauses(self) -> list[Pause]:
        """Everything that is paused now."""
        return await self.store.pauses()
