"""One worker process, as its supervisor sees it."""

from __future__ import annotations

import os
from time import monotonic

from headrace.supervisor.handover import Handover
from headrace.supervisor.log import log
from headrace.supervisor.page import SharedPageView
from headrace.supervisor.spawn import Spawned


class ChildProcess(Spawned):
    """A worker process with the page that it shares with the supervisor."""

    def __init__(self, handover: Handover) -> None:
        self.page = SharedPageView()
        self.started_at = monotonic()
        self.renewed_at = 0.0
        self.logged_stuck = False
        self.killed_for = ""
        self.kill_at: float | None = None
        """When the process is killed, after it has shown where it is stuck."""
        self.retiring = ""
        try:
            super().__init__("headrace.worker.child", handover.path, self.page.fd)
        except OSError:
            self.page.close()
            raise
        try:
            self.control.sendall(handover.config)
        except OSError as error:
            log.warning("worker process %d was dead before it started: %s", self.pid, error)

    @property
    def name(self) -> str:
        return f"{os.uname().nodename}:{self.pid}"

    @property
    def stopped(self) -> bool:
        """Frozen by SIGSTOP or a debugger. It does not work, so its leases may go to other workers."""
        try:
            # Not with pathlib, which the supervisor does not load.
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123
                return file.read().rpartition(")")[2].split()[0] in {"T", "t"}
        except (OSError, IndexError):
            return False

    def close(self) -> None:
        self.control.close()
        self.page.close()
