"""The PostgreSQL store: every verb of the contract, each one call of an SQL function."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from headrace.model.clock import Clock
from headrace.model.gate import Gate, GateId, Links, NewGate, Predecessor
from headrace.model.job import Batch, Job, JobId, JobState
from headrace.model.lane import Ahead, LaneView
from headrace.model.lease import Ask, Lease, Orphan, Presence, Pulse, Report, Token, WorkerId
from headrace.model.outcome import Settlement
from headrace.model.records import (
    CancelAnswer,
    Ending,
    Enqueued,
    Filter,
    Finding,
    LimitRule,
    Page,
    Pause,
    PauseKind,
    Progress,
    Promoted,
    Pruned,
    Record,
    Retention,
    Stats,
)
from headrace.model.rollup import MAX_ROLLUPS, HistoryPage, Rollup, RollupKey
from headrace.model.step import Answered, SignalWait, Step
from headrace.store.postgres import checks, migrations
from headrace.store.postgres.blocking import BlockingEnqueue, blocking
from headrace.store.postgres.lease import LeaseMemory
from headrace.store.postgres.pool import connect, leave
from headrace.store.postgres.server import Server
from headrace.store.postgres.user_transaction import IDENTITY, UserTransactions
from headrace.store.postgres.verbs.abandon import abandon, retire
from headrace.store.postgres.verbs.ahead import ahead
from headrace.store.postgres.verbs.cancel import cancel
from headrace.store.postgres.verbs.claim import Claims
from headrace.store.postgres.verbs.delete import delete
from headrace.store.postgres.verbs.detach import detach
from headrace.store.postgres.verbs.ended import EndHorizon, ended
from headrace.store.postgres.verbs.enqueue import enqueue
from headrace.store.postgres.verbs.enqueue_linked import enqueue_linked
from headrace.store.postgres.verbs.find import find
from headrace.store.postgres.verbs.follow import Follow
from headrace.store.postgres.verbs.gates import gates, groups, links, signal
from headrace.store.postgres.verbs.get import get
from headrace.store.postgres.verbs.heartbeat import heartbeat
from headrace.store.postgres.verbs.history import add_history, fold_history, read_history
from headrace.store.postgres.verbs.lanes import LaneViews
from headrace.store.postgres.verbs.limit import limit, limits
from headrace.store.postgres.verbs.pause import pause, pauses, resume
from headrace.store.postgres.verbs.promote import Promotion
from headrace.store.postgres.verbs.prune import expired_dead, prune
from headrace.store.postgres.verbs.reap import reap
from headrace.store.postgres.verbs.record import record, records
from headrace.store.postgres.verbs.repeat_hints import repeat_hints
from headrace.store.postgres.verbs.report import report
from headrace.store.postgres.verbs.retry import retry
from headrace.store.postgres.verbs.settle import settle
from headrace.store.postgres.verbs.stats import stats, workers
from headrace.store.postgres.verbs.steps import add_steps, answer_wait, read_steps
from headrace.store.postgres.verbs.wake import Wake

_MIGRATION: Final = 3600.0
"""Seconds for one statement of a migration, which may rewrite much."""


class PostgresStore:
    """Jobs in the schema `headrace` of a PostgreSQL database."""

    one_writer = False

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._server = Server(url, clock)
        self._leases = LeaseMemory()
        self._claims = Claims(self._server, self._leases)
        self._follow = Follow(self._server)
        self._wake = Wake(self._server, self._leases, self._claims, self._follow)
        self._promotion = Promotion(self._server, self._follow)
        self._lane_views = LaneViews(self._server)
        self._end_horizon = EndHorizon(self._server)
        self._user_transactions = UserTransactions(self._server)

    # ── life ────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        server = self._server

        async def check(connection: Any) -> None:
            migrations.check_server(connection, server.address.shown)
            # An explicit transaction, so that behind a pooler every statement of the check reaches the same server.
            async with server.pool.transaction(connection):
                await checks.check_durability(connection, server.address)
                await migrations.check_schema(connection, server.address.shown)
                self._user_transactions.learn_identity(await connection.fetchrow(IDENTITY))

        server.bell.start(asyncio.get_running_loop())
        await server.pool.run(check, write=False)

    async def close(self) -> None:
        await self._follow.close()
        await self._server.bell.close(functools.partial(self._server.pool.rows, write=False))
        await self._server.pool.close()

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        address = self._server.address
        connection = await connect(address, command_timeout=_MIGRATION)
        try:
            migrations.check_server(connection, address.shown)
            return await migrations.migrate(connection, progress, address.shown)
        finally:
            await leave(connection)

    async def check(self) -> list[Finding]:
        server = self._server

        async def look(connection: Any) -> list[Finding]:
            async with server.pool.transaction(connection):
                return await checks.findings(connection, server.address)

        return await server.pool.run(look, write=False)

    async def now(self) -> datetime:
        return await self._server.now()

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, batch: Batch) -> Enqueued:
        if batch.linked:
            return await enqueue_linked(self._server, self._follow, batch)
        return await enqueue(self._server, self._follow, batch)

    def blocking(self) -> BlockingEnqueue | None:
        return blocking(self._server)

    async def claim(self, ask: Ask) -> Lease | None:
        return await self._claims.claim(ask)

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        return await heartbeat(self._server, self._leases, tokens, ttl, presence)

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        return await settle(self._server, self._leases, self._claims, self._follow, token, settlements)

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        return await report(self._server, token, reports)

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        return await self._server.bell.wait(queues, timeout)

    async def wait_to_claim(self, ask: Ask, timeout: float) -> Lease | bool:
        return await self._wake.wait_to_claim(ask, timeout)

    @property
    def hears(self) -> bool:
        return self._server.bell.hears

    async def repeat_hints(self, queues: Sequence[str]) -> None:
        await repeat_hints(self._server, queues)

    async def wait_due(self, timeout: float) -> timedelta | None:
        return await self._server.bell.wait_due(timeout)

    # ── time ────────────────────────────────────────────────────────────────
    async def promote(self, limit: int = 1000) -> Promoted:
        return await self._promotion.promote(limit)

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        return await reap(self._server, worker, ttl, limit)

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        return await abandon(self._server, worker, cause)

    async def retire(self, worker: WorkerId) -> None:
        await retire(self._server, worker)

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        return await prune(self._server, keep, limit, progress)

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        return await expired_dead(self._server, keep, limit)

    # ── looking ─────────────────────────────────────────────────────────────
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await get(self._server, ids)

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        return await find(self._server, where, before, limit)

    async def stats(self) -> Stats:
        return await stats(self._server)

    async def workers(self) -> list[Presence]:
        return await workers(self._server)

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        return await ended(self._server, since, limit)

    async def ended_until(self) -> datetime:
        return await self._end_horizon.ended_until()

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        return await self._lane_views.lanes(queues, limit)

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        return await ahead(self._server, id, limit)

    # ── the operator's moves ────────────────────────────────────────────────
    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        return await cancel(self._server, self._follow, ids, reason)

    async def retry(self, ids: Sequence[JobId], *, afresh: bool = True) -> frozenset[JobId]:
        return await retry(self._server, self._follow, ids, afresh=afresh)

    async def delete(
        self, ids: Sequence[JobId], *, states: Collection[JobState] | None = None, ended_by: datetime | None = None
    ) -> frozenset[JobId]:
        return await delete(self._server, self._follow, ids, states, ended_by)

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        await pause(self._server, kind, name, by, until)

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        await resume(self._server, kind, name)

    async def pauses(self) -> list[Pause]:
        return await pauses(self._server)

    # ── limits and records ──────────────────────────────────────────────────
    async def limits(self) -> dict[str, LimitRule]:
        return await limits(self._server)

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        return await limit(self._server, name, rule, expect)

    async def records(self, kind: str) -> dict[str, Record]:
        return await records(self._server, kind)

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        return await record(self._server, kind, name, value, expect)

    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        return await detach(self._server, self._leases, token, position, fresh)

    # ── history ─────────────────────────────────────────────────────────────
    async def add_history(self, rollups: Sequence[Rollup]) -> None:
        await add_history(self._server, rollups)

    async def read_history(
        self,
        since: int,
        until: int,
        *,
        queue: str | None = None,
        task: str | None = None,
        after: RollupKey | None = None,
        limit: int = MAX_ROLLUPS,
    ) -> HistoryPage:
        return await read_history(self._server, since, until, queue, task, after, limit)

    async def fold_history(self, gone: Sequence[RollupKey], rollups: Sequence[Rollup]) -> bool:
        return await fold_history(self._server, gone, rollups)

    # ── steps ───────────────────────────────────────────────────────────────
    async def add_steps(self, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        return await add_steps(self._server, token, steps)

    async def read_steps(self, id: JobId, token: Token | None = None) -> list[Step]:
        del token
        return await read_steps(self._server, id)

    async def answer_wait(self, token: Token, position: int, wait: SignalWait) -> Answered | None:
        return await answer_wait(self._server, token, position, wait)

    # ── gates ───────────────────────────────────────────────────────────────
    async def signal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        return await signal(self._server, self._follow, gate, value, keep)

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        return await gates(self._server, ids)

    async def groups(self, *, tenant: str | None = None, before: GateId | None = None, limit: int = 50) -> list[Gate]:
        return await groups(self._server, tenant, before, limit)

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links:
        return await links(self._server, id, after, limit)

    # ── inside the user's transaction ───────────────────────────────────────
    def followed_in(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        return self._user_transactions.followed(tx, ids)

    async def afollowed_in(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        return await self._user_transactions.afollowed(tx, ids)

    def enqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        return self._user_transactions.enqueue(tx, batch)

    async def aenqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        return await self._user_transactions.aenqueue(tx, batch)

    def settle_in(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        return self._user_transactions.settle(tx, token, settlements)

    async def asettle_in(
        self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]
    ) -> frozenset[int]:
        return await self._user_transactions.asettle(tx, token, settlements)

    def add_steps_in(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        return self._user_transactions.add_steps(tx, token, steps)

    async def aadd_steps_in(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        return await self._user_transactions.aadd_steps(tx, token, steps)
