"""The PostgreSQL store: every verb of the contract, each one call of the SQL function of the same name."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from headrace.errors import KeyHeld, OutcomeUnknown, Unavailable
from headrace.model.clock import Clock
from headrace.model.job import Batch, Claimed, JobId, JobState
from headrace.model.lease import (
    MAX_LEASE,
    UPKEEP_PLACES,
    Ask,
    Lease,
    Orphan,
    Presence,
    Pulse,
    Report,
    Stop,
    Token,
    WorkerId,
)
from headrace.model.outcome import Again, Settlement
from headrace.model.records import (
    CancelAnswer,
    Enqueued,
    Finding,
    LimitRule,
    Pause,
    PauseKind,
    Progress,
    Promoted,
    Pruned,
    Record,
    Retention,
)
from headrace.store.postgres import checks, faults, migrations, pruning, rows, user_transaction
from headrace.store.postgres.arguments import (
    ask_args,
    enqueue_args,
    keyed,
    limit_args,
    presence_args,
    queues_of,
    report_args,
    settle_args,
    text,
)
from headrace.store.postgres.base import call
from headrace.store.postgres.heads import Heads
from headrace.store.postgres.looks import Looking
from headrace.store.postgres.pool import CALL_TIMEOUT, connect, leave

_LONG: Final = 600.0
"""Seconds for verbs that may have much to do."""
_MIGRATION: Final = 3600.0
"""Seconds for one statement of a migration, which may rewrite much."""
_FOLD_EVERY: Final = 3.0
_RETIRE: Final = (
    "with gone as (delete from headrace.upkeep where worker = $1) delete from headrace.worker where id = $1"
)
_SHORTEST: Final = 1.0
"""Seconds that even the shortest lease leaves a heartbeat: less would take a busy server for a lost one."""
_SIZES_KEPT: Final = 10_000
_LOOKS, _MOST_LOOKS = 1000, 16_000
"""Blocked lanes that a claim looks at. If there are more, it looks again, at four times as many and the whole ring round."""
_MOST_WAITS: Final = 8
"""How often a claim that finds nothing waits for another one that counts under the same limit keys, and looks again."""

_ENQUEUE: Final = call("enqueue_batch", 22)
_PATIENCE: Final = "3s"
"""How long an enqueue waits for a transaction that holds one of its keys or unique locks."""
_ENQUEUE_KEYED: Final = (
    "select e.* from (select set_config('lock_timeout', $23, true) as set) t cross join lateral "
    # The function depends on the setting, so that PostgreSQL sets it first.
    + call("enqueue_batch", 22)
    .partition(" from ")[2]
    .replace("$1,", "case when t.set is not null then $1::uuid end,", 1)
    + " e"
)
_CLAIM: Final = call("claim", 29)
_HELD: Final = call("held", 1)
_SETTLE: Final = call("settle", 19)


class PostgresStore(Looking, user_transaction.InTransaction):
    """Jobs in the schema `headrace` of a PostgreSQL database."""

    one_writer = False

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(url, clock=clock)
        self._heads = Heads()
        # How many jobs each lease of ours has: a whole lease is settled by naming it.
        self._sizes: dict[Token, int] = {}
        # Which of them hold units of a limit, and in which queues others most likely wait for those.
        self._limited: dict[Token, set[str]] = {}
        # Blocked lanes that the next claim looks at: as many as the last one had to.
        self._looks = _LOOKS
        self._fold_after = 0.0

    # ── life ────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        async def check(connection: Any) -> None:
            migrations.check_server(connection, self._address.shown)
            # Explicit for poolers: every statement of the check meets the same server.
            async with self._pool.transaction(connection):
                await checks.check_durability(connection, self._address)
                await migrations.check_schema(connection, self._address.shown)
                self.learn_identity(await connection.fetchrow(user_transaction.IDENTITY))

        self._bell.start(asyncio.get_running_loop())
        await self._pool.run(check, write=False)

    async def close(self) -> None:
        await self._bell.close(functools.partial(self._pool.rows, write=False))
        await self._pool.close()

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        connection = await connect(self._address, command_timeout=_MIGRATION)
        try:
            migrations.check_server(connection, self._address.shown)
            return await migrations.migrate(connection, progress, self._address.shown)
        finally:
            await leave(connection)

    async def check(self) -> list[Finding]:
        async def look(connection: Any) -> list[Finding]:
            async with self._pool.transaction(connection):
                return await checks.findings(connection, self._address)

        return await self._pool.run(look, write=False)

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, batch: Batch) -> Enqueued:
        if not batch.jobs:
            return Enqueued({})
        args = enqueue_args(batch, self._now())
        if keyed(args):
            found = await self._enqueue_keyed(args)
        else:
            found = await self._pool.repeatable(lambda: self._pool.rows(_ENQUEUE, *args, write=True, timeout=60))
        answer = rows.enqueued(batch, found[0])
        self._bell.ring(queues_of(batch))
        return answer

    async def _enqueue_keyed(self, args: tuple[Any, ...]) -> list[Any]:
        try:
            return await self._pool.repeatable(
                lambda: self._pool.rows(_ENQUEUE_KEYED, *args, _PATIENCE, write=True, timeout=60)
            )
        except Unavailable as error:
            if error.__cause__ is None or faults.sqlstate(error.__cause__) != faults.LOCKED:
                raise
            raise KeyHeld(
                "a transaction that has not ended has enqueued with the same key or unique lock: commit or roll back "
                f"that transaction; nothing was stored after waiting {_PATIENCE}, and trying again is safe"
            ) from error.__cause__

    async def claim(self, ask: Ask) -> Lease | None:
        limit = min(ask.limit, MAX_LEASE)
        if limit < 1 or not ask.queues:
            return None
        asked = ask_args(ask, limit)
        if ask.only_bands and not ask.bands:
            return None
        seen = self._bell.count
        looks, self._looks = self._looks, _LOOKS
        waits, busy = 0, None
        while True:
            memory, full = self._heads.args()
            found = await self._claim(ask.token, (*asked, *memory, looks, self._now(), busy, self._heads.probe))
            if isinstance(found, Lease):
                return found
            first = found[0]
            self._heads.learn(first, full=full)
            self._bell.opens(first["opens"])
            if first["r_batch"] is not None:
                return self._lease(ask.token, rows.claimed(found), found)
            busy = first["busy"]
            if busy is not None and waits < _MOST_WAITS:
                waits += 1
            elif first["more"] and looks < _MOST_LOOKS:
                looks *= 4
            else:
                break
        self._looks = looks
        self._heads.forget()
        self._bell.seen, self._bell.searched = seen, True
        return await self._held(ask.token) if first["held"] else None

    async def _claim(self, token: Token, args: tuple[Any, ...]) -> list[Any] | Lease:
        try:
            return await self._pool.rows(_CLAIM, *args, write=True)
        except OutcomeUnknown:
            # What the token holds; or if the claim never happened, a new one.
            return await self._held(token) or await self._pool.rows(_CLAIM, *args, write=True)
        except Unavailable:
            # So it is, too, when the token has a lease already: a claim that was asked before, through another object.
            if (held := await self._held(token)) is not None:
                return held
            raise

    async def _held(self, token: Token) -> Lease | None:
        """What a claim got whose answer was lost."""
        held = await self._pool.rows(_HELD, token, write=False)
        if not held:
            return None
        jobs = [job for _, job in rows.held(held)]
        self._remember(token, len(jobs))
        return Lease(token, jobs, held[0]["suspect"])

    def _lease(self, token: Token, jobs: list[Claimed], found: Sequence[Any]) -> Lease:
        self._remember(token, len(jobs))
        first = found[0]
        if first["limited"]:
            self._limited[token] = set(first["r_queue"])
            if len(self._limited) > _SIZES_KEPT:
                del self._limited[next(iter(self._limited))]
        return Lease(token, jobs, first["suspect"])

    def _remember(self, token: Token, size: int) -> None:
        self._sizes[token] = size
        if len(self._sizes) > _SIZES_KEPT:
            del self._sizes[next(iter(self._sizes))]

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        if not tokens and presence is None:
            return Pulse(frozenset(), ())
        beat = call("heartbeat", 3, "alive, stop_token, stop_position, false")
        args = (list(tokens), ttl, self._now())
        if presence is not None:
            # All but the last two come before the time, which the heartbeat has already.
            said = presence_args(presence)
            places = ", ".join(f"${n}" for n in range(4, 3 + len(said)))
            end = 3 + len(said)
            beat = (
                f"{call('heartbeat', 3, 'alive, stop_token, stop_position, upkeep')}, headrace.present({places}, $3, ${end}),"
                f" headrace.upkeep(${end + 1}, $4, $2, {UPKEEP_PLACES}, $3) upkeep"
            )
            args = (*args, *said, presence.upkeep)
        # Two tries and a connection between them fit into half the lease.
        patience = min(CALL_TIMEOUT, max(_SHORTEST, ttl.total_seconds() / 6))
        found = await self._pool.repeatable(
            lambda: self._pool.rows(beat, *args, write=True, timeout=patience, use="heartbeat")
        )
        alive, stopped, positions, upkeep = found[0]
        lost = frozenset(tokens) - set(alive or ())
        for token in lost:
            self._sizes.pop(token, None)
        stops = zip(stopped or (), positions or (), strict=True)
        return Pulse(lost, tuple(Stop(Token(token), position) for token, position in stops), upkeep)

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        if not settlements:
            return frozenset()
        args = settle_args(token, settlements, self._sizes.get(token), self._now())
        try:
            found = await self._pool.rows(_SETTLE, *args, write=True, timeout=60, use="settle")
        except OutcomeUnknown:
            found = await self._pool.rows(_SETTLE, *args, write=True, timeout=60, use="settle")
            if found[0][0] is None:
                # The first call may have ended the lease, or somebody else did: nobody can tell any more.
                raise
        # Units came free: whoever was passed over for want of them may run.
        freed = self._limited.get(token)
        if args[1] is None or found[0][0] is None:
            self._sizes.pop(token, None)
            self._limited.pop(token, None)
        if any(isinstance(s, Again) and s.due is None for _, s in settlements):
            self._bell.ring_all()
        elif freed:
            self._bell.ring(freed)
            self._bell.ring_all_soon()
        return rows.refused(settlements, found[0][0])

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        if not reports:
            return frozenset()
        args = report_args(token, reports)
        # Not repeated when the answer is lost: lines would stand twice in a log.
        found = await self._pool.rows(call("report", 8), *args, write=True)
        refused = found[0][0]
        return frozenset(position for position, _ in reports) if refused is None else frozenset(refused)

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        return await self._bell.wait(queues, timeout)

    # ── time ────────────────────────────────────────────────────────────────
    async def promote(self, limit: int = 1000) -> Promoted:
        found = await self._pool.repeatable(lambda: self._pool.rows(call("promote", 2), limit, self._now(), write=True))
        moved, queues, next_due, expired = found[0]
        if queues:
            self._bell.ring(queues)
        await self._fold()
        return Promoted(moved, next_due, expired)

    async def _fold(self) -> None:
        """Add the journal up now and then, at most a twentieth of the time: under an old snapshot it is full of dead rows."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        if begun < self._fold_after:
            return
        await self._pool.repeatable(lambda: self._pool.rows(call("fold", 0), write=True))
        self._fold_after = loop.time() + max(_FOLD_EVERY, 20 * (loop.time() - begun))

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        now = self._now()
        reaped = await self._pool.repeatable(
            lambda: self._pool.rows(call("reap", 4), worker, ttl, limit, now, write=True)
        )
        return [await self._orphan(row) for row in reaped]

    async def _orphan(self, reaped: Any) -> Orphan:
        held = await self._pool.rows(_HELD, reaped["token"], write=False)
        return Orphan(
            Token(reaped["token"]), rows.held(held), reaped["suspect"], WorkerId(reaped["worker"]), reaped["cause"]
        )

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        found = await self._pool.repeatable(
            lambda: self._pool.rows(call("abandon", 3), worker, text(cause), self._now(), write=True)
        )
        count: int = found[0][0]
        return count

    async def retire(self, worker: WorkerId) -> None:
        await self._pool.repeatable(lambda: self._pool.rows(_RETIRE, worker, write=True))

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        return await pruning.prune(self._pool, keep, limit, self._now(), progress)

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        return await pruning.expired_dead(self._pool, keep, limit, self._now())

    # ── the operator's moves ────────────────────────────────────────────────
    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        why = None if reason is None else text(reason)
        found = await self._pool.rows(call("cancel", 3), list(ids), why, self._now(), write=True, timeout=_LONG)
        answers = {row["id"]: CancelAnswer(row["answer"]) for row in found}
        return {id: answers[id] for id in dict.fromkeys(ids)}

    async def retry(self, ids: Sequence[JobId], *, afresh: bool = True) -> frozenset[JobId]:
        found = await self._pool.rows(call("retry", 2), list(ids), afresh, write=True, timeout=_LONG)
        self._bell.ring({row["queue"] for row in found})
        return frozenset(JobId(row["id"]) for row in found)

    async def delete(self, ids: Sequence[JobId], *, states: Collection[JobState] | None = None) -> frozenset[JobId]:
        takes = None if states is None else [str(state) for state in states]
        found = await self._pool.rows(call("delete", 2), list(ids), takes, write=True, timeout=_LONG)
        return frozenset(JobId(row["id"]) for row in found)

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        args = (kind, name, text(by), until, self._now())
        await self._pool.repeatable(lambda: self._pool.rows(call("pause", 5), *args, write=True))

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        await self._pool.repeatable(
            lambda: self._pool.rows("delete from headrace.pause where kind = $1 and name = $2", kind, name, write=True)
        )
        if kind == "queue":
            self._bell.ring((name,))
        elif kind == "tenant":
            self._bell.ring_all()

    async def pauses(self) -> list[Pause]:
        found = await self._pool.rows(
            "select kind, name, by, since, until from headrace.pause"
            " where until is null or until > coalesce($1, clock_timestamp()) order by kind, name",
            self._now(),
            write=False,
        )
        return [Pause(*row) for row in found]

    # ── limits ──────────────────────────────────────────────────────────────
    async def limits(self) -> dict[str, LimitRule]:
        found = await self._pool.rows("select * from headrace.limit_rule order by name", write=False)
        return {row["name"]: rows.rule(row) for row in found}

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        # Not repeated when the answer is lost, as `record`.
        args = (name, *limit_args(rule), expect)
        version: int | None = (await self._pool.rows(call("write_limit", 8), *args, write=True))[0][0]
        if version is not None:
            self._bell.ring_all()
        return version

    # ── records ─────────────────────────────────────────────────────────────
    async def records(self, kind: str) -> dict[str, Record]:
        found = await self._pool.rows(
            "select name, version, value from headrace.records where kind = $1 order by name", kind, write=False
        )
        return {row["name"]: Record(row["version"], row["value"]) for row in found}

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        # Not repeated when the answer is lost: the second answer would say that somebody else was first.
        found = await self._pool.rows(call("record", 4), kind, name, value, expect, write=True)
        version: int | None = found[0][0]
        return version

    # ── leases, the rare verb ───────────────────────────────────────────────
    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        found = await self._pool.repeatable(
            lambda: self._pool.rows(call("detach", 3), token, position, fresh, write=True)
        )
        detached: bool = found[0][0]
        if detached:
            # The old lease has one less, so it is not whole any more.
            self._sizes.pop(token, None)
            self._sizes[fresh] = 1
            if token in self._limited:
                self._limited[fresh] = self._limited[token]
        return detached
