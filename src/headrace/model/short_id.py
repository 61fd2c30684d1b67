"""Short ids: a job's id in 12 characters, for lists on a terminal.

An id is a UUIDv7: its first 60 bits that are not fixed are the time and a few random bits, and its last 16 bits are the
place in its enqueue call. A short id has the first ones as 12 characters of Crockford's base 32, and the place as a number
after a dot if it is not 0. It leaves out 41 random bits. So it is no id by itself, but it names a small range of ids, and
a store finds a job in a range without a search: see `headrace.cli.ids`.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import UUID

from headrace.model.job import BatchId, JobId, job_id, split_id

_SIGNS = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUES = {sign: value for value, sign in enumerate(_SIGNS)} | {"i": 1, "l": 1, "o": 0}
_LENGTH = 12
_PATTERN = re.compile(rf"([0-9a-tv-z]{{{_LENGTH}}})(?:\.([1-9]\d{{0,4}}))?", re.ASCII | re.IGNORECASE)

_MILLISECOND_BITS, _FRACTION_BITS, _RANDOM_BITS = 43, 12, 5
_UNSAID_BITS = 46 - _RANDOM_BITS + 16
"""Bits at the end of an id that are not among the characters: the rest of the random ones, and the place."""
_VERSION, _VARIANT = 0x7000, 0b10 << 62


class ShortId(NamedTuple):
    """What a short id says about an id."""

    text: str
    first: int
    """The lowest id that it may mean, as a number."""
    place: int
    """The job's place in its enqueue call."""

    @property
    def above(self) -> JobId:
        """An id above all that it may mean, for `before`."""
        return JobId(UUID(int=self.first + (1 << _UNSAID_BITS)))

    def within(self, id: UUID) -> bool:
        """Whether an id is in the range."""
        return self.first <= id.int < self.first + (1 << _UNSAID_BITS)

    def of(self, batch: BatchId) -> JobId:
        """The job that is meant, if it belongs to this enqueue call."""
        return job_id(batch, self.place)


def shorten(id: JobId) -> str:
    """The short id, or the whole one if it was made by other rules."""
    batch, place = split_id(id)
    number = _shown_bits(batch)
    if number is None:
        return str(id)
    signs = [_SIGNS[number >> 5 * digit & 31] for digit in reversed(range(_LENGTH))]
    return "".join(signs) + (f".{place}" if place else "")


def parse_short(text: str) -> ShortId | None:
    """What a user typed, if it is a short id."""
    match = _PATTERN.fullmatch(text)
    if match is None or (place := int(match[2] or 0)) > 0xFFFF:
        return None
    number = 0
    for sign in match[1].lower():
        number = number << 5 | _VALUES[sign]
    random = number & ((1 << _RANDOM_BITS) - 1)
    fraction = number >> _RANDOM_BITS & ((1 << _FRACTION_BITS) - 1)
    milliseconds = number >> _RANDOM_BITS + _FRACTION_BITS
    high = milliseconds << 16 | _VERSION | fraction
    return ShortId(text, high << 64 | _VARIANT | random << _UNSAID_BITS, place)


def _shown_bits(batch: UUID) -> int | None:
    high, low = batch.int >> 64, batch.int & ((1 << 64) - 1)
    milliseconds = high >> 16
    if high & 0xF000 != _VERSION or low >> 62 != 0b10 or milliseconds >> _MILLISECOND_BITS:
        return None
    random = low >> _UNSAID_BITS & ((1 << _RANDOM_BITS) - 1)
    return (milliseconds << _FRACTION_BITS | high & 0x0FFF) << _RANDOM_BITS | random
