"""The options of one job: what `task.using(…)`, `POST /v1/jobs` and `headrace enqueue` take, declared once.

To add an option, add a field to `JobKeywords`, and one to `JobOptions` if the worker needs the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Annotated, Any, Literal, Protocol, TypedDict
from uuid import UUID

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model import duration
from headrace.model.duration import LONGEST, Duration
from headrace.model.gate import Needs
from headrace.model.job import Due
from headrace.model.lane import check_key, check_priority, check_queue, check_tenant
from headrace.task.option import DUE, END, LENGTH, NUMBER, SPAN, Checks, Option, OptionKind, Options, named, one_of
from headrace.task.option import checked as checked_options
from headrace.task.retry import MOST_ATTEMPTS


def _check_attempts(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        raise ConfigError(f"{name} = {value!r}: a whole number from 1 to {MOST_ATTEMPTS:,}")
    return value


def _stored_span(value: Any, name: str) -> None:
    if not 0 < value <= LONGEST.total_seconds():
        raise ConfigError(f"{name} = {value} s: more than 0 and at most {LONGEST.days:,} days")


def _stored_length(value: Any, name: str) -> None:
    if not 0 <= value <= LONGEST.total_seconds():
        raise ConfigError(f"{name} = {value} s: from 0 to {LONGEST.days:,} days")


_TRACE = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:(?<!^00.{53})-[!-~]*)?", re.ASCII
)
LONGEST_TRACE = 200
"""Characters of a trace. Version 00 has 55, and a later version may add more."""


def is_trace(value: object) -> bool:
    """Whether this is the text of a W3C `traceparent`. Only versions after 00 may have more than four parts."""
    return isinstance(value, str) and len(value) <= LONGEST_TRACE and _TRACE.fullmatch(value) is not None


def _check_trace(value: Any, name: str) -> str:
    if not is_trace(value):
        raise ConfigError(
            f"{name} = {value!r:.80}: the text of a traceparent, such as "
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        )
    return str(value)


class Followed(Protocol):
    """What a job can follow: a handle, `task.job(…)`, a group."""

    @property
    def out(self) -> Any: ...


def _check_after(value: Any, name: str) -> Any:
    return _checker_of_after()(value, name)


@cache
def _checker_of_after() -> Callable[[Any, str], Any]:
    # Few jobs follow others, and every app imports this module.
    from headrace.task.links import check_after

    return check_after


class JobKeywords(TypedDict, total=False):
    """The keyword arguments of `task.using(…)`. None is the same as leaving an option out."""

    queue: Annotated[
        str | None,
        Option(
            doc="The queue, instead of the task's own.",
            kind=OptionKind(check=named(check_queue), metavar="queue", problem="invalid_queue_name"),
            default="as the task says",
        ),
    ]
    priority: Annotated[
        int | None,
        Option(
            doc="From -1000 to 1000; a job with a higher number runs first.",
            kind=replace(NUMBER, check=named(check_priority), problem="invalid_priority"),
            default="as the task says",
        ),
    ]
    delay: Annotated[Duration | None, Option(doc="The job does not start before so long from now.", kind=LENGTH)]
    run_at: Annotated[
        datetime | None,
        Option(doc="The job does not start before this time. In JSON, `now` is the same as leaving it out.", kind=DUE),
    ]
    tenant: Annotated[
        str | None,
        Option(
            doc="The tenant that the job belongs to. Leave it out over HTTP if the token is bound to a tenant.",
            kind=OptionKind(check=named(check_tenant), metavar="tenant", problem="invalid_tenant"),
            default="as the task says",
        ),
    ]
    key: Annotated[
        str | None,
        Option(
            doc="The idempotency key: the same key and arguments make one job. Over HTTP also the header Idempotency-Key.",
            kind=OptionKind(check=named(check_key), metavar="key", problem="invalid_key"),
        ),
    ]
    key_ttl: Annotated[
        Duration | None,
        Option(doc="How long the key is remembered.", kind=SPAN, default="the setting `key_ttl`"),
    ]
    timeout: Annotated[
        Duration | None,
        Option(
            doc="The longest time for one attempt.",
            kind=SPAN,
            default="as the task says",
            stored=True,
            stored_check=_stored_span,
        ),
    ]
    expires: Annotated[
        Duration | datetime | None,
        Option(
            doc="No attempt starts later than so long after the enqueue, or than this time.",
            kind=END,
            default="as the task says",
            stored=True,
        ),
    ]
    deadline: Annotated[
        Duration | datetime | None,
        Option(
            doc="The end of all attempts: so long after the enqueue, or this time.",
            kind=END,
            default="as the task says",
            stored=True,
        ),
    ]
    max_attempts: Annotated[
        int | None,
        Option(
            doc="The number of failures after which the job is dead.",
            kind=replace(NUMBER, check=_check_attempts, problem="invalid_max_attempts"),
            default="as the task says",
            stored=True,
            stored_check=_check_attempts,
        ),
    ]
    result_ttl: Annotated[
        Duration | None,
        Option(
            doc="How long the result is kept; `0s` keeps none.",
            kind=LENGTH,
            default="as the task says",
            stored=True,
            stored_check=_stored_length,
        ),
    ]
    webhook: Annotated[
        str | None,
        Option(
            doc="A URL that is told how the job ended, done or dead.",
            kind=OptionKind(metavar="url", problem="unsafe_callback_url"),
            stored=True,
            app_check=lambda checks, url: checks.check_webhook(url),
        ),
    ]
    trace: Annotated[
        str | None,
        Option(
            doc="The W3C traceparent of the producer, which the worker's spans continue. Over HTTP also the header traceparent.",
            kind=OptionKind(check=_check_trace, metavar="traceparent", problem="invalid_trace"),
            stored=True,
            stored_check=_check_trace,
        ),
    ]
    after: Annotated[
        Followed | Iterable[Followed] | None,
        Option(
            doc="The jobs and groups that the job runs after: handles, `task.job(…)`, groups.",
            kind=OptionKind(check=_check_after),
            code_only=True,
        ),
    ]
    when: Annotated[
        Literal["done", "ended", "failed"] | None,
        Option(
            doc="What must be true of those: `done`, `ended` (in any way), or `failed` (one is dead or cancelled).",
            kind=OptionKind(check=one_of(*Needs)),
            default="`done`",
            code_only=True,
        ),
    ]
    tx: Annotated[
        object | None,
        Option(doc="The user's own transaction, in which the job is stored.", code_only=True),
    ]


OPTIONS = Options(JobKeywords)

Moment = Annotated[float, Meta(ge=0, le=LONGEST.total_seconds())] | Annotated[datetime, Meta(tz=True)] | None
"""A time limit of one job: seconds after its enqueue, or a time. Both by the store's clock."""


class JobOptions(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The options that a job carries, as stores keep them. None: the task's option counts. Durations are in seconds."""

    timeout: float | None = None
    max_attempts: int | None = None
    result_ttl: float | None = None
    expires: Moment = None
    deadline: Moment = None
    webhook: str | None = None
    tenant: str | None = None
    """The job's tenant in a queue where tenants do not take turns. There the lane has no tenant."""
    key: str | None = None
    """Its idempotency key, for display. The store keeps the key itself beside the job and forgets it sooner."""
    by: str | None = None
    """Its producer, for display: a token's name, or the setting `producer`."""
    redact: tuple[str, ...] = ()
    """Fields of its arguments to mask where the task is not known."""
    names: tuple[str, ...] = ()
    """The names of masked positional arguments, by place. Empty: not masked."""
    trace: str | None = None
    """The producer's trace, as the text of a W3C traceparent."""
    inputs: tuple[UUID, ...] = ()
    """The jobs and groups whose results are arguments. The payload holds their ids in place of the results."""


# ── from what was given to what is stored ────────────────────────────────────


def checked(given: Mapping[str, Any], checks: Checks) -> dict[str, Any]:
    """What a caller of `using` gave, each value as the code uses it, or a ConfigError."""
    options = checked_options(OPTIONS, given, "using", checks)
    if "key_ttl" in options and "key" not in options:
        raise ConfigError("key_ttl without key: it says how long the key is remembered")
    if "when" in options and "after" not in options:
        raise ConfigError("when without after: it says what must be true of the jobs in after=")
    return options


@cache
def carried() -> dict[str, Option]:
    """The options that a job carries."""
    return {name: option for name, option in OPTIONS.items() if option.stored}


def stored(given: Mapping[str, Any], **others: Any) -> JobOptions:
    """What the job carries of checked options; `others` are fields that no caller of `using` gives."""
    kept = carried()
    for name, value in given.items():
        if name in kept:
            others[name] = value.total_seconds() if isinstance(value, timedelta) else value
    return JobOptions(**others)


def check_stored(own: JobOptions) -> None:
    """A ConfigError if headrace itself would not have made these options."""
    for option in carried().values():
        if option.stored_check is not None and (value := getattr(own, option.name)) is not None:
            option.stored_check(value, option.name)
    if own.tenant is not None:
        check_tenant(own.tenant)


def needs_of(given: dict[str, Any]) -> Needs:
    """Take out of checked options what must be true of the jobs that a job follows."""
    return Needs(given.pop("when")) if "when" in given else Needs.DONE


def due_of(given: Mapping[str, Any]) -> Due:
    """When a job with these checked options is due."""
    if "delay" in given and "run_at" in given:
        raise ConfigError("delay and run_at exclude each other: give one")
    return given.get("delay") or given.get("run_at")


def check_startable(name: str, value: timedelta | datetime | None, task: timedelta | None, due: Due) -> None:
    """A ConfigError for a job whose `expires` or `deadline` is over before it is due."""
    limit = task if value is None else value
    if isinstance(limit, datetime):
        if isinstance(due, datetime) and due >= limit:
            raise ConfigError(f"the job is due at {due} and {name} = {limit}: it could never start")
    elif limit is not None and isinstance(due, timedelta) and due >= limit:
        raise ConfigError(
            f"the job is due after {duration.show(due)} and {name} = {duration.show(limit)}: it could never start"
        )
