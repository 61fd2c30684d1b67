"""Workers of earlier versions, which share a server with this one while an upgrade is under way.

On PostgreSQL and SQLite a migration keeps them out. Redis has no schema: a worker of an earlier version would settle a job without
counting its end, so that what waits for it waits for ever, and would run a job without its steps. So each worker tells its
generation with its presence, and nothing that an earlier generation misreads is stored while such a worker serves the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Final

from headrace.errors import Unsupported
from headrace.model.lease import Presence
from headrace.model.records import Finding
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.wire import ONE_NODE
from headrace.store.redis.records import older_presences
from headrace.store.redis.shards import whole
from headrace.store.redis.store_clock import StoreClock

_EVERY: Final = 60.0
"""Seconds for which the answer holds that there is none."""
_SOON: Final = 2.0
"""Seconds for which the answer holds that there is one, because it is being upgraded."""
_SEEN_WITHIN: Final = 60_000_000
"""Microseconds since its last heartbeat after which a worker is gone."""


class OlderWorkers:
    """Knows the workers of earlier versions, and looks for them at most once a minute."""

    def __init__(self, client: Client, time: StoreClock) -> None:
        self._wire, self._keys, self._time = client.wire, client.keys, time
        self._known: list[Presence] = []
        self._until = 0.0

    async def refuse_older(self, queues: Iterable[str]) -> None:
        """See `gates.Upgrading`."""
        if monotonic() >= self._until:
            try:
                self._known = await self.look()
            except ONE_NODE:
                return  # On a cluster, the node that has the list of workers is down.
            self._until = monotonic() + (_SOON if self._known else _EVERY)
        if not self._known:
            return
        names = {whole(queue) for queue in queues}
        for worker in self._known:
            if served := names.intersection(worker.queues):
                raise Unsupported(f"{_described(worker, served)}; nothing was stored")

    async def look(self) -> list[Presence]:
        """The workers of earlier versions that are there."""
        records = await self._wire.command(self._keys.workers, "HVALS", self._keys.workers)
        return older_presences(records, await self._time.now_us() - _SEEN_WITHIN)

    async def findings(self) -> list[Finding]:
        """What `headrace doctor` tells of them."""
        return [Finding("error", "workers", _described(worker, worker.queues)) for worker in await self.look()]


def _described(worker: Presence, queues: Iterable[str]) -> str:
    names = ", ".join(sorted(queues))
    return (
        f"worker {worker.name} (headrace {worker.version}) serves {names} and is of a version that does not know these workflows and steps: "
        "it would neither count the end of a job that others wait for nor keep steps. Upgrade this worker, or stop it"
    )
