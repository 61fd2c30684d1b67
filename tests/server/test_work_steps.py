"""Workers in any language: inputs that the server resolves, steps, and jobs that wait without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import msgspec
import pytest

from headrace.model.gate import Edge, NewGate
from headrace.model.job import Batch, JobId, JobState, NewJob, job_id, new_batch
from headrace.model.lane import Lane
from headrace.model.step import MAX_STEP_VALUE, Step
from headrace.server import handout
from headrace.server.auth import LOCAL
from headrace.task.children import children_gate
from headrace.task.codec import JobOptions
from headrace.worker import inputs
from server.running import Running
from server.test_work import claim, ended, look, post, put, settle


def out(name: str) -> dict[str, str]:
    return {"$out": name}


async def workflow(server: Running, *jobs: dict[str, Any], **more: Any) -> dict[str, str]:
    placed = await post(server.http, "workflows", 201, jobs=[{"queue": "foreign", **job} for job in jobs], **more)
    ids: dict[str, str] = placed["ids"]
    return ids


def named(lease: Any, place: int = 0) -> dict[str, Any]:
    job = lease["jobs"][place]
    return {"lease": lease["lease"], "position": job["position"], "id": job["id"]}


async def step(http: httpx2.AsyncClient, lease: Any, name: str, value: Any, status: int = 204, **more: Any) -> Any:
    return await post(http, "steps", status, **named(lease), name=name, value=value, **more)


# ── inputs ───────────────────────────────────────────────────────────────────


async def test_results_of_other_jobs_arrive_as_arguments(server: Running) -> None:
    ids = await workflow(
        server,
        {"as": "a", "task": "one"},
        {"as": "b", "task": "two", "args": [out("a"), {"x": [out("a")]}], "kwargs": {"all": out("g")}},
        {"as": "c", "task": "one"},
        groups=[{"as": "g", "members": ["a", "c"]}],
    )
    first = await claim(server.http, limit=5)
    assert {job["id"] for job in first["jobs"]} == {ids["a"], ids["c"]}
    await settle(server.http, first, result={"n": 1, "text": "ä"})
    second = await claim(server.http, wait=30)
    [job] = second["jobs"]
    result = {"n": 1, "text": "ä"}
    assert (job["args"], job["kwargs"]) == ([result, {"x": [result]}], {"all": [result, result]})
    # What is stored, and shown, stays a reference.
    shown = (await server.http.get(f"/v1/jobs/{ids['b']}")).json()
    assert shown["arguments"]["args"][0] == out(ids["a"])
    assert (await settle(server.http, second))["settlements"][0]["state"] == "done"


async def test_a_job_without_a_result_gives_null(server: Running) -> None:
    await workflow(server, {"as": "a", "task": "one"}, {"as": "b", "task": "two", "args": [out("a")]})
    await settle(server.http, await claim(server.http))
    [job] = (await claim(server.http, wait=30))["jobs"]
    assert job["args"] == [None]


async def test_a_missing_input_makes_the_job_dead_and_the_next_one_is_handed_out(server: Running) -> None:
    ids = await workflow(server, {"as": "a", "task": "one"}, {"as": "b", "task": "two", "args": [out("a")]})
    await settle(server.http, await claim(server.http), result=1)
    await server.store.delete([JobId(UUID(ids["a"]))])
    [other] = await put(server)
    lease = await claim(server.http, limit=5, wait=30)
    assert [job["id"] for job in lease["jobs"]] == [str(other)]
    dead = await look(server, ids["b"])
    assert (dead.state, dead.note, dead.history[0].kind) == (JobState.DEAD, "input_missing", "input_missing")
    assert ids["a"] in dead.history[0].message


async def test_an_input_that_runs_again_puts_the_job_off(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SOON", timedelta(hours=1))
    ids = await workflow(server, {"as": "a", "task": "one"}, {"as": "b", "task": "two", "args": [out("a")]})
    await settle(server.http, await claim(server.http), result=1)
    await server.store.retry([JobId(UUID(ids["a"]))])
    lease = await claim(server.http, limit=5, wait=30)
    assert [job["id"] for job in lease["jobs"]] == [ids["a"]]
    put_off = await look(server, ids["b"])
    assert (put_off.state, put_off.failures) == (JobState.SCHEDULED, 0)
    assert "runs again" in (put_off.note or "")


async def test_more_than_one_answer_holds_is_handed_back(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handout, "MOST_BYTES", 1000)
    followers = [{"as": f"b{n}", "task": "two", "args": [out("a")]} for n in range(60)]
    ids = await workflow(server, {"as": "a", "task": "one"}, *followers)
    await settle(server.http, await claim(server.http), result="x" * 600)
    lease = await claim(server.http, limit=100, wait=30)
    assert [job["id"] for job in lease["jobs"]] == [ids["b0"], ids["b1"]]
    states = [job.state for job in await server.store.get([JobId(UUID(ids[f"b{n}"])) for n in range(60)]) if job]
    assert states == [JobState.RUNNING] * 2 + [JobState.READY] * 58
    assert len((await claim(server.http, limit=100))["jobs"]) == 2


async def test_a_group_with_too_many_bytes_is_a_missing_input(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    server.service.leases.handout = handout.Handout(server.store, None, "server")
    monkeypatch.setattr(server.service.leases.handout._inputs, "_most", 1000)
    ids = await workflow(
        server,
        *({"as": f"a{n}", "task": "one"} for n in range(3)),
        {"as": "b", "task": "two", "args": [out("g")]},
        groups=[{"as": "g", "members": ["a0", "a1", "a2"]}],
    )
    await settle(server.http, await claim(server.http, limit=3), result="x" * 600)
    await put(server)
    await claim(server.http, limit=5, wait=30)
    dead = await look(server, ids["b"])
    assert (dead.state, dead.note) == (JobState.DEAD, "input_missing")
    assert "1,000 bytes" in dead.history[0].message


# ── steps ────────────────────────────────────────────────────────────────────


async def test_a_later_attempt_gets_the_steps_of_earlier_ones(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http, steps=True)
    assert lease["jobs"][0]["steps"] == []
    await step(server.http, lease, "charge", {"receipt": 7})
    await step(server.http, lease, "mail", None, number=3)
    await step(server.http, lease, "charge", {"receipt": 8})  # The first one stays.
    shown = (await server.http.get(f"/v1/jobs/{id}/steps")).json()["items"]
    assert [(one["name"], one["number"], one["value"]) for one in shown] == [
        ("charge", 0, {"receipt": 7}),
        ("mail", 3, None),
    ]
    await settle(server.http, lease, "released")
    again = await claim(server.http)
    assert again["jobs"][0]["steps"] == []  # This claim does not ask for them.
    await settle(server.http, again, "released")
    [job] = (await claim(server.http, steps=True))["jobs"]
    assert (job["attempt"], job["steps"]) == (
        3,
        [{"name": "charge", "number": 0, "value": {"receipt": 7}}, {"name": "mail", "number": 3, "value": None}],
    )


async def test_a_failure_behind_a_new_step_is_the_first_one(server: Running) -> None:
    [id] = await put(server, options=JobOptions(max_attempts=2))
    for place in range(3):
        lease = await claim(server.http, wait=30)
        await step(server.http, lease, f"step {place}", place)
        answer = await settle(server.http, lease, "failed", retry_after=0)
        assert answer["settlements"][0]["state"] == "ready"
    assert (await look(server, id)).failures == 1
    lease = await claim(server.http, wait=30)
    await step(server.http, lease, "step 2", "sent again")  # It is no progress.
    answer = await settle(server.http, lease, "failed", retry_after=0)
    assert answer["settlements"][0]["state"] == "dead"


async def test_a_step_of_a_lost_or_settled_job_is_refused(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    await settle(server.http, lease)
    problem = await step(server.http, lease, "late", 1, 409)
    assert problem["code"] == "lease_lost"
    assert await server.store.read_steps(id) == []
    await post(server.http, "steps", 404, **named(lease) | {"lease": "5d0f"}, name="late", value=1)
    [other] = await put(server)
    lease = await claim(server.http)
    await post(server.http, "steps", 409, **named(lease) | {"id": str(id)}, name="other", value=1)
    assert await server.store.read_steps(other) == []


async def test_steps_are_bounded(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"name": ""}, "invalid_field"),
        ({"name": "n" * 401}, "invalid_field"),
        ({"number": -1}, "invalid_field"),
        ({"number": 10_000}, "invalid_field"),
        ({"value": 1 << 70}, "invalid_value"),
        ({"value": "x" * MAX_STEP_VALUE}, "step_too_large"),
    ]
    for given, code in refused:
        problem = await post(server.http, "steps", 422, **{**named(lease), "name": "s", "value": 1, **given})
        assert problem["code"] == code, given
    assert await server.store.read_steps(id) == []


async def test_journals_are_bounded(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handout, "MAX_STEPS", 2)
    [id] = await put(server)
    lease = await claim(server.http)
    await step(server.http, lease, "one", 1)
    await settle(server.http, lease, "released")
    lease = await claim(server.http)  # The size of the journal is read again.
    await step(server.http, lease, "two", 2)
    assert (await step(server.http, lease, "three", 3, 422))["code"] == "step_too_large"
    await step(server.http, lease, "two", 2)
    assert [one.name for one in await server.store.read_steps(id)] == ["one", "two"]


async def test_the_sizes_of_few_journals_are_remembered(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handout, "REMEMBERED", 3)
    await put(server, count=3)
    lease = await claim(server.http, limit=3)
    sizes = server.service.leases.journals
    for place in range(3):
        for number in range(2):
            await post(server.http, "steps", 204, **named(lease, place), name="s", number=number, value=1)
    assert (len(sizes._sizes), sizes._steps) == (1, 2)
    await settle(server.http, lease)
    assert (len(sizes._sizes), sizes._steps) == (0, 0)


async def test_steps_of_python_tasks_are_shown_to_other_workers(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    token = server.service.leases.signer.read(lease["lease"], LOCAL)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    await server.store.add_steps(token, [(0, Step("f", 0, b"d", msgspec.msgpack.encode(b"\xff"), at))])
    await settle(server.http, lease, "released")
    [job] = (await claim(server.http, steps=True))["jobs"]
    assert (job["id"], job["steps"][0]["name"]) == (str(id), "f")


async def test_a_step_that_names_children_of_another_tenant_does_not_cancel_them(server: Running) -> None:
    """What a task awaits is a step, and a worker may write any step."""
    batch = new_batch()
    gate, theirs = NewGate(id=children_gate(batch), queue="foreign", tenant="acme"), job_id(batch, 0)
    job = NewJob("resize", b"\x92\x90\x80", Lane("away", 0, "acme"))
    await server.store.enqueue(Batch(batch, [job], (gate,), (Edge(theirs, theirs, gate.id),)))
    token = await server.token("work", "operate", tenant="globex")
    async with server.client(token) as globex:
        [own] = await put(server, tenant="globex")
        lease = await claim(globex)
        await step(globex, lease, "await resize", str(batch))
        await step(globex, lease, f"end of {batch}", "no answer")
        await settle(globex, lease, "suspended", events=[APPROVED])
        await post(globex, f"jobs/{own}/cancel")
    assert (await look(server, own)).state is JobState.CANCELLED
    assert (await look(server, theirs)).state is JobState.READY


# ── waits ────────────────────────────────────────────────────────────────────

APPROVED = {"name": "payout.approved", "key": "42"}


@pytest.fixture
async def worker(server: Running) -> AsyncIterator[httpx2.AsyncClient]:
    async with server.client(await server.token("work", tenant="acme")) as client:
        yield client


async def test_a_job_waits_for_an_event_without_a_worker(server: Running, worker: httpx2.AsyncClient) -> None:
    [id] = await put(server, tenant="acme")
    lease = await claim(worker)
    assert (await worker.get("/v1/events/payout.approved/42")).status_code == 404
    answer = await settle(worker, lease, "suspended", events=[APPROVED])
    assert answer["settlements"][0]["state"] == "blocked"
    job = await look(server, id)
    assert (job.state, job.failures, job.note) == (
        JobState.BLOCKED,
        0,
        "its task waits for event payout.approved of 42",
    )
    await post(worker, "claim", 204, queues=["foreign"])
    # The same event of another tenant is another one.
    async with server.client(await server.token("enqueue", tenant="other")) as other:
        assert (await post(other, "events/payout.approved/42", 201, value="no"))["signalled"]
    assert (await look(server, id)).state is JobState.BLOCKED
    async with server.client(await server.token("enqueue", tenant="acme")) as producer:
        assert (await post(producer, "events/payout.approved/42", 201, value={"by": "ann"}))["signalled"]
    lease = await claim(worker, wait=30)
    assert (lease["jobs"][0]["id"], lease["jobs"][0]["attempt"]) == (str(id), 2)
    event = (await worker.get("/v1/events/payout.approved/42")).json()
    assert (event["signalled"], event["value"]) == (True, {"by": "ann"})
    assert (await settle(worker, lease))["settlements"][0]["state"] == "done"


async def test_an_event_that_came_first_is_not_missed(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    await post(server.http, "events/payout.approved/42", 201, value=1)
    await settle(server.http, lease, "suspended", events=[{"name": "other", "key": "1"}, APPROVED])
    lease = await claim(server.http, wait=30)
    assert lease["jobs"][0]["id"] == str(id)


async def test_a_wait_ends_with_its_time(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    await settle(server.http, lease, "suspended", events=[APPROVED], until=past)
    lease = await claim(server.http, wait=30)
    assert lease["jobs"][0]["id"] == str(id)


async def test_a_job_sleeps_until_a_time(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    until = datetime.now(UTC) + timedelta(days=14)
    answer = await settle(server.http, lease, "suspended", until=until.isoformat())
    assert answer["settlements"][0]["state"] == "scheduled"
    job = await look(server, id)
    assert (job.state, job.run_at) == (JobState.SCHEDULED, until)
    why = (await server.http.get(f"/v1/jobs/{id}/explain")).json()
    assert why["reason"] == "asleep"


async def test_a_wait_that_cannot_be_read_settles_nothing(server: Running) -> None:
    [first, second] = await put(server, count=2)
    lease = await claim(server.http, limit=2)
    refused: list[dict[str, Any]] = [
        {},
        {"events": [{"name": "no name", "key": "1"}]},
        {"events": [{"name": "n", "key": ""}]},
        {"events": [{"name": "n", "key": "1", "queue": "no queue"}]},
        {"events": [APPROVED] * 21},
        {"until": "2999-01-01T00:00:00Z"},
        {"until": "2030-01-01T00:00:00"},
        {"until": "soon"},
    ]
    for given in refused:
        good, bad = ended(lease["jobs"][0]), ended(lease["jobs"][1], "suspended", **given)
        problem = await post(server.http, "settle", 422, lease=lease["lease"], settlements=[good, bad])
        assert problem["path"].startswith("settlements[1]"), given
    assert {(await look(server, id)).state for id in (first, second)} == {JobState.RUNNING}


async def test_a_suspension_of_a_lost_lease_changes_nothing(server: Running) -> None:
    [id] = await put(server)
    lease = await claim(server.http)
    await settle(server.http, lease, "released")
    await claim(server.http)
    problem = await settle(server.http, lease, "suspended", 409, events=[APPROVED])
    assert problem["code"] == "lease_lost"
    assert (await look(server, id)).state is JobState.RUNNING
    assert (await server.http.get("/v1/events/payout.approved/42")).status_code == 404


async def _first_event(stream: httpx2.Response) -> AsyncIterator[str]:
    async for line in stream.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
            return


async def test_a_stream_names_what_a_job_waits_for(server: Running) -> None:
    await put(server)
    lease = await claim(server.http)
    await settle(server.http, lease, "suspended", events=[APPROVED])
    id = lease["jobs"][0]["id"]
    async with asyncio.timeout(60), server.http.stream("GET", f"/v1/jobs/{id}/events") as stream:
        data = [line async for line in _first_event(stream)]
    event = msgspec.json.decode(data[0])
    shown = (await server.http.get(f"/v1/jobs/{id}")).json()
    assert (event["state"], event["waits"]) == ("blocked", shown["waits"])
    assert [wait["needs"] for wait in event["waits"]] == ["done"]
