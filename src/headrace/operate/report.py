"""A report over weeks: how often each task failed, how long it ran, how busy the slots were, and which tenant used them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec

from headrace.model.histogram import Histogram
from headrace.model.rollup import ALL_QUEUES, DAY, HOUR, USAGE_FROM, AttemptEnd, Rollup
from headrace.model.usage import Usage
from headrace.operate.history import Percentiles
from headrace.operate.rollups import read_rollups
from headrace.policy.history import KEEP_HOURS, Merged, aligned, counts_in, exact_to, longest_in, pieces, ranges_to_read
from headrace.store.contract import Store

WEEK: Final = 7 * DAY
_MONDAY: Final = 4 * DAY
"""The first Monday after the beginning of 1970, which was a Thursday."""
_FAILURES: Final = (AttemptEnd.FAILED, AttemptEnd.DEAD)


class TaskStep(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one task in one step."""

    at: datetime
    """The beginning of the step."""
    count: int
    """How many attempts ended."""
    failure_rate: float | None
    """The share of failures among the attempts that were done or failed. Null: there were none."""
    run: Percentiles
    """The time between the start and the end of an attempt."""


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of one task in the whole time."""

    task: str
    """The name of the task. `*` stands for further tasks."""
    count: int
    """How many attempts ended."""
    ends: dict[str, int]
    """How many of them ended in which way: `done`, `failed`, `dead`, `cancelled`, `snoozed`."""
    failure_rate: float | None
    """The share of failures among the attempts that were done or failed. Null: there were none."""
    run: Percentiles
    """The time between the start and the end of an attempt."""
    steps: list[TaskStep]
    """The same by step, without steps in which no attempt ended."""


class SlotStep(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of all workers in one step."""

    at: datetime
    """The beginning of the step."""
    busy_seconds: float
    """Seconds in which slots ran an attempt, each slot for itself."""
    available_seconds: float
    """Seconds in which there were slots, each slot for itself."""
    utilisation: float | None
    """Busy seconds divided by available ones. Null: there were no slots."""


class SlotUse(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of all workers in the whole time."""

    busy_seconds: float
    """Seconds in which slots ran an attempt, each slot for itself."""
    available_seconds: float
    """Seconds in which there were slots, each slot for itself."""
    utilisation: float | None
    """Busy seconds divided by available ones. Null: there were no slots."""
    steps: list[SlotStep]
    """The same by step."""


class TenantReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant used."""

    tenant: str | None
    """The name of the tenant; empty: jobs without a tenant. Null: all tenants that are not named, together."""
    run_seconds: float
    """How long its attempts ran."""
    share: float | None
    """Its share of the run seconds of all tenants. Null: the caller may not know the others."""


class WorkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the work of some weeks."""

    since: datetime
    """The beginning of the time."""
    until: datetime
    """Its end."""
    step: float
    """The length of a step in seconds: a week, a day or an hour. The first and the last one may be shorter."""
    items: list[TaskReport]
    """The tasks, that with the highest failure rate first."""
    next: None = None
    """The list is whole, so there is no next page."""
    slots: SlotUse | None
    """The slots of all workers. Null: the caller may not know of all queues."""
    tenants: list[TenantReport]
    """The tenants, that with the most run seconds first."""


class ReportOperations:
    """Makes reports of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(
        self,
        since: datetime,
        until: datetime | None = None,
        *,
        queue: str | None = None,
        sees: Callable[[str], bool] = lambda _: True,
        tenant: str | None = None,
    ) -> WorkReport:
        """The report of the time between two times.

        `sees`: whether the caller may know of a queue. `tenant`: the only tenant that the caller may know of. It then gets
        no figures that count the jobs of several tenants.
        """
        now = _minute(await self._store.now())
        first, last = _minute(since), (now if until is None else min(_minute(until), now)) + 1
        # Usage is exact to the hour at best.
        first -= first % max(HOUR, exact_to(first, now))
        last = aligned(last, exact_to(last, now))
        steps = _Steps(first, last)
        draft = _ReportDraft(steps, tenant)

        def take(rollup: Rollup) -> None:
            if rollup.start >= USAGE_FROM:
                if rollup.queue == ALL_QUEUES:
                    if queue is None and sees(ALL_QUEUES):
                        draft.add_slots(rollup)
                elif sees(rollup.queue):
                    draft.add_usage(rollup)
            elif tenant is None and sees(rollup.queue) and counts_in(rollup, parts):
                draft.add_attempts(rollup)

        parts = pieces(first, last, longest_in(steps.length))
        if parts:
            ranges = [*ranges_to_read(parts, now), (USAGE_FROM + first, USAGE_FROM + last)]
            await read_rollups(self._store, ranges, take, restart=draft.clear, queue=queue)
        return WorkReport(
            since=_time(first),
            until=_time(last),
            step=60.0 * steps.length,
            items=sorted(draft.tasks(), key=lambda task: (-(task.failure_rate or 0.0), -task.count, task.task)),
            slots=draft.slots() if queue is None and tenant is None and sees(ALL_QUEUES) else None,
            tenants=draft.tenants(),
        )


class _Steps:
    """Weeks from Monday to Sunday, days or hours, whichever fits the length of time."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self.length = WEEK if last - first > KEEP_HOURS else DAY if last - first > DAY + HOUR else HOUR

    def of(self, minute: int) -> int:
        """The first minute of the step that holds this minute."""
        offset = _MONDAY if self.length == WEEK else 0
        return max(self._first, minute - (minute - offset) % self.length)


class _ReportDraft:
    """What was read so far."""

    def __init__(self, steps: _Steps, tenant: str | None) -> None:
        self._steps = steps
        self._tenant = tenant
        self._attempts: dict[str, dict[int, dict[AttemptEnd, Merged]]] = {}
        """Task → step → how attempts ended."""
        self._slots: dict[int, Usage] = {}
        """Step → slots."""
        self._usage = Usage()

    def clear(self) -> None:
        self._attempts.clear()
        self._slots.clear()
        self._usage = Usage()

    def add_attempts(self, rollup: Rollup) -> None:
        steps = self._attempts.setdefault(rollup.task, {})
        ends = steps.setdefault(self._steps.of(rollup.minute), {})
        merged = ends.setdefault(rollup.end, Merged())
        with suppress(ValueError):  # Only a newer version can read its times.
            merged.run.merge_packed(rollup.run)
        merged.count += rollup.count

    def add_slots(self, rollup: Rollup) -> None:
        if (usage := _usage(rollup)) is not None:
            self._slots.setdefault(self._steps.of(rollup.minute), Usage()).merge(usage)

    def add_usage(self, rollup: Rollup) -> None:
        if (usage := _usage(rollup)) is not None:
            self._usage.merge(usage)

    def tasks(self) -> Iterator[TaskReport]:
        for task, steps in self._attempts.items():
            counts = {end: sum(ends[end].count for ends in steps.values() if end in ends) for end in AttemptEnd}
            run = _run(merged for ends in steps.values() for merged in ends.values())
            yield TaskReport(
                task=task,
                count=sum(counts.values()),
                ends={end.value: count for end, count in counts.items() if count},
                failure_rate=_failure_rate(counts),
                run=Percentiles.of(run),
                steps=[
                    TaskStep(
                        at=_time(step),
                        count=sum(merged.count for merged in ends.values()),
                        failure_rate=_failure_rate({end: merged.count for end, merged in ends.items()}),
                        run=Percentiles.of(_run(ends.values())),
                    )
                    for step, ends in sorted(steps.items())
                ],
            )

    def slots(self) -> SlotUse:
        busy = sum(usage.busy for usage in self._slots.values())
        available = sum(usage.available for usage in self._slots.values())
        return SlotUse(
            busy_seconds=round(busy, 3),
            available_seconds=round(available, 3),
            utilisation=_share(busy, available),
            steps=[
                SlotStep(
                    at=_time(step),
                    busy_seconds=round(usage.busy, 3),
                    available_seconds=round(usage.available, 3),
                    utilisation=_share(usage.busy, usage.available),
                )
                for step, usage in sorted(self._slots.items())
            ],
        )

    def tenants(self) -> list[TenantReport]:
        usage, only = self._usage, self._tenant
        if only is not None:
            seconds = usage.tenants.get(only)
            return [] if seconds is None else [TenantReport(tenant=only, run_seconds=round(seconds, 3), share=None)]
        whole = usage.seconds
        rows: list[tuple[str | None, float]] = sorted(usage.tenants.items(), key=lambda entry: (-entry[1], entry[0]))
        if usage.other:
            rows.append((None, usage.other))
        return [
            TenantReport(tenant=tenant, run_seconds=round(seconds, 3), share=_share(seconds, whole))
            for tenant, seconds in rows
        ]


def _usage(rollup: Rollup) -> Usage | None:
    try:
        return Usage.unpack(rollup.run)
    except ValueError:
        return None  # Only a newer version can read it.


def _run(several: Iterable[Merged]) -> Histogram:
    whole = Histogram()
    for merged in several:
        whole.merge(merged.run)
    return whole


def _failure_rate(counts: dict[AttemptEnd, int]) -> float | None:
    failed = sum(counts.get(end, 0) for end in _FAILURES)
    return _share(failed, failed + counts.get(AttemptEnd.DONE, 0))


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 6) if whole else None


def _time(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)


def _minute(at: datetime) -> int:
    return max(0, int(at.timestamp() // 60))
