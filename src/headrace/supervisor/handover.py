"""What `headrace worker` hands over to the supervisor that it becomes: a file without a name, which only the two can open."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

LENGTH = struct.Struct("!I")
"""The head of each message between headrace's processes: how long it is."""
_BETWEEN = "\0"
_GAP = b"\0\0"


class Handover(NamedTuple):
    """The settings that the supervisor itself needs, and those of its children as bytes. Times are seconds."""

    processes: int
    lease: float
    heartbeat: float
    drain: float
    kill_grace: float
    max_jobs: int
    max_memory: int
    log_level: str
    log_format: str
    path: str
    """PYTHONPATH of the children: the import path of the command."""
    listeners: tuple[int, ...]
    """The open sockets of the health endpoint."""
    config: bytes
    """The first message to each child. The supervisor does not read it, because it holds types of other packages."""


def write_handover(handover: Handover) -> int:
    """Returns an open file that survives the change to another program. The command line would show the store's password."""
    fields = handover._asdict()
    config = fields.pop("config")
    fields["listeners"] = ",".join(map(str, handover.listeners))
    text = _BETWEEN.join(f"{name}={value}" for name, value in fields.items())
    fd = open_unnamed("headrace-handover")
    with open(fd, "wb", closefd=False) as file:
        file.write(os.fsencode(text) + _GAP + config)
    os.lseek(fd, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    return fd


def read_handover(fd: int) -> Handover:
    """Read the file, and close it."""
    with open(fd, "rb") as file:
        head, _, config = file.read().partition(_GAP)
    fields = dict(field.split("=", 1) for field in os.fsdecode(head).split(_BETWEEN))
    return Handover(
        processes=int(fields["processes"]),
        lease=float(fields["lease"]),
        heartbeat=float(fields["heartbeat"]),
        drain=float(fields["drain"]),
        kill_grace=float(fields["kill_grace"]),
        max_jobs=int(fields["max_jobs"]),
        max_memory=int(fields["max_memory"]),
        log_level=fields["log_level"],
        log_format=fields["log_format"],
        path=fields["path"],
        listeners=tuple(int(number) for number in fields["listeners"].split(",") if number),
        config=config,
    )


def frame(body: bytes) -> bytes:
    """A message with its length in front."""
    return LENGTH.pack(len(body)) + body


def open_unnamed(name: str) -> int:
    """A file in memory, or a temporary file without a name where the system has no such files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile  # not above, because it needs many modules and Linux never comes here

    with tempfile.NamedTemporaryFile(prefix=f"{name}-", delete=True) as file:
        return os.dup(file.fileno())
