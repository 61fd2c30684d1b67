"""The app: tasks, store and settings put together; the only composition root."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from headrace import store as stores
from headrace.client import CHUNK, Placed, transactional
from headrace.clock import Clock
from headrace.desk import Desk, JobRef
from headrace.duration import Duration
from headrace.errors import ConfigError
from headrace.explain import Explanation
from headrace.handle import Handle
from headrace.job import Batch, Job, JobId, JobState, NewJob, new_batch, parse_id
from headrace.lane import check_queue
from headrace.lease import Presence
from headrace.loops import Clients
from headrace.queue import DeadAlert, QueueOptions
from headrace.queue import declare as declare_queue
from headrace.retry import Retry
from headrace.schedule import Schedule
from headrace.settings import Settings, mask_url
from headrace.store.contract import CancelAnswer, Filter, Page, Stats, Store
from headrace.sync import Portal, portal, remote
from headrace.task import AsyncTask, Executor, JobCall, SyncTask, Task, TaskOptions, declare
from headrace.timetable import Timetable
from headrace.timetable import declare as declare_schedule

if TYPE_CHECKING:
    from headrace.outbox import Outbox
    from headrace.worker import Duties, Worker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H")

States = JobState | str | Iterable[JobState | str]


class Decorator:
    """What `app.task(…)` with options gives: decorates one function."""

    def __init__(self, make: Callable[[Callable[..., Any]], Any]) -> None:
        self._make = make

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is the more special case
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._make(function)


class Headrace:
    """Tasks and the store their jobs live in. Verbs come in two: `x` for sync code, `ax` for async code."""

    def __init__(
        self, url: str | None = None, *, settings: Settings | None = None, clock: Clock | None = None, **overrides: Any
    ) -> None:
        """`url` and `overrides` beat `settings`, or else what `Settings.load` finds. `clock` is for tests."""
        if settings is None:
            self.settings = Settings.load(url=url, **overrides)
        else:
            self.settings = settings.replace(url=url, **overrides)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.queues: dict[str, QueueOptions] = {}
        """Those that were declared; any other name is a queue, too."""
        self.dead_alert_hooks: list[Callable[[DeadAlert], Any]] = []
        self._clock = clock
        self._portal = portal
        self._clients = Clients(self.connect)
        self._home = _Home(self, self._clients, portal)
        self.dead = Desk(portal, self._clients, self.tasks)
        """Dead letters: `groups`, `show`, `replay`, `discard`."""
        self.schedules = Timetable(portal, self._clients)
        """Schedules at run time: `list`, `add`, `pause`, `resume`, `run_now`, `remove`."""
        self._memory: tuple[asyncio.AbstractEventLoop, Store] | None = None
        self._outbox: Outbox | None = None
        self._lock = threading.Lock()

    # ── tasks ────────────────────────────────────────────────────────────────

    @overload
    def task(  # type: ignore[overload-overlap]  # a coroutine function is the more special case
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        deadline: Duration | None = None,
        retry: Retry = ...,
        executor: Executor | None = None,
        result_ttl: Duration | None = "1d",
        tenant: Callable[..., str] | None = None,
        redact: Iterable[str] = (),
        max_payload: int | None = None,
    ) -> Decorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        deadline: Duration | None = None,
        retry: Retry = Retry(),  # noqa: B008 - immutable
        executor: Executor | None = None,
        result_ttl: Duration | None = "1d",
        tenant: Callable[..., str] | None = None,
        redact: Iterable[str] = (),
        max_payload: int | None = None,
    ) -> Any:
        """Declare a task: `@app.task` or `@app.task(queue="billing", timeout="2m", …)`."""

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            made = declare(
                self._home,
                function,
                name=name,
                queue=queue,
                priority=priority,
                timeout=timeout,
                expires=expires,
                deadline=deadline,
                retry=retry,
                executor=executor,
                result_ttl=result_ttl,
                tenant=tenant,
                redact=redact,
                max_payload=self.settings.max_payload if max_payload is None else max_payload,
            )
            if made.name in self.tasks:
                raise ConfigError(f'task {made.name} is declared twice: give one of them another name="…"')
            self.tasks[made.name] = made
            return made

        return Decorator(make) if function is None else make(function)

    # ── queues ───────────────────────────────────────────────────────────────

    def queue(
        self, name: str, *, dead_retention: Duration | None = None, dead_alert: int | None = None
    ) -> QueueOptions:
        """Declare what a queue does differently: `app.queue("billing", dead_retention="14d", dead_alert=100)`."""
        if name in self.queues:
            raise ConfigError(f"queue {name} is declared twice: put its options into one app.queue(…)")
        made = self.queues[name] = declare_queue(name, dead_retention=dead_retention, dead_alert=dead_alert)
        return made

    def schedule(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        job: JobCall[Any],
        overlap: str = "allow",
        catch_up: str = "last",
        jitter: Duration | None = None,
    ) -> Schedule:
        """Declare a schedule: `app.schedule("nightly", cron="0 3 * * *", tz="Europe/Rome", job=report.job())`."""
        if name in self.schedules.declared:
            raise ConfigError(f"schedule {name} is declared twice: give one of them another name")
        made = declare_schedule(
            name, cron=cron, every=every, tz=tz, job=job, overlap=overlap, catch_up=catch_up, jitter=jitter
        )
        self.schedules.declared[name] = made
        return made

    def on_dead_alert(self, hook: Callable[[DeadAlert], H]) -> Callable[[DeadAlert], H]:
        """Call this, in each worker, when a queue's dead letters reach its `dead_alert`. Works as a decorator."""
        self.dead_alert_hooks.append(hook)
        return hook

    # ── enqueue in bulk ──────────────────────────────────────────────────────

    def enqueue_many(self, calls: Iterable[JobCall[R]], *, tx: object | None = None) -> list[Handle[R]]:
        """Enqueue `task.job(…)`s, one round trip per 1,000, each of those all or nothing; with `tx` all of them."""
        if tx is not None:
            return [handle for some in _chunks(calls) for handle in self._handles(some, self.put_in(tx, _jobs(some)))]
        self._portal.run(self._clients.here)
        handles: list[Handle[R]] = []
        under_way: tuple[list[JobCall[R]], Future[Placed]] | None = None
        try:
            # The next thousand is encoded while the store writes the last one; none overtakes another.
            for some in _chunks(calls):
                if under_way is not None:
                    before, under_way = under_way, None
                    handles += self._handles(before[0], before[1].result())
                under_way = some, self._portal.start(functools.partial(self._aput, _jobs(some)))
            if under_way is not None:
                before, under_way = under_way, None
                handles += self._handles(before[0], before[1].result())
        except Exception as error:
            if under_way is not None and under_way[1].exception() is None:
                handles += self._handles(under_way[0], under_way[1].result())
            _note_stored(error, len(handles))
            raise
        return handles

    async def aenqueue_many(self, calls: Iterable[JobCall[R]], *, tx: object | None = None) -> list[Handle[R]]:
        """Enqueue `task.job(…)`s, one round trip per 1,000, each of those all or nothing; with `tx` all of them."""
        client = await self._clients.here()
        handles: list[Handle[R]] = []
        if tx is not None:
            for some in _chunks(calls):
                handles += self._handles(some, await self.aput_in(tx, _jobs(some)))
            return handles
        under_way: tuple[list[JobCall[R]], asyncio.Task[Placed]] | None = None
        try:
            for some in _chunks(calls):
                if under_way is not None:
                    before, under_way = under_way, None
                    handles += self._handles(before[0], await before[1])
                under_way = some, asyncio.create_task(client.enqueue(_jobs(some)))
                await asyncio.sleep(0)  # it begins, and the next thousand is encoded while the store writes
            if under_way is not None:
                before, under_way = under_way, None
                handles += self._handles(before[0], await before[1])
        except Exception as error:
            if under_way is not None:
                await asyncio.wait([under_way[1]])
                if under_way[1].exception() is None:
                    handles += self._handles(under_way[0], under_way[1].result())
            _note_stored(error, len(handles))
            raise
        return handles

    def _handles(self, calls: Sequence[JobCall[R]], placed: Placed) -> list[Handle[R]]:
        home, batch, existing = self._home, placed.batch, placed.existing
        if not existing:
            return [Handle(home, call.codec, batch, place) for place, call in enumerate(calls)]
        return [Handle(home, call.codec, placed.id(place)) for place, call in enumerate(calls)]

    async def _aput(self, jobs: Sequence[NewJob]) -> Placed:
        return await (await self._clients.here()).enqueue(jobs)

    def put_in(self, tx: object, jobs: Sequence[NewJob]) -> Placed:
        """Write jobs in the caller's transaction, in the caller's thread; the portal's store only knows how."""
        batch = Batch(new_batch(), list(jobs))
        writer = self._outbox or transactional(self._portal.run(self._clients.here).store)
        return Placed(batch.id, writer.enqueue_in(tx, batch).existing)

    async def aput_in(self, tx: object, jobs: Sequence[NewJob]) -> Placed:
        """The same for async code."""
        batch = Batch(new_batch(), list(jobs))
        writer = self._outbox or transactional((await self._clients.here()).store)
        return Placed(batch.id, (await writer.aenqueue_in(tx, batch)).existing)

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
        """Whether jobs with `tx=` take the way through an outbox, and so arrive later."""
        return self._outbox is not None

    # ── looking ──────────────────────────────────────────────────────────────

    def get(self, job: JobRef) -> Job | None:
        """One job at this moment, None: there is none."""
        return self._portal.run(lambda: self.aget(job))

    async def aget(self, job: JobRef) -> Job | None:
        """One job at this moment, None: there is none."""
        return (await (await self._clients.here()).get([_id(job)]))[0]

    def find(
        self,
        *,
        state: States = (),
        queue: str | None = None,
        task: str | None = None,
        tenant: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
        before: JobRef | None = None,
        limit: int = 50,
    ) -> Page:
        """Jobs by filter, newest first; `page.next` given as `before` turns the page."""
        where = Filter(
            states=_states(state), queue=queue, task=task, tenant=tenant, since=since, until=until, text=text
        )
        return self._portal.run(lambda: self._afind(where, before, limit))

    async def afind(
        self,
        *,
        state: States = (),
        queue: str | None = None,
        task: str | None = None,
        tenant: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str | None = None,
        before: JobRef | None = None,
        limit: int = 50,
    ) -> Page:
        """Jobs by filter, newest first; `page.next` given as `before` turns the page."""
        where = Filter(
            states=_states(state), queue=queue, task=task, tenant=tenant, since=since, until=until, text=text
        )
        return await self._afind(where, before, limit)

    async def _afind(self, where: Filter, before: JobRef | None, limit: int) -> Page:
        client = await self._clients.here()
        return await client.find(where, before=None if before is None else _id(before), limit=limit)

    def explain(self, job: JobRef) -> Explanation:
        """Why a job is not running and, where that can be known, when it will; raises JobNotFound."""
        return self._portal.run(lambda: self.aexplain(job))

    async def aexplain(self, job: JobRef) -> Explanation:
        """Why a job is not running and, where that can be known, when it will; raises JobNotFound."""
        return await (await self._clients.here()).explain(_id(job), self._options_of)

    def _options_of(self, task: str) -> TaskOptions | None:
        found = self.tasks.get(task)
        return None if found is None else found.options

    def stats(self) -> Stats:
        """Every queue in figures."""
        return self._portal.run(self.astats)

    async def astats(self) -> Stats:
        """Every queue in figures."""
        return await (await self._clients.here()).stats()

    def workers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        return self._portal.run(self.aworkers)

    async def aworkers(self) -> list[Presence]:
        """Workers seen within the last minute."""
        return await (await self._clients.here()).workers()

    # ── the operator's moves ─────────────────────────────────────────────────

    def cancel(self, *jobs: JobRef, reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """Waiting jobs are cancelled, running ones asked to stop, finished ones left alone."""
        return self._portal.run(lambda: self.acancel(*jobs, reason=reason))

    async def acancel(self, *jobs: JobRef, reason: str | None = None) -> dict[JobId, CancelAnswer]:
        """Waiting jobs are cancelled, running ones asked to stop, finished ones left alone."""
        return await (await self._clients.here()).cancel(_ids(jobs), reason)

    def retry(self, *jobs: JobRef) -> frozenset[JobId]:
        """Make finished or scheduled jobs ready now; answers those moved."""
        return self._portal.run(lambda: self.aretry(*jobs))

    async def aretry(self, *jobs: JobRef) -> frozenset[JobId]:
        """Make finished or scheduled jobs ready now; answers those moved."""
        return await (await self._clients.here()).retry(_ids(jobs))

    def delete(self, *jobs: JobRef) -> frozenset[JobId]:
        """Forget jobs that are not running; answers those deleted."""
        return self._portal.run(lambda: self.adelete(*jobs))

    async def adelete(self, *jobs: JobRef) -> frozenset[JobId]:
        """Forget jobs that are not running; answers those deleted."""
        return await (await self._clients.here()).delete(_ids(jobs))

    def pause(self, queue: str, *, by: str = "") -> None:
        """No job of this queue starts after this returns; what runs goes on."""
        self._portal.run(lambda: self.apause(queue, by=by))

    async def apause(self, queue: str, *, by: str = "") -> None:
        """No job of this queue starts after this returns; what runs goes on."""
        await (await self._clients.here()).pause(check_queue(queue), by=by)

    def resume(self, queue: str) -> None:
        """Undo `pause`."""
        self._portal.run(lambda: self.aresume(queue))

    async def aresume(self, queue: str) -> None:
        """Undo `pause`."""
        await (await self._clients.here()).resume(check_queue(queue))

    # ── workers, stores, the end ─────────────────────────────────────────────

    @asynccontextmanager
    async def worker(
        self, *, concurrency: int | None = None, queues: Sequence[str] | None = None, **overrides: Any
    ) -> AsyncGenerator[Worker, None]:
        """A worker inside this process; `overrides` are settings, e.g. `lease="5s"`."""
        from headrace.worker import Worker

        settings = self.settings.replace(concurrency=concurrency, queues=queues, **overrides)
        store = self.connect()
        await store.open()
        try:
            worker = Worker(
                self.tasks,
                store,
                settings,
                duties=self.duties,
            )
            async with worker:
                yield worker
        finally:
            await store.close()

    @property
    def duties(self) -> Duties:
        """What its workers do beside running its tasks."""
        from headrace.worker.duties import Duties

        return Duties(
            queues=self.queues,
            dead_alert_hooks=self.dead_alert_hooks,
            schedules=self.schedules.declared,
            outbox=self._outbox,
        )

    def connect(self) -> Store:
        """A new store for the current event loop, not yet opened. memory:// is one store for the whole app."""
        if not self.settings.url.startswith("memory:"):
            return stores.connect(self.settings.store_url, clock=self._clock)
        loop = self._portal.loop
        with self._lock:
            # A forked child has another portal, and starts from nothing.
            if self._memory is None or self._memory[0] is not loop:
                self._memory = loop, stores.connect(self.settings.url, clock=self._clock)
            return remote(self._portal, self._memory[1])

    def close(self) -> None:
        """Close what sync calls opened. The next call opens it again."""
        self._portal.run(self._clients.close_here)

    async def aclose(self) -> None:
        """Close what this event loop's calls, and sync ones, opened. Ending the loop does it, too."""
        await self._clients.close_here()
        if self._clients.opened_in(self._portal):
            await asyncio.wrap_future(self._portal.start(self._clients.close_here))

    async def __aenter__(self) -> Self:
        await self._clients.here()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Headrace {mask_url(self.settings.url)}, {len(self.tasks)} tasks>"


class _Home:
    """What the app's tasks and handles need of it (see `task.Home`)."""

    def __init__(self, app: Headrace, clients: Clients, portal: Portal) -> None:
        self._app = app
        self._clients = clients
        self._portal = portal

    @property
    def key_ttl(self) -> timedelta:
        return self._app.settings.key_ttl

    def put(self, job: NewJob, tx: object | None) -> JobId:
        if tx is not None:
            return self._app.put_in(tx, [job]).id(0)
        return self._portal.run(lambda: self.aput(job, None))

    async def aput(self, job: NewJob, tx: object | None) -> JobId:
        client = await self._clients.here()
        return await client.put(job) if tx is None else (await self._app.aput_in(tx, [job])).id(0)

    def job(self, id: JobId) -> Job:
        return self._portal.run(lambda: self.ajob(id))

    async def ajob(self, id: JobId) -> Job:
        return await (await self._clients.here()).job(id)

    def explain(self, id: JobId) -> Explanation:
        return self._app.explain(id)

    async def aexplain(self, id: JobId) -> Explanation:
        return await self._app.aexplain(id)

    def finished(self, id: JobId, timeout: float | None) -> Job:
        return self._portal.run(lambda: self.afinished(id, timeout))

    async def afinished(self, id: JobId, timeout: float | None) -> Job:
        client = await self._clients.here()
        return await client.finished(id, timeout, expected=self._app.has_outbox)

    def stop(self, id: JobId, reason: str | None) -> bool:
        return self._portal.run(lambda: self.astop(id, reason))

    async def astop(self, id: JobId, reason: str | None) -> bool:
        return await (await self._clients.here()).stop(id, reason)


def _id(job: JobRef) -> JobId:
    return job.id if isinstance(job, Handle) else parse_id(job)


def _ids(jobs: Sequence[JobRef]) -> list[JobId]:
    return [_id(job) for job in jobs]


def _states(given: States) -> frozenset[JobState]:
    names = [given] if isinstance(given, str) else list(given)
    try:
        return frozenset(JobState(name) for name in names)
    except ValueError:
        raise ConfigError(f"state = {given!r}: {', '.join(JobState)}") from None


def _chunks(calls: Iterable[JobCall[R]]) -> Iterator[list[JobCall[R]]]:
    source = iter(calls)
    while some := list(itertools.islice(source, CHUNK)):
        for call in some:
            if not isinstance(call, JobCall):
                raise ConfigError(f"enqueue_many takes task.job(…), not {call!r:.80}")
        yield some


def _jobs(calls: Sequence[JobCall[Any]]) -> list[NewJob]:
    return [call.job for call in calls]


def _note_stored(error: Exception, count: int) -> None:
    if count:
        error.add_note(f"{count:,} jobs of this call had been enqueued before")
