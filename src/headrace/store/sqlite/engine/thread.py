"""The threads that talk to SQLite: one writes, one reads; a verb's whole transaction is one hop."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from headrace.errors import StoreDamaged, Unavailable
from headrace.store.sqlite.engine.address import Address
from headrace.store.sqlite.engine.connection import BUSY_TIMEOUT, connect, cursor, translate
from headrace.store.sqlite.engine.files import Files
from headrace.store.sqlite.engine.timekeeper import Timekeeper
from headrace.store.sqlite.engine.transaction import Tx

_log = logging.getLogger("headrace.sqlite")

T = TypeVar("T")
Work = Callable[[Tx], T]

_GROUP = 64
_LATE = BUSY_TIMEOUT + 2
"""Seconds after which a call that has not begun is given up: the process that holds the write lock is stopped or stuck."""


class Call:
    """One verb on its way through a thread and back."""

    __slots__ = ("_open", "alarm", "first", "future", "look", "prepare", "work")

    def __init__(
        self,
        work: Work[Any],
        future: asyncio.Future[Any] | None,
        *,
        first: bool = False,
        look: Work[Any] | None = None,
        prepare: Work[None] | None = None,
    ) -> None:
        self.work = work
        self.future = future
        """Where the answer goes; None: the calling thread does the work itself, and waits for no answer."""
        self.first = first
        """Before others of its group: a heartbeat waits neither for bulk work nor for a reaper."""
        self.look = look
        """Tried first without the write lock, if no other call of the group needs the lock. An answer other than None replaces the
        work."""
        self.prepare = prepare
        """Done first without the write lock."""
        self.alarm: asyncio.TimerHandle | None = None
        self._open = [True]

    def begin(self) -> bool:
        """True for the first caller only: the thread that does the work, or the alarm that gives it up."""
        try:
            self._open.pop()
        except IndexError:
            return False
        return self.future is None or not self.future.cancelled()


Answer = tuple[Call, Any, BaseException | None]


class Thread(ABC):
    """Takes calls from the event loop, runs them on one connection, and answers."""

    def __init__(self, name: str, address: Address, files: Files, time: Timekeeper) -> None:
        self._address = address
        self._files = files
        self._time = time
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def start(self) -> None:
        """Connect; raises what stands in the way."""
        self._thread.start()
        try:
            await asyncio.shield(self._started)
        except BaseException:
            await self.close()
            raise

    async def call(
        self,
        work: Work[T],
        *,
        first: bool = False,
        look: Work[T | None] | None = None,
        prepare: Work[None] | None = None,
    ) -> T:
        return await self.submit(work, first=first, look=look, prepare=prepare)

    def submit(
        self,
        work: Work[T],
        *,
        first: bool = False,
        look: Work[T | None] | None = None,
        prepare: Work[None] | None = None,
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        if self._closed:
            future.set_exception(Unavailable("the store is closed: open it first"))
            return future
        call = Call(work, future, first=first, look=look, prepare=prepare)
        call.alarm = self._loop.call_later(_LATE, self._give_up, call)
        self._calls.put(call)
        return future

    async def close(self) -> bool:
        """End the thread after the calls that are under way. False: they do not end, and the thread stays."""
        if not self._closed:
            self._closed = True
            self._calls.put(None)
        done, _ = await asyncio.wait({self._ended}, timeout=_LATE)
        if done:
            self._thread.join()
        else:
            _log.warning("%s is kept locked by another process: closing without waiting for it", self._address.path)
        return bool(done)

    def _give_up(self, call: Call) -> None:
        if call.begin() and call.future is not None:
            call.future.set_exception(
                Unavailable(f"{self._address.path} is kept locked by another process: is one stopped or stuck?")
            )

    def _run(self) -> None:
        try:
            conn = self._connect()
        except BaseException as error:  # noqa: BLE001 - it is raised where start() waits
            self._tell(_fail, self._started, error)
        else:
            self._tell(_end, self._started)
            try:
                while (group := self._next()) is not None:
                    try:
                        if group and self._files.lost is not None:
                            self._tell(deliver, [(call, None, self._files.lost) for call in group if call.begin()])
                        elif group:
                            self._do(conn, group)
                        else:
                            self._idle(conn)
                    except Exception as error:  # noqa: BLE001 - it is raised where the calls wait
                        # A call must get an answer, whatever this error is.
                        _log.exception("a call to SQLite ended in an unexpected way")
                        self._tell(deliver, [(call, None, error) for call in group])
            finally:
                self._disconnect(conn)
        finally:
            self._tell(_end, self._ended)

    @abstractmethod
    def _connect(self) -> sqlite3.Connection: ...

    def _disconnect(self, conn: sqlite3.Connection) -> None:
        conn.close()

    @abstractmethod
    def _do(self, conn: sqlite3.Connection, group: list[Call]) -> None: ...

    @abstractmethod
    def _idle(self, conn: sqlite3.Connection) -> None:
        """Called when no call waits."""
        ...

    def _next(self, patience: float | None = None) -> list[Call] | None:
        """The calls that wait, up to a group. Empty: none came in time. None: the store is closed."""
        try:
            call = self._calls.get(timeout=patience)
        except Empty:
            return []
        if call is None:
            return None
        group = [call]
        while len(group) < _GROUP and not self._calls.empty():
            call = self._calls.get()
            if call is None:
                self._calls.put(None)
                break
            group.append(call)
        return group

    def _tell(self, *callback: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(*callback)
        except RuntimeError:
            _log.debug("an event loop ended before its store could answer")

    def _error(self, error: Exception) -> Exception:
        if not isinstance(error, sqlite3.Error):
            return error
        translated = translate(error, self._address)
        if isinstance(translated, StoreDamaged):
            self._files.lose(translated)
        return translated


class Reader(Thread):
    """Reads the file as it is at one moment, and never waits for writers."""

    def _idle(self, conn: sqlite3.Connection) -> None:
        del conn  # a reader is called only when there is something to read

    def _connect(self) -> sqlite3.Connection:
        conn = connect(self._address, writes=False)
        self._files.check()
        return conn

    def _do(self, conn: sqlite3.Connection, group: list[Call]) -> None:
        for call in group:
            if not call.begin():
                continue
            result, error = None, None
            try:
                conn.execute("begin")
                cur = cursor(conn)
                result = call.work(Tx(cur, self._time.read(cur)))
                self._files.check()
            except Exception as problem:  # noqa: BLE001 - it is raised where the call waits
                error = self._error(problem)
            finally:
                if conn.in_transaction:
                    conn.execute("rollback")
            self._tell(deliver, [(call, result, error)])


def deliver(answers: list[Answer]) -> None:
    """Answer calls. Runs in the event loop."""
    for call, result, error in answers:
        if call.alarm is not None:
            call.alarm.cancel()
        if call.future is None or call.future.done():
            continue
        if error is None:
            call.future.set_result(result)
        else:
            call.future.set_exception(error)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def opened(thread: Thread | None) -> Thread:
    if thread is None:
        raise Unavailable("the store is closed: open it first")
    return thread
