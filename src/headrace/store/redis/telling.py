"""On a cluster: what follows from the end of a job in one queue for the gates and jobs of another.

No script sees two queues. So a script writes what it has to say to another queue beside what it changes, as numbered words in the order in
which they were said. A client reads the first words, has the other queue take them, and then drops them. The other queue knows the number of the last
word that it took from each queue, and takes each word once. Whichever step a client dies at, the words are still there,
and the next client, or the next `promote`, says them again.
"""

from __future__ import annotations

from contextlib import suppress
from struct import Struct
from typing import Final

from headrace.runtime import faults
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.wire import ONE_NODE
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.store_clock import StoreClock

_NUMBER: Final = Struct(">d")
_ROUNDS: Final = 50
"""Queues that one call of `tell` reads from. What is left, the next `promote` tells."""


class Telling:
    """Brings the words of queues to the queues that they are for."""

    def __init__(self, client: Client, time: StoreClock, queues: QueueList) -> None:
        self._client, self._keys = client, client.keys
        self._time, self._queues = time, queues

    async def tell(self, queue: str) -> int:
        """Tell other queues what this one has to say, and what follows from it. Answers how many words were told."""
        count = 0
        left = [queue]
        for _ in range(_ROUNDS):
            if not left:
                break
            source = left.pop(0)
            for prefix, *words in await self._client.run(scripts.OWED, source):
                count += len(words)
                other = self._keys.named(prefix.decode())
                args = (self._time.given, self._keys.queue(source), *words)
                answer = await self._queues.fill(scripts.TAKE, [other], *args)
                if faults.ARMED:
                    faults.reach("told")
                (last,) = _NUMBER.unpack_from(words[-1])
                if await self._client.run(scripts.PAID, source, prefix, int(last)):
                    left.append(source)
                if answer[1]:
                    left.append(other)
            left = list(dict.fromkeys(left))
        return count

    async def try_to_tell(self, queue: str) -> int:
        """As `tell`. A node that is down is told by a later `promote`."""
        with suppress(*ONE_NODE):
            return await self.tell(queue)
        return 0
