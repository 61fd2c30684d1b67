"""Reserved slots of a worker: how many jobs it may claim, and of which priorities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from headrace.errors import ConfigError
from headrace.model.lane import HIGHEST_PRIORITY, LOWEST_PRIORITY
from headrace.model.lease import Band
from headrace.policy.flow import begin_of


class Reserve(NamedTuple):
    """Slots of a worker that only jobs of these priorities may take."""

    lowest: int
    highest: int
    slots: int


def parse_reserve(text: str) -> Reserve:
    """`high=2`, `low=1`, or `5=2` for priority 5 and up."""
    name, equals, number = text.partition("=") if isinstance(text, str) else ("", "", "")
    name, number = name.strip(), number.strip()
    if not equals or not number.isdecimal() or not 0 < len(number) <= 5 or int(number) < 1:
        raise ConfigError(f"reserve = {text!r}: write a band and a number of slots, e.g. high=2")
    ends = {"high": (1, HIGHEST_PRIORITY), "normal": (0, 0), "low": (LOWEST_PRIORITY, -1)}
    if name in ends:
        return Reserve(*ends[name], int(number))
    if not name.lstrip("-").isdecimal():
        raise ConfigError(
            f"reserve = {text!r}: {name!r} is not a band: {', '.join(ends)}, or the lowest priority of it"
        )
    return Reserve(begin_of(int(name), "reserve"), HIGHEST_PRIORITY, int(number))


def check_reserve(_: str, value: Any) -> tuple[str, ...]:
    """The setting `reserve`, or a ConfigError."""
    if isinstance(value, str) or not isinstance(value, tuple | list):
        raise ConfigError(f'reserve = {value!r}: a list such as ["high=2"]')
    entries = tuple(cast("tuple[str, ...]", value))
    for entry in entries:
        parse_reserve(entry)
    return tuple(entry.replace(" ", "") for entry in entries)


class FreeSlots(NamedTuple):
    """How many jobs a worker may claim now."""

    ordinary: int
    """Of any priority."""
    reserved: tuple[Band, ...] = ()
    """Further jobs of these priorities only."""


def room(free: int, size: int, reserves: Sequence[Reserve], priorities: Iterable[int]) -> FreeSlots:
    """The free slots, when jobs of these priorities run. A job uses a slot reserved for it first."""
    taken = [0] * len(reserves)
    others = 0
    for priority in priorities:
        for place, reserve in enumerate(reserves):
            if reserve.lowest <= priority <= reserve.highest and taken[place] < reserve.slots:
                taken[place] += 1
                break
        else:
            others += 1
    left = [
        Band(reserve.lowest, reserve.highest, min(reserve.slots - used, free))
        for reserve, used in zip(reserves, taken, strict=True)
        if reserve.slots > used and free > 0
    ]
    return FreeSlots(min(free, size - sum(reserve.slots for reserve in reserves) - others), tuple(left))
