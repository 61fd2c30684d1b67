"""What the supervisor does for its worker processes: causes, quarantine, leases of the stuck, signals."""

from __future__ import annotations

import contextlib
import re
import signal
from datetime import timedelta

import psutil
import pytest

from crash.crash_app import gated, hold_gil, nap, poison, quick, stuck, zombie
from crash.scene import PLAIN, STEADY, Scene, alive, stop
from headrace.model.job import JobState
from headrace.model.lease import new_worker_id

pytestmark = pytest.mark.timeout(600)  # on the slowest machine


@pytest.mark.parametrize("how", ["segfault", "exit"])
async def test_poison_is_quarantined_and_its_neighbours_are_not_charged(scene: Scene, how: str) -> None:
    before = await scene.enqueue(quick, *[(number,) for number in range(5)])
    [bad] = await scene.enqueue(poison, (how,))
    after = await scene.enqueue(quick, *[(number,) for number in range(5, 10)])
    crew = scene.start()
    [dead] = await scene.finished([bad])
    jobs = await scene.finished(before + after)
    stop(crew)
    assert await scene.exit_of(crew) == 0

    assert (dead.state, dead.note, dead.crashes, dead.failures) == (JobState.DEAD, "worker_lost", 3, 0)
    cause = "SIGSEGV" if how == "segfault" else "exited with code 3"
    assert all(cause in failure.message for failure in dead.history)
    assert {(job.state, job.crashes, job.failures) for job in jobs} == {(JobState.DONE, 0, 0)}
    # Once with its neighbours at most, then three times alone.
    assert 3 <= scene.count("start")[-1] <= 4
    assert all(times <= 2 for number, times in scene.count("start").items() if number >= 0)


def kill_one_of(processes: list[psutil.Process]) -> bool:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            return True
    return False


async def test_a_crash_does_not_make_a_worker_run_one_job_at_a_time(scene: Scene) -> None:
    ids = await scene.enqueue(gated, *[(number,) for number in range(6)])
    crew = scene.start(HEADRACE_CONCURRENCY="20")
    await scene.until(lambda: len(scene.count("start")) == 6, "all of them start")
    await scene.until(lambda: kill_one_of(scene.children(crew)), "a worker process lives")
    # None of them can end yet: all run at once again, and other jobs do not wait for them.
    await scene.until(lambda: set(scene.count("start").values()) == {2}, "all of them start again")
    [other] = await scene.enqueue(quick, (10,))
    await scene.finished([other])
    # They run beside each other now, so a second crash is not charged to any of them either.
    await scene.until(lambda: kill_one_of(scene.children(crew)), "a worker process lives")
    scene.open_gate()
    jobs = await scene.finished(ids)
    stop(crew)
    assert await scene.exit_of(crew) == 0
    assert {(job.state, job.failures, job.crashes) for job in jobs} == {(JobState.DONE, 0, 0)}


async def test_a_worker_process_that_ended_jobs_is_soon_replaced(scene: Scene) -> None:
    """However often: only processes that die before they have done anything are in a crash loop."""
    crew = scene.start()
    for number in range(5):
        await scene.finished(await scene.enqueue(quick, (number,)))
        await scene.until(lambda: kill_one_of(scene.children(crew)), "a worker process lives")
        await scene.until(
            lambda many=number + 1: scene.logs.count("process starts in") == many, "the supervisor has noticed"
        )
    pauses = [float(pause) for pause in re.findall(r"a new worker process starts in ([\d.]+) s", scene.logs)]
    assert max(pauses) <= 2.0, pauses
    await scene.finished(await scene.enqueue(quick, (5,)))
    stop(crew)
    assert await scene.exit_of(crew) == 0


async def test_workers_killed_at_random_lose_nothing(scene: Scene) -> None:
    ids = await scene.enqueue(nap, *[(number, 0.02) for number in range(400)])
    crew = scene.start(HEADRACE_PROCESSES="2")
    for kill in range(3):
        await scene.until(lambda kill=kill: len(scene.count("end")) > 60 * kill + 10, "work goes on")
        await scene.until(lambda: kill_one_of(scene.children(crew)), "a worker process lives")
    jobs = await scene.finished(ids)
    stop(crew)
    assert await scene.exit_of(crew) == 0
    assert {job.state for job in jobs} == {JobState.DONE}
    assert {job.failures for job in jobs} == {0}
    assert max(job.crashes for job in jobs) <= 2
    assert scene.count("end").keys() == set(range(400))
    figures = (await scene.store.stats()).queues[0]
    assert (figures.done_total, figures.running, figures.ready, figures.dead) == (400, 0, 0, 0)
    assert "killed by SIGKILL" in scene.logs


async def test_a_frozen_worker_loses_its_job_and_its_late_result_is_refused(scene: Scene) -> None:
    crew = scene.start()
    [id] = await scene.enqueue(zombie, (1,))
    await scene.until(lambda: bool(scene.count("start")[1]), "the job starts")
    [frozen] = scene.children(crew)
    await scene.until(lambda: frozen.status() == psutil.STATUS_STOPPED, "it froze")
    other = scene.start(PLAIN, **STEADY)
    [job] = await scene.finished([id])
    # The second attempt, or a later one if a busy machine made a worker hand back the job before it started.
    assert job.attempt > 1
    assert zombie.codec.decode_result(job.result) == job.attempt
    frozen.resume()
    await scene.until(lambda: "lease lost" in scene.logs, "the zombie hears that its lease is lost")
    stop(other)
    stop(crew)
    assert (await scene.exit_of(other), await scene.exit_of(crew)) == (0, 0)
    [after] = await scene.get([id])
    assert (after.attempt, after.result, after.state, after.failures) == (job.attempt, job.result, JobState.DONE, 0)


async def test_a_worker_process_that_gets_term_twice_still_finishes_its_job(scene: Scene) -> None:
    crew = scene.start(**STEADY)
    [id] = await scene.enqueue(gated, (1,))
    await scene.until(lambda: bool(scene.count("start")[1]), "the job starts")
    [child] = scene.children(crew)
    child.terminate()
    child.terminate()
    stop(crew)
    await scene.until(lambda: "draining" in scene.logs, "the supervisor drains")
    scene.open_gate()
    assert await scene.exit_of(crew) == 0
    [job] = await scene.get([id])
    assert (job.state, scene.count("start")[1], scene.count("end")[1]) == (JobState.DONE, 1, 1)


async def test_a_task_that_holds_the_gil_keeps_its_lease(scene: Scene) -> None:
    ids = await scene.enqueue(hold_gil, (1, 7.0))
    # Long enough for a supervisor that has to be given a processor, and to open its store, before it can renew it.
    crew = scene.start(HEADRACE_LEASE="6s")
    await scene.until(lambda: bool(scene.count("start")[1]), "the job starts")
    # Another worker reaps all the time.
    reaper = new_worker_id()

    async def over() -> bool:
        assert not await scene.store.reap(reaper, timedelta(seconds=60))
        [job] = await scene.get(ids)
        return job.state.finished

    await scene.until(over, "the job ends")
    [job] = await scene.get(ids)
    assert (job.state, scene.count("start")[1], scene.count("end")[1]) == (JobState.DONE, 1, 1)
    assert "the event loop of worker process" in scene.logs
    stop(crew)
    assert await scene.exit_of(crew) == 0


async def test_a_loop_stuck_beyond_the_deadline_is_killed(scene: Scene) -> None:
    [bad] = await scene.enqueue(stuck, ())
    crew = scene.start()
    [dead] = await scene.finished([bad])
    assert (dead.state, dead.note, dead.crashes) == (JobState.DEAD, "worker_lost", 1)
    assert "timeout" in dead.history[-1].message
    [fine] = await scene.enqueue(quick, (1,))
    assert (await scene.finished([fine]))[0].state is JobState.DONE
    stop(crew)
    assert await scene.exit_of(crew) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_drain_finishes_what_runs_and_hands_back_the_rest(scene: Scene, number: signal.Signals) -> None:
    ids = await scene.enqueue(nap, *[(number, 0.4) for number in range(40)])
    crew = scene.start(**STEADY)
    await scene.until(lambda: len(scene.count("start")) >= 8, "the slots are busy")
    crew.send_signal(number)
    assert await scene.exit_of(crew) == 0
    # Every job that started has ended and is done. No job was charged, and no lease is left.
    assert scene.count("start") == scene.count("end")
    jobs = await scene.get(ids)
    states = [job.state for job in jobs]
    assert states.count(JobState.DONE) == len(scene.count("end"))
    assert states.count(JobState.DONE) + states.count(JobState.READY) == 40
    assert {(job.failures, job.crashes) for job in jobs} == {(0, 0)}
    assert not await scene.store.workers()


async def test_a_second_signal_hands_back_at_once(scene: Scene) -> None:
    ids = await scene.enqueue(nap, *[(number, 60.0) for number in range(4)])
    crew = scene.start(HEADRACE_DRAIN="10m", **STEADY)
    await scene.until(lambda: len(scene.count("start")) == 4, "the jobs start")
    crew.send_signal(signal.SIGTERM)
    crew.send_signal(signal.SIGQUIT)
    assert await scene.exit_of(crew) == 0
    jobs = await scene.get(ids)
    assert {(job.state, job.failures, job.crashes) for job in jobs} == {(JobState.READY, 0, 0)}


async def test_tstp_stops_claiming(scene: Scene) -> None:
    crew = scene.start(**STEADY)
    first = await scene.enqueue(nap, (1, 1.0))
    await scene.until(lambda: bool(scene.count("start")), "the job starts")
    crew.send_signal(signal.SIGTSTP)
    await scene.until(lambda: "claims nothing more" in scene.logs, "the worker is quiet")
    later = await scene.enqueue(quick, (2,))
    assert (await scene.finished(first))[0].state is JobState.DONE
    [waiting] = await scene.get(later)
    assert (waiting.state, waiting.attempt) == (JobState.READY, 0)
    stop(crew)
    assert await scene.exit_of(crew) == 0


async def test_workers_do_not_outlive_their_supervisor(scene: Scene) -> None:
    ids = await scene.enqueue(nap, *[(number, 0.5) for number in range(4)])
    crew = scene.start(HEADRACE_PROCESSES="2", **STEADY)
    await scene.until(lambda: len(scene.count("start")) == 4, "the jobs start")
    await scene.until(lambda: len(scene.children(crew)) == 2, "both worker processes live")
    children = scene.children(crew)
    crew.kill()
    await scene.until(lambda: not any(alive(child) for child in children), "the worker processes end")
    # They were told, and drained.
    assert {job.state for job in await scene.get(ids)} == {JobState.DONE}
