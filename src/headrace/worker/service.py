"""The base of a worker's services: a bell to sleep by, a backoff, and a task that starts again after an error."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod

from headrace.errors import StoreDamaged

log = logging.getLogger("headrace.worker")

FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0


class Bell:
    """A wake-up for one sleeper. The bell remembers a ring that comes while no task sleeps."""

    __slots__ = ("_rung", "_sleeper")

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        sleeper = self._sleeper
        if sleeper is None:
            self._rung = True
        elif not sleeper.done():
            sleeper.set_result(None)

    def forget(self) -> None:
        """Forget earlier rings, because the caller checks for work now."""
        self._rung = False

    async def wait(self, seconds: float | None = None) -> bool:
        """Sleep until the bell rings, or that many seconds. True: it rang."""
        if self._rung:
            self._rung = False
            return True
        loop = asyncio.get_running_loop()
        sleeper = self._sleeper = loop.create_future()
        timed_out = False

        def give_up() -> None:
            nonlocal timed_out
            timed_out = True
            if not sleeper.done():
                sleeper.set_result(None)

        timer = None if seconds is None else loop.call_later(max(seconds, 0.0), give_up)
        try:
            await sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()
        return not timed_out


class Backoff:
    """Full jitter from 0.1 to 5 seconds, growing with every failure in a row."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures = 0

    def reset(self) -> None:
        self.failures = 0

    def next(self) -> float:
        ceiling = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(self.failures, 10))
        self.failures += 1
        return random.uniform(ceiling / 10, ceiling)


class OutageLog:
    """Logs once that an action fails, and once that it works again."""

    __slots__ = ("_since", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None

    def raise_(self, error: BaseException) -> None:
        # Damage does not go away: the worker logs it once, and ends.
        if self._since is None and not isinstance(error, StoreDamaged):
            self._since = asyncio.get_running_loop().time()
            log.warning("%s failed, trying again until it works: %s", self._what, error, extra={"error": str(error)})

    def settle(self) -> None:
        if self._since is not None:
            seconds = asyncio.get_running_loop().time() - self._since
            self._since = None
            log.info("%s works again after %.1f s", self._what, seconds)


class Service(ABC):
    """One function of the worker as one long-running coroutine."""

    name: str

    def __init__(self) -> None:
        self.bell = Bell()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run(self) -> None:
        """Do the service's work without end. If an exception escapes, it is logged and `run` starts again."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run_for_ever(), name=f"headrace-{self.name}")

    async def stop(self) -> None:
        """Cancel the service's coroutine and wait for its end."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run_for_ever(self) -> None:
        backoff = Backoff()
        while True:
            try:
                await self.run()
            except Exception:
                log.exception("the %s met an unexpected error and starts again", self.name, extra={"room": self.name})
            await asyncio.sleep(backoff.next())
