"""What every verb of the PostgreSQL store needs: the connections to the server, the wake-ups, and the time."""

from __future__ import annotations

from datetime import datetime

from headrace.model.clock import Clock
from headrace.store.postgres import address
from headrace.store.postgres.pool import Pool
from headrace.store.postgres.wakeup import Bell


class Server:
    """The server as one store object uses it."""

    def __init__(self, url: str, clock: Clock | None) -> None:
        self.address = address.parse(url)
        self.pool = Pool(self.address, size=self.address.pool)
        self.bell = Bell(self.address)
        self._clock = clock

    @property
    def injected(self) -> datetime | None:
        """The time of a test's own clock. None: the functions use the server's clock."""
        return self._clock.now() if self._clock is not None else None

    async def now(self) -> datetime:
        return self.injected or await self.clock_time()

    async def clock_time(self) -> datetime:
        """The time of the server's own clock."""
        now: datetime = (await self.pool.rows("select clock_timestamp()", write=False))[0][0]
        return now
