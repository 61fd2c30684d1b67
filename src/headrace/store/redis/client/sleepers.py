"""Waits of one process that share a connection: one blocking pop on the lists of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from headrace.store.redis.client.faults import Cut, Refused

if TYPE_CHECKING:
    from headrace.store.redis.client.connection import Pool

_UNHEARD: Final = 60_000
"""Milliseconds after which a bell is gone that was rung too late."""
_SOON: Final = 0.25
"""Seconds in which a pop that serves no wait any more may end by itself."""
_LAST_WORDS: Final = 1.0


@dataclass(slots=True, eq=False)
class _Sleeper:
    keys: Sequence[str]
    until: float
    woken: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """The list that an element was taken from for this wait."""


class Sleepers:
    """The server blocks one connection for all waits, until the last of them is over.

    A wait on a list that the server does not know of yet rings the bell, a list of their own: the pop ends, and is asked anew with
    all lists. A wait that ends early changes nothing: should an element come for it, that is put back.
    """

    def __init__(self, pool: Pool, bell: str) -> None:
        self._pool, self._bell = pool, bell
        self._waiting: dict[str, dict[_Sleeper, None]] = {}
        """By list, in the order in which they came."""
        self._asked: frozenset[str] = frozenset()
        self._until = 0.0
        self._rung = False
        self._listening: asyncio.Task[None] | None = None

    async def wait(self, keys: Sequence[str], timeout: float) -> str | None:
        """The first of these lists that has an element, which is taken; None: the time is up. Raises Cut or Refused."""
        sleeper = _Sleeper(keys, asyncio.get_running_loop().time() + timeout)
        for key in keys:
            self._waiting.setdefault(key, {})[sleeper] = None
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(), name="headrace-sleepers")
        elif not self._asked.issuperset(keys):
            self._ring()
        try:
            await asyncio.wait([sleeper.woken], timeout=timeout)
        except asyncio.CancelledError:
            self._leave(sleeper)
            if sleeper.woken.done() and sleeper.woken.exception() is None:
                self._pool.put_back(sleeper.woken.result())
            elif not self._waiting and self._until - asyncio.get_running_loop().time() > _SOON:
                self._ring()
            raise
        self._leave(sleeper)
        return sleeper.woken.result() if sleeper.woken.done() else None

    def _leave(self, sleeper: _Sleeper) -> None:
        for key in sleeper.keys:
            if (others := self._waiting.get(key)) is not None:
                others.pop(sleeper, None)
                if not others:
                    del self._waiting[key]

    def _ring(self) -> None:
        if not self._rung and self._listening is not None:
            self._rung = True
            self._pool.send_off([("RPUSH", self._bell, 1), ("PEXPIRE", self._bell, _UNHEARD)])

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                self._asked, self._rung = frozenset(self._waiting), False
                self._until = max(sleeper.until for some in self._waiting.values() for sleeper in some)
                timeout = max(0.01, self._until - loop.time())
                [answer] = await self._pool.block([("BLPOP", *self._asked, self._bell, f"{timeout:.3f}")], timeout)
                if isinstance(answer, Exception):
                    raise answer
                if answer is not None:
                    self._wake(cast("list[bytes]", answer)[0].decode())
        except (Cut, Refused) as error:
            for sleeper in [sleeper for some in self._waiting.values() for sleeper in some]:
                self._leave(sleeper)
                if not sleeper.woken.done():
                    sleeper.woken.set_exception(error)
        finally:
            self._listening = None
            self._asked = frozenset()

    def _wake(self, key: str) -> None:
        """An element was taken from this list: it belongs to the wait that has lasted longest."""
        if key == self._bell:
            return
        sleeper = next(iter(self._waiting.get(key, ())), None)
        if sleeper is None:
            self._pool.put_back(key)
            return
        self._leave(sleeper)
        sleeper.woken.set_result(key)

    async def close(self) -> None:
        if self._listening is None:
            return
        for sleeper in [sleeper for some in self._waiting.values() for sleeper in some]:
            self._leave(sleeper)
            if not sleeper.woken.done():
                sleeper.woken.set_exception(Cut("the store was closed", sent=False))
        self._ring()
        listening = self._listening
        await asyncio.wait([listening], timeout=_LAST_WORDS)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
