"""Answers lost in the middle of a call: settlements in parts, a lease over several queues, reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from conformance.kit import DEAD, ids, look, new, put, put_jobs, settle_all, states, take
from headrace.errors import OutcomeUnknown
from headrace.model.job import JobState, LogLine
from headrace.model.lease import MAX_LOG, Report
from headrace.model.outcome import DONE
from headrace.store.redis.store import RedisStore
from stores.redis.proxy import Proxy

AT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[RedisStore]:
    store = RedisStore(proxy.url)
    await store.open()
    await put(store, queue="warm")
    await settle_all(store, await take(store, 1, "warm"))
    yield store
    await store.close()


async def test_the_second_part_of_a_settle(store: RedisStore, proxy: Proxy):
    """More jobs than one script handles: a repeated call repeats the first part, too, on a lease that has ended."""
    await put(store, 300)
    lease = await take(store, 300)
    ends = [(at, DEAD) for at in range(300)]
    proxy.spare_answers, proxy.cut_answers = 1, 2
    with pytest.raises(OutcomeUnknown):
        await store.settle(lease.token, ends)
    assert await store.settle(lease.token, ends) == frozenset()
    assert await states(store, ids(lease)) == [JobState.DEAD] * 300
    # Known again: from here on the token is spent like any other.
    assert await store.settle(lease.token, ends) == frozenset(range(300))


@pytest.mark.parametrize("heard", [0, 1, 2, 3])
async def test_any_step_of_a_settle_over_two_queues(store: RedisStore, proxy: Proxy, heard: int):
    """Two parts to settle and two to end."""
    await put_jobs(store, new(queue="a"), new(queue="b"))
    lease = await take(store, 2, "a", "b")
    proxy.spare_answers, proxy.cut_answers = heard, 2
    with pytest.raises(OutcomeUnknown):
        await store.settle(lease.token, [(0, DONE), (1, DONE)])
    assert await store.settle(lease.token, [(0, DONE), (1, DONE)]) == frozenset()
    assert await states(store, ids(lease)) == [JobState.DONE] * 2
    assert await store.settle(lease.token, [(0, DONE), (1, DONE)]) == {0, 1}


@pytest.mark.parametrize("lines", [1, 3, MAX_LOG])
async def test_lines_of_a_log_are_there_once(store: RedisStore, proxy: Proxy, lines: int):
    await put(store)
    lease = await take(store)
    before = Report(progress=0.1, lines=(LogLine(AT, "begun"),))
    await store.report(lease.token, [(0, before)])
    said = tuple(LogLine(AT, f"charged {n}") for n in range(lines))
    proxy.cut_answers = 1
    assert await store.report(lease.token, [(0, Report(lines=said))]) == frozenset()
    assert proxy.cuts == 1
    job = await look(store, lease.jobs[0].id)
    assert job.log == (*before.lines, *said)[-MAX_LOG:]
    assert job.progress == 0.1


async def test_the_same_words_at_another_time_are_others(store: RedisStore):
    await put(store)
    lease = await take(store)
    lines = [LogLine(AT.replace(microsecond=n), "again") for n in range(3)]
    for line in lines:
        await store.report(lease.token, [(0, Report(lines=(line,)))])
    assert (await look(store, lease.jobs[0].id)).log == tuple(lines)
