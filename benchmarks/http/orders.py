"""The messages to and from the processes of a run over HTTP: one JSON document per line."""

from __future__ import annotations

from typing import Literal

import msgspec

CONNECTIONS = 64
"""Connections from which single jobs are enqueued."""
BATCHES_AT_ONCE = 4
"""Connections from which batches are enqueued: as many as keep one server process busy."""
CLAIM = 100
"""Jobs that the worker claims and settles at once."""
WAIT = 30
"""Seconds that an idle worker's claim waits before it is sent again: the longest time that the server allows."""
TASK = "bench.noop"


class Serve(msgspec.Struct, kw_only=True):
    """To a server process, at its start. It answers `Up`, then `OrderTimes` to every line that it is sent."""

    what: Literal["headrace", "bare"]
    url: str
    """It may contain a password, so it comes by a pipe and is not in the list of processes."""
    queue: str
    max_failures: int | None = None
    """Wrong tokens that are checked. None: the default."""
    max_polls: int | None = None
    """Reads of figures per second. None: the default."""


class Up(msgspec.Struct):
    """A server that listens."""

    port: int


class OrderTimes(msgspec.Struct):
    """What a server process has used by now."""

    cpu: float
    """Seconds."""
    memory: int
    """Bytes, resident."""


class Drive(msgspec.Struct, tag="drive", kw_only=True):
    """Send one request over and over, each connection the next one when it has the answer; answers `Driven`."""

    port: int
    path: str
    body: str
    connections: int
    count: int


class Work(msgspec.Struct, tag="work", kw_only=True):
    """Claim and settle until so many jobs are done; answers `Driven`, timed by claim and settle together."""

    port: int
    queue: str
    count: int


class Hold(msgspec.Struct, tag="hold", kw_only=True):
    """Keep this many idle workers waiting for a job, until the process ends; answers `Held`."""

    port: int
    queue: str
    workers: int


class PickUp(msgspec.Struct, tag="pick_up", kw_only=True):
    """Enqueue jobs one after the other for the workers that are held; answers `Driven`, timed from enqueue to claim."""

    body: str
    count: int


class Claims(msgspec.Struct, tag="claims", kw_only=True):
    """Claim and settle one job after the other; answers `Driven`, timed by the claims alone."""

    port: int
    queue: str
    count: int
    url: str = ""
    """Not over HTTP, but in the store of this URL, as workers beside the server do."""


class Poll(msgspec.Struct, tag="poll", kw_only=True):
    """Read these paths in turn at this rate, until `Rest`; answers `Held` when each connection has had an answer."""

    port: int
    paths: list[str]
    rate: float
    connections: int = 20
    at: Literal["figures", "nothing"] = "figures"
    """`nothing`: the bare server has no such path, and says so."""


class Rest(msgspec.Struct, tag="rest"):
    """Stop reading; answers `Polled`."""


Order = Drive | Work | Hold | PickUp | Claims | Poll | Rest


class Driven(msgspec.Struct, kw_only=True):
    """The result of a load. Times are time.monotonic()."""

    began: float
    ended: float
    samples: list[float]
    """Seconds of each call."""


class Held(msgspec.Struct):
    """Idle workers in place."""

    workers: int
    """Fewer than requested if the system allows no more open files."""


class Polled(msgspec.Struct):
    """The results of reads."""

    answered: int
    refused: int
    """Of these, 429."""
    seconds: float


def job(text: str, queue: str | None = None) -> bytes:
    """A job as a client asks for it."""
    asked: dict[str, object] = {"task": TASK, "args": [text]}
    if queue is not None:
        asked["queue"] = queue
    return msgspec.json.encode(asked)
