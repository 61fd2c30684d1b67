"""A token that is revoked while its call waits: no job, no result and no event for it from then on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx2
import pytest

from headrace import Headrace
from headrace.errors import Unavailable
from headrace.model.job import JobState
from headrace.operate import tokens
from headrace.server import waiting_claims
from headrace.server.events import feed
from headrace.server.events.tail import Listener
from server.running import Calls, Running, running
from server.test_events import events
from server.test_work import claim, look, put, settle


@pytest.fixture
async def server(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    """A store in which only events wake a waiting call."""
    monkeypatch.setattr(waiting_claims, "POLL", 600.0)
    async with running(app) as found:
        await found.token("admin")  # from here on the door is shut
        yield found


async def revoke(server: Running, name: str) -> None:
    await tokens.revoke(server.store, name)
    server.service.auth._asked = float("-inf")  # it would ask within a second
    server.service.auth._asking.forget()


async def asleep(server: Running, people: int) -> None:
    async with asyncio.timeout(60):
        while server.service.leases.room.sleeping < people:  # noqa: ASYNC110  # everything happens in this loop
            await asyncio.sleep(0)


async def test_a_long_poll_gets_no_job_and_hands_its_turn_on(server: Running) -> None:
    bad, good = await server.token("work", name="bad"), await server.token("work", name="good")
    async with server.client(bad) as left, server.client(good) as stays:
        first = [asyncio.create_task(left.post("/v1/claim", json={"queues": ["foreign"], "wait": 30}))]
        await asleep(server, 1)
        # One that has not even looked, as it was known that there is nothing.
        first.append(asyncio.create_task(left.post("/v1/claim", json={"queues": ["foreign"], "wait": 30})))
        await asleep(server, 2)
        second = asyncio.create_task(stays.post("/v1/claim", json={"queues": ["foreign"], "wait": 30}))
        await asleep(server, 3)
        await revoke(server, "bad")
        [id] = await put(server)
        assert [(await each).status_code for each in first] == [401, 401]
        found = await second
        assert found.json()["jobs"][0]["id"] == str(id)
        assert (await look(server, id)).attempt == 1


async def test_who_waits_for_a_result_does_not_get_it(server: Running) -> None:
    bad, good = await server.token("read", name="bad"), await server.token("work", name="good")
    async with server.client(bad) as left, server.client(good) as stays:
        [id] = await put(server)
        waits = Calls(server.service.hub, "finished")
        result = asyncio.create_task(left.get(f"/v1/jobs/{id}/result", params={"wait": "30s"}))
        await waits()
        await revoke(server, "bad")
        await settle(stays, await claim(stays), result="secret")
        answer = await result
        assert answer.status_code == 401
        assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/v1/events", "/v1/jobs/{id}/events"])
async def test_a_stream_ends_before_the_next_event(server: Running, path: str) -> None:
    bad, good = await server.token("read", name="bad"), await server.token("work", name="good")
    async with server.client(bad) as left, server.client(good) as stays:
        [id] = await put(server)
        async with left.stream("GET", path.format(id=id)) as stream:
            assert stream.status_code == 200
            source = events(stream)
            if "{id}" in path:
                assert (await anext(source)).name == "state"
            await revoke(server, "bad")
            await settle(stays, await claim(stays))
            assert (await look(server, id)).state is JobState.DONE
            async with asyncio.timeout(60):
                assert [each async for each in source] == []


async def test_a_stream_outlasts_a_store_that_is_away(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    text = await server.token("read")

    async def away(kind: str) -> None:
        raise Unavailable("away")

    async with server.client(text) as client, client.stream("GET", "/v1/events") as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "retry: 2000"
        with monkeypatch.context() as patch:
            asked = Calls(server.service.auth._asking, "get")
            patch.setattr(server.store, "records", away)
            patch.setattr(feed, "HEARTBEAT", 0.01)
            server.service.auth._asked = float("-inf")
            for listener in server.service.hub._tail._listeners:
                assert isinstance(listener, Listener)
                listener.feed.put(b": here\n\n")
            await asked(3)
        async with asyncio.timeout(60):
            while await anext(lines) != ": ":
                pass


async def test_many_share_one_question_and_its_error(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hangs delays all callers once, not one after the other."""
    text = await server.token("read")
    questions, hang = 0, asyncio.Event()

    async def hangs() -> None:
        nonlocal questions
        questions += 1
        await hang.wait()
        raise Unavailable("away")

    async with server.client(text) as client:
        with monkeypatch.context() as patch:
            patch.setattr(server.store, "now", hangs)
            asked = Calls(server.service.auth._asking, "get")
            calls = [asyncio.create_task(client.get("/v1/tasks")) for _ in range(20)]
            await asked(20)
            calls[0].cancel()  # the caller that began the read
            with suppress(asyncio.CancelledError):
                await calls[0]
            hang.set()
            answers: list[httpx2.Response] = await asyncio.gather(*calls[1:])
        assert {each.status_code for each in answers} == {503}
        assert questions == 1
        assert (await client.get("/v1/tasks")).status_code == 200
