"""History: rollups are added, read in pages, and folded into fewer. All of them lie in one slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from headrace.model.rollup import MAX_ROLLUPS, AttemptEnd, HistoryPage, Rollup, RollupKey
from headrace.store.redis.client import scripts
from headrace.store.redis.client.client import Client
from headrace.store.redis.client.connection import Reply

_AT_ONCE: Final = 100
"""Rollups that one script adds, so that no other call waits long."""
_DIGITS: Final = 10
"""Of the minute in a key. With leading zeros, the order of the keys as text is the order of the rollups."""


class _Value(msgspec.Struct, frozen=True, array_like=True):
    """What a rollup holds besides its key."""

    span: int
    queue: str
    task: str
    end: AttemptEnd
    count: int
    wait: bytes
    run: bytes
    sent: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Value).decode


class History:
    """See the contract."""

    def __init__(self, client: Client) -> None:
        self._wire, self._keys = client.wire, client.keys

    async def add_history(self, rollups: Sequence[Rollup]) -> None:
        for start in range(0, len(rollups), _AT_ONCE):
            await self._wire.run(scripts.ADD_HISTORY, self._keys.history, *_words(rollups[start : start + _AT_ONCE]))

    async def read_history(
        self,
        since: int,
        until: int,
        *,
        queue: str | None = None,
        task: str | None = None,
        after: RollupKey | None = None,
        limit: int = MAX_ROLLUPS,
    ) -> HistoryPage:
        first = f"[{_minute(since)}" if after is None else f"({_name(after)}"
        answer: Reply = await self._wire.run(
            scripts.READ_HISTORY, self._keys.history, first, f"({_minute(until)}", limit + 1
        )
        folds, names, values = answer
        keys = [RollupKey(int(name[:_DIGITS]), UUID(hex=name[_DIGITS:].decode())) for name in names]
        page = [_rollup(key, _decode(value)) for key, value in zip(keys[:limit], values, strict=False)]
        fitting = [rollup for rollup in page if queue in {None, rollup.queue} and task in {None, rollup.task}]
        return HistoryPage(fitting, keys[limit - 1] if len(keys) > limit else None, folds)

    async def fold_history(self, gone: Sequence[RollupKey], rollups: Sequence[Rollup]) -> bool:
        words = (len(gone), *(_name(key) for key in gone), *_words(rollups))
        # After a lost answer the rollups may be gone by this very call. The caller reads again, and finds it done.
        folded: int = await self._wire.run(scripts.FOLD_HISTORY, self._keys.history, *words)
        return bool(folded)


def _minute(minute: int) -> str:
    return f"{max(minute, 0):0{_DIGITS}}"


def _name(key: RollupKey) -> str:
    return _minute(key.start) + key.id.hex


def _words(rollups: Sequence[Rollup]) -> list[str | bytes]:
    words: list[str | bytes] = []
    for rollup in rollups:
        value = _Value(
            rollup.span,
            rollup.queue,
            rollup.task,
            rollup.end,
            rollup.count,
            rollup.wait,
            rollup.run,
            rollup.sent,
        )
        words += (_name(rollup.key), _encode(value))
    return words


def _rollup(key: RollupKey, value: _Value) -> Rollup:
    return Rollup(
        start=key.start,
        id=key.id,
        span=value.span,
        queue=value.queue,
        task=value.task,
        end=value.end,
        count=value.count,
        wait=value.wait,
        run=value.run,
        sent=value.sent,
    )
