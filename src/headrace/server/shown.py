"""What of a job a caller of the http store gets to see: as much as `/v1` shows under the same scopes."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from headrace import portrait
from headrace.app import Headrace
from headrace.codec import decode_options, encode_options
from headrace.errors import BadArguments
from headrace.job import Job, JobState
from headrace.server.auth import Principal
from headrace.server.endpoint import Scope

_encode = msgspec.msgpack.Encoder().encode


def shown(app: Headrace, principal: Principal, job: Job) -> Job:
    """Whole to a worker, masked to an onlooker, and only how it ended to a producer."""
    if principal.may(Scope.WORK):
        return job
    return _masked(app, job) if principal.may(Scope.READ) else _ended(job)


def _masked(app: Headrace, job: Job) -> Job:
    """As `GET /v1/jobs/{id}` shows it: `redact` hides arguments, and the path of a webhook may be a secret."""
    return replace(job, payload=_arguments(app, job), options=_options(job))


def _arguments(app: Headrace, job: Job) -> bytes:
    task = app.tasks.get(job.task)
    if task is None or not task.options.redact:
        return job.payload
    arguments = portrait.arguments(task, job)
    try:
        return b"" if "problem" in arguments else _encode((arguments["args"], arguments["kwargs"]))
    except (OverflowError, UnicodeEncodeError):
        return b""  # a number beyond 64 bits, or half a surrogate pair: nothing is shown rather than too much


def _options(job: Job) -> bytes | None:
    try:
        found = decode_options(job.options)
    except BadArguments:
        return None
    if found.webhook is None:
        return job.options
    return encode_options(replace(found, webhook=portrait.options(job)["webhook"]))


def _ended(job: Job) -> Job:
    """What `result()` reads: the state, the result, and why there is none."""
    last = job.history[-1:] if job.state is JobState.DEAD else ()
    return replace(
        job, payload=b"", options=None, limits=(), worker=None, history=last, progress=None, doing=None, log=()
    )
