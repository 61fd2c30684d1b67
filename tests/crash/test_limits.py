"""Workers with limited and unique jobs are killed again and again: caps hold at every instant, and every lock is free at the end."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from typing import Any

import pytest

from crash.limit_app import PER_SHOP, TOGETHER, once, visit
from crash.scene import Scene, stop
from headrace.client.client import Client
from headrace.model.job import JobId, JobState
from headrace.model.records import Filter

pytestmark = pytest.mark.timeout(600)  # on the slowest machine

# Not supervised: only the clock frees what a killed worker held, so its death is recorded long before that.
WORKER = """
import asyncio, signal
from headrace.settings import Settings
from headrace.store import connect
from headrace.worker import Worker, parent_watch
from headrace.runtime import logs

async def main():
    settings = Settings.load()
    logs.configure(settings.log_level)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = connect(settings.url)
    await store.open()
    app = parent_watch.load_app(settings.app)
    await Worker(app.tasks, store, settings, duties=app.duties).run_until(stop)
    await store.close()

asyncio.run(main())
"""
SHOPS = 4
KILLS = 4
NUMBER = 80


async def kill_one_after_another(scene: Scene) -> Any:
    """Two workers at a time; the older one is killed in the middle of its jobs, and another one comes."""
    workers = [scene.start(WORKER, HEADRACE_APP="crash.limit_app:app") for _ in range(2)]
    for _ in range(KILLS):
        victim = workers.pop(0)
        await scene.until(
            lambda victim=victim: under_way(scene)[victim.pid] > 0, "the worker is in the middle of a job"
        )
        victim.kill()
        victim.wait()
        record_death(victim.pid)
        workers.append(scene.start(WORKER, HEADRACE_APP="crash.limit_app:app"))
    return workers


def under_way(scene: Scene) -> Counter[int]:
    """Jobs that have started and not ended, by process."""
    inside: Counter[int] = Counter()
    for line in scene.told():
        if line["event"] == "killed":
            del inside[line["pid"]]
        else:
            inside[line["pid"]] += 1 if line["event"] == "start" else -1
    return inside


def record_death(pid: int) -> None:
    with open(os.environ["CRASH_WITNESS"], "a", buffering=1) as witness:  # noqa: PTH123  # one short line
        witness.write(json.dumps({"event": "killed", "pid": pid, "number": -1}) + "\n")


async def test_caps_hold_at_every_instant(scene: Scene) -> None:
    ids: list[JobId] = []
    client, enough = Client(scene.store), asyncio.Event()

    async def produce() -> None:
        """So much that there is always something to do, however long a worker takes to start."""
        while not enough.is_set():
            figures = [each.ready for each in (await scene.store.stats()).queues]
            if sum(figures) < NUMBER:
                placed = await client.enqueue([visit.job(each % SHOPS, each).job for each in range(NUMBER)])
                ids.extend(placed.id(place) for place in range(NUMBER))
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        workers = await kill_one_after_another(scene)
        enough.set()
    jobs = await scene.finished(ids)
    for worker in workers:
        await scene.joined(worker)
        stop(worker)
        assert await scene.exit_of(worker) == 0
    assert {job.state for job in jobs} == {JobState.DONE}

    inside: dict[int, Counter[int]] = {}
    most, most_of_a_shop = 0, 0
    for line in scene.told():
        if line["event"] == "killed":
            inside.pop(line["pid"], None)
            continue
        shops = inside.setdefault(line["pid"], Counter())
        shops[line["number"]] += 1 if line["event"] == "start" else -1
        per_shop = sum(inside.values(), Counter())
        most = max(most, per_shop.total())
        most_of_a_shop = max(most_of_a_shop, *per_shop.values(), 0)
    assert most <= TOGETHER
    assert most_of_a_shop <= PER_SHOP
    assert most > 1
    # Nothing leaked: as many as ever may run again.
    assert await held(scene) == set()


async def held(scene: Scene) -> set[str]:
    """Limit keys that would stop another job now."""
    calls = [visit.job(shop, -1) for shop in range(SHOPS)]
    placed = await Client(scene.store).enqueue([call.job for call in calls])
    found: set[str] = set()
    for place in range(SHOPS):
        ahead = await scene.store.ahead(placed.id(place))
        assert ahead is not None
        found |= {each.key for each in ahead.blocked}
    return found


async def test_every_lock_is_free_at_the_end(scene: Scene) -> None:
    made: set[JobId] = set()
    client, enough = Client(scene.store), asyncio.Event()

    async def produce() -> None:
        while not enough.is_set():
            placed = await client.enqueue([once.job(shop, len(made)).job for shop in range(SHOPS)])
            made.update(placed.id(place) for place in range(SHOPS))
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        workers = await kill_one_after_another(scene)
        enough.set()
    jobs = await scene.finished(list(made))
    assert {job.state for job in jobs} == {JobState.DONE}
    for worker in workers:
        await scene.joined(worker)
        stop(worker)
        assert await scene.exit_of(worker) == 0
    # Never two of a kind at once.
    inside: dict[int, set[int]] = {}
    for line in scene.told():
        if line["event"] == "killed":
            inside.pop(line["pid"], None)
        elif line["event"] == "start":
            assert not any(line["number"] in others for others in inside.values())
            inside.setdefault(line["pid"], set()).add(line["number"])
        else:
            inside[line["pid"]].remove(line["number"])
    # And now each may be made again.
    placed = await client.enqueue([once.job(shop, -1).job for shop in range(SHOPS)])
    assert placed.existing == {}
    waiting = (await scene.store.find(Filter(states=frozenset({JobState.READY})), limit=100)).jobs
    assert len(waiting) == SHOPS
