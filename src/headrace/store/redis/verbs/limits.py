"""The rules of limits."""

from __future__ import annotations

from headrace.model.records import LimitRule
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client, pairs
from headrace.store.redis.queue_list import QueueList
from headrace.store.redis.records import rule_bytes, rule_of


class Limits:
    """See the contract."""

    def __init__(self, client: Client, queues: QueueList) -> None:
        self._client, self._wire, self._keys, self._queues = client, client.wire, client.keys, queues

    async def limits(self) -> dict[str, LimitRule]:
        key = self._keys.limits[0] + "#r"
        words = await self._wire.command(key, "HGETALL", key)
        return {name.decode(): rule_of(raw) for name, raw in sorted(pairs(words))}

    async def limit(self, name: str, rule: LimitRule | None, expect: int | None) -> int | None:
        words = b"0" if rule is None else b"1" + rule_bytes(rule)
        expected = "" if expect is None else expect
        keys = self._keys.limits
        # It is not repeated after a lost answer: the call's own write would look like that of another process.
        version: int = await self._wire.run(scripts.LIMIT, keys, name, expected, words, repeat=False)
        if version < 0:
            return None
        await self._client.confirmed(keys[0])
        await self._queues.spread_rules()
        return version
