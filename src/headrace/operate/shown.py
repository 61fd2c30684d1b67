"""A job as data that people and programs may see: its plain fields, and its arguments masked as its task says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from headrace.errors import BadArguments
from headrace.model.job import Job
from headrace.model.step import Step
from headrace.policy.effective import DEFAULTS, effective, usual
from headrace.policy.settings_checks import TRACE_ID
from headrace.runtime.logs import trace_id
from headrace.task import codec
from headrace.task.children import shown_answer
from headrace.task.event import answer_of
from headrace.task.job_options import is_trace
from headrace.task.large_results import reference

if TYPE_CHECKING:
    from headrace.task.task import Task

TaskSource = Callable[[str], "Task[..., Any] | None"]
"""The task of a name, where it is known."""


def unknown(_: str) -> None:
    """No task: for code without an app."""


_PLAIN = (
    "id",
    "task",
    "queue",
    "priority",
    "tenant",
    "state",
    "attempt",
    "failures",
    "crashes",
    "enqueued_at",
    "run_at",
    "claimed_at",
    "finished_at",
    "worker",
    "cancelling",
    "note",
)


_ELSEWHERE = frozenset({"key", "by", "redact", "names", "trace", "inputs"})
"""Options that are shown under a name of their own, or that say how to show the job."""


def plain(job: Job) -> dict[str, Any]:
    """The fields that are known to `find`, too."""
    return {name: getattr(job, name) for name in _PLAIN} | {"key": key(job), "enqueued_by": producer(job)}


def key(job: Job) -> str | None:
    """Its idempotency key, as its producer gave it: a server puts the tenant before the keys of a token bound to one."""
    own = codec.readable_options(job.options)
    tenant = job.tenant or own.tenant
    return own.key if own.key is None or not tenant else own.key.removeprefix(f"{tenant} ")


def producer(job: Job) -> str | None:
    """Its producer, where it said so."""
    return codec.readable_options(job.options).by


def trace(job: Job) -> str | None:
    """The trace of its producer, as the text of a W3C traceparent."""
    return codec.readable_options(job.options).trace


def trace_url(job: Job, template: str) -> str | None:
    """The page of its trace, by the setting `trace_url`. None: it has no trace, or the setting is empty."""
    text = trace(job)
    return template.replace(TRACE_ID, trace_id(text)) if template and is_trace(text) else None


def inputs(job: Job) -> tuple[UUID, ...]:
    """The jobs and groups whose results are its arguments."""
    return codec.readable_options(job.options).inputs


def waits(job: Job) -> list[dict[str, Any]]:
    """What it waits for."""
    return [{"id": wait.gate, "needs": wait.needs} for wait in job.waits]


def arguments(task: Task[..., Any] | None, job: Job) -> dict[str, Any]:
    """Masked as the task says, where it is known, and as the job says that it made."""
    own = effective(job, DEFAULTS if task is None else usual(task.options))
    if task is not None:
        return task.codec.show(job.payload, own.redact)
    try:
        codec.decode_options(job.options)
    except BadArguments:
        return {"args": [], "kwargs": {}, "problem": "not shown: what to mask cannot be read"}
    return codec.show(job.payload, own.redact, own.names)


def hides_values(task: Task[..., Any] | None, job: Job) -> bool:
    """Whether the results of its steps stay hidden, because they may hold a field that is to be masked."""
    try:
        codec.decode_options(job.options)
    except BadArguments:
        return True
    return bool(effective(job, DEFAULTS if task is None else usual(task.options)).redact)


HIDDEN = "(hidden: the task has redacted fields)"
"""Stands for the result of a step, and for a result that cannot be masked."""


def step_value(step: Step, *, hide: bool) -> Any:
    """What a step returned, for display."""
    if step.value is None:
        return None
    return HIDDEN if hide else shown_answer(step) or value_of(answer_of(step) or step.value)


def result(task: Task[..., Any] | None, job: Job) -> Any:
    """What the job returned, masked as its arguments are."""
    if (stored := reference(job.result)) is not None:
        return {
            "in the storage of large results": f"{stored.size:,} bytes",
            "name": stored.name(str(job.id), job.attempt),
        }
    return masked(task, job, value_of(job.result))


def masked(task: Task[..., Any] | None, job: Job, value: Any) -> Any:
    """What the job returned, without the fields that its task redacts and without the values of its redacted arguments."""
    if value is None or not hides_values(task, job):
        return value
    own = effective(job, DEFAULTS if task is None else usual(task.options))
    try:
        if task is None:
            secrets = codec.secrets(job.payload, own.redact, own.names)
        else:
            secrets = task.codec.secrets(job.payload, own.redact)
    except Exception:  # noqa: BLE001  # a user's type may do anything while it is decoded
        return HIDDEN
    return codec.masked_result(value, own.redact, secrets)


def value_of(data: bytes | None) -> Any:
    """Stored bytes without their types: as MessagePack or JSON, else their number."""
    if data is None:
        return None
    for decode in (msgspec.msgpack.decode, msgspec.json.decode):
        try:
            value = decode(data)
            msgspec.json.encode(value)
        except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
            continue
        return value
    return {"unreadable": f"{len(data)} bytes"}


def options(job: Job) -> dict[str, Any]:
    """What this job overrides of its task's options; of a webhook only the host, because its path may be a secret."""
    try:
        overrides = codec.decode_options(job.options)
    except BadArguments:
        return {"unreadable": f"{len(job.options or b'')} bytes"}
    shown: dict[str, Any] = {
        name: value
        for name, value in msgspec.to_builtins(overrides).items()
        if value is not None and name not in _ELSEWHERE
    }
    if overrides.webhook is not None:
        shown["webhook"] = webhook(overrides.webhook)
    return shown


def webhook(url: str) -> str:
    """Its host; the path may be a secret."""
    return f"…//{urlsplit(url).hostname}/…"
