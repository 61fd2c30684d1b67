"""Faults: each happens once to a job, and what follows is what follows in production."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import ConfigError, Headrace, JobState, LeaseLost, current_job
from headrace.testing import StandIn, aassert_idempotent, adrain, assert_idempotent, drain, faults, use_memory
from headrace.testing.faults import Fault


@pytest.fixture
def app() -> Headrace:
    return Headrace("memory://")


@pytest.fixture(autouse=True)
def stand(app: Headrace) -> Iterator[StandIn]:
    with use_memory(app) as stand:
        yield stand


@pytest.mark.parametrize(
    ("fault", "effects", "outcomes"),
    [
        (faults.run_twice(), [1, 2], ["lost", "succeeded"]),
        (faults.lose_lease("after"), [1, 2], ["lost", "succeeded"]),
        (faults.lose_lease("before"), [2, 1], ["succeeded", "lost"]),
        (faults.crash("before"), [2], ["lost", "succeeded"]),
        (faults.crash("after"), [1, 2], ["lost", "succeeded"]),
        (faults.slow_store("30s"), [1, 2], ["lost", "succeeded"]),
        (faults.slow_store("5s"), [1], ["succeeded"]),
        (faults.crash(1), [2], ["lost", "succeeded"]),
        (faults.crash(2), [1, 2], ["lost", "succeeded"]),
        (faults.crash(3), [1], ["succeeded"]),
    ],
    ids=str,
)
def test_each_fault(app: Headrace, fault: Fault, effects: list[int], outcomes: list[str]) -> None:
    done: list[int] = []

    @app.task
    def work() -> int:
        done.append(current_job().attempt)
        return done[-1]

    handle = work.enqueue()
    ran = drain(app, fault=fault)
    assert done == effects
    assert [each.outcome for each in ran] == outcomes
    assert handle.status().state is JobState.DONE
    assert handle.result() == next(each.result for each in ran if each.outcome == "succeeded")
    # Once for each job: another one meets it, the same one does not.
    done.clear()
    work.enqueue()
    drain(app, fault=fault)
    assert len(done) == len(effects)


async def test_in_async_code(app: Headrace) -> None:
    done: list[int] = []

    @app.task
    async def work() -> None:
        done.append(current_job().attempt)
        await current_job().progress(0.5)
        done.append(-current_job().attempt)

    await work.aenqueue()
    with faults.crash(3):
        assert [ran.outcome for ran in await adrain(app)] == ["lost", "succeeded"]
    assert done == [1, 2, -2]


def test_only_one_task(app: Headrace) -> None:
    @app.task
    def first() -> None: ...

    @app.task
    def second() -> None: ...

    first.enqueue()
    second.enqueue()
    with faults.run_twice(second):
        ran = drain(app)
    assert sorted((each.task.rpartition(".")[2], each.attempt) for each in ran) == [
        ("first", 1),
        ("second", 1),
        ("second", 2),
    ]
    assert len(drain(app)) == 0


def test_a_worker_without_its_lease_can_change_nothing(app: Headrace) -> None:
    told: list[bool | str] = []

    @app.task
    def work() -> None:
        job = current_job()
        told.append(job.cancelled)
        try:
            job.complete_sync(tx=object())
        except LeaseLost:
            told.append("refused")

    work.enqueue()
    drain(app, fault=faults.lose_lease("before"))
    assert told == [False, True, "refused"]


def test_a_job_that_always_crashes_is_dead(app: Headrace) -> None:
    @app.task
    def work() -> None: ...

    handle = work.enqueue()
    drain(app, fault=[faults.crash() for _ in range(10)])
    status = handle.status()
    assert (status.state, status.note, status.crashes) == (JobState.DEAD, "worker_lost", 3)


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="before"):
        faults.crash("during")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give a task"):
        faults.run_twice(3)


# ── assert_idempotent ────────────────────────────────────────────────────────

EACH = [
    "run twice",
    "lease lost before the effect",
    "crash before the effect",
    "crash after the effect",
    "store slow by 30s",
]


def test_a_guard_by_job_id(app: Headrace) -> None:
    paid: dict[str, int] = {}

    @app.task
    def pay(amount: int) -> None:
        paid.setdefault(str(current_job().id), amount)

    assert assert_idempotent(pay.job(7), state=lambda: paid) == EACH


def test_an_effect_that_happens_twice(app: Headrace) -> None:
    ledger: list[int] = []

    @app.task(name="pay")
    def pay(amount: int) -> None:
        ledger.append(amount)

    with pytest.raises(AssertionError) as raised:
        assert_idempotent(pay.job(7), state=lambda: ledger)
    assert str(raised.value).splitlines() == [
        "pay is not idempotent:",
        "  run twice: the state is [7, 7, 7], not [7]",
        "  give reset=… to try the other faults as well",
    ]


def test_a_crash_between_two_effects(app: Headrace) -> None:
    ledger: list[str] = []
    sent: set[int] = set()

    @app.task(name="pay")
    def pay(order: int) -> None:
        if order not in sent:
            sent.add(order)
            ledger.append(f"order {order}")  # is lost by a crash after the line above

    def reset() -> None:
        ledger.clear()
        sent.clear()

    with pytest.raises(AssertionError) as raised:
        assert_idempotent(pay.job(7), state=lambda: ledger, reset=reset)
    assert str(raised.value).splitlines() == [
        "pay is not idempotent:",
        "  crash before line 3 of the function: the state is [], not ['order 7']",
    ]


async def test_async_states(app: Headrace) -> None:
    rows: set[int] = set()

    @app.task
    async def insert(row: int) -> None:
        rows.add(row)

    async def state() -> set[int]:
        return set(rows)

    async def reset() -> None:
        rows.clear()

    tried = await aassert_idempotent(insert.job(1), state=state, reset=reset)
    assert tried == [*EACH, "crash before line 1 of the function"]


def test_a_second_attempt_that_fails(app: Headrace) -> None:
    rows: set[int] = set()

    @app.task(name="insert")
    def insert(row: int) -> None:
        if row in rows:
            raise ValueError("there is such a row")
        rows.add(row)

    with pytest.raises(AssertionError, match=r"run twice: the job is scheduled; attempt 2 raised ValueError"):
        assert_idempotent(insert.job(1), state=lambda: rows, reset=rows.clear)


def test_a_job_that_fails_without_faults(app: Headrace) -> None:
    @app.task(name="fail")
    def fail() -> None:
        raise ValueError("always")

    with pytest.raises(AssertionError, match="fail is scheduled after a run without faults") as raised:
        assert_idempotent(fail.job(), state=lambda: None)
    assert isinstance(raised.value.__cause__, ValueError)
