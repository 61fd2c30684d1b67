"""The process that calls the store for the supervisor: it does what it was told, also if it dies in between."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from time import monotonic

import msgspec
import pytest

from headrace.model.job import Batch, NewJob, new_batch
from headrace.model.lane import Lane
from headrace.model.lease import Ask, new_token, new_worker_id
from headrace.settings import Settings
from headrace.store import connect
from headrace.store.contract import Store
from headrace.supervisor.errands import Errands
from headrace.supervisor.handover import Handover, frame
from headrace.supervisor.page import SharedPageView, lease_count
from headrace.supervisor.spawn import Spawned
from headrace.worker.child import ChildConfig
from headrace.worker.shared_page import PageEntry, SharedPage
from worker.harness import WAIT

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

LEASE = timedelta(minutes=10)


class Stand:
    """A store with a lease of four jobs, of which two had started, and the errands of a supervisor."""

    def __init__(self, url: str) -> None:
        self.url = url
        settings = Settings(url=url, app="nothing:app", lease=LEASE, heartbeat=timedelta(seconds=5))
        config = ChildConfig(settings, sys.path, os.environ.get("PYTHONPATH"), os.getpid())
        self.handover = Handover(
            processes=1, lease=LEASE.total_seconds(), heartbeat=5.0, drain=1.0, kill_grace=1.0, max_jobs=0, max_memory=0,
            log_level="info", log_format="text", path=os.pathsep.join(sys.path), listeners=(),
            config=frame(msgspec.msgpack.encode(config)),
        )  # fmt: skip
        self.selector = selectors.DefaultSelector()
        self.errands = Errands(self.handover, self.selector)
        self.worker = new_worker_id()
        self.view = SharedPageView()
        self.page = SharedPage(self.view.fd)
        self.page.show_worker(self.worker)

    async def claim(self) -> None:
        store = connect(self.url)
        await store.migrate()
        await store.open()
        await store.enqueue(Batch(new_batch(), [NewJob("work", b"\x92\x90\x80", Lane())] * 4))
        token = new_token()
        assert await store.claim(Ask(self.worker, ("default",), 4, LEASE, token)) is not None
        self.page.add(PageEntry(token, 2, 4))
        await store.close()

    def process(self) -> Spawned:
        """Let the errands start their process."""
        self.errands.step(monotonic())
        process = self.errands._process
        assert process is not None
        return process

    def turn(self, until: Callable[[], bool]) -> None:
        """What the supervisor's loop does, until the condition holds. It collects only the children of this test."""
        give_up = monotonic() + WAIT * 5
        while not until():
            assert monotonic() < give_up
            self.errands.step(monotonic())
            for key, _ in self.selector.select(0.02):
                key.data()
            for process in (*self.errands._leaving, *([self.errands._process] if self.errands._process else [])):
                pid, status = os.waitpid(process.pid, os.WNOHANG)
                if pid:
                    self.errands.on_exit(pid, os.waitstatus_to_exitcode(status))

    def look(self, use: Callable[[Store], object]) -> None:
        async def act() -> None:
            store = connect(self.url)
            await store.open()
            outcome = use(store)
            if asyncio.iscoroutine(outcome):
                await outcome
            await store.close()

        asyncio.run(act())


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(f"sqlite:///{tmp_path}/queue.db")
    asyncio.run(stand.claim())
    yield stand
    stand.errands.finish()
    stand.turn(lambda: stand.errands.over)
    stand.selector.close()
    stand.page.close()
    stand.view.close()


async def free(store: Store) -> None:
    """Two jobs had not started and are ready. The other two are orphans with the cause."""
    [queue] = (await store.stats()).queues
    assert queue.ready == 2
    [lease] = await store.reap(new_worker_id(), timedelta(minutes=1))
    assert len(lease.jobs) == 2


def test_the_jobs_of_a_dead_worker_are_freed(stand: Stand) -> None:
    stand.errands.abandon(1, "killed by SIGSEGV", stand.view.holdings)
    stand.turn(lambda: not stand.errands._errands)
    stand.look(free)


def test_an_errand_survives_the_death_of_its_process(stand: Stand) -> None:
    stand.errands.abandon(1, "killed by SIGSEGV", stand.view.holdings)
    first = stand.process()
    os.kill(first.pid, signal.SIGKILL)  # before its interpreter has started
    stand.turn(lambda: first.code is not None)
    assert first.code == -signal.SIGKILL
    assert stand.errands.due is not None
    stand.turn(lambda: not stand.errands._errands)
    stand.look(free)


def test_one_process_does_several_errands_and_ends_when_it_may(stand: Stand) -> None:
    holdings = stand.view.holdings
    assert lease_count(holdings) == 1
    stand.errands.renew(1, holdings)
    stand.errands.renew(1, holdings)
    assert len(stand.errands._errands) == 1, "the first renewal is under way"
    first = stand.process()
    stand.turn(lambda: not stand.errands._errands)
    stand.errands.renew(1, holdings)
    stand.turn(lambda: not stand.errands._errands)
    assert stand.process() is first
    stand.errands.finish()
    stand.turn(lambda: stand.errands.over)
    assert first.code == 0


def test_an_errand_is_given_up_when_its_time_is_over(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    stand.errands.abandon(1, "killed", stand.view.holdings)
    first = stand.process()
    os.kill(first.pid, signal.SIGKILL)
    stand.turn(lambda: first.code is not None)
    stand.errands.step(monotonic() + LEASE.total_seconds() + 1)
    assert stand.errands.over
    assert "no process could free or renew the leases of worker process 1 in time" in caplog.text
