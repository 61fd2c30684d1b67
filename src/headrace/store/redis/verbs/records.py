"""The records that other parts of headrace keep in the store."""

from __future__ import annotations

from headrace.model.records import Record
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client, pairs
from headrace.store.redis.records import record_of


class Records:
    """See the contract."""

    def __init__(self, client: Client) -> None:
        self._client, self._wire, self._keys = client, client.wire, client.keys

    async def records(self, kind: str) -> dict[str, Record]:
        key = f"{self._keys.records[0]}r:{kind}"
        words = await self._wire.command(key, "HGETALL", key)
        return {name.decode(): Record(*record_of(raw)) for name, raw in sorted(pairs(words))}

    async def record(self, kind: str, name: str, value: bytes | None, expect: int | None) -> int | None:
        keys = self._keys.records
        words = b"0" if value is None else b"1" + value
        expected = "" if expect is None else expect
        # It is not repeated after a lost answer: the call's own write would look like that of another process.
        version: int = await self._wire.run(scripts.RECORD, keys, kind, name, expected, words, repeat=False)
        await self._client.confirmed(keys[0])
        return None if version < 0 else version
