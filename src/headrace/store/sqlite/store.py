"""The SQLite store: every verb of the contract, each one hop to the writing or the reading thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from headrace.errors import Unavailable
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
from headrace.store.sqlite import user_transaction
from headrace.store.sqlite.blocking import BlockingEnqueue
from headrace.store.sqlite.engine import migrate as migrations
from headrace.store.sqlite.engine.address import Address
from headrace.store.sqlite.engine.check import check
from headrace.store.sqlite.engine.connection import Locked, not_ready
from headrace.store.sqlite.engine.files import Files
from headrace.store.sqlite.engine.thread import Reader, opened
from headrace.store.sqlite.engine.timekeeper import Timekeeper
from headrace.store.sqlite.engine.transaction import Tx
from headrace.store.sqlite.engine.wakeup import Bell, private_folder
from headrace.store.sqlite.engine.write_lock import WriteLock
from headrace.store.sqlite.engine.writer import Writer
from headrace.store.sqlite.rows import moment
from headrace.store.sqlite.tidy import Untidy, check_tidy, tidy, tidying
from headrace.store.sqlite.verbs.abandon import abandon, retire
from headrace.store.sqlite.verbs.ahead import ahead
from headrace.store.sqlite.verbs.cancel import cancel
from headrace.store.sqlite.verbs.claim import ClaimMemory, TooLarge, claim, nothing_to_claim
from headrace.store.sqlite.verbs.delete import delete
from headrace.store.sqlite.verbs.detach import detach
from headrace.store.sqlite.verbs.ended import Endings
from headrace.store.sqlite.verbs.enqueue import Prepared, enqueue
from headrace.store.sqlite.verbs.find import Search
from headrace.store.sqlite.verbs.gates import gates, groups, links, signal
from headrace.store.sqlite.verbs.get import followed, get
from headrace.store.sqlite.verbs.heartbeat import heartbeat
from headrace.store.sqlite.verbs.history import add_history, fold_history, read_history
from headrace.store.sqlite.verbs.lanes import Glance, Walk
from headrace.store.sqlite.verbs.limit import limit, limits
from headrace.store.sqlite.verbs.pause import pause, pauses, resume
from headrace.store.sqlite.verbs.promote import nothing_due, promote
from headrace.store.sqlite.verbs.prune import Pruning, expired_dead
from headrace.store.sqlite.verbs.reap import nothing_expired, reap
from headrace.store.sqlite.verbs.record import record, records
from headrace.store.sqlite.verbs.report import report
from headrace.store.sqlite.verbs.retry import retry
from headrace.store.sqlite.verbs.settle import settle
from headrace.store.sqlite.verbs.stats import Figures, workers
from headrace.store.sqlite.verbs.steps import add_steps, answer_wait, no_answer, read_steps
from headrace.store.sqlite.verbs.wait import Waiting

T = TypeVar("T")


class SqliteStore:
    """Jobs in one SQLite file, shared by any number of processes on one machine."""

    one_writer = True

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._address = Address.parse(url)
        self._files = Files(self._address)
        self._time = Timekeeper(clock)
        self._is_new = False
        self._claim_memory, self._glance, self._pruning = ClaimMemory(), Glance(), Pruning()
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._turn: WriteLock | None = None
        self._waiting: Waiting | None = None

    # ── life ────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        if self._writer is not None:
            return
        await self._connect()
        try:
            self._is_new = migrations.FIRST in await self.migrate()
            self._reader = Reader("headrace-sqlite-reader", self._address, self._files, self._time)
            await self._reader.start()
        except BaseException:
            await self.close()
            raise

    async def _connect(self) -> None:
        self._address.prepare()
        self._files = Files(self._address)
        folder = private_folder(self._address.path)
        bell = Bell(folder)
        self._turn = None if folder is None else WriteLock(folder)
        self._waiting = waiting = Waiting(bell)
        self._writer = Writer(self._address, self._files, self._time, bell, self._turn, waiting.hint, tidying)
        waiting.changes = self._writer.changes
        try:
            await self._writer.start()
        except BaseException:
            self._let_go()
            raise

    async def close(self) -> None:
        for thread in (self._reader, self._writer):
            if thread is not None and not await thread.close():
                self._turn = None  # the thread still waits for it, and ends with the process
        self._let_go()

    def _let_go(self) -> None:
        self._writer = self._reader = None
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None
        if (turn := self._turn) is not None:
            self._turn = None
            turn.close()

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        """Happens at `open`, too."""
        if self._writer is None:
            await self._connect()
            try:
                return await self.migrate(progress)
            finally:
                await self.close()
        try:
            return await self._write(
                lambda tx: migrations.migrate(tx, self._time, progress),
                look=lambda tx: [] if migrations.check(migrations.version(tx.cur)) else None,
            )
        except Locked as error:
            raise not_ready(self._address) from error

    async def check(self) -> list[Finding]:
        return await self._read(lambda tx: check(tx, self._address, is_new=self._is_new))

    async def now(self) -> datetime:
        if self._reader is not None and self._files.changed():
            await self._read(lambda _: self._files.compare())
        return moment(self._time.now())

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, batch: Batch) -> Enqueued:
        prepared = Prepared(batch)
        return await opened(self._writer).call(prepared.enqueue, prepare=prepared.pack)

    def blocking(self) -> BlockingEnqueue | None:
        if self._writer is None or self._waiting is None:
            return None
        return BlockingEnqueue(self._writer, self._waiting, self._time)

    async def claim(self, ask: Ask) -> Lease | None:
        if self._waiting is not None:
            self._waiting.looked(self._claim_memory.names.of(ask.queues))
        try:
            answer = await self._write(
                lambda tx: (claim(tx, ask, self._claim_memory),),
                look=lambda tx: (None,) if nothing_to_claim(tx, ask, self._claim_memory) else None,
            )
        except TooLarge as jobs:
            return await self.claim(replace(ask, limit=jobs.fitting))
        return answer[0]

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        return await self._write(lambda tx: heartbeat(tx, tokens, ttl, presence), first=True)

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        return await self._write(lambda tx: settle(tx, token, settlements))

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        return await self._write(lambda tx: report(tx, token, reports))

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        if self._waiting is None:
            raise Unavailable("the store is closed: open it first")
        names = self._claim_memory.names.of(queues)
        times = [at for others, at in self._claim_memory.opens.items() if not others.isdisjoint(names)]
        opens_in = (min(times) - self._time.now()) / 1_000_000 if times else None
        return await self._waiting.wait(names, timeout, opens_in)

    # ── time ────────────────────────────────────────────────────────────────
    @property
    def hears(self) -> bool:
        """Always: a waiting store looks at SQLite's change counter a few times a second."""
        return True

    async def promote(self, limit: int = 1000) -> Promoted:
        return await self._write(lambda tx: promote(tx, limit), look=nothing_due)

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        return await self._write(lambda tx: reap(tx, worker, ttl, limit), look=nothing_expired)

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        return await self._write(lambda tx: abandon(tx, worker, cause))

    async def retire(self, worker: WorkerId) -> None:
        await self._write(lambda tx: retire(tx, worker))

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        pruned = await self._write(lambda tx: self._pruning.prune(tx, keep, limit))
        if progress is not None:
            progress(pruned.jobs, pruned.jobs, "jobs")
        return pruned

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        return await self._read(lambda tx: expired_dead(tx, keep, limit))

    # ── looking ─────────────────────────────────────────────────────────────
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        return await self._read(lambda tx: get(tx, ids))

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        return await self._look(Search(where, before, limit).step)

    async def stats(self) -> Stats:
        return await self._look(Figures().step)

    async def workers(self) -> list[Presence]:
        return await self._read(workers)

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        return await self._in_steps(Endings(since, limit).step)

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        return await self._look(Walk(queues, limit, self._glance).step)

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        return (await self._look(lambda tx: (ahead(tx, id, limit),)))[0]

    # ── the operator's moves ────────────────────────────────────────────────
    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        return await self._write(lambda tx: cancel(tx, ids, reason))

    async def retry(self, ids: Sequence[JobId], *, afresh: bool = True) -> frozenset[JobId]:
        return await self._write(lambda tx: retry(tx, ids, afresh=afresh))

    async def delete(
        self, ids: Sequence[JobId], *, states: Collection[JobState] | None = None, ended_by: datetime | None = None
    ) -> frozenset[JobId]:
        return await self._write(lambda tx: delete(tx, ids, states, ended_by))

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        await self._write(lambda tx: pause(tx, kind, name, by, until))

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        await self._write(lambda tx: resume(tx, kind, name))

    async def pauses(self) -> list[Pause]:
        return await self._read(pauses)

    async def limits(self) -> dict[str, LimitRule]:
        return await self._read(limits)

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        return await self._write(lambda tx: limit(tx, name, rule, expect))

    async def records(self, kind: str) -> dict[str, Record]:
        return await self._read(lambda tx: records(tx, kind))

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        return await self._write(lambda tx: record(tx, kind, name, value, expect))

    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        return await self._write(lambda tx: detach(tx, token, position, fresh))

    # ── history, steps, gates ───────────────────────────────────────────────
    async def add_history(self, rollups: Sequence[Rollup]) -> None:
        await self._write(lambda tx: add_history(tx, rollups))

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
        return await self._read(lambda tx: read_history(tx, since, until, queue, task, after, limit))

    async def fold_history(self, gone: Sequence[RollupKey], rollups: Sequence[Rollup]) -> bool:
        return await self._write(lambda tx: fold_history(tx, gone, rollups))

    async def add_steps(self, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        return await self._write(lambda tx: add_steps(tx, token, steps))

    async def read_steps(self, id: JobId, token: Token | None = None) -> list[Step]:
        del token
        return await self._read(lambda tx: read_steps(tx, id))

    async def answer_wait(self, token: Token, position: int, wait: SignalWait) -> Answered | None:
        args = (token, position, wait)
        return await self._write(lambda tx: answer_wait(tx, *args), look=lambda tx: no_answer(tx, *args))

    async def signal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        return await self._write(lambda tx: signal(tx, gate, value, keep))

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        return await self._read(lambda tx: gates(tx, ids))

    async def groups(self, *, tenant: str | None = None, before: GateId | None = None, limit: int = 50) -> list[Gate]:
        return await self._read(lambda tx: groups(tx, tenant, before, limit))

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links:
        return await self._read(lambda tx: links(tx, id, after, limit))

    # ── inside the user's transaction ───────────────────────────────────────
    def followed_in(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        return self._in(tx, lambda t: followed(t, ids))

    async def afollowed_in(self, tx: object, ids: Sequence[UUID]) -> list[Predecessor | None]:
        return await self._ain(tx, lambda t: followed(t, ids))

    def enqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        return self._in(tx, lambda t: enqueue(t, batch))

    async def aenqueue_in(self, tx: object, batch: Batch) -> Enqueued:
        return await self._ain(tx, lambda t: enqueue(t, batch))

    def settle_in(self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        return self._in(tx, lambda t: settle(t, token, settlements))

    async def asettle_in(
        self, tx: object, token: Token, settlements: Sequence[tuple[int, Settlement]]
    ) -> frozenset[int]:
        return await self._ain(tx, lambda t: settle(t, token, settlements))

    def add_steps_in(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        return self._in(tx, lambda t: add_steps(t, token, steps))

    async def aadd_steps_in(self, tx: object, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        return await self._ain(tx, lambda t: add_steps(t, token, steps))

    def _in(self, tx: object, work: Callable[[Tx], T]) -> T:
        return user_transaction.run(tx, work, self._host)

    async def _ain(self, tx: object, work: Callable[[Tx], T]) -> T:
        return await user_transaction.arun(tx, work, self._host)

    @property
    def _host(self) -> user_transaction.Host:
        files = None if self._writer is None else self._files
        return user_transaction.Host(self._address, self._time, files, self._waiting)

    # ── the hops ────────────────────────────────────────────────────────────
    async def _write(
        self, work: Callable[[Tx], T], *, first: bool = False, look: Callable[[Tx], T | None] | None = None
    ) -> T:
        return await opened(self._writer).call(work, first=first, look=look)

    async def _read(self, work: Callable[[Tx], T]) -> T:
        return await opened(self._reader).call(work)

    async def _look(self, step: Callable[[Tx], T | None]) -> T:
        """The same for a look at tables that must not lack what was appended."""
        try:
            answer = await self._read(lambda tx: step(check_tidy(tx)))
        except Untidy:
            await self._write(tidy)
            answer = None
        return await self._in_steps(step) if answer is None else answer

    async def _in_steps(self, step: Callable[[Tx], T | None]) -> T:
        """Repeat a step until it answers. Other reads run in between, and a call that is cancelled takes no further one."""
        while (answer := await self._read(step)) is None:
            pass
        return answer
