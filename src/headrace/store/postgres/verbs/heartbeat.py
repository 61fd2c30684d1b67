"""HEARTBEAT: renews leases and notes the worker; answers which leases are lost, which jobs should stop, and whether to do upkeep."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from headrace.model.lease import ORDERS, UPKEEP_PLACES, Presence, Pulse, Stop, Token
from headrace.store.postgres.arguments import (
    Int4,
    Int8,
    Interval,
    Text,
    Texts,
    Time,
    Uuid,
    Uuids,
    call,
    expression,
    fields,
    text,
)
from headrace.store.postgres.lease import LeaseMemory
from headrace.store.postgres.pool import CALL_TIMEOUT
from headrace.store.postgres.server import Server
from headrace.store.postgres.verbs.repeat_hints import has_ready

_SHORTEST: Final = 1.0
"""Seconds that even the shortest lease leaves a heartbeat: less would take a busy server for a lost one."""


class HeartbeatArgs(NamedTuple):
    """See `sql/heartbeat.sql`."""

    p_tokens: Uuids
    p_ttl: Interval
    p_now: Time | None


class PresentArgs(NamedTuple):
    """See `sql/present.sql`. The time is that of the heartbeat."""

    p_id: Uuid
    p_name: Text
    p_queues: Texts
    p_slots: Int4
    p_running: Int4
    p_version: Text
    p_started_at: Time
    p_tasks: Texts
    p_hindered: Texts
    p_memory: Int8 | None


class UpkeepArgs(NamedTuple):
    """See `sql/upkeep.sql`. The time is that of the heartbeat."""

    p_workers: Text | None
    p_worker: Uuid
    p_ttl: Interval
    p_places: Int4


_PLACES: Final = fields(HeartbeatArgs)
_GIVEN: Final = f"${_PLACES.index('p_now') + 1}"
_NOW: Final = f"p_now => {_GIVEN}"
_ANSWER: Final = f"alive, stop_token, stop_position, coalesce({_GIVEN}::timestamptz, clock_timestamp()) as now"
_HEARTBEAT: Final = call(
    "heartbeat", HeartbeatArgs, f"{_ANSWER}, false as upkeep, null::bytea as order_given, null::bool as ready"
)
_WORKER: Final = f"${len(_PLACES) + fields(PresentArgs).index('p_id') + 1}"
_ORDER: Final = f"(select r.value from headrace.records r where r.kind = '{ORDERS}' and r.name = {_WORKER}::uuid::text)"
_QUEUES: Final = f"${len(_PLACES) + fields(PresentArgs).index('p_queues') + 1}"
_READY: Final = f"(upkeep and exists (select from unnest({_QUEUES}::text[]) name where {has_ready('name')})) as ready"
_BEFORE_UPKEEP: Final = len(_PLACES) + len(fields(PresentArgs))
_WITH_PRESENCE: Final = ", ".join(
    [
        call("heartbeat", HeartbeatArgs, f"{_ANSWER}, upkeep, {_ORDER} as order_given, {_READY}"),
        expression("present", PresentArgs, after=len(_PLACES), more=_NOW),
        expression("upkeep", UpkeepArgs, after=_BEFORE_UPKEEP, more=_NOW) + " upkeep",
    ]
)


async def heartbeat(
    server: Server, leases: LeaseMemory, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None
) -> Pulse:
    if not tokens and presence is None:
        return Pulse(frozenset(), ())
    statement = _HEARTBEAT
    args: tuple[Any, ...] = HeartbeatArgs(list(tokens), ttl, server.injected)
    if presence is not None:
        upkeep_args = UpkeepArgs(presence.upkeep, presence.id, ttl, UPKEEP_PLACES)
        statement, args = _WITH_PRESENCE, (*args, *_present_args(presence), *upkeep_args)
    # Two tries and a connection between them fit into half the lease.
    patience = min(CALL_TIMEOUT, max(_SHORTEST, ttl.total_seconds() / 6))
    answer: list[Any] = await server.pool.repeatable(
        lambda: server.pool.rows(statement, *args, write=True, timeout=patience, use="heartbeat")
    )
    alive, stopped, positions, now, upkeep, order, ready = answer[0]
    lost = frozenset(tokens) - set(alive or ())
    for token in lost:
        leases.forget_size(token)
    stops = zip(stopped or (), positions or (), strict=True)
    stopping = tuple(Stop(Token(token), position) for token, position in stops)
    return Pulse(lost, stopping, upkeep, now, bytes(order or b""), ready if upkeep else None)


def _present_args(presence: Presence) -> PresentArgs:
    return PresentArgs(
        p_id=presence.id,
        p_name=text(presence.name),
        p_queues=list(presence.queues),
        p_slots=presence.slots,
        p_running=presence.running,
        p_version=text(presence.version),
        p_started_at=presence.started_at,
        p_tasks=list(presence.tasks),
        p_hindered=[text(reason) for reason in presence.hindered],
        p_memory=presence.memory,
    )
