"""Makes a job from a request. Names, times and arguments are checked before anything is stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw

from headrace.app import Headrace
from headrace.errors import BadArguments, ConfigError, PayloadTooLarge
from headrace.model import duration
from headrace.model.job import Due, JobId, Key, NewJob
from headrace.model.lane import Lane, check_key, check_priority, check_queue, check_task_name, check_tenant
from headrace.server import visibility
from headrace.server.admission import own_key
from headrace.server.auth import Principal
from headrace.server.http import boundary
from headrace.server.http.call import Call
from headrace.server.http.problems import Problem, not_found
from headrace.server.state import ServerState
from headrace.task.codec import JobOptions, encode_options
from headrace.task.task import Task

T = TypeVar("T")

Args = Annotated[Raw, Meta(extra_json_schema={"type": "array", "description": "Arguments by place."})]
Kwargs = Annotated[Raw, Meta(extra_json_schema={"type": "object", "description": "Arguments by name."})]
Time = Annotated[datetime, Meta(tz=True)]
When = Annotated[str, Meta(extra_json_schema={"anyOf": [{"format": "date-time"}, {"const": "now"}]})]

_ARGUMENT = re.compile(r"argument '([^']+)'")

NO_ARGS, NO_KWARGS = Raw(b"[]"), Raw(b"{}")


class JobRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A job to be made. Durations are written "30s", "5m", "2h"; times as 2030-01-31T08:00:00Z."""

    task: str
    args: Args = msgspec.field(default_factory=lambda: NO_ARGS)
    kwargs: Kwargs = msgspec.field(default_factory=lambda: NO_KWARGS)
    queue: str | None = None
    """Instead of the task's own."""
    priority: int | None = None
    """From -1000 to 1000; higher runs first."""
    delay: str | None = None
    """Not before this time from now."""
    run_at: When | None = None
    """Not before this time. `now` is the default."""
    tenant: str | None = None
    """The tenant that the job belongs to. Leave it out if the token is bound to a tenant."""
    key: str | None = None
    """Idempotency key: the same key and arguments make one job. Also the header Idempotency-Key."""
    timeout: str | None = None
    """Of one attempt."""
    max_attempts: int | None = None
    expires: str | None = None
    """No attempt starts later than so long after the enqueue, or after this time."""
    deadline: str | None = None
    """Over all attempts, so long after the enqueue, or this time."""
    webhook: str | None = None
    """A URL that receives the job's end, done or dead."""


def make(service: ServerState, principal: Principal, asked: JobRequest, path: str = "") -> NewJob:
    """The requested job. Raises Problem; `path` is its place in the body."""
    app = service.app
    task = app.tasks.get(asked.task)
    if task is None:  # The name of a known task was checked at its declaration.
        check(check_task_name, asked.task, "invalid_task_name", path + "task")
    call = b'{"args":%b,"kwargs":%b}' % (asked.args, asked.kwargs)
    boundary.check_names(call, service.settings)
    queue = _queue(app, principal, task, asked, path)
    if task is None:
        return _foreign(app, principal, asked, queue, path)
    try:
        args, kwargs = task.codec.decode(call)
    except BadArguments as error:
        raise _bad_arguments(asked, error, path) from None
    options = _options(app, principal, asked, path)
    try:
        made = task.using(**options) if options else task
        return made.job(*args, **kwargs).job
    except BadArguments as error:
        raise _bad_arguments(asked, error, path) from None
    except PayloadTooLarge as error:
        raise Problem(422, "payload_too_large", str(error), path=path + "args") from None
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error), path=path) from None


def _queue(app: Headrace, principal: Principal, task: Task[..., Any] | None, asked: JobRequest, path: str) -> str:
    """The job's lane. Raises Problem if the caller may not use it."""
    if asked.queue is not None:
        queue = check(check_queue, asked.queue, "invalid_queue_name", path + "queue")
        if not principal.sees(queue, principal.tenant):
            raise not_found("there is no such queue")
    else:
        queue = "default" if task is None else task.options.queue
    if principal.sees(queue, principal.tenant):
        options = app.queues.get(queue)
        if task is not None or (options is not None and options.foreign):
            return queue
    raise Problem(
        422,
        "unknown_task",
        f"there is no task {asked.task}: GET /v1/tasks lists them; a queue that is "
        "declared with foreign=True accepts any task",
        path=path + "task",
    )


def _bad_arguments(asked: JobRequest, error: BadArguments, path: str) -> Problem:
    for raw in (asked.args, asked.kwargs):
        # The value that the signature refuses may not be a JSON value.
        json_value(raw)
    found = _ARGUMENT.search(str(error))
    if found is None:
        return Problem(422, "bad_arguments", str(error), path=f"{path}args")
    named = msgspec.json.decode(asked.kwargs, type=dict[str, Raw])
    part = "kwargs" if re.split(r"[.\[]", found[1])[0] in named else "args"
    return Problem(422, "bad_arguments", str(error), path=f"{path}{part}.{found[1]}")


def json_value(raw: Raw) -> Any:
    """Decode a part of a body that was not decoded before."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        raise boundary.malformed(bytes(raw)) from None


def check(checker: Callable[[Any], T], value: Any, code: str, path: str) -> T:
    """The result of a check. Its ConfigError becomes a Problem."""
    try:
        return checker(value)
    except ConfigError as error:
        raise Problem(422, code, str(error), path=path) from None


async def reveal(call: Call, ids: Iterable[JobId]) -> None:
    """Raise a 409 if the caller may not see one of these existing jobs, which replace new ones."""
    if not call.principal.bound:
        return
    for job in await call.service.store.get(list(ids)):
        if job is not None and not visibility.sees(call.principal, job):
            raise Problem(409, "unique_conflict", "another job holds the unique lock of this one")


# ── options ──────────────────────────────────────────────────────────────────


def _options(app: Headrace, principal: Principal, asked: JobRequest, path: str) -> dict[str, Any]:
    """The job's own options, for `Task.using`."""
    found: dict[str, Any] = {}
    if asked.queue is not None:
        found["queue"] = asked.queue
    if asked.priority is not None:
        found["priority"] = check(check_priority, asked.priority, "invalid_priority", path + "priority")
    if (name := _tenant(principal, asked, path)) is not None:
        found["tenant"] = name
    if asked.delay is not None or asked.run_at is not None:
        found.update(_when(asked, path))
    if asked.key is not None:
        found["key"] = _key(principal, asked.key, path)
    if asked.max_attempts is not None:
        if not 1 <= asked.max_attempts <= 1000:
            raise Problem(422, "invalid_max_attempts", "max_attempts: 1 to 1000", path=path + "max_attempts")
        found["max_attempts"] = asked.max_attempts
    if asked.timeout is not None:
        found["timeout"] = _duration(asked.timeout, "timeout", path)
    if asked.expires is not None:
        found["expires"] = moment(asked.expires, "expires", path)
    if asked.deadline is not None:
        found["deadline"] = moment(asked.deadline, "deadline", path)
    if asked.webhook is not None:
        found["webhook"] = check(app.webhooks.check, asked.webhook, "unsafe_callback_url", path + "webhook")
    return found


def _tenant(principal: Principal, asked: JobRequest, path: str) -> str | None:
    if principal.tenant is not None:
        if asked.tenant is not None:
            raise Problem(
                422, "tenant_not_allowed", "the token is bound to a tenant: leave out tenant", path=path + "tenant"
            )
        return principal.tenant
    return None if asked.tenant is None else check(check_tenant, asked.tenant, "invalid_tenant", path + "tenant")


def _when(asked: JobRequest, path: str) -> dict[str, Any]:
    if asked.delay is not None and asked.run_at is not None:
        raise Problem(422, "invalid_run_at", "delay and run_at exclude each other: give one", path=path + "run_at")
    if asked.delay is not None:
        return {"delay": _duration(asked.delay, "delay", path)}
    if asked.run_at == "now":
        return {}
    try:
        moment = msgspec.convert(asked.run_at, Time)
    except msgspec.ValidationError:
        moment = None
    if moment is None or moment.year < 1970 or moment - datetime.now(UTC) > duration.LONGEST:
        raise Problem(
            422,
            "invalid_run_at",
            f"run_at: now, or a time such as 2030-01-31T08:00:00Z, from 1970 to {duration.LONGEST.days} days ahead",
            path=path + "run_at",
        )
    return {"run_at": moment}


def _key(principal: Principal, key: str, path: str) -> str:
    check(check_key, key, "invalid_key", path + "key")
    check(lambda name: own_key(principal, name), key, "invalid_key", path + "key")
    return key


def _duration(text: str, name: str, path: str) -> Any:
    found = check(lambda value: duration.parse(value, name=name), text, "invalid_duration", path + name)
    if not found and name != "delay":
        raise Problem(422, "invalid_duration", f"{name} must be more than 0", path=path + name)
    return found


def moment(text: str, name: str, path: str) -> Any:
    """A duration or a time."""
    if text[:1].isdigit() and "-" in text:
        try:
            found = msgspec.convert(text, Time)
        except msgspec.ValidationError:
            pass
        else:
            if found.year >= 1970 and found - datetime.now(UTC) <= duration.LONGEST:
                return found
        raise Problem(
            422,
            "invalid_time",
            f"{name}: a duration such as 30s or a time such as 2030-01-31T08:00:00Z",
            path=path + name,
        )
    return _duration(text, name, path)


# ── tasks that the app does not know ─────────────────────────────────────────

_sorted = msgspec.json.Encoder(order="sorted").encode


def _foreign(app: Headrace, principal: Principal, asked: JobRequest, queue: str, path: str) -> NewJob:
    """A job for a worker in another language. Its arguments are stored as JSON."""
    args, kwargs = json_value(asked.args), json_value(asked.kwargs)
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise Problem(422, "bad_arguments", "args is an array and kwargs an object", path=path + "args")
    try:
        payload = _sorted({"args": args, "kwargs": kwargs})
    except OverflowError:
        raise Problem(
            422, "bad_arguments", "a whole number beyond 64 bits: send it as text", path=path + "args"
        ) from None
    if len(payload) > app.settings.max_payload:
        raise Problem(
            422, "payload_too_large", str(PayloadTooLarge(len(payload), app.settings.max_payload)), path=path + "args"
        )
    options = _options(app, principal, asked, path)
    due: Due = options.get("delay") or options.get("run_at")
    key = None
    if "key" in options:
        key = Key(options["key"], app.settings.key_ttl, hashlib.blake2b(payload, digest_size=16).digest())
    own = JobOptions(
        timeout=seconds(options.get("timeout")),
        max_attempts=options.get("max_attempts"),
        expires=seconds(options.get("expires")),
        deadline=seconds(options.get("deadline")),
        webhook=options.get("webhook"),
        key=options.get("key"),
    )
    tenant = options.get("tenant", "")
    if tenant and app.queues[queue].fair == "off":
        # Tenants do not take turns in this queue, so the lane has no tenant.
        own, tenant = msgspec.structs.replace(own, tenant=tenant), ""
    lane = Lane(queue, options.get("priority", 0), tenant)
    return NewJob(asked.task, payload, lane, due, key, encode_options(own))


def seconds(value: Any) -> Any:
    """A duration in seconds; a time, or nothing, as it is."""
    return value.total_seconds() if hasattr(value, "total_seconds") else value
