"""`/v1/pauses`: what is paused, and how to pause and resume a queue, a task or a tenant."""

from __future__ import annotations

from datetime import datetime

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.model.records import Pause, PauseKind
from headrace.operate.pauses import pausable
from headrace.server import visibility
from headrace.server.api.job_request import read_option
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found
from headrace.task.option import END, Option


class PauseView(msgspec.Struct, kw_only=True):
    """Something that is paused."""

    kind: PauseKind
    name: str
    by: str
    """The author; empty if it is unknown, or if the token may not see it."""
    since: datetime
    until: datetime | None
    """null: until an operator resumes it."""


class Pauses(msgspec.Struct):
    """Everything that is paused now, by kind and name."""

    items: list[PauseView]
    next: None = None
    """The list is whole, so there is no next page."""


async def all_of(call: Call) -> Response:
    """GET /v1/pauses"""
    seen = [visibility.pause(call.principal, pause) for pause in await call.service.figures.pauses()]
    shown = [pause for pause in seen if pause is not None and _may_see(call, pause)]
    shown.sort(key=lambda pause: (pause.kind, pause.name))
    return answer(
        Pauses(
            [
                PauseView(kind=pause.kind, name=pause.name, by=pause.by, since=pause.since, until=pause.until)
                for pause in shown
            ]
        )
    )


def _may_see(call: Call, pause: Pause) -> bool:
    """They see a task's pause if they may enqueue the task."""
    if pause.kind != "task" or not call.principal.bound:
        return True
    task = call.service.app.tasks.get(pause.name)
    return task is not None and call.principal.sees(task.options.queue, call.principal.tenant)


class ResumeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to resume: one of the three."""

    queue: str | None = None
    task: str | None = None
    tenant: str | None = None


class PauseRequest(ResumeRequest, forbid_unknown_fields=True, kw_only=True):
    """What to pause, one of the three, and until when."""

    until: str | None = None
    """A time, or a duration from now; left out: until it is resumed."""


class Turned(msgspec.Struct, kw_only=True):
    """The state after the call."""

    kind: PauseKind
    name: str
    paused: bool
    until: datetime | None = None


async def pause(call: Call) -> Response:
    """POST /v1/pauses"""
    asked: PauseRequest = call.body
    name, kind = _chosen(call, asked)
    until = await pause_now(call, kind, name, asked.until)
    return answer(Turned(kind=kind, name=name, paused=True, until=until))


async def resume(call: Call) -> Response:
    """POST /v1/pauses/resume"""
    name, kind = _chosen(call, call.body)
    await resume_now(call, kind, name)
    return answer(Turned(kind=kind, name=name, paused=False))


def _chosen(call: Call, asked: ResumeRequest) -> tuple[str, PauseKind]:
    try:
        name, kind = pausable(asked.queue, asked.task, asked.tenant)
    except ConfigError as error:
        raise Problem(422, "invalid_choice", str(error)) from None
    if not visibility.owns(call.principal, kind, name):
        raise not_found(f"there is no such {kind}")
    return name, kind


_UNTIL = Option(name="until", doc="The end of the pause: so long from now, or a time.", kind=END)


async def pause_now(call: Call, kind: PauseKind, name: str, until: str | None) -> datetime | None:
    """Pause until the caller's time. Returns that time."""
    end = await call.operations.pauses.pause(
        name, kind=kind, until=None if until is None else _UNTIL.check(read_option(_UNTIL, until))
    )
    call.service.figures.forget_pauses()
    return end


async def resume_now(call: Call, kind: PauseKind, name: str) -> None:
    """Undo a pause. Jobs that workers put off because of it are due at once."""
    await call.operations.pauses.resume(name, kind=kind)
    call.service.figures.forget_pauses()


_PROBLEMS = ((404, "not_found"), (422, "invalid_choice"))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/pauses",
        scope=Scope.READ,
        does="List all pauses of queues, tasks and tenants. The answer may be a second old.",
        handler=all_of,
        looks=1,
        answers={200: Pauses},
    ),
    Endpoint(
        method="POST",
        path="/v1/pauses",
        scope=Scope.OPERATE,
        does="Start no more jobs of a queue, a task or a tenant. Running jobs continue.",
        handler=pause,
        body=PauseRequest,
        answers={200: Turned},
        problems=(*_PROBLEMS, (422, "invalid_value")),
    ),
    Endpoint(
        method="POST",
        path="/v1/pauses/resume",
        scope=Scope.OPERATE,
        does="Let the jobs of a queue, a task or a tenant start again.",
        handler=resume,
        body=ResumeRequest,
        answers={200: Turned},
        problems=_PROBLEMS,
    ),
)
