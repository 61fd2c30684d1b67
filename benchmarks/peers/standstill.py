"""A worker that stands still while its backlog is stored, so that all of it is there when the worker sees it."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.peers.places import SQLITE


def family(pid: int) -> list[psutil.Process]:
    """A process and its children. A worker may have processes in groups of their own."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


@contextmanager
def suspended(pid: int, url: str) -> Generator[None]:
    """Let a process and its children stand still, at a moment at which none of them holds the lock of a SQLite file."""
    processes = family(pid)
    try:
        _suspend(processes)
        while _holds_lock(processes, url):
            _resume(processes)
            time.sleep(random.uniform(0.01, 0.03))
            _suspend(processes)
        yield
    finally:
        _resume(processes)


def _suspend(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        process.suspend()
    # The signal only asks for it: a thread that is in the kernel goes on for a moment.
    while not all(_stands_still(process.pid) for process in processes):
        time.sleep(0.001)


def _stands_still(pid: int) -> bool:
    """Whether each thread of a process is stopped, or has ended."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state in "TtZX" for state in states)


def _resume(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        process.resume()


def _holds_lock(processes: Sequence[psutil.Process], url: str) -> bool:
    """Whether a writer would wait for these processes. Servers let their writers in while a client stands still."""
    if not url.startswith(SQLITE):
        return False
    # headrace takes a file lock before that of SQLite, and releases it afterwards.
    pids = {process.pid for process in processes}
    held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    if any(words[1] == "FLOCK" and int(words[4]) in pids for words in held):
        return True
    with closing(sqlite3.connect(url.removeprefix(SQLITE), timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
    return False
