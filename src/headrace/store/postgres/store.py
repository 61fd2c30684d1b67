"""The PostgreSQL store: every verb of the contract, each one call of the SQL function of the same name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from headrace.clock import Clock
from headrace.errors import OutcomeUnknown
from headrace.job import Batch, Job, JobId, JobState, split_id
from headrace.lane import Ahead
from headrace.lease import MAX_LEASE, Ask, Lease, Orphan, Presence, Pulse, Stop, Token, WorkerId
from headrace.outcome import Again, Settlement
from headrace.store.contract import (
    CancelAnswer,
    Enqueued,
    Filter,
    Finding,
    Page,
    Progress,
    Promoted,
    Pruned,
    Record,
    Retention,
    Stats,
)
from headrace.store.postgres import address, checks, migrations, pruning, rows, tx
from headrace.store.postgres.heads import Heads
from headrace.store.postgres.listen import Bell
from headrace.store.postgres.pool import Pool, connect

_LONG: Final = 600.0
"""Seconds for verbs that may have much to do."""
_SIZES_KEPT: Final = 10_000


def _call(verb: str, count: int, columns: str = "*") -> str:
    return f"select {columns} from headrace.{verb}({', '.join(f'${n}' for n in range(1, count + 1))})"


_ENQUEUE: Final = _call("enqueue_batch", 17)
_CLAIM: Final = _call("claim", 15)
_HELD: Final = _call("held", 1)
_SETTLE: Final = _call("settle", 19)
_JOB_NOW: Final = """
select n.* from unnest($1::uuid[], $2::int4[]) with ordinality u(batch, ord, o)
join headrace.job_now n on n.batch = u.batch and n.ord = u.ord order by u.o"""
_FAILURES: Final = """
select f.* from unnest($1::uuid[], $2::int4[]) u(batch, ord)
join headrace.failure f on f.batch = u.batch and f.ord = u.ord order by f.attempt, f.at"""
_FIND: Final = """
select n.* from headrace.find($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) u
join headrace.job_now n on n.batch = u.batch and n.ord = u.ord order by n.batch desc, n.ord desc"""


_AFTER_ALL: Final = (UUID(int=2**128 - 1), 0)
"""Greater than any job's place."""


class PostgresStore(tx.InTransaction):
    """Jobs in the schema `headrace` of a PostgreSQL database."""

    one_writer = False

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._address = address.parse(url)
        self._clock = clock
        self._pool = Pool(self._address, size=self._address.pool)
        self._bell = Bell(self._address)
        self._heads = Heads()
        # How many jobs each lease of ours has: a whole lease is settled by naming it.
        self._sizes: dict[Token, int] = {}
        self._fold_after = 0.0

    # ── life ────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        async def check(connection: Any) -> None:
            migrations.check_server(connection, self._address.shown)
            # Explicit for poolers: every statement of the check meets the same server.
            async with connection.transaction():
                await migrations.check_schema(connection, self._address.shown)
                self.learn_identity(await connection.fetchrow(tx.IDENTITY))

        self._bell.start(asyncio.get_running_loop())
        await self._pool.run(check, write=False)

    async def close(self) -> None:
        await self._bell.close()
        await self._pool.close()

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        connection = await connect(self._address)
        try:
            migrations.check_server(connection, self._address.shown)
            return await migrations.migrate(connection, progress, self._address.shown)
        finally:
            await connection.close()

    async def check(self) -> list[Finding]:
        return await self._pool.run(lambda connection: checks.findings(connection, self._address), write=False)

    async def now(self) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        now: datetime = (await self._pool.rows("select clock_timestamp()", write=False))[0][0]
        return now

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, batch: Batch) -> Enqueued:
        if not batch.jobs:
            return Enqueued({})
        args = rows.enqueue_args(batch, self._now())
        found = await self._pool.repeatable(lambda: self._pool.rows(_ENQUEUE, *args, write=True, timeout=60))
        answer = rows.enqueued(batch, found[0])
        self._bell.ring(rows.queues_of(batch))
        return answer

    async def claim(self, ask: Ask) -> Lease | None:
        limit = min(ask.limit, MAX_LEASE)
        if limit < 1 or not ask.queues:
            return None
        seen = self._bell.count
        memory, full = self._heads.args()
        args = (list(ask.queues), limit, ask.token, ask.worker, ask.ttl, *memory, self._now())
        try:
            found = await self._pool.rows(_CLAIM, *args, write=True)
        except OutcomeUnknown:
            # What the token holds; or if the claim never happened, a new one.
            if held := await self._pool.rows(_HELD, ask.token, write=False):
                return self._lease(ask.token, held)
            found = await self._pool.rows(_CLAIM, *args, write=True)
        if not found:
            self._heads.forget()
            self._bell.seen, self._bell.searched = seen, True
            return None
        self._heads.learn(found, full=full)
        return self._lease(ask.token, found)

    def _lease(self, token: Token, found: Sequence[Any]) -> Lease:
        jobs = rows.claimed(found)
        self._remember(token, len(jobs))
        return Lease(token, jobs, found[0]["suspect"])

    def _remember(self, token: Token, size: int) -> None:
        self._sizes[token] = size
        if len(self._sizes) > _SIZES_KEPT:
            del self._sizes[next(iter(self._sizes))]

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        now = self._now()
        if presence is not None:
            await self._pool.repeatable(lambda: self._pool.rows(_call("present", 9), *_said(presence), now, write=True))
        if not tokens:
            return Pulse(frozenset(), ())
        found = await self._pool.repeatable(
            lambda: self._pool.rows(_call("heartbeat", 3), list(tokens), ttl, now, write=True)
        )
        alive, stopped, positions = found[0]
        lost = frozenset(tokens) - set(alive or ())
        for token in lost:
            self._sizes.pop(token, None)
        stops = zip(stopped or (), positions or (), strict=True)
        return Pulse(lost, tuple(Stop(Token(token), position) for token, position in stops))

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        if not settlements:
            return frozenset()
        args = rows.settle_args(token, settlements, self._sizes.get(token), self._now())
        try:
            found = await self._pool.rows(_SETTLE, *args, write=True, timeout=60)
        except OutcomeUnknown:
            found = await self._pool.rows(_SETTLE, *args, write=True, timeout=60)
            if found[0][0] is None:
                # The first call may have ended the lease, or somebody else did: nobody can tell any more.
                raise
        if args[1] is None or found[0][0] is None:
            self._sizes.pop(token, None)
        if any(isinstance(s, Again) and s.due is None for _, s in settlements):
            self._bell.ring_all()
        return rows.refused(settlements, found[0][0])

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        return await self._bell.wait(queues, timeout)

    # ── time ────────────────────────────────────────────────────────────────
    async def promote(self, limit: int = 1000) -> Promoted:
        found = await self._pool.repeatable(
            lambda: self._pool.rows(_call("promote", 2), limit, self._now(), write=True)
        )
        moved, queues, next_due = found[0]
        if queues:
            self._bell.ring(queues)
        await self._fold()
        return Promoted(moved, next_due)

    async def _fold(self) -> None:
        """Add the journal up, at most a twentieth of the time: under an old snapshot it, too, is full of dead rows."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        if begun < self._fold_after:
            return
        await self._pool.repeatable(lambda: self._pool.rows(_call("fold", 0), write=True))
        self._fold_after = loop.time() + 20 * (loop.time() - begun)

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        now = self._now()
        reaped = await self._pool.repeatable(
            lambda: self._pool.rows(_call("reap", 4), worker, ttl, limit, now, write=True)
        )
        return [await self._orphan(row) for row in reaped]

    async def _orphan(self, reaped: Any) -> Orphan:
        held = await self._pool.rows(_HELD, reaped["token"], write=False)
        jobs = [(row["position"], job) for row, job in zip(held, rows.claimed(held), strict=True)]
        return Orphan(Token(reaped["token"]), jobs, reaped["suspect"], WorkerId(reaped["worker"]), reaped["cause"])

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        found = await self._pool.repeatable(
            lambda: self._pool.rows(_call("abandon", 3), worker, rows.text(cause), self._now(), write=True)
        )
        count: int = found[0][0]
        return count

    async def retire(self, worker: WorkerId) -> None:
        await self._pool.repeatable(
            lambda: self._pool.rows("delete from headrace.worker where id = $1", worker, write=True)
        )

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        return await pruning.prune(self._pool, keep, limit, self._now(), progress)

    # ── looking ─────────────────────────────────────────────────────────────
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        places = [split_id(id) for id in ids]
        batches, ords = [batch for batch, _ in places], [ord for _, ord in places]

        async def look(connection: Any) -> tuple[list[Any], list[Any], datetime]:
            # One snapshot: a job that moves meanwhile is seen in one place.
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return (
                    await connection.fetch(_JOB_NOW, batches, ords),
                    await connection.fetch(_FAILURES, batches, ords),
                    await connection.fetchval("select clock_timestamp()"),
                )

        found, failed, now = await self._pool.run(look, write=False)
        history: dict[tuple[Any, int], list[Any]] = {}
        for row in failed:
            history.setdefault((row["batch"], row["ord"]), []).append(row)
        jobs: Mapping[tuple[Any, int], Job] = {
            (row["batch"], row["ord"]): rows.job(
                row, self._now() or now, tuple(rows.failure(f) for f in history.get((row["batch"], row["ord"]), ()))
            )
            for row in found
        }
        return [jobs.get(place) for place in places]

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        batch, ord = split_id(before) if before is not None else _AFTER_ALL
        states = sorted(where.states) if where.states and len(where.states) < len(JobState) else None
        fields = (where.queue, where.task, where.tenant, where.since, where.until)
        sought = None if where.text is None else rows.text(where.text)
        found = await self._pool.rows(_FIND, states, *fields, sought, batch, ord, limit + 1, write=False, timeout=60)
        now = (
            await self.now()
            if any(row["result_until"] is not None for row in found)
            else datetime.max.replace(tzinfo=UTC)
        )
        jobs = [rows.job(row, now) for row in found[:limit]]
        return Page(jobs, jobs[-1].id if jobs and len(found) > limit else None)

    async def stats(self) -> Stats:
        return Stats([rows.figures(row) for row in await self._pool.rows(_call("stats", 1), self._now(), write=False)])

    async def workers(self) -> list[Presence]:
        found = await self._pool.rows(
            "select * from headrace.worker where seen_at > coalesce($1, clock_timestamp()) - interval '1 minute'"
            " order by name, id",
            self._now(),
            write=False,
        )
        return [rows.presence(row) for row in found]

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        found = await self._pool.rows(_call("ahead", 2), id, limit, write=False)
        if not found:
            return None
        lane, higher, suspect, by, since = found[0]
        return Ahead(lane=lane, higher=higher, limit=limit, suspect=suspect, paused_by=by, paused_since=since)

    # ── the operator's moves ────────────────────────────────────────────────
    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        why = None if reason is None else rows.text(reason)
        found = await self._pool.rows(_call("cancel", 3), list(ids), why, self._now(), write=True, timeout=_LONG)
        answers = {row["id"]: CancelAnswer(row["answer"]) for row in found}
        return {id: answers[id] for id in dict.fromkeys(ids)}

    async def retry(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        found = await self._pool.rows(_call("retry", 1), list(ids), write=True, timeout=_LONG)
        self._bell.ring({row["queue"] for row in found})
        return frozenset(JobId(row["id"]) for row in found)

    async def delete(self, ids: Sequence[JobId]) -> frozenset[JobId]:
        found = await self._pool.rows(_call("delete", 1), list(ids), write=True, timeout=_LONG)
        return frozenset(JobId(row["id"]) for row in found)

    async def pause(self, queue: str, *, by: str = "") -> None:
        await self._pool.repeatable(
            lambda: self._pool.rows(_call("pause", 3), queue, rows.text(by), self._now(), write=True)
        )

    async def resume(self, queue: str) -> None:
        await self._pool.repeatable(
            lambda: self._pool.rows("delete from headrace.paused_queue where queue = $1", queue, write=True)
        )
        self._bell.ring((queue,))

    # ── records ─────────────────────────────────────────────────────────────
    async def records(self, kind: str) -> dict[str, Record]:
        found = await self._pool.rows(
            "select name, version, value from headrace.records where kind = $1 order by name", kind, write=False
        )
        return {row["name"]: Record(row["version"], row["value"]) for row in found}

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        # Not repeated when the answer is lost: the second answer would say that somebody else was first.
        found = await self._pool.rows(_call("record", 4), kind, name, value, expect, write=True)
        version: int | None = found[0][0]
        return version

    # ── leases, the rare verb ───────────────────────────────────────────────
    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        found = await self._pool.repeatable(
            lambda: self._pool.rows(_call("detach", 3), token, position, fresh, write=True)
        )
        detached: bool = found[0][0]
        if detached:
            # The old lease has one less, so it is not whole any more.
            self._sizes.pop(token, None)
            self._sizes[fresh] = 1
        return detached


def _said(presence: Presence) -> tuple[Any, ...]:
    return (
        presence.id,
        rows.text(presence.name),
        list(presence.queues),
        presence.slots,
        presence.running,
        rows.text(presence.version),
        presence.started_at,
        list(presence.tasks),
    )
