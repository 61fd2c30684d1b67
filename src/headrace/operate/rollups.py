"""Reads rollups from a store, in as many pages as they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.model.rollup import Rollup, RollupKey
from headrace.store.contract import Store

_TRIES: Final = 3
"""How often the pages are read, until no fold comes between two of them."""


async def read_rollups(
    store: Store,
    ranges: Sequence[tuple[int, int]],
    take: Callable[[Rollup], None],
    *,
    restart: Callable[[], None],
    queue: str | None = None,
    task: str | None = None,
) -> None:
    """Call `take` with each rollup whose start lies in one of these ranges.

    A fold between two pages may hide rollups or show them twice. Then the reading begins again, after a call of `restart`.
    """
    for _ in range(_TRIES):
        restart()
        if await _read_once(store, ranges, take, queue, task):
            return


async def _read_once(
    store: Store,
    ranges: Sequence[tuple[int, int]],
    take: Callable[[Rollup], None],
    queue: str | None,
    task: str | None,
) -> bool:
    """False: a fold came between two pages."""
    folds: int | None = None
    for first, last in ranges:
        after: RollupKey | None = None
        while True:
            page = await store.read_history(first, last, queue=queue, task=task, after=after)
            if folds is not None and folds != page.folds:
                return False
            for rollup in page.rollups:
                take(rollup)
            folds, after = page.folds, page.next
            if after is None:
                break
    return True
