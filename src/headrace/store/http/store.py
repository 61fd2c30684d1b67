"""HttpStore: every verb of the contract as a call of a headrace server."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from importlib.metadata import version
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import httpx2
import msgspec

from headrace.errors import ConfigError, Unavailable
from headrace.model.clock import Clock
from headrace.model.gate import Gate, GateId, Links, NewGate
from headrace.model.job import Batch, Job, JobId, JobState
from headrace.model.lane import Ahead, LaneView
from headrace.model.lease import Ask, Lease, Orphan, Presence, Pulse, Report, Token, WorkerId
from headrace.model.outcome import Finish, Settlement
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
from headrace.runtime.loopback import on_this_machine
from headrace.store.http import address, faults, wire
from headrace.store.journal import answer_apart

PATIENCE = 30.0
"""Seconds that a call may take; `wait` has its own time on top."""
CONNECT = 10.0
IDLE = 4.0
"""Seconds that a connection is kept for the next call: less than servers keep it, so that no call meets a close."""


class HttpStore:
    """The store of a server. The server's clock counts, and the server makes all decisions."""

    writes_audit: Final = True
    """The server keeps the audit log, under the name of the token."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        if clock is not None:
            raise ConfigError("the http store uses its server's clock: give the clock to the server's store")
        self._address = address.parse(url)
        self._client: httpx2.AsyncClient | None = None
        self._tidied = False
        """The server promotes and reaps. If a thousand workers did so, too, that would only be load."""

    # ── life ────────────────────────────────────────────────────────────────
    async def open(self) -> None:
        if self._client is not None:
            return
        self._client = httpx2.AsyncClient(
            headers={
                **self._address.headers,
                "Content-Type": wire.MEDIA,
                "Accept": wire.MEDIA,
                "User-Agent": f"headrace/{version('headrace')}",
            },
            timeout=httpx2.Timeout(PATIENCE, connect=CONNECT),
            # Without TLS there is nothing to verify, and reading all certificates takes a while.
            verify=self._address.base.startswith("https:"),
            limits=httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=IDLE),
            follow_redirects=False,
        )
        try:
            hello: wire.Hello = await self._call("hello")
            faults.checked(hello.version, wire.VERSION, self._address.base)
            self._tidied = hello.tidies
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def migrate(self, progress: Progress | None = None) -> list[str]:
        """Does nothing, because the server's operator updates its schema."""
        del progress
        return []

    async def check(self) -> list[Finding]:
        findings: list[Finding] = await self._call("check")
        base = self._address.base
        where = urlsplit(base)
        if where.scheme == "http" and not on_this_machine(where.hostname or ""):
            findings.append(Finding("warning", "tls", f"the connection to {base} is not encrypted: use https://"))
        return findings

    async def now(self) -> datetime:
        now: datetime = await self._call("now")
        return now

    # ── the hot five ────────────────────────────────────────────────────────
    async def enqueue(self, batch: Batch) -> Enqueued:
        existing: dict[int, JobId] = await self._call("enqueue", wire.pack_batch(batch))
        return Enqueued(existing)

    def blocking(self) -> None:
        """Requests go through the event loop's HTTP client."""

    async def claim(self, ask: Ask) -> Lease | None:
        lease: Lease | None = await self._call("claim", ask)
        return lease

    async def heartbeat(self, tokens: Sequence[Token], ttl: timedelta, presence: Presence | None = None) -> Pulse:
        pulse: Pulse = await self._call("heartbeat", tokens, ttl, presence)
        return pulse

    async def settle(self, token: Token, settlements: Sequence[tuple[int, Settlement]]) -> frozenset[int]:
        refused: set[int] = set()
        for some in _portions(settlements):
            packed = [(position, wire.pack_settlement(settlement)) for position, settlement in some]
            refused |= await self._call("settle", token, packed)
        return frozenset(refused)

    async def report(self, token: Token, reports: Sequence[tuple[int, Report]]) -> frozenset[int]:
        refused: frozenset[int] = await self._call("report", token, reports)
        return refused

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        until = monotonic() + timeout
        while True:
            left = max(0.0, until - monotonic())
            part = min(left, wire.LONGEST_WAIT)
            if await self._call("wait", queues, part, patience=part + PATIENCE):
                return True
            if monotonic() >= until:
                return False

    # ── time ────────────────────────────────────────────────────────────────
    async def promote(self, limit: int = 1000) -> Promoted:
        if self._tidied:
            return Promoted(0, None)
        promoted: Promoted = await self._call("promote", limit)
        return promoted

    async def reap(self, worker: WorkerId, ttl: timedelta, limit: int = 10) -> list[Orphan]:
        if self._tidied:
            return []
        orphans: list[Orphan] = await self._call("reap", worker, ttl, limit)
        return orphans

    async def abandon(self, worker: WorkerId, cause: str) -> int:
        count: int = await self._call("abandon", worker, cause)
        return count

    async def retire(self, worker: WorkerId) -> None:
        await self._call("retire", worker)

    async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
        pruned: Pruned = await self._call("prune", keep, limit)
        if progress is not None:
            progress(pruned.jobs, pruned.jobs, "jobs")
        return pruned

    async def expired_dead(self, keep: Retention, limit: int = 100) -> list[JobId]:
        ids: list[JobId] = await self._call("expired_dead", keep, limit)
        return ids

    # ── looking ─────────────────────────────────────────────────────────────
    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        jobs: list[Job | None] = []
        for some in _calls(ids):
            jobs += await self._call("get", some)
        return jobs

    async def find(self, where: Filter, *, before: JobId | None = None, limit: int = 50) -> Page:
        page: Page = await self._call("find", where, before, limit)
        return page

    async def stats(self) -> Stats:
        stats: Stats = await self._call("stats")
        return stats

    async def workers(self) -> list[Presence]:
        presences: list[Presence] = await self._call("workers")
        return presences

    async def ended(self, since: datetime, limit: int = 1000) -> list[Ending]:
        endings: list[Ending] = await self._call("ended", since, limit)
        return endings

    async def lanes(self, queues: Sequence[str], limit: int = 1000) -> list[LaneView]:
        lanes: list[LaneView] = await self._call("lanes", queues, limit)
        return lanes

    async def ahead(self, id: JobId, limit: int = 10_000) -> Ahead | None:
        ahead: Ahead | None = await self._call("ahead", id, limit)
        return ahead

    # ── the operator's moves ────────────────────────────────────────────────
    async def cancel(self, ids: Sequence[JobId], reason: str | None = None) -> dict[JobId, CancelAnswer]:
        answers: dict[JobId, CancelAnswer] = {}
        for some in _calls(ids):
            answers |= await self._call("cancel", some, reason)
        return answers

    async def retry(self, ids: Sequence[JobId], *, afresh: bool = True) -> frozenset[JobId]:
        moved: set[JobId] = set()
        for some in _calls(ids):
            moved |= await self._call("retry", some, afresh)
        return frozenset(moved)

    async def delete(
        self, ids: Sequence[JobId], *, states: Collection[JobState] | None = None, ended_by: datetime | None = None
    ) -> frozenset[JobId]:
        gone: set[JobId] = set()
        for some in _calls(ids):
            gone |= await self._call("delete", some, None if states is None else list(states), ended_by)
        return frozenset(gone)

    async def drop(self, ids: Sequence[JobId], event: str, reason: str, ended_by: datetime | None) -> frozenset[JobId]:
        gone: set[JobId] = set()
        for some in _calls(ids):
            gone |= await self._call("drop", some, event, reason, ended_by)
        return frozenset(gone)

    async def pause(self, name: str, *, kind: PauseKind = "queue", by: str = "", until: datetime | None = None) -> None:
        await self._call("pause", name, kind, by, until)

    async def resume(self, name: str, *, kind: PauseKind = "queue") -> None:
        await self._call("resume", name, kind)

    async def pauses(self) -> list[Pause]:
        pauses: list[Pause] = await self._call("pauses")
        return pauses

    # ── limits ──────────────────────────────────────────────────────────────
    async def limits(self) -> dict[str, LimitRule]:
        rules: dict[str, LimitRule] = await self._call("limits")
        return rules

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        written: int | None = await self._call("limit", name, rule, expect)
        return written

    # ── records ─────────────────────────────────────────────────────────────
    async def records(self, kind: str) -> dict[str, Record]:
        records: dict[str, Record] = await self._call("records", kind)
        return records

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        written: int | None = await self._call("record", kind, name, value, expect)
        return written

    # ── leases, the rare verb ───────────────────────────────────────────────
    async def detach(self, token: Token, position: int, fresh: Token) -> bool:
        moved: bool = await self._call("detach", token, position, fresh)
        return moved

    # ── history ─────────────────────────────────────────────────────────────
    async def add_history(self, rollups: Sequence[Rollup]) -> None:
        await self._call("add_history", rollups)

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
        page: HistoryPage = await self._call("read_history", since, until, queue, task, after, limit)
        return page

    async def fold_history(self, gone: Sequence[RollupKey], rollups: Sequence[Rollup]) -> bool:
        folded: bool = await self._call("fold_history", gone, rollups)
        return folded

    # ── steps ───────────────────────────────────────────────────────────────
    async def add_steps(self, token: Token, steps: Sequence[tuple[int, Step]]) -> frozenset[int]:
        refused: set[int] = set()
        for start in range(0, len(steps), wire.MOST_STEPS):
            refused |= await self._call("add_steps", token, steps[start : start + wire.MOST_STEPS])
        return frozenset(refused)

    async def read_steps(self, id: JobId, token: Token | None = None) -> list[Step]:
        del token  # The server looks for the job.
        steps: list[Step] = await self._call("read_steps", id)
        return steps

    async def answer_wait(self, token: Token, position: int, wait: SignalWait) -> Answered | None:
        return await answer_apart(self, token, position, wait)

    # ── the call ────────────────────────────────────────────────────────────
    # ── gates ───────────────────────────────────────────────────────────────
    async def signal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        first: bool = await self._call("signal", gate, value, keep)
        return first

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        gates: list[Gate | None] = []
        for start in range(0, len(ids), wire.MOST_IDS):
            gates += await self._call("gates", ids[start : start + wire.MOST_IDS])
        return gates

    async def groups(self, *, tenant: str | None = None, before: GateId | None = None, limit: int = 50) -> list[Gate]:
        gates: list[Gate] = await self._call("groups", tenant, before, limit)
        return gates

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links:
        links: Links = await self._call("links", id, after, limit)
        return links

    async def _call(self, name: str, *arguments: Any, patience: float = PATIENCE) -> Any:
        """Call the server. After a lost answer, call once more if that is safe."""
        verb = wire.VERBS[name]
        body = wire.encode(arguments)
        until = monotonic() + patience
        while True:
            try:
                return await self._ask(verb, body, patience)
            except faults.TooManyLooks as error:
                if monotonic() + error.wait > until:
                    raise
                await asyncio.sleep(error.wait)

    async def _ask(self, verb: wire.Verb, body: bytes, patience: float) -> Any:
        try:
            return await self._send(verb, body, patience)
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError) as error:
            # Usually the server had just closed this connection. A new one works.
            if not (verb.reads or verb.repeats):
                raise faults.broken(error, verb, self._address.base) from None
        except httpx2.HTTPError as error:
            raise faults.broken(error, verb, self._address.base) from None
        try:
            return await self._send(verb, body, patience)
        except httpx2.HTTPError as error:
            raise faults.broken(error, verb, self._address.base) from None

    async def _send(self, verb: wire.Verb, body: bytes, patience: float) -> Any:
        if self._client is None:
            raise Unavailable(f"the store of {self._address.base} is not open: open it first")
        timeout: Mapping[str, float] = {"connect": CONNECT, "read": patience, "write": PATIENCE, "pool": PATIENCE}
        response = await self._client.post(
            f"{self._address.base}/v1/store/{verb.name}", content=body, timeout=httpx2.Timeout(**timeout)
        )
        if not response.is_success:
            raise faults.refused(response, verb, self._address.base)
        try:
            return wire.read_answer(verb, response.content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise faults.unreadable(self._address.base) from None


def _calls(ids: Sequence[JobId]) -> Iterator[Sequence[JobId]]:
    """Groups of as many ids as one call may name."""
    for start in range(0, len(ids), wire.MOST_IDS):
        yield ids[start : start + wire.MOST_IDS]


def _portions(settlements: Sequence[tuple[int, Settlement]]) -> Iterator[Sequence[tuple[int, Settlement]]]:
    """All in one call, unless their results are too large together."""
    start = size = 0
    for place, (_, settlement) in enumerate(settlements):
        size += len(settlement.result or b"") if isinstance(settlement, Finish) else 0
        if size > wire.SPLIT:
            yield settlements[start : place + 1]
            start, size = place + 1, 0
    if start < len(settlements) or not settlements:
        yield settlements[start:]
