"""A worker killed between telling and settling, on real stores: every end is told, and none that was not one."""

from __future__ import annotations

import pytest

from crash.scene import DOOMED, STEADY, Scene, stop
from headrace import webhook
from headrace.model.job import Batch, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.records import Filter
from headrace.runtime.faults import EXIT_CODE
from headrace.webhooks.deliver import QUEUE
from webhooks.receiver import receiver

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
JOBS = 12

SCRIPT = """
import asyncio, signal
from headrace.settings import Settings
from headrace.store import connect
from headrace.worker import Worker, parent_watch

async def main():
    settings = Settings.load()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = connect(settings.url)
    await store.open()
    app = parent_watch.load_app(settings.app)
    await Worker(app.tasks, store, settings, duties=app.duties).run_until(stop)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("point", ["announced:1", "announced:2", "settled:1"])
async def test_a_worker_killed_at(scene: Scene, point: str):
    secret = webhook.new_secret()
    batch = Batch(
        new_batch(), [NewJob("quick", b"\x92\x91" + bytes([number]) + b"\x80", Lane()) for number in range(JOBS)]
    )
    await scene.store.enqueue(batch)
    ids = [job_id(batch.id, ord) for ord in range(JOBS)]
    async with receiver() as there:
        settings = {
            "HEADRACE_APP": "webhooks.crash_app:app",
            "HEADRACE_WEBHOOK_SECRET": secret,
            "HEADRACE_WEBHOOK_ALLOW": "127.0.0.1",
            "TEST_RECEIVER": there.url(),
        }
        first = scene.start(SCRIPT, CRASH_HEADRACE_AT=point, **DOOMED, **settings)
        assert await scene.exit_of(first) == EXIT_CODE
        second = scene.start(SCRIPT, **STEADY, **settings)
        jobs = await scene.finished(ids)

        async def delivered() -> bool:
            found = await scene.store.find(Filter(queue=QUEUE), limit=200)
            return {str(id) for id in ids} <= {got.json["data"]["id"] for got in there.got} and all(
                job.state.finished for job in found.jobs
            )

        await scene.until(delivered, "every end is told")
        stop(second)
        assert await scene.exit_of(second) == 0
    truth = {f"{job.id}.{job.attempt}" for job in jobs}
    assert {webhook.verify(secret, got.headers, got.body) for got in there.got} == truth
    assert {job.state for job in jobs} == {JobState.DONE}
    numbers = {str(id): number for number, id in enumerate(ids)}
    assert all(got.json["data"]["result"] == numbers[got.json["data"]["id"]] for got in there.got)
