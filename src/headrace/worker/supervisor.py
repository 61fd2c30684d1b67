"""The supervisor watches N worker processes from outside: signals, causes of crashes, leases of stuck workers."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import random
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

import msgspec

from headrace.errors import ConfigError, HeadraceError, Unavailable
from headrace.model.lease import WorkerId, new_worker_id
from headrace.policy.explain import sentences
from headrace.runtime.sighup import on_hangup
from headrace.settings import Settings
from headrace.store import connect, in_one_process, scheme_of
from headrace.store.contract import Store
from headrace.worker import child, parent_watch, wire
from headrace.worker.hand_back import hand_back_unstarted
from headrace.worker.keeper import PATIENCE, refuse_short_lease
from headrace.worker.process_table import ProcessTable
from headrace.worker.service import Backoff, Bell, OutageLog, log
from headrace.worker.shared_page import PageEntry, SharedPageView

LIVED_WELL = 30.0
"""A process that lived this many seconds is not in a crash loop."""
FIRST_RESTART, SLOWEST_RESTART = 0.2, 30.0
"""Seconds until a dead process is replaced, doubled for each crash in a row."""
SLOWEST_AFTER_WORK = 2.0
"""The longest such pause if the process had ended jobs, so that waiting jobs do not suffer from one that crashes."""
MARGIN = 1.0
"""Seconds that a stuck process gets beyond its job's deadline and the grace."""


class ChildProcess:
    """One worker process."""

    def __init__(self, settings: Settings) -> None:
        self.id: WorkerId = new_worker_id()
        self.page = SharedPageView()
        self.started_at = monotonic()
        self.renewed_at = 0.0
        self.said_stuck = False
        self.killed_for = ""
        self.retiring = ""
        self._control, theirs = socket.socketpair()
        with theirs:
            self.process = parent_watch.spawn("headrace.worker.child", theirs.fileno(), self.page.fd)
        config = child.Config(
            settings=settings,
            worker=self.id,
            path=sys.path,
            pythonpath=os.environ.get("PYTHONPATH"),
            parent=os.getpid(),
        )
        try:
            self._control.sendall(wire.frame(msgspec.msgpack.encode(config)))
        except OSError as error:
            log.warning("worker process %d was dead before it started: %s", self.process.pid, error)

    def signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    @property
    def name(self) -> str:
        return f"{socket.gethostname()}:{self.pid}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stopped(self) -> bool:
        """Frozen by SIGSTOP or a debugger. It does not work, so its leases may go to other workers."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in {"T", "t"}

    def close(self) -> None:
        self._control.close()
        self.page.close()


class Supervisor:
    """Starts worker processes, renews their leases while they are stuck, and replaces those that have ended."""

    def __init__(self, settings: Settings, table: ProcessTable | None = None) -> None:
        if in_one_process(settings.url):
            raise ConfigError(
                f"{scheme_of(settings.url)}:// lives in one process only: use sqlite:/// or postgresql:// with `headrace worker`"
            )
        refuse_short_lease(settings)
        if not settings.app:
            raise ConfigError("no app is named: name it as package.module:app")
        self._settings = settings
        self._children: list[ChildProcess] = []
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._bell = Bell()
        self._errands: set[asyncio.Task[None]] = set()
        self._stops = 0
        self._table = table or ProcessTable()
        self._stop = self._table.stop
        self._code = 0

    # ── life ────────────────────────────────────────────────────────────────
    async def run(self) -> int:
        """Run until stopped. Returns the exit code."""
        self._install_signals()
        places = [
            asyncio.create_task(self._keep_running(number), name=f"place-{number}")
            for number in range(self._settings.processes)
        ]
        watch = asyncio.create_task(self._watch(), name="watch")
        try:
            await asyncio.gather(*places)
        finally:
            for task in (watch, *places):
                task.cancel()
            await asyncio.wait([watch, *places])
            await self._finish_errands()
            if self._store is not None:
                await self._store.close()
        return self._code

    def stop(self) -> None:
        """The first time: drain. Again: hand back at once."""
        self._stops += 1
        first = self._stops == 1
        log.info("stopping: %s", "draining" if first else "handing back at once")
        self._tell(signal.SIGTERM if first else signal.SIGQUIT)
        self._stop.set()

    def drain(self) -> None:
        """Stop after a closed terminal, once: the shell may send TERM as well, and that must not hurry the stop."""
        if not self._stops:
            self.stop()

    def hurry(self) -> None:
        self._stops += 1
        log.info("stopping: handing back at once")
        self._tell(signal.SIGQUIT)
        self._stop.set()

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        loop.add_signal_handler(signal.SIGINT, self.stop)
        on_hangup(self.drain)
        loop.add_signal_handler(signal.SIGQUIT, self.hurry)
        loop.add_signal_handler(signal.SIGTSTP, self._tell, signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGUSR1, self._dump)

    def _dump(self) -> None:
        faulthandler.dump_traceback(all_threads=True)
        self._tell(signal.SIGUSR1)

    def _tell(self, number: signal.Signals) -> None:
        for child_process in self._children:
            # Before its handlers are set, TSTP would freeze a process, and USR1 or QUIT would end it with a dump.
            if child_process.page.ready:
                child_process.signal(number)
            elif number in {signal.SIGTERM, signal.SIGQUIT}:
                child_process.signal(signal.SIGTERM)

    # ── one place, always with a running process ────────────────────────────
    async def _keep_running(self, number: int) -> None:
        crashes, replaces = 0, False
        while not self._stop.is_set():
            try:
                child_process = ChildProcess(self._settings)
            except OSError as error:
                log.error("no worker process can be started: %s", error)
                await self._pause(SLOWEST_RESTART)
                continue
            self._children.append(child_process)
            self._table.add(child_process)
            log.info(
                "worker process %d started",
                child_process.process.pid,
                extra={"worker": child_process.name, "place": number},
            )
            code = await self._exit_of(child_process)
            self._children.remove(child_process)
            self._table.remove(child_process)
            if code == child.EXIT_DAMAGED:
                # The supervisor does not free the worker's jobs, because opening the store would create an empty file.
                self._code = code
                self.stop()
            self._on_exit(child_process, code)
            slowest = SLOWEST_AFTER_WORK if child_process.page.worked else SLOWEST_RESTART
            child_process.close()
            # A hook that fails in a replacement is tried again: the processes beside it go on with their jobs.
            if code == child.EXIT_CONFIG or (code == child.EXIT_HOOK and not replaces):
                self._code = 1
                self.stop()
            if self._stop.is_set():
                return
            lived_well = bool(child_process.retiring) or monotonic() - child_process.started_at > LIVED_WELL
            crashes, replaces = 0 if lived_well else crashes + 1, True
            pause = min(slowest, FIRST_RESTART * 2 ** min(crashes, 10)) * random.uniform(0.5, 1.0)
            log.info("a new worker process starts in %.1f s", pause)
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        """Sleep, or return early when a stop is requested."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _exit_of(self, child_process: ChildProcess) -> int:
        """Wait for the process to end. After a stop was requested, kill it when it takes too long."""
        limit = self._settings.drain + self._settings.kill_grace
        patience = limit.total_seconds() + 15.0
        told_at: float | None = None
        exited = _exit_event(child_process.process.pid)
        while (code := child_process.process.poll()) is None:
            if self._stop.is_set():
                told_at = told_at or monotonic()
                if monotonic() - told_at > patience:
                    log.error("worker process %d does not end: killed", child_process.process.pid)
                    child_process.killed_for = "killed: it did not drain in time"
                    child_process.signal(signal.SIGKILL)
                    self._code = 1
            await exited.wait(0.5)
        return code

    def _on_exit(self, child_process: ChildProcess, code: int) -> None:
        """Log the cause of the process's death, and free its jobs at once."""
        if code == child.EXIT_DAMAGED:
            return
        if child_process.retiring and code == 0:
            return
        if self._stop.is_set() and (code == 0 or (code == -signal.SIGTERM and not child_process.page.ready)):
            return
        cause = child_process.killed_for or parent_watch.cause_of(code)
        log.error(
            "worker process %d died: %s",
            child_process.process.pid,
            cause,
            extra={"worker": child_process.name, "cause": cause},
        )
        self._send(self._abandon(child_process.id, cause, list(child_process.page.entries())))

    async def _abandon(self, worker: WorkerId, cause: str, entries: list[PageEntry]) -> None:
        async def abandon(store: Store) -> None:
            await hand_back_unstarted(store, entries, cause)
            count = await store.abandon(worker, cause)
            await store.retire(worker)
            if count:
                log.info("%s of the dead worker may be taken over now", sentences.count(count, "lease"))

        # After this time the leases have expired by themselves.
        await self._insist("freeing a dead worker's jobs", abandon, self._settings.lease.total_seconds())

    # ── watching ────────────────────────────────────────────────────────────
    async def _watch(self) -> None:
        heartbeat = self._settings.heartbeat.total_seconds()
        late = max(heartbeat / 2, 0.3)
        while True:
            await asyncio.sleep(min(0.25, heartbeat / 4))
            for child_process in list(self._children):
                try:
                    self._look_after(child_process, late)
                except Exception:  # noqa: BLE001  # one process's trouble must not end the watch over the others
                    log.exception("checking worker process %d failed", child_process.process.pid)

    def _look_after(self, child_process: ChildProcess, late: float) -> None:
        now = monotonic()
        silence = now - child_process.page.pulse
        if silence <= late:
            child_process.said_stuck = False
        elif child_process.page.ready and not child_process.stopped:
            self._tend(child_process, now, silence)

    def _tend(self, child_process: ChildProcess, now: float, silence: float) -> None:
        """The process lives, and its event loop is blocked."""
        grace = self._settings.kill_grace.total_seconds() + MARGIN
        if silence > grace and now > child_process.page.deadline + grace:
            if not child_process.killed_for:
                child_process.killed_for = "timeout: its event loop was stuck beyond a job's deadline"
                log.error("worker process %d is stuck beyond a job's deadline: killed", child_process.process.pid)
                child_process.signal(signal.SIGUSR1)
                asyncio.get_running_loop().call_later(0.1, child_process.signal, signal.SIGKILL)
            return
        if now - child_process.renewed_at < self._settings.heartbeat.total_seconds() / 2:
            return
        child_process.renewed_at = now
        tokens = [entry.token for entry in child_process.page.entries()]
        if not child_process.said_stuck:
            child_process.said_stuck = True
            log.warning(
                "the event loop of worker process %d has been blocked for %.1f s: a task blocks it or holds the GIL; "
                "the supervisor renews %s of it; SIGUSR1 shows where it is blocked",
                child_process.process.pid,
                silence,
                sentences.count(len(tokens), "lease"),
            )
        if tokens:

            async def renew(store: Store) -> None:
                try:
                    async with asyncio.timeout(self._settings.lease.total_seconds() * PATIENCE):
                        await store.heartbeat(tokens, self._settings.lease)
                except TimeoutError:
                    raise Unavailable("no answer to the heartbeat of a stuck worker's leases") from None

            self._send(
                self._insist("renewing a stuck worker's leases", renew, self._settings.lease.total_seconds() / 2)
            )

    # ── the supervisor's own connection ─────────────────────────────────────
    async def _insist(self, what: str, call: Callable[[Store], Awaitable[None]], seconds: float) -> None:
        backoff, outage = Backoff(), OutageLog(what)
        until = monotonic() + seconds
        while True:
            try:
                await call(await self._opened())
            except HeadraceError as error:
                outage.raise_(error)
                if monotonic() > until:
                    log.error("%s did not work in time: %s", what, error)
                    return
                await asyncio.sleep(backoff.next())
            else:
                outage.settle()
                return

    async def _opened(self) -> Store:
        async with self._opening:
            if self._store is None:
                store = connect(self._settings.store_url)
                await store.open()
                self._store = store
            return self._store

    def _send(self, errand: Awaitable[None]) -> None:
        task = asyncio.ensure_future(errand)
        self._errands.add(task)
        task.add_done_callback(self._errand_done)

    def _errand_done(self, task: asyncio.Task[None]) -> None:
        self._errands.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the supervisor met an unexpected error", exc_info=error)

    async def _finish_errands(self) -> None:
        if self._errands:
            await asyncio.wait(list(self._errands), timeout=5.0)


def _exit_event(pid: int) -> Bell:
    """An event set when the process ends, where the kernel supports it. Callers also poll."""
    bell = Bell()
    if hasattr(os, "pidfd_open"):
        loop = asyncio.get_running_loop()
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return bell

        def ended() -> None:
            loop.remove_reader(fd)
            os.close(fd)
            bell.ring()

        loop.add_reader(fd, ended)
    return bell
