"""One time for all processes of a file: a wrong clock takes no lease away, and all processes follow a clock that was set."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from conformance.kit import JANITOR, TTL, claim, counts, put, take
from conftest import opened
from headrace.model.outcome import DONE
from headrace.store.sqlite.engine import timekeeper
from headrace.store.sqlite.engine.timekeeper import Timekeeper
from headrace.store.sqlite.rows import EPOCH, micros, moment
from headrace.store.sqlite.store import SqliteStore

SECOND = 1_000_000
HOUR = 3600 * SECOND
CERTAIN = timekeeper._CERTAIN // SECOND


class Machine:
    """A machine whose time stands still until it is turned; each process may see another wall clock."""

    def __init__(self) -> None:
        self.uptime = 5000 * SECOND
        self.wall = micros(EPOCH + timedelta(days=20_000))
        self.boot = "one"

    def pass_(self, seconds: float) -> None:
        self.uptime += int(seconds * SECOND)
        self.wall += int(seconds * SECOND)

    def keeper(self, wrong: int = 0) -> Timekeeper:
        return Timekeeper(wall=lambda: self.wall + wrong, uptime=lambda: self.uptime, boot=self.boot)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def processes(url: str) -> AsyncGenerator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def start(processes: AsyncExitStack, url: str, keeper: Timekeeper) -> SqliteStore:
    store = SqliteStore(url)
    store._time = keeper
    await processes.enter_async_context(opened(store))
    return store


@pytest.mark.parametrize("wrong", [HOUR, -HOUR, 86_400 * SECOND, 90 * SECOND, -3 * SECOND])
async def test_a_wrong_clock_takes_no_lease(url: str, processes: AsyncExitStack, machine: Machine, wrong: int):
    right = await start(processes, url, machine.keeper())
    fast = await start(processes, url, machine.keeper(wrong))
    await put(right, 4)
    of_right, of_fast = await take(right, 2), await take(fast, 2)
    for _ in range(100):
        machine.pass_(4)
        assert not (await right.heartbeat([of_right.token], TTL)).lost
        assert not (await fast.heartbeat([of_fast.token], TTL)).lost
        assert await fast.reap(JANITOR, TTL) == []
        assert await right.reap(JANITOR, TTL) == []
    assert await right.now() == await fast.now() == moment(machine.wall)
    assert await claim(fast, 5) is None
    machine.pass_(TTL.total_seconds())
    assert len(await fast.reap(JANITOR, TTL)) == 2


async def test_an_idle_process_objects_by_looking(url: str, processes: AsyncExitStack, machine: Machine):
    right = await start(processes, url, machine.keeper())
    fast = await start(processes, url, machine.keeper(HOUR))
    for _ in range(10):
        machine.pass_(CERTAIN / 2)
        await put(fast)
        assert await claim(right, 1, "other") is None
    assert await fast.now() == moment(machine.wall)


async def test_the_first_process_was_wrong(url: str, processes: AsyncExitStack, machine: Machine):
    fast = await start(processes, url, machine.keeper(HOUR))
    await put(fast, 2)
    lease = await take(fast, 1)
    right = await start(processes, url, machine.keeper())
    assert await right.reap(JANITOR, TTL) == []
    # Once it is gone, the others' clocks count.
    machine.pass_(1)
    await put(right)
    machine.pass_(CERTAIN)
    assert not (await right.heartbeat([lease.token], TTL)).lost
    assert await right.now() == moment(machine.wall)
    assert await right.reap(JANITOR, TTL) == []


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_all_follow_a_clock_that_was_set_and_leases_keep_their_time(
    url: str, processes: AsyncExitStack, machine: Machine, jump: int
):
    one = await start(processes, url, machine.keeper())
    two = await start(processes, url, machine.keeper())
    await put(one)
    before = machine.wall
    machine.wall += jump
    await put(one)
    assert await one.now() == moment(before)
    machine.pass_(CERTAIN - 10)
    lease = await take(two, 1)
    machine.pass_(10)
    await put(two)
    assert await two.now() == moment(machine.wall)
    assert (await one.stats()).queues[0].running == 1
    assert await one.now() == moment(machine.wall)
    machine.pass_(TTL.total_seconds() - 11)
    assert await one.reap(JANITOR, TTL) == []
    machine.pass_(1)
    assert [orphan.jobs[0][1].id for orphan in await one.reap(JANITOR, TTL)] == [lease.jobs[0].id]


async def test_one_process_moves_time_by_a_second_at_most(url: str, processes: AsyncExitStack, machine: Machine):
    right = await start(processes, url, machine.keeper())
    fast = await start(processes, url, machine.keeper(SECOND))
    for _ in range(100):
        machine.pass_(1)
        await put(fast)
        await put(right)
    assert await right.now() == moment(machine.wall + SECOND)


async def test_time_goes_on_after_a_restart_of_the_machine(url: str, processes: AsyncExitStack, machine: Machine):
    store = await start(processes, url, machine.keeper())
    await put(store, 2)
    machine.boot, machine.uptime = "two", 3 * SECOND
    machine.wall += HOUR
    again = await start(processes, url, machine.keeper())
    lease = await take(again, 1)
    assert await again.now() == moment(machine.wall)
    assert not await again.settle(lease.token, [(0, DONE)])
    # A clock that lost its battery begins where the file was.
    last = machine.wall
    machine.boot, machine.wall = "three", 0
    old = await start(processes, url, machine.keeper())
    await put(old)
    assert await old.now() == moment(last)


async def test_no_write_while_clocks_agree(url: str, file: Path, processes: AsyncExitStack, machine: Machine):
    store = await start(processes, url, machine.keeper())
    await put(store)
    conn = sqlite3.connect(file)
    kept = conn.execute("select * from headrace_clock").fetchall()
    machine.pass_(100)
    await put(store)
    assert conn.execute("select * from headrace_clock").fetchall() == kept
    conn.close()
    assert await counts(store) == {"ready": 2}


@pytest.mark.parametrize(
    ("text", "shift"),
    [
        ("monotonic 0 0\nboottime 0 0\n", 0),
        ("monotonic 5 0\nboottime -86400 500000\n", -86_400 * SECOND + 500),
        ("", 0),
    ],
)
def test_time_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, shift: int):
    offsets = tmp_path / "offsets"
    offsets.write_text(text)
    monkeypatch.setattr(timekeeper, "_NAMESPACE", offsets)
    assert timekeeper._namespace_shift() == shift


def test_a_machine_without_such_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timekeeper, "_NAMESPACE", tmp_path / "none")
    monkeypatch.setattr(timekeeper, "_BOOT_ID", tmp_path / "none")
    assert timekeeper._namespace_shift() == 0
    assert timekeeper._boot_of_machine() == ""
