"""A worker dies while its tasks have steps: what the store has acknowledged does not run again."""

from __future__ import annotations

import pytest

from crash.crash_app import stepwise
from crash.scene import DOOMED, PLAIN, STEADY, Scene, stop
from headrace.model.job import JobState
from headrace.runtime.faults import EXIT_CODE

pytestmark = pytest.mark.timeout(600)  # on the slowest machine
JOBS, PARTS = 8, 4


@pytest.mark.parametrize("point", ["stepped:5", "start:4", "ran:2", "settled:1"])
async def test_a_crash_at(scene: Scene, point: str) -> None:
    ids = await scene.enqueue(stepwise, *[(number,) for number in range(JOBS)])
    first = scene.start(PLAIN, CRASH_HEADRACE_AT=point, **DOOMED)
    assert await scene.exit_of(first) == EXIT_CODE
    stored = [{step.number for step in await scene.store.read_steps(id)} for id in ids]
    second = scene.start(PLAIN, **STEADY)
    jobs = await scene.finished(ids)
    await scene.joined(second)
    stop(second)
    assert await scene.exit_of(second) == 0

    assert {(job.state, job.failures, job.crashes) for job in jobs} == {(JobState.DONE, 0, 0)}
    for number, job in enumerate(jobs):
        assert stepwise.codec.decode_result(job.result) == [f"{number}.{part}" for part in range(PARTS)]
        journal = await scene.store.read_steps(job.id)
        assert sorted(step.number for step in journal) == list(range(PARTS))
        for part in range(PARTS):
            ran = scene.count(f"step {part}")[number]
            assert ran == 1 if part in stored[number] else ran in {1, 2}, (number, part, scene.logs)
    if point.startswith("stepped"):
        assert sum(map(len, stored)) >= 5
