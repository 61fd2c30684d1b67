"""The other verbs of workers: enqueue, heartbeat, settle, report, and what janitors do with time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.errors import IdempotencyConflict, OutcomeUnknown
from headrace.job import Batch, JobId
from headrace.lease import (
    MAX_LOG,
    Orphan,
    Presence,
    Pulse,
    Report,
    Stop,
    Token,
    WorkerId,
    new_token,
)
from headrace.outcome import Settlement
from headrace.store.redis import scripts
from headrace.store.redis.base import STEP, chunks
from headrace.store.redis.claiming import Claiming
from headrace.store.redis.connection import Reply
from headrace.store.redis.element import encode_run, header_of, lane_name
from headrace.store.redis.keys import LIMITS
from headrace.store.redis.parcel import (
    Runs,
    Told,
    by_queue,
    due_args,
    lock_args,
    microseconds,
    orphan_of,
)
from headrace.store.redis.records import presence_bytes, report_bytes, text_bytes
from headrace.store.redis.scripts import Script
from headrace.store.terms import Enqueued, Progress, Promoted, Pruned, Retention

pack = msgspec.msgpack.Encoder().encode

_MOST_HOMES: Final = 20_000
_REPORTS: Final = 100
"""Reports that one script takes."""
_WHOLE: Final = 2
"""A part of a lease that is settled whole, see `settle.lua`."""


class Working(Claiming):
    """See the contract."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._doubtful: set[Token] = set()
        """Leases with a settlement that was sent and not answered."""
        self._tidied: dict[str, Reply] = {}
        """How far `_tidy` has come."""
        self._homes: dict[int, str] = {}
        """The queue of batches enqueued here, to look there first."""

    # ── enqueue ─────────────────────────────────────────────────────────────

    async def enqueue(self, batch: Batch) -> Enqueued:
        if not batch.jobs:
            return Enqueued({})
        spread = by_queue(batch)
        await self._register(spread)
        now = await self._now_us()
        existing: dict[int, JobId] = {}
        for queues in self._together(spread):
            keys = self._keys.of(*queues)
            script, args = self._enqueue_call(batch, queues, now)
            answer: Reply = await self._wire.run(script, keys, *args)
            ids = [(int(ord), JobId(UUID(bytes=id))) for ord, id in zip(answer[1::2], answer[2::2], strict=True)]
            if answer[0] == b"conflict":
                ord, known = ids[0]
                job = batch.jobs[ord]
                raise IdempotencyConflict(job.task, job.key.name if job.key else "", known)
            existing.update(ids)
            await self._confirmed(keys[0])
        if len(self._homes) > _MOST_HOMES:
            self._homes.clear()
        self._homes[batch.id.int] = next(iter(spread))
        return Enqueued(existing)

    def _enqueue_call(self, batch: Batch, queues: Runs, now: int) -> tuple[Script, tuple[Any, ...]]:
        prefix, jobs = batch.id.bytes[:14], batch.jobs
        keyed: list[tuple[Any, ...]] = []
        locks: list[tuple[Any, ...]] = []
        plan: list[list[Any]] = []
        elements: list[bytes] = []
        names: dict[int, str] = {}
        for number, (queue, runs) in enumerate(queues.items(), 1):
            segments: list[Any] = []
            for low, high in runs:
                first = jobs[low]
                lane = first.lane
                name = names.get(id(lane))
                if name is None:
                    name = names[id(lane)] = lane_name(lane)
                segments += (name, low, high, *due_args(first.due))
                elements += encode_run(prefix, jobs, low, high, now)
                if first.key is not None:
                    ttl = microseconds(first.key.ttl)
                    # By a test's clock the server must not forget by its own.
                    keep = 0 if self._clock is not None else max(1, -(-ttl // 1000))
                    key = self._keys.idempotency(queue, first.task, first.key.name)
                    keyed.append((low, key, first.key.digest.hex(), ttl, keep))
                if first.unique is not None:
                    locks.append(lock_args(low, number, first, first.unique))
            plan.append(segments)
        # The first of a batch makes the key, whichever queue it goes to.
        keyed.sort(key=lambda one: one[0])
        locks.sort(key=lambda one: one[0])
        said = [[word for one in keyed for word in one], [word for one in locks for word in one], *plan]
        script = scripts.ENQUEUE_LOCKED if locks else scripts.ENQUEUE
        return script, (self._given, prefix, pack(said), *elements)

    def _together(self, spread: Runs) -> list[Runs]:
        """Queues that one script can fill: all on one server, each by itself on a cluster."""
        return [{queue: runs} for queue, runs in spread.items()] if self._keys.clustered else [spread]

    # ── heartbeat ───────────────────────────────────────────────────────────

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        if presence is not None:
            record = presence_bytes(await self._now_us(), presence)
            await self._wire.command(self._keys.workers, "HSET", self._keys.workers, presence.id.bytes, record)
        alive: set[Token] = set()
        stops: list[Stop] = []
        for queue, theirs in (await self._by_home(dict.fromkeys(tokens))).items():
            args = (self._given, microseconds(ttl), *(token.hex for token in theirs))
            living: list[int]
            stop: list[int]
            living, stop = await self._run(scripts.HEARTBEAT, queue, *args)
            alive.update(token for token, lives in zip(theirs, living, strict=True) if lives)
            stops += [Stop(theirs[at], position) for at, position in zip(stop[::2], stop[1::2], strict=True)]
        lost = frozenset(tokens) - alive
        for token in lost:
            self._leases.pop(token, None)
        return Pulse(lost, tuple(stops))

    async def _by_home(self, tokens: Iterable[Token]) -> dict[str, list[Token]]:
        """Tokens by the queues where they may be."""
        found: dict[str, list[Token]] = {}
        everywhere: list[str] | None = None
        for token in tokens:
            homes: Sequence[str] | None = self._leases.get(token)
            if homes is None:
                everywhere = homes = everywhere if everywhere is not None else await self._queues()
            for queue in homes:
                found.setdefault(queue, []).append(token)
        return found

    # ── settle ──────────────────────────────────────────────────────────────

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        told = Told(settlements)
        if not told.positions:
            return told.impossible
        homes = self._leases.get(token)
        accepted: set[int] = set()
        states: dict[str, int] = {}
        for queue in homes if homes is not None else await self._queues():
            for args, positions in told.calls():
                answer = await self._settle_in(queue, token, args)
                if answer == -1:
                    break
                accepted |= positions.difference(answer[1:])
                states[queue] = answer[0]
        await self._end_if_over(token, states)
        return told.impossible | (told.positions - accepted)

    async def _end_if_over(self, token: Token, states: dict[str, int]) -> None:
        """A lease that spans queues ends when the last of its parts is settled."""
        if not states or not all(states.values()):
            return
        for queue, state in states.items():
            if state == _WHOLE:
                await self._run(scripts.SETTLE, queue, self._given, token.hex, 2, b"", 0, 0)
        self._leases.pop(token, None)

    async def _settle_in(self, queue: str, token: Token, args: list[Any]) -> Reply:
        """A call whose answer was lost is repeated, and says so: the lease may be over because of it."""
        keys, words = self._keys.of(queue), (self._given, token.hex)
        try:
            answer = await self._wire.run(
                scripts.SETTLE, keys, *words, int(token in self._doubtful), *args, repeat=False
            )
        except OutcomeUnknown:
            # Should this fail, too, the caller's own repetition counts as one.
            self._doubtful.add(token)
            answer = await self._wire.run(scripts.SETTLE, keys, *words, 1, *args, repeat=False)
        self._doubtful.discard(token)
        await self._confirmed(keys[0])
        return answer

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        positions = frozenset(position for position, _ in reports)
        refused = positions
        homes = self._leases.get(token)
        for queue in (homes if homes is not None else await self._queues()) if reports else ():
            for some in chunks(reports, _REPORTS):
                said = [report_bytes(position, report) for position, report in some]
                answer = await self._run(scripts.REPORT, queue, token.hex, MAX_LOG, *said)
                if answer == -1:
                    break
                refused -= {position for position, _ in some}.difference(answer)
        return refused

    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        known = self._leases.get(token)
        homes = known if known is not None else await self._queues()
        for queue in homes:
            args = (self._given, token.hex, position, fresh.hex)
            if await self._run(scripts.DETACH, queue, *args):
                self._leases[fresh] = (queue,)
                if len(homes) > 1:
                    await self._end_if_over(token, await self._states(token, homes))
                return True
        return False

    async def _states(self, token: Token, queues: Sequence[str]) -> dict[str, int]:
        """How far the parts of a lease are settled."""
        answers = await self._run_each(scripts.SETTLE, queues, self._given, token.hex, 0, b"", 0, 0)
        return {queue: answer[0] for queue, answer in zip(queues, answers, strict=True) if answer != -1}

    # ── time ────────────────────────────────────────────────────────────────

    async def promote(self, limit: int = 1000) -> Promoted:
        queues = await self._queues()
        moved = 0
        waits: dict[str, int] = {}
        asked: list[str] = queues
        while asked:
            share = min(STEP, (limit - moved) // len(asked))
            answers = await self._run_each(scripts.PROMOTE, asked, self._given, share)
            waits.update((queue, int(answer[1])) for queue, answer in zip(asked, answers, strict=True))
            moved += sum(int(answer[0]) for answer in answers)
            asked = [queue for queue in asked if waits[queue] == 0][: limit - moved]
        due = [wait for wait in waits.values() if wait >= 0]
        return Promoted(moved, timedelta(microseconds=min(due)) if due else None)

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        orphans: list[Orphan] = []
        queues = await self._queues()
        waiting = queues[::-1]
        while waiting and len(orphans) < limit:
            queue = waiting[-1]
            fresh = new_token()
            args = (self._given, worker.hex, microseconds(ttl), fresh.hex)
            answer = await self._run(scripts.REAP, queue, *args, "")
            if not answer:
                waiting.pop()
                continue
            parts = [(queue, answer)]
            token, *_, spans = header_of(answer[0])[:6]
            if spans:
                others = [other for other in queues if other != queue]
                answers = await self._run_each(scripts.REAP, others, *args, token)
                parts += [(other, part) for other, part in zip(others, answers, strict=True) if part]
            orphan = orphan_of(fresh, parts)
            self._leases[fresh] = tuple(queue for queue, _ in parts)
            if orphan.jobs:
                orphans.append(orphan)
            else:
                # Whoever settled the last part of it did not come to end it.
                await self._end_if_over(fresh, await self._states(fresh, self._leases[fresh]))
        return orphans

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        theirs: set[bytes] = set()
        for queue in await self._queues():
            key = self._keys.leases(queue)
            numbers = await self._wire.command(key, "ZRANGE", key, 0, -1)
            for some in chunks(numbers, STEP):
                theirs.update(
                    await self._run(scripts.ABANDON, queue, self._given, worker.hex, text_bytes(cause), *some)
                )
        return len(theirs)

    async def retire(self, worker: WorkerId) -> None:
        await self._wire.command(self._keys.workers, "HDEL", self._keys.workers, worker.bytes)

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        dropped, more = 0, False
        for queue in await self._queues():
            while True:
                args = (self._given, microseconds(keep.done), microseconds(keep.dead_in(queue)), limit - dropped)
                gone, rest = await self._run(scripts.PRUNE, queue, *args)
                dropped += gone
                if progress is not None:
                    progress(dropped, limit, "jobs")
                if not rest or dropped >= limit:
                    more = more or bool(rest)
                    break
        await self._tidy()
        return Pruned(dropped, more)

    async def _tidy(self) -> None:
        """Some of what lies beside the jobs, more with the next call."""
        for queue in await self._queues() if self._keys.clustered else [LIMITS]:
            at = self._tidied.get(queue, ("0", "0"))
            self._tidied[queue] = await self._run(scripts.TIDY, queue, self._given, *at)
