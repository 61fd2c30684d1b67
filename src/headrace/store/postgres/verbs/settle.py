"""SETTLE: positions of a lease become endings, or go back to their lanes. The token's existence is the fence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from headrace.errors import OutcomeUnknown
from headrace.model.job import Due
from headrace.model.lease import Token
from headrace.model.outcome import DONE, Again, Finish, Settlement
from headrace.runtime import faults
from headrace.store.due import AT_ONCE, hint_of
from headrace.store.postgres import rows
from headrace.store.postgres.arguments import (
    Bools,
    Byteses,
    Int2s,
    Int4s,
    Intervals,
    Texts,
    Time,
    Times,
    Uuid,
    Uuids,
    call,
    column,
    expression,
    fields,
    same,
    text,
)
from headrace.store.postgres.lease import LeaseMemory
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.claim import Claims
from headrace.store.postgres.verbs.follow import Follow
from headrace.store.postgres.verbs.gates import gate_columns
from headrace.store.postgres.wakeup import ALL, due_hint


class SettleArgs(NamedTuple):
    """See `sql/settle.sql`."""

    p_token: Uuid
    p_positions: Int4s | None = None
    p_states: Int2s | None = None
    p_results: Byteses | None = None
    p_ttl: Intervals | None = None
    p_failures: Int4s | None = None
    p_crashes: Int4s | None = None
    p_notes: Texts | None = None
    p_run_at: Times | None = None
    p_delay: Intervals | None = None
    p_suspect: Bools | None = None
    f_index: Int4s | None = None
    f_attempt: Int4s | None = None
    f_kind: Texts | None = None
    f_message: Texts | None = None
    f_traceback: Texts | None = None
    f_at: Times | None = None
    f_worker: Texts | None = None
    p_now: Time | None = None


class SuspendArgs(NamedTuple):
    """What `sql/settle.sql` takes besides, for jobs that go back and wait."""

    w_index: Int4s
    w_gate: Uuids
    w_needs: Int2s
    g_index: Int4s | None = None
    g_id: Uuids | None = None
    g_queue: Texts | None = None
    g_sealed: Bools | None = None
    g_signalled: Bools | None = None
    g_label: Texts | None = None
    g_tenant: Texts | None = None


FUNCTION: Final = "settle"
_SETTLE: Final = call(FUNCTION, SettleArgs)
_SUSPEND: Final = "select * from " + expression(
    FUNCTION,
    SettleArgs,
    more=", ".join(
        f"{name} => ${number}" for number, name in enumerate(fields(SuspendArgs), start=len(fields(SettleArgs)) + 1)
    ),
)


async def settle(
    server: Server,
    leases: LeaseMemory,
    claims: Claims,
    follow: Follow,
    token: Token,
    settlements: Sequence[tuple[int, Settlement]],
) -> frozenset[int]:
    if not settlements:
        return frozenset()
    args = settle_args(token, settlements, leases.size(token), server.injected)
    suspends = suspend_args(settlements)
    statement, values = (_SETTLE, args) if suspends is None else (_SUSPEND, (*args, *suspends))
    try:
        [answer] = await server.pool.rows(statement, *values, write=True, timeout=60, use="settle")
    except OutcomeUnknown:
        [answer] = await server.pool.rows(statement, *values, write=True, timeout=60, use="settle")
        if answer[0] is None:
            # The first call may have ended the lease, or another worker did. The store cannot tell which.
            raise
    # The units of the lease are free now, so jobs that waited for them may run.
    freed = leases.limited(token)
    refused, ids, woken = answer
    if args.p_positions is None or refused is None:
        leases.end(token)
    # Only jobs that come back are told, and where all jobs ended well there are none.
    hints = set[str]() if args.p_states is None else hints_of(settlements)
    if woken:
        hints.update(woken)
        claims.released()
    if faults.ARMED and ids:
        faults.reach("tolled")
    follow.soon(ids)
    server.bell.ring(hints)
    if freed and ALL not in hints:
        server.bell.ring(freed)
        server.bell.ring_all_soon()
    return rows.refused(settlements, refused)


def hints_of(settlements: Sequence[tuple[int, Settlement]]) -> set[str]:
    """What to tell workers about jobs that come back, now or later."""
    again = [s for _, s in settlements if isinstance(s, Again)]
    hints = {ALL} if any(_is_due(s.due) and not s.waits for s in again) else set[str]()
    dues = [s.due for s in again]
    if delayed := [hint for due in dues if (hint := hint_of(due)) is not None]:
        hints.add(due_hint(min(delayed)))
    return hints


def _is_due(due: Due) -> bool:
    """Whether the job is ready at once, so that no `promote` will find it."""
    if isinstance(due, timedelta):
        return due <= AT_ONCE
    return due is None or due <= datetime.now(UTC)


def settle_args(
    token: UUID, settlements: Sequence[tuple[int, Settlement]], size: int | None, now: datetime | None
) -> SettleArgs:
    """`size`: how many jobs the lease has, if that is known. A lease that is settled whole needs no positions."""
    done = [position for position, settlement in settlements if settlement is DONE]
    if len(done) == len(settlements):
        whole = size is not None and len(done) == size and (done == list(range(size)) or set(done) == set(range(size)))
        return SettleArgs(token, None if whole else done, p_now=now)
    values = [settlement for _, settlement in settlements]
    failed = [(index, s.failure) for index, s in enumerate(values, start=1) if s.failure is not None]
    ttls = column([s.result_ttl if isinstance(s, Finish) else None for s in values])
    return SettleArgs(
        p_token=token,
        p_positions=[position for position, _ in settlements],
        p_states=[_state(s) for s in values],
        p_results=column([s.result if isinstance(s, Finish) else None for s in values]),
        p_ttl=None if ttls is None else same(ttls),
        p_failures=column([s.failures for s in values]),
        p_crashes=column([s.crashes for s in values]),
        p_notes=column([text(s.note) if s.note is not None else None for s in values]),
        p_run_at=column([s.due if isinstance(s, Again) and isinstance(s.due, datetime) else None for s in values]),
        p_delay=column([s.due if isinstance(s, Again) and isinstance(s.due, timedelta) else None for s in values]),
        p_suspect=column([s.suspect or None if isinstance(s, Again) else None for s in values]),
        f_index=[index for index, _ in failed] or None,
        f_attempt=[f.attempt for _, f in failed] or None,
        f_kind=[text(f.kind) for _, f in failed] or None,
        f_message=[text(f.message) for _, f in failed] or None,
        f_traceback=[text(f.traceback) for _, f in failed] or None,
        f_at=[f.at for _, f in failed] or None,
        f_worker=[text(f.worker) for _, f in failed] or None,
        p_now=now,
    )


def suspend_args(settlements: Sequence[tuple[int, Settlement]]) -> SuspendArgs | None:
    """None: no job is suspended."""
    again = [(index, s) for index, (_, s) in enumerate(settlements, start=1) if isinstance(s, Again)]
    waits = [(index, wait) for index, s in again for wait in s.waits]
    gates = [(index, gate) for index, s in again for gate in s.gates]
    if not waits and not gates:
        return None
    args = SuspendArgs(
        w_index=[index for index, _ in waits],
        w_gate=[wait.gate for _, wait in waits],
        w_needs=[rows.NEEDS[wait.needs] for _, wait in waits],
    )
    return args._replace(g_index=[index for index, _ in gates], **gate_columns([gate for _, gate in gates]))


def _state(settlement: Settlement) -> int:
    return rows.STATES[settlement.state] if isinstance(settlement, Finish) else 0
