"""The raw floor of each engine: what it writes per second without a queue, and other figures of the engine.

One class per engine, named in `FLOORS`. No other part of the benchmark depends on the kind of store.
A floor's tables have the shape of the store's own job and history rows: one row of each per job, with its key.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.floors.base import RawFloor
from benchmarks.floors.postgres import PostgresFloor
from benchmarks.floors.redis import RedisFloor
from benchmarks.floors.sqlite import SqliteFloor

__all__ = ["FLOORS", "PostgresFloor", "RawFloor", "RedisFloor", "SqliteFloor", "of"]


def of(engine: str, url: str) -> RawFloor | None:
    """The floor of the engine behind a URL; None: it has none."""
    make = FLOORS.get(engine)
    return None if make is None else make(url)


FLOORS: dict[str, Callable[[str], RawFloor]] = {
    "sqlite": SqliteFloor,
    "postgres": PostgresFloor,
    "redis": RedisFloor,
}
"""By engine. The memory store has no floor, because there is no engine below it."""
