"""The process of the supervisor. `headrace.cli.supervise` starts it in the place of the command `headrace worker`."""

from __future__ import annotations

import sys

from headrace.runtime import logs
from headrace.supervisor.handover import read_handover
from headrace.supervisor.log import log
from headrace.supervisor.spawn import keep_files_from_children
from headrace.supervisor.supervisor import Supervisor


def main(fd: int) -> None:
    """Supervise the workers that the open file describes, and exit."""
    handover = read_handover(fd)
    keep_files_from_children()
    logs.configure(handover.log_level, handover.log_format, light=True)
    try:
        code = Supervisor(handover).run()
    except Exception:  # noqa: BLE001  # one line of the log, also as JSON; the workers drain when their supervisor has ended
        log.exception("the supervisor met an unexpected error and ends")
        code = 1
    sys.exit(code)
