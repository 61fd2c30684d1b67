"""Tasks: named, typed functions that can be enqueued. How jobs reach a store is injected (see `Home`)."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, get_args
from uuid import UUID

import msgspec

from headrace import duration
from headrace.codec import JobOptions, Signature, encode_options
from headrace.errors import BadArguments, ConfigError, PayloadTooLarge
from headrace.handle import Handle, Watch
from headrace.job import Due, JobId, Key, NewJob, parse_id
from headrace.lane import Lane, check_key, check_priority, check_queue, check_task_name, check_tenant
from headrace.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Executor = Literal["async", "thread", "process"]


class Home(Watch, Protocol):
    """What a task needs of the app it belongs to."""

    @property
    def key_ttl(self) -> timedelta: ...

    def put(self, job: NewJob, tx: object | None) -> JobId: ...

    async def aput(self, job: NewJob, tx: object | None) -> JobId: ...


# ── options ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a task's jobs are run, checked where the task is declared."""

    queue: str = "default"
    priority: int = 0
    timeout: timedelta | None = None
    """Of one attempt; None: no limit."""
    expires: timedelta | None = None
    """No attempt starts later than so long after the enqueue; None: whenever."""
    deadline: timedelta | None = None
    """Over all attempts, from the enqueue on; None: no limit."""
    retry: Retry = field(default_factory=Retry)
    executor: Executor = "async"
    result_ttl: timedelta | None = timedelta(days=1)
    """None: as long as the job itself is kept."""
    tenant: Callable[..., str] | None = None
    """Takes the task's own arguments."""
    redact: tuple[str, ...] = ()
    """Fields, at any depth, whose values are never shown."""
    max_payload: int = 256 * 1024

    def __post_init__(self) -> None:
        check_queue(self.queue)
        check_priority(self.priority)
        if not isinstance(self.retry, Retry):
            raise ConfigError(f"retry = {self.retry!r}: write Retry(max_attempts=…)")
        if self.executor not in get_args(Executor):
            raise ConfigError(f"executor = {self.executor!r}: one of {', '.join(get_args(Executor))}")
        if self.tenant is not None and not callable(self.tenant):
            raise ConfigError(
                f"tenant = {self.tenant!r}: a function of the task's arguments; for one job use using(tenant=…)"
            )
        if not all(isinstance(name, str) for name in self.redact):
            raise ConfigError(f'redact = {self.redact!r}: a list of field names, e.g. redact=["password"]')
        if isinstance(self.max_payload, bool) or not isinstance(self.max_payload, int) or self.max_payload < 1:
            raise ConfigError(f"max_payload = {self.max_payload!r}: a number of bytes")


def _positive(value: duration.Duration | None, name: str) -> timedelta | None:
    if value is None:
        return None
    if not isinstance(value, str | timedelta):
        raise ConfigError(f'{name} = {value!r} is no duration: write "30s", "5m" or a timedelta')
    found = duration.parse(value, name=name)
    if not found:
        raise ConfigError(f"{name} = {value!r}: must be more than 0; leave it out for none")
    return found


def declare(
    home: Home,
    function: Callable[..., Any],
    *,
    name: str | None,
    executor: Executor | None,
    timeout: duration.Duration | None,
    expires: duration.Duration | None,
    deadline: duration.Duration | None,
    result_ttl: duration.Duration | None,
    redact: Iterable[str],
    queue: str,
    priority: int,
    retry: Retry,
    tenant: Callable[..., str] | None,
    max_payload: int,
) -> Task[..., Any]:
    """A task from a function and what the decorator was given; every mistake is a ConfigError that names the task."""
    label = name or getattr(function, "__qualname__", repr(function))
    try:
        is_async = _check_function(function)
        task_name = check_task_name(name) if name is not None else default_name(function)
        options = TaskOptions(
            queue=queue,
            priority=priority,
            timeout=_positive(timeout, "timeout"),
            expires=_positive(expires, "expires"),
            deadline=_positive(deadline, "deadline"),
            retry=retry,
            executor=_pick_executor(function, executor, is_async=is_async),
            result_ttl=_positive(result_ttl, "result_ttl"),
            tenant=tenant,
            redact=_names(redact),
            max_payload=max_payload,
        )
    except ConfigError as error:
        raise ConfigError(f"task {label}: {error}") from None
    if is_async:
        return AsyncTask[..., Any](home, function, task_name, options)
    return SyncTask[..., Any](home, function, task_name, options)


def _names(redact: Iterable[str]) -> tuple[str, ...]:
    if isinstance(redact, str):
        raise ConfigError(f'redact = {redact!r}: a list of field names, e.g. redact=["password"]')
    return tuple(redact)


def _check_function(function: object) -> bool:
    """Whether it is async; a ConfigError when it cannot be a task at all."""
    if isinstance(function, Task):
        raise ConfigError("is a task already: decorate it once")
    if (
        isinstance(function, staticmethod | classmethod | property)
        or inspect.isclass(function)
        or not callable(function)
    ):
        raise ConfigError("a task is a function: decorate a def or async def")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError("a generator cannot be a task: return a list, or enqueue one job per item")
    return inspect.iscoroutinefunction(function)


def _pick_executor(function: Callable[..., Any], executor: Executor | None, *, is_async: bool) -> Executor:
    if executor is None:
        return "async" if is_async else "thread"
    if executor == "async" and not is_async:
        raise ConfigError(
            'executor = "async" needs an async def; leave executor out to run a plain function in a thread'
        )
    if executor == "thread" and is_async:
        raise ConfigError(
            'executor = "thread" needs a plain def; leave executor out to run an async def in the event loop'
        )
    qualname = getattr(function, "__qualname__", "<lambda>")
    if executor == "process" and ("<locals>" in qualname or "<lambda>" in qualname):
        raise ConfigError('executor = "process" needs a function that its process can import: move it to module level')
    return executor


def default_name(function: Callable[..., Any]) -> str:
    """`module.qualname`; a ConfigError where that says nothing."""
    qualname = getattr(function, "__qualname__", "<unknown>").replace("<locals>.", "")
    if "<" in qualname:
        raise ConfigError('it has no name of its own: give one with name="…"')
    name = f"{_module(function)}.{qualname}"
    try:
        return check_task_name(name)
    except ConfigError as error:
        raise ConfigError(f'{error}; give one with name="…"') from None


def _module(function: Callable[..., Any]) -> str:
    """A script run as `__main__` names its tasks as a worker that imports it would."""
    module = getattr(function, "__module__", None) or "tasks"
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    stem = Path(getattr(main, "__file__", None) or "").stem
    return stem if re.fullmatch(r"\w+", stem, re.ASCII) else "main"


# ── one job's own options ────────────────────────────────────────────────────


class Plan(msgspec.Struct, frozen=True):
    """How the jobs of a task, or of one `using(…)` of it, are enqueued."""

    queue: str
    priority: int
    lane: Lane | None
    """None: the tenant depends on the arguments."""
    due: Due = None
    key: str | None = None
    key_ttl: timedelta = timedelta(days=1)
    options: bytes | None = None
    tx: object | None = None


@functools.lru_cache(maxsize=4096)
def _lane(queue: str, priority: int, tenant: str) -> Lane:
    # Jobs of one lane share the object: stores find runs of a batch by identity.
    return Lane(queue, priority, tenant)


FARTHEST = duration.LONGEST


def _due(delay: duration.Duration | None, run_at: datetime | None) -> Due:
    if delay is not None and run_at is not None:
        raise ConfigError("delay and run_at exclude each other: give one")
    if delay is not None:
        if not isinstance(delay, str | timedelta):
            raise ConfigError(f'delay = {delay!r} is no duration: write "30s", "5m" or a timedelta')
        return duration.parse(delay, name="delay") or None
    if run_at is None:
        return None
    _check_time(run_at, "run_at")
    if run_at - datetime.now(UTC) > FARTHEST:
        raise ConfigError(f"run_at = {run_at.isoformat()} is more than {FARTHEST.days} days ahead")
    return run_at


def _check_time(value: datetime, name: str) -> None:
    if not isinstance(value, datetime):
        raise ConfigError(f"{name} = {value!r}: an aware datetime, e.g. datetime(2030, 1, 1, tzinfo=UTC)")
    if value.utcoffset() is None:
        raise ConfigError(f"{name} = {value.isoformat()} has no time zone: add tzinfo, e.g. UTC")


def _moment(
    value: duration.Duration | datetime | None, name: str, usual: timedelta | None, due: Due
) -> float | datetime | None:
    """A limit in time as a job carries it: seconds from the enqueue on by the store's clock, or that time."""
    if isinstance(value, datetime):
        _check_time(value, name)
        if isinstance(due, datetime) and due >= value:
            raise ConfigError(f"the job is due at {due} and {name} = {value}: it could never start")
        return value
    own = _positive(value, name)
    limit = usual if own is None else own
    if limit is not None and isinstance(due, timedelta) and due >= limit:
        raise ConfigError(
            f"the job is due after {duration.show(due)} and {name} = {duration.show(limit)}: it could never start"
        )
    return _in_seconds(own)


class JobCall(msgspec.Struct, Generic[R_co], frozen=True):
    """One job, checked and encoded, to be enqueued in bulk: `app.enqueue_many(task.job(i) for i in …)`."""

    job: NewJob
    codec: Signature


# ── tasks ────────────────────────────────────────────────────────────────────


class Task(Generic[P, R]):
    """A named function with options. Calling it runs it here; `enqueue` has a worker run it."""

    def __init__(self, home: Home, function: Callable[..., Any], name: str, options: TaskOptions) -> None:
        functools.update_wrapper(self, function)
        self._home = home
        self.function = function
        self.name = name
        self.options = options
        self.codec = Signature(function)
        lane = _lane(options.queue, options.priority, "") if options.tenant is None else None
        self._plan = Plan(options.queue, options.priority, lane)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it; blocks until the job is stored durably."""
        return Handle(self._home, self.codec, self._home.put(self._make(self._plan, args, kwargs), None))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it; returns when the job is stored durably."""
        return Handle(self._home, self.codec, await self._home.aput(self._make(self._plan, args, kwargs), None))

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """A job to be enqueued with others: see `app.enqueue_many`."""
        return JobCall(self._make(self._plan, args, kwargs), self.codec)

    def handle(self, id: str | UUID) -> Handle[R]:
        """The handle of a job of this task whose id you kept."""
        return Handle(self._home, self.codec, parse_id(id))

    def using(
        self,
        *,
        delay: duration.Duration | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        key_ttl: duration.Duration | None = None,
        timeout: duration.Duration | None = None,
        expires: duration.Duration | datetime | None = None,
        deadline: duration.Duration | datetime | None = None,
        max_attempts: int | None = None,
        result_ttl: duration.Duration | None = None,
        tx: object | None = None,
    ) -> Bound[P, R]:
        """The same task with other options for the jobs enqueued through it.

        `expires`: no attempt starts after that, `deadline`: over all attempts; both so long from the enqueue on, or a
        time.
        """
        if key_ttl is not None and key is None:
            raise ConfigError("key_ttl without key: it says how long the key is remembered")
        if max_attempts is not None:
            Retry(max_attempts=max_attempts)
        due = _due(delay, run_at)
        options = JobOptions(
            timeout=_in_seconds(_positive(timeout, "timeout")),
            max_attempts=max_attempts,
            result_ttl=_in_seconds(_positive(result_ttl, "result_ttl")),
            expires=_moment(expires, "expires", self.options.expires, due),
            deadline=_moment(deadline, "deadline", self.options.deadline, due),
        )
        line = self.options.queue if queue is None else check_queue(queue)
        rank = self.options.priority if priority is None else check_priority(priority)
        if tenant is None and self.options.tenant is None:
            tenant = ""
        plan = Plan(
            queue=line,
            priority=rank,
            lane=None if tenant is None else _lane(line, rank, check_tenant(tenant)),
            due=due,
            key=None if key is None else check_key(key),
            key_ttl=_positive(key_ttl, "key_ttl") or self._home.key_ttl,
            options=encode_options(options),
            tx=tx,
        )
        return Bound(self._home, self.codec, self._make, plan)

    def _make(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        """Check and encode: nothing has been stored yet when this raises."""
        if plan.key is None:
            payload, key = self.codec.encode(args, kwargs), None
        else:
            payload = self.codec.encode(args, kwargs, canonical=True)
            key = Key(plan.key, plan.key_ttl, hashlib.blake2b(payload, digest_size=16).digest())
        if len(payload) > self.options.max_payload:
            raise PayloadTooLarge(len(payload), self.options.max_payload)
        lane = plan.lane or _lane(plan.queue, plan.priority, self._tenant(args, kwargs))
        return NewJob(self.name, payload, lane, plan.due, key, plan.options)

    def _tenant(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        of = self.options.tenant
        assert of is not None  # a plan without a lane has one
        try:
            return check_tenant(of(*args, **kwargs))
        except ConfigError as error:
            raise BadArguments(f"{self.name}: the task's tenant= function: {error}") from None
        except Exception as error:
            raise BadArguments(
                f"{self.name}: the task's tenant= function raised {type(error).__name__}: {error}"
            ) from error


def _in_seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


class SyncTask(Task[P, R]):
    """A task made of a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        return cast("R", self.function(*args, **kwargs))


class AsyncTask(Task[P, R]):
    """A task made of an `async def`; R is what awaiting it gives."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run the function here and now."""
        return cast("Coroutine[Any, Any, R]", self.function(*args, **kwargs))


class Bound(Generic[P, R]):
    """A task with options of its own: what `task.using(…)` gives."""

    __slots__ = ("_codec", "_home", "_make", "_plan")

    def __init__(self, home: Home, codec: Signature, make: Callable[[Plan, Any, Any], NewJob], plan: Plan) -> None:
        self._home = home
        self._codec = codec
        self._make = make
        self._plan = plan

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it; blocks until the job is stored, or written in the caller's transaction."""
        job = self._make(self._plan, args, kwargs)
        return Handle(self._home, self._codec, self._home.put(job, self._plan.tx))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Have a worker run it; returns when the job is stored, or written in the caller's transaction."""
        job = self._make(self._plan, args, kwargs)
        return Handle(self._home, self._codec, await self._home.aput(job, self._plan.tx))

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """A job to be enqueued with others: see `app.enqueue_many`."""
        if self._plan.tx is not None:
            raise ConfigError("tx belongs to the call that enqueues: app.enqueue_many(jobs, tx=…)")
        return JobCall(self._make(self._plan, args, kwargs), self._codec)
