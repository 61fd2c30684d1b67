"""Schedules of an app: declared in code, changed at run time, from sync and async code."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import ConfigError, Headrace, InvalidCron, NeverFires, ScheduleNotFound


def test_what_is_declared_is_checked_where_it_stands(app: Headrace):
    @app.task(queue="reports")
    async def report(kind: str) -> None: ...

    made = app.schedule("nightly", cron="@daily", tz="Europe/Rome", job=report.job("all"), overlap="skip")
    assert (made.cron, made.job.task, made.job.lane.queue) == ("0 0 * * *", report.name, "reports")
    assert app.schedules.declared == {"nightly": made}
    with pytest.raises(ConfigError, match="declared twice"):
        app.schedule("nightly", every="1h", job=report.job("all"))
    with pytest.raises(NeverFires):
        app.schedule("never", cron="0 0 30 2 *", job=report.job("all"))
    with pytest.raises(InvalidCron):
        app.schedule("bad", cron="nonsense", job=report.job("all"))
    wrong: Any = report
    with pytest.raises(ConfigError, match=r"write job=task\.job"):
        app.schedule("bad", every="1h", job=wrong)
    once = report.using(expires=datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(ConfigError, match="expires and deadline as durations"):
        app.schedule("bad", every="1h", job=once.job("all"))
    some: Any = report.job("all")
    with pytest.raises(ConfigError, match="follows other jobs"):
        app.schedule("bad", every="1h", job=some.then(report))
    with pytest.raises(ConfigError, match="follows other jobs"):
        app.schedule("bad", every="1h", job=report.using(after=report.job("all")).job("all"))
    assert list(app.schedules.declared) == ["nightly"]


def test_at_run_time_from_sync_code(app: Headrace):
    @app.task
    async def sweep() -> None: ...

    book = app.schedules
    book.add("sweep", every="15m", job=sweep.job())
    with pytest.raises(ConfigError, match="already"):
        book.add("sweep", every="20m", job=sweep.job())
    book.add("sweep", every="20m", job=sweep.job(), replace=True)
    book.pause("sweep", by="ada")
    entry = book.list()["sweep"]
    assert (entry.schedule.rule, entry.paused, entry.paused_by) == ("every 20m", True, "ada")
    book.resume("sweep")
    job = app.get(book.run_now("sweep"))
    assert job is not None
    assert job.task == sweep.name
    book.remove("sweep")
    assert book.list() == {}
    with pytest.raises(ScheduleNotFound, match="schedules list"):
        book.pause("sweep")
    app.close()


async def test_at_run_time_from_async_code(app: Headrace):
    @app.task
    async def sweep() -> None: ...

    book = app.schedules
    await book.aadd("sweep", cron="*/5 * * * *", job=sweep.job())
    await asyncio.gather(*(book.apause("sweep", by=str(n)) for n in range(5)))
    assert (await book.alist())["sweep"].paused
    await book.aresume("sweep")
    assert await app.aget(await book.arun_now("sweep")) is not None
    await book.aremove("sweep")
    assert await book.alist() == {}
    await app.aclose()


async def test_a_worker_of_the_app_ticks(app: Headrace):
    ran = asyncio.Event()

    @app.task
    async def beat() -> None:
        ran.set()

    app.schedule("beat", every="1s", job=beat.job())
    async with app.worker(concurrency=2):
        async with asyncio.timeout(30):
            await ran.wait()
    entry = (await app.schedules.alist())["beat"]
    assert entry.declared
    assert entry.fired >= 1
    await app.aclose()
