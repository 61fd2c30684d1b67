"""`/v1/jobs/{id}`: show, explain and change one job."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.responses import Response

from headrace.model.job import JobState
from headrace.model.records import CancelAnswer
from headrace.operate import shown
from headrace.policy.explain.answer import HelpfulAction, Reason
from headrace.policy.explain.explain import look
from headrace.server import visibility
from headrace.server.api.view import JobView, text, whole
from headrace.server.auth import Principal
from headrace.server.explain_visibility import Narrowed
from headrace.server.http.call import Call, answer, nothing
from headrace.server.http.endpoint import Endpoint, Scope
from headrace.server.http.problems import Problem


async def show(call: Call) -> Response:
    """GET /v1/jobs/{id}"""
    return answer(whole(call.service.app, await visibility.job(call, call.job_id), call.principal))


class StepView(msgspec.Struct):
    """A finished step of a task."""

    name: str
    """What was called; with a key, the key follows in brackets."""
    number: int
    """Which call of this name, from 0."""
    at: datetime
    value: Any
    """What it returned. A text in its place says so if the task has redacted fields."""


class Steps(msgspec.Struct):
    """The finished steps of a job, in the order of their ends."""

    items: list[StepView]
    next: None = None


async def steps(call: Call) -> Response:
    """GET /v1/jobs/{id}/steps"""
    job = await visibility.job(call, call.job_id)
    hide = shown.hides_values(call.service.app.tasks.get(job.task), job)
    journal = await call.service.store.read_steps(job.id)
    return answer(Steps([StepView(text(s.name), s.number, s.at, shown.step_value(s, hide=hide)) for s in journal]))


class HelpView(msgspec.Struct, kw_only=True):
    """A call that ends the reason. Only calls that this caller may make are listed."""

    label: str
    """The action in a few words, for a button."""
    method: str
    path: str
    body: dict[str, str] | None
    """The JSON to send. null: none."""
    safe: bool
    """Whether it can do no harm. If not, read the sentence first."""
    command: str
    """The same on the command line."""


class Explained(msgspec.Struct):
    """Why a job does not run."""

    reason: Reason
    sentence: str
    until: datetime | None
    """When the reason ends, where that can be known."""
    details: dict[str, Any]
    help: list[HelpView]
    """What helps, the most helpful first."""


def _help(action: HelpfulAction, principal: Principal) -> HelpView | None:
    """The call for an action. None: this caller may not make it."""
    body = None
    match action.kind:
        case "job":
            allowed, method, path = True, "POST", f"/v1/jobs/{action.name}/retry"
        case "limit":
            allowed, method, path = not principal.bound, "DELETE", f"/v1/limits/{quote(action.name, safe='')}"
        case "queue" | "tenant" | "task":
            allowed = visibility.owns(principal, action.kind, action.name)
            method, path, body = "POST", "/v1/pauses/resume", {str(action.kind): action.name}
    if not allowed or not principal.may(Scope.OPERATE):
        return None
    return HelpView(label=action.label, method=method, path=path, body=body, safe=action.safe, command=action.command)


async def explain(call: Call) -> Response:
    """GET /v1/jobs/{id}/explain"""
    id = call.job_id
    job = await visibility.job(call, id)
    app, store = call.service.app, call.service.store
    looked_at = Narrowed(store, call.principal, job) if call.principal.bound else store
    explanation = await look(
        looked_at, id, lambda name: app.tasks[name].options if name in app.tasks else None, app.queues.get
    )
    if explanation is None:
        raise visibility.no_job()
    _, why = explanation
    calls = [_help(action, call.principal) for action in why.help]
    helps = [help for help in calls if help is not None]
    return answer(Explained(why.reason, text(why.sentence), why.until, why.details, helps))


# ── moving ───────────────────────────────────────────────────────────────────


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Why."""

    reason: Annotated[str, Meta(max_length=500)] | None = None


class CancelResponse(msgspec.Struct):
    """The outcome of the call."""

    id: UUID
    answer: CancelAnswer
    """`cancelled`: it will never run; `asked`: it runs and its worker is asked to stop it; `finished`: it had ended."""


async def cancel(call: Call) -> Response:
    """POST /v1/jobs/{id}/cancel"""
    asked: CancelRequest = call.body
    id = call.job_id
    await visibility.job(call, id)
    outcome = (await call.operations.jobs.cancel([id], asked.reason)).get(id, CancelAnswer.UNKNOWN)
    if outcome is CancelAnswer.UNKNOWN:
        raise visibility.no_job()
    return answer(CancelResponse(id, outcome))


class Retried(msgspec.Struct):
    """It is ready again."""

    id: UUID


async def retry(call: Call) -> Response:
    """POST /v1/jobs/{id}/retry"""
    id = call.job_id
    job = await visibility.job(call, id)
    if not await call.operations.jobs.retry([id]):
        raise Problem(409, "not_retryable", f"the job is {job.state}: only finished and scheduled jobs can be retried")
    return answer(Retried(id))


async def delete(call: Call) -> Response:
    """DELETE /v1/jobs/{id}"""
    id = call.job_id
    job = await visibility.job(call, id)
    if not await call.operations.jobs.delete([id]):
        if job.state is JobState.RUNNING:
            raise Problem(409, "job_running", "the job is running: cancel it first")
        raise visibility.no_job()
    return nothing()


_UNKNOWN = ((404, "job_not_found"), (422, "invalid_job_id"))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/v1/jobs/{id}",
        scope=Scope.READ,
        does="Show one job: state, attempts, failures with tracebacks, progress, log and timeline.",
        handler=show,
        answers={200: JobView},
        problems=_UNKNOWN,
    ),
    Endpoint(
        method="GET",
        path="/v1/jobs/{id}/steps",
        scope=Scope.READ,
        does="Show the finished steps of a job and what they returned.",
        handler=steps,
        answers={200: Steps},
        problems=_UNKNOWN,
    ),
    Endpoint(
        method="GET",
        path="/v1/jobs/{id}/explain",
        scope=Scope.READ,
        does="Explain why a job does not run, until when, and which calls help.",
        handler=explain,
        long=True,
        answers={200: Explained},
        problems=_UNKNOWN,
    ),
    Endpoint(
        method="POST",
        path="/v1/jobs/{id}/cancel",
        scope=Scope.OPERATE,
        does="Cancel a waiting job, or ask a running one to stop.",
        handler=cancel,
        body=CancelRequest,
        answers={200: CancelResponse},
        problems=_UNKNOWN,
    ),
    Endpoint(
        method="POST",
        path="/v1/jobs/{id}/retry",
        scope=Scope.OPERATE,
        does="Make a finished or scheduled job ready now.",
        handler=retry,
        answers={200: Retried},
        problems=(*_UNKNOWN, (409, "not_retryable")),
    ),
    Endpoint(
        method="DELETE",
        path="/v1/jobs/{id}",
        scope=Scope.OPERATE,
        does="Delete a job that is not running.",
        handler=delete,
        answers={204: None},
        problems=(*_UNKNOWN, (409, "job_running")),
    ),
)
