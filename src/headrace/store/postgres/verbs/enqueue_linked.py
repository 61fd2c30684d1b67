"""ENQUEUE with gates: the columns of a batch, and those of its gates, members and waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from headrace.errors import GroupOver
from headrace.model.gate import Wait
from headrace.model.job import MAX_BATCH, Batch
from headrace.model.records import Enqueued
from headrace.store.batches import chains, segments
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import (
    Bools,
    Byteses,
    Int2s,
    Int4,
    Int4s,
    Int8s,
    Intervals,
    Texts,
    Time,
    Times,
    Uuid,
    Uuids,
    call,
    column,
)
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.enqueue import enqueue_args, enqueue_patiently, hints_of, patient
from headrace.store.postgres.verbs.follow import Follow
from headrace.store.postgres.verbs.gates import gate_columns, place_of


class EnqueueLinkedArgs(NamedTuple):
    """See `sql/enqueue_linked.sql`. It begins as EnqueueArgs does."""

    p_batch: Uuid
    p_tasks: Texts
    p_payloads: Byteses
    p_options: Byteses | None
    s_hi: Int4s
    s_queue: Texts
    s_priority: Int2s
    s_tenant: Texts
    s_lane: Int8s | None
    s_limits: Texts | None
    s_run_at: Times | None
    s_delay: Intervals | None
    k_ord: Int4s | None
    k_key: Texts | None
    k_digest: Byteses | None
    k_ttl: Intervals | None
    u_ord: Int4s | None
    u_name: Texts | None
    u_states: Texts | None
    u_within: Intervals | None
    u_replace: Bools | None
    p_now: Time | None
    w_gate: Uuids | None = None
    w_needs: Int2s | None = None
    g_id: Uuids | None = None
    g_queue: Texts | None = None
    g_sealed: Bools | None = None
    g_signalled: Bools | None = None
    g_label: Texts | None = None
    g_tenant: Texts | None = None
    e_batch: Uuids | None = None
    e_lo: Int4s | None = None
    e_hi: Int4s | None = None
    e_into: Uuids | None = None
    p_seals: Uuids | None = None


class EnqueueMembersArgs(NamedTuple):
    """See `sql/enqueue_members.sql`. It begins as EnqueueArgs does."""

    p_batch: Uuid
    p_tasks: Texts
    p_payloads: Byteses
    p_options: Byteses | None
    s_hi: Int4s
    s_queue: Texts
    s_priority: Int2s
    s_tenant: Texts
    s_lane: Int8s | None
    s_limits: Texts | None
    s_run_at: Times | None
    s_delay: Intervals | None
    p_now: Time | None
    p_gate: Uuid
    p_lo: Int4
    p_hi: Int4


FUNCTION: Final = "enqueue_linked"

_MEMBERS: Final = call("enqueue_members", EnqueueMembersArgs)
_ENQUEUE: Final = patient(FUNCTION, EnqueueLinkedArgs)
_FOLLOW: Final = 5
"""The column of what `follow` has to look at."""


async def enqueue_linked(server: Server, follow: Follow, batch: Batch) -> Enqueued:
    if (members := members_args(batch, server.injected)) is not None:
        [(over, due)] = await server.pool.repeatable(
            lambda: server.pool.rows(_MEMBERS, *members, write=True, timeout=60)
        )
        if over is not None:
            raise GroupOver(members.p_gate)
        server.bell.ring(hints_of(batch))
        if due:
            follow.soon((members.p_gate,))
        return Enqueued({})
    args = linked_args(batch, server.injected)
    [reply] = await enqueue_patiently(server, _ENQUEUE, args)
    answer = rows.enqueued(batch, reply)
    server.bell.ring(hints_of(batch))
    if args.u_replace is not None and any(args.u_replace):
        follow.all_soon()
    follow.soon(reply[_FOLLOW])
    return answer


def members_args(batch: Batch, now: datetime | None) -> EnqueueMembersArgs | None:
    """The arguments for jobs that are members of one stored gate, and have neither keys, unique locks nor waits. None: they are not like that."""
    if len(batch.edges) != 1 or batch.gates or batch.seals:
        return None
    (edge,) = batch.edges
    (first, lo), (last, hi) = place_of(edge.first), place_of(edge.last)
    if first != batch.id or last != batch.id:
        return None
    runs = segments(batch)
    if any(batch.jobs[at].wait is not None for at, _ in runs):
        return None
    args = enqueue_args(batch, now, runs)
    if args.keyed:
        return None
    return EnqueueMembersArgs(
        p_batch=args.p_batch,
        p_tasks=args.p_tasks,
        p_payloads=args.p_payloads,
        p_options=args.p_options,
        s_hi=args.s_hi,
        s_queue=args.s_queue,
        s_priority=args.s_priority,
        s_tenant=args.s_tenant,
        s_lane=args.s_lane,
        s_limits=args.s_limits,
        s_run_at=args.s_run_at,
        s_delay=args.s_delay,
        p_now=now,
        p_gate=edge.into,
        p_lo=lo,
        p_hi=hi,
    )


def linked_args(batch: Batch, now: datetime | None) -> EnqueueLinkedArgs:
    chained = _chains(batch)
    runs = _runs(batch, chained)
    waits = [Wait(_chain_of(batch)) if lo in chained else batch.jobs[lo].wait for lo, _ in runs]
    members = [(place_of(edge.first), place_of(edge.last), edge.into) for edge in batch.edges]
    args = EnqueueLinkedArgs(*enqueue_args(batch, now, runs))._replace(
        w_gate=column([wait and wait.gate for wait in waits]),
        w_needs=column([wait and rows.NEEDS[wait.needs] for wait in waits]),
        **gate_columns(batch.gates),
        p_seals=batch.seals or None,
    )
    if not members:
        return args
    return args._replace(
        e_batch=[first[0] for first, _, _ in members],
        e_lo=[first[1] for first, _, _ in members],
        e_hi=[last[1] for _, last, _ in members],
        e_into=[into for _, _, into in members],
    )


def _runs(batch: Batch, chained: Mapping[int, int]) -> list[tuple[int, int]]:
    """The runs of a batch, with each chain as one."""
    runs, start = list[tuple[int, int]](), 0
    for segment, hi in segments(batch):
        if (lo := max(segment, start)) <= hi:
            end = chained.get(lo, hi)
            runs.append((lo, end))
            start = end + 1
    return runs


def _chains(batch: Batch) -> dict[int, int]:
    """The chains of a batch, first to last place. A job of a chain and the one before it are stored whatever the server finds."""
    if len(batch.jobs) == MAX_BATCH:
        # The last place stands for chains, see `chain_of`.
        return {}
    unsure = frozenset(place for place, job in enumerate(batch.jobs) if job.key is not None or job.unique is not None)
    return {lo: hi for lo, hi in chains(batch, unsure) if lo < hi}


def _chain_of(batch: Batch) -> UUID:
    """As in `sql/ids.sql`."""
    return UUID(int=batch.id.int | MAX_BATCH - 1)
