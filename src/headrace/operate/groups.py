"""Groups of jobs for operators: list them, look at one, cancel its jobs; and the graph around a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.client.members import PAGE, member_ids
from headrace.errors import ConfigError
from headrace.model.gate import Gate, GateId, Links, Needs, is_gate
from headrace.model.job import Job, JobId, JobState, job_id, split_id
from headrace.model.outcome import AWAITS
from headrace.model.records import CancelAnswer
from headrace.operate.audit import Ledger
from headrace.operate.children import cancel_awaited
from headrace.operate.shown import inputs
from headrace.store.contract import Store

MOST_NODES: Final = 500
"""Nodes of one graph."""
NAMED: Final = 20
"""Members of a gate without a label that a graph shows one by one. The jobs of a group are one node."""
LOOK: Final = 2000
"""Members of a group that one page of its jobs reads."""
_EVENT: Final = f"{AWAITS} event "
"""Before the name and the key of an event in the note of a job that waits for it."""
_STOPPED = frozenset({CancelAnswer.CANCELLED, CancelAnswer.ASKED})


def parse_group(text: str) -> GateId:
    """The id of a group from what a user typed, or a ConfigError."""
    try:
        id = UUID(text)
    except ValueError:
        id = UUID(int=0)
    if not is_gate(id):
        raise ConfigError(f"{text[:60]!r} is not the id of a group: see headrace groups list")
    return GateId(id)


class GroupOperations:
    """Groups of one store. A cancellation that changes no job leaves no entry in the audit log."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    async def list(self, *, tenant: str | None = None, before: GateId | None = None, limit: int = 50) -> list[Gate]:
        """Groups, newest first."""
        return await self._store.groups(tenant=tenant, before=before, limit=limit)

    async def show(self, id: GateId) -> Gate:
        """One group; raises ConfigError if it is not stored."""
        [gate] = await self._store.gates([id])
        if gate is None:
            raise ConfigError(f"there is no group {id}: it was pruned, or its id is mistyped")
        return gate

    async def cancel(self, id: GateId, reason: str | None = None) -> int:
        """Cancel the jobs of a group that have not ended; answers how many. What waits until all are done is cancelled, too."""
        gate = await self.show(id)
        stopped = 0
        try:
            async for page in member_ids(self._store, id):
                answers = await self._store.cancel(page, reason)
                await cancel_awaited(self._store, answers)
                stopped += sum(answer in _STOPPED for answer in answers.values())
        finally:
            if stopped:  # an interrupted call leaves its entry, too
                await self._ledger.note("groups.cancel", f"{gate.label or gate.id}", stopped)
        return stopped


class GroupPage(msgspec.Struct, frozen=True):
    """Some jobs of a group."""

    jobs: list[Job]
    next: int | None
    """The `offset` of the next page. None: this was the last one."""


async def group_page(store: Store, id: GateId, states: Collection[JobState], *, offset: int, limit: int) -> GroupPage:
    """The jobs of a group in the order of their enqueue calls, of these states, or of all. It reads about 2,000 members."""
    at_once = PAGE if states else limit
    jobs: list[Job] = []
    place = offset
    async for ids in member_ids(store, id, skip=offset):
        for start in range(0, len(ids), at_once):
            for job in await store.get(ids[start : start + at_once]):
                place += 1
                if job is not None and (not states or job.state in states):
                    jobs.append(job)
                if len(jobs) == limit:
                    return GroupPage(jobs, place)
        if place - offset >= LOOK:
            return GroupPage(jobs, place)
    return GroupPage(jobs, None)


# ── the graph around a job ───────────────────────────────────────────────────


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A job, a group or an event."""

    id: UUID
    kind: str
    """`job`, `group` or `event`."""
    task: str | None = None
    attempt: int | None = None
    """Attempts of a job begun so far. A job that is blocked after its first one is suspended."""
    label: str | None = None
    """The label of a group, or the name and the key of an event, where a job waits for it."""
    state: str | None = None
    """The state of a job; of a group `filling`, `open` or `ended`; of an event `open`, or `ended` when it was signalled."""
    size: int | None = None
    done: int | None = None
    dead: int | None = None
    cancelled: int | None = None


class GraphEdge(msgspec.Struct, frozen=True):
    """The first one must end before the second one, or counts on it."""

    source: UUID = msgspec.field(name="from")
    target: UUID = msgspec.field(name="to")
    needs: Needs | None = None
    """What the second one needs of the first. null: it is a member, or its result is an argument."""


class WorkflowGraph(msgspec.Struct, frozen=True):
    """What hangs together with a job."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    more: bool
    """The graph has further nodes."""


class WalkedStore(Protocol):
    """The part of a store that a walk reads."""

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]: ...

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]: ...

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links: ...


async def workflow(store: WalkedStore, start: UUID, depth: int) -> WorkflowGraph:
    """A walk both ways along what `links`, `waits` and `inputs` tell, to this depth and to at most 500 nodes."""
    walk = _GraphWalk(store)
    ring: list[UUID] = [start]
    for _ in range(depth + 1):
        ring = await walk.visit(ring)
    known = {node.id for node in walk.nodes}
    edges = [edge for edge in walk.edges if edge.source in known and edge.target in known]
    nodes = [replace(node, label=walk.events[node.id]) if node.id in walk.events else node for node in walk.nodes]
    return WorkflowGraph(nodes, edges, more=bool(ring) or walk.more)


class _GraphWalk:
    def __init__(self, store: WalkedStore) -> None:
        self._store = store
        self.nodes: list[GraphNode] = []
        self.edges: dict[GraphEdge, None] = {}
        self.events: dict[UUID, str] = {}
        """The names and keys of events, as the notes of the jobs that wait for them have it."""
        self.more = False
        self._seen: set[UUID] = set()

    async def visit(self, ids: list[UUID]) -> list[UUID]:
        """Add these nodes. Answers their neighbours that were not visited."""
        fresh = [id for id in dict.fromkeys(ids) if id not in self._seen]
        room = MOST_NODES - len(self.nodes)
        self.more = self.more or len(fresh) > room
        fresh = fresh[:room]
        self._seen.update(fresh)
        neighbours: list[UUID] = []
        jobs = [JobId(id) for id in fresh if not is_gate(id)]
        for job in await self._store.get(jobs) if jobs else []:
            if job is not None:
                self.nodes.append(_job_node(job))
                neighbours += await self._around(job)
        gates = [GateId(id) for id in fresh if is_gate(id)]
        for gate in await self._store.gates(gates) if gates else []:
            if gate is not None:
                self.nodes.append(_node(gate))
                neighbours += await self._beside(gate)
        return [id for id in neighbours if id not in self._seen]

    async def _around(self, job: Job) -> list[UUID]:
        for wait in job.waits:
            self._edge(wait.gate, job.id, wait.needs)
            if len(job.waits) == 1 and (note := job.note or "").startswith(_EVENT):
                self.events[wait.gate] = note.removeprefix(_EVENT)
        before = [wait.gate for wait in job.waits]
        for id in inputs(job):
            if id not in before:
                self._edge(id, job.id)
        return [*before, *inputs(job), *await self._after(job.id)]

    async def _after(self, id: UUID) -> list[UUID]:
        """What waits for it, and the gates on which it counts."""
        links = await self._store.links(id, limit=MOST_NODES)
        for into in links.into:
            self._edge(id, into)
        return [*links.into, *links.blocked]

    async def _beside(self, gate: Gate) -> list[UUID]:
        links = await self._store.links(gate.id, limit=NAMED)
        members: list[UUID] = []
        for edge in links.members if not gate.label else ():
            if is_gate(edge.first):
                members.append(edge.first)
                continue
            batch, first = split_id(edge.first)
            members += (job_id(batch, ord) for ord in range(first, min(split_id(edge.last)[1], first + NAMED) + 1))
        for member in members[:NAMED]:
            self._edge(member, gate.id)
        self.more = self.more or len(members) > NAMED
        return [*members[:NAMED], *await self._after(gate.id)]

    def _edge(self, source: UUID, target: UUID, needs: Needs | None = None) -> None:
        self.edges[GraphEdge(source, target, needs)] = None


def _job_node(job: Job) -> GraphNode:
    return GraphNode(id=job.id, kind="job", task=job.task, attempt=job.attempt, state=job.state)


def _node(gate: Gate) -> GraphNode:
    counts = gate.counts
    state = "open" if gate.sealed else "filling"
    if gate.over:
        state = "ended"
    return GraphNode(
        id=gate.id,
        kind="event" if gate.signalled else "group",
        label=gate.label or None,
        state=state,
        size=counts.size,
        done=counts.done,
        dead=counts.dead,
        cancelled=counts.cancelled,
    )


def group_view(gate: Gate) -> dict[str, Any]:
    """A group as JSON."""
    counts = gate.counts
    return {
        "id": gate.id, "label": gate.label, "tenant": gate.tenant, "queue": gate.queue, "sealed": gate.sealed,
        "size": counts.size, "done": counts.done, "dead": counts.dead, "cancelled": counts.cancelled,
        "left": counts.size - counts.ended, "made_at": gate.made_at, "changed_at": gate.changed_at,
    }  # fmt: skip
