"""What the system allows and counts: open files of this process, its memory and its time."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

from benchmarks.http.orders import OrderTimes

_STATM = Path("/proc/self/statm")


def raise_files() -> int:
    """Raise the limit of open files as far as the system allows. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_000_000 if hard == resource.RLIM_INFINITY else hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def spent() -> OrderTimes:
    """Figures of this process. Its memory is the maximum so far if the system does not give the present value."""
    if _STATM.exists():
        memory = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    else:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        memory = most if sys.platform == "darwin" else most * 1024
    return OrderTimes(cpu=time.process_time(), memory=memory)
