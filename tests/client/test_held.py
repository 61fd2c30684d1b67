"""Blocked jobs: why they wait, which dead job holds them, and what a handle raises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace import Headrace, JobHeld, JobState, group
from headrace.policy.explain.answer import Reason


class Line:
    """Tasks of one app."""

    def __init__(self, app: Headrace) -> None:
        self.app = app

        @app.task
        async def check(number: int) -> int:
            if number < 0:
                raise ValueError(number)
            return number

        @app.task
        async def use(number: int) -> int:
            return number

        @app.task
        async def add_up(numbers: Sequence[int]) -> int:
            return sum(numbers)

        self.check, self.use, self.add_up = check.using(max_attempts=1), use, add_up


@pytest.fixture
def line(app: Headrace) -> Iterator[Line]:
    yield Line(app)
    app.close()


async def dead(line: Line, *handles: Any) -> None:
    """Run a worker until these jobs are dead."""
    async with asyncio.timeout(30), line.app.worker():
        for handle in handles:
            while (await handle.astatus()).state is not JobState.DEAD:  # noqa: ASYNC110  # a dead job has no event here
                await asyncio.sleep(0.01)


async def test_a_handle_raises_at_once_if_a_dead_job_holds_its_own(line: Line):
    first = await line.check.aenqueue(-1)
    last = await (await first.athen(line.use)).athen(line.use)
    async with line.app.worker():
        with pytest.raises(
            JobHeld, match=rf"waits for job {first.id} of .*check, which is dead: replay that one"
        ) as caught:
            await last.aresult(30)
    assert caught.value.dead == first.id
    assert caught.value.code == "job_held"


async def test_a_dead_job_far_upstream_is_named(line: Line):
    """One look reads a chain of 1,000 jobs of one call."""
    first = await line.check.aenqueue(-1)
    call = line.use.using(after=first).job(0)
    for _ in range(999):
        call = call.then(line.use)
    handle = await line.app.aenqueue(call)
    await dead(line, first)
    with pytest.raises(JobHeld) as caught:
        await handle.aresult(timeout=30)
    assert caught.value.dead == first.id


async def test_a_dead_job_above_many_joins_is_named(line: Line):
    first = await line.check.aenqueue(-1)
    layer = [line.use.job(first.out)] * 20
    for _ in range(10):
        layer = [line.add_up.job([call.out for call in layer]) for _ in range(20)]
    handle = await line.app.aenqueue(line.add_up.job([call.out for call in layer]))
    await dead(line, first)
    with pytest.raises(JobHeld) as caught:
        await handle.aresult(timeout=30)
    assert caught.value.dead == first.id


async def test_a_job_that_waits_for_any_end_is_not_held(line: Line):
    first = await line.check.aenqueue(-1)
    after = await line.use.using(after=first, when="ended").aenqueue(7)
    async with line.app.worker():
        assert await after.aresult(30) == 7


async def test_a_replay_lets_a_held_job_go_on(line: Line):
    fixed = False

    @line.app.task
    async def flaky() -> int:
        if not fixed:
            raise ConnectionError
        return 3

    first = await flaky.using(max_attempts=1).aenqueue()
    last = await first.athen(line.use)
    async with line.app.worker():
        with pytest.raises(JobHeld):
            await last.aresult(30)
        fixed = True
        await line.app.dead.areplay(first.id)
        assert await last.aresult(30) == 3


async def test_a_dead_job_of_a_group_in_a_group_is_named(line: Line):
    async with line.app.open_group("all", on_done=line.use.job(1)) as rows, rows.open_group("part") as part:
        [inner] = await part.aenqueue_many([line.check.job(-1)])
    [callback] = (await line.app.afind(state="blocked")).jobs
    last = line.use.handle(callback.id)
    async with line.app.worker():
        with pytest.raises(JobHeld) as caught:
            await last.aresult(30)
    assert caught.value.dead == inner.id
    why = await last.aexplain()
    assert why.sentence.startswith(f"held: job {inner.id} of ")
    assert "of group 'part' is dead" in why.sentence


async def test_a_dead_job_before_a_group_that_another_one_waits_for_is_named(line: Line):
    """The group has not ended, so it counts as neither dead nor done."""
    first = line.check.job(-1)
    groups = [group([line.use.job(first.out)]), group([line.use.job(2)])]
    last = await line.app.aenqueue(line.use.using(after=groups).job(3))
    why = await last.aexplain()
    assert why.sentence == "blocked until all 2 jobs and groups are done: 2 to go"
    async with line.app.worker():
        with pytest.raises(JobHeld) as caught:
            await last.aresult(30)
    [dead_job] = (await line.app.afind(state="dead")).jobs
    assert caught.value.dead == dead_job.id


async def test_explain_names_the_job_that_is_waited_for(line: Line):
    first = await line.check.aenqueue(1)
    why = await (await first.athen(line.use)).aexplain()
    assert why.reason is Reason.BLOCKED
    assert why.sentence.startswith(f"blocked until job {first.id} of ")
    assert "is done: it is ready; see: headrace jobs explain" in why.sentence
    [wait] = why.details["waits"]
    assert (wait["id"], wait["kind"], wait["needs"], wait["state"]) == (first.id, "job", "done", JobState.READY)
    assert why.help == ()


async def test_explain_names_the_dead_job_and_what_helps(line: Line):
    first = await line.check.aenqueue(-1)
    last = await (await first.athen(line.use)).athen(line.use)
    await dead(line, first)
    why = await last.aexplain()
    assert why.reason is Reason.BLOCKED
    assert why.sentence.startswith(f"held: job {first.id} of ")
    assert f"headrace dead replay {first.id} lets this go on, headrace dead discard {first.id} cancels it" in str(why)
    assert "(ValueError)" in why.sentence
    assert why.details["held_by"] == first.id
    [action] = why.help
    assert (action.action, action.kind, action.name, action.safe) == ("retry", "job", str(first.id), True)
    assert action.command == f"headrace dead replay {first.id}"


async def test_explain_says_when_a_blocked_job_that_expired_is_cancelled(line: Line):
    first = await line.use.using(delay="1h").aenqueue(1)
    last = await line.use.using(after=first, expires="1ms").aenqueue(2)
    await asyncio.sleep(0.01)
    why = await last.aexplain()
    assert why.reason is Reason.EXPIRED
    assert f"it will not start, and is cancelled when it is released; blocked until job {first.id} of " in why.sentence
    assert [wait["id"] for wait in why.details["waits"]] == [first.id]


async def test_explain_counts_the_jobs_of_a_group(line: Line):
    rows = line.app.open_group("import 7", on_done=line.use.job(1))
    async with rows:
        handles = await rows.aenqueue_many(line.check.job(n) for n in (1, -2))
        [callback] = (await line.app.afind(state="blocked")).jobs
        why = await line.use.handle(callback.id).aexplain()
        assert why.sentence.startswith("blocked until all 2 jobs of group 'import 7' are done: 2 to go")
        assert "still being filled, last at " in why.sentence
    await dead(line, handles[1])
    why = await line.use.handle(callback.id).aexplain()
    assert f"held: job {handles[1].id} of " in why.sentence
    assert "of group 'import 7' is dead" in why.sentence
    [wait] = why.details["waits"]
    assert (wait["size"], wait["done"], wait["dead"], wait["sealed"]) == (2, 1, 1, True)
    assert wait["dead_jobs"] == [handles[1].id]


async def test_a_join_is_explained_by_its_counts(line: Line):
    last = await line.app.aenqueue(group(line.check.job(n) for n in range(3)).then(line.add_up))
    why = await last.aexplain()
    assert why.sentence == "blocked until all 3 jobs are done: 3 to go"
    [wait] = why.details["waits"]
    assert len(wait["unended"]) == 3
