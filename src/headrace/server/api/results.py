"""`/v1/jobs/{id}/result`: how a job ended, as soon as it has ended."""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from headrace.errors import ConfigError, HeadraceError, ResultExpired
from headrace.model import duration
from headrace.model.job import REFERENCE, Job, JobState
from headrace.operate.shown import masked
from headrace.server import visibility
from headrace.server.api.view import FailureView, failure, text
from headrace.server.http.call import Call, answer
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem
from headrace.task.large_results import fetched
from headrace.webhooks.deliver import result_of

log = logging.getLogger("headrace.server")

LONGEST: Final = 30.0


class ResultQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How long to wait, and for whom the answer is."""

    wait: str = "0s"
    """How long to wait for the job's end, up to 30s. A number without a unit means seconds."""
    masked: bool = False
    """Mask the fields that the task redacts, for people who look. Without it, the answer is what the task returned."""


class ResultView(msgspec.Struct, kw_only=True):
    """How a job ended. With 202: it has not ended."""

    id: UUID
    state: JobState
    result: Any = None
    """What the task returned, if it is done."""
    result_expired: bool = False
    """It returned a result that is not kept: its `result_ttl` is over, or 0."""
    result_omitted: bool = False
    """The result is large and in a storage of its own. `GET /v1/jobs/{id}/result` answers with it; an event does not."""
    failure: FailureView | None = None
    """The last failure, if it is dead."""
    note: str | None = None
    """Why it is dead or cancelled."""
    finished_at: datetime | None = None


def shown(job: Job) -> ResultView:
    """The answer for a job's end."""
    result, unreadable = result_of(job.result, sys.maxsize) if job.state is JobState.DONE else (None, False)
    omitted = unreadable and job.result is not None and job.result.startswith(REFERENCE)
    if unreadable and not omitted:
        result = {"unreadable": f"{len(job.result or b'')} bytes"}
    dead = job.state is JobState.DEAD and job.history
    return ResultView(
        id=job.id,
        state=job.state,
        result=result,
        result_expired=job.result_expired,
        result_omitted=omitted,
        failure=failure(job.history[-1]) if dead else None,
        note=None if job.note is None else text(job.note),
        finished_at=job.finished_at,
    )


async def _fetched(call: Call, job: Job) -> Job:
    """The job with its result, if that is in the app's storage."""
    try:
        return await fetched(job, call.service.app.hooks.large_results)
    except ResultExpired:
        return msgspec.structs.replace(job, result=None, result_expired=True)
    except HeadraceError as error:
        log.warning("a result cannot be fetched: %s", error)
        return job


async def show(call: Call) -> Response:
    """GET /v1/jobs/{id}/result"""
    id, wait = call.job_id, _seconds(call.query.wait)
    hub = call.service.hub
    job = await hub.look(id)
    # The check of the owner comes first, so that a caller cannot learn by waiting that another tenant's job ends.
    if job is not None and visibility.sees(call.principal, job) and not job.state.finished and wait:
        job = await hub.finished(id, wait)
        await call.still_welcome()
    if job is None or not visibility.sees(call.principal, job):
        raise visibility.no_job()
    if job.state.finished:
        view = shown(await _fetched(call, job))
        if call.query.masked:
            view.result = masked(call.service.app.tasks.get(job.task), job, view.result)
        return answer(view)
    return answer(shown(job), 202, {"Retry-After": "1"})


def _seconds(text: str) -> float:
    try:
        wait = duration.parse(
            f"{text}s" if text.isascii() and text[-1:].isdigit() else text, name="wait"
        ).total_seconds()
    except ConfigError as error:
        raise Problem(422, "invalid_value", str(error), path="wait") from None
    if wait > LONGEST:
        raise Problem(422, "invalid_value", f"wait: at most {LONGEST:g}s; ask again after that", path="wait")
    return wait


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/jobs/{id}/result",
        scope=Scope.ENQUEUE,
        also=(Scope.READ,),
        does="Get the result or the failure of a job. With `wait`, the server answers as soon as the job has ended.",
        handler=show,
        query=ResultQuery,
        answers={200: ResultView, 202: ResultView},
        problems=((404, "job_not_found"), (422, "invalid_job_id"), (422, "invalid_value")),
    ),
)
