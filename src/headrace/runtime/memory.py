"""How much memory a process uses, where the system tells."""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Bytes of memory that the process occupies. 0: the process has ended, or this system has no /proc."""
    try:
        # Not with pathlib, which the supervisor does not load.
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def worn(pid: int, jobs: int, *, max_jobs: int, max_memory: int) -> str:
    """Why a process that has run so many jobs should be replaced. Empty: it should not. A limit of 0 is none."""
    if max_jobs and jobs >= max_jobs:
        return f"has run {jobs:,} of at most {max_jobs:,} jobs"
    if max_memory and (used := resident(pid)) > max_memory:
        return f"uses {used >> 20:,} MB of memory, more than {max_memory >> 20:,} MB"
    return ""
