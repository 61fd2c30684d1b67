"""Handles of a bulk call: a sequence in the order of its jobs, made when looked at."""

from __future__ import annotations

import pytest

from headrace import Handles, Headrace, Unique


@pytest.fixture
def app() -> Headrace:
    return Headrace("memory://")


async def test_nothing_is_made_before_somebody_looks(app: Headrace, monkeypatch: pytest.MonkeyPatch):
    made = 0

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal made
        made += 1
        return object()

    monkeypatch.setattr("headrace.client.handles.Handle", counted)

    @app.task
    async def noop(number: int) -> None: ...

    async with app:
        handles = await app.aenqueue_many(noop.job(n) for n in range(2500))
    assert (len(handles), repr(handles), made) == (2500, "<handles of 2,500 jobs>", 0)
    assert handles[7] is handles[7]
    assert made == 2500


async def test_it_behaves_as_a_list_does(app: Headrace):
    @app.task
    async def say(number: int) -> int:
        return number

    async with app:
        handles = await app.aenqueue_many(say.using(tenant=f"t{n % 3}").job(n) for n in range(6))
        assert isinstance(handles, Handles)
        found = [say.codec.decode((await each.astatus()).payload)[0][0] for each in handles]
        assert found == list(range(6))
        assert handles[-1].id == [*handles][5].id
        assert [each.id for each in handles[1:3]] == [handles[1].id, handles[2].id]
        assert handles == list(handles)
        assert handles == handles[:]
        assert handles != list(handles)[1:]
        assert handles != await app.aenqueue_many([])
        assert handles[0] in handles
        with pytest.raises(IndexError):
            handles[6]
        with pytest.raises(TypeError, match="unhashable"):
            hash(handles)


async def test_those_that_are_skipped_are_left_out_and_others_answer_for_theirs(app: Headrace):
    @app.task(unique=Unique(on_conflict="skip"))
    async def once(number: int) -> None: ...

    @app.task
    async def keyed(number: int) -> None: ...

    async with app:
        handles = await app.aenqueue_many([once.job(1), once.job(1), once.job(2)])
        assert len(handles) == 2
        assert [each.created for each in handles] == [True, True]
        again = keyed.using(key="k")
        first, second = await app.aenqueue_many([again.job(1), again.job(1)])
        assert (first.id, first.created, second.created) == (second.id, True, False)


async def test_result_does_not_hold_up_an_event_loop(app: Headrace):
    @app.task
    async def say(number: int) -> int:
        return number

    async with app.worker():
        handle = await say.aenqueue(7)
        with pytest.raises(RuntimeError, match=r"await handle.aresult\(\)"):
            handle.result()
        assert await handle.aresult() == 7
