"""Single enqueues that come at the same time share a flush, and one call's error does not affect another."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from headrace.client.coalesce import MOST_TOGETHER, Coalescer
from headrace.errors import IdempotencyConflict, KeyHeld, Unavailable
from headrace.model.job import JobId, Key, NewJob, job_id, new_batch
from headrace.model.lane import Lane

LANE = Lane()


def job(name: str) -> NewJob:
    return NewJob(name, b"", LANE)


class Shore:
    """Carries when told to; remembers what travelled together."""

    def __init__(self) -> None:
        self.flushes: list[list[str]] = []
        self.keys: list[list[str]] = []
        self.tide = asyncio.Event()
        self.left = asyncio.Event()
        self.trouble: dict[str, Exception] = {}

    async def carry(self, jobs: Sequence[NewJob]) -> list[JobId]:
        self.flushes.append([job.task for job in jobs])
        self.keys.append([job.key.name for job in jobs if job.key is not None])
        self.left.set()
        await self.tide.wait()
        for each in jobs:
            if each.task in self.trouble:
                raise self.trouble[each.task]
        batch = new_batch()
        return [job_id(batch, place) for place in range(len(jobs))]


async def crowd(coalescer: Coalescer, shore: Shore, names: Sequence[str]) -> list[asyncio.Task[JobId]]:
    """The first is under way, the others wait for it to come back."""
    tasks = [asyncio.create_task(coalescer.put(job(names[0])))]
    await shore.left.wait()
    tasks += [asyncio.create_task(coalescer.put(job(name))) for name in names[1:]]
    await asyncio.sleep(0)
    return tasks


async def test_who_comes_alone_travels_alone():
    shore = Shore()
    shore.tide.set()
    coalescer = Coalescer(shore.carry)
    for name in "abc":
        await coalescer.put(job(name))
    assert shore.flushes == [["a"], ["b"], ["c"]]


async def test_who_comes_meanwhile_travels_together_and_in_order():
    shore = Shore()
    coalescer = Coalescer(shore.carry)
    tasks = await crowd(coalescer, shore, "abcd")
    shore.tide.set()
    ids = await asyncio.gather(*tasks)
    assert shore.flushes == [["a"], ["b", "c", "d"]]
    assert len(set(ids)) == 4
    assert ids[1] < ids[2] < ids[3]


async def test_a_trip_has_so_many_seats():
    shore = Shore()
    coalescer = Coalescer(shore.carry)
    tasks = await crowd(coalescer, shore, [str(n) for n in range(MOST_TOGETHER + 3)])
    shore.tide.set()
    await asyncio.gather(*tasks)
    assert [len(trip) for trip in shore.flushes] == [1, MOST_TOGETHER, 2]


async def test_a_conflict_is_its_own_callers():
    shore = Shore()
    coalescer = Coalescer(shore.carry)
    shore.trouble["c"] = IdempotencyConflict("c", "key", job_id(new_batch(), 0))
    tasks = await crowd(coalescer, shore, "abcd")
    shore.tide.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, IdempotencyConflict) for each in done] == [False, False, True, False]
    assert shore.flushes == [["a"], ["b", "c", "d"], ["b"], ["c"], ["d"]]


async def test_a_store_in_trouble_is_everybodys_trouble_and_the_next_trip_goes():
    shore = Shore()
    coalescer = Coalescer(shore.carry)
    shore.trouble["b"] = Unavailable("gone")
    tasks = await crowd(coalescer, shore, "abc")
    shore.tide.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, Unavailable) for each in done] == [False, True, True]
    await coalescer.put(job("d"))
    assert shore.flushes[-1] == ["d"]


async def test_who_is_cancelled_on_the_quay_is_not_enqueued():
    shore = Shore()
    coalescer = Coalescer(shore.carry)
    first, second, third = await crowd(coalescer, shore, "abc")
    second.cancel()
    await asyncio.wait([second])
    shore.tide.set()
    await first
    await third
    assert shore.flushes == [["a"], ["c"]]


async def test_the_first_ones_cancellation_leaves_nobody_behind():
    shore = Shore()
    coalescer = Coalescer(shore.carry)
    first, second = await crowd(coalescer, shore, "ab")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    shore.tide.set()
    await second


async def test_closing_waits_for_those_aboard():
    shore = Shore()
    coalescer = Coalescer(shore.carry)
    tasks = await crowd(coalescer, shore, "abc")
    closing = asyncio.create_task(coalescer.close())
    shore.tide.set()
    await asyncio.gather(*tasks)
    await closing


def keyed(name: str, key: str) -> NewJob:
    return NewJob(name, b"", LANE, key=Key(key, timedelta(days=1), b""))


async def test_several_trips_at_once_and_the_same_key_never_on_two():
    shore = Shore()
    coalescer = Coalescer(shore.carry, flushes=2)
    jobs = [keyed("a", "1"), keyed("a", "1"), keyed("a", "2"), keyed("a", "3"), keyed("b", "1")]
    tasks = [asyncio.create_task(coalescer.put(each)) for each in jobs]
    await shore.left.wait()
    await asyncio.sleep(0)
    assert shore.keys == [["1"], ["2"]]
    shore.tide.set()
    await asyncio.gather(*tasks)
    assert shore.keys == [["1"], ["2"], ["1", "3", "1"]]
    await coalescer.close()


async def test_a_key_that_is_under_way_keeps_no_other_waiting():
    shore = Shore()
    coalescer = Coalescer(shore.carry, flushes=2)
    first = asyncio.create_task(coalescer.put(keyed("a", "1")))
    await shore.left.wait()
    second = asyncio.create_task(coalescer.put(keyed("a", "1")))
    await asyncio.sleep(0)
    third = asyncio.create_task(coalescer.put(keyed("a", "2")))
    await asyncio.sleep(0)
    assert shore.keys == [["1"], ["2"]]
    shore.tide.set()
    await asyncio.gather(first, second, third)


async def test_a_held_key_is_its_own_callers():
    shore = Shore()
    coalescer = Coalescer(shore.carry)
    shore.trouble["c"] = KeyHeld("held")
    tasks = await crowd(coalescer, shore, "abcd")
    shore.tide.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, KeyHeld) for each in done] == [False, False, True, False]


async def test_after_a_key_that_is_held_the_others_do_not_wait_for_it_again():
    """The store has waited for the key once, for all of them. The job that needs it waits the second time alone."""
    held, tried, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
    flushes: list[list[str]] = []

    async def carry(jobs: Sequence[NewJob]) -> list[str]:
        names = [each.task for each in jobs]
        flushes.append(names)
        left.set()
        if names == ["first"]:
            await tried.wait()
        elif len(names) > 1:
            raise KeyHeld("held")
        elif names == ["slow"]:
            await held.wait()
            raise KeyHeld("held")
        return names

    coalescer = Coalescer(carry)
    first = asyncio.create_task(coalescer.put(keyed("first", "0")))
    await left.wait()
    names = ["slow", *(f"job{number}" for number in range(50))]
    tasks = [asyncio.create_task(coalescer.put(keyed(name, name))) for name in names]
    await asyncio.sleep(0)
    tried.set()
    async with asyncio.timeout(60):
        assert await first == "first"
        assert await asyncio.gather(*tasks[1:]) == names[1:]
    assert not tasks[0].done()
    held.set()
    with pytest.raises(KeyHeld):
        await tasks[0]


async def test_jobs_with_the_same_key_keep_their_order_when_they_go_alone():
    tried, left = asyncio.Event(), asyncio.Event()
    flushes: list[list[str]] = []

    async def carry(jobs: Sequence[NewJob]) -> list[str]:
        names = [each.payload.decode() for each in jobs]
        flushes.append(names)
        left.set()
        if names == ["first"]:
            await tried.wait()
        elif len(names) > 1:
            raise KeyHeld("held")
        return names

    def one(text: str, key: str) -> NewJob:
        return NewJob("t", text.encode(), LANE, key=Key(key, timedelta(days=1), b""))

    coalescer = Coalescer(carry)
    tasks = [asyncio.create_task(coalescer.put(one("first", "0")))]
    await left.wait()
    tasks += [asyncio.create_task(coalescer.put(one(text, "same"))) for text in "abc"]
    await asyncio.sleep(0)
    tried.set()
    await asyncio.gather(*tasks)
    assert flushes == [["first"], ["a", "b", "c"], ["a"], ["b"], ["c"]]
