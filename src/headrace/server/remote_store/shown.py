"""What the http store shows of a job: the same as `/v1` under the same scopes."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from headrace.app import Headrace
from headrace.errors import BadArguments
from headrace.model.job import Job, JobState
from headrace.model.records import Record
from headrace.model.scope import Scope
from headrace.model.step import Step
from headrace.operate import shown as job_view
from headrace.operate.schedules import decode
from headrace.policy.schedule import Template
from headrace.policy.schedule_entry import encode
from headrace.server.auth import Principal
from headrace.task.codec import decode_options, encode_options

_encode = msgspec.msgpack.Encoder().encode


def shown(app: Headrace, principal: Principal, job: Job) -> Job:
    """A worker sees the whole job, a reader sees it masked, and a producer sees only how it ended."""
    if principal.may(Scope.WORK):
        return job
    return _masked(app, job) if principal.may(Scope.READ) else _ended(job)


def shown_steps(app: Headrace, principal: Principal, job: Job, steps: list[Step]) -> list[Step]:
    """A worker sees the values. A reader sees none of a job that has redacted fields, because they may hold such a field."""
    if principal.may(Scope.WORK) or not job_view.hides_values(app.tasks.get(job.task), job):
        return steps
    return [replace(step, value=None, digest=b"") for step in steps]


def shown_schedule(app: Headrace, principal: Principal, name: str, record: Record) -> Record:
    """A schedule's record, with the arguments of its job masked."""
    if principal.may(Scope.WORK) or (entry := decode(name, record)) is None:
        return record
    template = entry.schedule.job
    masked = masked_template(app, template)
    if masked == template:
        return record
    return Record(record.version, encode(replace(entry, schedule=replace(entry.schedule, job=masked))))


def masked_template(app: Headrace, template: Template) -> Template:
    """The job of a schedule for a reader."""
    payload = _arguments(app, template.task, template.payload)
    return replace(template, payload=payload, options=_options(template.options))


def _masked(app: Headrace, job: Job) -> Job:
    """As `GET /v1/jobs/{id}` shows it: `redact` hides arguments, and the path of a webhook may be a secret."""
    return replace(job, payload=_arguments(app, job.task, job.payload), options=_options(job.options))


def _arguments(app: Headrace, name: str, payload: bytes) -> bytes:
    task = app.tasks.get(name)
    if task is None or not task.options.redact:
        return payload
    arguments = task.codec.show(payload, task.options.redact)
    try:
        return b"" if "problem" in arguments else _encode((arguments["args"], arguments["kwargs"]))
    except (OverflowError, UnicodeEncodeError):
        return b""  # A number beyond 64 bits or half a surrogate pair cannot be masked, so nothing is shown.


def _options(options: bytes | None) -> bytes | None:
    try:
        decoded = decode_options(options)
    except BadArguments:
        return None
    if decoded.webhook is None:
        return options
    return encode_options(replace(decoded, webhook=job_view.webhook(decoded.webhook)))


def _ended(job: Job) -> Job:
    """The fields that `result()` reads: the state, the result, and why there is none."""
    last = job.history[-1:] if job.state is JobState.DEAD else ()
    return replace(
        job, payload=b"", options=None, limits=(), worker=None, history=last, progress=None, doing=None, log=()
    )
