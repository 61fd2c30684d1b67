"""`/v1/events/{name}/{key}`: signal an event that tasks wait for, and look at it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response

from headrace.errors import PayloadTooLarge, SerializationError
from headrace.model.lane import check_event_name, check_key, check_queue, check_tenant
from headrace.operate.events import shown_value
from headrace.server.api.job_request import check
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem, not_found


class SignalRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The value, and whose event it is."""

    value: Any = None
    """Any JSON value that fits the type of the event. It is checked if the app of the server declares the event."""
    tenant: str | None = None
    """The tenant of the jobs that wait. A token that is bound to a tenant signals events of that one."""
    queue: str | None = None
    """A queue of the tasks that wait. Left out: the one with which the app declares the event, else `default`. It matters on a Redis
    cluster only."""


class SignalAnswer(msgspec.Struct, kw_only=True):
    """What became of the signal."""

    signalled: bool
    """False: the event had a value already, which stays."""


class EventView(msgspec.Struct, kw_only=True):
    """An event as the store has it."""

    name: str
    key: str
    signalled: bool
    value: Any = None
    at: datetime | None = None
    """When it was signalled."""


class EventQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Whose event it is."""

    tenant: str | None = None


async def signal(call: Call) -> Response:
    """POST /v1/events/{name}/{key}"""
    asked: SignalRequest = call.body
    name, key = _named(call)
    declared = call.service.app.events.get(name)
    queue = None if asked.queue is None else check(check_queue, asked.queue, "invalid_queue_name", "queue")
    tenant = _tenant(call, asked.tenant)
    try:
        first = await call.operations.events.signal(
            name, key, asked.value, tenant=tenant, queue=queue, declared=declared
        )
    except PayloadTooLarge as error:
        raise Problem(422, "value_too_large", str(error), path="value") from None
    except SerializationError as error:
        raise Problem(422, "invalid_value", str(error), path="value") from None
    return answer(SignalAnswer(signalled=first), 201 if first else 200)


async def show(call: Call) -> Response:
    """GET /v1/events/{name}/{key}"""
    asked: EventQuery = call.query
    name, key = _named(call)
    gate = await call.operations.events.show(name, key, tenant=_tenant(call, asked.tenant))
    if gate is None:
        raise not_found("the event was not signalled, and no job waits for it")
    came = gate.value is not None
    view = EventView(name=name, key=key, signalled=came, value=shown_value(gate), at=gate.changed_at if came else None)
    return answer(view)


def _named(call: Call) -> tuple[str, str]:
    name = check(check_event_name, call.path["name"], "invalid_event_name", "name")
    return name, check(check_key, call.path["key"], "invalid_key", "key")


def _tenant(call: Call, asked: str | None) -> str:
    if call.principal.tenant is None:
        return check(check_tenant, asked or "", "invalid_tenant", "tenant")
    if asked is not None:
        raise Problem(422, "tenant_not_allowed", "the token is bound to a tenant: leave out tenant", path="tenant")
    return call.principal.tenant


_PROBLEMS = (
    (422, "invalid_event_name"),
    (422, "invalid_key"),
    (422, "invalid_tenant"),
    (422, "tenant_not_allowed"),
)

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/events/{name}/{key}",
        scope=Scope.ENQUEUE,
        also=(Scope.WORK, Scope.OPERATE),
        does="Give a value to the tasks that wait for this event, now or later. The first value stays.",
        handler=signal,
        body=SignalRequest,
        answers={201: SignalAnswer, 200: SignalAnswer},
        problems=(*_PROBLEMS, (422, "invalid_queue_name"), (422, "value_too_large"), (422, "invalid_value")),
    ),
    Endpoint(
        method="GET",
        path="/v1/events/{name}/{key}",
        scope=Scope.READ,
        also=(Scope.WORK,),
        does="Show whether an event was signalled, and its value.",
        handler=show,
        query=EventQuery,
        looks=1,
        answers={200: EventView},
        problems=((404, "not_found"), *_PROBLEMS),
    ),
)
