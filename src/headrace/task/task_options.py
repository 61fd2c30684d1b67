"""The options of a task: what `@app.task(…)` takes, declared once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated, Any, TypedDict, cast, get_args

import msgspec

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.duration import Duration
from headrace.model.lane import check_priority, check_queue, check_task_name
from headrace.task.function import Executor
from headrace.task.limit import Limit, check_limits
from headrace.task.option import LENGTH, SPAN, Option, OptionKind, Options, named, one_of
from headrace.task.retry import Retry
from headrace.task.unique import Unique


def _check_retry(value: Any, name: str) -> Retry:
    if not isinstance(value, Retry):
        raise ConfigError(f"{name} = {value!r}: write Retry(max_attempts=…)")
    return value


def _check_tenant_of(value: Any, name: str) -> Callable[..., str]:
    if not callable(value):
        raise ConfigError(f"{name} = {value!r}: a function of the task's arguments; for one job use using(tenant=…)")
    return cast("Callable[..., str]", value)


def _check_unique(value: Any, name: str) -> Unique:
    if not isinstance(value, Unique):
        raise ConfigError(f'{name} = {value!r}: write Unique() or Unique(within="10m")')
    return value


def _check_names(value: Any, name: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(cast("Iterable[object]", value))
    if isinstance(value, str) or not all(isinstance(field, str) for field in names):
        raise ConfigError(f'{name} = {value!r}: a list of field names, e.g. redact=["password"]')
    return cast("tuple[str, ...]", names)


def _check_bytes(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} = {value!r}: a number of bytes")
    return value


class TaskKeywords(TypedDict, total=False):
    """The keyword arguments of `@app.task(…)`. None is the same as leaving an option out."""

    name: Annotated[
        str | None,
        Option(
            doc="The name that is stored. Keep it when you move the function.",
            kind=OptionKind(check=named(check_task_name)),
            default="`module.function`",
            code_only=True,
        ),
    ]
    queue: Annotated[
        str | None,
        Option(
            doc="The queue, a named line of jobs that workers serve.",
            kind=OptionKind(check=named(check_queue)),
            default="`default`",
            code_only=True,
        ),
    ]
    priority: Annotated[
        int | None,
        Option(
            doc="From -1000 to 1000; a job with a higher number runs first.",
            kind=OptionKind(check=named(check_priority)),
            default="0",
            code_only=True,
        ),
    ]
    timeout: Annotated[
        Duration | None, Option(doc="The longest time for one attempt.", kind=SPAN, default="none", code_only=True)
    ]
    expires: Annotated[
        Duration | None,
        Option(
            doc="No attempt starts later than this after the enqueue. The job is then cancelled with the note `expired`.",
            kind=SPAN,
            default="none",
            code_only=True,
        ),
    ]
    deadline: Annotated[
        Duration | None,
        Option(
            doc="The time for all attempts together, from the enqueue on. The job is then dead with the note `deadline`.",
            kind=SPAN,
            default="none",
            code_only=True,
        ),
    ]
    retry: Annotated[
        Retry | None,
        Option(
            doc="When a failed job is tried again.",
            kind=OptionKind(check=_check_retry),
            default="`Retry()`",
            code_only=True,
        ),
    ]
    executor: Annotated[
        Executor | None,
        Option(
            doc="Where the task runs: `async` in the event loop, `thread`, or `process`, which can be killed.",
            kind=OptionKind(check=one_of(*get_args(Executor))),
            default="depends on the function",
            code_only=True,
        ),
    ]
    result_ttl: Annotated[
        Duration | None,
        Option(
            doc="How long the result is kept; `0s` keeps none.",
            kind=LENGTH,
            default="as long as the job",
            code_only=True,
        ),
    ]
    tenant: Annotated[
        Callable[..., str] | None,
        Option(
            doc="The tenant of the job, computed from the task's arguments.",
            kind=OptionKind(check=_check_tenant_of),
            default="no tenant",
            code_only=True,
        ),
    ]
    limits: Annotated[
        Iterable[Limit] | None,
        Option(
            doc="How many jobs run at once and how fast they start.",
            kind=OptionKind(check=named(check_limits)),
            default="none",
            code_only=True,
        ),
    ]
    unique: Annotated[
        Unique | None,
        Option(
            doc="At most one job of a kind at a time.",
            kind=OptionKind(check=_check_unique),
            default="no",
            code_only=True,
        ),
    ]
    redact: Annotated[
        Iterable[str] | None,
        Option(
            doc="The names of fields that are never shown or logged, at any depth.",
            kind=OptionKind(check=_check_names),
            default="none",
            code_only=True,
        ),
    ]
    max_payload: Annotated[
        int | None,
        Option(
            doc="The largest size of the encoded arguments, in bytes.",
            kind=OptionKind(check=_check_bytes),
            default="the setting `max_payload`",
            code_only=True,
        ),
    ]


OPTIONS = Options(TaskKeywords)


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a task's jobs are run, checked where the task is declared; `TaskKeywords` says what each option means."""

    queue: str = "default"
    priority: int = 0
    timeout: timedelta | None = None
    expires: timedelta | None = None
    deadline: timedelta | None = None
    retry: Retry = msgspec.field(default_factory=Retry)
    executor: Executor = "async"
    result_ttl: timedelta | None = None
    """None keeps a result as long as the job. Zero keeps no result."""
    tenant: Callable[..., str] | None = None
    limits: tuple[Limit, ...] = ()
    unique: Unique | None = None
    redact: tuple[str, ...] = ()
    max_payload: int = 256 * 1024

    def __post_init__(self) -> None:
        quiet = None if self.unique is None else self.unique.delay
        for name, limit in (("expires", self.expires), ("deadline", self.deadline)):
            if quiet is not None and limit is not None and limit <= quiet:
                raise ConfigError(
                    f"{name} = {duration.show(limit)} and a debounce within {duration.show(quiet)}: it could never start"
                )
