"""The waiting room: how few looks at the store many idle workers cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from conftest import nothing_left_behind
from headrace.errors import Unavailable
from headrace.server import waiting_claims
from headrace.server.http.boundary import Gone
from headrace.server.waiting_claims import WaitingClaims


class Jobs:
    """A store of which only the waiting is used; jobs are numbers."""

    def __init__(self) -> None:
        self.jobs: list[int] = []
        self.looks = 0
        self.waits = 0
        self.bell = asyncio.Event()
        self.fails = False

    async def wait(self, queues: Sequence[str], timeout: float) -> bool:
        self.waits += 1
        if self.fails:
            self.fails = False
            raise Unavailable("away")
        await self.bell.wait()
        self.bell.clear()
        return True

    def put(self, *jobs: int) -> None:
        self.jobs += jobs
        self.bell.set()

    async def look(self) -> int | None:
        self.looks += 1
        await asyncio.sleep(0)
        return self.jobs.pop(0) if self.jobs else None


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
async def room(jobs: Jobs) -> AsyncIterator[WaitingClaims]:
    store: Any = jobs
    async with nothing_left_behind():
        made = WaitingClaims(store)
        yield made
        await made.close()


def wait(
    room: WaitingClaims, jobs: Jobs, seconds: float = 60, *, queues: Sequence[str] = ("a",), tenant: str | None = None
) -> asyncio.Task[int | None]:
    return asyncio.create_task(room.until_found(tuple(queues), tenant, seconds, jobs.look))


async def asleep(room: WaitingClaims, people: int) -> None:
    async with asyncio.timeout(60):
        while room.sleeping < people:  # noqa: ASYNC110  # everything happens in this loop: each pass is the event
            await asyncio.sleep(0)


async def test_what_is_there_is_found_at_once(room: WaitingClaims, jobs: Jobs) -> None:
    jobs.jobs = [7]
    assert await room.until_found(("a",), None, 0, jobs.look) == 7
    assert await room.until_found(("a",), None, 0, jobs.look) is None
    assert (room.waiting, room.listening) == (0, 0)


async def test_one_job_wakes_one_of_a_thousand(room: WaitingClaims, jobs: Jobs) -> None:
    people = [wait(room, jobs) for _ in range(1000)]
    await asleep(room, 1000)
    assert (room.waiting, room.listening, jobs.waits) == (1000, 1, 1)
    looks = jobs.looks
    jobs.put(1)
    done, _ = await asyncio.wait(people, return_when=asyncio.FIRST_COMPLETED)
    assert [each.result() for each in done] == [1]
    await asleep(room, 999)
    # The one that found it, and one more that saw that there was no other.
    assert jobs.looks - looks <= 2
    jobs.put(2, 3, 4)
    left = set(people)
    while sum(each.done() for each in people) < 4:
        _, left = await asyncio.wait(left, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    await asleep(room, 996)
    assert jobs.looks - looks <= 6
    await room.close()
    found = await asyncio.gather(*people)
    assert sorted(each for each in found if each is not None) == [1, 2, 3, 4]
    assert found.count(None) == 996


async def test_who_comes_when_it_is_known_to_be_empty_need_not_look(room: WaitingClaims, jobs: Jobs) -> None:
    first = wait(room, jobs)
    await asleep(room, 1)
    others = [wait(room, jobs) for _ in range(100)]
    await asleep(room, 101)
    assert jobs.looks == 1
    jobs.put(*range(101))
    assert sorted([await each or 0 for each in [first, *others]]) == list(range(101))


async def test_the_longest_waiting_comes_first(room: WaitingClaims, jobs: Jobs) -> None:
    people: list[asyncio.Task[int | None]] = []
    for count in range(1, 4):
        people.append(wait(room, jobs))
        await asleep(room, count)
    jobs.put(1)
    assert await people[0] == 1
    jobs.put(2, 3)
    assert [await people[1], await people[2]] == [2, 3]


async def test_time_is_up(room: WaitingClaims, jobs: Jobs) -> None:
    assert await wait(room, jobs, 0.01) is None
    assert (room.waiting, room.listening) == (0, 0)


async def test_sets_of_queues_and_tenants(room: WaitingClaims, jobs: Jobs) -> None:
    people = [
        wait(room, jobs, queues=("a", "b")),
        wait(room, jobs, queues=("b", "a", "a")),
        wait(room, jobs, queues=("a", "b"), tenant="t1"),
        wait(room, jobs, queues=("c",)),
    ]
    await asleep(room, 4)
    assert room.listening == 2
    assert jobs.looks <= 4
    await room.close()
    assert [await each for each in people] == [None] * 4


async def test_one_that_is_cancelled_hands_its_turn_on(room: WaitingClaims, jobs: Jobs) -> None:
    first, second = wait(room, jobs), wait(room, jobs)
    await asleep(room, 2)
    jobs.put(1)
    while room.sleeping == 2:  # noqa: ASYNC110  # until the first one has been woken
        await asyncio.sleep(0)
    first.cancel()
    assert await second == 1
    await asyncio.wait([first])


async def test_one_that_fails_hands_its_turn_on(room: WaitingClaims, jobs: Jobs) -> None:
    async def fail() -> int | None:
        jobs.looks += 1
        if jobs.jobs:
            raise Unavailable("away")
        return None

    first = asyncio.create_task(room.until_found(("a",), None, 60, fail))
    await asleep(room, 1)
    second = wait(room, jobs)
    await asleep(room, 2)
    jobs.put(1)
    with pytest.raises(Unavailable):
        await first
    assert await second == 1


async def test_one_that_has_left_hands_its_turn_on(room: WaitingClaims, jobs: Jobs) -> None:
    async def left() -> int | None:
        if jobs.jobs:
            raise Gone
        return None

    people = []
    for count in range(1, 4):
        people.append(asyncio.create_task(room.until_found(("a",), None, 60, left)))
        await asleep(room, count)
    there = wait(room, jobs)
    await asleep(room, 4)
    jobs.put(1)
    assert await there == 1
    assert [type(each) for each in await asyncio.gather(*people, return_exceptions=True)] == [Gone] * 3


async def test_listening_goes_on_after_a_failure(
    room: WaitingClaims, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_claims, "POLL", 0.001)
    jobs.fails = True
    person = wait(room, jobs)
    await asleep(room, 1)
    jobs.put(1)
    assert await person == 1


async def test_a_closed_room_lets_nobody_wait(room: WaitingClaims, jobs: Jobs) -> None:
    person = wait(room, jobs)
    await asleep(room, 1)
    room.dismiss()
    assert await person is None
    assert await wait(room, jobs) is None
