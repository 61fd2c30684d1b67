"""Wake-ups: workers of this process are woken directly, those of others by NOTIFY. A wake-up is only a hint.

NOTIFY goes out on a connection of its own, many hints in one, and no call waits for it. Inside the transaction of an
enqueue it would make concurrent commits wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.store.due import AT_ONCE, HORIZON, DueHints
from headrace.store.postgres.address import Address
from headrace.store.postgres.driver import TROUBLE
from headrace.store.postgres.pool import connect, transaction

CHANNEL: Final = "headrace"
ALL: Final = "*"
"""Stands for every queue."""
_GAP, _LONGEST_GAP = 0.001, 0.01
"""Seconds between two NOTIFYs. The gap grows while many enqueues go on, because workers that are busy need no waking."""
_FEW: Final = 1000.0
"""Hints per second up to which the gap stays short: each of them may be for an idle worker."""
_LATER: Final = 0.05
"""Seconds between two NOTIFYs to all queues about free units: workers of other queues rarely wait for them."""
_NOTIFY: Final = "select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"
"""A transaction of its own in one round trip. A hint need not reach the disk."""
_LAST_WORDS: Final = 1.0
"""Seconds that closing waits for hints to be sent."""
_DUE: Final = "!"
"""Begins a hint about a time at which `promote` will find something. The milliseconds until then follow."""
_LONGEST_DELAY: Final = HORIZON // timedelta(milliseconds=1)
_PING: Final = 10.0
"""Seconds after which a silent LISTEN connection is tested."""
_ANSWER: Final = 5.0
"""Seconds for the server to answer on these connections."""
_ECHOES: Final = (0.02, 0.1, 0.4)
"""Seconds after a job was put into a user's transaction at which workers are woken, because its commit is not reported."""
_ECHO_EVERY, _ECHO_FOR = 0.8, 11.0
"""Later hints about the same job, in seconds. After that time idle workers have claimed without a hint."""
_TROUBLE: Final[tuple[type[BaseException], ...]] = (*TROUBLE, HeadraceError)


Fetch = Callable[[str, str, str], Awaitable[object]]
"""Run a statement with two arguments in a transaction of its own."""


class Bell:
    """Sends and receives the hints of one store object. It connects when first needed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sleepers: dict[asyncio.Event, frozenset[str]] = {}
        self._dirty: set[str] = set()
        self._sending: set[str] = set()
        """Taken from `_dirty` by a NOTIFY that was not answered yet."""
        self._echoing: dict[str, float] = {}
        """Hints about jobs in users' transactions, and until when they are repeated."""
        self._repeating: asyncio.TimerHandle | None = None
        self._from_threads: deque[str] = deque()
        """Queues that threads have rung for and that no task has taken yet."""
        self._attentive = False
        """Whether the task that sends hints looks at those without being woken."""
        self._hints = 0
        """Since the last NOTIFY."""
        self._work = asyncio.Event()
        self._speaker: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Future[Any]] = set()
        """Connections that are being made."""
        self._heard: dict[str, int] = {}
        self._closed = False
        self.count = 0
        """Hints so far."""
        self.seen = 0
        """Hints before the last claim that left nothing. Later hints are new."""
        self.searched = False
        """Whether a claim has begun."""
        self.due = DueHints()
        self.hears = False
        """Whether LISTEN is in force, so that hints of other processes arrive."""
        self._opens: float | None = None
        self._soon: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def close(self, fetch: Fetch) -> None:
        """Send all pending hints over the store's own connections, and stop.

        The task that sends hints may have ended, because `asyncio.run` cancels all tasks before stores are closed.
        """
        if self._closed:
            return
        self._closed = True
        if self._repeating is not None:
            self._repeating.cancel()
        tasks = [task for task in (self._speaker, self._listener) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._speaker = self._listener = None
        if self._opening:
            opened, _ = await asyncio.wait(self._opening, timeout=_LAST_WORDS)
            for opening in opened:
                if not opening.cancelled() and opening.exception() is None:
                    opening.result().terminate()
        if unsent := self._unsent():
            with contextlib.suppress(TimeoutError, *_TROUBLE):
                async with asyncio.timeout(_LAST_WORDS):
                    await _notify(fetch, unsent)

    def _unsent(self) -> set[str]:
        now = asyncio.get_running_loop().time()
        unsent = (
            self._dirty
            | self._sending
            | self._rung_by_threads()
            | {name for name, until in self._echoing.items() if until > now}
        )
        if self._soon is not None:
            self._soon.cancel()
            unsent.add(ALL)
        return unsent

    async def _connect(self, *, listen: bool = False) -> Any:
        """A connection. If the call is cancelled, `close` waits for the driver and ends the connection.

        Cancelled halfway, the driver leaves an error in the event loop that no caller can catch.
        """
        opening = asyncio.ensure_future(connect(self._address, listen=listen, command_timeout=_ANSWER))
        self._opening.add(opening)
        await asyncio.wait([opening])
        self._opening.discard(opening)
        return opening.result()

    # ── sending ─────────────────────────────────────────────────────────────

    def ring(self, queues: Iterable[str]) -> None:
        """Send a hint for these queues. Never blocks."""
        names = set(queues)
        if not names or self._closed:
            return
        self._wake(names)
        self._dirty |= names
        self._hints += 1
        self._work.set()
        if self._speaker is None:
            self._speaker = asyncio.get_running_loop().create_task(self._speak(), name="headrace-notify")

    def ring_from_thread(self, queues: Iterable[str]) -> None:
        """The same from any thread. While hints go out anyhow, it costs no hop into the event loop."""
        self._from_threads.extend(queues)
        loop = self._loop
        if not self._attentive and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._ring_for_threads)

    def _ring_for_threads(self) -> None:
        self.ring(self._rung_by_threads())

    def _rung_by_threads(self) -> set[str]:
        names: set[str] = set()
        with contextlib.suppress(IndexError):
            while True:
                names.add(self._from_threads.popleft())
                self._hints += 1
        return names

    def ring_all(self) -> None:
        """There may be something somewhere."""
        self.ring((ALL,))

    def ring_all_soon(self) -> None:
        """The same, later, and once for all calls until then."""
        if self._soon is None and not self._closed:
            self._soon = asyncio.get_running_loop().call_later(_LATER, self._ring_all_now)

    def _ring_all_now(self) -> None:
        self._soon = None
        self.ring_all()

    def echo(self, queues: Iterable[str]) -> None:
        """Jobs were written in a transaction that will commit later. May be called from any thread."""
        loop, names = self._loop, set(queues)
        if loop is None or loop.is_closed() or not loop.is_running() or self._closed:
            return

        def plan() -> None:
            # The time of a delay has begun when the hint comes. Only the answer of `promote` says what is left of it.
            hints = {due_hint(AT_ONCE) if name.startswith(_DUE) else name for name in names}
            self._echoing |= dict.fromkeys(hints, loop.time() + _ECHO_FOR)
            for delay in _ECHOES:
                loop.call_later(delay, self.ring, hints)
            if self._repeating is None:
                self._repeating = loop.call_later(_ECHO_EVERY, self._echo_again)

        with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
            loop.call_soon_threadsafe(plan)

    def _echo_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._echoing = {name: until for name, until in self._echoing.items() if until > loop.time()}
        self.ring(self._echoing)
        again = bool(self._echoing) and not self._closed
        self._repeating = loop.call_later(_ECHO_EVERY, self._echo_again) if again else None

    async def _speak(self) -> None:
        connection: Any = None
        gap = _GAP
        try:
            while True:
                if not self._work.is_set():
                    # A thread looks at this after it has rung. So this task looks once more for what was rung before.
                    self._attentive = False
                    self._ring_for_threads()
                    await self._work.wait()
                    self._attentive = True
                    gap = _GAP
                self._work.clear()
                self._sending, self._dirty = self._dirty, set()
                self._hints = 0
                began = monotonic()
                try:
                    if connection is None or connection.is_closed():
                        connection = await self._connect()
                    await _notify(self._fetch_on(connection), self._sending)
                except _TROUBLE:
                    # A worker that waits looks by itself once a second, so a server in trouble gets a pause.
                    if connection is not None:
                        connection.terminate()
                    await asyncio.sleep(0.5)
                self._sending = set()
                await asyncio.sleep(gap)
                self._ring_for_threads()
                gap = next_gap(gap, self._hints, monotonic() - began)
        finally:
            self._attentive = False
            if connection is not None:
                connection.terminate()

    def _fetch_on(self, connection: Any) -> Fetch:
        async def fetch(statement: str, *args: str) -> None:
            # Through a transaction pooler a statement reaches the server that prepared it only inside a transaction.
            async with transaction(connection) if self._address.pooled else contextlib.nullcontext():
                await connection.fetch(statement, *args)

        return fetch

    # ── receiving ───────────────────────────────────────────────────────────

    def opens(self, after: timedelta | None) -> None:
        """A job that the last claim skipped may run after this time. None: no such job."""
        self._opens = None if after is None else asyncio.get_running_loop().time() + max(0.0, after.total_seconds())

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        """Wait until there may be a job, at most `timeout` seconds."""
        with self.hearing(queues) as hint:
            if self.heard_since(self.seen, queues):
                # Rung between the claim that left nothing and now.
                self.seen = self.count
                return True
            return await self.until(hint, asyncio.get_running_loop().time() + timeout)

    @contextlib.contextmanager
    def hearing(self, queues: Sequence[str]) -> Generator[asyncio.Event]:
        """An event that each hint for one of these queues sets."""
        self._start_listening()
        hint = asyncio.Event()
        self._sleepers[hint] = frozenset(queues)
        try:
            yield hint
        finally:
            del self._sleepers[hint]

    async def until(self, hint: asyncio.Event, until: float) -> bool:
        """Wait for the hint, or for the time at which a skipped job may run. False: the time `until` comes first."""
        opens = self._opens if self._opens is not None and self._opens < until else None
        try:
            async with asyncio.timeout_at(until if opens is None else opens):
                return await hint.wait()
        except TimeoutError:
            if opens is not None:
                self._opens = None
            return opens is not None

    def heard_since(self, count: int, queues: Sequence[str]) -> bool:
        """Whether a hint for one of these queues came after the first `count` hints."""
        return any(self._heard.get(name, 0) > count for name in (*queues, ALL))

    async def wait_due(self, timeout: float) -> timedelta | None:
        self._start_listening()
        return await self.due.wait(timeout)

    def _start_listening(self) -> None:
        if self._listener is None and self._address.listen_dsns and not self._closed:
            self._listener = asyncio.get_running_loop().create_task(self._listen(), name="headrace-listen")

    def _wake(self, hints: set[str]) -> None:
        names = {hint for hint in hints if not hint.startswith(_DUE)}
        for hint in hints - names:
            self.due.hint(timedelta(milliseconds=_delay_of(hint)))
        if not names:
            return
        self.count += 1
        for name in names:
            self._heard[name] = self.count
        every = ALL in names
        for bell, wanted in self._sleepers.items():
            if every or not wanted.isdisjoint(names):
                bell.set()

    def _on_notify(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        self._wake(set(payload.split(",")))

    async def _listen(self) -> None:
        trouble = 0
        while True:
            connection: Any = None
            try:
                connection = await self._connect(listen=True)
                await connection.add_listener(CHANNEL, self._on_notify)
                self.hears = True
                # This connection missed the hints between the last search, which may still go on, and now.
                self.due.hint(AT_ONCE)
                if self.searched:
                    self._wake({ALL})
                trouble = 0
                await self._stay(connection)
            except _TROUBLE:
                trouble += 1
            finally:
                self.hears = False
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(min(5.0, 0.1 * 2 ** min(trouble, 6)) * (0.5 + random.random()))

    async def _stay(self, connection: Any) -> None:
        gone = asyncio.Event()

        def lost(_connection: Any) -> None:
            gone.set()

        connection.add_termination_listener(lost)
        while not gone.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PING):
                    await gone.wait()
            if not gone.is_set():
                await connection.fetchval("select 1")


def due_hint(after: timedelta) -> str:
    """The hint that something will be due after this time."""
    return f"{_DUE}{after // timedelta(milliseconds=1)}"


def _delay_of(hint: str) -> int:
    """The milliseconds of such a hint. Any program may send to the channel, so what cannot be read means at once."""
    after = hint[len(_DUE) :]
    return min(int(after), _LONGEST_DELAY) if after.isascii() and after.isdecimal() and len(after) < 20 else 0


def next_gap(gap: float, hints: int, seconds: float) -> float:
    """The gap before the next NOTIFY, after so many hints in the seconds since the last one.

    Their rate decides, not their number: a long gap collects several hints of a slow producer, too.
    """
    return min(gap * 1.5, _LONGEST_GAP) if hints > _FEW * seconds else _GAP


async def _notify(fetch: Fetch, queues: Iterable[str]) -> None:
    names = sorted(queues)
    if delays := [_delay_of(name) for name in names if name.startswith(_DUE)]:
        # The first one is enough: the answer of `promote` then tells about the next.
        names = [f"{_DUE}{min(delays)}", *(name for name in names if not name.startswith(_DUE))]
    # A NOTIFY can have 8,000 bytes.
    for start in range(0, len(names), 100):
        await fetch(_NOTIFY, CHANNEL, ",".join(names[start : start + 100]))
