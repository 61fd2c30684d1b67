"""Groups: jobs that are counted together, callbacks, results, and members that add members."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from headrace import ConfigError, GroupOver, Headrace, JobCall, JobState, Results, current_job, group
from headrace.client.groups import GroupStatus
from headrace.task.task import Task

BLOCKED = JobState.BLOCKED


class Crew:
    """Tasks of one app, and what they did."""

    def __init__(self, app: Headrace) -> None:
        self.app = app
        self.ran: list[Any] = []

        @app.task
        async def square(number: int) -> int:
            if number < 0:
                raise ValueError(number)
            return number * number

        @app.task
        async def add_up(numbers: Sequence[int]) -> int:
            return sum(numbers)

        @app.task
        async def note(text: str) -> str:
            self.ran.append(text)
            return text

        self.square, self.add_up, self.note = square, add_up, note
        self.failing = square.using(max_attempts=1)


@pytest.fixture
def crew(app: Headrace) -> Iterator[Crew]:
    yield Crew(app)
    app.close()


@pytest.fixture
def memory_crew() -> Iterator[Crew]:
    app = Headrace("memory://")
    yield Crew(app)
    app.close()


def callbacks(crew: Crew) -> dict[str, Any]:
    return {on: crew.note.job(on) for on in ("on_done", "on_ended", "on_failed")}


async def ended(crew: Crew, *texts: str) -> None:
    """Run a worker until these callbacks have run."""
    async with asyncio.timeout(30), crew.app.worker():
        while sorted(crew.ran) != sorted(texts):  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0.01)


# ── in one call ──────────────────────────────────────────────────────────────


async def test_map_and_reduce(crew: Crew):
    total = await crew.app.aenqueue(group(crew.square.job(n) for n in range(30)).then(crew.add_up))
    async with crew.app.worker():
        assert await total.aresult(30) == sum(n * n for n in range(30))


async def test_groups_and_jobs_are_arguments_side_by_side(crew: Crew):
    @crew.app.task
    async def compare(one: Sequence[int], other: Sequence[int], most: int) -> list[int]:
        return [*one, *other, most]

    odd, even = (group(crew.square.job(n) for n in range(first, 6, 2)) for first in (1, 0))
    handle = await crew.app.aenqueue(compare.job(odd.out, even.out, group([crew.square.job(9)]).then(crew.add_up).out))
    async with crew.app.worker():
        assert await handle.aresult(30) == [1, 9, 25, 0, 4, 16, 81]


async def test_an_empty_group_is_done_at_once(crew: Crew):
    nothing: list[JobCall[int]] = []
    total = await crew.app.aenqueue(group(nothing).then(crew.add_up))
    async with crew.app.worker():
        assert await total.aresult(30) == 0


async def test_results_come_in_the_order_of_the_calls_though_members_follow_each_other(crew: Crew):
    @crew.app.task
    async def each(numbers: Sequence[int], again: Sequence[int]) -> list[int]:
        return [*numbers, *again]

    two = crew.square.job(2)
    sixteen = two.then(crew.square).then(crew.square)
    handle = await crew.app.aenqueue(each.job(group([sixteen, two]).out, group([two, sixteen]).out))
    async with crew.app.worker():
        assert await handle.aresult(30) == [256, 4, 4, 256]


async def test_a_job_runs_after_a_group_without_its_results(crew: Crew):
    squares = group((crew.failing.job(n) for n in (-1, 2)), "squares")
    handle = await crew.app.aenqueue(crew.note.using(after=squares, when="ended").job("over"))
    async with crew.app.worker():
        assert await handle.aresult(30) == "over"


# ── groups that grow ─────────────────────────────────────────────────────────


async def test_callbacks_run_when_a_group_is_done(crew: Crew):
    async with crew.app.open_group("import 7", **callbacks(crew)) as rows:
        handles = await rows.aenqueue_many(crew.square.job(n) for n in range(2500))
        assert len(handles) == 2500
        status = await rows.astatus()
        assert (status.size, status.sealed, status.left) == (2500, False, 2500)
    await ended(crew, "on_done", "on_ended")
    status = await rows.astatus()
    assert status == GroupStatus(id=rows.id, label="import 7", size=2500, done=2500, dead=0, cancelled=0, sealed=True)
    results = await rows.aresults()
    assert isinstance(results, Results)
    assert list(results) == [n * n for n in range(2500)]
    assert results[-1] == results[2499] == 2499**2
    assert results[1:3] == [1, 4]


def test_a_group_is_filled_by_sync_code(crew: Crew):
    with crew.app.open_group("import 7", on_done=crew.note.job("done")) as rows:
        rows.enqueue_many(crew.square.job(n) for n in range(10))
    assert rows.status().size == 10
    asyncio.run(ended(crew, "done"))
    assert list(rows.results()) == [n * n for n in range(10)]


async def test_a_dead_member_holds_what_needs_all_done(crew: Crew):
    async with crew.app.open_group("import 7", **callbacks(crew)) as rows:
        await rows.aenqueue_many(crew.failing.job(n) for n in (1, -2, 3))
    await ended(crew, "on_ended", "on_failed")
    status = await rows.astatus()
    assert (status.done, status.dead, status.cancelled) == (2, 1, 0)
    results = await rows.aresults()
    assert results.done() == [1, 9]
    with pytest.raises(Exception, match="is dead"):
        _ = results[1]


async def test_a_member_adds_members_without_missing_the_callback(crew: Crew):
    app = crew.app

    @app.task
    async def walk(depth: int) -> int:
        if depth:
            await current_job().group.aenqueue_many([walk.job(depth - 1), walk_sync.job(depth - 1)])
        return depth

    @app.task
    def walk_sync(depth: int) -> int:
        if depth:
            current_job().group.enqueue_many([walk.job(depth - 1)])
        assert not current_job().group.enqueue_many([])
        return depth

    async with app.open_group("tree", on_done=crew.note.job("done")) as tree:
        await tree.aenqueue_many([walk.job(3)])
    await ended(crew, "done")
    assert sorted(await tree.aresults(), reverse=True) == [3, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0]


async def test_a_group_takes_no_members_when_it_is_over(crew: Crew):
    async with crew.app.open_group("import 7", on_done=crew.note.job("done")) as rows:
        await rows.aenqueue_many([crew.square.job(1)])
    await ended(crew, "done")
    with pytest.raises(GroupOver):
        await rows.aenqueue_many([crew.square.job(2)])
    assert (await rows.astatus()).size == 1


async def test_a_block_that_raises_leaves_the_group_unsealed(crew: Crew):
    rows = crew.app.open_group("import 7", on_ended=crew.note.job("ended"))

    async def fill() -> None:
        async with rows:
            await rows.aenqueue_many([crew.square.job(1)])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fill()
    assert not (await rows.astatus()).sealed
    [waiting] = (await crew.app.afind(task=crew.note.name)).jobs
    assert waiting.state is BLOCKED
    await rows.aseal()
    await ended(crew, "ended")


async def test_a_block_that_is_entered_again_has_the_same_callbacks(crew: Crew):
    async with crew.app.open_group("all") as outer:
        rows = outer.open_group("rows", on_done=crew.note.job("on_done"))
        with pytest.raises(KeyError):
            async with rows:
                raise KeyError
        async with rows:
            await rows.aenqueue_many([crew.square.job(1)])
    await ended(crew, "on_done")
    assert len((await crew.app.afind(task=crew.note.name)).jobs) == 1
    assert ((await outer.astatus()).size, (await rows.astatus()).size) == (1, 1)


async def test_a_group_in_a_group_counts_as_one_member(crew: Crew):
    async with crew.app.open_group("outer", on_done=crew.note.job("outer")) as outer:
        await outer.aenqueue_many([crew.square.job(1)])
        async with outer.open_group("inner", on_done=crew.note.job("inner")) as inner:
            await inner.aenqueue_many([crew.square.job(2), crew.square.job(3)])
    await ended(crew, "inner", "outer")
    assert (await outer.astatus()).size == 2
    assert sorted(await outer.aresults()) == [1, 4, 9]


async def test_the_results_of_an_open_group_are_an_argument(crew: Crew):
    async with crew.app.open_group("squares") as squares:
        await squares.aenqueue_many(crew.square.job(n) for n in range(5))
    total = await crew.add_up.aenqueue(squares.out)
    async with crew.app.worker():
        assert await total.aresult(30) == 30


async def test_members_and_callbacks_get_the_tenant_of_the_group(crew: Crew):
    async with crew.app.open_group("import 7", on_done=crew.note.job("x"), tenant="acme") as rows:
        [own, other] = await rows.aenqueue_many([crew.square.job(1), crew.square.using(tenant="b").job(2)])
    assert [(await handle.astatus()).tenant for handle in (own, other)] == ["acme", "b"]
    [callback] = (await crew.app.afind(task=crew.note.name)).jobs
    assert callback.tenant == "acme"


async def test_a_callback_may_be_a_chain(crew: Crew):
    chain = crew.note.job("one").then(crew.note)
    async with crew.app.open_group("import 7", on_done=chain) as rows:
        await rows.aenqueue_many([crew.square.job(1)])
        assert {job.state for job in (await crew.app.afind(task=crew.note.name)).jobs} == {BLOCKED}
    await ended(crew, "one", "one")


# ── what is refused ──────────────────────────────────────────────────────────


async def test_wrong_uses_are_refused(memory_crew: Crew):
    crew, square = memory_crew, memory_crew.square
    bad: Task[..., Any] = square
    with pytest.raises(ConfigError, match="label = '': 1 to 200 printable characters"):
        crew.app.open_group("")
    with pytest.raises(ConfigError, match=r"group takes task.job\(…\), not 5"):
        group(cast("Any", [5]))
    with pytest.raises(ConfigError, match=r"group takes several task.job\(…\), not JobCall"):
        group(cast("Any", square.job(1)))
    with pytest.raises(ConfigError, match=r"on_done takes task.job\(…\), not <Task"):
        crew.app.open_group("x", on_done=cast("Any", square))
    with pytest.raises(ConfigError, match="follows other jobs"):
        async with crew.app.open_group("x") as rows:
            await rows.aenqueue_many([square.job(1).then(bad)])
    with pytest.raises(ConfigError, match="a call is in this group twice"):
        group([square.job(1)] * 2)
    lost = crew.app.open_group("never opened")
    with pytest.raises(GroupOver):
        await lost.astatus()


async def test_a_group_takes_no_member_that_follows_it(memory_crew: Crew):
    crew, note = memory_crew, memory_crew.note
    async with crew.app.open_group("outer") as outer, outer.open_group("inner") as inner:
        for group, around in ((outer, outer), (inner, inner), (inner, outer)):
            with pytest.raises(ConfigError, match=f"follows group '{group.label}', or one around it"):
                await group.aenqueue_many([note.using(after=around).job("never")])
        await outer.aenqueue_many([note.using(after=inner).job("ran")])
    await ended(crew, "ran")
    assert (await outer.astatus()).size == 2


async def test_a_job_outside_a_group_has_none(memory_crew: Crew):
    problems: list[str] = []

    @memory_crew.app.task
    async def alone() -> None:
        with pytest.raises(ConfigError) as caught:
            await current_job().group.aenqueue_many([memory_crew.square.job(1)])
        problems.append(str(caught.value))

    async with memory_crew.app.worker():
        handle = await alone.aenqueue()
        await handle.aresult(30)
    assert f"job {handle.id} is in no group" in problems[0]
