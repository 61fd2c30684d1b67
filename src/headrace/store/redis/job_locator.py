"""From ids of jobs to the queues that have them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final
from uuid import UUID

from headrace.model.job import split_id
from headrace.store.redis.client.client import Client
from headrace.store.redis.queue_list import QueueList

_MOST_BATCHES: Final = 20_000

AskById = Callable[[str, list[UUID]], Awaitable[Collection[UUID]]]
"""Asks a queue for these ids, and answers those that the queue knows."""


class JobLocator:
    """An id does not name its queue. A process knows the queues of the jobs that it enqueued, and asks all queues for other ids."""

    def __init__(self, client: Client, queues: QueueList) -> None:
        self._client, self._queues = client, queues
        self._batches: dict[int, str] = {}

    def remember(self, batch: UUID, queue: str) -> None:
        """Note that this process enqueued a batch, so that `ask` tries this queue first."""
        if len(self._batches) > _MOST_BATCHES:
            self._batches.clear()
        self._batches[batch.int] = queue

    async def ask(self, ids: Sequence[UUID], ask: AskById) -> None:
        """Ask the queues that know these ids. If no queue knows an id and a queue did not answer, that queue's error is raised."""
        left = dict.fromkeys(ids)
        round = self._client.round()

        async def visit(queue: str, some: list[UUID]) -> None:
            if some and not await round.passes_over(queue):
                async with round.asking(queue):
                    for id in await ask(queue, some):
                        left.pop(id, None)

        likely: dict[str, list[UUID]] = {}
        for id in ids:
            if (queue := self._batches.get(split_id(id)[0].int)) is not None:
                likely.setdefault(queue, []).append(id)
        for queue, some in likely.items():
            await visit(queue, some)
        silent = None
        if left:
            batches = list(dict.fromkeys(id.bytes[:14] for id in left))
            holders, silent = await self._client.survey(await self._queues.names(), "batches", *batches)
            for queue, numbers in holders.items():
                known: set[bytes] = {batches[int(number)] for number in numbers}
                await visit(queue, [id for id in left if id.bytes[:14] in known])
        round.end(needs_all=bool(left))
        if left and silent is not None:
            raise silent
