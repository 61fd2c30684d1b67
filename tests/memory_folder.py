"""A folder in memory for what the tests write: a durable commit waits for the disk, and the tests make many of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

FOLDER = "HEADRACE_TEST_FOLDER"
"""The folder of throw-away servers and files. Set it to another one, or to nothing for the system's temporary folder."""
ENOUGH = 8 * 1024**3
"""Bytes that must be free. The servers of one test process write up to 2 GB of log before they remove the oldest."""

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def use_memory(
    environment: MutableMapping[str, str] = os.environ,
    shared: Path = Path("/dev/shm"),
    meminfo: Path = Path("/proc/meminfo"),
    limits: Sequence[Path] = CGROUP_LIMITS,
) -> None:
    """Let pytest and the throw-away servers write to memory, where there is enough of it."""
    if FOLDER not in environment:
        environment[FOLDER] = str(shared) if _has_room(shared, meminfo, limits) else ""
    if environment[FOLDER]:
        environment.setdefault("PYTEST_DEBUG_TEMPROOT", environment[FOLDER])


def _has_room(shared: Path, meminfo: Path, limits: Sequence[Path]) -> bool:
    """Whether the folder, the machine and the container have room: the folder's size does not tell the memory behind it."""
    try:
        of_folder = os.statvfs(shared)
        available = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return False
    if available is None or not os.access(shared, os.W_OK):
        return False
    free = of_folder.f_bavail * of_folder.f_frsize
    return min(free, int(available[1]) * 1024, *_container_limits(limits)) >= ENOUGH


def _container_limits(limits: Sequence[Path]) -> Iterator[int]:
    """The memory that a container may use, if it has a limit. Files in memory count towards it."""
    for path in limits:
        with suppress(OSError):
            if (text := path.read_text(encoding="ascii").strip()).isdecimal():
                yield int(text)
