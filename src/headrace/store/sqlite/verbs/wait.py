"""WAIT: a worker sleeps until there may be something to claim.

Three things wake it: a commit of its own store, a datagram of another process, and a look at SQLite's change counter,
which the store takes a few times a second in case a datagram was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from headrace.store.sqlite.engine.wakeup import ALL, Bell

_LOOK = 0.25
"""Seconds between looks at the change counter while a worker waits."""
_ECHOES = (0.02, 0.1, 0.4)
"""Seconds after a write in the user's own transaction at which workers are woken, because its commit is not reported."""


class Waiting:
    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._loop = asyncio.get_running_loop()
        self._sleepers: dict[asyncio.Future[bool], frozenset[str]] = {}
        self._missed: set[str] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._listening = False
        self._look_at: asyncio.TimerHandle | None = None
        self._seen: int | None = None
        self._closed = False
        self._watched = False
        """Whether anything has claimed or waited here, so that hints matter."""
        self.changes: Callable[[], asyncio.Future[int]] | None = None
        """SQLite's change counter as the writing connection sees it, which does not count its own commits."""

    def looked(self, queues: frozenset[str]) -> None:
        """A claim begins. It finds what the hints up to now are about."""
        self._watched = True
        self._missed -= queues
        self._missed.discard(ALL)

    async def wait(self, names: frozenset[str], timeout: float, opens_in: float | None = None) -> bool:
        """`opens_in`: seconds after which a job that the last claim passed over may run."""
        self._watched = True
        self._listen()
        if ALL in self._missed or not self._missed.isdisjoint(names):
            self.looked(names)
            return True
        sleeper: asyncio.Future[bool] = self._loop.create_future()
        self._sleepers[sleeper] = names
        if self._look_at is None:
            self._seen = None
            self._look()
        opens = opens_in is not None and opens_in < timeout
        patience = timeout if opens_in is None else min(timeout, opens_in)
        alarm = self._loop.call_later(max(patience, 0), _end, sleeper, opens)
        try:
            return await sleeper
        finally:
            alarm.cancel()
            self._sleepers.pop(sleeper, None)

    def hint(self, queues: Iterable[str]) -> None:
        """Wake workers: these queues may have jobs now. Runs in the event loop."""
        names = set(queues)
        for sleeper, wanted in list(self._sleepers.items()):
            if ALL in names or names & wanted:
                _end(sleeper, True)
        self._missed |= names

    def hint_from_thread(self, queues: Iterable[str]) -> None:
        """The same from any thread. A store that only produces is spared the hop into its event loop."""
        if self._watched:
            with suppress(RuntimeError):  # the loop is gone, and with it what waited
                self._loop.call_soon_threadsafe(self.hint, queues)

    def echo(self, queues: set[str]) -> None:
        """The user's transaction makes jobs of these queues ready when it commits. Runs in any thread."""
        with suppress(RuntimeError):  # the loop is gone, and no worker waits in it
            self._loop.call_soon_threadsafe(self._echo, queues)

    def close(self) -> None:
        self._closed = True
        for timer in (*self._timers, *((self._look_at,) if self._look_at else ())):
            timer.cancel()
        if self._listening:
            ear = self._bell.listen()
            if ear is not None:
                self._loop.remove_reader(ear)
        for sleeper in self._sleepers:
            _end(sleeper, False)
        self._bell.close()

    def _echo(self, queues: set[str]) -> None:
        if self._closed:
            return
        for delay in _ECHOES:
            timer = self._loop.call_later(delay, self._tell, queues)
            self._timers.add(timer)
        now = self._loop.time()
        self._timers = {timer for timer in self._timers if timer.when() > now - 1 and not timer.cancelled()}

    def _tell(self, queues: set[str]) -> None:
        self.hint(queues)
        self._bell.ring(queues)
        self._bell.pay()

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            ear = self._bell.listen()
            if ear is not None:
                self._loop.add_reader(ear, lambda: self.hint(self._bell.hear()))

    def _look(self) -> None:
        self._look_at = None
        if self._closed or not self._sleepers or self.changes is None:
            return
        self._look_at = self._loop.call_later(_LOOK, self._look)
        self.changes().add_done_callback(self._compare)

    def _compare(self, answer: asyncio.Future[int]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        version = answer.result()
        if self._seen is not None and version != self._seen:
            self.hint({ALL})
        self._seen = version


def _end(sleeper: asyncio.Future[bool], woken: bool) -> None:
    if not sleeper.done():
        sleeper.set_result(woken)
