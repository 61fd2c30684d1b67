"""What every verb of the PostgreSQL store needs: the way to the server, its bell, and the time."""

from __future__ import annotations

from datetime import datetime

from headrace.model.clock import Clock
from headrace.store.postgres import address
from headrace.store.postgres.pool import Pool
from headrace.store.postgres.wakeup import Bell


def call(verb: str, count: int, columns: str = "*") -> str:
    """The statement that calls a verb with so many arguments."""
    return f"select {columns} from headrace.{verb}({', '.join(f'${n}' for n in range(1, count + 1))})"


class Base:
    """Shared by the verbs."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self._address = address.parse(url)
        self._clock = clock
        self._pool = Pool(self._address, size=self._address.pool)
        self._bell = Bell(self._address)

    def _now(self) -> datetime | None:
        """The injected clock; None: the server's own."""
        return self._clock.now() if self._clock is not None else None

    async def now(self) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        now: datetime = (await self._pool.rows("select clock_timestamp()", write=False))[0][0]
        return now
