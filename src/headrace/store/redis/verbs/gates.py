"""Gates: signals, and looks at gates, groups and what hangs together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Final
from uuid import UUID, uuid4

from msgspec.structs import replace

from headrace.model.gate import Counts, Edge, Gate, GateId, Links, NewGate, is_gate
from headrace.store.redis.arguments import gate_args, microseconds
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client, chunks, pairs
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.client.wire import ONE_NODE
from headrace.store.redis.element import from_us
from headrace.store.redis.gate_homes import GateHomes
from headrace.store.redis.job_locator import JobLocator
from headrace.store.redis.keys import LIMITS
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.rows import ids_of_runs
from headrace.store.redis.shards import whole
from headrace.store.redis.store_clock import StoreClock
from headrace.store.redis.telling import Telling

_AT_ONCE: Final = 20
"""Gates that one script reads: each may have a value of 256 kB."""


class Gates:
    """See the contract."""

    def __init__(
        self,
        client: Client,
        time: StoreClock,
        queues: QueueList,
        locator: JobLocator,
        homes: GateHomes,
        telling: Telling,
    ) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._time, self._queues, self._locator = time, queues, locator
        self._homes, self._telling = homes, telling

    async def signal(self, gate: NewGate, value: bytes, keep: timedelta) -> bool:
        words = (self._time.given, uuid4().bytes, microseconds(keep), value)
        if self._keys.clustered:
            gate = replace(gate, queue=await self._home_of(gate))
            await self._queues.register([gate.queue])
            self._homes.remember([gate])
            _, signalled, owes = await self._queues.fill(scripts.SIGNAL, [gate.queue], *words, *gate_args(gate))
        else:
            _, signalled, owes = await self._wire.run(scripts.SIGNAL, self._keys.home, *words, *gate_args(gate))
        await self._client.confirmed(self._keys.of(gate.queue)[0])
        if owes:
            await self._telling.try_to_tell(gate.queue)
        return bool(signalled)

    async def _home_of(self, gate: NewGate) -> str:
        """The queue of a cluster that has the gate of a signal already, because jobs wait for it there; else the gate's own."""
        if (await self._client.survey([gate.queue], "gates", gate.id.bytes)).answers:
            return gate.queue
        # A node that is down may have it. A signal to the gate's own queue does not depend on that.
        with suppress(*ONE_NODE):
            return (await self._homes.find([gate.id])).get(gate.id, gate.queue)
        return gate.queue

    async def gates(self, ids: Sequence[GateId]) -> list[Gate | None]:
        gates_by_id: dict[UUID, Gate] = {}
        by_home: dict[str, list[UUID]] = {}
        homes = await self._homes.find(ids)
        for id in dict.fromkeys(ids):
            if not self._keys.clustered:
                by_home.setdefault(LIMITS, []).append(id)
            elif id in homes:
                by_home.setdefault(homes[id], []).append(id)
        for queue, those in by_home.items():
            for some in chunks(those, _AT_ONCE):
                keys = self._keys.of(queue) if self._keys.clustered else self._keys.home
                rows = await self._wire.run(scripts.READ_GATES, keys, *(id.bytes for id in some))
                gates_by_id.update((id, _gate(id, row)) for id, row in zip(some, rows, strict=True) if row)
        for stale in homes.keys() - gates_by_id.keys():
            self._homes.forget(stale)
        return [gates_by_id.get(id) for id in ids]

    async def groups(self, *, tenant: str | None = None, before: GateId | None = None, limit: int = 50) -> list[Gate]:
        words = ("0" if tenant is None else "1" + tenant, "+" if before is None else b"(" + before.bytes, limit)
        if self._keys.clustered:
            answers = await self._client.ask_each(scripts.GROUPS, await self._queues.names(), *words)
            ids = [id for some in answers.values() for id in some]
        else:
            ids = await self._wire.run(scripts.GROUPS, self._keys.home, *words)
        newest = [GateId(UUID(bytes=id)) for id in sorted(ids, reverse=True)[:limit]]
        return [gate for gate in await self.gates(newest) if gate is not None]

    async def links(self, id: UUID, *, after: UUID | None = None, limit: int = 500) -> Links:
        words = (id.bytes, "-" if after is None else b"(" + after.bytes + b"\xff" * 17, limit)
        answers: list[Reply] = []

        async def ask(queue: str, some: list[UUID]) -> Collection[UUID]:
            answer = await self._client.run(scripts.READ_LINKS, queue, *words)
            if answer:
                answers.append(answer)
            return some if answer else ()

        if not is_gate(id):
            await self._locator.ask([id], ask)
        elif not self._keys.clustered:
            answers += filter(None, [await self._wire.run(scripts.READ_LINKS, self._keys.home, *words)])
        else:
            for queue in (await self._homes.find([id])).values():
                await ask(queue, [id])
        if not answers:
            return Links()
        edges, into, waiting, runs, lanes = answers[0]
        for prefix, lane in pairs(lanes):
            _, more = await self._client.run(scripts.FIND, self._keys.named(prefix.decode()), "blocked", lane, limit)
            runs += more
        waiting += islice(ids_of_runs(sorted(runs)), limit)
        return Links(
            tuple(Edge(UUID(bytes=edge[:16]), UUID(bytes=edge[16:32]), GateId(id)) for edge in edges),
            tuple(GateId(UUID(bytes=gate)) for gate in into),
            tuple(UUID(bytes=one) for one in sorted(waiting)[:limit]),
        )


def _gate(id: UUID, row: Reply) -> Gate:
    queue, label, tenant, sealed, size, done, dead, cancelled, signalled, made_us, changed, valued, value = row
    return Gate(
        id=GateId(id),
        queue=whole(queue.decode()),
        label=label.decode(),
        tenant=tenant.decode(),
        sealed=sealed == b"1",
        counts=Counts(int(size), int(done), int(dead), int(cancelled)),
        signalled=signalled == b"1",
        value=value if valued == b"1" else None,
        made_at=from_us(int(made_us)),
        changed_at=from_us(int(changed)),
    )
