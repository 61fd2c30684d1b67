"""The writing thread: calls that wait together share one transaction, and so one sync to the disk."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.errors import OutcomeUnknown, StoreDamaged
from headrace.store.sqlite.engine.address import Address
from headrace.store.sqlite.engine.connection import InUse, Locked, connect, cursor
from headrace.store.sqlite.engine.files import Files
from headrace.store.sqlite.engine.log_room import LogRoom
from headrace.store.sqlite.engine.thread import Answer, Call, T, Thread, Work, deliver
from headrace.store.sqlite.engine.timekeeper import Timekeeper
from headrace.store.sqlite.engine.transaction import Depth, Tx
from headrace.store.sqlite.engine.wakeup import Bell
from headrace.store.sqlite.engine.write_lock import WriteLock

_log = logging.getLogger("headrace.sqlite")

_COALESCE = 0.002
"""Seconds in which hints to other processes are gathered into one."""
_ENOUGH = 64
"""Commits, after which an idle writer moves the log into the file."""
_LOOK_AT_LOG = 32
"""Commits between two looks at whether the log grows."""
_IDLE = 0.1
"""Seconds without a call that make a writer idle."""
_WATCH = 0.05
"""Seconds for which the writing thread looks after the bell once another thread has written."""
_BRIEFLY = 0.002
"""Seconds that a calling thread tries to get the turn before it leaves its call to the writing thread."""


def _nothing(_: Tx) -> None:
    """Of a call that only ends a sleep."""


_NUDGE = Call(_nothing, None)
"""Wakes the writing thread: there may be something owed."""


class Writer(Thread):
    def __init__(
        self,
        address: Address,
        files: Files,
        time: Timekeeper,
        bell: Bell,
        turn: WriteLock | None,
        heard: Callable[[set[str]], Any],
        tidy: Callable[[], Call],
    ) -> None:
        """`tidy`: a call for when there was no other one for a while, and before the store closes."""
        super().__init__("headrace-sqlite-writer", address, files, time)
        self._bell = bell
        self._turn = turn
        self._heard = heard
        self._last = 0.0
        self._commits = 0
        """Commits since this writer moved the log into the file."""
        self._room = LogRoom(files)
        self._tidy = tidy
        self._untidy = False
        """Whether anything was committed since the last `tidy`."""
        self._sleeping = False
        """Whether this thread may sleep until the next call. Set before the look at `_untidy`, which other threads set."""
        self._conn: sqlite3.Connection | None = None
        self._watch_until = 0.0
        self._watching = False
        """Whether this thread looks every few milliseconds what other threads owe to the bell."""
        self._using = threading.Lock()
        """Held while a thread uses the connection: this one, or a caller in `do_here`."""

    def _connect(self) -> sqlite3.Connection:
        # SQLite turns the log on without waiting, so two processes that open a new file at once do so in turns.
        if self._turn is None:
            return self._connect_now()
        self._turn.take()
        try:
            return self._connect_now()
        finally:
            self._turn.leave()

    def _connect_now(self) -> sqlite3.Connection:
        self._files.before_connect()
        conn = connect(self._address, writes=True)
        try:
            self._files.after_connect()
        except BaseException:
            conn.close()
            raise
        self._room.look()
        self._room.is_short = False  # what is there may be enough
        self._conn = conn
        return conn

    def _disconnect(self, conn: sqlite3.Connection) -> None:
        with self._using:
            if self._untidy and self._files.lost is None:
                conn.execute("pragma busy_timeout = 0")  # closing waits for no other writer
                for call in self._look(conn, [self._tidy()]):
                    self._write(conn, [call], within=0)
            self._conn = None
            conn.close()

    def changes(self) -> asyncio.Future[int]:
        """SQLite's counter of other connections' commits."""
        return self.submit(_changes, look=_changes)

    def _next(self, patience: float | None = None) -> list[Call] | None:
        del patience
        now = time.monotonic()
        # Other threads look at this after they have rung the bell, so it is set before the look at what is owed.
        self._watching = now < self._watch_until
        self._sleeping = True
        if self._untidy or self._watching:
            self._sleeping = False
        rest = None if self._sleeping else _IDLE
        group = super()._next(_COALESCE if self._bell.owed or self._watching else rest)
        self._sleeping = False
        if group and _NUDGE in group:
            if self._bell.owed:
                self._watch_until = now + _WATCH
            return [call for call in group if call is not _NUDGE]
        if not group and self._bell.owed:
            self._bell.pay()
            self._watch_until = now + _WATCH if self._watching else 0.0
        return group

    def _idle(self, conn: sqlite3.Connection) -> None:
        """Tidy, and move the log into the file, while no call waits for it. Otherwise the commit that makes the log long
        does so.
        """
        if not self._untidy or time.monotonic() - self._last < _IDLE:
            return
        self._untidy = False
        self._do(conn, [self._tidy()])
        if self._commits >= _ENOUGH:
            with self._using:
                self._checkpoint(conn)

    def _checkpoint(self, conn: sqlite3.Connection) -> None:
        self._commits = 0
        if self._turn is not None:
            self._turn.take()
        try:
            conn.execute("pragma wal_checkpoint(passive)").fetchall()
        except sqlite3.Error as error:
            _log.debug("the log of %s stays as it is: %s", self._address.path, self._error(error))
        finally:
            if self._turn is not None:
                self._turn.leave()

    def _do(self, conn: sqlite3.Connection, group: list[Call]) -> None:
        while group:
            with self._using:
                group = self._look(conn, group)
                if not group and not self._time.objects:
                    return
                group.sort(key=lambda call: not call.first)
                answers, awake, group = self._write(conn, group)
            self._tell(self._deliver, answers, awake)
            if awake:
                self._bell.ring(awake)

    def do_here(self, work: Work[T], prepare: Work[None]) -> tuple[T, set[str]]:
        """One call in the calling thread, on this writer's connection, and the queues that have something to claim now.

        Raises Locked where another writer would keep the thread waiting: the writing thread waits better, because it gives
        up in time and collects what comes meanwhile.
        """
        self._check_free()
        with self._using:
            if (conn := self._conn) is None:
                raise Locked(f"{self._address.path} is closed")
            call = Call(work, None)
            prepare(Tx(cursor(conn), self._time.now()))
            [(_, result, error)], awake, _ = self._write(conn, [call], within=_BRIEFLY)
        if error is not None:
            raise error
        self._announce(awake)
        return result, awake

    def insert_here(self, statement: str, values: tuple[Any, ...], awake: set[str]) -> int:
        """One statement in the calling thread, which commits by itself: the number of the row. Raises as `do_here`.

        A transaction around it would be two statements more. `awake`: the queues that have something to claim now.
        """
        self._check_free()
        with self._using:
            if (conn := self._conn) is None:
                raise Locked(f"{self._address.path} is closed")
            self._take_turn(_BRIEFLY)
            try:
                if self._room.is_short:
                    conn.execute("begin immediate")
                    self._room.extend()
                number = conn.execute(statement, values).lastrowid
                if conn.in_transaction:
                    conn.execute("commit")
                self._committed()
            except sqlite3.Error as problem:
                raise self._commit_error(problem) from problem
            finally:
                if conn.in_transaction:
                    conn.execute("rollback")
                if self._turn is not None:
                    self._turn.leave()
        self._announce(awake)
        return number or 0

    def _announce(self, awake: set[str]) -> None:
        """Wake workers of other processes after a commit of the calling thread. The writing thread does what can wait."""
        if awake:
            self._bell.ring(awake)
        if self._sleeping or (self._bell.owed and not self._watching):
            self._calls.put(_NUDGE)

    def _check_free(self) -> None:
        if self._closed or self._files.lost is not None:
            raise Locked(f"{self._address.path} is closed")
        if self._using.locked():
            raise InUse(f"another call writes to {self._address.path}")

    def _committed(self) -> None:
        """Nothing is acknowledged before this: raises StoreDamaged if the file was lost."""
        self._commits += 1
        self._last = time.monotonic()
        self._untidy = True
        self._files.check()
        if self._commits % _LOOK_AT_LOG == 0 and self._address.sync == "full":
            self._room.look()

    def _write(
        self, conn: sqlite3.Connection, group: list[Call], *, within: float | None = None
    ) -> tuple[list[Answer], set[str], list[Call]]:
        """The answers of a group, the queues that have something to claim, and the calls that are left over."""
        answers: list[Answer] = []
        depth = Depth()
        try:
            rest = self._transact(conn, group, answers, depth, within)
        except Exception as problem:  # noqa: BLE001 - it is raised where the calls wait
            error = self._commit_error(problem)
            rest = []
            failed = {id(call) for call, _, own in answers if own is None}
            answers = [(call, None, own or error) for call, _, own in answers]
            answers += [(call, None, error) for call in group if call.begin() and id(call) not in failed]
            depth = Depth()
        return answers, depth.awake, rest

    def _deliver(self, answers: list[Answer], awake: set[str]) -> None:
        deliver(answers)
        if awake:
            self._heard(awake)

    def _look(self, conn: sqlite3.Connection, group: list[Call]) -> list[Call]:
        """Prepare calls, and answer those that need no write. The others remain."""
        rest: list[Call] = []
        answers: list[Answer] = []
        cur = cursor(conn)
        now = self._time.now()
        # With the lock taken anyway, a look is work on top. And a settlement in the group may release what a claim looks for.
        writes = any(call.look is None for call in group)
        for call in group:
            answer = None
            first = call.prepare if writes else call.look
            if first is not None:
                try:
                    answer = first(Tx(cur, now))
                except Exception:  # noqa: BLE001 - the work itself meets the same error and reports it
                    answer = None
            if answer is None:
                rest.append(call)
            elif call.begin():
                answers.append((call, answer, None))
        if answers:
            self._tell(deliver, self._if_unchanged(answers))
            self._time.read(cur)  # after the answer, for the next look
        return rest

    def _if_unchanged(self, answers: list[Answer]) -> list[Answer]:
        """The answers count only if the path still names the file that was read."""
        try:
            self._files.check()
        except StoreDamaged as error:
            return [(call, None, error) for call, _, _ in answers]
        return answers

    def _transact(
        self, conn: sqlite3.Connection, group: list[Call], answers: list[Answer], depth: Depth, within: float | None
    ) -> list[Call]:
        """Run a group in one transaction. Answers the calls that remain if SQLite rolled it back half-way.

        `within`: seconds to wait for the write lock; None: without a limit.
        """
        asked = time.monotonic()
        self._take_turn(within)
        try:
            self._files.check()
            conn.execute("begin immediate")
            waited = time.monotonic() - asked
            if self._room.is_short:
                self._room.extend()
            cur = cursor(conn)
            now = self._time.keep(cur)
            alone = len(group) == 1
            for nth, call in enumerate(group):
                if not call.begin():
                    continue
                # A call that fails alone ends the transaction, so only one among others needs counts of its own.
                tx = Tx(cur, now, depth if alone else Depth(), waited)
                answer = self._attempt(conn, call, tx, alone=alone)
                answers.append(answer)
                if not conn.in_transaction:
                    # Without space or memory SQLite has undone the others, too.
                    answers[:] = [(done, None, error or answer[2]) for done, _, error in answers]
                    depth.awake.clear()
                    return group[nth + 1 :]
                if answer[2] is None and not alone:
                    depth.merge(tx.depth)
            depth.write(cur)
            conn.execute("commit")
            self._committed()
        finally:
            if conn.in_transaction:
                conn.execute("rollback")
            if self._turn is not None:
                self._turn.leave()
        return []

    def _take_turn(self, within: float | None) -> None:
        if self._turn is None:
            return
        if within is None:
            self._turn.take()
        elif not self._turn.take_soon(within):
            raise Locked(f"another process writes to {self._address.path}")

    def _attempt(self, conn: sqlite3.Connection, call: Call, tx: Tx, *, alone: bool) -> Answer:
        """Run one verb. If it fails, only its own changes are undone."""
        if not alone:
            tx.cur.execute("savepoint one")
        try:
            result = call.work(tx)
        except Exception as problem:  # noqa: BLE001 - it is raised where the call waits
            if conn.in_transaction and not alone:
                tx.cur.execute("rollback to one")
                tx.cur.execute("release one")
            elif conn.in_transaction:
                tx.cur.execute("rollback")
            return call, None, self._error(problem)
        if not alone:
            tx.cur.execute("release one")
        return call, result, None

    def _commit_error(self, problem: Exception) -> Exception:
        error = self._error(problem)
        code = getattr(problem, "sqlite_errorcode", 0)
        if code & 0xFF == sqlite3.SQLITE_IOERR:
            return OutcomeUnknown(f"the disk failed while {self._address.path} was written: {problem}")
        return error


def _changes(tx: Tx) -> int:
    version: int = tx.cur.execute("pragma data_version").fetchone()[0]
    return version
