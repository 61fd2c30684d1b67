"""SETTLE: positions of a lease become endings, or go back to their lanes. The token's existence is the fence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from headrace.errors import OutcomeUnknown
from headrace.model.lease import Token
from headrace.model.outcome import DONE, Again, Finish, Settlement
from headrace.store.due import hint_of
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
    call,
    column,
    same,
    text,
)
from headrace.store.postgres.lease import LeaseMemory
from headrace.store.postgres.server import Server
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


FUNCTION: Final = "settle"
_SETTLE: Final = call(FUNCTION, SettleArgs)


async def settle(
    server: Server, leases: LeaseMemory, token: Token, settlements: Sequence[tuple[int, Settlement]]
) -> frozenset[int]:
    if not settlements:
        return frozenset()
    args = settle_args(token, settlements, leases.size(token), server.injected)
    try:
        answer = await server.pool.rows(_SETTLE, *args, write=True, timeout=60, use="settle")
    except OutcomeUnknown:
        answer = await server.pool.rows(_SETTLE, *args, write=True, timeout=60, use="settle")
        if answer[0][0] is None:
            # The first call may have ended the lease, or another worker did. The store cannot tell which.
            raise
    # The units of the lease are free now, so jobs that waited for them may run.
    freed = leases.limited(token)
    if args.p_positions is None or answer[0][0] is None:
        leases.end(token)
    hints = hints_of(settlements)
    server.bell.ring(hints)
    if freed and ALL not in hints:
        server.bell.ring(freed)
        server.bell.ring_all_soon()
    return rows.refused(settlements, answer[0][0])


def hints_of(settlements: Sequence[tuple[int, Settlement]]) -> set[str]:
    """What to tell workers about jobs that come back, now or later."""
    dues = [s.due for _, s in settlements if isinstance(s, Again)]
    hints = {ALL} if None in dues else set[str]()
    if delayed := [hint for due in dues if (hint := hint_of(due)) is not None]:
        hints.add(due_hint(min(delayed)))
    return hints


def settle_args(
    token: UUID, settlements: Sequence[tuple[int, Settlement]], size: int | None, now: datetime | None
) -> SettleArgs:
    """`size`: how many jobs the lease has, if that is known. A lease that is settled whole needs no positions."""
    if all(settlement is DONE for _, settlement in settlements):
        positions = [position for position, _ in settlements]
        whole = size is not None and len(positions) == size and set(positions) == set(range(size))
        return SettleArgs(token, None if whole else positions, p_now=now)
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


def _state(settlement: Settlement) -> int:
    return rows.STATES[settlement.state] if isinstance(settlement, Finish) else 0
