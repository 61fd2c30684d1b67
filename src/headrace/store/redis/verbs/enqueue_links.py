"""Enqueue of batches with gates, members and jobs that wait: one script, or on a cluster one for each queue that has to do with it.

On a cluster no script sees two queues. A call over several of them makes and holds its gates first: a gate that is held is not sealed, so it does not
end while its members are being stored. Then each queue stores its jobs, and says which of them are members. In the end the gates are told, sealed
as far as the call says so, and held no more. A client that dies in between leaves gates that are not sealed; the same call, made again, completes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Raw
from msgspec.structs import replace

from headrace.errors import GroupOver, IdempotencyConflict
from headrace.model.gate import Edge, is_gate
from headrace.model.job import Batch, JobId, job_id, split_id
from headrace.model.records import Enqueued
from headrace.store.redis.arguments import Runs, gate_words, word
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.gate_homes import GateHomes
from headrace.store.redis.job_locator import JobLocator
from headrace.store.redis.older_workers import OlderWorkers
from headrace.store.redis.plans import check_runs, enqueue_call, existing_of, pack
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.telling import Telling


class _Links(NamedTuple):
    """The links of a call that one script makes."""

    gates: list[Any]
    own: list[Any]
    others: list[Any]
    seals: list[Raw]
    fixed: bool = False
    """The gates were checked by another script."""


_NONE = _Links([], [], [], [])


class LinkedEnqueue:
    """The part of `enqueue` that is about gates."""

    def __init__(
        self,
        client: Client,
        time: StoreClock,
        queues: QueueList,
        locator: JobLocator,
        gates: GateHomes,
        telling: Telling,
        older: OlderWorkers,
    ) -> None:
        self._client, self._keys = client, client.keys
        self._time, self._queues, self._locator = time, queues, locator
        self._gates, self._telling, self._older = gates, telling, older

    async def enqueue(self, batch: Batch, spread: Runs) -> Enqueued:
        check_runs(spread)
        await self.refuse_older((*spread, *(gate.queue for gate in batch.gates)))
        if self._keys.clustered:
            existing = await self._on_cluster(batch, spread)
        else:
            await self._queues.register(spread)
            links = _links(batch, batch.edges, {})
            answer = await self.fill(batch, spread, await self._time.now_us(), links)
            existing = dict(existing_of(batch, answer))
            await self._client.confirmed(self._keys.of(*spread)[0])
        if spread:
            self._locator.remember(batch.id, next(iter(spread)))
        return Enqueued(existing)

    async def refuse_older(self, queues: Iterable[str]) -> None:
        await self._older.refuse_older(queues)

    async def fill(
        self,
        batch: Batch,
        queues: Runs,
        now: int,
        links: _Links = _NONE,
        homes: Mapping[UUID, str] | None = None,
        queue: str | None = None,
    ) -> Reply:
        """Store these runs of a batch and these links. homes: prefixes of queues. queue: of a script that stores no jobs, on a cluster."""
        known = dict(homes or {})
        _, args, waits = enqueue_call(self._keys, self._time, batch, queues, now)
        while True:
            where = [field for id, prefix in known.items() for field in (word(id.bytes), prefix)]
            words = pack((links.gates, links.own, links.others, links.seals, waits, where, int(links.fixed)))
            answer = await self._queues.fill(scripts.ENQUEUE_LINKED, list(queues) or _only(queue), *args, words)
            if answer[0] == b"over":
                raise GroupOver(UUID(bytes=answer[1]))
            if answer[0] != b"where":
                return answer
            asked = [UUID(bytes=id) for id in answer[1:]]
            places = await self._locate(asked)
            known.update((id, self._keys.queue(places[id]) if id in places else "") for id in asked)

    async def _locate(self, ids: Iterable[UUID]) -> dict[UUID, str]:
        """The queues that have these jobs and gates. What no queue has is left out."""
        wanted = list(dict.fromkeys(ids))
        homes = await self._gates.find(id for id in wanted if is_gate(id))

        async def ask(queue: str, some: list[UUID]) -> Collection[UUID]:
            rows: list[Reply] = []
            while len(rows) < len(some):  # a script answers fewer jobs if they are large
                rows += await self._client.run(scripts.GET, queue, 0, *(id.bytes for id in some[len(rows) :]))
            known = [id for id, row in zip(some, rows, strict=True) if row]
            homes.update(dict.fromkeys(known, queue))
            return known

        jobs = [id for id in wanted if not is_gate(id)]
        if jobs:
            await self._locator.ask(jobs, ask)
        return homes

    # ── clusters ────────────────────────────────────────────────────────────

    async def _on_cluster(self, batch: Batch, spread: Runs) -> dict[int, JobId]:
        self._gates.remember(batch.gates)
        own: dict[UUID, str] = {job_id(batch.id, ord): queue for queue, runs in spread.items() for ord in _ords(runs)}
        strange = [*_strange(batch, own), *(edge.into for edge in batch.edges), *batch.seals]
        homes = await self._locate(strange)
        homes.update(own)
        homes.update((gate.id, gate.queue) for gate in batch.gates)
        for edge in batch.edges:
            if edge.into not in homes:
                raise GroupOver(edge.into)
        gated = {homes[id] for id in (*(gate.id for gate in batch.gates), *(edge.into for edge in batch.edges))}
        gated |= {homes[id] for id in batch.seals if id in homes}
        members = {homes[edge.first] for edge in batch.edges if edge.first in homes and edge.first not in own}
        everywhere = list(dict.fromkeys((*spread, *sorted(gated | members))))
        await self._queues.register(everywhere)
        prefixes = {id: self._keys.queue(queue) for id, queue in homes.items()}
        prefixes.update((id, "") for id in _strange(batch, own) if id not in homes)
        if len(everywhere) > 1:
            return await _Spread(self, batch, spread, homes, prefixes).enqueue(gated, members)
        if not everywhere:  # seals of gates that are not there
            return {}
        [queue] = everywhere
        existing, owes = await self.store_in(queue, batch, spread, _links(batch, batch.edges, {}), prefixes)
        if owes:
            await self._telling.try_to_tell(queue)
        return existing

    async def store_in(
        self, queue: str, batch: Batch, runs: Runs, links: _Links, prefixes: Mapping[UUID, str]
    ) -> tuple[dict[int, JobId], bool]:
        """Run the script of one queue of a cluster. Answers also whether it has to tell others something."""
        answer = await self.fill(batch, runs, await self._time.now_us(), links, prefixes, queue)
        existing = dict(existing_of(batch, answer))
        await self._client.confirmed(self._keys.of(queue)[0])
        return existing, answer[0] == b"owes"

    async def tell(self, queue: str) -> None:
        await self._telling.tell(queue)

    def prefix(self, queue: str) -> str:
        return self._keys.queue(queue)

    async def prepare(self, queue: str, batch: Batch, gates: list[Any], held: list[Raw]) -> None:
        words = pack((gates, held))
        answer = await self._queues.fill(scripts.PREPARE, [queue], self._time.given, batch.id.bytes[:14], words)
        if answer[0] == b"over":
            raise GroupOver(UUID(bytes=answer[1]))

    async def conclude(self, queue: str, batch: Batch, held: list[Raw], seals: list[Raw], gone: list[Raw]) -> None:
        words = pack((held, seals, gone))
        _, owes = await self._client.run(scripts.CONCLUDE, queue, self._time.given, batch.id.bytes[:14], words)
        await self._client.confirmed(self._keys.of(queue)[0])
        if owes:
            await self._telling.tell(queue)


class _Spread:
    """A call over several queues of a cluster."""

    def __init__(
        self,
        store: LinkedEnqueue,
        batch: Batch,
        spread: Runs,
        homes: Mapping[UUID, str],
        prefixes: dict[UUID, str],
    ) -> None:
        self._store, self._batch, self._spread = store, batch, spread
        self._homes, self._prefixes = homes, prefixes

    async def enqueue(self, gated: set[str], members: set[str]) -> dict[int, JobId]:
        prepared: list[str] = []
        owing: list[str] = []
        existing: dict[int, JobId] = {}
        try:
            # Gates that exist come first: they may refuse.
            for queue in sorted(gated, key=lambda queue: queue in {gate.queue for gate in self._batch.gates}):
                await self._store.prepare(queue, self._batch, self._made(queue), self._held(queue, edges=True))
                prepared.append(queue)
            for queue in self._in_turn(members):
                runs = {queue: self._spread[queue]} if queue in self._spread else {}
                links = self._links(queue)
                some, owes = await self._store.store_in(queue, self._batch, runs, links, self._prefixes)
                existing |= some
                owing += [queue] if owes else []
                self._batch = self._standing_in(existing)
        except (GroupOver, IdempotencyConflict):
            for queue in prepared:
                await self._store.conclude(queue, self._batch, self._held(queue), [], [])
            raise
        for queue in owing:
            await self._store.tell(queue)
        for queue in sorted(gated):
            seals = [word(id.bytes) for id in self._batch.seals if self._homes.get(id) == queue]
            gone = [
                word(id.bytes)
                for edge in self._batch.edges
                if self._homes[edge.into] == queue and edge.first not in self._homes
                for id in (edge.into, edge.first)
            ]
            await self._store.conclude(queue, self._batch, self._held(queue), seals, gone)
        return existing

    def _made(self, queue: str) -> list[Any]:
        return [field for gate in self._batch.gates if gate.queue == queue for field in gate_words(gate)]

    def _held(self, queue: str, *, edges: bool = False) -> list[Raw]:
        """The gates of a queue that get members; with `edges` each with its edge if the member is of another call."""
        held: list[Raw] = []
        for edge in self._batch.edges:
            if self._homes[edge.into] == queue:
                alone = is_gate(edge.first) or split_id(edge.first)[0] != self._batch.id
                into, own = word(edge.into.bytes), word(edge.first.bytes * 2 if alone else b"")
                held += (into, own) if edges else (into,)
        return held

    def _links(self, queue: str) -> _Links:
        near = self._store.prefix(queue)
        mine = [
            edge
            for edge in self._batch.edges
            if (not is_gate(edge.first) and split_id(edge.first)[0] == self._batch.id and queue in self._spread)
            or self._homes.get(edge.first) == queue
        ]
        far = {into: prefix for into, prefix in self._prefixes.items() if prefix != near}
        own, others = _edges(self._batch, mine, far)
        return _Links([], own, others, [], fixed=True)

    def _in_turn(self, members: set[str]) -> list[str]:
        """The queues to store in: those whose jobs are waited for before those whose jobs wait for them, as far as that goes."""
        left = list(dict.fromkeys((*self._spread, *sorted(members))))
        needs: dict[str, set[str]] = {queue: set() for queue in left}
        for job in self._batch.jobs:
            if job.wait is not None and split_id(job.wait.gate)[0] == self._batch.id:
                needs[job.lane.queue].add(self._homes.get(job.wait.gate, job.lane.queue))
        turn: list[str] = []
        while left:
            free = next((queue for queue in left if needs[queue] <= {*turn, queue}), left[0])
            turn.append(free)
            left.remove(free)
        return turn

    def _standing_in(self, existing: Mapping[int, JobId]) -> Batch:
        """The batch in which what waits for a job that was not stored waits for the one that stands for it."""
        instead = {job_id(self._batch.id, ord): id for ord, id in existing.items()}
        jobs = [
            replace(job, wait=replace(job.wait, gate=instead[JobId(job.wait.gate)]))
            if job.wait is not None and job.wait.gate in instead
            else job
            for job in self._batch.jobs
        ]
        return replace(self._batch, jobs=jobs)


def _only(queue: str | None) -> list[str]:
    return [] if queue is None else [queue]


def _ords(runs: Iterable[tuple[int, int]]) -> Iterable[int]:
    return (ord for low, high in runs for ord in range(low, high + 1))


def _strange(batch: Batch, own: Mapping[UUID, str]) -> list[UUID]:
    """Members and what jobs wait for, as far as it is not of this batch."""
    waits = {job.wait.gate for job in batch.jobs if job.wait is not None}
    firsts = (edge.first for edge in batch.edges)
    return [id for id in dict.fromkeys((*firsts, *sorted(waits))) if id not in own]


def _links(batch: Batch, edges: Iterable[Edge], far: Mapping[UUID, str]) -> _Links:
    own, others = _edges(batch, edges, far)
    gates = [field for gate in batch.gates for field in gate_words(gate)]
    return _Links(gates, own, others, [word(id.bytes) for id in batch.seals])


def _edges(batch: Batch, edges: Iterable[Edge], far: Mapping[UUID, str]) -> tuple[list[Any], list[Any]]:
    """Members of the batch itself, and others, as `enqueue/links.lua` takes them. far: prefixes of the queues of gates that are elsewhere."""
    own: list[Any] = []
    others: list[Any] = []
    for edge in edges:
        of, first = split_id(edge.first)
        if is_gate(edge.first) or of != batch.id:
            others += (word(edge.first.bytes), word(edge.into.bytes), far.get(edge.into, ""))
        else:
            own += (first, split_id(edge.last)[1], word(edge.into.bytes), far.get(edge.into, ""))
    return own, others
