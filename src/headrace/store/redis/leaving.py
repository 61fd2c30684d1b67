"""On a cluster: queues without jobs leave the list of queues, and come back with their next job.

The list, the counters that are kept and the queue itself lie in three slots, so no script sees two of them. A queue leaves in five steps:

1. its mark, a random text, is noted beside the list;
2. a script checks that the queue has no jobs, and marks it: from here on an enqueue stores nothing and answers with the mark;
3. its counters are kept in `#s`, because totals and places only grow;
4. a script takes it off the list, if the mark beside the list is still the same;
5. a script drops its keys, if the mark in the queue is still the same.

A client that meets the mark, or no counters at all, removes the mark beside the list and puts the queue on the list. Then it gives the
queue its counters back and removes the mark there, if it is the one that the client met. It lists the queue once more, because a
later departure may have come in between. Then it repeats its call. Whichever step a process dies at, a queue that takes jobs is on the list.
Should a client die just before it lists the queue once more, and a second departure have come in between, then every process that has listed the
queue before finds that within 30 s, and lists it again (`QueueList.relist`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.model.lease import new_token
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import pairs
from headrace.store.redis.client.connection import Reply
from headrace.store.redis.client.wire import Wire
from headrace.store.redis.keys import Keys

UNLISTED: Final = b"unlisted"
"""The answer of a script that stored nothing because its queue was not on the list. The mark of the queue follows."""

_counters = msgspec.msgpack.Decoder(list[str])


class Leaving:
    """How queues leave the list, and come back."""

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._wire, self._keys = wire, keys

    async def leave(self, queue: str, time_arg: str, remembered: int) -> bool:
        """Forget a queue without jobs. False: it has jobs, or is needed otherwise, or is on the list again."""
        mark = new_token().hex
        listing, leaving = self._keys.listing
        await self._wire.command(leaving, "HSET", leaving, queue, mark)
        counters: Reply = await self._wire.run(scripts.FORGET, self._keys.pair(queue), time_arg, remembered, mark)
        if counters == 0:
            await self._wire.command(leaving, "HDEL", leaving, queue)
            return False
        taken = dict(pairs(counters)).get(b"e")
        if taken is not None:
            kept = msgspec.msgpack.encode([word.decode() for word in counters])
            await self._wire.run(scripts.KEEP, self._keys.limits, queue, kept, taken)
        off = await self._wire.run(scripts.LEAVE, (listing, leaving), queue, mark)
        if off:
            await self._wire.run(scripts.GONE, self._keys.pair(queue), mark)
        # A mark that stays, because a process has died or an answer was lost, makes the next enqueue list the queue.
        return bool(off)

    async def come_back(self, queue: str, mark: bytes) -> None:
        """List a queue that a script refused to fill, and let it take jobs."""
        await self._list(queue)
        home = self._keys.limits[0] + "#s"
        kept: bytes | None = await self._wire.command(home, "HGET", home, queue)
        words = () if kept is None else _counters.decode(kept)
        await self._wire.run(scripts.REVIVE, self._keys.pair(queue), mark, *words)
        await self._list(queue)

    async def _list(self, queue: str) -> None:
        """In this order: a departure that is under way finds its mark gone, or has taken the queue off the list before."""
        listing, leaving = self._keys.listing
        await self._wire.command_many([("HDEL", leaving, queue), ("SADD", listing, queue)], listing)
