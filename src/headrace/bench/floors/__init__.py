"""The raw floor of each engine: what it writes per second without a queue, and other figures of the engine.

One class per engine, named in `FLOORS`. No other part of the benchmark depends on the kind of store.
A floor's tables have the shape of the store's own job and history rows: one row of each per job, with its key.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.bench.floors.base import Floor
from headrace.bench.floors.postgres import PostgresFloor
from headrace.bench.floors.redis import RedisFloor
from headrace.bench.floors.sqlite import SqliteFloor

__all__ = ["FLOORS", "Floor", "PostgresFloor", "RedisFloor", "SqliteFloor", "of"]


def of(engine: str, url: str) -> Floor | None:
    """The floor of the engine behind a URL; None: it has none."""
    make = FLOORS.get(engine)
    return None if make is None else make(url)


FLOORS: dict[str, Callable[[str], Floor]] = {
    "sqlite": SqliteFloor,
    "postgres": PostgresFloor,
    "redis": RedisFloor,
}
"""By engine. `memory` has none: there is nothing below it."""
