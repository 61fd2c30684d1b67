"""Arguments that are results of other jobs: read once for each lease, checked like other arguments, and never guessed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from conftest import nothing_left_behind
from headrace import FolderResults
from headrace.client.graph import GraphPlan, in_order
from headrace.errors import Unavailable
from headrace.model.gate import Wait
from headrace.model.job import Batch, Job, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.store.memory import MemoryStore
from headrace.task.call import JobCall
from headrace.task.codec import JobOptions, encode_options
from headrace.task.codec.references import reference, resolved
from headrace.task.group import group
from headrace.task.handle import outcome
from worker import input_tasks
from worker.harness import Bench

DONE, DEAD = JobState.DONE, JobState.DEAD


class Library(MemoryStore):
    """Counts reads, and can be away."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reads: list[int] = []
        self.away = 0
        self.unlocked = asyncio.Event()
        self.unlocked.set()
        self.asked = asyncio.Event()

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        task = asyncio.current_task()
        if task is not None and task.get_name() == "headrace-inputs":
            self.reads.append(len(ids))
            self.asked.set()
            await self.unlocked.wait()
            if self.away:
                self.away -= 1
                raise Unavailable("away")
        return await super().get(ids)


@pytest.fixture
async def store() -> Library:
    return Library()


@pytest.fixture
async def bench(store: Library) -> AsyncIterator[Bench]:
    async with nothing_left_behind():
        yield Bench(store)


async def enqueue(bench: Bench, *calls: JobCall[Any]) -> list[JobId]:
    order = in_order(*calls)
    batch = GraphPlan(order).batch()
    await bench.store.enqueue(batch)
    places = {id(call): place for place, call in enumerate(order)}
    return [job_id(batch.id, places[id(call)]) for call in calls]


async def result(bench: Bench, id: JobId) -> Any:
    job = await bench.reach(id, DONE, DEAD)
    return outcome(job, bench.app.tasks[job.task].codec)


async def test_one_read_serves_the_inputs_of_a_whole_lease(bench: Bench, store: Library):
    @bench.app.task
    async def make(number: int) -> int:
        return number

    @bench.app.task
    async def add(one: int, other: int) -> int:
        return one + other

    made = [make.job(number) for number in range(10)]
    ids = await enqueue(bench, *(add.job(made[n].out, made[n + 1].out) for n in range(9)))
    async with bench.worker(concurrency=20):
        assert [await result(bench, id) for id in ids] == [2 * n + 1 for n in range(9)]
    assert sum(store.reads) >= 10
    assert len(store.reads) < 9


async def test_jobs_without_inputs_do_not_wait_for_the_read_and_read_nothing(bench: Bench, store: Library):
    started = asyncio.Event()

    @bench.app.task
    async def make() -> int:
        return 1

    @bench.app.task
    async def use(number: int) -> int:
        return number

    @bench.app.task
    async def plain() -> None:
        started.set()

    store.unlocked.clear()
    [id] = await enqueue(bench, make.job().then(use))
    async with bench.worker() as worker:
        await store.asked.wait()
        await bench.enqueue(plain)
        await started.wait()
        assert worker.waiting == 1
        store.unlocked.set()
        assert await result(bench, id) == 1
    assert store.reads == [1]


async def test_inputs_are_read_for_threads_and_processes(bench: Bench):
    bench.app.tasks.update(input_tasks.app.tasks)

    @bench.app.task
    def add(numbers: list[int], more: int) -> int:
        return sum(numbers) + more

    made = input_tasks.make.job(4)
    thread, process = await enqueue(bench, made.then(add, 10), made.then(input_tasks.add_in_process, 20))
    async with bench.worker():
        assert await result(bench, thread) == 16
        total, pid = await result(bench, process)
    assert total == 26
    assert pid != os.getpid()


async def test_a_result_that_does_not_fit_is_a_bad_argument(bench: Bench):
    @bench.app.task
    async def make() -> Any:
        return "x"

    @bench.app.task
    async def use(number: int) -> None: ...

    [id] = await enqueue(bench, make.job().then(use))
    async with bench.worker():
        job = await bench.reach(id, DEAD)
    assert job.note == "bad_arguments"
    assert "argument 'number'" in job.history[-1].message


async def test_none_is_a_result(bench: Bench):
    @bench.app.task
    async def make() -> None: ...

    @bench.app.task
    async def use(nothing: None, many: list[None]) -> bool:
        return nothing is None and many == [None, None]

    made = make.job()
    [id] = await enqueue(bench, use.job(made.out, [made.out, made.out]))
    async with bench.worker():
        assert await result(bench, id) is True


async def test_a_deleted_or_expired_input_makes_the_job_dead(bench: Bench):
    @bench.app.task
    async def use(number: int) -> None: ...

    @bench.app.task
    async def make() -> int:
        return 1

    gone, short = uuid4(), await bench.enqueue(make, options=JobOptions(result_ttl=0))
    async with bench.worker():
        await bench.reach(short, DONE)
        for id, why in ((gone, "is not stored any more"), (short, "its result_ttl is over or 0")):
            job = NewJob(use.name, _call(id), Lane(), options=encode_options(JobOptions(inputs=(id,))))
            batch = Batch(new_batch(), [job])
            await bench.store.enqueue(batch)
            dead = await bench.reach(job_id(batch.id, 0), DEAD)
            assert dead.note == "input_missing"
            assert str(id) in dead.history[-1].message
            assert why in dead.history[-1].message


def _call(id: Any) -> bytes:
    return b"\x92\x91" + reference(id.bytes) + b"\x80"


async def test_a_result_that_another_job_wants_is_kept(bench: Bench):
    @bench.app.task(result_ttl="0s")
    async def make() -> int:
        return 7

    @bench.app.task
    async def use(number: int) -> int:
        return number

    [id] = await enqueue(bench, make.job().then(use))
    async with bench.worker():
        assert await result(bench, id) == 7


async def test_an_input_that_is_not_done_any_more_puts_the_job_off(bench: Bench):
    @bench.app.task
    async def use(number: int) -> None: ...

    later = Batch(new_batch(), [NewJob(use.name, b"", Lane(), timedelta(hours=1))])
    await bench.store.enqueue(later)
    input = job_id(later.id, 0)
    job = NewJob(use.name, _call(input), Lane(), options=encode_options(JobOptions(inputs=(input,))))
    batch = Batch(new_batch(), [job])
    await bench.store.enqueue(batch)
    async with bench.worker():
        put_off = await bench.reach(job_id(batch.id, 0), JobState.SCHEDULED)
    assert put_off.note == f"job {input} of {use.name}, whose result is an argument, runs again"


async def test_a_read_is_repeated_while_the_store_is_away(bench: Bench, store: Library):
    @bench.app.task
    async def make() -> int:
        return 7

    @bench.app.task
    async def use(number: int) -> int:
        return number

    store.away = 2
    [id] = await enqueue(bench, make.job().then(use))
    async with bench.worker():
        assert await result(bench, id) == 7
    assert store.reads == [1, 1, 1]


async def test_a_worker_that_stops_hands_back_jobs_that_wait_for_inputs(bench: Bench, store: Library):
    @bench.app.task
    async def make() -> int:
        return 7

    @bench.app.task
    async def use(number: int) -> int:
        return number

    store.unlocked.clear()
    [id] = await enqueue(bench, make.job().then(use))
    async with bench.worker():
        await store.asked.wait()
    assert (await bench.get(id)).state is JobState.READY
    store.unlocked.set()
    async with bench.worker():
        assert await result(bench, id) == 7


async def test_a_large_result_is_fetched_from_its_storage(bench: Bench, tmp_path: Path):
    bench.app.large_results(FolderResults(tmp_path), over=100)

    @bench.app.task
    async def make() -> str:
        return "x" * 1000

    @bench.app.task
    async def use(text: str) -> int:
        return len(text)

    [id] = await enqueue(bench, make.job().then(use))
    async with bench.worker():
        assert await result(bench, id) == 1000


async def test_the_results_of_a_group_are_one_list_in_the_order_of_its_jobs(bench: Bench, store: Library):
    @bench.app.task
    async def square(number: int) -> int:
        await asyncio.sleep(0.001 * (number % 3))
        return number * number

    @bench.app.task
    def add_up(numbers: Sequence[int], extra: int) -> list[int]:
        return [*numbers, extra]

    [id] = await enqueue(bench, group(square.job(number) for number in range(1200)).then(add_up, -1))
    async with bench.worker(concurrency=50):
        assert await result(bench, id) == [*(number * number for number in range(1200)), -1]
    assert store.reads == [500, 500, 200]


def test_only_listed_ids_are_references():
    wanted, other = uuid4(), uuid4()
    payload = msgspec.msgpack.encode(
        ([msgspec.msgpack.Ext(1, wanted.bytes), msgspec.msgpack.Ext(1, other.bytes), reference(wanted.bytes)], {})
    )
    [args, kwargs] = msgspec.msgpack.decode(resolved(payload, {wanted: msgspec.msgpack.encode({"a": 1})}))
    assert args[0] == {"a": 1}
    assert args[1] == msgspec.msgpack.Ext(1, other.bytes)
    assert args[2] == reference(wanted.bytes), "bytes of a user that look like a reference stay as they are"
    assert kwargs == {}


def test_references_in_json():
    wanted = uuid4()
    payload = msgspec.json.encode(
        {"args": [{"$out": str(wanted)}, {"$out": "x"}], "kwargs": {"a": [{"$out": str(wanted)}]}}
    )
    found = msgspec.json.decode(resolved(payload, {wanted: msgspec.msgpack.encode([1, None])}))
    assert found == {"args": [[1, None], {"$out": "x"}], "kwargs": {"a": [[1, None]]}}


async def test_a_json_job_gets_its_inputs(bench: Bench):
    @bench.app.task
    async def make() -> dict[str, int]:
        return {"a": 1}

    @bench.app.task
    async def use(value: dict[str, int]) -> int:
        return value["a"]

    first = await bench.enqueue(make)
    options = msgspec.json.encode({"inputs": [str(first)]})
    payload = msgspec.json.encode({"args": [{"$out": str(first)}]})
    batch = Batch(new_batch(), [NewJob(use.name, payload, Lane(), options=options, wait=Wait(first))])
    await bench.store.enqueue(batch)
    async with bench.worker():
        assert await result(bench, job_id(batch.id, 0)) == 1
