"""The app: tasks, store and settings put together; the only composition root."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from headrace import store as stores
from headrace.client.enqueue_hooks import Enqueueing
from headrace.client.linked_home import LinkedHome
from headrace.client.produce import Producer
from headrace.errors import ConfigError
from headrace.model.job import REFERENCE, Job, JobId, NewJob
from headrace.model.masked_url import mask_url
from headrace.operate.app_jobs import AppJobs
from headrace.operate.app_pauses import AppPauses
from headrace.runtime.portal import portal
from headrace.settings import Settings
from headrace.task.call import JobCall
from headrace.task.handle import Handle, Put
from headrace.task.hooks import AppHooks
from headrace.task.limit import DeclaredLimits
from headrace.task.options import check_producer
from headrace.task.task import AsyncTask, Decorator, SyncTask, Task, declare
from headrace.task.task_options import TaskKeywords

if TYPE_CHECKING:
    import asyncio

    from headrace.client.per_loop import Clients
    from headrace.model.clock import Clock
    from headrace.operate.dead.app import AppDeadLetters
    from headrace.operate.limits import AppLimits
    from headrace.operate.schedules import AppSchedules
    from headrace.policy.explain.answer import Explanation
    from headrace.policy.queue import DeadAlert, QueueKeywords, QueueOptions
    from headrace.policy.schedule import Schedule
    from headrace.policy.schedule_options import ScheduleKeywords
    from headrace.store.contract import Store
    from headrace.task.event import Event
    from headrace.task.large_results import ResultStorage
    from headrace.testing.inlining import Inline
    from headrace.webhooks.declare import Webhook
    from headrace.webhooks.deliver import Webhooks
    from headrace.worker import Duties, Worker

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H")


class Headrace(AppJobs, AppPauses, AppHooks, Producer):
    """Tasks and the store that holds their jobs. Verbs come in two: `x` for sync code, `ax` for async code."""

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Settings | None = None,
        producer: str | None = None,
        clock: Clock | None = None,
        **overrides: Any,
    ) -> None:
        """`url` and `overrides` replace values of `settings`, or of what `Settings.load` finds. `clock` is for tests.

        `producer`: the name of the producer that the app's jobs carry, such as "billing-api"; None: none.
        """
        self.settings = (
            Settings.load(url=url, **overrides) if settings is None else settings.replace(url=url, **overrides)
        )
        """The settings of the app, with the origin of each value."""
        AppHooks.__init__(self)
        self.tasks: dict[str, Task[..., Any]] = {}
        """The declared tasks by name."""
        self.queues: dict[str, QueueOptions] = {}
        """The declared queues by name. Any other name is a queue, too."""
        self.events: dict[str, Event[Any]] = {}
        """The declared events by name."""
        self.dead_alert_hooks: list[Callable[[DeadAlert], Any]] = []
        self.producer = None if producer is None else check_producer(producer)
        """The name of the producer that the app's jobs carry. None: none."""
        self._clock = clock
        self._unfair: set[str] = set()
        self._home = _Home(self, self._unfair)
        self._limits = DeclaredLimits()
        self._only_store: tuple[asyncio.AbstractEventLoop, Store] | None = None
        self._stand_in: Store | None = None
        self._lock = threading.Lock()

    # Most programs that enqueue jobs use none of these, so they do not import them.

    @cached_property
    def limits(self) -> AppLimits:
        """Limits at run time: `list`, `set`, `reset`."""
        from headrace.operate.limits import AppLimits

        return AppLimits(self.clients, self._limits)

    @cached_property
    def webhooks(self) -> Webhooks:
        """The webhooks of the app and of its settings."""
        from headrace.webhooks.declare import Allow, read_secrets
        from headrace.webhooks.deliver import Webhooks

        secret = self.settings.webhook_secret
        return Webhooks(secrets=read_secrets(secret) if secret else (), allow=Allow.of(self.settings.webhook_allow))

    @cached_property
    def dead(self) -> AppDeadLetters:
        """Dead letters: `groups`, `show`, `replay`, `discard`."""
        from headrace.operate.dead.app import AppDeadLetters

        return AppDeadLetters(self.clients, self.tasks)

    @cached_property
    def schedules(self) -> AppSchedules:
        """Schedules at run time: `list`, `add`, `pause`, `resume`, `run_now`, `remove`."""
        from headrace.operate.schedules import AppSchedules

        return AppSchedules(self.clients)

    # ── tasks ────────────────────────────────────────────────────────────────

    @overload
    def task(  # type: ignore[overload-overlap]  # a coroutine function is the more special case
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskKeywords]) -> Decorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskKeywords]) -> Any:
        """Declare a task: `@app.task` or `@app.task(queue="billing", timeout="2m", …)`."""

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            task = declare(self._home, function, options, max_payload=self.settings.max_payload)
            if task.name in self.tasks:
                raise ConfigError(f'task {task.name} is declared twice: give one of them another name="…"')
            try:
                self._limits.declare(task.options.limits)
            except ConfigError as error:
                raise ConfigError(f"task {task.name}: {error}") from None
            task.hooks = self.hooks
            self.tasks[task.name] = task
            return task

        return Decorator(make) if function is None else make(function)

    def large_results(self, storage: ResultStorage, *, over: int = 64 * 1024) -> None:
        """Keep results of more than `over` bytes in a storage: `app.large_results(FolderResults("/srv/results"))`."""
        from headrace.task.large_results import LargeResults

        self.hooks.large_results = LargeResults(storage, over)

    # ── queues ───────────────────────────────────────────────────────────────

    def queue(self, name: str, **options: Unpack[QueueKeywords]) -> QueueOptions:
        """Declare what a queue does differently: `app.queue("billing", weights={"acme": 3}, dead_alert=100)`."""
        if name in self.queues:
            raise ConfigError(f"queue {name} is declared twice: put its options into one app.queue(…)")
        from headrace.policy.queue import declare

        queue = self.queues[name] = declare(name, **options)
        if queue.fair == "off":
            self._unfair.add(name)
        return queue

    def schedule(self, name: str, *, job: JobCall[Any], **options: Unpack[ScheduleKeywords]) -> Schedule:
        """Declare a schedule: `app.schedule("nightly", cron="0 3 * * *", tz="Europe/Rome", job=report.job())`."""
        if name in self.schedules.declared:
            raise ConfigError(f"schedule {name} is declared twice: give one of them another name")
        from headrace.operate.schedules import declare

        schedule = declare(name, job=job, **options)
        self.schedules.declared[name] = schedule
        return schedule

    def webhook(
        self,
        url: str,
        *,
        on: str | Iterable[str] | None = None,
        queue: str | None = None,
        task: str | None = None,
        secret: str | None = None,
    ) -> Webhook:
        """Have a URL told of every job that is done or dead, and of dead alerts: `app.webhook("https://…", on="dead")`.

        `on`: some of `done`, `dead` and `alert`; None: all of them.
        `secret`: `whsec_…`, to sign what goes there; else the setting `webhook_secret` does.
        """
        from headrace.webhooks.declare import EVENTS, declare

        events = EVENTS if on is None else on
        webhook = declare(url, on=events, queue=queue, task=task, secret=secret, allow=self.webhooks.allow)
        self.webhooks.add(webhook)
        return webhook

    def on_dead_alert(self, hook: Callable[[DeadAlert], H]) -> Callable[[DeadAlert], H]:
        """Call this, in each worker, when a queue's dead letters reach its `dead_alert`. Works as a decorator."""
        self.dead_alert_hooks.append(hook)
        return hook

    # ── workers, stores ──────────────────────────────────────────────────────

    @asynccontextmanager
    async def worker(
        self, *, concurrency: int | None = None, queues: Sequence[str] | None = None, **overrides: Any
    ) -> AsyncGenerator[Worker, None]:
        """A worker inside this process; `overrides` are settings, e.g. `lease="5s"`."""
        from headrace.store.remarks import log_remarks
        from headrace.worker import Worker

        settings = self.settings.replace(concurrency=concurrency, queues=queues, **overrides)
        store = self.connect()
        await store.open()
        log_remarks(store)
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
            limits=self._limits,
            outbox=self._outbox,
            webhooks=self.webhooks,
            hooks=self.hooks,
        )

    def connect(self) -> Store:
        """A new store for the current event loop, not yet opened. A store in one process is one for the whole app."""
        if self._stand_in is not None:
            return self._stand_in
        if not stores.in_one_process(self.settings.url):
            if "+cluster:" in self.settings.url:
                self._limits.refuse_shared(self.tasks.values())
            shards = {name: queue.shards for name, queue in self.queues.items() if queue.shards > 1}
            return stores.connect(self.settings.store_url, clock=self._clock, shards=shards)
        from headrace.client.remote import remote

        loop = portal.loop
        with self._lock:
            # A forked child has another portal, and starts from nothing.
            if self._only_store is None or self._only_store[0] is not loop:
                self._only_store = loop, stores.connect(self.settings.url, clock=self._clock)
            return remote(portal, self._only_store[1])

    # ── tests ────────────────────────────────────────────────────────────────

    def inline(self, *, errors: Literal["raise", "retry"] = "raise") -> Inline:
        """For tests: run each job when it is enqueued, in the code that enqueues it: `with app.inline(): …`.

        `errors`: raise the error of a failed job from the enqueue call, or leave the job to its retry policy.
        """
        from headrace.testing.inlining import Inline

        return Inline(self, errors=errors)

    @contextmanager
    def standing_in(self, store: Store) -> Generator[None]:
        """Keep jobs in this store until the end. Every event loop must be able to use it. For `headrace.testing`."""
        if self._stand_in is not None:
            raise ConfigError("this app has the store of a test already: leave that use_memory(…) first")
        outbox = self._outbox
        with self.clients.set_aside():
            self._stand_in, self._outbox = store, None
            try:
                yield
            finally:
                self._stand_in, self._outbox = None, outbox

    # ── the end ──────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Close what sync calls opened. The next call opens it again."""
        portal.run(self.clients.close_here)

    async def aclose(self) -> None:
        """Close what this event loop's calls, and sync ones, opened. Ending the loop does it, too."""
        await self.clients.close_here()
        if self.clients.opened_in(portal):
            await portal.answer_of(self.clients.close_here)

    async def __aenter__(self) -> Self:
        await self.clients.here()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Headrace {mask_url(self.settings.url)}, {len(self.tasks)} tasks>"


class _Home(LinkedHome):
    """What the app's tasks and handles need of it (see `task.Home`)."""

    def __init__(self, app: Headrace, unfair: Collection[str]) -> None:
        self._app = self._producer = app
        self._on_enqueue = app.hooks.on_enqueue
        self.unfair = unfair
        self.producer = app.producer

    @cached_property
    def _clients(self) -> Clients:
        return self._app.clients

    @property
    def key_ttl(self) -> timedelta:
        return self._app.settings.key_ttl

    def check_webhook(self, url: str) -> str:
        return self._app.webhooks.check_webhook(url)

    def put(self, job: NewJob, tx: object | None) -> Put:
        # It is not made from `aput`: a job with `tx` is written in the caller's thread, to which the transaction belongs.
        if self._on_enqueue:
            return self._put_in_hooks(job, tx)
        if tx is not None:
            return self._app.put_in(tx, [job]).put(0)
        put = self._clients.put_here(job) or portal.run(lambda: self._aplace(job))
        if (inline := self._app.inline_runner) is not None and put.created:
            inline.run([put.id])
        return put

    def _put_in_hooks(self, job: NewJob, tx: object | None) -> Put:
        with Enqueueing(self._on_enqueue, job) as hooked:
            job = hooked.traced(job)
            if tx is not None:
                put = self._app.put_in(tx, [job]).put(0)
            else:
                put = self._clients.put_here(job) or portal.run(lambda: self._aplace(job))
            hooked.stored(1, put.id)
        if (inline := self._app.inline_runner) is not None and put.created and tx is None:
            inline.run([put.id])
        return put

    async def aput(self, job: NewJob, tx: object | None) -> Put:
        if self._on_enqueue:
            return await self._aput_in_hooks(job, tx)
        if tx is not None:
            return (await self._app.aput_in(tx, [job])).put(0)
        put = await self._aplace(job)
        if (inline := self._app.inline_runner) is not None and put.created:
            await inline.arun([put.id])
        return put

    async def _aput_in_hooks(self, job: NewJob, tx: object | None) -> Put:
        with Enqueueing(self._on_enqueue, job) as hooked:
            job = hooked.traced(job)
            put = await self._aplace(job) if tx is None else (await self._app.aput_in(tx, [job])).put(0)
            hooked.stored(1, put.id)
        if (inline := self._app.inline_runner) is not None and put.created and tx is None:
            await inline.arun([put.id])
        return put

    def handle(self, call: JobCall[R], put: Put) -> Handle[R]:
        return Handle(self, call.codec, put.id, created=put.created)

    async def _aplace(self, job: NewJob) -> Put:
        return await (await self._clients.here()).place(job)

    async def ajob(self, id: JobId) -> Job:
        return await (await self._clients.here()).job(id)

    async def aexplain(self, id: JobId) -> Explanation:
        return await self._app.aexplain(id)

    async def afinished(self, id: JobId, timeout: float | None) -> Job:
        client = await self._clients.here()
        job = await client.finished(id, timeout, expected=self._app.has_outbox)
        if job.result is None or not job.result.startswith(REFERENCE):
            return job
        from headrace.task.large_results import fetched

        return await fetched(job, self._app.hooks.large_results)

    async def astop(self, id: JobId, reason: str | None) -> bool:
        return await self._app.astop(id, reason)
