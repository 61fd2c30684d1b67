"""Single enqueues of sync code: the calling thread writes by itself, and threads that call at once share a commit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, get_ident

from headrace.client.bulk import Placed, gather
from headrace.client.client import PATIENCE
from headrace.client.coalesce import MOST_TOGETHER
from headrace.errors import HeadraceError, IdempotencyConflict, KeyHeld, OutcomeUnknown
from headrace.model.job import Batch, NewJob, job_id, new_batch
from headrace.model.records import Enqueued
from headrace.store.contract import Blocking
from headrace.task.handle import Put

Repeat = Callable[[Batch, float, OutcomeUnknown | None], Enqueued]
"""Go on with a batch by `Client.repeat`, in the portal."""


class _Call:
    """One enqueue, and how it ended."""

    __slots__ = ("error", "job", "put")

    def __init__(self, job: NewJob) -> None:
        self.job = job
        self.put: Put | None = None
        self.error: Exception | None = None


class _Group:
    """Calls that are written together. A repetition needs the same batch, because its id makes it safe."""

    __slots__ = ("batch", "calls", "ords")

    def __init__(self, calls: list[_Call]) -> None:
        self.calls = calls
        jobs, self.ords = gather([call.job for call in calls])
        self.batch = Batch(new_batch(), jobs)


class BlockingClient:
    """Enqueues through one `Blocking` of a store. Safe in threads.

    Each call joins a line and waits for the lock. The thread that gets the lock writes every call of the line in one
    batch, so the others find theirs written when they get it. Whatever the fast way cannot do is repeated in the portal
    with the same batch: errors, patience and unknown outcomes are those of `Client`.
    """

    def __init__(self, writer: Blocking, repeat: Repeat) -> None:
        self._writer = writer
        self._repeat = repeat
        self._lock = Lock()
        self._line: deque[_Call] = deque()
        self._under_way: _Group | None = None
        """Still set when a thread gets the lock: an interrupt, such as Ctrl-C, ended the thread that wrote this group."""
        self._inside: set[int] = set()
        """Threads that are in `put`."""
        self._closed = False

    def put(self, job: NewJob) -> Put | None:
        """Comes back when the job is stored; None: only the portal can enqueue it."""
        me = get_ident()
        # A signal handler or a finalizer may enqueue while it interrupts a call of its own thread, which has the lock.
        if self._closed or me in self._inside:
            return None
        if (job.key is not None or job.unique is not None) and self._writer.waits_for_keys:
            return None
        self._inside.add(me)
        try:
            return self._in_line(job) if self._lock.locked() else self._alone(job)
        finally:
            self._inside.discard(me)
            self._end_if_closed()

    def _alone(self, job: NewJob) -> Put:
        """The short way of a call that no other one precedes."""
        with self._lock:
            batch = Batch(new_batch(), [job])
            existing = self._enqueue(batch, None).existing
        return Put(existing[0], created=False) if existing else Put(job_id(batch.id, 0), created=True)

    def _in_line(self, job: NewJob) -> Put:
        call = _Call(job)
        try:
            self._line.append(call)
            with self._lock:
                while call.put is None and call.error is None:
                    self._write(call)
        except BaseException:
            # An interrupted call must not be written later.
            with suppress(ValueError):
                self._line.remove(call)
            raise
        if call.put is None:
            assert call.error is not None
            raise call.error
        return call.put

    def close(self) -> None:
        """Let the store's connection go: at once, or when the call that uses it has ended. Waits for no thread."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._writer.close()
            finally:
                self._lock.release()

    def _end_if_closed(self) -> None:
        if self._closed:
            self.close()

    # ── with the lock ────────────────────────────────────────────────────────

    def _write(self, own: _Call) -> None:
        """Write the next group. `own` is the call of this thread."""
        group = self._under_way
        if group is not None:
            self._try(group, OutcomeUnknown("the thread that enqueued this job was interrupted: ask again"))
            return
        calls: list[_Call] = []
        while self._line and len(calls) < MOST_TOGETHER:
            calls.append(self._line.popleft())
        # An interrupt between these lines loses a group before anything of it was sent: each of its calls goes alone.
        self._try(_Group(calls or [own]))

    def _try(self, group: _Group, unknown: OutcomeUnknown | None = None) -> None:
        self._under_way = group
        try:
            answer = self._enqueue(group.batch, unknown)
        except (IdempotencyConflict, KeyHeld) as refusal:
            self._under_way = None
            if len(group.calls) > 1:
                # Nothing was stored because of the key of one job. The others must not fail with it.
                for call in group.calls:
                    self._try(_Group([call]))
            else:
                group.calls[0].error = refusal
        except Exception as error:  # noqa: BLE001 - it is raised in each thread of the group
            self._under_way = None
            for call in group.calls:
                call.error = error
        else:
            placed = Placed(group.batch.id, answer.existing, group.ords)
            for place, call in enumerate(group.calls):
                call.put = placed.put(place)
            self._under_way = None
        finally:
            if len(group.calls) == 1:
                self._under_way = None  # also when an interrupt ended the only call: there is nothing to go on with

    def _enqueue(self, batch: Batch, unknown: OutcomeUnknown | None) -> Enqueued:
        began = time.monotonic()
        if unknown is None:
            try:
                return self._writer.enqueue(batch)
            except (IdempotencyConflict, KeyHeld):
                raise  # the store has read its answer, or has waited for it
            except HeadraceError as error:
                if time.monotonic() - began > PATIENCE:
                    raise
                unknown = error if isinstance(error, OutcomeUnknown) else None
        return self._repeat(batch, began, unknown)
