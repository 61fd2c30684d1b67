"""The producer's part of an app: bulk calls, and jobs in the caller's transaction. `ax` is the async form of `x`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.client.app_clients import AppClients
from headrace.client.bulk import BulkLoad, Placed, batch_of, check_call, gather, loads
from headrace.client.enqueue_hooks import Enqueueing
from headrace.client.handles import Handles
from headrace.errors import ConfigError, Unsupported
from headrace.model import duration
from headrace.model.gate import GateId, Needs
from headrace.model.job import Batch, JobId, NewJob
from headrace.runtime.portal import portal
from headrace.task.call import JobCall
from headrace.task.codec import Signature
from headrace.task.handle import Handle
from headrace.task.hooks import Hooks
from headrace.task.task import Home, Task

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace.client.groups import OpenGroup
    from headrace.outbox import Outbox
    from headrace.store.transactional import Transactional
    from headrace.task.event import Event

R = TypeVar("R")
T = TypeVar("T")


class InlineRunner(Protocol):
    """Runs jobs in the code that enqueues them, for tests."""

    def run(self, ids: Sequence[JobId], *, awaited: bool = False) -> None:
        """`awaited`: a task awaits the jobs, and is told of their death by its wait."""
        ...

    async def arun(self, ids: Sequence[JobId], *, awaited: bool = False) -> None: ...


class Producer(AppClients):
    """The methods of `Headrace` that make jobs, besides its tasks."""

    hooks: Hooks
    tasks: dict[str, Task[..., Any]]
    events: dict[str, Event[Any]]
    _home: Home
    _outbox: Outbox | None = None
    inline_runner: InlineRunner | None = None
    """Set while `app.inline()` is in force: runs the jobs of each enqueue call before the call returns."""

    @property
    def unfair(self) -> Collection[str]:
        """Queues in which tenants do not take turns."""
        return self._home.unfair

    # ── with what they follow ────────────────────────────────────────────────

    def enqueue(self, call: JobCall[R], *, tx: object | None = None) -> Handle[R]:
        """Enqueue `task.job(…)` and everything that it follows, all or nothing: `app.enqueue(charge.job(7).then(mail))`.

        At most 5,000 jobs. The answer is the handle of the job that was given, which is the last of its chain.
        """
        check_call(call, "enqueue")
        put = self._home.put_call(call, tx)
        return Handle(self._home, call.codec, put.id, created=put.created)

    async def aenqueue(self, call: JobCall[R], *, tx: object | None = None) -> Handle[R]:
        """Enqueue `task.job(…)` and everything that it follows, all or nothing."""
        check_call(call, "aenqueue")
        put = await self._home.aput_call(call, tx)
        return Handle(self._home, call.codec, put.id, created=put.created)

    # ── in bulk ──────────────────────────────────────────────────────────────

    def enqueue_many(self, calls: Iterable[JobCall[R]], *, tx: object | None = None) -> Handles[R]:
        """Enqueue `task.job(…)`s, one round trip per 1,000 jobs or 2 MB, each all or nothing; with `tx` all of them."""
        return self.enqueue_members(calls, None, tx)

    def enqueue_members(self, calls: Iterable[JobCall[R]], into: GateId | None, tx: object | None) -> Handles[R]:
        """The same. `into`: the group whose members the jobs are."""
        handles = Handles[R](self._home)
        if self.hooks.on_enqueue:
            with Enqueueing(self.hooks.on_enqueue) as hooked:
                try:
                    self._enqueue_many(calls, into, tx, handles, hooked)
                finally:
                    hooked.stored(handles.stored)
        else:
            self._enqueue_many(calls, into, tx, handles, None)
        if self.inline_runner is not None and tx is None:
            self.inline_runner.run([handle.id for handle in handles if handle.created])
        return handles

    def _enqueue_many(
        self,
        calls: Iterable[JobCall[R]],
        into: GateId | None,
        tx: object | None,
        handles: Handles[R],
        hooked: Enqueueing | None,
    ) -> None:
        if tx is not None:
            for load in loads(calls):
                handles.add(load, self.put_in(tx, _jobs(load, hooked), into))
            return
        portal.run(self.clients.here)
        under_way: tuple[BulkLoad[R], Future[Placed]] | None = None
        try:
            # The next thousand is encoded while the store writes the last one. No call overtakes another.
            for load in loads(calls):
                if under_way is not None:
                    before, under_way = under_way, None
                    handles.add(before[0], before[1].result())
                under_way = load, portal.start(functools.partial(self._aput, _jobs(load, hooked), into))
            if under_way is not None:
                before, under_way = under_way, None
                handles.add(before[0], before[1].result())
        except Exception as error:
            if under_way is not None and under_way[1].exception() is None:
                handles.add(under_way[0], under_way[1].result())
            _note_stored(error, handles.stored)
            raise

    async def aenqueue_many(self, calls: Iterable[JobCall[R]], *, tx: object | None = None) -> Handles[R]:
        """Enqueue `task.job(…)`s, one round trip per 1,000 jobs or 2 MB, each all or nothing; with `tx` all of them."""
        return await self.aenqueue_members(calls, None, tx)

    async def aenqueue_members(self, calls: Iterable[JobCall[R]], into: GateId | None, tx: object | None) -> Handles[R]:
        """The same. `into`: the group whose members the jobs are."""
        handles = Handles[R](self._home)
        if self.hooks.on_enqueue:
            with Enqueueing(self.hooks.on_enqueue) as hooked:
                try:
                    await self._aenqueue_many(calls, into, tx, handles, hooked)
                finally:
                    hooked.stored(handles.stored)
        else:
            await self._aenqueue_many(calls, into, tx, handles, None)
        if self.inline_runner is not None and tx is None:
            await self.inline_runner.arun([handle.id for handle in handles if handle.created])
        return handles

    async def _aenqueue_many(
        self,
        calls: Iterable[JobCall[R]],
        into: GateId | None,
        tx: object | None,
        handles: Handles[R],
        hooked: Enqueueing | None,
    ) -> None:
        if tx is not None:
            for load in loads(calls):
                handles.add(load, await self.aput_in(tx, _jobs(load, hooked), into))
            return
        import asyncio

        under_way: tuple[BulkLoad[R], asyncio.Task[Placed]] | None = None
        try:
            for load in loads(calls):
                if under_way is not None:
                    before, under_way = under_way, None
                    handles.add(before[0], await before[1])
                under_way = load, asyncio.create_task(self._aput(_jobs(load, hooked), into))
                await asyncio.sleep(0)  # The call starts, so that the next thousand is encoded while the store writes.
            if under_way is not None:
                before, under_way = under_way, None
                handles.add(before[0], await before[1])
        except Exception as error:
            if under_way is not None:
                await asyncio.wait([under_way[1]])
                if under_way[1].exception() is None:
                    handles.add(under_way[0], under_way[1].result())
            _note_stored(error, handles.stored)
            raise

    async def _aput(self, jobs: Sequence[NewJob], into: GateId | None = None) -> Placed:
        if any(map(_WAIT, jobs)):
            from headrace.client.linked import gates_before, tenants_before, with_tenants

            jobs = with_tenants(jobs, await tenants_before(self, gates_before(jobs)), self.unfair)
        return await (await self.clients.here()).enqueue(jobs, into)

    # ── events ───────────────────────────────────────────────────────────────

    def event(self, name: str, value: type[T], *, queue: str = "default", keep: duration.Duration = "30d") -> Event[T]:
        """Declare an event with a value of this type: `approved = app.event("payout.approved", Approval)`.

        `queue`: a queue of the tasks that wait for it, which decides where a cluster keeps it. `keep`: how long its value is kept.
        """
        from headrace.task.event import Event

        event = Event[T](self._home, name, value, queue=queue, keep=duration.parse(keep, name="keep"))
        known = self.events.setdefault(name, event)
        for what, before, now in (("queue", known.queue, queue), ("type", known.type, value)):
            if before != now:
                raise ConfigError(
                    f"event {name!r} is declared with {what} {before!r} and with {now!r}: declare it once, or with the same {what}"
                )
        return event

    # ── groups ───────────────────────────────────────────────────────────────

    def open_group(
        self,
        label: str,
        *,
        on_done: JobCall[Any] | None = None,
        on_ended: JobCall[Any] | None = None,
        on_failed: JobCall[Any] | None = None,
        tenant: str = "",
    ) -> OpenGroup[Any]:
        """A group that grows, `with` or `async with`: `async with app.open_group("import 7", on_done=publish.job(7)) as rows:`.

        `on_done` runs when all its jobs are done, `on_ended` when they have ended in any way, and `on_failed` as soon as one
        is dead or cancelled. `label`: people see the group by this name. `tenant`: that of its jobs that have none.
        """
        from headrace.client.groups import OpenGroup

        callbacks = {Needs.DONE: on_done, Needs.ENDED: on_ended, Needs.FAILED: on_failed}
        return OpenGroup(self, label, callbacks, tenant=tenant)

    def codec_of(self, task: str) -> Signature:
        """How the results of a task are read. A task that is not declared here has results of any type."""
        known = self.tasks.get(task)
        return _UNTYPED if known is None else known.codec

    # ── in the caller's transaction ──────────────────────────────────────────

    def put_in(self, tx: object, jobs: Sequence[NewJob], into: GateId | None = None) -> Placed:
        """Write jobs in the caller's transaction and thread. The portal's store only provides the statements."""
        self._check_members(into)
        if any(map(_WAIT, jobs)):
            from headrace.client.linked import gates_before, tenants_before_in, with_tenants

            jobs = with_tenants(jobs, tenants_before_in(self, tx, gates_before(jobs)), self.unfair)
        together, ords = gather(jobs)
        return self.put_batch_in(tx, batch_of(together, into), jobs, ords)

    def put_batch_in(
        self, tx: object, batch: Batch, jobs: Sequence[NewJob], ords: Sequence[int] | None = None
    ) -> Placed:
        """The same for a batch. `jobs` are its jobs in the caller's order, and `ords` says where each of them is."""
        writer: Outbox | Transactional
        if self._outbox is not None:
            writer = self._outbox  # a full queue delays the relay, not the caller's transaction
        else:
            client = portal.run(self.clients.here)
            writer = client.transactional
            if client.has_bounds:
                portal.run(lambda: client.admit(jobs))
        from headrace.client import enqueue_log

        placed = Placed(batch.id, writer.enqueue_in(tx, batch).existing, ords)
        enqueue_log.tell_all(jobs, placed)
        return placed

    async def aput_in(self, tx: object, jobs: Sequence[NewJob], into: GateId | None = None) -> Placed:
        """The same for async code."""
        self._check_members(into)
        if any(map(_WAIT, jobs)):
            from headrace.client.linked import atenants_before_in, gates_before, with_tenants

            jobs = with_tenants(jobs, await atenants_before_in(self, tx, gates_before(jobs)), self.unfair)
        together, ords = gather(jobs)
        return await self.aput_batch_in(tx, batch_of(together, into), jobs, ords)

    def _check_members(self, into: GateId | None) -> None:
        if into is not None and self._outbox is not None:
            raise Unsupported(
                "jobs of an open group do not go through an outbox, because the group may be sealed before they arrive: enqueue "
                "them without tx=, or as group(…) with the job that follows them"
            )

    async def aput_batch_in(
        self, tx: object, batch: Batch, jobs: Sequence[NewJob], ords: Sequence[int] | None = None
    ) -> Placed:
        """The same for a batch, for async code."""
        writer: Outbox | Transactional
        if self._outbox is not None:
            writer = self._outbox
        else:
            client = await self.clients.here()
            writer = client.transactional
            await client.admit(jobs)
        from headrace.client import enqueue_log

        placed = Placed(batch.id, (await writer.aenqueue_in(tx, batch)).existing, ords)
        enqueue_log.tell_all(jobs, placed)
        return placed

    def outbox(self, database: object) -> Outbox:
        """Jobs with `tx=` go through a table of this database, for stores that cannot join its transactions.

        `database`: its postgresql:// or sqlite:/// URL, a SQLAlchemy engine, or a Django alias. Any worker of this app
        relays what was committed into the store.
        """
        from headrace.outbox import Outbox

        self._outbox = Outbox(database)
        return self._outbox

    @property
    def has_outbox(self) -> bool:
        """Whether jobs with `tx=` go through an outbox, and so arrive later."""
        return self._outbox is not None


def _jobs(load: BulkLoad[R], hooked: Enqueueing | None) -> list[NewJob]:
    return load.jobs if hooked is None else hooked.traced_jobs(load.jobs)


def _any_result() -> Any: ...


_UNTYPED = Signature(_any_result)
_WAIT = operator.attrgetter("wait")
"""Called for each job of a bulk call, few of which wait."""


def _note_stored(error: Exception, count: int) -> None:
    if count:
        error.add_note(f"{count:,} jobs of this call had been enqueued before")
