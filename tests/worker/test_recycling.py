"""Processes that are replaced after many jobs or when they use much memory."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.errors import ConfigError
from headrace.model.job import JobState
from headrace.model.size import read_size, show_size
from headrace.runtime import memory
from headrace.settings import Settings
from headrace.supervisor.figures import QUIET, SERVING
from headrace.supervisor.process_table import ProcessTable
from headrace.supervisor.recycle import Recycler
from worker import process_tasks
from worker.harness import Bench, until
from worker.test_health import Process


async def pids(bench: Bench, calls: list[tuple[Any, ...]], **settings: Any) -> list[int]:
    """The processes in which these calls ran, in one slot, one after the other."""
    bench.app.tasks.update(process_tasks.app.tasks)
    found: list[int] = []
    async with bench.worker(concurrency=1, **settings):
        for call in calls:
            id = await bench.enqueue(process_tasks.pid_after, *call)
            job = await bench.reach(id, JobState.DONE)
            assert job.result is not None
            # A job that waits for the new child may be handed back and claimed again, which is not counted against it.
            assert (job.failures, job.crashes) == (0, 0)
            found.append(msgspec.msgpack.decode(job.result))
    return found


async def test_a_child_is_replaced_after_its_jobs(
    bench: Bench, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    farewell = tmp_path / "farewell"
    first, second, third = await pids(bench, [(0, str(farewell)), (0,), (0,)], max_jobs_per_child=2)
    assert first == second != third
    assert f"child process {first} has run 2 of at most 2 jobs: another one replaces it" in caplog.text
    assert farewell.exists(), "the child ends by itself, and its code for the exit runs"


async def test_a_child_is_replaced_when_it_has_grown(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first, second, third = await pids(bench, [(0,), (400,), (0,)], max_memory_per_child="300MB")
    assert first == second != third
    assert f"child process {first} uses " in caplog.text


async def test_no_limit_no_replacement(bench: Bench) -> None:
    assert len(set(await pids(bench, [(0,)] * 4))) == 1


# ── worker processes ────────────────────────────────────────────────────────


def test_one_process_leaves_at_a_time_and_none_before_its_jobs_have_ended() -> None:
    table = ProcessTable()
    first, second = Process("host:1"), Process("host:2")
    table.add(first)
    table.add(second)
    recycler = Recycler(table, max_jobs=10, max_memory=0)
    first.show(succeeded=9)
    second.show(succeeded=5, failed=5, running_async=1)
    recycler.look()
    assert (first.signals, second.signals) == ([], [signal.SIGTSTP])
    assert second.retiring == "has run 10 of at most 10 jobs"
    first.show(succeeded=12)
    second.show(SERVING | QUIET, succeeded=10, running_async=1)
    recycler.look()
    assert (first.signals, second.signals) == ([], [signal.SIGTSTP])
    second.show(SERVING | QUIET, succeeded=11)
    recycler.look()
    recycler.look()
    assert (first.signals, second.signals) == ([], [signal.SIGTSTP, signal.SIGTERM])
    table.remove(second)
    recycler.look()
    assert first.signals == [signal.SIGTSTP]
    table.stopping = True
    first.show(SERVING | QUIET, succeeded=12)
    recycler.look()
    assert first.signals == [signal.SIGTSTP], "the supervisor stops it now"
    first.close()
    second.close()


def test_memory_of_a_process() -> None:
    assert memory.resident(os.getpid()) > 1 << 20
    assert memory.resident(1 << 30) == 0
    assert "more than 1 MB" in memory.worn(os.getpid(), 0, max_jobs=0, max_memory=1 << 20)
    assert not memory.worn(os.getpid(), 10**9, max_jobs=0, max_memory=0)


# ── sizes ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MB", 512 << 20), ("2 gb", 2 << 30), ("1GiB", 1 << 30), ("64k", 64 << 10), ("1000", 1000), (5, 5), ("7b", 7)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert read_size("max_memory", text) == size
    assert read_size("max_memory", show_size(size)) == size


@pytest.mark.parametrize("bad", ["lots", "-1", "1.5GB", "", -1, True, 1 << 61, None, "MB", "5 m b"])
def test_what_is_no_size(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r'max_memory = .* is not a size: write "512MB"'):
        read_size("max_memory", bad)


def test_the_settings_read_sizes() -> None:
    settings = Settings.load(environ={"HEADRACE_MAX_MEMORY": "1GB"}, max_memory_per_child="64MB")
    assert (settings.max_memory, settings.max_memory_per_child) == (1 << 30, 64 << 20)
    assert {each.name: each.value for each in settings.explain()}["max_memory"] == "1GB"


async def test_figures_wait_for_the_last_job(bench: Bench) -> None:
    """What the recycler reads from a worker: it is quiet and empty only when its jobs have ended."""

    @bench.app.task
    async def work() -> None: ...

    async with bench.worker() as worker:
        id = await bench.enqueue(work)
        await bench.reach(id, JobState.DONE)
        worker.quiet()
        assert worker.figures().quiet
        await until(lambda: not worker.figures().running)
