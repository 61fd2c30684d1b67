"""The kit runs `on_start`, `on_stop` and `lifespan` hooks around the jobs, as a worker does."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from headrace import Headrace, HookFailed, Retry, WorkerInfo
from headrace.testing import (
    aassert_idempotent,
    adrain,
    assert_idempotent,
    drain,
    enqueued,
    use_memory,
)


class Pool:
    """A pool of an async driver: it works in the event loop that opened it, and is closed by the task that opened it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.owner = asyncio.current_task()
        self.open = True

    async def fetch(self) -> str:
        assert self.open
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return "row"

    async def close(self) -> None:
        assert asyncio.current_task() is self.owner
        self.open = False


shops: list[Shop] = []


def in_process() -> str:
    """A task for a process must be a function of a module. In the kit it runs in the process of the test."""
    shops[-1].calls.append("in process")
    return shops[-1].models["prices"]


class Shop:
    """An app whose tasks need what its hooks open."""

    def __init__(self) -> None:
        self.app = Headrace("postgresql://nowhere.invalid/none")
        self.calls: list[str] = []
        self.infos: list[WorkerInfo] = []
        self.hook_threads: set[threading.Thread] = set()
        self.pools: list[Pool] = []
        self.models: dict[str, str] = {}
        app = self.app

        @app.on_start
        def load_model(info: WorkerInfo) -> None:
            self._called("load model")
            self.infos.append(info)
            self.models["prices"] = "loaded"

        @app.on_stop
        def drop_model() -> None:
            self._called("drop model")
            self.models.clear()

        @app.lifespan
        async def pool() -> AsyncIterator[None]:
            self.calls.append("open pool")
            opened = Pool()
            self.pools.append(opened)
            yield
            await opened.close()
            self.calls.append("close pool")

        @app.lifespan
        def lock() -> Iterator[None]:
            self._called("lock")
            yield
            self._called("unlock")

        @app.task(name="in_loop", queue="prices")
        async def in_loop() -> str:
            self.calls.append("in loop")
            return f"{await self.pools[-1].fetch()}, {self.models['prices']}"

        @app.task(name="in_thread")
        def in_thread() -> str:
            self.calls.append("in thread")
            assert self.pools[-1].open
            return self.models["prices"]

        self.in_loop, self.in_thread = in_loop, in_thread
        self.in_process = app.task(name="in_process", executor="process")(in_process)
        shops.append(self)

    def _called(self, what: str) -> None:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # A sync hook may call code that starts an event loop.
        self.hook_threads.add(threading.current_thread())
        self.calls.append(what)


START = ["load model", "open pool", "lock"]
END = ["unlock", "close pool", "drop model"]


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_drain_runs_the_hooks_around_the_jobs(shop: Shop) -> None:
    with use_memory(shop.app):
        shop.in_loop.enqueue()
        shop.in_loop.enqueue()
        shop.in_thread.enqueue()
        shop.in_process.enqueue()
        ran = drain(shop.app)
        assert sorted(attempt.result for attempt in ran) == ["loaded", "loaded", "row, loaded", "row, loaded"]
        jobs = ["in loop", "in loop", "in thread", "in process"]
        assert (shop.calls[:3], sorted(shop.calls[3:-3]), shop.calls[-3:]) == (START, sorted(jobs), END)
        assert shop.hook_threads == {threading.current_thread()}

        shop.calls.clear()
        assert drain(shop.app, queue="prices") == []
        assert shop.calls == START + END
    everything, prices = shop.infos
    assert (everything.queues, everything.concurrency, everything.slot) == (("default", "prices"), 1, False)
    assert prices.queues == ("prices",)


async def test_adrain_runs_the_hooks_in_the_loop_of_the_test(shop: Shop) -> None:
    async with use_memory(shop.app):
        await shop.in_loop.aenqueue()
        await shop.in_thread.aenqueue()
        await shop.in_process.aenqueue()
        ran = await adrain(shop.app)
        assert sorted(attempt.result for attempt in ran) == ["loaded", "loaded", "row, loaded"]
        assert (shop.calls[:3], shop.calls[-3:]) == (START, END)
        assert [pool.loop for pool in shop.pools] == [asyncio.get_running_loop()]
        [thread] = shop.hook_threads
        assert thread is not threading.current_thread()


async def test_sync_drain_in_a_thread_whose_event_loop_is_busy(shop: Shop) -> None:
    @shop.app.on_start
    async def look() -> None:
        assert asyncio.get_running_loop() is shop.pools[-1].loop

    # A sync hook is called in this thread, so that it sees the event loop of the test.
    shop.app.hooks.life[:] = [hook for hook in shop.app.hooks.life if hook.function.__name__ in {"pool", "look"}]
    shop.models["prices"] = "loaded"
    with use_memory(shop.app):
        shop.in_loop.enqueue()
        [ran] = drain(shop.app)
    assert ran.result == "row, loaded"
    assert shop.calls == ["open pool", "in loop", "close pool"]


def test_inline_runs_the_hooks_once(shop: Shop) -> None:
    with shop.app.inline():
        assert shop.calls == START
        assert shop.in_loop.enqueue().result() == "row, loaded"
        assert shop.in_loop.enqueue().result() == "row, loaded"
        assert shop.in_thread.enqueue().result() == "loaded"
        assert shop.in_process.enqueue().result() == "loaded"
        shop.in_loop.using(delay="1h").enqueue()
        assert [attempt.result for attempt in drain(shop.app, advance=True)] == ["row, loaded"]
    jobs = ["in loop", "in loop", "in thread", "in process", "in loop"]
    assert shop.calls == START + jobs + END


async def test_async_inline_runs_the_hooks_in_the_loop_of_the_test(shop: Shop) -> None:
    async with shop.app.inline():
        assert shop.calls == START
        assert await (await shop.in_loop.aenqueue()).aresult() == "row, loaded"
        assert await (await shop.in_thread.aenqueue()).aresult() == "loaded"
        assert await (await shop.in_process.aenqueue()).aresult() == "loaded"
        await shop.in_loop.using(delay="1h").aenqueue()
        assert [attempt.result for attempt in await adrain(shop.app, advance=True)] == ["row, loaded"]
        assert [pool.loop for pool in shop.pools] == [asyncio.get_running_loop()]
    assert shop.calls == [*START, "in loop", "in thread", "in process", "in loop", *END]


def test_an_async_task_may_call_sync_code_that_runs_another(shop: Shop) -> None:
    @shop.app.task(name="outer")
    async def outer() -> str:
        await shop.pools[-1].fetch()
        handle = inner.enqueue()
        return await handle.aresult()

    @shop.app.task(name="inner")
    async def inner() -> str:
        await asyncio.sleep(0)
        return "inner"

    with shop.app.inline():
        assert outer.enqueue().result() == "inner"


def test_assert_idempotent_runs_the_hooks_once(shop: Shop) -> None:
    with use_memory(shop.app):
        assert_idempotent(shop.in_loop.job(), state=lambda: shop.models.get("prices"))
    assert (shop.calls[:3], shop.calls[-3:], len(shop.pools)) == (START, END, 1)


async def test_aassert_idempotent_runs_the_hooks_once(shop: Shop) -> None:
    async def state() -> str:
        return await shop.pools[-1].fetch()

    async with use_memory(shop.app):
        await aassert_idempotent(shop.in_loop.job(), state=state)
    assert (shop.calls[:3], shop.calls[-3:], len(shop.pools)) == (START, END, 1)


def test_lifespan_false_leaves_the_hooks_out(shop: Shop) -> None:
    shop.models["prices"] = "fake"
    with use_memory(shop.app, lifespan=False):
        shop.in_process.enqueue()
        assert [attempt.result for attempt in drain(shop.app)] == ["fake"]
        with shop.app.inline():
            assert shop.in_process.enqueue().result() == "fake"
    assert shop.calls == ["in process", "in process"]


async def test_lifespan_false_leaves_the_hooks_out_of_async_code(shop: Shop) -> None:
    shop.models["prices"] = "fake"
    async with use_memory(shop.app, lifespan=False):
        await shop.in_process.aenqueue()
        assert [attempt.result for attempt in await adrain(shop.app)] == ["fake"]
        async with shop.app.inline():
            assert await (await shop.in_process.aenqueue()).aresult() == "fake"
    assert shop.calls == ["in process", "in process"]


def test_a_start_that_fails_runs_no_job_and_ends_what_has_begun(shop: Shop) -> None:
    @shop.app.on_start
    async def broken() -> None:
        raise LookupError("no such host")

    with use_memory(shop.app):
        shop.in_thread.enqueue()
        with pytest.raises(HookFailed, match="broken failed: LookupError: no such host"):
            drain(shop.app)
        assert shop.calls == START + END
        with pytest.raises(HookFailed), shop.app.inline():
            pytest.fail("the block must not run")
        assert shop.app.inline_runner is None
        [job] = enqueued(shop.app)
        assert job.state == "ready"


async def test_an_async_start_that_fails_runs_no_job_and_ends_what_has_begun(shop: Shop) -> None:
    @shop.app.on_start
    def broken() -> None:
        raise LookupError("no such host")

    async with use_memory(shop.app):
        await shop.in_thread.aenqueue()
        with pytest.raises(HookFailed, match="broken failed: LookupError: no such host"):
            await adrain(shop.app)
        assert shop.calls == START + END
        with pytest.raises(HookFailed):
            async with shop.app.inline():
                pytest.fail("the block must not run")
        assert shop.app.inline_runner is None


def test_the_hooks_end_when_a_job_raises(shop: Shop) -> None:
    @shop.app.task(name="fails", retry=Retry(max_attempts=1))
    def fails() -> None:
        raise ValueError("7")

    with use_memory(shop.app):
        fails.enqueue()
        with pytest.raises(ValueError, match="7"):
            drain(shop.app, errors="raise")
        assert shop.calls == START + END

        shop.calls.clear()
        with pytest.raises(ValueError, match="7"), shop.app.inline():
            fails.enqueue()
        assert shop.calls == START + END


def test_an_interrupt_in_a_sync_hook_reaches_the_test() -> None:
    app = Headrace("postgresql://nowhere.invalid/none")
    calls: list[str] = []

    @app.lifespan
    def opened() -> Iterator[None]:
        calls.append("opened")
        yield
        calls.append("closed")

    @app.on_start
    def interrupted() -> None:
        raise KeyboardInterrupt

    with use_memory(app):
        with pytest.raises(KeyboardInterrupt):
            drain(app)
        assert calls == ["opened", "closed"]


def test_an_interrupt_at_the_end_leaves_the_next_drain_its_hooks() -> None:
    app = Headrace("postgresql://nowhere.invalid/none")
    calls: list[str] = []

    @app.lifespan
    def opened() -> Iterator[None]:
        calls.append("opened")
        yield
        calls.append("closed")
        if len(calls) == 2:
            raise KeyboardInterrupt

    with use_memory(app):
        with pytest.raises(KeyboardInterrupt):
            drain(app)
        assert drain(app) == []
    assert calls == ["opened", "closed", "opened", "closed"]


def test_ctrl_c_during_an_async_hook_reaches_the_test() -> None:
    app = Headrace("postgresql://nowhere.invalid/none")
    calls: list[str] = []

    @app.lifespan
    def opened() -> Iterator[None]:
        calls.append("opened")
        yield
        calls.append("closed")

    @app.on_start
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    with use_memory(app):
        with pytest.raises(KeyboardInterrupt):
            drain(app)
        assert calls == ["opened", "closed"]


def test_a_job_that_a_stop_hook_enqueues_waits_for_the_next_drain(shop: Shop) -> None:
    @shop.app.on_stop
    def flush() -> None:
        shop.in_thread.enqueue()

    with use_memory(shop.app):
        assert drain(shop.app) == []
        assert [job.state for job in enqueued(shop.app)] == ["ready"]
    with shop.app.inline():
        shop.calls.clear()
    assert shop.calls == ["in thread", *END]


def test_a_failure_hook_runs_in_the_loop_of_the_hooks(shop: Shop) -> None:
    rows: list[str] = []

    @shop.app.task(name="fails", retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("7")

    @shop.app.on_failure
    async def note(*_: object) -> None:
        rows.append(await shop.pools[-1].fetch())

    with use_memory(shop.app):
        fails.enqueue()
        drain(shop.app)
    assert rows == ["row"]
