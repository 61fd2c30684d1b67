"""`/v1/settle`: how attempts ended, from workers in any language; the one retry rule decides what follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.responses import Response

from headrace.errors import ConfigError, LeaseLost, ResultTooLarge
from headrace.model import duration
from headrace.model.gate import NewGate
from headrace.model.job import Claimed, Failure, JobId, JobState
from headrace.model.lease import MAX_LEASE, Token
from headrace.model.outcome import Again, Cancelled, Failed, Outcome, Released, Settlement, Snoozed, Succeeded
from headrace.server.api.job_request import Time, check
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem
from headrace.task import codec
from headrace.task.event import awaiting, event_gate
from headrace.task.journal import Suspension, joined
from headrace.task.steps import asleep
from headrace.worker.outcome_of import MAX_MESSAGE, MAX_TRACEBACK, bounded, suspended

Seconds = Annotated[float, Meta(ge=0)] | Annotated[str, Meta(max_length=32)]
"""A number of seconds, or a duration such as `30s`."""
MOST_EVENTS = 20
"""Events that one job waits for."""
LeaseText = Annotated[str, Meta(max_length=200)]
Position = Annotated[int, Meta(ge=0, lt=MAX_LEASE)]


class _Settled(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="outcome"):
    position: Position
    id: UUID
    """The job's id, as a check, and for a server that has not claimed it."""


class SucceededRequest(_Settled, tag="succeeded", forbid_unknown_fields=True, kw_only=True):
    """It is done."""

    result: Any = None


class FailedRequest(_Settled, tag="failed", forbid_unknown_fields=True, kw_only=True):
    """The attempt failed. The task's retry rule decides what follows."""

    kind: Annotated[str, Meta(min_length=1, max_length=256)] = "Error"
    """The error's name."""
    message: str = ""
    traceback: str = ""
    retry_after: Seconds | None = None
    """Try again after exactly this time."""
    final: bool = False
    """Do not try again."""


class SnoozedRequest(_Settled, tag="snoozed", forbid_unknown_fields=True, kw_only=True):
    """Run again later. This is not a failure."""

    after: Seconds
    note: Annotated[str, Meta(max_length=1000)] | None = None


class CancelledRequest(_Settled, tag="cancelled", forbid_unknown_fields=True, kw_only=True):
    """There is nothing left to do, or the job was cancelled."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class ReleasedRequest(_Settled, tag="released", forbid_unknown_fields=True, kw_only=True):
    """Handed back unfinished. This is not a failure."""


class AwaitedEvent(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An event of the job's tenant, as in `POST /v1/events/{name}/{key}`."""

    name: str
    key: str
    queue: str = "default"
    """The same queue as in the signal. It matters on a Redis cluster only."""


class SuspendedRequest(_Settled, tag="suspended", forbid_unknown_fields=True, kw_only=True):
    """The task waits. The job runs again when the first of these events has been signalled, and at `until` at the latest."""

    events: Annotated[list[AwaitedEvent], Meta(max_length=MOST_EVENTS)] = []
    until: Time | None = None


OutcomeRequest = (
    SucceededRequest | FailedRequest | SnoozedRequest | SuspendedRequest | CancelledRequest | ReleasedRequest
)


class SettleRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How attempts ended."""

    lease: LeaseText
    settlements: Annotated[list[OutcomeRequest], Meta(min_length=1, max_length=MAX_LEASE)]


class Settled(msgspec.Struct, kw_only=True):
    """What follows for one job."""

    position: int
    id: UUID
    state: str
    """done, dead, cancelled, scheduled (again later), blocked (until an event), ready (again at once), or lost: nothing was
    written."""


class SettleAnswer(msgspec.Struct):
    settlements: list[Settled]


async def settle(call: Call) -> Response:
    """POST /v1/settle"""
    asked: SettleRequest = call.body
    leases = call.service.leases
    token = leases.signer.read(asked.lease, call.principal)
    _check_once(asked.settlements)
    jobs = await leases.claimed(
        token, [(request.position, request.id) for request in asked.settlements], call.principal
    )
    name = address(call)
    limit = call.service.app.settings.max_result
    ended = [
        (request.position, job, _outcome(request, place, job, name, leases.secrets(job), limit))
        for place, (request, job) in enumerate(zip(asked.settlements, jobs, strict=True))
        if job is not None
    ]
    states = await write(call, token, ended) if ended else {}
    if not states:
        raise LeaseLost("another worker holds these jobs now, or they were settled before: nothing was written")
    return answer(
        SettleAnswer(
            [
                Settled(position=request.position, id=request.id, state=states.get(request.position, "lost"))
                for request in asked.settlements
            ]
        )
    )


async def write(call: Call, token: Token, ended: Sequence[tuple[int, Claimed, Outcome]]) -> dict[int, str]:
    """Settle. Returns position → the job's new state, without refused positions."""
    service = call.service
    settlements = await service.leases.decide(token, ended)
    await service.leases.announce(ended, settlements)
    refused = await service.store.settle(token, settlements)
    accepted = [end for end in ended if end[0] not in refused]
    service.leases.observe(token, accepted)
    service.leases.count(token, accepted, settlements)
    service.leases.tell(token, accepted, settlements)
    service.leases.settled(token, (position for position, _ in settlements))
    written = {position: _state(settlement) for position, settlement in settlements if position not in refused}
    over = {JobState.DONE.value, JobState.DEAD.value, JobState.CANCELLED.value}
    finished: list[JobId] = [job.id for position, job, _ in ended if written.get(position) in over]
    if finished:
        service.hub.settled(finished)
    return written


def _state(settlement: Settlement) -> str:
    if isinstance(settlement, Again):
        if settlement.waits:
            return JobState.BLOCKED.value
        later = settlement.due is not None and settlement.due != timedelta(0)
        return (JobState.SCHEDULED if later else JobState.READY).value
    return settlement.state.value


def _check_once(settlements: Sequence[OutcomeRequest]) -> None:
    """Refuse two outcomes for one job."""
    seen: set[int] = set()
    for place, request in enumerate(settlements):
        if request.position in seen:
            text = f"position {request.position} is given twice: send one outcome for each job"
            raise Problem(422, "invalid_value", text, path=f"settlements[{place}].position")
        seen.add(request.position)


def _outcome(
    asked: OutcomeRequest, place: int, job: Claimed, worker: str, secrets: Iterable[str], max_result: int
) -> Outcome:
    match asked:
        case SucceededRequest():
            return Succeeded(None if asked.result is None else _result(asked.result, place, max_result))
        case FailedRequest():
            failure = Failure(
                attempt=job.attempt,
                kind=asked.kind,
                message=bounded(codec.scrub(asked.message, secrets), MAX_MESSAGE),
                traceback=bounded(codec.scrub(asked.traceback, secrets), MAX_TRACEBACK),
                at=datetime.now(UTC),
                worker=worker,
            )
            after = None if asked.retry_after is None else delay(asked.retry_after, "retry_after")
            return Failed(failure, retry_after=after, final=asked.final)
        case SnoozedRequest():
            return Snoozed(delay(asked.after, "after"), asked.note)
        case SuspendedRequest():
            return _suspended(asked, place, job)
        case CancelledRequest():
            return Cancelled(asked.reason)
        case ReleasedRequest():
            return Released()


def _suspended(asked: SuspendedRequest, place: int, job: Claimed) -> Outcome:
    path = f"settlements[{place}]."
    until = asked.until
    if until is not None:
        now = datetime.now(UTC)
        until = max(
            now, check(lambda end: duration.check_near(end, name="until"), until, "invalid_value", path + "until")
        )
    elif not asked.events:
        raise Problem(422, "invalid_value", "a suspended job waits for something: give events or until", path=path)
    if until is not None and not asked.events:
        return suspended(asleep(until))
    tenant = job.tenant or codec.readable_options(job.options).tenant or ""
    waits: list[Suspension] = []
    for number, event in enumerate(asked.events):
        gate = check(lambda one: _gate(one, tenant), event, "invalid_value", f"{path}events[{number}]")
        waits.append(awaiting(event.name, event.key, gate, until))
    return suspended(joined(waits))


def _gate(event: AwaitedEvent, tenant: str) -> NewGate:
    return event_gate(event.name, event.key, queue=event.queue, tenant=tenant)


def packed(value: Any, path: str) -> bytes:
    """A JSON value as it is stored, or a Problem."""
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        text = "it contains a whole number beyond 64 bits: send it as text; nothing of this call was written"
        raise Problem(422, "invalid_value", text, path=path) from None


def _result(result: Any, place: int, max_result: int) -> bytes:
    data = packed(result, f"settlements[{place}].result")
    if len(data) > max_result:
        error = ResultTooLarge(len(data), max_result)
        raise Problem(422, error.code, str(error), path=f"settlements[{place}].result")
    return data


def delay(value: float | str, path: str) -> timedelta:
    try:
        if isinstance(value, str):
            return duration.parse(value, name=path)
        length = timedelta(seconds=value)
    except (ConfigError, OverflowError, ValueError) as error:
        text = str(error) if isinstance(error, ConfigError) else f"{path} is too long"
        raise Problem(422, "invalid_value", text, path=path) from None
    if length > duration.LONGEST:
        raise Problem(422, "invalid_value", f"{path} is too long", path=path)
    return length


def address(call: Call) -> str:
    client = call.request.client
    return f"{call.principal.name}@{client.host if client else 'http'}"


LOST = ((404, "not_found"), (409, "lease_lost"), (422, "invalid_value"))

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/settle",
        scope=Scope.WORK,
        does="Report how attempts ended. The server decides whether and when a job runs again.",
        handler=settle,
        body=SettleRequest,
        answers={200: SettleAnswer},
        problems=(*LOST, (422, "result_too_large")),
    ),
)
