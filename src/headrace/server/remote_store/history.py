"""The verbs of history for the http store: what a caller may add and read of the rollups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from headrace.errors import ConfigError
from headrace.model.histogram import Histogram
from headrace.model.lane import check_task_name, check_tenant
from headrace.model.rollup import (
    ALL_QUEUES,
    DAY,
    HOUR,
    MAX_ROLLUPS,
    MINUTE,
    MINUTES_FROM,
    OTHER_TASKS,
    QUARTER,
    USAGE_FROM,
    HistoryPage,
    Rollup,
    RollupKey,
)
from headrace.model.usage import Usage
from headrace.server.auth import Principal
from headrace.server.http.problems import Problem, not_found
from headrace.server.remote_store import checks
from headrace.server.state import ServerState
from headrace.store.contract import Store

_AHEAD: Final = 5
"""Minutes that the clock of a worker may be ahead of the store's."""
_MOST: Final = 2**53
_LAST: Final = 2**31 - 1
"""The last minute and the last count that every store can hold."""


class HistoryCalls:
    """The part of `Calls` that is about history, and what all of it needs."""

    def __init__(self, service: ServerState, principal: Principal) -> None:
        self._service = service
        self._store: Store = service.store
        self._who = principal

    async def add_history(self, rollups: list[Rollup]) -> None:
        _check_count(rollups)
        self._see_queues([rollup.queue for rollup in rollups if not is_of_slots(rollup)])
        latest = (await self._store.now()).timestamp() + 60 * _AHEAD
        for rollup in rollups:
            _check(rollup)
            if MINUTES_FROM <= rollup.start < USAGE_FROM:
                raise ConfigError("only a fold writes details of history")
            if rollup.minute * 60 > latest or rollup.sent > latest:
                raise ConfigError("a rollup is about the future: compare the clocks of the worker and the store")
            if self._who.tenant is not None and rollup.start >= USAGE_FROM:
                self._see_tenants(Usage.unpack(rollup.run))
        await self._store.add_history(rollups)

    async def read_history(
        self, since: int, until: int, queue: str | None, task: str | None, after: RollupKey | None, limit: int
    ) -> HistoryPage:
        self._refuse_tenant()
        times = (since, until, 0 if after is None else after.start)
        if not all(0 <= time <= _LAST for time in times) or limit < 1:
            raise ConfigError(f"times are minutes from 0 to {_LAST}, and a page holds at least one rollup")
        if queue is not None:
            checks.check_queue(queue)
            self._see_queues([queue])
        if task is not None:
            _check_task(task)
        page = await self._store.read_history(
            since, until, queue=queue, task=task, after=after, limit=min(limit, MAX_ROLLUPS)
        )
        if self._who.queues is None:
            return page
        return replace(page, rollups=[rollup for rollup in page.rollups if self._who.sees(rollup.queue, None)])

    async def fold_history(self, gone: list[RollupKey], rollups: list[Rollup]) -> bool:
        self._refuse_bound()
        _check_count(gone)
        _check_count(rollups)
        for rollup in rollups:
            _check(rollup)
        return await self._store.fold_history([key for key in gone if 0 <= key.start <= _LAST], rollups)

    # ── permissions ─────────────────────────────────────────────────────────
    def _refuse_bound(self) -> None:
        if self._who.bound:
            raise not_yours()

    def _refuse_tenant(self) -> None:
        """A rollup counts the jobs of all tenants, so a caller that may know only one of them sees none."""
        if self._who.tenant is not None:
            raise not_yours()

    def _see_tenants(self, usage: Usage) -> None:
        if usage.other or set(usage.tenants) - {self._who.tenant}:
            raise not_found("a token that is bound to a tenant can only add the usage of this tenant")

    def _see_queues(self, queues: Sequence[str]) -> None:
        allowed = self._who.queues
        for queue in queues:
            if allowed is not None and queue not in allowed:
                raise not_found(f"there is no queue {queue}")


def not_yours() -> Problem:
    return not_found("this belongs to all tenants: a token that is bound to a tenant or to queues cannot use it")


def _check_count(entries: Sequence[object]) -> None:
    if len(entries) > MAX_ROLLUPS:
        raise ConfigError(f"a call has at most {MAX_ROLLUPS:,} rollups: send more in several calls")


def _check_task(task: str) -> None:
    if task != OTHER_TASKS:
        check_task_name(task)


def _check(rollup: Rollup) -> None:
    """Raises ConfigError or ValueError for what no worker counts."""
    if not is_of_slots(rollup):
        checks.check_queue(rollup.queue)
    _check_task(rollup.task)
    if rollup.span not in {MINUTE, QUARTER, HOUR, DAY}:
        raise ConfigError(f"a rollup covers {MINUTE}, {QUARTER}, {HOUR} or {DAY:,} minutes")
    if not (0 <= rollup.start <= _LAST and 0 <= rollup.sent <= _MOST and 0 < rollup.count <= _MOST):
        raise ConfigError("a rollup has a minute, a time and a count that no worker sends")
    Histogram.unpack(rollup.wait)
    if rollup.start < USAGE_FROM:
        Histogram.unpack(rollup.run)
    else:
        for tenant in Usage.unpack(rollup.run).tenants:
            check_tenant(tenant)


def is_of_slots(rollup: Rollup) -> bool:
    """Whether it is about the slots of a worker, which serve several queues."""
    return rollup.start >= USAGE_FROM and rollup.queue == ALL_QUEUES
