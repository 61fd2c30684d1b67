"""Jobs as output: rows, JSON documents, and a page about one job."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.cli.output import age, clean, short
from headrace.model.job import Failure, Job, JobState
from headrace.operate import shown
from headrace.task.large_results import reference

if TYPE_CHECKING:
    from headrace.cli.target import Target

HEADERS = ("id", "task", "queue", "state", "attempt", "age", "note")


def row(job: Job, now: datetime) -> tuple[object, ...]:
    """One line of a list."""
    state = "retrying" if job.state is JobState.SCHEDULED and job.failures else job.state.value
    note = job.note or ""
    if job.state is JobState.SCHEDULED and job.run_at:
        note = f"due {age(job.run_at, now)}{f': {note}' if note else ''}"
    return (job.id, job.task, job.queue, state, job.attempt, age(job.enqueued_at, now), short(note, 60))


def document(job: Job, target: Target, *, full: bool = True) -> dict[str, Any]:
    """One job as JSON. `full` adds the fields that only `get` fills."""
    found = shown.plain(job) | {
        "limits": job.limits,
        "payload": payload(job, target),
        "options": shown.options(job),
    }
    if full:
        found |= {
            "worker_name": job.worker_name,
            "result": result(job),
            "result_expired": job.result_expired,
            "history": [failure(entry) for entry in job.history],
            "progress": job.progress,
            "doing": job.doing,
            "log": [{"at": line.at, "text": line.text} for line in job.log],
        }
    return found


def failure(entry: Failure) -> dict[str, Any]:
    """One failure as JSON."""
    return {name: getattr(entry, name) for name in ("attempt", "kind", "message", "at", "worker", "traceback")}


def payload(job: Job, target: Target) -> dict[str, Any]:
    """The arguments, masked by the rules of the task if the app is known."""
    return shown.arguments(target.task(job.task), job)


def result(job: Job) -> Any:
    """What the job returned."""
    if (stored := reference(job.result)) is not None:
        return {
            "in the storage of large results": f"{stored.size:,} bytes",
            "name": stored.name(str(job.id), job.attempt),
        }
    return _decoded(job.result)


def _decoded(data: bytes | None) -> Any:
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


def reason(job: Job) -> str:
    """Why a job is dead, in one line: the note and the last failure, without repetition."""
    note = job.note or ""
    if not job.history:
        return note
    last = job.history[-1]
    what = f"{last.kind}: {last.message}" if last.message else last.kind
    if note in {"", last.kind}:
        return what
    return note if note == last.message else f"{note}: {what}"


def page(job: Job, target: Target, now: datetime) -> str:
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
        add("result", _compact(result(job)))
    elif job.result_expired:
        add("result", "expired")
    for entry in job.history:
        lines += [
            "",
            f"attempt {entry.attempt} failed {_when(entry.at, now)}: {clean(entry.kind)}: {clean(entry.message)}",
        ]
        lines += [f"    {line}" for line in clean(entry.traceback, lines=True).rstrip().splitlines()]
    if job.log:
        lines += ["", "log"]
        lines += [f"    {line.at.isoformat(timespec='seconds')}  {clean(line.text)}" for line in job.log]
    return "\n".join(lines)


def _when(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return ""
    distance = age(moment, now)
    return f"{moment.isoformat(timespec='seconds')} ({distance if distance.startswith('in ') else f'{distance} ago'})"


def _compact(value: object) -> str:
    return msgspec.json.encode(value).decode()
