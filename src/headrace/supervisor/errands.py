"""Calls of the store that the supervisor asks for. A process that it starts on demand makes them: `headrace.worker.errands`."""

from __future__ import annotations

import selectors
import signal
from time import monotonic
from typing import NamedTuple

from headrace.supervisor.errand_frames import ABANDON, DONE_SIZE, RENEW, ErrandFrame, pack_errand, read_done
from headrace.supervisor.exits import cause_of
from headrace.supervisor.handover import Handover
from headrace.supervisor.log import log
from headrace.supervisor.spawn import Spawned

LINGER = 30.0
"""Seconds for which the process stays without an errand, so that a worker that blocks often does not start it each time."""
FAREWELL = 5.0
"""Seconds that a process gets to end after its socket was closed."""
FIRST_RESTART, SLOWEST_RESTART = 0.2, 5.0
"""Seconds until the process is replaced if it dies with errands, doubled for each death in a row."""


class _Errand(NamedTuple):
    kind: int
    pid: int
    """The worker process that the errand is about."""
    cause: bytes
    holdings: bytes
    until: float
    """When the errand is no longer worth trying."""


class Errands:
    """The errands that are not over, and the process that does them. An errand that is done twice does no harm."""

    def __init__(self, handover: Handover, selector: selectors.BaseSelector) -> None:
        self._handover = handover
        self._selector = selector
        self._errands: dict[int, _Errand] = {}
        self._number = 0
        self._process: Spawned | None = None
        self._leaving: list[Spawned] = []
        """Processes that were told to end."""
        self._output = b""
        self._input = b""
        self._idle_since = 0.0
        self._closed_at = 0.0
        self._restart_at = 0.0
        self._deaths = 0
        self._linger = LINGER

    # ── what the supervisor asks for ────────────────────────────────────────
    def abandon(self, pid: int, cause: str, holdings: bytes) -> None:
        """Free the jobs of a worker process that died. After one lease they are free by themselves."""
        self._add(_Errand(ABANDON, pid, cause.encode(), holdings, monotonic() + self._handover.lease))

    def renew(self, pid: int, holdings: bytes) -> None:
        """Renew the leases of a worker process that is stuck, unless that is under way."""
        if not any(errand.kind == RENEW and errand.pid == pid for errand in self._errands.values()):
            self._add(_Errand(RENEW, pid, b"", holdings, monotonic() + self._handover.lease / 2))

    def finish(self) -> None:
        """Let the process end when it has done its errands."""
        self._linger = 0.0

    def kill(self) -> None:
        """End the process now. Leases that it would have freed run out by themselves."""
        for process in (*self._leaving, *([] if self._process is None else [self._process])):
            process.send_signal(signal.SIGKILL)

    @property
    def over(self) -> bool:
        """There is no errand, and no process for errands."""
        return not self._errands and self._process is None and not self._leaving

    # ── the loop of the supervisor ──────────────────────────────────────────
    @property
    def due(self) -> float | None:
        """When `step` has something to do."""
        return self._restart_at if self._errands and self._process is None else None

    def step(self, now: float) -> None:
        """Start the process if there are errands, and end it after a while without any."""
        if self._process is not None:
            if self._process.control.fileno() < 0:
                # The process has broken off. It ends by itself, which shows the cause, or it hangs.
                if now - self._closed_at >= FAREWELL:
                    self._process.send_signal(signal.SIGKILL)
            elif not self._errands and now - self._idle_since >= self._linger:
                self._dismiss(self._process)
            return
        for number, errand in list(self._errands.items()):
            if errand.until <= now:
                log.error("no process could free or renew the leases of worker process %d in time", errand.pid)
                del self._errands[number]
        if self._errands and now >= self._restart_at:
            self._start()

    def on_exit(self, pid: int, code: int) -> None:
        """A child that is no worker process has ended."""
        for process in self._leaving:
            if process.pid == pid:
                process.code = code
                self._leaving.remove(process)
                return
        current = self._process
        if current is None or current.pid != pid:
            return  # an orphan, which the system made a child of the supervisor
        current.code = code
        self._disconnect(current)
        self._process = None
        if self._errands:
            log.error("the process for the supervisor's calls of the store died: %s", cause_of(code))
            self._put_off()

    # ── the process ─────────────────────────────────────────────────────────
    def _add(self, errand: _Errand) -> None:
        self._number += 1
        self._errands[self._number] = errand
        if self._process is not None:
            self._send(self._process, self._frame(self._number, errand))

    def _start(self) -> None:
        try:
            process = Spawned("headrace.worker.errands", self._handover.path)
        except OSError as error:
            log.error("no process for the supervisor's calls of the store can be started: %s", error)
            self._put_off()
            return
        self._process = process
        process.control.setblocking(False)
        self._selector.register(process.control, selectors.EVENT_READ, self._on_event)
        frames = [self._frame(number, errand) for number, errand in self._errands.items()]
        self._output = self._input = b""
        self._send(process, self._handover.config + b"".join(frames))

    def _put_off(self) -> None:
        pause = min(SLOWEST_RESTART, FIRST_RESTART * 2 ** min(self._deaths, 10))
        self._deaths += 1
        self._restart_at = monotonic() + pause

    def _dismiss(self, process: Spawned) -> None:
        """The process ends when its socket is closed."""
        self._disconnect(process)
        self._process = None
        self._leaving.append(process)

    def _disconnect(self, process: Spawned) -> None:
        if process.control.fileno() >= 0:
            self._selector.unregister(process.control)
            process.control.close()
            self._closed_at = monotonic()

    @staticmethod
    def _frame(number: int, errand: _Errand) -> bytes:
        seconds = max(errand.until - monotonic(), 0.0)
        return pack_errand(ErrandFrame(number, errand.kind, seconds, errand.cause, errand.holdings))

    def _send(self, process: Spawned, data: bytes) -> None:
        self._output += data
        self._write(process)

    def _write(self, process: Spawned) -> None:
        if process.control.fileno() < 0:
            return  # It is ending. The next process gets all errands.
        try:
            while self._output:
                sent = process.control.send(self._output)
                self._output = self._output[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._disconnect(process)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._output else 0)
        self._selector.modify(process.control, events, self._on_event)

    def _on_event(self) -> None:
        process = self._process
        if process is None:
            return
        self._write(process)
        self._read(process)

    def _read(self, process: Spawned) -> None:
        try:
            data = process.control.recv(4096) if process.control.fileno() >= 0 else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect(process)
            return
        data = self._input + data
        whole = len(data) - len(data) % DONE_SIZE
        self._input = data[whole:]
        for number in read_done(data[:whole]):
            self._errands.pop(number, None)
        self._deaths = 0
        if not self._errands:
            self._idle_since = monotonic()
