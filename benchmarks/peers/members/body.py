"""The body of every job in Python: it says how long ago the job's enqueue began."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from itertools import count

_HEAD = 80
"""Characters that hold what the text says; digits follow."""
_pipe: list[int] = []
_counts: defaultdict[str, count[int]] = defaultdict(lambda: count(1))
_failed: set[tuple[str, str]] = set()


class FailsOnce(Exception):
    """A job fails at its first attempt."""


def body(text: str) -> None:
    """Write the order that the job belongs to, and its age in nanoseconds, to the pipe of the run.

    Where an order asks for it, only every so many jobs do so: a write for each would be most of what a short job costs.
    """
    began, order, every, _ = text[:_HEAD].split(":", 3)
    age = time.monotonic_ns() - int(began)
    if next(_counts[order]) % int(every):
        return
    if not _pipe:
        _pipe.append(os.open(os.environ["PEERS_PIPE"], os.O_WRONLY))
    os.write(_pipe[0], f"{order} {age}\n".encode())


def fail_once(text: str) -> None:
    """The same at the second attempt. A worker has one process, which remembers the first ones."""
    _, order, _, number, _ = text[:_HEAD].split(":", 4)
    if (order, number) not in _failed:
        _failed.add((order, number))
        raise FailsOnce("this job fails once")
    body(text)
