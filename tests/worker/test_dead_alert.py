"""Dead alerts: once per crossing, to the log, the listeners and the hooks; and retention by queue."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from headrace.model.outcome import Dead
from headrace.model.records import Progress, Pruned, QueueStats, Retention, Stats
from headrace.policy.queue import DeadAlert, QueueOptions
from headrace.store.memory import MemoryStore
from headrace.worker import Duties, Worker, janitor
from headrace.worker import dead_alert as dead_alerts
from headrace.worker.dead_alert import Thresholds
from worker.harness import WAIT, Bench, until


def stats(**dead: int) -> Stats:
    return Stats([QueueStats(queue=queue, dead=count) for queue, count in dead.items()])


def test_once_per_crossing_and_armed_again_below():
    thresholds = Thresholds({"a": 3, "b": 1})
    heard = [
        [(alert.queue, alert.dead) for alert in thresholds.compare(stats(a=a, other=99))]
        for a in (0, 2, 3, 4, 3, 2, 5, 0, 3)
    ]
    assert heard == [[], [], [("a", 3)], [], [], [], [("a", 5)], [], [("a", 3)]]
    assert thresholds.compare(stats(a=3, b=1)) == [DeadAlert("b", 1, 1)]


def test_several_at_once():
    thresholds = Thresholds({"b": 1, "a": 1})
    assert [alert.queue for alert in thresholds.compare(stats(a=1, b=1))] == ["a", "b"]
    assert thresholds.compare(Stats([])) == []


class Watched(MemoryStore):
    """Remembers what the figures said."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    async def stats(self) -> Stats:
        found = await super().stats()
        self.seen.append(sum(queue.dead for queue in found.queues))
        return found


async def test_a_queue_that_passes_its_threshold(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(dead_alerts, "LOOK_EVERY", 0.01)
    store = Watched()
    bench = Bench(store)
    heard: list[DeadAlert] = []
    events: list[tuple[str, dict[str, Any]]] = []
    threads: list[DeadAlert] = []

    async def on_alert(alert: DeadAlert) -> None:
        await asyncio.sleep(0)
        heard.append(alert)

    def broken(alert: DeadAlert) -> None:
        raise RuntimeError("no pager")

    @bench.app.task(name="hopeless")
    async def hopeless() -> None:
        raise Dead("never")

    ids = await bench.enqueue_many(hopeless, [()] * 3)
    options = {"default": QueueOptions(name="default", dead_alert=3), "quiet": QueueOptions(name="quiet")}
    worker = Worker(
        bench.app.tasks,
        bench.store,
        bench.settings,
        duties=Duties(queues=options, dead_alert_hooks=[broken, on_alert, threads.append]),
    )
    worker.on_event(lambda name, fields: events.append((name, dict(fields))) if name == "dead.alert" else None)
    with caplog.at_level(logging.ERROR, "headrace.worker"):
        async with worker:
            await until(lambda: len(heard) == 1 and len(threads) == 1)
            await store.delete(ids)
            await until(lambda: store.seen[-1] == 0)
            [again] = await bench.enqueue_many(hopeless, [()])
            await bench.enqueue_many(hopeless, [(), ()])
            await until(lambda: len(heard) == 2 and len(threads) == 2)
            assert (await bench.get(again)).note == "never"
    assert heard == threads == [DeadAlert("default", 3, 3)] * 2
    assert events == [("dead.alert", {"queue": "default", "dead": 3, "threshold": 3})] * 2
    logged = [
        record for record in caplog.records if getattr(record, "event", "") == "dead.alert" and not record.exc_info
    ]
    assert [record.__dict__["dead"] for record in logged] == [3, 3]
    assert "headrace dead list --queue default" in logged[0].getMessage()
    assert any(record.exc_info for record in caplog.records)


async def test_a_hook_that_hangs_keeps_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead_alerts, "LOOK_EVERY", 0.01)
    called = asyncio.Event()

    async def hang(alert: DeadAlert) -> None:
        called.set()
        await asyncio.Event().wait()

    @bench.app.task(name="hopeless")
    async def hopeless() -> None:
        raise Dead("never")

    await bench.enqueue(hopeless)
    worker = Worker(
        bench.app.tasks,
        bench.store,
        bench.settings,
        duties=Duties(queues={"default": QueueOptions(name="default", dead_alert=1)}, dead_alert_hooks=[hang]),
    )
    async with asyncio.timeout(WAIT), worker:
        await called.wait()


async def test_nobody_asks_for_figures_unless_a_queue_declares_an_alert(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead_alerts, "LOOK_EVERY", 0.0)
    pruned = asyncio.Event()

    class Counting(Watched):
        async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
            pruned.set()
            return await super().prune(keep, limit, progress)

    monkeypatch.setattr(janitor, "PRUNE_EVERY", 0.01)
    store = Counting()
    async with Bench(store).worker():
        await pruned.wait()
    assert store.seen == []


async def test_the_janitor_prunes_by_queue(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(janitor, "PRUNE_EVERY", 0.01)
    kept: asyncio.Queue[Retention] = asyncio.Queue()

    class Listening(MemoryStore):
        async def prune(self, keep: Retention, limit: int = 10_000, progress: Progress | None = None) -> Pruned:
            kept.put_nowait(keep)
            return await super().prune(keep, limit, progress)

    bench = Bench(Listening())
    options = QueueOptions(name="billing", dead_retention=timedelta(days=3))
    async with Worker(
        bench.app.tasks, bench.store, bench.settings, queues=("default",), duties=Duties(queues={"billing": options})
    ):
        keep = await kept.get()
    assert keep == Retention(dead_by_queue={"billing": timedelta(days=3)})
