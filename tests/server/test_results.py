"""`/result`: answered when the job ends, with one read of the store for all waiting calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace import Cancel, Headrace
from headrace.client import results
from headrace.model.job import Batch, Job, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.scope import Scope
from headrace.operate import shown, tokens
from headrace.server.events import hub as hub_
from headrace.server.events.hub import Hub
from headrace.store.contract import Store
from headrace.store.memory import MemoryStore
from server.running import Calls, Running, running
from worker.harness import until


def put_gate(app: Headrace) -> asyncio.Event:
    """A task `wait` that ends when the event is set."""
    gate = asyncio.Event()

    @app.task(name="wait")
    async def wait(how: str = "") -> str:
        await gate.wait()
        if how == "cancel":
            raise Cancel("nobody wants it")
        return "at last"

    return gate


async def enqueue(server: Running, task: str, *args: Any) -> str:
    made = await server.http.post("/v1/jobs", json={"task": task, "args": list(args)})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def test_how_jobs_end(server: Running):
    gate = put_gate(server.app)
    ids = [
        await enqueue(server, "wait"),
        await enqueue(server, "fail", "it broke"),
        await enqueue(server, "wait", "cancel"),
        await enqueue(server, "echo", {"a": [1, None, "ä"]}),
    ]
    early = await server.http.get(f"/v1/jobs/{ids[0]}/result")
    assert early.status_code == 202
    assert early.headers["retry-after"] == "1"
    assert early.json().items() >= {"id": ids[0], "state": "ready", "result": None}.items()
    async with server.app.worker():
        late = [asyncio.create_task(server.http.get(f"/v1/jobs/{id}/result?wait=30s")) for id in ids]
        gate.set()
        answers = [await each for each in late]
    assert [each.status_code for each in answers] == [200] * 4
    done, dead, cancelled, echoed = (each.json() for each in answers)
    assert (done["state"], done["result"], done["failure"]) == ("done", "at last", None)
    assert (dead["state"], dead["note"], dead["result"]) == ("dead", "max_attempts", None)
    assert dead["failure"].items() >= {"kind": "RuntimeError", "message": "it broke", "attempt": 1}.items()
    assert (cancelled["state"], cancelled["note"]) == ("cancelled", "nobody wants it")
    assert echoed["result"] == {"a": [1, None, "ä"]}
    assert answers[0].headers["cache-control"] == "no-store"


async def test_a_result_is_masked_for_people_and_whole_for_producers(server: Running):
    @server.app.task(name="pay", redact=["card"])
    async def pay(card: str, order: int) -> dict[str, Any]:
        return {"order": order, "card": "4111-2222", "text": f"paid with {card}", "tries": [card, {"Card": 5}]}

    id = await enqueue(server, "pay", "4111-1111", 7)
    async with server.app.worker():
        whole = await server.http.get(f"/v1/jobs/{id}/result?wait=30s")
    assert whole.json()["result"]["tries"] == ["4111-1111", {"Card": 5}]
    looked = await server.http.get(f"/v1/jobs/{id}/result?masked=true")
    masked = {"order": 7, "card": "•••", "text": "paid with •••", "tries": ["•••", {"Card": "•••"}]}
    assert looked.json()["result"] == masked
    assert (await server.http.get(f"/v1/jobs/{id}/result?masked=perhaps")).status_code == 422
    [job] = await server.store.get([JobId(UUID(id))])
    assert job is not None
    assert shown.result(pay, job) == masked
    # Each job of such a task carries the names of its masked fields, for readers without the app.
    assert shown.result(None, job) == masked


async def test_time_that_is_up(server: Running):
    id = await enqueue(server, "add", 1)
    for wait in ("50ms", "0", "0.05"):  # a bare number is one of seconds, as in a claim
        answer = await server.http.get(f"/v1/jobs/{id}/result", params={"wait": wait})
        assert answer.status_code == 202
        assert answer.json()["state"] == "ready"


@pytest.mark.parametrize("wait", ["soon", "31s", "-1s", "", "1e9s", "31", "-1", "9" * 400, "٣"])
async def test_a_wait_that_is_none(server: Running, wait: str):
    id = await enqueue(server, "add", 1)
    answer = await server.http.get(f"/v1/jobs/{id}/result", params={"wait": wait})
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_value"
    assert "timedelta" not in answer.text


async def test_a_job_that_is_not_there(server: Running):
    assert (await server.http.get(f"/v1/jobs/{uuid4()}/result?wait=30s")).json()["code"] == "job_not_found"
    assert (await server.http.get("/v1/jobs/nonsense/result")).json()["code"] == "invalid_job_id"


async def test_nobody_learns_by_waiting(server: Running):
    [id] = await put(server.store, 1)
    text, _ = await tokens.create(server.store, "acme", scopes=[Scope.ENQUEUE], tenant="acme")
    async with server.client(text) as client, asyncio.timeout(25):  # it would wait for longer
        answer = await client.get(f"/v1/jobs/{id}/result?wait=30s")
    assert answer.status_code == 404
    assert answer.json()["code"] == "job_not_found"


async def test_a_settlement_through_this_server_wakes_at_once(server: Running, monkeypatch: pytest.MonkeyPatch):
    made = await server.http.post("/v1/jobs", json={"task": "theirs", "queue": "foreign"})
    id = made.json()["id"]
    monkeypatch.setattr(results, "FIRST_POLL", 3600.0)
    monkeypatch.setattr(results, "LONGEST_POLL", 3600.0)
    arrived = Calls(server.service.hub, "finished")
    waiting = asyncio.create_task(server.http.get(f"/v1/jobs/{id}/result?wait=30s"))
    await arrived()
    claimed = (await server.http.post("/v1/claim", json={"queues": ["foreign"], "limit": 1, "worker": "w"})).json()
    [job] = claimed["jobs"]
    settlement = {"position": job["position"], "id": job["id"], "outcome": "succeeded", "result": 7}
    settled = await server.http.post("/v1/settle", json={"lease": claimed["lease"], "settlements": [settlement]})
    assert settled.status_code == 200, settled.text
    assert (await waiting).json()["result"] == 7


async def test_a_server_that_stops_answers_first(app: Headrace):
    async with running(app) as server:
        id = await enqueue(server, "add", 1)
        client = server.client()
        arrived = Calls(server.service.hub._waiter, "finished")
        waiting = asyncio.create_task(client.get(f"/v1/jobs/{id}/result?wait=30s"))
        await arrived()
    async with asyncio.timeout(25):  # it would wait for longer
        assert (await waiting).status_code == 202
        await client.aclose()


# ── one look for all ─────────────────────────────────────────────────────────


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.looks: list[int] = []
        self.slow = 0.0

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        self.looks.append(len(ids))
        await asyncio.sleep(self.slow)
        return await super().get(ids)


async def put(store: Store, count: int) -> list[JobId]:
    batch = Batch(new_batch(), [NewJob("task", b"\x92\x90\x80", Lane())] * count)
    await store.enqueue(batch)
    return [job_id(batch.id, ord) for ord in range(count)]


async def test_a_thousand_who_wait_are_a_few_looks():
    store = Counting()
    ids = await put(store, 1000)
    async with Hub(store) as hub:
        waiting = [asyncio.create_task(hub.finished(id, 30)) for id in ids]
        await until(lambda: hub.waiting == 1000 and len(store.looks) >= 8)
        await store.cancel(ids)
        hub.settled(ids)
        jobs = await asyncio.gather(*waiting)
        assert {job and job.state for job in jobs} == {JobState.CANCELLED}
        assert hub.waiting == 0
    # By fives of hundreds: however many wait, a look is a call or two of the store.
    assert len(store.looks) < 200
    assert max(store.looks) == results.ASK_AT_ONCE


async def test_looks_that_are_dear_are_rare():
    store = Counting()
    [id] = await put(store, 1)
    async with Hub(store) as hub:
        waiting = asyncio.create_task(hub.finished(id, 30))
        await until(lambda: hub.waiting)
        store.slow = 0.05
        store.looks.clear()
        began = asyncio.get_running_loop().time()
        await until(lambda: len(store.looks) >= 3)
        # The second came no sooner than nine times what the first took.
        assert asyncio.get_running_loop().time() - began > 9 * store.slow
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_an_end_in_another_process_is_seen():
    store = Counting()
    [id] = await put(store, 1)
    async with Hub(store) as hub:
        waiting = asyncio.create_task(hub.finished(id, 30))
        await until(lambda: hub.waiting)
        await store.cancel([id])
        job = await waiting
    assert job is not None
    assert job.state is JobState.CANCELLED


async def test_with_very_many_who_wait_what_ended_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "FIRST_POLL", 3600.0)
    monkeypatch.setattr(results, "LONGEST_POLL", 3600.0)
    store = Counting()
    ids = await put(store, 2 * hub_.MANY)
    async with Hub(store) as hub:
        few = asyncio.create_task(hub.finished(ids[0], 30))
        await until(lambda: hub.waiting)
        assert hub.listening == 0
        waiting = [asyncio.create_task(hub.finished(id, 30)) for id in ids[1:]]
        await until(lambda: hub.waiting == len(ids) and hub.listening)
        await store.cancel(ids)
        assert {job and job.state for job in await asyncio.gather(few, *waiting)} == {JobState.CANCELLED}
        assert hub.listening == 0


async def test_a_job_that_goes_while_it_is_waited_for():
    store = Counting()
    [id] = await put(store, 1)
    async with Hub(store) as hub:
        waiting = asyncio.create_task(hub.finished(id, 30))
        await until(lambda: store.looks)
        await store.delete([id])
        assert await waiting is None


class Hesitating(MemoryStore):
    """Does not answer the first look."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        if not self.asked.is_set():
            self.asked.set()
            await asyncio.Event().wait()
        return await super().get(ids)


@pytest.mark.parametrize("call", ["look", "finished"])
async def test_a_server_that_stops_during_the_first_look_answers_too(call: str):
    store = Hesitating()
    [id] = await put(store, 1)
    async with Hub(store) as hub:
        waiting = asyncio.create_task(hub.look(id) if call == "look" else hub.finished(id, 30))
        await store.asked.wait()
        hub.dismiss()
        job = await waiting
    assert job is not None
    assert job.state is JobState.READY
