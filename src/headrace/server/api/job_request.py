"""Makes a job from a request. Names, times and arguments are checked before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw

from headrace.app import Headrace
from headrace.errors import BadArguments, ConfigError, PayloadTooLarge
from headrace.model.gate import Needs
from headrace.model.job import JobId, NewJob
from headrace.model.lane import check_queue, check_task_name
from headrace.server import visibility
from headrace.server.admission import own_key
from headrace.server.auth import Principal
from headrace.server.http import boundary
from headrace.server.http.call import Call
from headrace.server.http.problems import Problem, not_found
from headrace.server.state import ServerState
from headrace.task.call import JobCall
from headrace.task.codec.references import replaced
from headrace.task.job_options import OPTIONS, checked
from headrace.task.links import Out, Source, linked_raw
from headrace.task.option import Checks, Option, OptionBody, body
from headrace.task.raw import raw_job
from headrace.task.task import Task

T = TypeVar("T")

Args = Annotated[Raw, Meta(extra_json_schema={"type": "array", "description": "Arguments by place."})]
Kwargs = Annotated[Raw, Meta(extra_json_schema={"type": "object", "description": "Arguments by name."})]
Time = Annotated[datetime, Meta(tz=True)]
When = Annotated[str, Meta(extra_json_schema={"anyOf": [{"format": "date-time"}, {"const": "now"}]})]

_ARGUMENT = re.compile(r"argument '([^']+)'")

NO_ARGS, NO_KWARGS = Raw(b"[]"), Raw(b"{}")


class JobBody(OptionBody, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A job to be made. Durations are written "30s", "5m", "2h"; times as 2030-01-31T08:00:00Z."""

    task: str
    args: Args = msgspec.field(default_factory=lambda: NO_ARGS)
    kwargs: Kwargs = msgspec.field(default_factory=lambda: NO_KWARGS)


if TYPE_CHECKING:
    JobRequest: TypeAlias = JobBody
else:
    JobRequest = body(JobBody, OPTIONS, "JobRequest")


class RequestLinks(NamedTuple):
    """What a requested job follows."""

    sources: Mapping[str, Source]
    """By the names that its arguments may hold as `{"$out": name}`. The caller has checked that each is known."""
    after: tuple[Source, ...] = ()
    needs: Needs = Needs.DONE

    def linked(self, raw: Raw) -> Any:
        """An argument with placeholders for the results that it names. UNSET: it names none."""
        placeholders: list[Out] = []

        def put(name: str) -> Out:
            placeholders.append(Out(self.sources[name]))
            return placeholders[-1]

        value = replaced(json_value(raw), put)
        return value if placeholders else msgspec.UNSET


def make(service: ServerState, principal: Principal, asked: JobRequest, path: str = "") -> NewJob:
    """The requested job. Raises Problem; `path` is its place in the body."""
    return make_call(service, principal, asked, path).job


def make_call(
    service: ServerState, principal: Principal, asked: JobBody, path: str = "", links: RequestLinks | None = None
) -> JobCall[Any]:
    """The same, with what the job follows."""
    app = service.app
    task = app.tasks.get(asked.task)
    if task is None:  # The name of a known task was checked at its declaration.
        check(check_task_name, asked.task, "invalid_task_name", path + "task")
    call = b'{"args":%b,"kwargs":%b}' % (asked.args, asked.kwargs)
    boundary.check_names(call, service.settings)
    given = asked.given()
    queue = _queue(app, principal, task, asked.task, given.get("queue"), path)
    if task is None:
        return _foreign(app, principal, asked, queue, path, links)
    try:
        args, kwargs = task.codec.decode(call) if links is None else task.codec.decode_linked(call, links.linked)
    except BadArguments as error:
        raise _bad_arguments(asked, error, path) from None
    options = _options(app, principal, given, path)
    if links is not None and links.after:
        options |= {"after": links.after, "when": links.needs}
    try:
        bound = task.using(**options) if options else task
        return bound.job(*args, **kwargs)
    except BadArguments as error:
        raise _bad_arguments(asked, error, path) from None
    except PayloadTooLarge as error:
        raise Problem(422, "payload_too_large", str(error), path=path + "args") from None
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error), path=path) from None


def _queue(
    app: Headrace, principal: Principal, task: Task[..., Any] | None, name: str, given: str | None, path: str
) -> str:
    """The job's queue. Raises Problem if the caller may not use it."""
    if given is not None:
        queue = check(check_queue, given, "invalid_queue_name", path + "queue")
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
        f"there is no task {name}: GET /v1/tasks lists them; a queue that is "
        "declared with foreign=True accepts any task",
        path=path + "task",
    )


def _bad_arguments(asked: JobBody, error: BadArguments, path: str) -> Problem:
    for raw in (asked.args, asked.kwargs):
        # The value that the signature refuses may not be a JSON value.
        json_value(raw)
    match = _ARGUMENT.search(str(error))
    if match is None:
        return Problem(422, "bad_arguments", str(error), path=f"{path}args")
    named = msgspec.json.decode(asked.kwargs, type=dict[str, Raw])
    part = "kwargs" if re.split(r"[.\[]", match[1])[0] in named else "args"
    return Problem(422, "bad_arguments", str(error), path=f"{path}{part}.{match[1]}")


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


def _options(app: Headrace, principal: Principal, given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The job's own options, for `Task.using`."""
    options: dict[str, Any] = {}
    if principal.tenant is not None:
        if "tenant" in given:
            text = "the token is bound to a tenant: leave out tenant"
            raise Problem(422, "tenant_not_allowed", text, path=path + "tenant")
        options["tenant"] = principal.tenant
    if "delay" in given and "run_at" in given:
        raise Problem(422, "invalid_run_at", "delay and run_at exclude each other: give one", path=path + "run_at")
    options |= read_options(OPTIONS, given, path, app.webhooks)
    if "key" in options:
        check(lambda name: own_key(principal, name), options["key"], "invalid_key", path + "key")
    if "key_ttl" in options and "key" not in options:
        raise Problem(
            422, "invalid_value", "key_ttl says how long the key is remembered: give key", path=path + "key_ttl"
        )
    return options


def read_options(
    options: Mapping[str, Option], given: Mapping[str, Any], path: str = "", checks: Checks | None = None
) -> dict[str, Any]:
    """Options from JSON as Python code would give them, or the Problem with the first that is wrong."""
    read = {name: read_option(options[name], value, path, checks) for name, value in given.items()}
    return {name: value for name, value in read.items() if value is not None}


def read_option(option: Option, value: Any, path: str = "", checks: Checks | None = None) -> Any:
    """The value of an option from JSON, or the Problem with it; None: as if it was left out."""
    try:
        return option.from_json(value, checks)
    except ConfigError as error:
        code = option.kind.problem if error.code == ConfigError.code else error.code
        raise Problem(422, code, str(error), path=path + option.name) from None


# ── tasks that the app does not know ─────────────────────────────────────────

_sorted = msgspec.json.Encoder(order="sorted").encode


def _foreign(
    app: Headrace, principal: Principal, asked: JobBody, queue: str, path: str, links: RequestLinks | None
) -> JobCall[Any]:
    """A job for a worker in another language. Its arguments are stored as JSON, with references as MessagePack."""
    arguments = {"args": json_value(asked.args), "kwargs": json_value(asked.kwargs)}
    if not isinstance(arguments["args"], list) or not isinstance(arguments["kwargs"], dict):
        raise Problem(422, "bad_arguments", "args is an array and kwargs an object", path=path + "args")
    given = checked(_options(app, principal, asked.given(), path), app.webhooks)
    # Where tenants do not take turns, the lane has no tenant.
    fair = app.queues[queue].fair != "off"

    def made(payload: bytes) -> NewJob:
        if len(payload) > app.settings.max_payload:
            raise PayloadTooLarge(len(payload), app.settings.max_payload)
        return raw_job(asked.task, payload, given, queue=queue, key_ttl=app.settings.key_ttl, fair=fair)

    codec = app.codec_of(asked.task)
    try:
        linked = msgspec.UNSET if links is None else links.linked(Raw(_sorted(arguments)))
        if links is None or (linked is msgspec.UNSET and not links.after):
            return JobCall(made(_sorted(arguments)), codec)
        return linked_raw(made, arguments if linked is msgspec.UNSET else linked, links.after, links.needs, codec)
    except OverflowError:
        raise Problem(
            422, "bad_arguments", "a whole number beyond 64 bits: send it as text", path=path + "args"
        ) from None
    except PayloadTooLarge as error:
        raise Problem(422, "payload_too_large", str(error), path=path + "args") from None
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error), path=path) from None
