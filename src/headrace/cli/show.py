"""Jobs as output: rows, JSON documents, and a page about one job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.cli import ids
from headrace.cli.output import age, clean, short, table
from headrace.model.gate import Needs, is_gate
from headrace.model.job import Failure, Job, JobId, JobState
from headrace.model.step import Step
from headrace.operate import shown

if TYPE_CHECKING:
    from headrace.cli.target import Target
    from headrace.policy.explain.answer import Explanation
    from headrace.store.contract import Store
    from headrace.task.task_options import TaskOptions

HEADERS = ("id", "task", "queue", "state", "attempt", "age", "note")

_AT_ONCE = 100
"""Jobs whose failures are read in one call: tracebacks may be long."""


def table_of(jobs: Sequence[Job], now: datetime) -> None:
    """Jobs as a list."""
    rows = [(ids.listed(job.id), *cells(job, now)) for job in jobs]
    table(HEADERS, rows, right=(4, 5), cut={"task": 20, "queue": 12, "note": 32}, drop=("attempt", "queue", "age"))


async def with_failures(store: Store, jobs: Sequence[Job]) -> list[Job]:
    """The same jobs, and those that failed with their failures, which `find` leaves out."""
    failed = [job.id for job in jobs if _failed(job) and not job.history]
    whole: dict[JobId, Job] = {}
    for start in range(0, len(failed), _AT_ONCE):
        stored = await store.get(failed[start : start + _AT_ONCE])
        whole.update({job.id: job for job in stored if job is not None})
    # The state and the failures of a row are of one moment.
    return [whole.get(job.id, job) for job in jobs]


def _failed(job: Job) -> bool:
    return job.state is JobState.DEAD or (job.state is JobState.SCHEDULED and job.failures > 0)


def cells(job: Job, now: datetime) -> tuple[str, ...]:
    """A row of a list of jobs, without the id."""
    state = "retrying" if job.state is JobState.SCHEDULED and job.failures else job.state.value
    note = cause(job) if _failed(job) else job.note or ""
    if job.state is JobState.SCHEDULED and job.run_at:
        due = "now" if job.run_at <= now else age(job.run_at, now)
        note = f"due {due}{f': {note}' if note else ''}"
    return (job.task, job.queue, state, str(job.attempt), age(job.enqueued_at, now), short(note, 60))


def cause(job: Job) -> str:
    """The last failure before the note, because a narrow column shows the beginning."""
    note = job.note or ""
    if not job.history:
        return note
    last = job.history[-1]
    what = _failure_line(last)
    return what if note in {"", last.kind, last.message} else f"{what} ({note})"


def _failure_line(failure: Failure) -> str:
    kind = failure.kind.removeprefix("builtins.")
    return f"{kind}: {failure.message}" if failure.message else kind


def document(job: Job, target: Target, *, full: bool = True) -> dict[str, Any]:
    """One job as JSON. `full` adds the fields that only `get` fills."""
    fields = shown.plain(job) | {
        "limits": job.limits,
        "payload": payload(job, target),
        "options": shown.options(job),
    }
    if full:
        fields |= {
            "worker_name": job.worker_name,
            "trace": shown.trace(job),
            "trace_url": shown.trace_url(job, target.settings.trace_url),
            "result": shown.result(target.task(job.task), job),
            "result_expired": job.result_expired,
            "history": [failure(entry) for entry in job.history],
            "progress": job.progress,
            "doing": job.doing,
            "waits": shown.waits(job),
            "inputs": shown.inputs(job),
            "log": [{"at": line.at, "text": line.text} for line in job.log],
        }
    return fields


def failure(entry: Failure) -> dict[str, Any]:
    """One failure as JSON."""
    return {name: getattr(entry, name) for name in ("attempt", "kind", "message", "at", "worker", "traceback")}


def payload(job: Job, target: Target) -> dict[str, Any]:
    """The arguments, masked by the rules of the task if the app is known."""
    return shown.arguments(target.task(job.task), job)


def journal(job: Job, steps: Sequence[Step], target: Target) -> list[dict[str, Any]]:
    """The finished steps of its task as JSON."""
    hide = shown.hides_values(target.task(job.task), job)
    return [
        {"name": step.name, "number": step.number, "at": step.at, "value": shown.step_value(step, hide=hide)}
        for step in steps
    ]


_NEEDS = {Needs.DONE: "until done", Needs.ENDED: "until ended", Needs.FAILED: "until dead or cancelled"}


def page(job: Job, target: Target, now: datetime, steps: Sequence[Step] = ()) -> str:
    """Everything about one job, for reading."""
    lines = [f"{job.task}  {job.id}", ""]

    def add(name: str, value: object) -> None:
        if value not in {None, ""}:
            lines.append(f"  {name:<10} {clean(value)}")

    state = job.state.value + (" (asked to stop)" if job.cancelling else "")
    add("state", f"{state}: {job.note}" if job.note else state)
    add("queue", job.queue + (f"  priority {job.priority}" if job.priority else ""))
    add("tenant", job.tenant)
    add("attempts", f"{job.attempt} ({job.failures} failed, {job.crashes} crashed)")
    by = shown.producer(job)
    add("enqueued", _when(job.enqueued_at, now) + (f" by {by}" if by else ""))
    add("key", shown.key(job))
    add("trace", shown.trace(job))
    add("trace page", shown.trace_url(job, target.settings.trace_url))
    # What a suspended job waits for is its note, in words.
    for wait in () if job.note else job.waits:
        what = "group" if is_gate(wait.gate) else "job"
        add("waits for", f"{what} {wait.gate} ({_NEEDS[wait.needs]})")
    add("due", _when(job.run_at, now))
    add("claimed", _when(job.claimed_at, now))
    add("worker", f"{job.worker_name} ({job.worker})" if job.worker_name else job.worker)
    if job.progress is not None or job.doing:
        share = "" if job.progress is None else f"{job.progress:.0%}"
        add("progress", "  ".join(part for part in (share, job.doing or "") if part))
    add("finished", _when(job.finished_at, now))
    add("arguments", _compact(payload(job, target)))
    if options := shown.options(job):
        add("options", _compact(options))
    if job.result is not None:
        add("result", _compact(shown.result(target.task(job.task), job)))
    elif job.result_expired:
        add("result", "expired")
    for entry in job.history:
        lines += [
            "",
            f"attempt {entry.attempt} failed {_when(entry.at, now)}: {clean(entry.kind)}: {clean(entry.message)}",
        ]
        lines += [f"    {line}" for line in clean(entry.traceback, lines=True).rstrip().splitlines()]
    if steps:
        lines += ["", "steps"]
        lines += [
            f"    {one['at'].isoformat(timespec='seconds')}  {clean(one['name'])}  {short(_compact(one['value']), 100)}"
            for one in journal(job, steps, target)
        ]
    if job.log:
        lines += ["", "log"]
        lines += [f"    {line.at.isoformat(timespec='seconds')}  {clean(line.text)}" for line in job.log]
    return "\n".join(lines)


async def explanation(store: Store, id: JobId, target: Target) -> tuple[Job, Explanation] | None:
    """One job, and why it is not running. None: there is no such job."""
    from headrace.policy.explain import explain

    def options_of(name: str) -> TaskOptions | None:
        task = target.task(name)
        return None if task is None else task.options

    queues = {} if target.app is None else target.app.queues
    return await explain.look(store, id, options_of, queues.get)


def _when(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return ""
    distance = age(moment, now)
    return f"{moment.isoformat(timespec='seconds')} ({distance if distance.startswith('in ') else f'{distance} ago'})"


def _compact(value: object) -> str:
    return msgspec.json.encode(value).decode()
