"""Replays that the server runs: behind canaries, at a rate, stopped, taken over by the next server, and whose they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from headrace import Headrace, JobDead, Retry
from headrace.model.job import JobState
from headrace.model.records import Filter
from headrace.operate.dead import runs as replay_runs
from headrace.operate.dead.runs import ReplayRun, ReplayRuns, new_run_id
from headrace.server import replays
from headrace.store.contract import Store
from server.running import Running, running

DEAD, READY = Filter(states=frozenset({JobState.DEAD})), Filter(states=frozenset({JobState.READY}))
Replay = dict[str, Any]


class Bug:
    """A mistake in the code of a task, which a test mends."""

    there = True


@pytest.fixture
def bug(app: Headrace) -> Bug:
    bug = Bug()

    @app.task(name="buggy", queue="broken", retry=Retry(max_attempts=1))
    async def buggy() -> None:
        if bug.there:
            raise RuntimeError("as asked")

    return bug


async def dead(app: Headrace, count: int, **options: Any) -> None:
    handles = [await app.tasks["buggy"].using(**options).aenqueue() for _ in range(count)]
    async with app.worker(queues=["broken"]):
        for handle in handles:
            with pytest.raises(JobDead):
                await handle.aresult(timeout=60)


async def jobs(store: Store, where: Filter) -> int:
    return len((await store.find(where, limit=1000)).jobs)


async def start(server: Running, **body: Any) -> str:
    answer = await server.http.post("/v1/dead/replays", json={"everything": True, **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def answered(client: httpx2.AsyncClient, path: str, holds: Callable[[Any], bool]) -> Any:
    """The answer as soon as that holds for it."""
    async with asyncio.timeout(60):
        while True:
            answer = (await client.get(path)).json()
            if holds(answer):
                return answer
            await asyncio.sleep(0.02)  # A client learns the state of a replay only by asking.


async def until(server: Running, id: str, holds: Callable[[Replay], bool]) -> Replay:
    """The replay as soon as that holds."""
    replay: Replay = await answered(server.http, f"/v1/dead/replays/{id}", holds)
    return replay


def over(replay: Replay) -> bool:
    return replay["ended_at"] is not None


async def test_the_rest_follows_canaries_that_succeed(server: Running, bug: Bug) -> None:
    await dead(server.app, 30)
    bug.there = False
    async with server.app.worker(queues=["broken"]):
        replay = await until(server, await start(server, canary=5, rate="1000/s"), over)
    assert (replay["stage"], replay["replayed"], replay["refused"], replay["stopped"]) == ("ended", 30, 0, None)
    assert (replay["trial"]["tried"], replay["trial"]["done"]) == (5, 5)
    assert await jobs(server.store, DEAD) == 0
    entries = (await answered(server.http, "/v1/audit", lambda page: bool(page["items"])))["items"]
    assert [(entry["who"], entry["action"], entry["jobs"]) for entry in entries] == [("local", "dead.replay", 30)]


async def test_the_rest_stays_dead_if_canaries_die_again(server: Running, bug: Bug) -> None:
    assert bug.there
    await dead(server.app, 12)
    async with server.app.worker(queues=["broken"]):
        replay = await until(server, await start(server, canary=5), over)
    assert replay["replayed"] == 5
    assert "canaries died again" in replay["stopped"]
    assert await jobs(server.store, DEAD) == 12


async def test_few_jobs_are_all_canaries(server: Running, bug: Bug) -> None:
    await dead(server.app, 3)
    bug.there = False
    async with server.app.worker(queues=["broken"]):
        replay = await until(server, await start(server, canary=10), over)
    assert (replay["replayed"], replay["trial"]["done"], replay["stopped"]) == (3, 3, None)
    nothing = await until(server, await start(server, canary=10), over)
    assert (nothing["replayed"], nothing["trial"]) == (0, None)


@pytest.mark.usefixtures("bug")
async def test_a_replay_is_stopped(server: Running) -> None:
    await dead(server.app, 3)
    id = await start(server, rate="1/h")
    await until(server, id, lambda replay: replay["replayed"] == 1)
    assert (await server.http.post(f"/v1/dead/replays/{id}/stop")).status_code == 200
    replay = await until(server, id, over)
    assert (replay["stopped"], replay["replayed"], replay["stopping"]) == ("local stopped it", 1, False)
    assert await jobs(server.store, DEAD) == 2
    again = await server.http.post(f"/v1/dead/replays/{id}/stop")
    assert again.json() == replay


@pytest.mark.usefixtures("bug")
@pytest.mark.parametrize("store_name", ["sqlite"], indirect=True)
async def test_a_restart_loses_nothing_but_the_pace(app: Headrace, store: Store, store_url: str) -> None:
    """Each server replays one job at once, because its pace begins anew, and none twice."""
    await dead(app, 3)
    async with running(Headrace(store_url)) as server:
        id = await start(server, rate="1/h")
        await until(server, id, lambda replay: replay["replayed"] == 1)
    async with running(Headrace(store_url)) as server:
        await until(server, id, lambda replay: replay["replayed"] == 2)
    async with running(Headrace(store_url)) as server:
        replay = await until(server, id, over)
    assert (replay["replayed"], replay["refused"], replay["stopped"]) == (3, 0, None)
    assert (await jobs(store, READY), await jobs(store, DEAD)) == (3, 0)
    await app.aclose()


@pytest.mark.usefixtures("bug")
async def test_another_server_takes_over_from_one_that_is_gone(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dead(server.app, 3)
    now = await server.store.now()
    gone = ReplayRun(
        id=new_run_id(), by="ann", where=Filter(), stage="rest", runner="gone", started_at=now, seen_at=now
    )
    await ReplayRuns(server.store).create(gone)
    monkeypatch.setattr(replays, "LOOK", 0.01)
    async with running(Headrace(server.app.settings.url), store=server.store) as second:
        await second.http.get("/v1/dead/replays")
        assert (await until(server, gone.id, lambda _: True))["ended_at"] is None, "its server may be there"
        second.service.replays._stale = timedelta(0)
        second.service.replays._look = 0.01
        await second.service.replays._take_over()
        replay = await until(server, gone.id, over)
    assert (replay["by"], replay["replayed"]) == ("ann", 3)


async def test_a_tenant_replays_its_own(server: Running, bug: Bug) -> None:
    assert bug.there
    for tenant in ("acme", "other"):
        await dead(server.app, 2, tenant=tenant)
    tokens = {
        "acme": await server.token("read", "operate", tenant="acme"),
        "other": await server.token("read", "operate", tenant="other"),
        "admin": await server.token("admin"),
    }
    async with server.client(tokens["acme"]) as own, server.client(tokens["other"]) as other:
        answer = await own.post("/v1/dead/replays", json={"everything": True})
        path = f"/v1/dead/replays/{answer.json()['id']}"
        assert (await answered(own, path, over))["replayed"] == 2
        assert (await other.get(path)).status_code == (await other.post(f"{path}/stop")).status_code == 404
        assert (await other.get("/v1/dead/replays")).json()["items"] == []
    async with server.client(tokens["admin"]) as admin:
        assert len((await admin.get("/v1/dead/replays")).json()["items"]) == 1
    ready = (await server.store.find(READY)).jobs
    assert [job.tenant for job in ready] == ["acme", "acme"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_choice"),
        ({"group": "x"}, "invalid_group"),
        ({"everything": True, "rate": "fast"}, "invalid_rate"),
        ({"everything": True, "canary": 0}, "invalid_field"),
        ({"everything": True, "canary": 1, "tolerate": 1}, "invalid_field"),
        ({"everything": True, "canary": 1, "patience": "soon"}, "invalid_patience"),
    ],
    ids=str,
)
async def test_a_wrong_request_starts_nothing(server: Running, body: Replay, code: str) -> None:
    answer = await server.http.post("/v1/dead/replays", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert (await server.http.get("/v1/dead/replays")).json()["items"] == []


@pytest.mark.usefixtures("bug")
async def test_few_replays_run_at_once_and_ended_ones_are_forgotten(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_runs, "MOST_RUNNING", 1)
    await dead(server.app, 2)
    id = await start(server, rate="1/h")
    refused = await server.http.post("/v1/dead/replays", json={"everything": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_replays")
    await server.http.post(f"/v1/dead/replays/{id}/stop")
    await until(server, id, over)
    monkeypatch.setattr(replay_runs, "KEPT", -timedelta(days=1))
    second = await start(server)
    assert [replay["id"] for replay in (await server.http.get("/v1/dead/replays")).json()["items"]] == [second]


@pytest.fixture
async def server(app: Headrace, bug: Bug) -> AsyncIterator[Running]:
    """A server of an app that has the task with the bug."""
    assert bug.there
    async with running(app) as server:
        yield server
