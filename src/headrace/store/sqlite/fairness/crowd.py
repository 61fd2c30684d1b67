"""Many queues: which of those that a worker serves have jobs waiting, without a look at each of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from headrace.store.sqlite.engine.statements import load
from headrace.store.sqlite.engine.transaction import Tx

_SQL = load("claim")
_FEW = 32
"""Queues; so few are looked at one by one."""
_FIRST = 64
"""Waiting queues that the first step reads. Each further step reads eight times as many."""
_decode = msgspec.json.Decoder(list[tuple[int, str]]).decode


class Names:
    """Queues as a set. A worker asks for the same ones again and again, so the last set is remembered."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[str], frozenset[str]] = ((), frozenset())

    def of(self, queues: Sequence[str]) -> frozenset[str]:
        last, names = self._last
        if last is not queues:
            names = frozenset(queues)
            if isinstance(queues, tuple):
                self._last = (queues, names)
        return names


def may_wait(tx: Tx, queues: Sequence[str], names: frozenset[str]) -> Iterator[str]:
    """The queues that may have jobs waiting. With many queues: only those that have."""
    if len(queues) <= _FEW:
        yield from queues
        return
    after, size, read = -1, _FIRST, 0
    while read <= len(queues):
        (text,) = tx.cur.execute(_SQL["waiting"], (after, size)).fetchone()
        waiting = _decode(text)
        yield from (name for _, name in waiting if name in names)
        if len(waiting) < size:
            return
        after, size, read = waiting[-1][0], size * 8, read + len(waiting)
    # More queues of others wait than were asked for.
    yield from queues
