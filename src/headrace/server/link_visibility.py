"""What a caller may see and name of gates: for a token bound to a tenant or to queues, those of others do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from headrace.model.gate import Gate, GateId, Links, NewGate, is_gate
from headrace.model.job import Batch, JobId, NewJob, split_id
from headrace.server import visibility
from headrace.server.auth import Principal
from headrace.server.http.problems import not_found
from headrace.store.contract import Store
from headrace.task.job_checks import read_options

_AT_ONCE = 500


async def gates(store: Store, principal: Principal, ids: Sequence[GateId]) -> list[Gate | None]:
    """Gates by id, None for those that the caller may not see."""
    stored = await store.gates(ids)
    return [gate if gate is not None and _sees(principal, gate) else None for gate in stored]


async def links(store: Store, principal: Principal, id: UUID, after: UUID | None, limit: int) -> Links:
    """What hangs together with a gate or a job, of what the caller may see."""
    if not principal.bound:
        return await store.links(id, after=after, limit=limit)
    if id not in await visible(store, principal, {id}):
        return Links()
    around = await store.links(id, after=after, limit=limit)
    named = {edge.first for edge in around.members} | set(around.into) | set(around.blocked)
    seen = await visible(store, principal, named)
    return Links(
        tuple(edge for edge in around.members if edge.first in seen),
        tuple(gate for gate in around.into if gate in seen),
        tuple(job for job in around.blocked if job in seen),
    )


async def visible(store: Store, principal: Principal, ids: Iterable[UUID]) -> set[UUID]:
    """Those of these jobs and gates that exist and that the caller may see."""
    ids = list(ids)
    jobs, gate_ids = [JobId(id) for id in ids if not is_gate(id)], [GateId(id) for id in ids if is_gate(id)]
    seen: set[UUID] = set()
    for start in range(0, len(jobs), _AT_ONCE):
        stored = await store.get(jobs[start : start + _AT_ONCE])
        seen.update(job.id for job in stored if job is not None and visibility.sees(principal, job))
    for start in range(0, len(gate_ids), _AT_ONCE):
        shown = await gates(store, principal, gate_ids[start : start + _AT_ONCE])
        seen.update(gate.id for gate in shown if gate is not None)
    return seen


async def check_batch(store: Store, principal: Principal, batch: Batch) -> None:
    """Raise a 404 if a bound caller names jobs or gates of others: to wait for, as members, or as inputs."""
    if not principal.bound:
        return
    await check_gates(store, principal, batch.gates)
    own: set[UUID] = {gate.id for gate in batch.gates}
    named: set[UUID] = {*batch.seals, *(edge.into for edge in batch.edges)}
    named.update(id for edge in batch.edges for id in (edge.first, edge.last))
    for job in batch.jobs:
        if job.wait is not None:
            named.add(job.wait.gate)
        named.update(inputs_of(job))
    await _check(store, principal, {id for id in named - own if is_gate(id) or split_id(id)[0] != batch.id})


async def check_gates(store: Store, principal: Principal, new: Sequence[NewGate]) -> None:
    """Raise a 404 if a bound caller makes a gate for others, or names one of others."""
    if not principal.bound:
        return
    if not all(principal.sees(gate.queue, gate.tenant) for gate in new):
        raise not_found("there is no such queue, or no such tenant")
    for gate in await store.gates([gate.id for gate in new]) if new else []:
        if gate is not None and not _sees(principal, gate):
            raise _nothing()


async def check_waits(store: Store, principal: Principal, ids: Iterable[UUID], new: Sequence[NewGate]) -> None:
    """The same for what a running job waits for."""
    if principal.bound:
        await check_gates(store, principal, new)
        await _check(store, principal, set(ids) - {gate.id for gate in new})


async def _check(store: Store, principal: Principal, ids: set[UUID]) -> None:
    if ids and ids - await visible(store, principal, ids):
        raise _nothing()


def inputs_of(job: NewJob) -> tuple[UUID, ...]:
    """The jobs and groups whose results are its arguments."""
    if job.options is None or b"inputs" not in job.options:
        return ()
    own = read_options(job)
    return () if own is None else own.inputs


def _sees(principal: Principal, gate: Gate) -> bool:
    return principal.sees(gate.queue, gate.tenant)


def _nothing() -> Exception:
    return not_found("one of the jobs or groups that these jobs follow does not exist")
