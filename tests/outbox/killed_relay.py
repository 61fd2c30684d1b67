"""A relay that says each row it has handed over, and waits there to be killed: python killed_relay.py DATABASE STORE."""

import asyncio
import sys

from headrace.model.job import Batch
from headrace.model.records import Enqueued
from headrace.outbox import Outbox
from headrace.store.redis.store import RedisStore


class Telling(RedisStore):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._plain = self.enqueue
        self.enqueue = self._enqueue

    async def _enqueue(self, batch: Batch) -> Enqueued:
        answer = await self._plain(batch)
        print(batch.id.hex, flush=True)
        # The row is not deleted before this process is told to go on, which never happens.
        await asyncio.to_thread(sys.stdin.readline)
        return answer


async def main(database: str, url: str) -> None:
    store = Telling(url)
    await store.open()
    await Outbox(database).run(store)


asyncio.run(main(*sys.argv[1:]))
