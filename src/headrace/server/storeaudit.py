"""What an operator did through the http store, read from a limit's rule or a schedule's record before and after."""

from __future__ import annotations

from typing import NamedTuple

from headrace.limit import Figures, describe
from headrace.limits import Limits
from headrace.schedules import KIND, Entry, decode
from headrace.store.contract import Store
from headrace.store.terms import LimitRule, Record


class Deed(NamedTuple):
    """For the audit log."""

    action: str
    what: str
    jobs: int = 0


Written = tuple[int | None, Deed | None]
"""What the store answers, and what was done."""


async def limit(store: Store, name: str, rule: LimitRule | None, expect: int | None) -> Written:
    """Write a limit's rule."""
    before = await _override(store, name)
    written = await store.limit(name, rule, expect)
    return written, None if written is None else of_limit(name, before, await _override(store, name))


async def _override(store: Store, name: str) -> Figures | None:
    entry = (await Limits(store).all()).get(name)
    return None if entry is None else entry.override


async def schedule(store: Store, name: str, value: bytes | None, expect: int | None) -> Written:
    """Write a schedule's record."""
    old = (await store.records(KIND)).get(name)
    written = await store.record(KIND, name, value, expect)
    if written is None:
        return None, None
    before = None if old is None else decode(name, old)
    after = None if value is None else decode(name, Record(written, value))
    return written, of_schedule(name, before, after)


def of_limit(name: str, before: Figures | None, after: Figures | None) -> Deed | None:
    """An operator's figures; whatever else is written to a limit, workers write."""
    if before == after:
        return None
    return Deed("limits.reset", name) if after is None else Deed("limits.set", f"{name}: {describe(after)}")


def of_schedule(name: str, before: Entry | None, after: Entry | None) -> Deed | None:
    """None: it was a worker's tick, or a deploy."""
    if after is None:
        return None if before is None else Deed("schedules.remove", name)
    if before is None:
        return None if after.declared else _added(name, after)
    if before.paused != after.paused:
        return Deed("schedules.pause" if after.paused else "schedules.resume", name)
    if before.schedule != after.schedule:
        return _added(name, after) if before.digest == after.digest else None
    if after.recent[:1] != before.recent[:1] and after.recent[0].answer == "run":
        return Deed("schedules.run_now", name, 1)
    return None


def _added(name: str, entry: Entry) -> Deed:
    return Deed("schedules.add", f"{name}: {entry.schedule.rule} {entry.schedule.job.task}")
