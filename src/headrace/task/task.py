"""Tasks: named, typed functions that can be enqueued. How jobs reach a store is injected (see `Home`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload
from uuid import UUID

from msgspec import structs

from headrace.errors import BadArguments, ConfigError, PayloadTooLarge
from headrace.model.gate import Needs, NewGate
from headrace.model.job import JobId, Key, NewJob, parse_id
from headrace.model.lane import Lane, check_tenant
from headrace.task.call import JobCall, link_makers
from headrace.task.call_hints import CallHints
from headrace.task.codec import JobOptions, Signature, decode_options, encode_options, marked
from headrace.task.codec.hooks import HasPlaceholder
from headrace.task.function import check_function, default_name, pick_executor
from headrace.task.handle import Handle, Put, Watch
from headrace.task.hooks import Hooks
from headrace.task.job_options import JobKeywords, check_startable, checked, due_of, needs_of, stored
from headrace.task.limit import Shape, keys_of
from headrace.task.option import checked as checked_options
from headrace.task.options import EnqueueOptions, lane_of
from headrace.task.task_options import OPTIONS, TaskKeywords, TaskOptions

if TYPE_CHECKING:
    from headrace.task.children import Children
    from headrace.task.undo import UndoPlace

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

NO_HOOKS = Hooks()


class Home(Watch, Protocol):
    """The part of an app that a task needs."""

    @property
    def key_ttl(self) -> timedelta: ...

    @property
    def producer(self) -> str | None:
        """The producer's name in its jobs. None: none."""
        ...

    @property
    def unfair(self) -> Collection[str]:
        """Queues in which tenants do not take turns."""
        ...

    def check_webhook(self, url: str) -> str: ...

    def put(self, job: NewJob, tx: object | None) -> Put: ...

    async def asignal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        """Signal an event (see `task.event`)."""
        ...

    async def aput(self, job: NewJob, tx: object | None) -> Put: ...

    def put_call(self, call: JobCall[Any], tx: object | None) -> Put:
        """Enqueue a job, with those that it follows."""
        ...

    async def aput_call(self, call: JobCall[Any], tx: object | None) -> Put: ...

    def put_after(self, call: JobCall[Any], job: JobId, number: int, tenant: str) -> Put:
        """Enqueue a call that runs after a running job, once for each number."""
        ...

    async def aput_after(self, call: JobCall[Any], job: JobId, number: int, tenant: str) -> Put: ...

    def children(self, calls: Sequence[JobCall[Any]], tenant: str) -> Children:
        """The jobs of these calls as children of a running job of that tenant."""
        ...

    def put_undo(self, call: JobCall[Any], place: UndoPlace) -> Put:
        """Enqueue a call that runs if a running job does not end well (see `task.undo`)."""
        ...

    async def aput_undo(self, call: JobCall[Any], place: UndoPlace) -> Put: ...

    def put_members(self, calls: Iterable[JobCall[R]], job: JobId) -> Sequence[Handle[R]]:
        """Enqueue calls as members of the group of a running job."""
        ...

    async def aput_members(self, calls: Iterable[JobCall[R]], job: JobId) -> Sequence[Handle[R]]: ...

    def handle(self, call: JobCall[R], put: Put) -> Handle[R]: ...


def declare(home: Home, function: Callable[..., Any], options: TaskKeywords, *, max_payload: int) -> Task[..., Any]:
    """A task from a function and the decorator's arguments. A mistake raises ConfigError, which names the task."""
    label = options.get("name") or getattr(function, "__qualname__", repr(function))
    try:
        if isinstance(function, Task):
            raise ConfigError("is a task already: decorate it once")
        is_async = check_function(function)
        given: dict[str, Any] = {"max_payload": max_payload} | checked_options(OPTIONS, options, "task")
        name = given.pop("name", None) or default_name(function)
        given["executor"] = pick_executor(function, given.get("executor"), is_async=is_async)
        task_options = TaskOptions(**given)
        Shape(function, task_options.limits)
    except ConfigError as error:
        raise ConfigError(f"task {label}: {error}") from None
    if is_async:
        return AsyncTask[..., Any](home, function, name, task_options)
    return SyncTask[..., Any](home, function, name, task_options)


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


# ── tasks ────────────────────────────────────────────────────────────────────


class Task(CallHints, Generic[P, R]):
    """A named function with options. Calling it runs it here. `enqueue` makes a worker run it."""

    def __init__(self, home: Home, function: Callable[..., Any], name: str, options: TaskOptions) -> None:
        functools.update_wrapper(self, function)
        self._home = home
        self.function = function
        """The function as it was before the decorator."""
        self.hooks = NO_HOOKS
        """Those of the app that declares it."""
        self.name = name
        """The name that jobs carry."""
        self.options = options
        """The options of the task, checked."""
        self.codec = Signature(function)
        # Keys that do not depend on a job's arguments are made once.
        fixed = all(limit.key is None and isinstance(limit.cost, int) for limit in options.limits)
        self._limits = keys_of(options.limits, (), {}) if fixed else None
        self.shape = Shape(function, options.limits)
        self.skips = options.unique is not None and options.unique.skips
        """Whether a bulk call leaves out jobs whose unique lock is held."""
        # Each job stores what to mask, because readers without this code must not show it.
        redact, names = self.codec.marks(options.redact) if options.redact else ((), ())
        self._marks = JobOptions(redact=redact, names=names)
        tenant = "" if options.tenant is None else None
        due = None if options.unique is None else options.unique.delay
        self._plan = EnqueueOptions(
            options.queue,
            options.priority,
            tenant,
            self._fixed_lane(options.queue, options.priority, tenant),
            due,
            options=encode_options(self._marks),
        )

    @property
    def home(self) -> Home:
        """Where its jobs go."""
        return self._home

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def in_code(self) -> tuple[str, str]:
        name = getattr(self.function, "__name__", self.name)
        return name, name

    # `enqueue` and `aenqueue` are both written out, here and in `Bound`: each checks and encodes the arguments in the
    # caller's own thread, because the functions of the task's options may depend on it.

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it; blocks until the job is stored durably."""
        try:
            job = self.make_job(self._plan, args, kwargs)
        except HasPlaceholder:
            return self._bound.enqueue(*args, **kwargs)
        return self._handle(self._home.put(job, None))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it; returns when the job is stored durably."""
        try:
            job = self.make_job(self._plan, args, kwargs)
        except HasPlaceholder:
            return await self._bound.aenqueue(*args, **kwargs)
        return self._handle(await self._home.aput(job, None))

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """A job to be enqueued with others: see `app.enqueue` and `app.enqueue_many`."""
        try:
            return JobCall(self.make_job(self._plan, args, kwargs), self.codec, self.skips, self)
        except HasPlaceholder:
            return self.job_after(args, kwargs)

    def job_after(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobCall[R]:
        """`job` for arguments that hold placeholders, as `then` has them. It does not try to encode them as values first."""
        return link_makers().linked_call(self, self._plan, args, kwargs)

    @property
    def _bound(self) -> Bound[P, R]:
        return Bound(self._home, self, self._plan, (), Needs.DONE)

    def handle(self, id: str | UUID) -> Handle[R]:
        """The handle of a job of this task whose id you kept."""
        return self._handle(Put(parse_id(id), created=False))

    def _handle(self, put: Put) -> Handle[R]:
        return Handle(self._home, self.codec, put.id, created=put.created)

    def using(self, **options: Unpack[JobKeywords]) -> Bound[P, R]:
        """The same task with other options for the jobs enqueued through it: `task.using(delay="5m").enqueue(…)`.

        `JobKeywords` says what each option means.
        """
        given = checked(options, self._home)
        after, needs = given.pop("after", ()), needs_of(given)
        # Chains are made by calls with nothing but `after`.
        plan = self._plan_of(given) if given or self._plan.due is not None else self._plan
        return Bound(self._home, self, plan, after, needs)

    def _plan_of(self, given: dict[str, Any]) -> EnqueueOptions:
        """The plan of these checked options, apart from what the jobs follow."""
        due = due_of(given)
        if (quiet := self._plan.due) is not None:
            if due is not None:
                raise ConfigError(
                    f"{self.name} is debounced: its jobs are due when it has been quiet; leave delay and run_at out"
                )
            due = quiet
        check_startable("expires", given.get("expires"), self.options.expires, due)
        check_startable("deadline", given.get("deadline"), self.options.deadline, due)
        own = stored(given, redact=self._marks.redact, names=self._marks.names)
        line, rank = given.get("queue", self.options.queue), given.get("priority", self.options.priority)
        tenant = given.get("tenant", "" if self.options.tenant is None else None)
        return EnqueueOptions(
            queue=line,
            priority=rank,
            tenant=tenant,
            lane=self._fixed_lane(line, rank, tenant),
            due=due,
            key=given.get("key"),
            key_ttl=given.get("key_ttl") or self._home.key_ttl,
            options=encode_options(own),
            tx=given.get("tx"),
        )

    def make(
        self,
        plan: EnqueueOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        after: tuple[Any, ...] = (),
        needs: Needs = Needs.DONE,
    ) -> JobCall[R]:
        """One job by these options, checked and encoded. `after`, `needs`: what it follows, and what must be true of that."""
        try:
            job = self.make_job(plan, args, kwargs)
        except HasPlaceholder:
            return link_makers().linked_call(self, plan, args, kwargs, after, needs)
        call: JobCall[R] = JobCall(job, self.codec, self.skips, self)
        return link_makers().after(call, after, needs) if after else call

    def make_job(
        self, plan: EnqueueOptions, args: tuple[Any, ...], kwargs: dict[str, Any], payload: bytes | None = None
    ) -> NewJob:
        """Check and encode. If this raises, nothing has been stored. `payload`: the arguments, if they are encoded already."""
        unique, key, lock = self.options.unique, None, None
        if payload is None:
            payload = self.codec.encode(args, kwargs, canonical=plan.key is not None or unique is not None)
        if len(payload) > self.options.max_payload:
            raise PayloadTooLarge(len(payload), self.options.max_payload)
        if plan.key is not None:
            from hashlib import blake2b  # Jobs without a key do without it.

            key = Key(plan.key, plan.key_ttl, blake2b(payload, digest_size=16).digest())
        if unique is not None:
            lock = self._ask("unique=", lambda: unique.lock_for(args, kwargs, payload))
        lane, options = plan.lane or self._lane(plan, args, kwargs), plan.options
        if lane.tenant and lane.queue in self._home.unfair:
            own = structs.replace(decode_options(options), tenant=lane.tenant)
            lane, options = lane_of(lane.queue, lane.priority, "", lane.limits), encode_options(own)
        if plan.key is not None or self._home.producer is not None:
            options = marked(options, by=self._home.producer, key=plan.key)
        return NewJob(self.name, payload, lane, plan.due, key, options, lock)

    def _fixed_lane(self, queue: str, priority: int, tenant: str | None) -> Lane | None:
        if tenant is None or self._limits is None:
            return None
        return lane_of(queue, priority, check_tenant(tenant), self._limits)

    def _lane(self, plan: EnqueueOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lane:
        tenant, limits, of = plan.tenant, self._limits, self.options.tenant
        if tenant is None and of is not None:
            tenant = self._ask("tenant=", lambda: check_tenant(of(*args, **kwargs)))
        if limits is None:
            limits = self._ask("limits=", lambda: keys_of(self.options.limits, *self.shape.full(args, kwargs)))
        return lane_of(plan.queue, plan.priority, tenant or "", limits)

    def _ask(self, option: str, function: Callable[[], T]) -> T:
        """The result of a function of the arguments. Its errors are passed on to the caller."""
        try:
            return function()
        except ConfigError as error:
            raise BadArguments(f"{self.name}: the task's {option} function: {error}") from None
        except Exception as error:
            raise BadArguments(
                f"{self.name}: the task's {option} function raised {type(error).__name__}: {error}"
            ) from error


class SyncTask(Task[P, R]):
    """A task made from a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        return cast("R", self.function(*args, **kwargs))


class AsyncTask(Task[P, R]):
    """A task made from an `async def`. R is the type of the awaited result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the function here and now."""
        return cast("Coroutine[Any, Any, R]", self.function(*args, **kwargs))


class Bound(CallHints, Generic[P, R]):
    """A task with options of its own, as `task.using(…)` returns it."""

    __slots__ = ("_after", "_home", "_needs", "_plan", "_task")

    def __init__(
        self, home: Home, task: Task[P, R], plan: EnqueueOptions, after: tuple[Any, ...], needs: Needs
    ) -> None:
        """`after`: what its jobs run after: calls, handles, groups. `needs`: what must be true of those."""
        self._home = home
        self._task = task
        self._plan = plan
        self._after = after
        self._needs = needs

    def in_code(self) -> tuple[str, str]:
        name, _ = self._task.in_code()
        return name, f"{name}.using(…)"

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it; blocks until the job is stored, or written in the caller's transaction."""
        call = self._call("enqueue", args, kwargs)
        put = self._home.put_call(call, self._plan.tx)
        return Handle(self._home, call.codec, put.id, created=put.created)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it; returns when the job is stored, or written in the caller's transaction."""
        call = self._call("aenqueue", args, kwargs)
        put = await self._home.aput_call(call, self._plan.tx)
        return Handle(self._home, call.codec, put.id, created=put.created)

    def _call(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobCall[R]:
        call = self._task.make(self._plan, args, kwargs, self._after, self._needs)
        if call.links is not None:
            from headrace.task.links import check_stored

            check_stored(call, verb)
        return call

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """A job to be enqueued with others: see `app.enqueue` and `app.enqueue_many`."""
        self._check_no_tx()
        return self._task.make(self._plan, args, kwargs, self._after, self._needs)

    def job_after(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobCall[R]:
        """See `Task.job_after`."""
        self._check_no_tx()
        return link_makers().linked_call(self._task, self._plan, args, kwargs, self._after, self._needs)

    def _check_no_tx(self) -> None:
        if self._plan.tx is not None:
            raise ConfigError(
                "tx belongs to the call that enqueues: app.enqueue(job, tx=…), app.enqueue_many(jobs, tx=…)"
            )
