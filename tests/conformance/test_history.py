"""History: rollups that are added twice count once, are read in pages, and are folded in one step or not at all."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from headrace.model.histogram import Histogram
from headrace.model.rollup import HOUR, HOURS_FROM, MINUTES_FROM, USAGE_FROM, AttemptEnd, Rollup, RollupKey
from headrace.model.usage import Usage
from headrace.store.contract import Store

START = 29_454_480
"""2026-01-01 12:00 UTC, in minutes since 1970: the time of the tests' clock."""


def rollup(
    start: int = START,
    *,
    queue: str = "default",
    task: str = "t",
    end: AttemptEnd = AttemptEnd.DONE,
    count: int = 1,
    id: UUID | None = None,
) -> Rollup:
    times = Histogram()
    times.add([0.25] * count)
    packed = times.pack()
    return Rollup(
        start=start,
        id=id or uuid4(),
        queue=queue,
        task=task,
        end=end,
        count=count,
        wait=packed,
        run=packed,
        sent=start * 60,
    )


async def everything(
    store: Store,
    since: int = 0,
    until: int = START + 10_000,
    *,
    queue: str | None = None,
    task: str | None = None,
    limit: int = 1000,
) -> list[Rollup]:
    rollups: list[Rollup] = []
    after: RollupKey | None = None
    while True:
        page = await store.read_history(since, until, queue=queue, task=task, after=after, limit=limit)
        assert len(page.rollups) <= limit
        rollups += page.rollups
        if page.next is None:
            return rollups
        assert after is None or page.next > after
        after = page.next


def in_order(rollups: list[Rollup]) -> list[Rollup]:
    return sorted(rollups, key=lambda rollup: rollup.key)


async def test_there_are_none_at_first(store: Store):
    page = await store.read_history(0, START)
    assert (page.rollups, page.next, page.folds) == ([], None, 0)


async def test_rollups_come_back_as_they_were_added(store: Store):
    rollups = [rollup(end=end, count=number) for number, end in enumerate(AttemptEnd, start=1)]
    rollups.append(replace(rollup(task="a.b-c", queue="mails"), span=HOUR, count=2**40))
    await store.add_history(rollups)
    assert await everything(store) == in_order(rollups)


async def test_sections_are_kept_apart(store: Store):
    main, minutes, hours, usage = (
        replace(rollup(section + START), sent=START * 60) for section in (0, MINUTES_FROM, HOURS_FROM, USAGE_FROM)
    )
    usage = replace(usage, run=Usage({"acme": 1.0}).pack())
    await store.add_history([usage, main])
    assert await store.fold_history([], [hours, minutes])
    assert await everything(store) == [main]
    assert await everything(store, MINUTES_FROM, HOURS_FROM) == [minutes]
    assert await everything(store, HOURS_FROM, USAGE_FROM) == [hours]
    assert await everything(store, USAGE_FROM, 2**31 - 1) == [usage]


async def test_a_rollup_that_is_added_twice_counts_once(store: Store):
    first, second = rollup(count=3), rollup(count=5)
    await store.add_history([first, second])
    await store.add_history([first])
    await asyncio.gather(*(store.add_history([second, first]) for _ in range(4)))
    assert await everything(store) == in_order([first, second])


async def test_nothing_to_add_is_no_error(store: Store):
    await store.add_history([])
    assert await everything(store) == []


async def test_a_range_has_its_first_minute_and_not_its_last(store: Store):
    rollups = [rollup(START + minute) for minute in range(5)]
    await store.add_history(rollups)
    assert await everything(store, START + 1, START + 4) == rollups[1:4]
    assert await everything(store, START + 4, START + 4) == []


@pytest.mark.parametrize("limit", [1, 3, 10, 11])
async def test_pages_hold_every_rollup_once(store: Store, limit: int):
    rollups = [rollup(START + number // 4) for number in range(10)]
    await store.add_history(rollups)
    assert await everything(store, limit=limit) == in_order(rollups)


async def test_a_page_ends_at_its_limit_also_when_nothing_fits(store: Store):
    ids = [UUID(int=number) for number in range(1, 7)]
    await store.add_history([rollup(queue="other", id=id) for id in ids[:5]] + [rollup(queue="mine", id=ids[5])])
    page = await store.read_history(0, START + 1, queue="mine", limit=3)
    assert (page.rollups, page.next) == ([], RollupKey(START, ids[2]))
    page = await store.read_history(0, START + 1, queue="mine", after=page.next, limit=3)
    assert ([rollup.id for rollup in page.rollups], page.next) == ([ids[5]], None)


async def test_rollups_are_chosen_by_queue_and_task(store: Store):
    rollups = [rollup(queue=queue, task=task) for queue in ("a", "b") for task in ("s", "t")]
    await store.add_history(rollups)
    assert await everything(store, queue="a") == in_order(rollups[:2])
    assert await everything(store, task="t") == in_order([rollups[1], rollups[3]])
    assert await everything(store, queue="b", task="s") == [rollups[2]]
    assert await everything(store, queue="c") == []


async def test_a_fold_replaces_rollups_in_one_step(store: Store):
    old, kept = [rollup(), rollup()], rollup(START + 1)
    await store.add_history([*old, kept])
    whole = replace(rollup(count=2), span=HOUR)
    assert await store.fold_history([one.key for one in old], [whole])
    assert await everything(store) == in_order([whole, kept])


async def test_a_fold_is_refused_when_a_rollup_is_gone(store: Store):
    old, kept = [rollup(), rollup()], rollup(START + 1)
    await store.add_history([*old, kept])
    first, second = rollup(count=2), rollup(count=3)
    assert await store.fold_history([one.key for one in old], [first])
    assert not await store.fold_history([kept.key, old[0].key], [second])
    assert not await store.fold_history([one.key for one in old], [first])
    assert await everything(store) == in_order([first, kept])


async def test_of_two_folds_at_once_one_wins(store: Store):
    old = [rollup() for _ in range(20)]
    await store.add_history(old)
    wholes = [rollup(count=20) for _ in range(4)]
    answers = await asyncio.gather(*(store.fold_history([one.key for one in old], [whole]) for whole in wholes))
    assert sorted(answers) == [False, False, False, True]
    assert await everything(store) == [wholes[answers.index(True)]]


async def test_a_page_tells_how_often_rollups_were_folded(store: Store):
    old, kept = rollup(), rollup()
    await store.add_history([old, kept])
    before = (await store.read_history(0, START + 1)).folds
    assert await store.fold_history([old.key], [rollup()])
    folded = (await store.read_history(0, START + 1)).folds
    assert folded != before
    assert not await store.fold_history([old.key], [rollup()])
    assert (await store.read_history(0, START + 1)).folds == folded


async def test_old_rollups_are_dropped_by_a_fold_without_new_ones(store: Store):
    rollups = [rollup(START + minute) for minute in range(3)]
    await store.add_history(rollups)
    assert await store.fold_history([one.key for one in rollups[:2]], [])
    assert await everything(store) == rollups[2:]


async def test_a_full_call_is_added_and_folded(store: Store):
    rollups = [rollup() for _ in range(1000)]
    await store.add_history(rollups)
    assert await everything(store) == in_order(rollups)
    whole = rollup(count=1000)
    assert await store.fold_history([one.key for one in rollups], [whole])
    assert await everything(store) == [whole]
