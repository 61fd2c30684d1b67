"""The store over HTTP, for `store/http`: what each token may do and see. `verbs.py` has the endpoints.

A token that is bound to a tenant or to queues sees only those. It does not see what all tenants share (figures, pauses,
limits, schedules, other workers). The server itself promotes, reaps and prunes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from headrace.errors import IdempotencyConflict
from headrace.model.job import Job, JobId, JobState
from headrace.model.lane import Ahead, LaneView, check_key
from headrace.model.lease import MAX_LEASE, ORDERS, Ask, Lease, Orphan, Presence, Pulse, Stop, Token, WorkerId
from headrace.model.records import (
    CancelAnswer,
    Ending,
    Filter,
    Finding,
    LimitRule,
    Page,
    Pause,
    PauseKind,
    Promoted,
    Pruned,
    Record,
    Retention,
    Stats,
)
from headrace.model.scope import Scope
from headrace.model.step import Step
from headrace.operate.audit import chosen
from headrace.operate.children import cancel_awaited
from headrace.operate.dead import dropped
from headrace.operate.schedules import KIND as SCHEDULES
from headrace.operate.tokens import KIND as TOKENS
from headrace.server import explain_visibility, visibility
from headrace.server.admission import admit, given_key
from headrace.server.auth import LOCAL
from headrace.server.http.problems import Problem, missing_scope, not_found
from headrace.server.remote_store import audit as store_audit
from headrace.server.remote_store import checks, limit_reports, schedule_records
from headrace.server.remote_store.history import not_yours
from headrace.server.remote_store.links import LinkCalls
from headrace.server.remote_store.shown import shown, shown_schedule, shown_steps
from headrace.server.shared_secret import KIND as SECRET
from headrace.store.audit import DAYS as AUDIT
from headrace.store.http import wire
from headrace.task import job_checks
from headrace.webhooks.deliver import all_deliveries, batches_of

HARMLESS = frozenset({SCHEDULES})
"""Kinds of records that a principal without `admin` may read and write."""


class Calls(LinkCalls):
    """The store as one principal may use it: one method per verb, with the arguments of the wire."""

    # ── life ────────────────────────────────────────────────────────────────
    async def hello(self) -> wire.Hello:
        return wire.Hello(wire.VERSION, self._service.settings.tidy)

    async def check(self) -> list[Finding]:
        self._refuse_bound()
        return await self._store.check()

    async def now(self) -> datetime:
        return await self._store.now()

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, packed: wire.WireBatch) -> dict[int, UUID]:
        checks.check_lanes(packed.lanes)
        batch = wire.read_batch(packed)
        checks.check_batch(batch)
        if all_deliveries(batch):
            # A worker enqueues webhook deliveries for its jobs' ends, even with the scope `work` only. The server makes
            # them again from the stored jobs, so that it never signs a caller's text.
            batch = await self._service.leases.deliveries(batch, self._who)
            for part in batches_of(batch.jobs):
                await self._store.enqueue(part)
            return {}
        self._must(Scope.ENQUEUE)
        await self._check_links(batch)
        batch = replace(batch, jobs=await admit(self._service, self._who, batch.jobs))
        guard = self._service.leases.guard
        if guard.bounds:
            await guard.admit(batch.jobs)
        try:
            existing: dict[int, UUID] = dict((await self._store.enqueue(batch)).existing)
        except IdempotencyConflict as error:
            await self._reveal([error.existing], error.code, "a key of these jobs was used for another job before")
            raise IdempotencyConflict(error.task, given_key(self._who, error.key), error.existing) from None
        if existing:
            await self._reveal(
                existing.values(), "unique_conflict", "an existing job has the same key or lock as one of these"
            )
        return existing

    async def claim(self, ask: Ask) -> Lease | None:
        who = self._who
        checks.check_ask(ask)
        self._see_queues(ask.queues)
        for band in ask.bands:
            self._see_queues(band.queues)
        ask = replace(ask, limit=checks.bounded(ask.limit), ttl=checks.lease_time(ask.ttl))
        own = ask
        if who.bound:
            tenant = ask.tenant if who.tenant is None else who.tenant
            own = replace(ask, worker=self._own(ask.worker), token=self._own(ask.token), tenant=tenant)
        lease = await self._service.leases.once(own.token, lambda: self._service.leases.claims.claim(own))
        return lease if lease is None or own is ask else replace(lease, token=ask.token)

    async def heartbeat(self, tokens: list[Token], ttl: timedelta, presence: Presence | None) -> Pulse:
        ttl = checks.lease_time(ttl)
        if presence is not None:
            checks.check_presence(presence)
        self._service.leases.answered(*(self._own(token) for token in tokens))
        if not self._who.bound:
            if presence is not None and presence.upkeep is not None:
                # Workers of other tokens keep their places, whatever this one asks for.
                presence = replace(presence, upkeep=f"{self._who.name}:{presence.upkeep}")
            return await self._store.heartbeat(tokens, ttl, presence)
        if presence is not None:
            self._see_queues(presence.queues)
            # The upkeep concerns every tenant and queue: a worker that sees only some does none.
            presence = replace(presence, id=self._own(presence.id), upkeep=None)
        theirs = {self._own(token): token for token in tokens}
        pulse = await self._store.heartbeat(list(theirs), ttl, presence)
        stops = tuple(Stop(theirs[stop.token], stop.position) for stop in pulse.stops)
        return Pulse(frozenset(theirs[token] for token in pulse.lost), stops, now=pulse.now, order=pulse.order)

    async def settle(self, token: Token, packed: wire.Positions) -> frozenset[int]:
        settlements = [(position, wire.read_settlement(data)) for position, data in packed if 0 <= position < MAX_LEASE]
        for _, settlement in settlements:
            checks.check_settlement(settlement)
            await self._check_waits(settlement)
        never_had = {position for position, _ in packed if not 0 <= position < MAX_LEASE}
        own = self._own(token)
        refused = await self._store.settle(own, settlements)
        self._service.leases.answered(own)
        return refused | never_had

    async def report(self, token: Token, reports: wire.Reports) -> frozenset[int]:
        never_had = {position for position, _ in reports if not 0 <= position < MAX_LEASE}
        known = [report for report in reports if report[0] not in never_had]
        for _, report in known:
            checks.check_report(report)
        return await self._store.report(self._own(token), known) | never_had

    async def wait(self, queues: list[str], timeout: float) -> bool:
        checks.check_queues(queues)
        self._see_queues(queues)
        heard = asyncio.create_task(self._store.wait(queues, min(max(timeout, 0.0), wire.LONGEST_WAIT)))
        # No call waits while the server stops.
        ending = asyncio.create_task(self._service.ending.wait())
        try:
            await asyncio.wait({heard, ending}, return_when=asyncio.FIRST_COMPLETED)
            return await heard if heard.done() else False
        finally:
            heard.cancel()
            ending.cancel()
            await asyncio.wait({heard, ending})

    # ── time ────────────────────────────────────────────────────────────────
    async def promote(self, limit: int) -> Promoted:
        return Promoted(0, None) if self._who.bound else await self._store.promote(checks.bounded(limit))

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int) -> list[Orphan]:
        return [] if self._who.bound else await self._store.reap(worker, checks.lease_time(ttl), checks.bounded(limit))

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        return await self._store.abandon(self._own(worker), cause)

    async def retire(self, worker: WorkerId) -> None:
        await self._store.retire(self._own(worker))

    async def prune(self, keep: Retention, limit: int) -> Pruned:
        if self._who.bound or not self._who.may(Scope.OPERATE):
            return Pruned(0, more=False)  # The server prunes by itself, by its app's retention.
        checks.check_retention(keep)
        pruned = await self._store.prune(keep, checks.bounded(limit))
        await self._did(store_audit.pruning(keep, self._service.app.settings, pruned.jobs))
        return pruned

    async def expired_dead(self, keep: Retention, limit: int) -> list[JobId]:
        if self._who.bound or not (self._who.may(Scope.OPERATE) and self._who.may(Scope.READ)):
            return []  # As with prune. A caller needs both scopes to read and delete.
        checks.check_retention(keep)
        return await self._store.expired_dead(keep, checks.bounded(limit))

    # ── looking ─────────────────────────────────────────────────────────────
    async def get(self, ids: list[JobId]) -> list[Job | None]:
        checks.check_ids(ids)
        jobs = await self._store.get(ids)
        return [self._shown(job) if job is not None and visibility.sees(self._who, job) else None for job in jobs]

    async def find(self, where: Filter, before: JobId | None, limit: int) -> Page:
        checks.check_filter(where)
        page = await visibility.find(self._service, self._who, where, before=before, limit=checks.bounded(limit))
        return replace(page, jobs=[self._shown(job) for job in page.jobs])

    async def stats(self) -> Stats:
        return Stats(visibility.stats(self._who, await self._service.figures.stats()))

    async def workers(self) -> list[Presence]:
        return visibility.workers(self._who, await self._service.figures.workers())

    async def ended(self, since: datetime, limit: int) -> list[Ending]:
        job_checks.check_time(since)
        endings = await self._store.ended(since, checks.bounded(limit))
        return [ending for ending in endings if self._who.sees(ending.queue, ending.tenant)]

    async def lanes(self, queues: list[str], limit: int) -> list[LaneView]:
        checks.check_queues(queues)
        self._see_queues(queues)
        lanes = await self._store.lanes(queues, checks.bounded(limit))
        return [lane for lane in lanes if self._who.sees(lane.queue, lane.tenant)]

    async def ahead(self, id: JobId, limit: int) -> Ahead | None:
        if not await self._visible([id]):
            return None
        return await explain_visibility.ahead(self._store, self._who, id, checks.bounded(limit))

    # ── the operator's moves ────────────────────────────────────────────────
    async def cancel(self, ids: list[JobId], reason: str | None) -> dict[JobId, CancelAnswer]:
        checks.check_ids(ids)
        answers = await self._store.cancel(await self._visible(ids), reason)
        await cancel_awaited(self._store, answers)
        moved = sum(answer not in {CancelAnswer.UNKNOWN, CancelAnswer.FINISHED} for answer in answers.values())
        await self._note("jobs.cancel", chosen(ids), moved)
        return {id: answers.get(id, CancelAnswer.UNKNOWN) for id in ids}

    async def retry(self, ids: list[JobId], afresh: bool) -> frozenset[JobId]:
        checks.check_ids(ids)
        moved = await self._store.retry(await self._visible(ids), afresh=afresh)
        if afresh:  # Else the call comes from the end of a pause.
            await self._note("jobs.retry", chosen(ids), len(moved))
        return moved

    async def delete(
        self, ids: list[JobId], states: frozenset[JobState] | None, ended_by: datetime | None
    ) -> frozenset[JobId]:
        checks.check_ids(ids)
        seen = await self._visible(ids)
        gone = await dropped.delete(self._store, seen, by=self._who.name, states=states, ended_by=ended_by)
        await self._note("jobs.delete", chosen(ids), len(gone))
        return gone

    async def drop(
        self, ids: list[JobId], event: wire.DropEvent, reason: str, ended_by: datetime | None
    ) -> frozenset[JobId]:
        checks.check_ids(ids)
        seen, reason = await self._visible(ids), checks.short(reason)
        gone = await dropped.drop_dead(self._store, seen, event, reason=reason, by=self._who.name, ended_by=ended_by)
        await self._note("jobs.delete", chosen(ids), len(gone))
        return gone

    async def pause(self, name: str, kind: PauseKind, by: str, until: datetime | None) -> None:
        checks.check_pause(name, kind, until)
        self._may_pause(name, kind)
        # A token gives the author's name. Without tokens, the caller's own name is used.
        by = by if self._who is LOCAL else self._who.name
        await self._store.pause(name, kind=kind, by=by, until=until)
        self._service.figures.forget_pauses()
        await self._note(f"{kind}s.pause", name)

    async def resume(self, name: str, kind: PauseKind) -> None:
        checks.check_pause(name, kind)
        self._may_pause(name, kind)
        await self._store.resume(name, kind=kind)
        self._service.figures.forget_pauses()
        await self._note(f"{kind}s.resume", name)

    async def pauses(self) -> list[Pause]:
        seen = [visibility.pause(self._who, pause) for pause in await self._store.pauses()]
        return [pause for pause in seen if pause is not None]

    # ── limits and records ──────────────────────────────────────────────────
    async def limits(self) -> dict[str, LimitRule]:
        return {} if self._who.bound else await self._store.limits()

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        self._refuse_bound()
        checks.check_rule(name, rule)
        rules = await self._store.limits()
        known = rules.get(name)
        if (None if known is None else known.version) != expect:
            return None  # The caller has read another version, so its change does not apply.
        operator_action = self._may_do(store_audit.limit(rules, name, rule))
        if not self._who.may(Scope.OPERATE):
            rule = limit_reports.by_worker(rules, name, rule)
        written = await self._store.limit(name, rule, expect)
        if written is not None:
            await self._did(operator_action)
        return written

    async def records(self, kind: str) -> dict[str, Record]:
        check_key(kind)
        if not self._may_know(kind):
            raise not_found(f"there are no records of kind {kind[:60]!r} here")
        records = {} if self._who.bound else await self._store.records(kind)
        if kind != SCHEDULES:
            return records
        return {name: shown_schedule(self._service.app, self._who, name, record) for name, record in records.items()}

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        check_key(kind)
        check_key(name)
        # Only the server writes the audit log, so that it contains only what was done.
        if self._who.bound or not self._may_know(kind) or kind.partition(".")[0] == AUDIT:
            raise not_found(f"there are no records of kind {kind[:60]!r} here that a caller writes")
        operator_action = None
        if kind == SCHEDULES:
            value, operator_action = await schedule_records.schedule(self._service, self._who, name, value)
        elif kind == TOKENS:
            operator_action = await store_audit.token(self._store, name, value)
        elif kind == ORDERS:
            value, operator_action = await store_audit.order(self._store, self._who.name, name, value)
        written = await self._store.record(kind, name, value, expect)
        if written is not None:
            await self._did(operator_action)
            self._service.figures.forget_orders()
        return written

    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        if not 0 <= position < MAX_LEASE:
            return False  # No lease ever had this token.
        return await self._store.detach(self._own(token), position, self._own(fresh))

    # ── steps ───────────────────────────────────────────────────────────────
    async def add_steps(self, token: Token, steps: list[tuple[int, Step]]) -> frozenset[int]:
        checks.check_steps([step for _, step in steps])
        never_had = {position for position, _ in steps if not 0 <= position < MAX_LEASE}
        known = [(position, step) for position, step in steps if position not in never_had]
        return await self._store.add_steps(self._own(token), known) | never_had

    async def read_steps(self, id: JobId) -> list[Step]:
        [job] = await self._store.get([id])
        if job is None or not visibility.sees(self._who, job):
            return []
        return shown_steps(self._service.app, self._who, job, await self._store.read_steps(id))

    # ── permissions ─────────────────────────────────────────────────────────
    def _shown(self, job: Job) -> Job:
        return shown(self._service.app, self._who, job)

    def _own(self, id: Any) -> Any:
        return self._service.leases.signer.own(id, self._who)

    async def _reveal(self, ids: Iterable[UUID], code: str, detail: str) -> None:
        """Raise a 409 without an id if the caller may not see one of these jobs."""
        if self._who.bound:
            jobs = await self._store.get([JobId(id) for id in ids])
            if any(job is not None and not visibility.sees(self._who, job) for job in jobs):
                raise Problem(409, code, detail)

    async def _visible(self, ids: Sequence[JobId]) -> list[JobId]:
        if not self._who.bound:
            return list(ids)
        return [job.id for job in await self._store.get(ids) if job is not None and visibility.sees(self._who, job)]

    def _may_pause(self, name: str, kind: PauseKind) -> None:
        if not visibility.owns(self._who, kind, name):
            raise not_yours()

    def _may_know(self, kind: str) -> bool:
        if kind == SECRET:
            return False
        return kind in HARMLESS or self._who.may(Scope.OPERATE if kind == ORDERS else Scope.ADMIN)

    def _must(self, scope: Scope) -> None:
        if not self._who.may(scope):
            raise missing_scope(scope)

    def _may_do(self, operator_action: store_audit.OperatorAction | None) -> store_audit.OperatorAction | None:
        """Workers write limits and schedules, too. An operator's change needs the operator's scope."""
        if operator_action is not None:
            self._must(Scope.OPERATE)
        return operator_action

    async def _did(self, operator_action: store_audit.OperatorAction | None) -> None:
        if operator_action is not None:
            await self._service.audit.note(self._who.name, *operator_action)

    async def _note(self, action: str, what: str, jobs: int | None = None) -> None:
        if jobs is None:
            await self._service.audit.note(self._who.name, action, what)
        elif jobs:
            await self._service.audit.note(self._who.name, action, what, jobs)
