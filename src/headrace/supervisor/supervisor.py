"""The supervisor watches N worker processes from outside: signals, causes of crashes, leases of stuck workers.

One loop does everything. It waits for signals, for clients of the health endpoint, for answers about errands and for the
next time at which something is due. Then each part takes a step.
"""

from __future__ import annotations

import faulthandler
import os
import selectors
import signal
import socket
from time import monotonic

from headrace.supervisor.child_process import ChildProcess
from headrace.supervisor.errands import Errands
from headrace.supervisor.exits import EXIT_CONFIG, EXIT_DAMAGED, EXIT_DISMISSED, EXIT_HOOK, cause_of
from headrace.supervisor.handover import Handover
from headrace.supervisor.health import WorkerHealth
from headrace.supervisor.log import log
from headrace.supervisor.page import lease_count
from headrace.supervisor.probe_server import HealthServer
from headrace.supervisor.process_table import ProcessTable
from headrace.supervisor.recycle import EVERY, Recycler
from headrace.supervisor.signals import SignalPipe
from headrace.supervisor.spawn import ended_children

LIVED_WELL = 30.0
"""A process that lived this many seconds is not in a crash loop."""
FIRST_RESTART, SLOWEST_RESTART = 0.2, 30.0
"""Seconds until a dead process is replaced, doubled for each crash in a row."""
SLOWEST_AFTER_WORK = 2.0
"""The longest such pause if the process had ended jobs, so that waiting jobs do not suffer from one that crashes."""
MARGIN = 1.0
"""Seconds that a stuck process gets beyond its job's deadline and the grace."""
DRAIN_MARGIN = 15.0
"""Seconds that a process gets beyond `drain` and `kill_grace` to end."""
LAST_ERRANDS = 5.0
"""Seconds for errands after the last worker process has ended."""
DUMP = 0.1
"""Seconds that a stuck process gets to write where it is stuck."""
TICK = 0.25
"""Seconds between two looks at the pages."""


class ProcessPlace:
    """One of the N places, which has a running process or waits for one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: ChildProcess | None = None
        self.due = 0.0
        """When the next process starts."""
        self.crashes = 0
        """In a row."""
        self.replaces = False
        """A process ran here before."""


class Supervisor:
    """Starts worker processes, has their leases renewed while they are stuck, and replaces those that have ended."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._places = [ProcessPlace(number) for number in range(handover.processes)]
        self._table = ProcessTable()
        self._selector = selectors.DefaultSelector()
        self._errands = Errands(handover, self._selector)
        self._recycler = Recycler(self._table, max_jobs=handover.max_jobs, max_memory=handover.max_memory)
        self._recycles = bool(handover.max_jobs or handover.max_memory)
        self._recycle_at = 0.0
        self._look_at = 0.0
        self._stops = 0
        self._stopped_at = 0.0
        self._finish_at = 0.0
        self._code = 0

    # ── life ────────────────────────────────────────────────────────────────
    def run(self) -> int:
        """Run until stopped. Returns the exit code."""
        pipe = SignalPipe()
        self._selector.register(pipe.reader, selectors.EVENT_READ, lambda: self._on_signals(pipe))
        listeners = [socket.socket(fileno=fd) for fd in self._handover.listeners]
        server = HealthServer(WorkerHealth(self._table), self._selector, listeners)
        while not self._step(monotonic()):
            for key, _ in self._selector.select(self._pause()):
                key.data()
            server.step(monotonic())
        server.stop()
        return self._code

    def stop(self) -> None:
        """The first time: drain. Again: hand back at once."""
        first = not self._stops
        log.info("stopping: %s", "draining" if first else "handing back at once")
        self._begin_stop(signal.SIGTERM if first else signal.SIGQUIT)

    def drain(self) -> None:
        """Stop after a closed terminal, once: the shell may send TERM as well, and that must not hurry the stop."""
        if not self._stops:
            self.stop()

    def hurry(self) -> None:
        """Hand back at once."""
        log.info("stopping: handing back at once")
        self._begin_stop(signal.SIGQUIT)

    def _begin_stop(self, number: signal.Signals) -> None:
        self._stops += 1
        self._tell(number)
        if not self._table.stopping:
            self._table.stopping = True
            self._stopped_at = monotonic()

    def _on_signals(self, pipe: SignalPipe) -> None:
        for number in pipe.read():
            match number:
                case signal.SIGTERM | signal.SIGINT:
                    self.stop()
                case signal.SIGHUP:
                    self.drain()
                case signal.SIGQUIT:
                    self.hurry()
                case signal.SIGTSTP:
                    self._tell(signal.SIGTSTP)
                case signal.SIGUSR1:
                    faulthandler.dump_traceback(all_threads=True)
                    self._tell(signal.SIGUSR1)
                case _:
                    pass  # SIGCHLD: each step looks for children that have ended.

    def _tell(self, number: signal.Signals) -> None:
        for child in self._children():
            # Before its handlers are set, TSTP would freeze a process, and USR1 or QUIT would end it with a dump.
            if child.page.ready:
                child.send_signal(number)
            elif number in {signal.SIGTERM, signal.SIGQUIT}:
                child.send_signal(signal.SIGTERM)

    def _children(self) -> list[ChildProcess]:
        return [place.child for place in self._places if place.child is not None]

    # ── one turn of the loop ────────────────────────────────────────────────
    def _step(self, now: float) -> bool:
        """Do what is due. True: everything is over."""
        for pid, code in ended_children():
            self._on_exit(pid, code)
        for place in self._places:
            if place.child is not None:
                self._end_late(place.child, now)
            elif not self._table.stopping and now >= place.due:
                self._start(place)
        if now >= self._look_at:
            self._look_at = now + min(TICK, self._handover.heartbeat / 4)
            self._watch(now)
        if self._recycles and now >= self._recycle_at:
            self._recycle_at = now + EVERY
            self._recycle()
        self._errands.step(now)
        return self._table.stopping and not self._children() and self._is_finished(now)

    def _pause(self) -> float:
        """Seconds until the next step, if nothing happens before."""
        due = [self._look_at]
        if not self._table.stopping:
            due += [place.due for place in self._places if place.child is None]
        due += [child.kill_at for child in self._children() if child.kill_at is not None]
        if self._errands.due is not None:
            due.append(self._errands.due)
        return max(min(due) - monotonic(), 0.0)

    def _is_finished(self, now: float) -> bool:
        self._errands.finish()
        self._errands.step(now)
        self._finish_at = self._finish_at or now + LAST_ERRANDS
        if not self._errands.over and now >= self._finish_at:
            self._errands.kill()
            return True
        return self._errands.over

    # ── one place, always with a running process ────────────────────────────
    def _start(self, place: ProcessPlace) -> None:
        try:
            child = ChildProcess(self._handover)
        except OSError as error:
            log.error("no worker process can be started: %s", error)
            place.due = monotonic() + SLOWEST_RESTART
            return
        place.child = child
        self._table.add(child)
        log.info("worker process %d started", child.pid, extra={"worker": child.name, "place": place.number})

    def _end_late(self, child: ChildProcess, now: float) -> None:
        """Kill a process that had its time: to show where it is stuck, or to drain."""
        if child.kill_at is not None and now >= child.kill_at:
            child.kill_at = None
            child.send_signal(signal.SIGKILL)
        patience = self._handover.drain + self._handover.kill_grace + DRAIN_MARGIN
        if self._table.stopping and now - self._stopped_at > patience and not child.killed_for:
            log.error("worker process %d does not end: killed", child.pid)
            child.killed_for = "killed: it did not drain in time"
            child.send_signal(signal.SIGKILL)
            self._code = 1

    def _on_exit(self, pid: int, code: int) -> None:
        for place in self._places:
            child = place.child
            if child is not None and child.pid == pid:
                child.code = code
                place.child = None
                self._table.remove(child)
                self._replace(place, child, code)
                child.close()
                return
        self._errands.on_exit(pid, code)

    def _replace(self, place: ProcessPlace, child: ChildProcess, code: int) -> None:
        """Decide what follows from the end of a process."""
        if code == EXIT_DISMISSED:
            self._dismiss(place, child)
            return
        if code == EXIT_DAMAGED:
            # The worker's jobs are not freed, because opening the store would create an empty file.
            self._code = code
            self.stop()
        else:
            self._free_jobs(child, code)
        # A hook that fails in a replacement is tried again: the processes beside it go on with their jobs.
        if code == EXIT_CONFIG or (code == EXIT_HOOK and not place.replaces):
            self._code = 1
            self.stop()
        if self._table.stopping:
            return
        lived_well = bool(child.retiring) or monotonic() - child.started_at > LIVED_WELL
        place.crashes = 0 if lived_well else place.crashes + 1
        place.replaces = True
        slowest = SLOWEST_AFTER_WORK if child.page.worked else SLOWEST_RESTART
        pause = min(slowest, FIRST_RESTART * 2 ** min(place.crashes, 10)) * _between(0.5, 1.0)
        log.info("a new worker process starts in %.1f s", pause)
        place.due = monotonic() + pause

    def _dismiss(self, place: ProcessPlace, child: ChildProcess) -> None:
        """Start no process in this place. Without any place the supervisor ends."""
        log.info("worker process %d has drained as an operator ordered, and is not replaced", child.pid)
        place.due = float("inf")
        if not self._table.stopping and all(other.child is None and other.due == place.due for other in self._places):
            self.stop()

    def _free_jobs(self, child: ChildProcess, code: int) -> None:
        """Log the cause of the process's death, and free its jobs at once."""
        if child.retiring and code == 0:
            return
        if self._table.stopping and (code == 0 or (code == -signal.SIGTERM and not child.page.ready)):
            return
        cause = child.killed_for or cause_of(code)
        log.error("worker process %d died: %s", child.pid, cause, extra={"worker": child.name, "cause": cause})
        if holdings := child.page.holdings:
            self._errands.abandon(child.pid, cause, holdings)

    # ── watching ────────────────────────────────────────────────────────────
    def _recycle(self) -> None:
        try:
            self._recycler.look()
        except Exception:  # noqa: BLE001  # the supervisor goes on without replacements
            log.exception("looking for worker processes to replace failed")

    def _watch(self, now: float) -> None:
        late = max(self._handover.heartbeat / 2, 0.3)
        for child in self._children():
            try:
                self._look_after(child, now, late)
            except Exception:  # noqa: BLE001  # one process's trouble must not end the watch over the others
                log.exception("checking worker process %d failed", child.pid)

    def _look_after(self, child: ChildProcess, now: float, late: float) -> None:
        silence = now - child.page.pulse
        if silence <= late:
            child.logged_stuck = False
        elif child.page.ready and not child.stopped:
            self._tend(child, now, silence)

    def _tend(self, child: ChildProcess, now: float, silence: float) -> None:
        """The process lives, and its event loop is blocked."""
        grace = self._handover.kill_grace + MARGIN
        if silence > grace and now > child.page.deadline + grace:
            if not child.killed_for:
                child.killed_for = "timeout: its event loop was stuck beyond a job's deadline"
                log.error("worker process %d is stuck beyond a job's deadline: killed", child.pid)
                child.send_signal(signal.SIGUSR1)
                child.kill_at = now + DUMP
            return
        if now - child.renewed_at < self._handover.heartbeat / 2:
            return
        child.renewed_at = now
        holdings = child.page.holdings
        leases = lease_count(holdings)
        if not child.logged_stuck:
            child.logged_stuck = True
            log.warning(
                "the event loop of worker process %d has been blocked for %.1f s: a task blocks it or holds the GIL; "
                "the supervisor renews %s of it; SIGUSR1 shows where it is blocked",
                child.pid,
                silence,
                "1 lease" if leases == 1 else f"{leases:,} leases",
            )
        if leases:
            self._errands.renew(child.pid, holdings)


def _between(low: float, high: float) -> float:
    """A random number. The module `random` would load a library for hashes."""
    return low + (high - low) * int.from_bytes(os.urandom(4), "big") / 0xFFFFFFFF
