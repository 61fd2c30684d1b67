"""How many shards each queue has: written down once in Redis, for every process."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from headrace.errors import ConfigError, StoreError
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client, pairs
from headrace.store.redis.client.wire import ONE_NODE
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.shards import MARK, Shards

_log: Final = logging.getLogger(__name__)

OnQueue = Callable[[str], Awaitable[None]]


class ShardCounts:
    """Reads the counts, and raises them where this process declares more shards than there are."""

    def __init__(self, client: Client, queues: QueueList, resume: OnQueue, declared: Mapping[str, int]) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys
        self._queues, self._resume = queues, resume
        self.declared = Shards({**client.address.shards, **declared}).counts
        self.shards = Shards()
        """As many as are known to be there."""

    async def refresh(self) -> None:
        """Read what is written, and write what this process declares."""
        written: dict[str, int] = {}
        try:
            written = await self.learn()
            for queue, count in self.declared.items():
                if written.get(queue, 1) < count:
                    await self._grow(queue, written.get(queue, 1), count)
        except ONE_NODE as error:
            if not self._keys.clustered:
                raise
            # One node is down. The queues of the others go on with what is known, and the next refresh tries again.
            _log.warning("the numbers of shards of queues cannot be read or written: %s", error)
            if not written:
                await self._guess()

    async def learn(self) -> dict[str, int]:
        """The numbers of shards as they are written down."""
        words = await self._wire.command(self._keys.shards, "HGETALL", self._keys.shards)
        written = {queue.decode(): int(count) for queue, count in pairs(words)}
        for queue, count in written.items():
            self.shards.learn(queue, count)
        return written

    def learn_from(self, names: list[str]) -> None:
        """The list of queues names shards, too. Janitors read it every few seconds, so workers soon know of new shards."""
        for name in names:
            queue, mark, number = name.partition(MARK)
            if mark and number.isdecimal():
                with suppress(ConfigError):  # a name that headrace did not write
                    self.shards.learn(queue, int(number) + 1)

    async def _guess(self) -> None:
        """Read the list of queues. Without it, what is declared now is most likely what was declared before."""
        try:
            await self._queues.names()
        except StoreError:
            for queue, count in self.declared.items():
                self.shards.learn(queue, count)

    async def _grow(self, queue: str, known: int, count: int) -> None:
        """Write down that a queue has more shards. Each is paused if the first is, before a job can be in it."""
        new = Shards({queue: count}).of(queue)[known:]
        paused = await self.copy_pause(queue, new)
        self.shards.learn(queue, await self._wire.run(scripts.SHARDS, (self._keys.shards,), queue, count))
        await self._queues.register(new)
        # A process that paused or resumed the queue meanwhile may not have known of the new shards. From here on it does.
        while await self._wire.command(self._keys.paused(queue), "GET", self._keys.paused(queue)) != paused:
            paused = await self.copy_pause(queue, new)

    async def copy_pause(self, queue: str, shards: Sequence[str]) -> bytes | None:
        """Give these shards the pause of the first; answers it."""
        first = self._keys.paused(queue)
        paused: bytes | None = await self._wire.command(first, "GET", first)
        for shard in shards:
            key = self._keys.paused(shard)
            if paused is not None:
                await self._wire.command(key, "SET", key, paused)
                if not self._keys.clustered:
                    await self._wire.command(key, "HSET", self._keys.home[0] + "#p", shard, paused)
            elif await self._wire.command(key, "EXISTS", key):
                await self._resume(shard)
        return paused

    async def on_each(self, queue: str, act: OnQueue) -> None:
        """Do this to each shard, also to those that another process added before this call or adds during it."""
        round = self._client.round()
        done = 0
        while True:
            with suppress(*ONE_NODE if self._keys.clustered else ()):
                if (count := await self._wire.command(self._keys.shards, "HGET", self._keys.shards, queue)) is not None:
                    self.shards.learn(queue, int(count))
            shards = self.shards.of(queue)
            if len(shards) == done:
                break
            for shard in shards[done:]:
                async with round.asking(shard):
                    await act(shard)
            done = len(shards)
        round.end(needs_all=True)
