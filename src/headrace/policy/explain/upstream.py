"""What a blocked job waits for: the jobs and groups before it, and which dead job holds it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from headrace.model.gate import Gate, GateId, Links, Needs, Wait, is_gate
from headrace.model.job import Job, JobId, JobState, job_id, split_id
from headrace.model.outcome import AWAITS
from headrace.policy.explain.sentences import Times, clock, count, line

MOST_MEMBERS: Final = 100
"""Jobs that one call of the store reads, of one gate or of one batch."""
MOST_READS: Final = 100
"""Calls of the store, about, in one look for a dead job."""
MOST_JOBS: Final = 5000
"""Jobs that this look reads: as many as the largest graph has."""
FEW: Final = 5
"""Members that an explanation names, of those that have not ended and of those that are dead."""


class LinkStore(Protocol):
    """The part of a store that says how jobs hang together."""

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]: ...

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]: ...

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links: ...


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a job waits for."""

    wait: Wait
    job: Job | None = None
    """The job that it waits for. None: it waits for a gate, or that job is not stored any more."""
    gate: Gate | None = None
    unended: tuple[Job, ...] = ()
    """The first members that have not ended."""
    dead: tuple[Job, ...] = ()
    """The first dead members."""
    has_groups: bool = False
    """Some members of the gate are gates."""


class Held(msgspec.Struct, frozen=True):
    """What holds a blocked job: a dead job, or a group with dead jobs."""

    job: Job | None
    """None: the group has dead jobs, and none of them is among those that were read."""
    gate: Gate | None = None


async def views(store: LinkStore, job: Job) -> list[WaitView]:
    """What the job waits for."""
    waited_for: list[WaitView] = []
    for wait in job.waits[:FEW]:
        if not is_gate(wait.gate):
            [before] = await store.get([JobId(wait.gate)])
            waited_for.append(WaitView(wait=wait, job=before))
            continue
        [gate] = await store.gates([GateId(wait.gate)])
        members, inner = await _members(store, wait.gate)
        waited_for.append(
            WaitView(
                wait=wait,
                gate=gate,
                unended=tuple(member for member in members if not member.state.finished)[:FEW],
                dead=tuple(member for member in members if member.state is JobState.DEAD)[:FEW],
                has_groups=bool(inner),
            )
        )
    return waited_for


async def held_by(store: LinkStore, job: Job) -> Held | None:
    """The first dead job upstream without whose replay the job does not run, as far as one look reads."""
    look = _UpstreamLook(store)
    waits = deque(job.waits)
    seen: set[UUID] = {job.id}
    unnamed: Held | None = None
    """A group with dead jobs of which none has been read."""
    while waits and not look.over:
        wait = waits.popleft()
        if wait.gate in seen:
            continue
        seen.add(wait.gate)
        if is_gate(wait.gate):
            gate, members, inner = await look.gate(GateId(wait.gate))
            if wait.needs is Needs.DONE and gate is not None:
                dead = next((member for member in members if member.state is JobState.DEAD), None)
                if dead is not None:
                    return Held(dead, gate if gate.label else None)
                unnamed = unnamed or (Held(None, gate) if gate.counts.dead else None)
            waits.extendleft(Wait(id, wait.needs) for id in reversed(inner))
        else:
            before = await look.job(JobId(wait.gate))
            members = [] if before is None else [before]
            if wait.needs is Needs.DONE and before is not None and before.state is JobState.DEAD:
                return Held(before)
        waits += [further for member in members if member.state is JobState.BLOCKED for further in member.waits]
    return unnamed


class _UpstreamLook:
    """Reads jobs and gates for one look.

    A job is read with jobs before it in its batch, more of them each time. So the thousands of jobs of a chain that was enqueued in one
    call take some dozens of reads.
    """

    def __init__(self, store: LinkStore) -> None:
        self._store = store
        self._jobs: dict[JobId, Job | None] = {}
        self._reads = 0
        self._together = 1
        """Jobs that the next read of a job reads."""

    @property
    def over(self) -> bool:
        """Whether it has read as much as it may."""
        return self._reads >= MOST_READS or len(self._jobs) >= MOST_JOBS

    async def job(self, id: JobId) -> Job | None:
        """A job that others wait for."""
        if id not in self._jobs:
            batch, ord = split_id(id)
            lowest = max(0, ord - self._together + 1)
            ids = [one for place in range(lowest, ord + 1) if (one := job_id(batch, place)) not in self._jobs]
            self._jobs.update(zip(ids, await self._store.get(ids), strict=True))
            self._reads += 1
            self._together = min(2 * self._together, MOST_MEMBERS)
        return self._jobs[id]

    async def gate(self, id: GateId) -> tuple[Gate | None, list[Job], list[GateId]]:
        """A gate, its first jobs, and the first gates in it."""
        [gate] = await self._store.gates([id])
        members, inner = await _members(self._store, id)
        self._jobs.update((member.id, member) for member in members)
        self._reads += 3
        return gate, members, inner


async def _members(store: LinkStore, gate: UUID, most: int = MOST_MEMBERS) -> tuple[list[Job], list[GateId]]:
    """The first jobs of a gate, and the first gates in it."""
    ids: list[JobId] = []
    inner: list[GateId] = []
    for edge in (await store.links(gate, limit=most)).members:
        if is_gate(edge.first):
            inner.append(GateId(edge.first))
        elif len(ids) < most:
            batch, first = split_id(edge.first)
            last = min(split_id(edge.last)[1], first + most - len(ids) - 1)
            ids += (job_id(batch, ord) for ord in range(first, last + 1))
    return [job for job in await store.get(ids) if job is not None] if ids else [], inner


# ── in words ─────────────────────────────────────────────────────────────────

_NOTED: Final = f"{AWAITS} "
_UNTIL: Final = {
    Needs.DONE: "is done",
    Needs.ENDED: "has ended",
    Needs.FAILED: "is dead or cancelled",
}
_UNTIL_ALL: Final = {
    Needs.DONE: "are done",
    Needs.ENDED: "have ended",
    Needs.FAILED: "failed: it runs as soon as one is dead or cancelled",
}


def sentence(job: Job, waits: Sequence[WaitView], held: Held | None, times: Times) -> str:
    """Why the job is blocked, and the command that helps."""
    if held is not None:
        return _held(held, times)
    verb = "suspended" if job.attempt else "blocked"
    if not waits:
        return f"{verb}: what it waited for has just ended"
    event = _event(job)
    return "; ".join(f"{verb} until {_children(view, event) if job.attempt else _until(view, event)}" for view in waits)


def _event(job: Job) -> str:
    """The event that the job waits for. Its note names one only."""
    note = job.note or ""
    return line(note.removeprefix(_NOTED)) if note.startswith(f"{_NOTED}event ") and len(job.waits) == 1 else "an event"


def _held(held: Held, times: Times) -> str:
    dead, gate = held.job, held.gate
    of = "" if gate is None else f" of group {gate.label!r}"
    if dead is None:
        number = 0 if gate is None else gate.counts.dead
        return f"held: {count(number, 'job')}{of} {'is' if number == 1 else 'are'} dead; see: headrace dead list"
    why = f" ({line(dead.history[-1].kind)})" if dead.history else f" ({line(dead.note)})" if dead.note else ""
    return (
        f"held: job {dead.id} of {dead.task}{of} is dead{times.since(dead.finished_at)}{why}; "
        f"headrace dead replay {dead.id} lets this go on, headrace dead discard {dead.id} cancels it"
    )


def _children(view: WaitView, event: str) -> str:
    """What a task waits for that has given its slot back: the jobs that it awaits, or an event."""
    gate = view.gate
    if gate is None or gate.signalled:
        return _until(view, event)
    counts = gate.counts
    text = f"its children are done: it waits for {counts.size - counts.ended:,} of {counts.size:,} children"
    if not view.unended:
        return text
    child = view.unended[0]
    which = "it" if counts.size == 1 else "the first of them"
    return f"{text}; {which} is job {child.id} of {child.task}: {_state(child)}; see: headrace jobs explain {child.id}"


def _until(view: WaitView, event: str) -> str:
    wait, job, gate = view.wait, view.job, view.gate
    if not is_gate(wait.gate):
        if job is None:
            return f"job {wait.gate} {_UNTIL[wait.needs]}: it is not stored any more"
        return f"job {job.id} of {job.task} {_UNTIL[wait.needs]}: {_state(job)}; see: headrace jobs explain {job.id}"
    if gate is None:
        return f"gate {wait.gate} opens: it is not stored any more"
    if gate.signalled:
        return f"{event} is signalled"
    name = f" of group {gate.label!r}" if gate.label else ""
    counts = gate.counts
    figures = [f"{number:,} {word}" for word, number in (("done", counts.done), ("dead", counts.dead)) if number]
    figures += [f"{counts.cancelled:,} cancelled"] if counts.cancelled else []
    figures += [f"{counts.size - counts.ended:,} to go"]
    what = f"{counts.size:,} jobs and groups" if view.has_groups else count(counts.size, "job")
    text = f"all {what}{name} {_UNTIL_ALL[wait.needs]}: {', '.join(figures)}"
    return text if gate.sealed else f"{text}; still being filled, last at {clock(gate.changed_at)}"


def _state(job: Job) -> str:
    if job.state is not JobState.RUNNING:
        return f"it is {job.state}"
    on = f" on {line(job.worker_name)}" if job.worker_name else ""
    since = f" since {clock(job.claimed_at)}" if job.claimed_at else ""
    return f"it is running{on}{since}"


def facts(waits: Sequence[WaitView], held: Held | None) -> dict[str, Any]:
    """The same for programs."""
    return {
        "waits": [_facts(view) for view in waits],
        "held_by": None if held is None or held.job is None else held.job.id,
        "held_by_group": None if held is None or held.gate is None else held.gate.id,
    }


def _facts(view: WaitView) -> dict[str, Any]:
    known: dict[str, Any] = {"id": view.wait.gate, "needs": view.wait.needs}
    if view.job is not None:
        return known | {"kind": "job", "task": view.job.task, "state": view.job.state}
    gate = view.gate
    if gate is None:
        return known | {"kind": "job" if not is_gate(view.wait.gate) else "group", "state": None}
    at: datetime = gate.changed_at
    return known | {
        "kind": "event" if gate.signalled else "group",
        "label": gate.label,
        "size": gate.counts.size,
        "done": gate.counts.done,
        "dead": gate.counts.dead,
        "cancelled": gate.counts.cancelled,
        "sealed": gate.sealed,
        "changed_at": at,
        "unended": [job.id for job in view.unended],
        "dead_jobs": [job.id for job in view.dead],
    }
