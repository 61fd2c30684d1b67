"""A worker dies at every step of a job's life: no job is lost, settled twice or charged for it."""

from __future__ import annotations

import pytest

from crash.crash_app import quick
from crash.scene import DOOMED, PLAIN, STEADY, Scene, stop
from headrace.model.job import JobState
from headrace.runtime.faults import EXIT_CODE, POINTS

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
JOBS = 24


@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at(scene: Scene, point: str) -> None:
    ids = await scene.enqueue(quick, *[(number,) for number in range(JOBS)])
    first = scene.start(PLAIN, CRASH_HEADRACE_AT=f"{point}:2", **DOOMED)
    assert await scene.exit_of(first) == EXIT_CODE
    done_before = {str(job.id) for job in await scene.get(ids) if job.state is JobState.DONE}
    started_before = scene.count("start")

    second = scene.start(PLAIN, **STEADY)
    jobs = await scene.finished(ids)
    second_id = await scene.joined(second)
    stop(second)
    assert await scene.exit_of(second) == 0

    # No job is lost, and no job is charged for a worker's crash.
    assert {job.state for job in jobs} == {JobState.DONE}
    assert {(job.failures, job.crashes) for job in jobs} == {(0, 0)}
    assert [quick.codec.decode_result(job.result) for job in jobs] == list(range(JOBS))
    # What was settled before the crash did not run again; what was not, ran once more. A settlement that was under way when its
    # worker died may be seen later than its worker's end, so the worker that settled a job decides. The job's count of attempts
    # does not: a worker that a busy machine keeps waiting hands back jobs that it has not started, and claims them again.
    for number, job in enumerate(jobs):
        again = job.worker == second_id
        assert not again or str(job.id) not in done_before
        assert again or started_before[number] == 1
        assert scene.count("start")[number] == started_before[number] + again, (number, scene.logs)
    figures = (await scene.store.stats()).queues[0]
    assert (figures.done_total, figures.running, figures.ready) == (JOBS, 0, 0)
    if point == "settled":
        assert done_before
    if point == "claimed":
        # The second claim: its jobs never started, and those of the first were done or under way.
        assert len(started_before) < JOBS
