"""Dead letters on every store: grouped by bug, replayed with care, discarded with a record."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from conformance.kit import DEAD, claim, new, put, put_jobs, settle_all, states, take
from headrace import Headrace
from headrace.errors import ConfigError, JobNotFound
from headrace.model.job import Failure, JobId, JobState
from headrace.model.outcome import DONE, Finish, Settlement
from headrace.model.records import Filter
from headrace.operate import shown
from headrace.operate.audit import Ledger
from headrace.operate.dead.letters import PAGE, Choice, DeadLetters
from headrace.operate.dead.moves import DeadLetterOperations
from headrace.operate.operations import Operations
from headrace.policy import fingerprint
from headrace.policy.canary import Canary, Trial
from headrace.store.audit import DAYS
from headrace.store.contract import Recording, Store
from headrace.task.codec import JobOptions, encode_options
from headrace.testing.clock import FakeClock


def died(bug: str, number: int = 0) -> Finish:
    """The end of a job that met this bug, with data of its own."""
    trace = (
        "Traceback (most recent call last):\n"
        f'  File "/srv/shop/tasks.py", line {number % 90 + 1}, in {bug}\n    call({number})\n'
        f"ValueError: order {number} of {bug}\n"
    )
    failure = Failure(1, "ValueError", f"order {number} of {bug}", trace, datetime(2026, 1, 1, tzinfo=UTC), "host:1")
    return Finish(JobState.DEAD, note="max_attempts", failure=failure, failures=1)


async def kill(
    store: Store, count: int = 1, *, bug: str = "charge", task: str = "t", queue: str = "default"
) -> list[JobId]:
    """Jobs that died of a bug."""
    ids = await put(store, count, task=task, queue=queue)
    left = count
    while left:
        lease = await take(store, 500, queue)
        await store.settle(lease.token, [(at, died(bug, left - at)) for at in range(len(lease.jobs))])
        left -= len(lease.jobs)
    return ids


def mark(bug: str, task: str = "t") -> str:
    failure = died(bug).failure
    assert failure is not None
    return fingerprint.of_failure(failure, task).id


class Work:
    """A worker in place of sleep: whenever the service waits, it runs what is ready."""

    def __init__(self, store: Store, end: Callable[[int], Settlement | None]) -> None:
        self._store = store
        self._end = end
        self.ran = 0
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        while (lease := await claim(self._store, 100)) is not None:
            settlements: list[tuple[int, Settlement]] = []
            for at in range(len(lease.jobs)):
                if (end := self._end(self.ran)) is not None:
                    settlements.append((at, end))
                self.ran += 1
            await self._store.settle(lease.token, settlements)

    def clock(self) -> float:
        return self.now

    def letters(self) -> DeadLetterOperations:
        return DeadLetterOperations(self._store, Ledger.of(self._store), sleep=self.sleep, clock=self.clock)


# ── looking ──────────────────────────────────────────────────────────────────


async def test_no_dead_letters(store: Store):
    await put(store)
    assert await DeadLetters(store).groups() == []


async def test_ten_thousand_dead_jobs_read_as_three_bugs(store: Store):
    counts = {"charge": 6000, "refund": 3000, "mail": 1000}
    ids = {bug: await kill(store, count, bug=bug, task=f"shop.{bug}") for bug, count in counts.items()}
    told: list[tuple[int, int, str]] = []
    groups = await DeadLetters(store).groups(progress=lambda done, total, what: told.append((done, total, what)))
    assert [(group.count, group.title, group.tasks, group.sample) for group in groups] == [
        (count, f"ValueError: order # of {bug} in {bug} (shop/tasks.py)", (f"shop.{bug}",), ids[bug][-1])
        for bug, count in counts.items()
    ]
    assert told[-1] == (10_000, 10_000, "")
    assert told == sorted(told)
    assert len(told) >= 10_000 / PAGE


async def test_a_group_says_when_and_where(store: Store, clock: FakeClock):
    first = await store.now()
    await kill(store, task="b", queue="two")
    clock.advance(timedelta(hours=1))
    await kill(store, task="a", queue="one")
    clock.advance(timedelta(hours=1))
    [sample] = await kill(store, task="a", queue="two")
    [group] = await DeadLetters(store).groups()
    assert (group.first_seen, group.last_seen) == (first, first + timedelta(hours=2))
    assert (group.tasks, group.queues, group.sample, group.count) == (("a", "b"), ("one", "two"), sample, 3)


async def test_groups_by_filter(store: Store):
    await kill(store, 2, bug="charge", queue="one")
    await kill(store, 1, bug="mail", queue="two", task="m")
    letters = DeadLetters(store)
    assert [group.count for group in await letters.groups(Filter(queue="one"))] == [2]
    assert [group.tasks for group in await letters.groups(Filter(task="m"))] == [("m",)]
    assert [group.count for group in await letters.groups(Filter(text="of mail"))] == [1]


async def test_the_jobs_of_a_group_in_pages(store: Store):
    made = await kill(store, 3)
    await kill(store, 4, bug="mail")
    made += await kill(store, 2)
    letters = DeadLetters(store)
    first = await letters.jobs(group=mark("charge"), limit=3)
    assert first.next is not None
    rest = await letters.jobs(group=mark("charge"), limit=3, before=first.next)
    assert [job.id for job in first.jobs + rest.jobs] == made[::-1]
    assert len(rest.jobs) == 2
    assert rest.next is None
    assert len((await letters.jobs()).jobs) == 9


async def test_show(store: Store):
    [id] = await kill(store)
    letter = await DeadLetters(store).show(id)
    assert (letter.job.id, letter.fingerprint) == (id, mark("charge"))
    assert letter.arguments == shown.arguments(None, letter.job)
    assert letter.job.history[0].kind == "ValueError"
    await store.retry([id])
    with pytest.raises(JobNotFound, match="is ready, not dead"):
        await DeadLetters(store).show(id)
    with pytest.raises(JobNotFound, match="no job"):
        await DeadLetters(store).show(JobId(uuid4()))


# ── replaying ────────────────────────────────────────────────────────────────


async def test_replay_by_id(store: Store):
    one, two = await kill(store, 2)
    [waiting] = await put(store)
    unknown = JobId(uuid4())
    answer = await Operations(store).dead.replay(Choice.of([one, waiting, unknown, one]))
    assert (answer.replayed, answer.refused, answer.stopped) == ([one], [waiting, unknown], None)
    assert await states(store, [one, two]) == [JobState.READY, JobState.DEAD]


async def test_replay_by_group(store: Store):
    ours = await kill(store, 3) + await kill(store, 2, queue="two")
    others = await kill(store, 3, bug="mail")
    answer = await Operations(store).dead.replay(Choice.of(group=mark("charge")))
    assert sorted(answer.replayed) == sorted(ours)
    assert set(await states(store, ours)) == {JobState.READY}
    assert set(await states(store, others)) == {JobState.DEAD}


async def test_replay_by_group_and_filter(store: Store):
    await kill(store, 3)
    ours = await kill(store, 2, queue="two")
    answer = await Operations(store).dead.replay(Choice.of(group=mark("charge"), where=Filter(queue="two")))
    assert sorted(answer.replayed) == sorted(ours)


async def test_replay_by_filter_leaves_what_is_not_dead(store: Store):
    ours = await kill(store, PAGE + 7, task="x")
    [done] = await put(store, task="x")
    await settle_all(store, await take(store))
    answer = await Operations(store).dead.replay(Choice.of(where=Filter(task="x")))
    assert sorted(answer.replayed) == sorted(ours)
    assert await states(store, [done]) == [JobState.DONE]


async def test_a_job_that_dies_again_is_not_replayed_again(store: Store):
    """The bug is still there, and everything dies at once again: the replay ends all the same."""
    ids = await kill(store, 60)
    work = Work(store, lambda _: died("charge"))
    answer = await work.letters().replay(Choice.of(everything=True), rate=100)
    assert sorted(answer.replayed) == sorted(ids)


async def test_replay_at_a_rate(store: Store):
    await kill(store, 100)
    work = Work(store, lambda _: DONE)
    await work.letters().replay(Choice.of(everything=True), rate=50)
    # The first portion goes at once, each next one when those before have had their time: 95 jobs' worth.
    assert work.now == pytest.approx(95 / 50)


async def test_a_slow_rate_goes_one_by_one(store: Store):
    await kill(store, 3)
    work = Work(store, lambda _: DONE)
    await work.letters().replay(Choice.of(everything=True), rate=1 / 60)
    assert work.now == pytest.approx(120)


# ── canaries ─────────────────────────────────────────────────────────────────


async def test_canaries_that_live_let_the_rest_follow(store: Store):
    ids = await kill(store, 30)
    work = Work(store, lambda _: DONE)
    answer = await work.letters().replay(Choice.of(everything=True), canary=Canary(10))
    assert (len(answer.replayed), answer.stopped) == (30, None)
    assert answer.trial == Trial(tried=10, done=10)
    assert await states(store, ids) == [JobState.READY] * 20 + [JobState.DONE] * 10


async def test_canaries_that_die_stop_it(store: Store):
    ids = await kill(store, 30)
    work = Work(store, lambda ran: died("charge") if ran < 2 else DONE)
    answer = await work.letters().replay(Choice.of(everything=True), canary=Canary(10))
    assert len(answer.replayed) == 10
    assert answer.stopped == "2 of 10 canaries died again, at most 1 may: the rest stays dead"
    assert (await states(store, ids)).count(JobState.DEAD) == 22


async def test_a_share_may_die(store: Store):
    await kill(store, 30)
    work = Work(store, lambda ran: died("charge") if ran < 2 else DONE)
    answer = await work.letters().replay(Choice.of(everything=True), canary=Canary(10, tolerate=0.2))
    assert (len(answer.replayed), answer.stopped) == (30, None)
    assert answer.trial == Trial(tried=10, done=8, dead=2)


async def test_too_many_dead_need_no_waiting_for_the_others(store: Store):
    await kill(store, 30)
    work = Work(store, lambda ran: died("charge") if ran < 2 else None)
    answer = await work.letters().replay(Choice.of(everything=True), canary=Canary(10))
    assert answer.trial == Trial(tried=10, dead=2)
    assert work.now < 1


async def test_canaries_that_do_not_end(store: Store):
    ids = await kill(store, 30)
    work = Work(store, lambda ran: DONE if ran < 7 else None)
    canary = Canary(10, patience=timedelta(seconds=30))
    answer = await work.letters().replay(Choice.of(everything=True), canary=canary)
    assert answer.stopped is not None
    assert answer.stopped.startswith("3 of 10 canaries have not ended in 30s: the rest stays dead")
    assert 30 <= work.now < 32
    assert (await states(store, ids)).count(JobState.DEAD) == 20


async def test_cancelled_and_deleted_canaries_count_as_neither(store: Store):
    ids = await kill(store, 12)
    work = Work(store, lambda ran: Finish(JobState.CANCELLED) if ran else DONE)
    answer = await work.letters().replay(Choice.of(everything=True), canary=Canary(4))
    assert answer.trial == Trial(tried=4, done=1, gone=3)
    assert len(answer.replayed) == len(ids)


async def test_canaries_of_which_none_shows_anything_stop_it(store: Store):
    ids = await kill(store, 12)
    work = Work(store, lambda _: Finish(JobState.CANCELLED))
    answer = await work.letters().replay(Choice.of(everything=True), canary=Canary(4))
    assert answer.trial == Trial(tried=4, gone=4)
    assert answer.stopped == "all 4 canaries were cancelled or deleted and have shown nothing: the rest stays dead"
    assert (await states(store, ids)).count(JobState.DEAD) == 8


async def test_canaries_that_expired_stop_it(store: Store):
    ids = await kill(store, 30)
    work = Work(store, lambda _: Finish(JobState.CANCELLED, note="expired"))
    answer = await work.letters().replay(Choice.of(everything=True), canary=Canary(5))
    assert answer.trial == Trial(tried=5, expired=5)
    assert answer.stopped is not None
    assert answer.stopped.startswith("5 of 5 canaries had expired before they could start again, at most 0 may")
    assert (await states(store, ids)).count(JobState.DEAD) == 25


@pytest.mark.parametrize("by_id", [False, True])
async def test_what_is_too_late_to_start_stays_dead(store: Store, clock: FakeClock, by_id: bool):
    options = (
        None,
        JobOptions(expires=60.0),
        JobOptions(deadline=60.0),
        JobOptions(expires=3600.0, deadline=clock.now() + timedelta(hours=1)),
    )
    made = await put_jobs(store, *(new(options=None if each is None else encode_options(each)) for each in options))
    others = await put(store, 1, task="short")
    await settle_all(store, await take(store, 5), DEAD)
    clock.advance(60)
    app = Headrace("memory://")
    app.task(name="short", expires="60s")(lambda: None)
    answer = await Operations(store, task_of=app.tasks.get).dead.replay(
        Choice.of([*made, *others]) if by_id else Choice.of(everything=True)
    )
    assert set(answer.replayed) == {made[0], made[3]}
    assert set(answer.late) == {made[1], made[2], *others}
    assert answer.refused == []
    assert await states(store, [*made, *others]) == [
        JobState.READY,
        JobState.DEAD,
        JobState.DEAD,
        JobState.READY,
        JobState.DEAD,
    ]


async def test_fewer_jobs_than_canaries_are_watched_all_the_same(store: Store):
    await kill(store, 3)
    work = Work(store, lambda _: died("charge"))
    answer = await work.letters().replay(Choice.of(everything=True), canary=Canary(10))
    assert answer.trial == Trial(tried=3, dead=3)
    assert answer.stopped is not None


async def test_canaries_of_a_group_that_is_spread_over_pages(store: Store):
    await kill(store, 6)
    await kill(store, PAGE, bug="mail")
    await kill(store, 6)
    work = Work(store, lambda _: DONE)
    answer = await work.letters().replay(Choice.of(group=mark("charge")), canary=Canary(8))
    assert answer.trial == Trial(tried=8, done=8)
    assert len(answer.replayed) == 12


async def test_progress_tells_of_the_canaries(store: Store):
    await kill(store, 30)
    told: list[tuple[int, int, str]] = []
    work = Work(store, lambda _: DONE)
    await work.letters().replay(Choice.of(everything=True), canary=Canary(10), progress=lambda *now: told.append(now))
    assert (10, 30, "canary: 0 done, 0 dead, 10 under way") in told
    assert (10, 30, "canary: 10 done, 0 dead, 0 under way") in told
    assert told[-1] == (30, 30, "")


# ── discarding ───────────────────────────────────────────────────────────────


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "headrace.audit"]


async def test_discard_leaves_a_record(store: Store, caplog: pytest.LogCaptureFixture):
    [id] = await put_jobs(store, new("shop.charge", b"secret", queue="billing", tenant="acme"))
    await settle_all(store, await take(store, 1, "billing"), died("charge", 7))
    answer = await Operations(store, actor="ops").dead.discard(Choice.of([id]), reason=" bad\n{data} ")
    assert await states(store, [id]) == [None]
    # One line for the job. Behind a remote store its server writes it, and says which token asked for that.
    [line] = [each for each in lines(caplog) if each.get("id") == str(id)]
    by = "" if isinstance(store, Recording) else "ops"
    assert line == {
        "event": "dead.discard",
        "id": str(id),
        "task": "shop.charge",
        "queue": "billing",
        "tenant": "acme",
        "died_at": str(answer.records[0].died_at),
        "note": "max_attempts",
        "payload_sha256": hashlib.sha256(b"secret").hexdigest(),
        "fingerprint": mark("charge"),
        "title": "ValueError: order # of charge in charge (shop/tasks.py)",
        "reason": "bad\n{data}",
        "by": by or line["by"],
    }
    [record] = [record for record in caplog.records if record.__dict__.get("event") == "dead.discard"]
    assert "\n" not in record.getMessage()
    assert record.levelno == logging.WARNING
    assert record.__dict__["payload_sha256"] == line["payload_sha256"]
    assert [made.id for made in answer.records] == [id]


async def test_discard_by_group(store: Store, caplog: pytest.LogCaptureFixture):
    ours = await kill(store, 3)
    others = await kill(store, 2, bug="mail")
    answer = await Operations(store).dead.discard(Choice.of(group=mark("charge")), reason="fixed")
    assert sorted(record.id for record in answer.records) == sorted(ours)
    assert {line["id"] for line in lines(caplog)} == {str(id) for id in ours}
    assert await states(store, others) == [JobState.DEAD] * 2
    assert all(line["by"] for line in lines(caplog))


async def test_discard_touches_only_the_dead(store: Store, caplog: pytest.LogCaptureFixture):
    [id] = await put(store)
    answer = await Operations(store).dead.discard(Choice.of([id]), reason="r")
    assert (answer.records, answer.refused) == ([], [id])
    assert await states(store, [id]) == [JobState.READY]
    assert lines(caplog) == []


@pytest.mark.parametrize("starts", [False, True])
async def test_a_job_that_is_replayed_meanwhile_is_kept_and_the_record_taken_back(
    store: Store, caplog: pytest.LogCaptureFixture, starts: bool
):
    [id] = await kill(store)

    class Racing:
        """An operator replays the job right before the delete, and perhaps it starts."""

        def __getattr__(self, name: str) -> Any:
            return self._drop if name == "drop" and isinstance(store, Recording) else getattr(store, name)

        async def delete(self, ids: Sequence[JobId], **how: Any) -> frozenset[JobId]:
            await self._replay(ids)
            return await store.delete(ids, **how)

        async def _drop(self, ids: Sequence[JobId], *how: Any) -> frozenset[JobId]:
            assert isinstance(store, Recording)
            await self._replay(ids)
            return await store.drop(ids, *how)

        async def _replay(self, ids: Sequence[JobId]) -> None:
            await store.retry(ids)
            if starts:
                await take(store)

    racing: Any = Racing()
    answer = await Operations(racing).dead.discard(Choice.of([id]), reason="r")
    assert (answer.records, answer.refused) == ([], [id])
    assert await states(store, [id]) == [JobState.RUNNING if starts else JobState.READY]
    # A server looks at the job itself, finds that it is not dead, and has nothing to take back.
    written = [] if isinstance(store, Recording) else ["dead.discard", "dead.discard_refused"]
    assert [each for line in lines(caplog) if (each := str(line["event"])).startswith("dead.")] == written


async def test_every_record_is_written_before_its_job_is_gone(store: Store, caplog: pytest.LogCaptureFixture):
    ids = await kill(store, 3)

    class Dying:
        def __getattr__(self, name: str) -> Any:
            return self._drop if name == "drop" and isinstance(store, Recording) else getattr(store, name)

        async def delete(self, ids: Sequence[JobId], **how: Any) -> frozenset[JobId]:
            await store.delete(ids, **how)
            raise KeyboardInterrupt

        async def _drop(self, ids: Sequence[JobId], *how: Any) -> frozenset[JobId]:
            assert isinstance(store, Recording)
            await store.drop(ids, *how)
            raise KeyboardInterrupt

    dying: Any = Dying()
    with pytest.raises(KeyboardInterrupt):
        await Operations(dying).dead.discard(Choice.of(ids), reason="r")
    written = [line["id"] for line in lines(caplog) if line["event"] == "dead.discard"]
    assert sorted(written) == sorted(str(id) for id in ids)


# ── choosing ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reason", ["", "  \n"])
async def test_a_discard_needs_a_reason(store: Store, reason: str):
    [id] = await kill(store)
    with pytest.raises(ConfigError, match="needs a reason"):
        await Operations(store).dead.discard(Choice.of([id]), reason=reason)
    assert await states(store, [id]) == [JobState.DEAD]


async def test_a_discard_that_is_refused_leaves_no_entry_in_the_audit_log(store: Store):
    [id] = await kill(store)
    with pytest.raises(ConfigError, match="needs a reason"):
        await Operations(store).dead.discard(Choice.of([id]), reason="")
    assert await store.records(DAYS) == {}


async def test_nothing_is_chosen_by_leaving_something_out():
    id = JobId(uuid4())
    with pytest.raises(ConfigError, match="which dead jobs"):
        Choice.of()
    with pytest.raises(ConfigError, match="which dead jobs"):
        Choice.of(where=Filter(states=frozenset({JobState.DEAD})))
    with pytest.raises(ConfigError, match="not both"):
        Choice.of([id], group="0" * 12)
    with pytest.raises(ConfigError, match="not both"):
        Choice.of([id], everything=True)
    with pytest.raises(ConfigError, match="not a fingerprint"):
        Choice.of(group="x")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"count": 0}, "canary = 0"),
        ({"count": True}, "canary = True"),
        ({"count": 1001}, "canary = 1001"),
        ({"tolerate": 1.0}, "tolerate = 1.0"),
        ({"tolerate": -0.1}, "tolerate = -0.1"),
    ],
)
def test_canaries_that_make_no_sense(options: dict[str, Any], problem: str):
    with pytest.raises(ConfigError, match=problem):
        replace(Canary(), **options)


async def test_dead_without_a_failure(store: Store):
    await put(store, 2)
    await settle_all(store, await take(store), DEAD)
    [group] = await DeadLetters(store).groups()
    assert (group.count, group.title) == (2, "max_attempts in t")
