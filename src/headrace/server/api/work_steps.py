"""`/v1/steps`: finished steps of running jobs, from workers in any language."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.responses import Response

from headrace.errors import LeaseLost
from headrace.model.step import MAX_STEP_NAME, MAX_STEP_VALUE, MAX_STEPS, Step
from headrace.server.api.settle import LOST, LeaseText, Position, packed
from headrace.server.http.call import Call, nothing
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem
from headrace.task.journal import StepTooLarge


class StepRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A finished step. The first one of a name and number stays."""

    lease: LeaseText
    position: Position
    id: UUID
    """The job's id, as a check, and for a server that has not claimed it."""
    name: Annotated[str, Meta(min_length=1, max_length=MAX_STEP_NAME)]
    """What was done, such as `charge` or `charge[7]`."""
    number: Annotated[int, Meta(ge=0, lt=MAX_STEPS)] = 0
    """Which step of this name, from 0."""
    value: Any = None
    """What it returned: any JSON value of at most 256 KiB."""


async def add(call: Call) -> Response:
    """POST /v1/steps"""
    asked: StepRequest = call.body
    leases = call.service.leases
    token = leases.signer.read(asked.lease, call.principal)
    value = None if asked.value is None else packed(asked.value, "value")
    if value is not None and len(value) > MAX_STEP_VALUE:
        text = f"a step may return {MAX_STEP_VALUE:,} bytes: store the data elsewhere and return where it is"
        raise Problem(422, StepTooLarge.code, text, path="value")
    [job] = await leases.claimed(token, [(asked.position, asked.id)], call.principal)
    step = Step(asked.name, asked.number, b"", value, datetime.now(UTC))
    try:
        if job is None or not await leases.journals.write(token, asked.position, job, step):
            raise LeaseLost("another worker holds this job now, or it was settled before: nothing was written")
    except StepTooLarge as error:
        raise Problem(422, error.code, str(error)) from None
    return nothing()


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/v1/steps",
        scope=Scope.WORK,
        does="Store a finished step of a running job, durably. A later attempt gets it with its claim.",
        handler=add,
        body=StepRequest,
        answers={204: None},
        problems=(*LOST, (422, StepTooLarge.code)),
    ),
)
