"""What the supervisor and the process for its errands tell each other."""

from __future__ import annotations

import struct
from typing import NamedTuple

ABANDON, RENEW = 1, 2
"""Free the jobs of a dead worker; renew the leases of a stuck one."""

_HEAD = struct.Struct("=IBdHI")
"""The number and the kind of the errand, its seconds, the lengths of cause and holdings."""
HEAD_SIZE = _HEAD.size
_DONE = struct.Struct("=I")
DONE_SIZE = _DONE.size
_LONGEST_CAUSE = 4000


class ErrandFrame(NamedTuple):
    """One errand on its way."""

    number: int
    kind: int
    seconds: float
    """How long the errand is worth trying."""
    cause: bytes
    holdings: bytes
    """What the worker holds, as `SharedPageView.holdings` copied it."""


class ErrandHead(NamedTuple):
    """The head of such a frame: how much to read."""

    number: int
    kind: int
    seconds: float
    cause_length: int
    holdings_length: int


def pack_errand(errand: ErrandFrame) -> bytes:
    cause = errand.cause[:_LONGEST_CAUSE]
    return (
        _HEAD.pack(errand.number, errand.kind, errand.seconds, len(cause), len(errand.holdings))
        + cause
        + errand.holdings
    )


def read_errand_head(data: bytes) -> ErrandHead:
    return ErrandHead._make(_HEAD.unpack(data))


def pack_done(number: int) -> bytes:
    """The answer when an errand is over, whether or not it worked."""
    return _DONE.pack(number)


def read_done(data: bytes) -> list[int]:
    """The numbers in whole answers."""
    return [number for (number,) in _DONE.iter_unpack(data)]
