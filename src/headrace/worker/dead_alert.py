"""ALERT: reports once when a queue reaches too many dead letters, and again after the count has fallen below."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from headrace.errors import StoreError
from headrace.model.job import Batch
from headrace.model.records import Stats
from headrace.policy.queue import DeadAlert
from headrace.webhooks.deliver import batch_of
from headrace.worker.service import Backoff, OutageLog, log
from headrace.worker.state import WorkerState

LOOK_EVERY = 5.0

Hook = Callable[[DeadAlert], Any]
"""Sync hooks run in a thread, async hooks in the worker's event loop."""


class Thresholds:
    """Compares counts with thresholds, without effects. A queue is reported again after its count fell below."""

    def __init__(self, thresholds: Mapping[str, int]) -> None:
        self._thresholds = thresholds
        self._over: set[str] = set()

    def compare(self, stats: Stats) -> list[DeadAlert]:
        """The queues that have just reached their threshold."""
        dead = {queue.queue: queue.dead for queue in stats.queues}
        over = {queue for queue, threshold in self._thresholds.items() if dead.get(queue, 0) >= threshold}
        fresh, self._over = over - self._over, over
        return [DeadAlert(queue, dead[queue], self._thresholds[queue]) for queue in sorted(fresh)]


class DeadAlertLog:
    """Reads the counts every few seconds, if a queue declares `dead_alert`."""

    def __init__(self, state: WorkerState, thresholds: Mapping[str, int], hooks: Sequence[Hook]) -> None:
        self._state = state
        self._thresholds = Thresholds(thresholds)
        self._hooks = hooks
        self._calls: set[asyncio.Task[None]] = set()
        self._outage = OutageLog("enqueueing the webhooks of a dead alert")
        self.watches = bool(thresholds)

    async def look(self) -> float:
        """Check once. Returns the seconds until the next check."""
        for alert in self._thresholds.compare(await self._state.store.stats()):
            self._raise(alert)
        return LOOK_EVERY * random.uniform(0.8, 1.2)

    async def stop(self) -> None:
        """Hooks that still run are cancelled."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)

    def _raise(self, alert: DeadAlert) -> None:
        fields = {"queue": alert.queue, "dead": alert.dead, "threshold": alert.threshold}
        log.error(
            "queue %s has %d dead letters (dead_alert: %d): `headrace dead list --queue %s` shows why",
            alert.queue,
            alert.dead,
            alert.threshold,
            alert.queue,
            extra={"event": "dead.alert", **fields},
        )
        self._state.emit("dead.alert", **fields)
        for hook in self._hooks:
            # A slow hook must not delay promoting and reaping.
            call = asyncio.create_task(_call(hook, alert), name="headrace-dead-alert")
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        if news := self._state.delivery_maker.alert(alert, datetime.now(UTC)):
            call = asyncio.create_task(self._tell(batch_of(news)), name="headrace-dead-alert")
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _tell(self, batch: Batch) -> None:
        """Enqueue the deliveries of its webhooks, and repeat until the store accepts them."""
        backoff = Backoff()
        while True:
            try:
                await self._state.store.enqueue(batch)
            except StoreError as error:
                self._outage.raise_(error)
                await asyncio.sleep(backoff.next())
            else:
                self._outage.settle()
                return


async def _call(hook: Hook, alert: DeadAlert) -> None:
    try:
        if inspect.iscoroutinefunction(hook):
            await hook(alert)
        else:
            await asyncio.to_thread(hook, alert)
    except Exception:  # noqa: BLE001  # whatever a user's hook does, the worker goes on
        log.exception("a dead alert's hook failed", extra={"event": "dead.alert", "queue": alert.queue})
