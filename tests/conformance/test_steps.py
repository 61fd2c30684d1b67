"""add_steps, read_steps: what a task has finished, fenced like every write under a lease, and kept with its job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from conformance.kit import (
    CANCELLED,
    DEAD,
    JANITOR,
    RELEASE,
    TTL,
    dump,
    new,
    put,
    put_jobs,
    run_one,
    settle_all,
    state,
    take,
)
from headrace.model.gate import Needs, NewGate, Wait, derived_gate_id
from headrace.model.job import JobState, job_id, new_batch
from headrace.model.lease import new_token
from headrace.model.outcome import DONE, Settlement
from headrace.model.records import Retention
from headrace.model.step import MAX_STEP_VALUE, UNDO, Answered, SignalWait, Step
from headrace.store.contract import Store
from headrace.testing.clock import FakeClock

AT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
NOTHING = timedelta(0)


def a_step(name: str = "charge", number: int = 0, value: bytes | None = b"\x01") -> Step:
    return Step(name, number, b"digest", value, AT)


async def test_steps_come_out_as_they_went_in_and_in_order(store: Store):
    first, second = await put(store, 2)
    lease = await take(store)
    assert await store.read_steps(first) == []
    steps = [a_step("charge", 1), a_step("charge", 0, None), a_step("book", 0, b"")]
    assert await store.add_steps(lease.token, [(0, steps[0]), (0, steps[1])]) == frozenset()
    assert await store.add_steps(lease.token, [(0, steps[2])]) == frozenset()
    assert await store.read_steps(first) == steps
    assert await store.read_steps(second) == []


async def test_the_first_of_a_name_and_number_stays(store: Store):
    [id] = await put(store)
    lease = await take(store)
    step = a_step()
    other = Step("charge", 0, b"other", b"\x02", AT + timedelta(hours=1))
    await store.add_steps(lease.token, [(0, step), (0, other)])
    await store.add_steps(lease.token, [(0, other)])
    await store.add_steps(lease.token, [(0, step), (0, a_step("book"))])
    assert await store.read_steps(id) == [step, a_step("book")]


async def test_one_call_takes_steps_of_several_jobs(store: Store):
    ids = await put(store, 3)
    lease = await take(store)
    await store.add_steps(lease.token, [(at, a_step(f"step {at}")) for at in (2, 0)])
    assert [await store.read_steps(id) for id in ids] == [[a_step("step 0")], [], [a_step("step 2")]]
    assert await store.add_steps(lease.token, []) == frozenset()


async def test_jobs_of_several_queues_in_one_lease(store: Store):
    ids = await put_jobs(store, new(queue="a"), new(queue="b"))
    lease = await take(store, 100, "a", "b")
    by_position = {job.id: at for at, job in enumerate(lease.jobs)}
    await store.add_steps(lease.token, [(by_position[id], a_step(str(id))) for id in ids])
    for id in ids:
        assert await store.read_steps(id) == [a_step(str(id))]


async def test_any_name_and_a_large_value(store: Store):
    [id] = await put(store)
    lease = await take(store)
    steps = [
        a_step("ünï [\N{PILE OF POO} 'a\"]", 0),
        a_step("large", 9999, bytes(range(256)) * (MAX_STEP_VALUE // 256)),
    ]
    await store.add_steps(lease.token, [(0, step) for step in steps])
    assert await store.read_steps(id) == steps


async def test_a_worker_without_the_lease_changes_nothing(store: Store, clock: FakeClock):
    ids = await put(store, 3)
    lease = await take(store)
    await store.settle(lease.token, [(0, DONE)])
    before = await dump(store)
    step = a_step()
    assert await store.add_steps(lease.token, [(0, step), (3, step), (-1, step)]) == {0, 3, -1}
    assert await store.add_steps(new_token(), [(0, step)]) == {0}
    assert await dump(store) == before
    clock.advance(TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    assert await store.add_steps(lease.token, [(1, step)]) == {1}
    assert [await store.read_steps(id) for id in ids] == [[], [], []]
    assert await store.add_steps(orphan.token, [(1, step)]) == frozenset()
    assert await store.read_steps(ids[1]) == [step]


async def test_a_detached_job_goes_on_with_its_journal(store: Store):
    [first, second] = await put(store, 2)
    lease = await take(store)
    await store.add_steps(lease.token, [(1, a_step("one"))])
    fresh = new_token()
    assert await store.detach(lease.token, 1, fresh)
    assert await store.add_steps(lease.token, [(1, a_step("two"))]) == {1}
    assert await store.add_steps(fresh, [(0, a_step("three"))]) == frozenset()
    assert await store.read_steps(second) == [a_step("one"), a_step("three")]
    assert await store.read_steps(first) == []


async def test_the_next_attempt_reads_them_and_adds_to_them(store: Store):
    [id] = await put(store)
    lease = await take(store)
    await store.add_steps(lease.token, [(0, a_step("one"))])
    await settle_all(store, lease, RELEASE)
    lease = await take(store)
    assert await store.read_steps(id) == [a_step("one")]
    await store.add_steps(lease.token, [(0, a_step("two"))])
    await settle_all(store, lease)
    assert await store.read_steps(id) == [a_step("one"), a_step("two")]


@pytest.mark.parametrize(
    ("end", "kept"), [(DEAD, True), (DONE, False), (CANCELLED, False)], ids=["dead", "done", "cancelled"]
)
async def test_a_retry_resumes_a_dead_job_and_starts_others_afresh(store: Store, end: Settlement, kept: bool):
    ids = await put(store, 2)
    lease = await take(store)
    await store.add_steps(lease.token, [(0, a_step()), (1, a_step())])
    await settle_all(store, lease, end)
    assert await store.retry(ids[:1]) == {ids[0]}
    assert await store.read_steps(ids[0]) == ([a_step()] if kept else [])
    assert await store.read_steps(ids[1]) == [a_step()]


async def test_a_retry_of_a_scheduled_job_keeps_them(store: Store):
    [id] = await put(store)
    lease = await take(store)
    await store.add_steps(lease.token, [(0, a_step())])
    await settle_all(store, lease, type(RELEASE)(0, 0, due=timedelta(hours=1)))
    assert await store.retry([id]) == {id}
    assert await store.read_steps(id) == [a_step()]


async def test_they_go_with_their_job(store: Store, clock: FakeClock):
    kept, deleted, dead = await put(store, 3)
    lease = await take(store)
    await store.add_steps(lease.token, [(at, a_step()) for at in range(3)])
    await store.settle(lease.token, [(0, RELEASE), (1, DONE), (2, DEAD)])
    assert await store.delete([deleted, dead]) == {deleted, dead}
    assert await store.read_steps(deleted) == await store.read_steps(dead) == []
    assert await store.read_steps(kept) == [a_step()]
    await run_one(store)
    assert await store.read_steps(kept) == [a_step()]
    clock.advance(timedelta(days=3))
    while (await store.prune(Retention(done=NOTHING))).more:
        pass
    assert await store.get([kept]) == [None]
    assert await store.read_steps(kept) == []


async def test_an_unknown_job_has_none(store: Store):
    assert await store.read_steps(job_id(new_batch(), 0)) == []


async def test_a_retry_starts_a_dead_job_over_whose_undo_jobs_were_let_go(store: Store):
    """What the step registered waits for the failure, which has come. A job without such a step resumes."""
    undone, other = await put(store, 2)
    lease = await take(store)
    registered = Step(UNDO, 0, b"d", b"v", a_step().at)
    await store.add_steps(lease.token, [(0, a_step()), (0, registered), (1, a_step())])
    [start] = await put(store, wait=Wait(undone, Needs.FAILED))
    await settle_all(store, lease, DEAD)
    while (await store.promote()).moved:
        pass
    assert await state(store, start) is JobState.READY
    assert await store.retry([undone, other]) == {undone, other}
    assert await store.read_steps(undone) == []
    assert await store.read_steps(other) == [a_step()]


def an_event(key: str = "42") -> NewGate:
    return NewGate(id=derived_gate_id("", "event", key), queue="default", signalled=True)


KEPT = timedelta(days=1)
WAIT = a_step("event")
"""What remembers the signal of `an_event()`: one byte stands before its value."""
ANSWER = a_step("event", value=b"\x01yes")


async def test_a_wait_without_a_signal_writes_nothing(store: Store):
    [id] = await put(store)
    lease = await take(store)
    gate = an_event()
    assert await store.answer_wait(lease.token, 0, SignalWait(id, gate.id, WAIT, journal=True)) == Answered(None)
    await store.add_steps(lease.token, [(0, a_step())])
    answered = await store.answer_wait(lease.token, 0, SignalWait(id, gate.id, WAIT, journal=True))
    assert answered == Answered(None, steps=[a_step()])
    assert await store.answer_wait(lease.token, 0, SignalWait(id, gate.id, WAIT, journal=False)) == Answered(None)
    assert await store.read_steps(id) == [a_step()]


@pytest.mark.parametrize("size", [0, 3, 254, 255, 256, 65_534, 65_535, 65_536])
async def test_the_value_of_a_signal_becomes_a_step_once(store: Store, size: int):
    [id] = await put(store)
    lease = await take(store)
    gate, value = an_event(), b"v" * size
    await store.add_steps(lease.token, [(0, a_step())])
    await store.signal(gate, value, KEPT)
    whole = a_step("event", value=b"\x01" + value)
    answered = await store.answer_wait(lease.token, 0, SignalWait(id, gate.id, WAIT, journal=True))
    assert answered == Answered(value, stored=True, steps=[a_step(), whole])
    again = await store.answer_wait(lease.token, 0, SignalWait(id, gate.id, WAIT, journal=True))
    assert again == Answered(value, steps=[a_step(), whole])
    assert await store.answer_wait(lease.token, 0, SignalWait(id, gate.id, WAIT, journal=False)) == Answered(value)
    assert await store.read_steps(id, lease.token) == [a_step(), whole]


async def test_a_caller_that_has_not_read_the_journal_stores_nothing_beside_a_step_of_the_name(store: Store):
    """The journal may say that the time of the wait was over, and the caller cannot know it."""
    [id] = await put(store)
    lease = await take(store)
    gate = an_event()
    over = a_step("event", 1, b"\x00")
    await store.add_steps(lease.token, [(0, over)])
    await store.signal(gate, b"yes", KEPT)
    answered = await store.answer_wait(lease.token, 0, SignalWait(id, gate.id, WAIT, journal=True))
    assert answered == Answered(b"yes", steps=[over])
    assert await store.answer_wait(lease.token, 0, SignalWait(id, gate.id, WAIT, journal=False)) == Answered(
        b"yes", stored=True
    )
    assert await store.read_steps(id) == [over, ANSWER]


async def test_a_wait_is_answered_under_its_lease_only(store: Store, clock: FakeClock):
    ids = await put(store, 2)
    lease = await take(store)
    gate = an_event()
    wait = SignalWait(ids[0], gate.id, WAIT, journal=True)
    await store.signal(gate, b"yes", KEPT)
    assert await store.answer_wait(new_token(), 0, wait) is None
    assert await store.answer_wait(lease.token, 2, wait) is None
    await store.settle(lease.token, [(0, DONE)])
    assert await store.answer_wait(lease.token, 0, wait) is None
    clock.advance(2 * TTL)
    [orphan] = await store.reap(JANITOR, TTL)
    other = SignalWait(ids[1], gate.id, WAIT, journal=True)
    assert await store.answer_wait(lease.token, 1, other) is None
    assert [await store.read_steps(id) for id in ids] == [[], []]
    assert await store.answer_wait(orphan.token, 1, other) == Answered(b"yes", stored=True, steps=[ANSWER])
