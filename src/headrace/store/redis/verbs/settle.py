"""The other verbs of workers: enqueue, heartbeat, settle and report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.errors import HeadraceError, IdempotencyConflict, OutcomeUnknown, StoreError, StoreFull
from headrace.model.job import Batch, JobId
from headrace.model.lease import MAX_LOG, Presence, Pulse, Report, Stop, Token
from headrace.model.outcome import Settlement
from headrace.model.records import Enqueued
from headrace.store.redis import scripts
from headrace.store.redis.asking import ONE_NODE
from headrace.store.redis.connection import Reply
from headrace.store.redis.element import encode_run, lane_name
from headrace.store.redis.parcel import (
    Runs,
    Told,
    all_done,
    by_queue,
    done_args,
    due_args,
    lock_args,
    microseconds,
)
from headrace.store.redis.records import presence_bytes, report_bytes, text_bytes
from headrace.store.redis.scripts import Script
from headrace.store.redis.verbs.base import chunks
from headrace.store.redis.verbs.claim import Claiming

pack = msgspec.msgpack.Encoder().encode

_MOST_HOMES: Final = 20_000
_REPORTS: Final = 100
"""Reports that one script takes."""
_WHOLE: Final = 2
"""A part of a lease that is settled whole, see `settle.lua`."""


_NAMED: Final = 60 * 86_400
"""Seconds for which a worker's name is kept after it was written last."""
_NAMED_AGAIN: Final = 86_400
_MOST_NAMED: Final = 10_000
_SHORTEST: Final = 1.0
"""Seconds that a heartbeat waits at least, whatever the lease."""


class Working(Claiming):
    """See the contract."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._doubtful: set[Token] = set()
        """Leases with a settlement that was sent and not answered."""
        self._named: dict[UUID, float] = {}
        """When a worker's name is to be written again."""
        self._homes: dict[int, str] = {}
        """The queue of batches enqueued here, to look there first."""
        self._unheard: dict[Token, float] = {}
        """Since when a node that has a part of a lease does not answer to its heartbeat."""
        self._given_up: set[Token] = set()
        """Leases that have run out on such a node: what cannot be settled there is refused, not tried for ever."""

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
        alive: set[Token] = set()
        stops: list[Stop] = []
        homes = await self._by_home(dict.fromkeys(tokens))
        words = {queue: [token.hex for token in theirs] for queue, theirs in homes.items()}
        calls = {queue: (self._given, microseconds(ttl), *said) for queue, said in words.items()}
        trouble: StoreError | None = None
        try:
            answers = await self._ask_by(scripts.HEARTBEAT, calls, within=max(_SHORTEST, ttl.total_seconds() / 4))
        except ONE_NODE as error:
            if not self._keys.clustered:
                raise
            answers, trouble = {}, error
            # Should no node answer at all, this raises: then leases are worth holding on to.
            await self._wire.time(self._keys.queues)
        for queue, answer in answers.items():
            living: list[int]
            stop: list[int]
            (living, stop), theirs = answer, homes[queue]
            alive.update(token for token, lives in zip(theirs, living, strict=True) if lives)
            stops += [Stop(theirs[at], position) for at, position in zip(stop[::2], stop[1::2], strict=True)]
        unheard = {token for queue, theirs in homes.items() if queue not in answers for token in theirs}
        lost = frozenset(tokens) - alive - unheard | self._run_out(tokens, alive, unheard, ttl)
        if trouble is not None and not lost:
            raise trouble
        for token in lost:
            self._leases.pop(token, None)
        if presence is not None:
            await self._present(presence, renewed=bool(tokens))
        return Pulse(lost, tuple(stops))

    def _run_out(
        self, tokens: Sequence[Token], alive: set[Token], unheard: set[Token], ttl: timedelta
    ) -> frozenset[Token]:
        """Leases that a node had a part of which has not answered for as long as they last: they have run out there."""
        if not unheard:
            for token in self._unheard.keys() & set(tokens):
                del self._unheard[token]
            return frozenset()
        now = asyncio.get_running_loop().time()
        # One that is not known to have jobs there, and lives elsewhere, is well.
        ill = {token for token in unheard if token in self._leases or token not in alive}
        for token in tokens:
            if token in ill:
                self._unheard.setdefault(token, now)
            else:
                self._unheard.pop(token, None)
        gone = frozenset(token for token in ill if now - self._unheard[token] >= ttl.total_seconds())
        if len(self._given_up) > _MOST_HOMES:
            self._given_up.clear()
            self._unheard.clear()
        self._given_up |= gone
        return gone

    async def _present(self, presence: Presence, *, renewed: bool) -> None:
        """Who is there. Only who has no leases hears that it could not be said: what was renewed is renewed."""
        try:
            record = presence_bytes(await self._now_us(), presence)
            await self._wire.run(scripts.PRESENCE, (self._keys.workers,), presence.id.bytes, record)
            if monotonic() >= self._named.get(presence.id, 0.0):
                key = self._keys.name(presence.id)
                # A full server says the worker's name later.
                with suppress(StoreFull):
                    await self._wire.command(key, "SET", key, text_bytes(presence.name), "EX", _NAMED)
                if len(self._named) >= _MOST_NAMED:
                    self._named.clear()
                self._named[presence.id] = monotonic() + _NAMED_AGAIN
        except StoreError:
            if not renewed:
                raise

    async def _by_home(self, tokens: Iterable[Token]) -> dict[str, list[Token]]:
        """Tokens by the queues where they may be."""
        found: dict[str, list[Token]] = {}
        strange: list[Token] = []
        for token in tokens:
            if (homes := self._leases.get(token)) is None:
                strange.append(token)
            for queue in homes or ():
                found.setdefault(queue, []).append(token)
        for queue, theirs in (await self._holders(strange)).items() if strange else ():
            found.setdefault(queue, []).extend(theirs)
        return found

    async def _holders(self, tokens: Sequence[Token]) -> dict[str, list[Token]]:
        """Of leases from elsewhere: the queues that have parts of them. All queues where that cannot be told."""
        queues = await self._queues()
        known, silent = await self._survey(queues, "tokens", *(token.hex for token in tokens))
        if silent is not None or not self._doubtful.isdisjoint(tokens):
            # A node that is down may have a part, and of one that is over the token is in no lease.
            return {queue: list(tokens) for queue in queues}
        return {queue: [tokens[int(number)] for number in numbers] for queue, numbers in known.items()}

    async def _homes_of(self, token: Token) -> Sequence[str]:
        """The queues that may have a part of this lease."""
        known = self._leases.get(token)
        return known if known is not None else list(await self._holders([token]))

    # ── settle ──────────────────────────────────────────────────────────────

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        try:
            refused = await self._settle(token, settlements)
        except HeadraceError:
            # It may be over by what was sent: the caller's own repetition must not be taken for a late one.
            self._doubtful.add(token)
            raise
        self._doubtful.discard(token)
        return refused

    async def _settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        homes = self._leases.get(token)
        if homes is not None and len(homes) == 1 and all_done(settlements):
            return await self._settle_done(homes[0], token, len(settlements))
        told = Told(settlements)
        if not told.positions:
            return told.impossible
        accepted: set[int] = set()
        states: dict[str, int] = {}
        round = self._round()
        for queue in homes if homes is not None else await self._homes_of(token):
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                for args, positions in told.calls():
                    answer = await self._settle_in(queue, token, args)
                    if answer == -1:
                        break
                    accepted |= positions.difference(answer[1:])
                    states[queue] = answer[0]
        refused = told.positions - accepted
        round.end(needs_all=bool(refused) and token not in self._given_up)
        if round.complete:
            await self._end_if_over(token, states)
        return told.impossible | refused

    async def _settle_done(self, queue: str, token: Token, count: int) -> frozenset[int]:
        """The common case, without a set of positions: those cost more than everything else here."""
        answer = await self._settle_in(queue, token, done_args(count))
        if answer == -1:
            return frozenset(range(count))
        await self._end_if_over(token, {queue: answer[0]})
        return frozenset(answer[1:])

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
            answer = await self._wire.run(scripts.SETTLE, keys, *words, 1, *args, repeat=False)
        await self._confirmed(keys[0])
        return answer

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        positions = frozenset(position for position, _ in reports)
        refused = positions
        round = self._round()
        for queue in await self._homes_of(token) if reports else ():
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                for some in chunks(reports, _REPORTS):
                    said = [report_bytes(position, report) for position, report in some]
                    answer = await self._run(scripts.REPORT, queue, token.hex, MAX_LOG, *said)
                    if answer == -1:
                        break
                    refused -= {position for position, _ in some}.difference(answer)
        round.end(needs_all=bool(refused))
        return refused

    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        # A repeated call may find the job moved already, under the fresh token.
        homes = self._leases.get(token) or list(await self._holders([token, fresh]))
        round = self._round()
        detached = False
        for queue in homes:
            if await round.passes_over(queue):
                continue
            async with round.asking(queue):
                detached = bool(await self._run(scripts.DETACH, queue, self._given, token.hex, position, fresh.hex))
            if detached:
                self._leases[fresh] = (queue,)
                if len(homes) > 1:
                    with suppress(*ONE_NODE):  # done is done; whoever settles the last part ends it, or it runs out
                        await self._end_if_over(token, await self._states(token, homes))
                return True
        round.end(needs_all=True)
        return False

    async def _states(self, token: Token, queues: Sequence[str]) -> dict[str, int]:
        """How far the parts of a lease are settled."""
        answers = await self._run_each(scripts.SETTLE, queues, self._given, token.hex, 0, b"", 0, 0)
        return {queue: answer[0] for queue, answer in zip(queues, answers, strict=True) if answer != -1}
