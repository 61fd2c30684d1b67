"""Leases over HTTP: signed tokens, the jobs that were claimed through this server, and their settlement."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from math import inf
from time import monotonic
from typing import Any, Final, NewType, TypeVar
from uuid import UUID

import msgspec

from headrace.app import Headrace
from headrace.client.queue_guard import QueueGuard
from headrace.errors import StoreError
from headrace.model.job import Batch, Claimed, Job, JobId, JobState, split_id
from headrace.model.lease import Lease, Presence, Token, WorkerId, new_worker_id
from headrace.model.outcome import Outcome, Settlement
from headrace.policy.effective import effective, settlement
from headrace.policy.flow import Planner
from headrace.policy.history import end_of
from headrace.server import visibility
from headrace.server.auth import Principal
from headrace.server.handout import Handout, JournalSizes
from headrace.server.http.problems import Problem
from headrace.server.shared_secret import shared_secret
from headrace.server.waiting_claims import WaitingClaims
from headrace.store.contract import Store
from headrace.webhooks.deliver import DeliveryMaker, batches_of
from headrace.worker import outcome_of
from headrace.worker.attempt import ObservedAttempt, ResolvedTask
from headrace.worker.dead_alert import DeadAlertLog
from headrace.worker.executor import UnresolvedTask
from headrace.worker.history import HistoryWriter
from headrace.worker.janitor import Janitor
from headrace.worker.limit_feedback import LimitFeedback
from headrace.worker.open_queues import OpenNow
from headrace.worker.state import WorkerState

REMEMBERED: Final = 20_000
"""Claimed jobs that are kept in memory until they are settled. Others are read from the store."""
REMEMBERED_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of their arguments together."""
REPEATABLE: Final = 256
"""Claims whose answers are kept until the worker's next call."""
SEEN_EVERY: Final = 20.0
"""Seconds between two updates of a worker's presence in the store."""

_WIRE = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{64})", re.ASCII)
U = TypeVar("U", bound=UUID)
WireLease = NewType("WireLease", str)


class LeaseSigner:
    """Signs lease tokens for the principal that claimed them, so that no other principal can use them."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    async def load(cls, store: Store) -> LeaseSigner:
        """Open with the secret that all servers of a store share."""
        return cls(await shared_secret(store, "lease"))

    def seal(self, token: Token, principal: Principal) -> WireLease:
        """The token of a lease as the worker gets it."""
        return WireLease(f"{token.hex}.{self._sign(token.bytes, principal).hex()}")

    def read(self, text: str, principal: Principal) -> Token:
        """The store's token. Raises Problem 404 if it was not signed for this principal."""
        match = _WIRE.fullmatch(text)
        if match is None or not hmac.compare_digest(
            bytes.fromhex(match[2]), self._sign(bytes.fromhex(match[1]), principal)
        ):
            raise Problem(404, "not_found", "there is no such lease: send it as /v1/claim has given it")
        return Token(UUID(match[1]))

    def own(self, id: U, principal: Principal) -> U:
        """The stored form of a token or a worker's id that a bound principal's store chose.

        The ids of one bound principal can never name something of another. An unbound principal's ids stay unchanged.
        """
        if not principal.bound:
            return id
        return type(id)(bytes=self._sign(b"own" + id.bytes, principal)[:16], version=4)

    def _sign(self, data: bytes, principal: Principal) -> bytes:
        binding = msgspec.json.encode(
            [principal.tenant, None if principal.queues is None else sorted(principal.queues)]
        )
        return hmac.digest(self._secret, len(binding).to_bytes(4, "big") + binding + data, hashlib.sha256)


class _Remembered:
    """A lease that was claimed through this server and is not settled yet."""

    __slots__ = ("claimed_at", "jobs", "left", "size", "suspect")

    def __init__(self, lease: Lease) -> None:
        self.jobs: Sequence[Claimed] = lease.jobs
        self.suspect = lease.suspect
        self.claimed_at = monotonic()
        self.left = set(range(len(lease.jobs)))
        """Positions that are not settled."""
        self.size = sum(len(job.payload) + len(job.options or b"") for job in lease.jobs)


class Leases:
    """The server's functions for workers in any language."""

    def __init__(self, app: Headrace, store: Store, signer: LeaseSigner) -> None:
        self.signer = signer
        self.guard = QueueGuard(store, app.queues)
        self._store = store
        self._state = WorkerState(
            app.tasks,
            store,
            app.settings,
            id=new_worker_id(),
            queues=(),
            delivery_maker=DeliveryMaker(app.webhooks.declared),
        )
        self.claims = OpenNow(app.queues, self._state.watch.now).only(store)
        """The store for claims: without the queues that are outside their open hours."""
        self.room = WaitingClaims(self.claims)
        self._feedback = LimitFeedback(self._state, app.limits.declared, Planner((), {}), opened=self.room.poke)
        self._claimed: OrderedDict[Token, _Remembered] = OrderedDict()
        self._since: OrderedDict[Token, float] = OrderedDict()
        """When leases of other servers began, on the monotonic clock."""
        self._jobs = self._bytes = 0
        """Of those."""
        self._calls: OrderedDict[Token, asyncio.Task[Lease | None]] = OrderedDict()
        self._seen: OrderedDict[WorkerId, float] = OrderedDict()
        self.history = HistoryWriter(self._state)
        self.handout = Handout(store, app.hooks.large_results, self._state.name)
        self.journals = JournalSizes(store)

    @classmethod
    @asynccontextmanager
    async def open(cls, app: Headrace, store: Store, *, tidy: bool = True) -> AsyncGenerator[Leases, None]:
        """The server promotes, reaps and prunes unless disabled, because workers over HTTP do not."""
        leases = cls(app, store, await LeaseSigner.load(store))
        await leases._state.watch.set(store)
        janitor = Janitor(
            leases._state,
            work=leases.room.poke,
            alert_log=DeadAlertLog(leases._state, {}, ()),
            queues=app.queues,
        )
        if tidy:
            for service in janitor.services:
                service.start()
        leases._feedback.start()
        leases.history.start()
        try:
            yield leases
        finally:
            await janitor.stop()
            await leases._feedback.stop()
            await leases.history.stop()
            await leases.room.close()

    # ── claims that can be repeated ─────────────────────────────────────────
    async def once(self, token: Token, claim: Callable[[], Coroutine[Any, Any, Lease | None]]) -> Lease | None:
        """A worker repeats a claim whose answer was lost under the same token, and gets the same answer."""
        call = self._calls.get(token)
        if call is None:
            call = self._calls[token] = asyncio.create_task(claim())
            if len(self._calls) > REPEATABLE:
                self._calls.popitem(last=False)
        try:
            lease = await asyncio.shield(call)
        except BaseException:
            self._calls.pop(token, None)
            raise
        if lease is None:
            self._calls.pop(token, None)
        return lease

    def answered(self, *tokens: Token) -> None:
        """The worker has its lease, so it will not repeat the claim."""
        for token in tokens:
            self._calls.pop(token, None)

    # ── memory ──────────────────────────────────────────────────────────────
    def remember(self, lease: Lease, worker: str) -> None:
        """Log a claim, and remember the lease, so that its settlements need not read the jobs from the store."""
        if self._state.job_log.refresh():
            self._state.job_log.claimed(lease.jobs, worker)
        known = self._claimed[lease.token] = _Remembered(lease)
        self._jobs += len(known.jobs)
        self._bytes += known.size
        while len(self._claimed) > 1 and (self._jobs > REMEMBERED or self._bytes > REMEMBERED_BYTES):
            self.forget(next(iter(self._claimed)))

    def settled(self, token: Token, positions: Iterable[int]) -> None:
        """Forget these jobs, settled or refused. The lease is forgotten with its last job."""
        positions = list(positions)
        self.journals.forget(token, positions)
        known = self._claimed.get(token)
        if known is not None:
            known.left.difference_update(positions)
            if not known.left:
                self.forget(token)

    def forget(self, token: Token) -> None:
        if (known := self._claimed.pop(token, None)) is not None:
            self._jobs -= len(known.jobs)
            self._bytes -= known.size

    async def claimed(
        self, token: Token, named: Sequence[tuple[int, UUID]], principal: Principal
    ) -> list[Claimed | None]:
        """The claimed jobs of these (position, id) pairs. None: not under this lease, or settled."""
        known = self._claimed.get(token)
        if known is not None:
            jobs = known.jobs
            return [
                jobs[position] if 0 <= position < len(jobs) and jobs[position].id == id else None
                for position, id in named
            ]
        # They were claimed through another server, or before this one started.
        stored = await self._store.get([JobId(id) for _, id in named])
        self._date(token, stored)
        return [
            _as_claimed(job) if job is not None and principal.sees(job.queue, job.tenant) else None for job in stored
        ]

    def _date(self, token: Token, jobs: Sequence[Job | None]) -> None:
        """Note when a lease of another server began."""
        began = next((job.claimed_at for job in jobs if job is not None and job.claimed_at is not None), None)
        if began is not None:
            self._since[token] = monotonic() - (self._state.watch.now() - began.timestamp())
            while len(self._since) > REPEATABLE:
                self._since.popitem(last=False)

    # ── decisions, by the rules of the worker ───────────────────────────────
    async def unfit(self, lease: Lease) -> dict[int, Outcome]:
        """Jobs of a new lease that may not start any more, or not now, with their outcomes."""
        await self._feedback.look(lease)
        own = [effective(job, self._task(job).usual) for job in lease.jobs]
        if any(options.timed for options in own):
            await self._state.watch.set(self._store)
        now, paused = self._state.watch.now(), self._state.paused_now()
        outcomes: dict[int, Outcome] = {}
        for position, (job, options) in enumerate(zip(lease.jobs, own, strict=True)):
            outcome = outcome_of.expired(job, options, now, self._state.name)
            if outcome is None and (pause := paused.get(job.task)) is not None:
                outcome = outcome_of.paused(pause, now)
            if outcome is not None:
                outcomes[position] = outcome
        return outcomes

    def observe(self, token: Token, ended: Iterable[tuple[int, Claimed, Outcome]]) -> None:
        """Report these ends to the jobs' limits, as a worker does."""
        lease = self._claimed.get(token)
        claimed_at = self._since.get(token, monotonic()) if lease is None else lease.claimed_at
        for _, job, outcome in ended:
            self._feedback.saw(ObservedAttempt(job, self._task(job), claimed_at), outcome)

    def count(
        self, token: Token, ended: Iterable[tuple[int, Claimed, Outcome]], settlements: Iterable[tuple[int, Settlement]]
    ) -> None:
        """Count these ends for history. A worker begins with its jobs when it gets them, as far as the server knows."""
        lease, now = self._claimed.get(token), monotonic()
        started = self._since.get(token, 0.0) if lease is None else lease.claimed_at
        by_position = dict(settlements)
        for position, job, _ in ended:
            if (end := end_of(by_position[position])) is not None:
                self._state.tally.add(job, end, started=started, ended=now)

    def tell(
        self, token: Token, ended: Iterable[tuple[int, Claimed, Outcome]], settlements: Iterable[tuple[int, Settlement]]
    ) -> None:
        """Log these ends, as a worker does. A worker in another language may have no log that an operator reads."""
        lease, job_log = self._claimed.get(token), self._state.job_log
        started = self._since.get(token, 0.0) if lease is None else lease.claimed_at
        by_position = dict(settlements)
        shown = job_log.refresh()
        for position, job, outcome in ended:
            self._state.tell_failure(job, by_position[position])
            if shown:
                job_log.ended(job, outcome, started)

    async def decide(self, token: Token, ended: Sequence[tuple[int, Claimed, Outcome]]) -> list[tuple[int, Settlement]]:
        """What follows from these outcomes, by the tasks' rules or, for unknown tasks, the default rules."""
        own = [effective(job, self._task(job).usual) for _, job, _ in ended]
        if any(options.deadline is not None for options in own):
            await self._state.watch.set(self._store)
        lease = self._claimed.get(token)
        suspect, clock = lease is not None and lease.suspect, self._state.watch.now
        return [
            (
                position,
                settlement(
                    job, outcome, options, clock, suspect=suspect, advanced=self.journals.advanced(token, position)
                ),
            )
            for (position, job, outcome), options in zip(ended, own, strict=True)
        ]

    async def announce(
        self, ended: Sequence[tuple[int, Claimed, Outcome]], settlements: Sequence[tuple[int, Settlement]]
    ) -> None:
        """Enqueue the webhook deliveries of these ends, before they are settled."""
        news = [
            delivery
            for (_, job, _), (_, settlement) in zip(ended, settlements, strict=True)
            for delivery in self._state.delivery_maker.news(job, settlement)
        ]
        for batch in batches_of(news):
            await self._store.enqueue(batch)

    async def deliveries(self, batch: Batch, principal: Principal) -> Batch:
        """The deliveries that a worker of this principal may enqueue."""
        return await self._state.delivery_maker.remade(
            self._store, batch, lambda job: visibility.sees(principal, job), lambda queue: principal.sees(queue, None)
        )

    def _task(self, job: Claimed) -> ResolvedTask:
        return self._state.known(job.task) or UnresolvedTask(job.task)

    def timeout(self, job: Claimed) -> float | None:
        """Seconds that an attempt may take; None: no limit."""
        seconds = effective(job, self._task(job).usual).timeout
        return None if seconds == inf else seconds

    def secrets(self, job: Claimed) -> tuple[str, ...]:
        """The secrets to remove from a failure of this job."""
        return tuple(self._task(job).secrets(job))

    # ── presence ────────────────────────────────────────────────────────────
    def worker_id(self, principal: Principal, name: str) -> WorkerId:
        """The id of one worker of one principal, always the same."""
        digest = hashlib.blake2b(f"{principal.name}\0{name}".encode(errors="replace"), digest_size=16, key=b"worker")
        return WorkerId(UUID(bytes=digest.digest(), version=4))

    async def seen(self, presence: Presence) -> None:
        """Update a worker's presence in the store from time to time."""
        now = monotonic()
        if now < self._seen.get(presence.id, 0.0):
            return
        self._seen[presence.id] = now + SEEN_EVERY
        self._seen.move_to_end(presence.id)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        try:
            await self._store.heartbeat([], timedelta(seconds=SEEN_EVERY), presence)
        except StoreError:
            self._seen.pop(presence.id, None)  # The presence is for display only; the next call writes it again.

    def presence(
        self, principal: Principal, name: str, queues: Sequence[str], tasks: Sequence[str], slots: int
    ) -> Presence:
        return Presence(
            id=self.worker_id(principal, name),
            name=name,
            queues=tuple(queues),
            slots=slots,
            running=0,
            version="http",
            started_at=datetime.now(UTC),
            tasks=tuple(tasks),
        )


def _as_claimed(job: Job) -> Claimed | None:
    """The job as a claim returned it. None: it does not run."""
    if job.state is not JobState.RUNNING:
        return None
    batch, ord = split_id(job.id)
    return Claimed(
        batch=batch,
        ord=ord,
        attempt=job.attempt,
        failures=job.failures,
        crashes=job.crashes,
        task=job.task,
        payload=job.payload,
        options=job.options,
        queue=job.queue,
        priority=job.priority,
        tenant=job.tenant,
        enqueued_at=job.enqueued_at,
    )
