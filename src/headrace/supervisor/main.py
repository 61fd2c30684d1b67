"""The process of the supervisor. `headrace.cli.supervise` starts it in the place of the command `headrace worker`."""

from __future__ import annotations

import sys

from headrace.runtime import logs
from headrace.supervisor.handover import read_handover
from headrace.supervisor.spawn import keep_files_from_children
from headrace.supervisor.supervisor import Supervisor


def main(fd: int) -> None:
    """Supervise the workers that the open file describes, and exit."""
    handover = read_handover(fd)
    keep_files_from_children()
    logs.configure(handover.log_level, handover.log_format, light=True)
    sys.exit(Supervisor(handover).run())
