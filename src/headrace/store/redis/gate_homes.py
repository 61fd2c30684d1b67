"""Which queues of a cluster have the gates, as far as this process knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from headrace.model.gate import NewGate
from headrace.store.redis.client.client import Client, chunks
from headrace.store.redis.queue_list import QueueList

_MOST_GATES: Final = 20_000
_AT_ONCE: Final = 100
"""Gates that one survey asks for."""


class GateHomes:
    """The id of a gate does not name its queue. On one server all gates lie together, and there is nothing to know."""

    def __init__(self, client: Client, queues: QueueList) -> None:
        self._client, self._queues = client, queues
        self._known: dict[UUID, str] = {}

    def remember(self, gates: Iterable[NewGate]) -> None:
        if len(self._known) > _MOST_GATES:
            self._known.clear()
        self._known.update((gate.id, gate.queue) for gate in gates)

    async def find(self, ids: Iterable[UUID]) -> dict[UUID, str]:
        """The queues of these gates. A gate that no queue has is left out. Raises what keeps a queue from answering."""
        if not self._client.keys.clustered:
            return {}
        wanted = list(dict.fromkeys(ids))
        homes = {id: self._known[id] for id in wanted if id in self._known}
        for some in chunks([id for id in wanted if id not in homes], _AT_ONCE):
            names = await self._queues.names()
            answers, silent = await self._client.survey(names, "gates", *(id.bytes for id in some))
            homes.update((some[int(number)], queue) for queue, numbers in answers.items() for number in numbers)
            if silent is not None and not homes.keys() >= set(some):
                raise silent
        self._known.update(homes)
        return homes

    def forget(self, id: UUID) -> None:
        self._known.pop(id, None)
