"""What stays of a dead letter that is dropped: one line in the log, written before the job goes.

A dead letter goes by `discard`, by `delete`, or because its retention is over. A crash between the line and the deletion
leaves a line for a job that is still there, never a job that is gone without a line.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec

from headrace.model.job import Job, JobId, JobState
from headrace.model.records import Pruned, Retention
from headrace.store.audit import Audit
from headrace.store.contract import Recording, Store

_log = logging.getLogger("headrace.audit")

PAGE = 100
"""Dead letters read at once, each with its payload and every traceback."""
_DEAD = frozenset({JobState.DEAD})

Arguments = Callable[[Job], Any]
"""A job's arguments for the eye, secrets masked; None where they are not to be shown."""


class DroppedLetter(msgspec.Struct, frozen=True, kw_only=True):
    """What stays of a dead letter that was dropped."""

    id: JobId
    task: str
    queue: str
    tenant: str
    died_at: datetime | None
    note: str | None
    """Why it died, such as `max_attempts`."""
    payload_sha256: str
    fingerprint: str
    title: str
    reason: str
    """Why it was dropped."""
    by: str
    arguments: Any = None
    """For the caller; the log has them only where they were asked for."""


def record_of(job: Job, reason: str, by: str, arguments: Any = None) -> DroppedLetter:
    """The record of a dead job."""
    from headrace.policy import fingerprint  # its patterns take as long to compile as all else here takes to import

    bug = fingerprint.of_job(job)
    return DroppedLetter(
        id=job.id,
        task=job.task,
        queue=job.queue,
        tenant=job.tenant,
        died_at=job.finished_at,
        note=job.note,
        payload_sha256=hashlib.sha256(job.payload).hexdigest(),
        fingerprint=bug.id,
        title=bug.title,
        reason=reason,
        by=by,
        arguments=arguments,
    )


def write(record: DroppedLetter, event: str, *, arguments: bool = False) -> None:
    """One line of JSON, whatever the texts hold. It is a warning, so that Python prints it also where logging is not set up."""
    import json  # imported here, because only a dropped dead letter needs it

    known: dict[str, Any] = {
        name: None if value is None else str(value)
        for name, value in msgspec.structs.asdict(record).items()
        if name != "arguments"
    }
    if arguments and record.arguments is not None:
        known["arguments"] = record.arguments
    _log.warning("%s", json.dumps({"event": event, **known}, default=str), extra={"event": event, **known})


async def drop(
    store: Store, event: str, records: Sequence[DroppedLetter], *, arguments: bool = False
) -> frozenset[JobId]:
    """Write the records of dead jobs, then delete these. A job that is no longer dead stays, and a second line says so.
    So does a job that has died once more, because its record tells of the death before.

    Behind a remote store the server writes the lines: it is the one that knows what was deleted, and by which token.
    """
    if not records:
        return frozenset()
    ids = [record.id for record in records]
    died_by = max((record.died_at for record in records if record.died_at is not None), default=None)
    # From Python 3.12 on, an isinstance check does not see the verb through a wrapper.
    if hasattr(store, "drop"):
        return await cast("Recording", store).drop(ids, event, records[0].reason, died_by)
    for record in records:
        write(record, event, arguments=arguments)
    gone = await store.delete(ids, states=_DEAD, ended_by=died_by)
    for record in records:
        if record.id not in gone:
            write(record, f"{event}_refused")
    return gone


async def delete(
    store: Store,
    ids: Sequence[JobId],
    *,
    by: str,
    states: Collection[JobState] | None = None,
    ended_by: datetime | None = None,
) -> frozenset[JobId]:
    """As the store's `delete`; dead letters among them leave a record."""
    wanted = frozenset(JobState if states is None else states)
    others = wanted - _DEAD
    gone = await store.delete(ids, states=others, ended_by=ended_by) if others else frozenset[JobId]()
    left = [id for id in ids if id not in gone] if JobState.DEAD in wanted else []
    return gone | await drop_dead(store, left, "dead.delete", reason="deleted", by=by, ended_by=ended_by)


async def drop_dead(
    store: Store, ids: Sequence[JobId], event: str, *, reason: str, by: str, ended_by: datetime | None = None
) -> frozenset[JobId]:
    """Of these the dead ones, each after its record. `ended_by`: only those that died at or before this time."""
    gone: set[JobId] = set()
    unique = list(dict.fromkeys(ids))
    for start in range(0, len(unique), PAGE):
        jobs = await store.get(unique[start : start + PAGE])
        dead = [job for job in jobs if job is not None and job.state is JobState.DEAD and _died_by(job, ended_by)]
        gone |= await drop(store, event, [record_of(job, reason, by) for job in dead])
    return frozenset(gone)


def _died_by(job: Job, ended_by: datetime | None) -> bool:
    return ended_by is None or (job.finished_at is not None and job.finished_at <= ended_by)


async def expire(
    store: Store, keep: Retention, *, by: str, limit: int = 1000, arguments: Arguments | None = None
) -> Pruned:
    """Drop dead letters past retention: a line each and one entry in the audit log per page, then the jobs themselves.

    At most about `limit` per call. Two processes that do this at once may both write a line for one job.
    """
    dropped = 0
    for _ in range(0, limit, PAGE):
        ids = await store.expired_dead(keep, PAGE)
        jobs = await store.get(ids) if ids else []
        dead = [job for job in jobs if job is not None and job.state is JobState.DEAD]
        if dead:
            shown = [None if arguments is None else arguments(job) for job in dead]
            records = [record_of(job, "keep_dead is over", by, args) for job, args in zip(dead, shown, strict=True)]
            await Audit(store).note(by, "dead.expire", _summary(dead), len(dead))
            dropped += len(await drop(store, "dead.expire", records, arguments=True))
        if len(ids) < PAGE:
            return Pruned(dropped, more=False)
    return Pruned(dropped, more=True)


def _summary(jobs: Sequence[Job]) -> str:
    """How many of which task, then the ids as far as an entry holds them."""
    tasks = ", ".join(f"{count} of {task}" for task, count in Counter(job.task for job in jobs).most_common(3))
    return f"{tasks}: {', '.join(str(job.id) for job in jobs)}"
