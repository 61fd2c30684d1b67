"""What a test can say about enqueued jobs: `enqueued`, `assert_enqueued`, `assert_not_enqueued`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.job import Job, JobId, JobState, NewJob
from headrace.task.call import JobCall
from headrace.task.codec import readable_options
from headrace.task.task import Task
from headrace.testing.faults import task_name
from headrace.testing.stand_in import AppUnderTest, StandIn, active_stands, in_portal, stand_of

SHOWN = 10
"""Jobs in the message of a failed assertion."""


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """A job as it was enqueued, and its state now."""

    id: JobId
    """The job's id."""
    task: str
    """The name of its task."""
    args: tuple[Any, ...]
    """Its positional arguments."""
    kwargs: dict[str, Any]
    """Its arguments by name."""
    queue: str
    """Its queue."""
    priority: int
    """Its priority."""
    tenant: str
    """Its tenant. Empty: it has none."""
    delay: timedelta | None
    """The time between the enqueue call and the moment at which the job is due. None: it is due at once."""
    run_at: datetime | None
    """The moment at which the job is due."""
    key: str | None
    """Its idempotency key."""
    state: JobState
    """Its state now."""
    job: Job
    """Everything that the store has: attempts, failures, progress, the log."""

    def __str__(self) -> str:
        parts = [*map(_shown, self.args), *(f"{name}={_shown(value)}" for name, value in self.kwargs.items())]
        about = [f"queue={self.queue!r}"]
        about += [f"tenant={self.tenant!r}"] if self.tenant else []
        about += [f"priority={self.priority}"] if self.priority else []
        about += [f"delay={duration.show(self.delay)!r}"] if self.delay is not None else []
        about += [f"key={self.key!r}"] if self.key is not None else []
        return f"{self.task}({', '.join(parts)})  {', '.join(about)}: {self.state}"


def enqueued(app: AppUnderTest, task: object = None, *, state: JobState | str | None = None) -> list[EnqueuedJob]:
    """Every job that was enqueued since `use_memory(app)` began, in its order, also jobs that have run.

    ```py
    assert [job.args for job in enqueued(app, charge)] == [(7, "acme")]
    ```

    `task`: only its jobs. `state`: only jobs that are in this state now, such as `"ready"`.
    """
    wanted = None if state is None else JobState(state)
    name = None if task is None else task_name(task)
    return [
        job
        for job in _all(stand_of(app))
        if (name is None or job.task == name) and (wanted is None or job.state is wanted)
    ]


def assert_enqueued(
    task: Task[..., Any] | JobCall[Any] | object,
    /,
    *args: Any,
    queue: str | None = None,
    tenant: str | None = None,
    priority: int | None = None,
    delay: duration.Duration | None = None,
    run_at: datetime | None = None,
    key: str | None = None,
    state: JobState | str | None = None,
    count: int | None = None,
    **kwargs: Any,
) -> list[EnqueuedJob]:
    """Fail unless such a job was enqueued. Returns the jobs that fit.

    ```py
    assert_enqueued(charge)                                       # with any arguments
    assert_enqueued(charge, 7, "acme", queue="billing", count=1)
    assert_enqueued(charge, shop="acme", delay="5m")              # arguments that are left out may be anything
    assert_enqueued(charge.job(7, "acme"))                        # exactly this job, with all its options
    ```

    A job counts also after it has run; give `state="ready"` or `count` where that matters. `task.job(…)` is the way to name
    an argument of the task that is called like an option, such as `queue`.
    """
    looking = _Wanted.of(task, args, kwargs, _given(queue, tenant, priority, delay, run_at, key, state))
    every = _all(looking.stand)
    jobs = [job for job in every if not looking.differences(job)]
    if jobs and count in {None, len(jobs)}:
        return jobs
    if count == 0 and not jobs:
        return []
    raise AssertionError(looking.complaint(every, jobs, count))


def assert_not_enqueued(
    task: Task[..., Any] | JobCall[Any] | object,
    /,
    *args: Any,
    queue: str | None = None,
    tenant: str | None = None,
    priority: int | None = None,
    delay: duration.Duration | None = None,
    run_at: datetime | None = None,
    key: str | None = None,
    state: JobState | str | None = None,
    **kwargs: Any,
) -> None:
    """Fail if such a job was enqueued. The arguments are those of `assert_enqueued`."""
    looking = _Wanted.of(task, args, kwargs, _given(queue, tenant, priority, delay, run_at, key, state))
    jobs = [job for job in _all(looking.stand) if not looking.differences(job)]
    if jobs:
        lines = [f"  {job}" for job in jobs[:SHOWN]]
        raise AssertionError("\n".join([f"{_were(len(jobs))} enqueued that must not be, like {looking}:", *lines]))


def _given(
    queue: str | None,
    tenant: str | None,
    priority: int | None,
    delay: duration.Duration | None,
    run_at: datetime | None,
    key: str | None,
    state: JobState | str | None,
) -> dict[str, Any]:
    """The options that were given."""
    given = {
        "queue": queue,
        "tenant": tenant,
        "priority": priority,
        "delay": None if delay is None else duration.parse(delay, name="delay"),
        "run_at": run_at,
        "key": key,
        "state": None if state is None else JobState(state),
    }
    return {name: value for name, value in given.items() if value is not None}


class _Wanted:
    """What a test looks for."""

    def __init__(
        self, stand: StandIn, task: str, arguments: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> None:
        self.stand = stand
        self._task = task
        self._arguments = arguments
        """By name. None: any arguments."""
        self._options = options
        self.signature: inspect.Signature | None = None

    @classmethod
    def of(cls, what: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> _Wanted:
        call: Any = what
        if isinstance(what, JobCall):
            if args or kwargs:
                raise ConfigError("task.job(…) has its arguments already: leave the others out")
            return cls._of_call(call, options)
        name = task_name(what)
        stand = stand_with(name)
        signature = signature_of(what, stand.app.tasks[name])
        arguments: Mapping[str, Any] | None = None
        if args or kwargs:
            try:
                arguments = signature.bind_partial(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
        wanted = cls(stand, name, arguments, options)
        wanted.signature = signature
        return wanted

    @classmethod
    def _of_call(cls, call: JobCall[Any], options: Mapping[str, Any]) -> _Wanted:
        job = call.job
        stand = stand_with(job.task)
        signature = signature_of(None, stand.app.tasks[job.task])
        args, kwargs = call.codec.decode(job.payload)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        whole: dict[str, Any] = {
            "queue": job.lane.queue,
            "tenant": _tenant(job),
            "priority": job.lane.priority,
            "key": None if job.key is None else job.key.name,
        }
        whole |= {"run_at": job.due} if isinstance(job.due, datetime) else {"delay": job.due}
        wanted = cls(stand, job.task, bound.arguments, whole | dict(options))
        wanted.signature = signature
        return wanted

    def differences(self, job: EnqueuedJob) -> list[str]:
        """What is different at this job. Empty: it fits."""
        if job.task != self._task:
            return [f"is a job of {job.task}"]
        gaps: list[str] = []
        if self._arguments is not None and self.signature is not None:
            bound = self.signature.bind(*job.args, **job.kwargs)
            bound.apply_defaults()
            for name, wanted in self._arguments.items():
                value = bound.arguments.get(name)
                if name not in bound.arguments or not _same(wanted, value):
                    gaps.append(f"{name} is {_shown(value)}, not {_shown(wanted)}")
        for name, wanted in self._options.items():
            value = getattr(job, name)
            if value != wanted:
                gaps.append(f"{name} is {_option(value)}, not {_option(wanted)}")
        return gaps

    def complaint(self, every: Sequence[EnqueuedJob], jobs: Sequence[EnqueuedJob], count: int | None) -> str:
        head = f"no job like {self} was enqueued"
        if jobs:
            head = f"{_were(len(jobs))} enqueued like {self}, not {count}"
        if not every:
            return f"{head}; no job at all was"
        ranked = sorted(every, key=lambda job: (job.task != self._task, len(self.differences(job))))
        lines = [self._line(job) for job in ranked[:SHOWN]]
        more = [f"  … and {len(every) - SHOWN:,} more"] if len(every) > SHOWN else []
        those = "this one was" if len(every) == 1 else f"these {len(every):,} were, the closest first"
        return "\n".join([f"{head}; {those}:", *lines, *more])

    def _line(self, job: EnqueuedJob) -> str:
        gaps = self.differences(job) if job.task == self._task else []
        return f"  {job}" + (f"  ({'; '.join(gaps)})" if gaps else "")

    def __str__(self) -> str:
        if self._arguments is None:
            called = "(…)"
        else:
            called = f"({', '.join(f'{name}={_shown(value)}' for name, value in self._arguments.items())})"
        options = [f"{name}={_option(value)}" for name, value in self._options.items() if value not in {None, ""}]
        return f"{self._task}{called}" + (f" with {', '.join(options)}" if options else "")


def stand_with(task: str) -> StandIn:
    """The stand-in whose app declares this task."""
    for stand in active_stands():
        if task in stand.app.tasks:
            return stand
    if active_stands():
        raise ConfigError(f"no app that uses memory now declares a task {task}: call use_memory(…) with its app")
    raise ConfigError("no app has a store for tests now: call this inside `with use_memory(app):`")


def signature_of(what: object, task: Task[..., Any]) -> inspect.Signature:
    """Of the task's own function, also of a Django task."""
    own: Any = getattr(what, "func", None)
    if own is None:
        return inspect.signature(task.function)
    signature = inspect.signature(own)
    if getattr(what, "takes_context", False):
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature


def _all(stand: StandIn) -> list[EnqueuedJob]:
    async def look() -> list[tuple[Job, NewJob]]:
        await stand.catch_up()
        return await stand.store.jobs()

    return [_of(stand, job, new) for job, new in in_portal(look)]


def _of(stand: StandIn, job: Job, new: NewJob) -> EnqueuedJob:
    task = stand.app.tasks.get(job.task)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if task is not None:
        args, kwargs = task.codec.decode(job.payload)
    due = new.due
    return EnqueuedJob(
        id=job.id,
        task=job.task,
        args=args,
        kwargs=kwargs,
        queue=job.queue,
        priority=job.priority,
        tenant=_tenant(new),
        delay=due - job.enqueued_at if isinstance(due, datetime) else due,
        run_at=job.enqueued_at + due if isinstance(due, timedelta) else due,
        key=None if new.key is None else new.key.name,
        state=job.state,
        job=job,
    )


def _tenant(new: NewJob) -> str:
    if new.lane.tenant or new.options is None:
        return new.lane.tenant
    return readable_options(new.options).tenant or ""  # in a queue with fair="off" it is no part of the lane


def _same(wanted: Any, value: Any) -> bool:
    try:
        return bool(wanted == value)
    except Exception:  # noqa: BLE001  # a user's type may do anything while it is compared
        return False


def _were(count: int) -> str:
    return "1 job was" if count == 1 else f"{count:,} jobs were"


def _option(value: object) -> str:
    return (
        duration.show(value)
        if isinstance(value, timedelta)
        else repr(str(value) if isinstance(value, JobState) else value)
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
